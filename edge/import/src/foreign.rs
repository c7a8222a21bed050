//! Contents of another program's recording, before vCPUs are recognised among its threads.

use std::collections::BTreeMap;

use slackline_linux::sys::Tid;
use slackline_trace::WakeMark;
use slackline_units::CpuId;

use crate::Kind;
use crate::error::ImportError;
use crate::place::Place;

/// Maximum time in nanoseconds by which an event can be older than the previous event of its CPU.
/// Such events occur because an interrupt can come between reading the clock and writing the event.
const MOST_BACK: u64 = 1_000_000;

/// Maximum time between two events, in seconds. Even an idle host has several events a second.
const MOST_GAP: u64 = 600;

/// Latest accepted time of an event, in nanoseconds. It is over a century after the start of the
/// clock.
const LATEST: u64 = 1 << 62;

/// Events and threads of a recording.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub(crate) kind: Kind,
    pub(crate) events: Vec<ForeignEvent>,
    pub(crate) threads: BTreeMap<i32, ForeignThread>,
    pub(crate) mark: WakeMark,
    /// Number of CPUs of the host. `None` if the recording does not state it.
    pub(crate) cpus: Option<usize>,
    /// Kernel version of the host. Empty if the recording does not state it.
    pub(crate) kernel: String,
    /// Name of the recorder, with its version.
    pub(crate) recorder: String,
    /// True if the recording states the process of each thread.
    pub(crate) has_processes: bool,
}

/// A thread that the recording names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForeignThread {
    /// Latest name of the thread in the recording.
    pub(crate) name: String,
    /// Process id of the thread's process. `None` if it is unknown.
    pub(crate) process: Option<i32>,
    /// True if the recording shows that the thread is a kernel thread.
    pub(crate) is_kernel: bool,
    /// Last scheduling priority of the thread in the recording, as the kernel writes it. 120 means
    /// nice 0, and numbers below 100 are real-time priorities. `None` if the recording does not
    /// state the priority.
    pub(crate) priority: Option<i32>,
}

/// An event on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignEvent {
    /// Time in nanoseconds on the clock of the recording.
    pub(crate) at: u64,
    pub(crate) cpu: CpuId,
    pub(crate) place: Place,
    pub(crate) what: ForeignEventKind,
}

/// Kind of an event. Threads are identified by thread id. Id 0 is the idle task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignEventKind {
    /// The CPU switches from one thread to another. `is_ready` is true if the first thread is still
    /// runnable.
    Switch { from: i32, is_ready: bool, to: i32 },
    /// A thread wakes. `target` is the CPU on which the thread is expected to run, according to the
    /// event.
    Woke { tid: i32, target: CpuId },
    /// A thread starts another thread.
    Forked { parent: i32, child: i32 },
    /// A thread is about to end.
    Ending { tid: i32 },
    /// At least `events` events of the CPU were lost before this time.
    Lost { events: u64 },
}

impl Foreign {
    pub(crate) fn new(kind: Kind) -> Foreign {
        Foreign {
            kind,
            events: Vec::new(),
            threads: BTreeMap::new(),
            mark: WakeMark::Wakeup,
            cpus: None,
            kernel: String::new(),
            recorder: String::new(),
            has_processes: false,
        }
    }

    /// Stores the name and priority of a thread.
    pub(crate) fn name(&mut self, tid: i32, name: &str, priority: Option<i32>) {
        if tid == 0 {
            return;
        }
        let thread = self.threads.entry(tid).or_default();
        if thread.name != name {
            thread.name = name.to_owned();
        }
        thread.priority = priority.or(thread.priority);
    }

    /// Checks the order of the events on each CPU, and then sorts all events by time.
    pub(crate) fn checked(mut self) -> Result<Foreign, ImportError> {
        let is_switch =
            |event: &ForeignEvent| matches!(event.what, ForeignEventKind::Switch { .. });
        if !self.events.iter().any(is_switch) {
            return Err(ImportError::NoSwitches { events: self.events.len() as u64 });
        }
        let mut latest: BTreeMap<CpuId, u64> = BTreeMap::new();
        for event in &self.events {
            if event.at > LATEST {
                let (place, at, most) = (event.place, seconds(event.at), seconds(LATEST));
                return Err(ImportError::BadTime { place, at, most });
            }
            let last = latest.entry(event.cpu).or_insert(event.at);
            if event.at.saturating_add(MOST_BACK) < *last {
                let (at, before) = (seconds(event.at), seconds(*last));
                let (place, cpu) = (event.place, event.cpu.index() as u64);
                return Err(ImportError::Reordered { place, cpu, at, before });
            }
            *last = (*last).max(event.at);
        }
        self.events.sort_by_key(|event| (event.at, event.place));
        let most = MOST_GAP;
        for pair in self.events.windows(2) {
            if pair[1].at - pair[0].at > most * 1_000_000_000 {
                let (at, before) = (seconds(pair[1].at), seconds(pair[0].at));
                return Err(ImportError::ClockJump { place: pair[1].place, at, before, most });
            }
        }
        Ok(self)
    }
}

/// Converts a CPU number of the recording.
pub(crate) fn cpu(number: u64, place: Place) -> Result<CpuId, ImportError> {
    let most = CpuId::LIMIT as u64 - 1;
    match usize::try_from(number) {
        Ok(index) if index < CpuId::LIMIT => Ok(CpuId::new(index)),
        _ => Err(ImportError::BadCpu { place, cpu: number, most }),
    }
}

/// Converts a thread id of the recording. Id 0 is the idle task.
pub(crate) fn tid(number: i64, place: Place) -> Result<i32, ImportError> {
    let most = i64::from(i32::MAX);
    let bad = ImportError::BadThread { place, tid: number, most };
    match i32::try_from(number) {
        Ok(tid) if tid == 0 || Tid::new(tid).is_some() => Ok(tid),
        _ => Err(bad),
    }
}

/// Formats a time in seconds, as recorders do.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}
