//! Tests of this crate that also pass if the CPUs have other load.

#[path = "../common/mod.rs"]
mod common;

mod fed;
mod in_line;
mod kept_places;
mod late_timers;
mod recorder;
mod stopping;
mod virtual_time;
mod wakes;
mod wide_trees;

/// Entry point of the keeper process that a test starts from this program. Does nothing if the test
/// harness runs it as a test.
#[test]
fn entry_point_of_helper_keeper() {
    common::play_keeper();
}

/// Entry point of the child processes that tests start from this program and then schedule. Does
/// nothing if the test harness runs it as a test.
#[test]
fn entry_point_of_helper_scheduled_thread() {
    common::play_target();
}
