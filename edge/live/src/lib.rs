//! A stock Linux host as a machine: facts from the kernel, orders to the kernel, and a fence that
//! gives everything back.
//!
//! [`drive::run`] runs a scenario. Below it: [`cast`] starts and finds who is scheduled, `machine`
//! stands between the host and the kernel, [`watch`] tells what threads do, [`way`] makes them do
//! it, [`fence`] undoes it. [`sys`] holds all that is unsafe.

mod alarm_clock;
pub mod cast;
pub mod cgroup;
mod dispatcher;
pub mod doctor;
pub mod drive;
mod fair_server;
pub mod fence;
pub mod limit;
mod machine;
mod outside;
mod pcpu;
pub mod sys;
mod teller;
pub mod thread;
pub mod topology;
mod vcpu_threads;
pub mod vcpus;
mod version;
pub mod watch;
pub mod way;

pub use machine::MachineError;
pub use outside::Losses;
