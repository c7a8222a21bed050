//! Tests that schedule CPUs of this machine, one at a time. They need root.

#[path = "../common/mod.rs"]
mod common;

mod agents;
mod balancers;
mod faults;
mod full_disk;
mod gangs;
mod history;
mod hold;
mod hold_commands;
mod kills;
mod old_kernel;
mod outside;
mod papers;
mod policies;
mod rebind;
mod service;
mod service_people;
mod soak_service;
mod terms;
mod trees;

/// Plays the process that a test holds, when it is started for that.
#[test]
fn part_victim() {
    common::live::play_victim();
}
