//! Tests of the daemon in which no thread of this host is scheduled.

#[path = "../common/mod.rs"]
mod common;

#[path = "../rows/mod.rs"]
mod rows;

mod accept;
mod find;
mod front;
mod ledger;
mod ledger_bounds;
mod ledger_damage;
mod ledger_history;
mod ledger_queries;
mod ledger_versions;
mod openapi;
mod page;
mod remote;
mod scrape;
