//! Tests that need no CPU of their own.

#[path = "../common/mod.rs"]
mod common;

mod fed;
mod kept_places;
mod late_timers;

/// Plays the keeper of a session, when it is started for that.
#[test]
fn part_keeper() {
    common::play_keeper();
}

/// Plays a process that a session holds, when it is started for that.
#[test]
fn part_target() {
    common::play_target();
}
