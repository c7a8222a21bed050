//! Record of VM monitors (such as QEMU) that do not answer, or that answer wrongly after some time.
//! Asking such a monitor takes up to two seconds. So it is not asked again for a time that grows
//! with each failure.
//!
//! The path of a monitor's socket comes from the VM's user. The path can lead to a file system that
//! the same user serves, and there `connect` can block forever. So a separate thread asks each
//! monitor. If the thread does not end in time, it is abandoned.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use slackline_linux::sys::Tid;
use slackline_linux::thread::StartTime;
use slackline_linux::with_causes;
use slackline_live::vcpus::{FindError, VcpuThread, find_of_user};

/// Time for which a monitor is not asked after its first failure. Each further failure doubles the
/// time.
const FIRST_REST: Duration = Duration::from_secs(5);

/// Maximum time for which a monitor is not asked after a failure.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Length of time from which a failed attempt to ask a monitor counts as slow. Only slow failures
/// are recorded.
const SLOW: Duration = Duration::from_millis(200);

/// Time after which a thread that asks a monitor is abandoned. An attempt on an ordinary file
/// system takes at most two seconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(3);

/// Maximum number of abandoned threads. If there are this many, only monitors of root's VMs are
/// asked.
const MOST_ABANDONED: usize = 32;

/// Stack size in bytes of a thread that asks a monitor.
const STACK: usize = 1 << 18;

/// Maximum number of failed monitors that are remembered. If there are more, the monitor that may
/// be asked soonest is forgotten.
const MOST: usize = 1_024;

/// Maximum length of an error text, in characters. Users can choose parts of it, such as the path
/// of a socket.
const LONGEST_TEXT: usize = 512;

/// Returns the start of a text, at most [`LONGEST_TEXT`] characters.
pub(crate) fn cut(text: &str) -> String {
    let end = text.char_indices().nth(LONGEST_TEXT);
    end.map_or_else(|| text.to_owned(), |(at, _)| text[..at].to_owned() + "…")
}

/// A process, identified by its id and start time.
type Process = (Tid, StartTime);

static SILENT: Mutex<Silent> = Mutex::new(Silent { of: BTreeMap::new() });

/// Reason why the vCPU threads of a process were not found.
#[derive(Debug)]
pub(crate) enum NotTold {
    /// The monitor was not asked, because it failed when it was asked before. The fields are the
    /// error of that attempt, and the time until the monitor may be asked again.
    Silent(String, Duration),
    /// The monitor was asked now and failed, or the process has no monitor.
    Failed(FindError),
}

/// Number of abandoned threads that are still running, by the user of the VM.
static ABANDONED: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// Reason why a query to a monitor has no result.
#[derive(Debug)]
enum UnendedQueries {
    /// The query took too long, and its thread was abandoned.
    Abandoned,
    /// The query was not begun: the user has an abandoned thread, or all users together have too
    /// many.
    NotBegun,
    /// The thread could not be started.
    NoThread(io::Error),
}

/// Calls `work` on a separate thread on behalf of a user. If `work` takes longer than `patience`,
/// the thread is abandoned. A user with an abandoned thread gets no other thread until that thread
/// ends.
fn work_within<T: Send + 'static>(
    user: u32,
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, UnendedQueries> {
    let abandoned = || ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_full = {
        let all = abandoned();
        user != 0 && all.values().sum::<usize>() >= MOST_ABANDONED || all.contains_key(&user)
    };
    if is_full {
        return Err(UnendedQueries::NotBegun);
    }
    let (tell, told) = channel();
    let body = move || {
        let result = work();
        // The receiver is dropped under this lock. So if `send` fails, the thread is counted.
        let mut all = abandoned();
        if tell.send(result).is_err() {
            match all.get_mut(&user) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(all.remove(&user)),
            }
        }
    };
    let thread = Builder::new().name("slackline-monitor".into()).stack_size(STACK);
    thread.spawn(body).map_err(UnendedQueries::NoThread)?;
    if let Ok(result) = told.recv_timeout(patience) {
        return Ok(result);
    }
    let mut all = abandoned();
    match told.try_recv() {
        Ok(result) => Ok(result),
        Err(_) => {
            *all.entry(user).or_default() += 1;
            drop(told);
            Err(UnendedQueries::Abandoned)
        }
    }
}

