//! Plays scenarios on this host. [`play::run`] starts the programs of a scenario, or finds the
//! scenario's VMs if they run already. A [session](slackline_live::session) schedules their
//! threads. [`limit`] limits one process to a share of a CPU.

mod host_threads;
pub mod limit;
pub mod load_order;
mod nodes;
mod outside;
mod overdue;
pub mod play;
pub mod processes;
mod teller;
mod told;

pub use outside::LostRequests;
