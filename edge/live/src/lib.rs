//! A stock Linux host as hardware: facts from the kernel, orders to the kernel, and a fence that
//! gives everything back.
//!
//! A [`session`] is the live host without a scenario; [`play::run`] plays a scenario in one, and
//! [`limit`] limits a process by one. Below it: `live_host` stands between policy and kernel,
//! [`watch`] tells what threads do, `way` makes them do it in the steps of [`step`], [`fence`]
//! undoes it. [`sys`] holds all that is unsafe.

pub mod agents;
mod alarm_clock;
mod books;
mod causes;
pub mod cgroup;
pub mod dispatch_cost;
mod dispatcher;
pub mod doctor;
mod fair_server;
pub mod fed;
pub mod fence;
pub mod limit;
mod live_host;
pub mod load_order;
mod nodes;
mod outside;
mod owned_cpus;
mod pcpu;
pub mod play;
pub mod processes;
mod punctual;
pub mod relay;
pub mod session;
pub mod step;
pub mod sys;
mod teller;
pub mod thread;
pub mod topology;
mod vcpu_threads;
pub mod vcpus;
mod version;
mod wall_clock;
pub mod watch;
mod way;

pub use causes::with_causes;
pub use live_host::LiveHostError;
pub use outside::Losses;
pub use punctual::Punctual;
pub use vcpu_threads::Unreadable;
pub use wall_clock::{ClockStep, WallClock};
