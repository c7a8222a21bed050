//! States and cgroups of members' threads, as procfs shows them.

use slackline_linux::cgroup::{Hierarchies, Surroundings};
use slackline_linux::sys::Tid;
use slackline_linux::thread::{Stat, starts_or_ends, threads_of};

use super::request::Row;

/// Returns true if a signal has stopped a thread.
pub(super) fn is_stopped(pid: Tid, tid: Tid) -> bool {
    Stat::of(pid, tid).is_ok_and(Stat::stopped)
}

/// Reads the cgroups of threads of a member, each as (process, thread). Threads that are new or
/// ending are left out.
pub(super) fn surroundings(
    row: &Row,
    threads: Vec<(Tid, Tid)>,
    hierarchies: &Hierarchies,
) -> Vec<(Tid, Tid, Surroundings)> {
    let mut around = Vec::new();
    for (pid, tid) in threads {
        let before = row.changes.before.iter().find(|(known, _)| *known == tid);
        if before.is_none() && starts_or_ends(pid, tid) {
            continue;
        }
        let Some(now) = hierarchies.around(pid, tid) else { continue };
        let is_same = before.is_some_and(|(_, before)| now.moved(before).is_none());
        if is_same || !starts_or_ends(pid, tid) {
            around.push((pid, tid, now));
        }
    }
    around
}

/// Returns true if a signal has stopped a process. The first thread of the process may have exited,
/// so its other threads count too.
pub(super) fn is_process_stopped(pid: Tid) -> bool {
    let threads = || threads_of(pid).unwrap_or_default();
    is_stopped(pid, pid) || threads().into_iter().any(|tid| is_stopped(pid, tid))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::Signal;
    use slackline_linux::sys::signal_process;
    use slackline_linux::thread::Stat;

    use super::*;

    /// The first thread of the process exits, and another thread sleeps.
    #[test]
    fn stopped_process_is_found_if_its_first_thread_has_exited() {
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=time.sleep, args=(1000,)).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut python = Command::new("python3");
        let mut process = python.args(["-c", script]).stderr(Stdio::null()).spawn().unwrap();
        let pid = Tid::new(i32::try_from(process.id()).unwrap()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            is_so()
        };
        let has_exited = wait_until(&|| Stat::of(pid, pid).is_ok_and(Stat::exited));
        let was_stopped = is_process_stopped(pid);
        signal_process(pid, Signal::STOP).unwrap();
        let is_stopped = wait_until(&|| is_process_stopped(pid));
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!((has_exited, was_stopped, is_stopped), (true, false, true));
    }
}
