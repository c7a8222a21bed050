//! Tests of clients that connect in a loop. They must not block other clients.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::common::{Front, OPERATORS, fine};

/// Gives the calling thread another user and group. Returns false if the test lacks the right to do
/// so.
fn become_user(uid: u32, gid: u32) -> bool {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[]).is_ok()
        && set_thread_res_gid(gid, gid, gid).is_ok()
        && set_thread_res_uid(uid, uid, uid).is_ok()
}

/// Connects and disconnects as the user `uid` until `end` is set. Returns the number of
/// connections.
fn connect_in_a_loop(socket: &Path, uid: u32, gid: u32, end: &AtomicBool) -> u64 {
    assert!(become_user(uid, gid));
    let mut times = 0;
    while !end.load(Ordering::Relaxed) {
        times += u64::from(UnixStream::connect(socket).is_ok());
    }
    times
}

/// Asserts that administrators get answers while users in the group `gid` connect in a loop.
fn administrators_are_answered_beside(gid: u32) {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let front = Front::new(fine);
    let folder = front.socket.parent().unwrap();
    set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    set_permissions(&front.socket, Permissions::from_mode(0o666)).unwrap();
    let (end, times) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for uid in 5_001..5_003 {
            let (front, end, times) = (&front, &end, &times);
            scope.spawn(move || {
                let own = connect_in_a_loop(&front.socket, uid, gid, end);
                times.fetch_add(own, Ordering::Relaxed);
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        let mut slow = 0;
        for _ in 0..40 {
            let begun = Instant::now();
            assert_eq!(front.ask("GET", "/v1/host", "", "").0, 200);
            slow += u32::from(begun.elapsed() > Duration::from_secs(1));
        }
        end.store(true, Ordering::Relaxed);
        // On a busy host some requests are slow. If administrators had to queue behind these users,
        // most requests would be slow.
        assert!(slow <= 20, "{slow} of 40 requests took more than a second");
    });
    assert!(times.into_inner() > 1_000);
    // No connection of these users is left in the queue.
    let begun = Instant::now();
    assert_eq!(front.ask("GET", "/v1/host", "", "").0, 200);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn administrators_are_served_while_operators_connect_in_a_loop() {
    administrators_are_answered_beside(OPERATORS);
}

#[test]
fn administrators_are_served_while_unauthorized_users_keep_connecting() {
    administrators_are_answered_beside(OPERATORS - 1);
}
