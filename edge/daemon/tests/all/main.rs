//! Tests of the daemon without a host.

#[path = "../common/mod.rs"]
mod common;

#[path = "../rows/mod.rs"]
mod rows;

mod accept;
mod find;
mod front;
mod ledger;
mod ledger_bounds;
mod ledger_history;
mod openapi;
mod remote;
