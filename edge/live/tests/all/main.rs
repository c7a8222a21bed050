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

/// Runs as the keeper process of a session, if a test has started this program as a keeper.
#[test]
fn entry_point_of_helper_keeper() {
    common::play_keeper();
}

/// Runs as a process to be scheduled, if a test has started this program as such a process.
#[test]
fn entry_point_of_helper_scheduled_thread() {
    common::play_target();
}
