//! Tests of recordings of other programs.

mod common;
mod damage;
mod forms;
mod recordings;
