//! Functions that wait for other processes, and end them, on a test machine that may be busy. The
//! live tests of the crate `slackline` use this file too.

use std::thread::park_timeout;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Timeout for conditions that take milliseconds on an idle test machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn kill(pid: i32, signal: Signal) {
    // The process may have ended by itself.
    let _ = kill_process(Pid::from_raw(pid).expect("a process id"), signal);
}

/// Waits until a condition holds, and panics with the message `what` if that takes longer than
/// [`PATIENCE`]. The condition is polled at most 40 times a second, for two reasons. The test
/// machine may be busy with the awaited work, and a daemon refuses more than 50 requests a second.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {} s: {what}", PATIENCE.as_secs());
        park_timeout(Duration::from_millis(25));
    }
}

pub fn nap() {
    park_timeout(Duration::from_millis(5));
}

/// Sleeps for the given time.
pub fn let_pass(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|it| !it.is_zero()) {
        park_timeout(left);
    }
}
