//! A stock Linux host as a machine: facts from the kernel, orders to the kernel, and a fence that
//! gives everything back.
//!
//! [`drive::run`] runs a scenario. Below it: [`cast`] starts and finds who is scheduled, `machine`
//! stands between the host and the kernel, [`watch`] tells what threads do, [`act`] makes them do
//! it, [`fence`] undoes it. [`sys`] holds all that is unsafe.

pub mod act;
mod alarm_clock;
pub mod cast;
pub mod cgroup;
mod dispatcher;
pub mod doctor;
pub mod drive;
pub mod fence;
mod lane;
pub mod limit;
mod machine;
mod outside;
mod subject;
pub mod sys;
mod teller;
pub mod thread;
mod toll;
pub mod vcpus;
mod version;
pub mod watch;

pub use machine::MachineError;
pub use outside::Losses;
