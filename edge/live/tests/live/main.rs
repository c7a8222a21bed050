//! Tests that schedule CPUs of this host. Only one test runs at a time. The tests need root.

#[path = "../common/mod.rs"]
mod common;

mod cells;
mod contested;
mod doctor;
mod escapes;
mod fence;
mod floor;
mod foreign_sockets;
mod freezer_cgroup;
mod kernel_time;
mod limit;
mod moves;
mod precedence;
mod rotation;
mod session;
mod soak;
mod vcpus;
mod version_1_moves;
mod watch;

/// Runs as the keeper process of a session, if a test has started this program as a keeper.
#[test]
fn entry_point_of_helper_keeper() {
    common::play_keeper();
}

/// Runs as a child process that tests schedule, if a test has started this program as such a
/// process. Otherwise does nothing.
#[test]
fn entry_point_of_helper_scheduled_thread() {
    common::play_target();
}
