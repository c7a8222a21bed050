//! A stock Linux host as hardware: it turns events of the kernel into facts for the policy, and the
//! policy's orders into system calls. A fence (keeper process and journal) restores every thread in
//! the end.
//!
//! A [`session`] is the live host without a scenario. Below it, `live_host` connects policy and
//! kernel, [`watch`] reports what threads do, and `way` carries out orders in the steps of
//! [`slackline_linux::step`]. [`slackline_fence`] undoes them.

pub mod agents;
mod alarm_clock;
mod books;
pub mod dispatch_cost;
mod dispatcher;
pub mod doctor;
mod fair_server;
pub mod fed;
mod live_host;
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