/// Finds the vCPU threads of the process `pid` of a user. If the names of the threads do not show
/// the vCPUs, asks the monitor of the process.
pub(crate) fn ask(pid: Tid, started: StartTime, user: u32) -> Result<Vec<VcpuThread>, NotTold> {
    let silent = || SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    let process = (pid, started);
    if let Some((why, left)) = silent().left(process, Instant::now()) {
        return Err(NotTold::Silent(why.to_owned(), left));
    }
    let began = Instant::now();
    let found = work_within(user, ABANDONED_AFTER, move || find_of_user(pid.raw(), Some(user)));
    let found = match found {
        Ok(found) => found,
        Err(UnendedQueries::NoThread(source)) => {
            let path = format!("/proc/{pid}").into();
            return Err(NotTold::Failed(FindError::Unreadable { path, source }));
        }
        Err(unended) => {
            let why = match unended {
                UnendedQueries::Abandoned => "a query to its monitor did not end",
                _ => "another query to a monitor of its user did not end",
            };
            let why = format!("cannot ask process {pid} of uid {user} for its vCPUs: {why}");
            silent().note(process, Some(why.clone()), Instant::now());
            return Err(NotTold::Silent(why, FIRST_REST));
        }
    };
    // A quick failure costs little, and may end soon: a VM that starts has no socket yet.
    let failure = found.as_ref().err().filter(|_| began.elapsed() >= SLOW);
    let why = failure.map(|error| cut(&with_causes(error)));
    silent().note(process, why, Instant::now());
    found.map_err(NotTold::Failed)
}

/// Returns the error of a monitor that failed when it was last asked. `None` if no failure is
/// recorded.
pub(crate) fn last_failure(pid: Tid, started: StartTime) -> Option<String> {
    let silent = SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    silent.of.get(&(pid, started)).map(|failed| failed.why.clone())
}

/// Record of the monitors that failed when they were last asked.
#[derive(Debug)]
struct Silent {
    of: BTreeMap<Process, FailedMonitor>,
}

/// A monitor that failed when it was last asked.
#[derive(Debug)]
struct FailedMonitor {
    /// Number of failed attempts since the last successful attempt.
    times: u32,
    /// Time at which the monitor may be asked again.
    until: Instant,
    /// Error of the last attempt.
    why: String,
}

impl Silent {
    /// Returns the last error of a monitor, and the time until the monitor may be asked again.
    /// `None` if the monitor may be asked now.
    fn left(&self, process: Process, now: Instant) -> Option<(&str, Duration)> {
        let FailedMonitor { until, why, .. } = self.of.get(&process)?;
        let left = until.saturating_duration_since(now);
        (!left.is_zero()).then_some((why, left))
    }

