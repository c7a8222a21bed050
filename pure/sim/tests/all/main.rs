//! Tests of whole simulated runs.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/listener.rs"]
mod listener;
#[path = "../common/sets.rs"]
mod sets;

mod alert;
mod atropos;
mod balancers;
mod boosts;
mod bsp;
mod bvt;
mod cap_changes;
mod conservation;
mod credit;
mod determinism;
mod edf;
mod gangs;
mod gaps;
mod gedf;
mod guests;
mod independent;
mod instants;
mod interference;
mod io;
mod jobs;
mod overhead;
mod periods;
mod recordings;
mod rtds;
mod runs;
mod sedf;
mod siblings;
mod speeds;
mod spinlocks;
mod split;
mod starts;
mod terms;
mod topology;
mod wakes;
