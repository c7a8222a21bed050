//! Tests that need no CPU to themselves.

#[path = "../common/mod.rs"]
mod common;

mod fed;
mod kept_places;
mod late_timers;
mod recorder;

/// Plays the keeper of a session if this process was started for that.
#[test]
fn part_keeper() {
    common::play_keeper();
}

/// Plays a held process if this process was started for that.
#[test]
fn part_target() {
    common::play_target();
}
