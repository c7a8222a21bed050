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
