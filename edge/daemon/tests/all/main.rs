//! Tests of the daemon without a host.

#[path = "../common/mod.rs"]
mod common;

#[path = "../rows/mod.rs"]
mod rows;

mod find;
mod front;
mod ledger;
mod openapi;
mod ledger_bounds;
mod remote;
