//! The reservation daemon. It reserves CPU time for VMs of this host, and serves clients over HTTP.

pub mod core;
pub mod find;
pub mod front;
#[cfg(test)]
mod fuzz;
pub mod hook;
pub mod ledger;
mod monitors;
pub mod notices;
pub mod people;
pub mod record;
mod run_days;
pub mod worker;
