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
/// so the states of its other threads count too.
pub(super) fn is_process_stopped(pid: Tid) -> bool {
    let threads = || threads_of(pid).unwrap_or_default();
    is_stopped(pid, pid) || threads().into_iter().any(|tid| is_stopped(pid, tid))
}

/// Returns a thread of a member that has not exited: the thread `member` itself, or another thread
/// of the process `member`. A process continues after its first thread has exited, and the kernel
/// then moves its other threads between cgroups. `None` if no thread of the member is left.
pub(super) fn living_thread(member: Tid) -> Option<Tid> {
    let is_alive = |tid: &Tid| Stat::of(*tid, *tid).is_ok_and(|stat| !stat.exited());
    if is_alive(&member) {
        return Some(member);
    }
    threads_of(member).ok()?.into_iter().find(is_alive)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::Signal;
    use slackline_linux::sys::signal_process;

    use super::*;

    /// Process of two threads: the first has exited, and the second sleeps. The process is killed
    /// when this value is dropped.
    struct WithoutFirstThread(Child, Tid);

    impl WithoutFirstThread {
        fn start() -> WithoutFirstThread {
            let script = "import ctypes, threading, time\n\
                          threading.Thread(target=time.sleep, args=(1000,)).start()\n\
                          ctypes.CDLL(None).pthread_exit(None)";
            let mut python = Command::new("python3");
            let child = python.args(["-c", script]).stderr(Stdio::null()).spawn().unwrap();
            let pid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
            let process = WithoutFirstThread(child, pid);
            wait_until(|| Stat::of(pid, pid).is_ok_and(Stat::exited));
            process
        }
    }

    impl Drop for WithoutFirstThread {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < deadline, "it did not happen within ten seconds");
            std::thread::yield_now();
        }
    }

    #[test]
    fn living_thread_is_found_after_first_thread_has_exited() {
        let process = WithoutFirstThread::start();
        let pid = process.1;
        let living = living_thread(pid).expect("the sleeping thread");
        assert_ne!(living, pid);
        drop(process);
        assert_eq!([living, pid].map(living_thread), [None, None]);
    }

    #[test]
    fn stopped_process_is_found_if_its_first_thread_has_exited() {
        let process = WithoutFirstThread::start();
        assert!(!is_process_stopped(process.1));
        signal_process(process.1, Signal::STOP).unwrap();
        wait_until(|| is_process_stopped(process.1));
    }
}
