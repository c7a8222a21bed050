//! Killing of a program: of its process and of all processes that it started.

use std::collections::BTreeMap;

use rustix::process::Signal;

use crate::cgroup::descendants;
use crate::sys::Tid;
use crate::thread::{TaskFd, threads_of};

/// Maximum number of times that the processes of a program are listed before they are killed. The
/// list is made again if processes were started since the last listing.
const ROUNDS: usize = 100;

/// Known processes of a program. A process that was started by a known process becomes known at the
/// next [`find_started`](ProgramFamily::find_started). A started process is missed only if its
/// parent has ended before that call, since the kernel then gives the process another parent.
#[derive(Debug, Default)]
pub struct ProgramFamily {
    known: BTreeMap<Tid, TaskFd>,
}

impl ProgramFamily {
    /// Adds a process, unless it has ended.
    pub fn add(&mut self, pid: Tid) {
        if !self.known.contains_key(&pid)
            && let Ok(process) = TaskFd::open(pid)
        {
            self.known.insert(pid, process);
        }
    }

    /// Removes processes that have ended, and adds those that known processes have started. Returns
    /// true if a process was added.
    pub fn find_started(&mut self) -> bool {
        self.known.retain(|&pid, process| is_running(pid, process));
        let before = self.known.len();
        let mut started = Vec::new();
        for (&pid, process) in &self.known {
            let found = descendants(pid).unwrap_or_default();
            // If the process has ended meanwhile, its id may belong to another process.
            if matches!(process.has_exited(), Ok(false)) {
                started.extend(found);
            }
        }
        started.into_iter().for_each(|pid| self.add(pid));
        self.known.len() > before
    }

    /// Returns true if all known processes have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.known.iter().any(|(&pid, process)| is_running(pid, process))
    }

    /// Sends a signal to all known processes.
    pub fn signal(&self, signal: Signal) {
        for process in self.known.values() {
            // The process may have ended by itself.
            let _ = process.signal_process(signal);
        }
    }

    /// Kills all processes of the program. The processes are stopped first, so that they start no
    /// other processes before they are killed.
    pub fn kill(&mut self) {
        for _ in 0..ROUNDS {
            self.signal(Signal::STOP);
            if !self.find_started() {
                break;
            }
        }
        self.signal(Signal::KILL);
    }
}

/// Returns true if a thread of the process still runs. The first thread of a process can exit
/// before the others, so all threads are checked.
fn is_running(pid: Tid, process: &TaskFd) -> bool {
    matches!(process.has_exited(), Ok(false)) || threads_of(pid).is_ok_and(|all| all.len() > 1)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;

    /// The program is a shell that ignores SIGTERM and starts processes until it is killed. All of
    /// these processes have the same standard output. When that is closed, all of them have ended.
    #[test]
    fn killing_a_program_also_kills_all_its_child_processes() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' TERM; while :; do sleep 1000 & echo; done"]);
        let mut shell = shell.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let mut family = ProgramFamily::default();
        family.add(Tid::new(i32::try_from(shell.id()).unwrap()).unwrap());
        assert!(lines.next().is_some());
        assert!(family.find_started());
        family.signal(Signal::TERM);
        assert!(lines.nth(5).is_some());
        assert!(!family.has_ended());
        family.kill();
        assert!(lines.all(|line| line.is_ok()));
        shell.wait().unwrap();
        // The kernel closes the output of a process shortly before the process counts as ended.
        let until = Instant::now() + Duration::from_secs(10);
        family.find_started();
        while !family.has_ended() {
            assert!(Instant::now() < until, "a killed process ends");
            sleep(Duration::from_millis(1));
            family.find_started();
        }
    }
}
