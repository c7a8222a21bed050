//! Tests of the output in a terminal.

#[path = "../../../../pure/metrics/tests/script/mod.rs"]
mod script;

mod passes;
mod tables;
mod timeline;
mod xenmon;
