//! Tests of the program that need no CPU of their own.

#[path = "../common/mod.rs"]
mod common;

mod alert;
mod bad_input;
mod commands;
mod compares;
mod formats;
mod full_disk;
mod help;
mod interrupted;
mod loads;
mod manual;
mod papers;
mod places;
mod points;
mod service;
mod smaller;
mod sweep;

/// Plays the process that a test holds, when it is started for that.
#[test]
fn part_victim() {
    common::live::play_victim();
}