    /// Records the result of an attempt to ask a monitor. `why` is the error of the attempt. If
    /// `why` is `None`, the attempt does not count as a failure.
    fn note(&mut self, process: Process, why: Option<String>, now: Instant) {
        let Some(why) = why else {
            self.of.remove(&process);
            return;
        };
        let times = self.of.get(&process).map_or(0, |failed| failed.times);
        let rest = FIRST_REST.saturating_mul(1 << times.min(8)).min(LONGEST_REST);
        let failed = FailedMonitor { times: times.saturating_add(1), until: now + rest, why };
        self.of.insert(process, failed);
        if self.of.len() > MOST {
            let soonest = self.of.iter().min_by_key(|(process, failed)| (failed.until, **process));
            let soonest = soonest.map(|(process, _)| *process);
            soonest.map(|process| self.of.remove(&process));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    fn process(pid: i32) -> Process {
        let own = Tid::new(i32::try_from(std::process::id()).unwrap()).unwrap();
        let started = slackline_linux::thread::Stat::of(own, own).unwrap().started();
        (Tid::new(pid).unwrap(), started)
    }

    #[test]
    fn qmp_monitor_that_never_answers_is_retried_after_growing_delays() {
        let (mut silent, begin) = (Silent { of: BTreeMap::new() }, Instant::now());
        assert_eq!(silent.left(process(7), begin), None);
        let mut rests = Vec::new();
        for _ in 0..6 {
            silent.note(process(7), Some(String::new()), begin);
            rests.push(silent.left(process(7), begin).unwrap().1.as_secs());
        }
        assert_eq!(rests, [5, 10, 20, 40, 60, 60]);
        assert_eq!(
            silent.left(process(8), begin),
            None,
            "a monitor that has not failed may be asked"
        );
        assert_eq!(silent.left(process(7), begin + LONGEST_REST), None);
        // A monitor that answers starts from the first delay again.
        silent.note(process(7), None, begin);
        silent.note(process(7), Some(String::new()), begin);
        assert_eq!(silent.left(process(7), begin), Some(("", FIRST_REST)));
    }

    #[test]
    fn silent_qmp_monitors_are_remembered_only_up_to_a_limit() {
        let (mut silent, begin) = (Silent { of: BTreeMap::new() }, Instant::now());
        for pid in 1..3_000 {
            silent.note(process(pid), Some(String::new()), begin);
        }
        assert_eq!(silent.of.len(), MOST);
    }

    /// Starts a process that looks like a QEMU whose threads have no names. Its monitor answers
    /// with `answer` after `delay`. Returns the process, and its id with its start time.
    fn qemu(answer: &'static str, delay: Duration) -> (std::process::Child, Process) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            let _folder = folder;
            for stream in listener.incoming().flatten() {
                std::thread::sleep(delay);
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        let option = format!("unix:{},server=on", socket.display());
        let mut command = Command::new("sh");
        command.arg0("qemu-system-x86_64").args(["-c", "echo @; read line", "-qmp", &option]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut up = [0; 2];
        child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
        let pid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        let started = slackline_linux::thread::Stat::of(pid, pid).unwrap().started();
        (child, (pid, started))
    }

    #[test]
    fn qmp_monitor_that_fails_slowly_is_not_retried_immediately() {
        let (slow, own) = (Duration::from_millis(300), rustix::process::getuid().as_raw());
        for (delay, is_remembered) in [(slow, true), (Duration::ZERO, false)] {
            let (mut child, (pid, started)) = qemu("x\n", delay);
            let first = ask(pid, started, own).unwrap_err();
            assert!(matches!(first, NotTold::Failed(FindError::Qmp { .. })), "{first:?}");
            let second = ask(pid, started, own).unwrap_err();
            assert_eq!(matches!(second, NotTold::Silent(..)), is_remembered, "{second:?}");
            assert_eq!(last_failure(pid, started).is_some(), is_remembered);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
    #[test]
    fn monitor_is_not_asked_if_process_runs_as_another_user() {
        let (mut child, (pid, started)) = qemu("x\n", Duration::ZERO);
        let other = rustix::process::getuid().as_raw() + 1;
        let refused = ask(pid, started, other).unwrap_err();
        assert!(matches!(refused, NotTold::Failed(FindError::Changed { .. })), "{refused:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn user_with_hanging_monitor_query_gets_no_second_query_thread() {
        let (user, other, patience) = (4_000_000, 4_000_001, Duration::from_millis(20));
        let (release, held) = channel::<()>();
        let blocked = work_within(user, patience, move || held.recv().is_ok());
        assert!(matches!(blocked, Err(UnendedQueries::Abandoned)), "{blocked:?}");
        let second = work_within(user, patience, || true);
        assert!(matches!(second, Err(UnendedQueries::NotBegun)), "{second:?}");
        let wait = Duration::from_secs(20);
        assert!(work_within(other, wait, || true).unwrap(), "other users are served");
        drop(release);
        let is_served = || work_within(user, wait, || true).is_ok();
        assert!((0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            is_served()
        }));
    }
}
