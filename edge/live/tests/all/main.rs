//! Tests that need no CPU for themselves alone.

#[path = "../common/mod.rs"]
mod common;

mod fed;
mod kept_places;
mod late_timers;
mod recorder;

/// Runs as the keeper of a session if this process was started as one.
#[test]
fn helper_process_runs_as_keeper() {
    common::play_keeper();
}

/// Runs as a scheduled process if this process was started as one.
#[test]
fn helper_process_runs_as_target() {
    common::play_target();
}
