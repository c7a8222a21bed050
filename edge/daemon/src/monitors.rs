//! Record of VM monitors (such as QEMU) that do not answer. Asking such a monitor takes two
//! seconds, so it is not asked again for some time. That time grows with each failure.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackline_linux::sys::Tid;
use slackline_linux::thread::StartTime;
use slackline_live::vcpus::{FindError, QmpError, VcpuThread, find};

/// Time for which a monitor is not asked after its first failure. It doubles with each failure.
const FIRST_REST: Duration = Duration::from_secs(5);

/// Maximum time for which a monitor is not asked again.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Maximum number of silent monitors that are remembered. The monitor that may be asked again
/// soonest is forgotten first.
const MOST: usize = 1_024;

/// A process, identified by its id and start time.
type Process = (Tid, StartTime);

static SILENT: Mutex<Silent> = Mutex::new(Silent { of: BTreeMap::new() });

/// Reason why the vCPU threads of a process were not found.
#[derive(Debug)]
pub(crate) enum NotTold {
    /// The monitor did not answer when it was last asked. It may be asked again after the given
    /// time.
    Silent(Duration),
    /// The monitor was asked and failed, or the process has no monitor.
    Failed(FindError),
}

/// Finds the vCPU threads of a process. Asks its monitor if thread names do not show them.
pub(crate) fn ask(pid: Tid, started: StartTime) -> Result<Vec<VcpuThread>, NotTold> {
    let silent = || SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    let process = (pid, started);
    if let Some(left) = silent().left(process, Instant::now()) {
        return Err(NotTold::Silent(left));
    }
    let found = find(pid.raw());
    let is_silent = matches!(
        &found,
        Err(FindError::Qmp { source: QmpError::Busy | QmpError::TooLate { .. }, .. })
    );
    silent().note(process, is_silent, Instant::now());
    found.map_err(NotTold::Failed)
}

/// Monitors that did not answer when they were asked last.
#[derive(Debug)]
struct Silent {
    /// Number of failures of each monitor, and the time at which it may be asked again.
    of: BTreeMap<Process, (u32, Instant)>,
}

impl Silent {
    /// Returns the time until a monitor may be asked. `None` if it may be asked now.
    fn left(&self, process: Process, now: Instant) -> Option<Duration> {
        let (_, until) = self.of.get(&process)?;
        let left = until.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn note(&mut self, process: Process, is_silent: bool, now: Instant) {
        if !is_silent {
            self.of.remove(&process);
            return;
        }
        let times = self.of.get(&process).map_or(0, |(times, _)| *times);
        let rest = FIRST_REST.saturating_mul(1 << times.min(8)).min(LONGEST_REST);
        self.of.insert(process, (times.saturating_add(1), now + rest));
        if self.of.len() > MOST {
            let soonest = self.of.iter().min_by_key(|(process, (_, until))| (*until, **process));
            let soonest = soonest.map(|(process, _)| *process);
            soonest.map(|process| self.of.remove(&process));
        }
    }
}

#[cfg(test)]
mod tests {
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
            silent.note(process(7), true, begin);
            rests.push(silent.left(process(7), begin).unwrap().as_secs());
        }
        assert_eq!(rests, [5, 10, 20, 40, 60, 60]);
        assert_eq!(
            silent.left(process(8), begin),
            None,
            "a monitor that has not failed may be asked"
        );
        assert_eq!(silent.left(process(7), begin + LONGEST_REST), None);
        // A monitor that answers starts from the first delay again.
        silent.note(process(7), false, begin);
        silent.note(process(7), true, begin);
        assert_eq!(silent.left(process(7), begin), Some(FIRST_REST));
    }

    #[test]
    fn silent_qmp_monitors_are_remembered_only_up_to_a_limit() {
        let (mut silent, begin) = (Silent { of: BTreeMap::new() }, Instant::now());
        for pid in 1..3_000 {
            silent.note(process(pid), true, begin);
        }
        assert_eq!(silent.of.len(), MOST);
    }
}
