//! An unmodified Linux host as the hardware that a policy schedules. This crate reports the
//! kernel's events to the policy, and carries out the policy's orders with system calls. A fence
//! (keeper process and journal) restores every thread in the end.
//!
//! A [`session`] schedules threads live, without a scenario. Inside a session, `live_host` connects
//! policy and kernel, [`watch`] reports events of threads, and `way` carries out orders with the
//! system calls of [`slackline_linux::step`]. [`slackline_fence`] undoes the effects of the orders
//! in the end.

pub mod agents;
mod alarm_clock;
mod books;
pub mod dispatch_cost;
mod dispatcher;
pub mod doctor;
mod fair_server;
pub mod fed;
mod live_host;
pub mod mechanism;
pub mod meter;
mod pcpu;
mod punctual;
pub mod recorder;
pub mod relay;
pub mod session;
pub mod topology;
mod vcpu_threads;
pub mod vcpus;
pub mod watch;
mod way;

pub use live_host::LiveHostError;
pub use punctual::Punctual;
pub use vcpu_threads::Unreadable;
