//! Tests of the import of recordings that perf and ftrace made.

mod common;
mod damage;
mod forms;
mod recordings;
