//! Contents of a recording, before it is known which threads are vCPUs.

use std::collections::BTreeMap;
use std::fmt;

use slackline_linux::sys::Tid;
use slackline_trace::WakeMark;
use slackline_units::CpuId;

use crate::Kind;
use crate::error::ImportError;

/// Longest time by which an event may be older than the one before it on its CPU. An interrupt
/// can come between the reading of the clock and the writing of the event.
const MOST_BACK: u64 = 1_000_000;

/// Longest time between two events, in seconds. An idle host has several events a second.
const MOST_GAP: u64 = 600;

/// Latest time of an event, in nanoseconds: over a century after the start of its clock.
const LATEST: u64 = 1 << 62;

/// Position in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Number of bytes before it.
    Byte(u64),
    /// Number of the line, from 1.
    Line(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Byte(byte) => write!(out, "byte {byte}"),
            Place::Line(line) => write!(out, "line {line}"),
        }
    }
}

/// Events and threads of a recording.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub(crate) kind: Kind,
    pub(crate) events: Vec<ForeignEvent>,
    pub(crate) threads: BTreeMap<i32, ForeignThread>,
    pub(crate) mark: WakeMark,
    /// Number of CPUs of the host. `None` if the recording does not tell it.
    pub(crate) cpus: Option<usize>,
    /// Kernel version. Empty if the recording does not tell it.
    pub(crate) kernel: String,
    /// Recorder and its version.
    pub(crate) recorder: String,
    /// True if processes are known, and not only threads.
    pub(crate) has_processes: bool,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForeignThread {
    /// Last name in the recording.
    pub(crate) name: String,
    /// Process id. `None` if unknown.
    pub(crate) process: Option<i32>,
    /// True if it is known to be a thread of the kernel.
    pub(crate) is_kernel: bool,
    /// Latest scheduling priority as the kernel writes it: 120 is nice 0, below 100 is real-time.
    pub(crate) priority: Option<i32>,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignEvent {
    /// Time in nanoseconds on the clock of the recording.
    pub(crate) at: u64,
    pub(crate) cpu: CpuId,
    pub(crate) place: Place,
    pub(crate) what: ForeignEventKind,
}

/// Kind of an event. Threads are ids, of which 0 is the idle task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignEventKind {
    /// Another thread gets the CPU.
    Switch { from: i32, is_ready: bool, to: i32 },
    /// A thread wakes. The CPU is the one that the event names as target.
    Woke { tid: i32, target: CpuId },
    /// A thread starts another.
    Forked { parent: i32, child: i32 },
    /// A thread ends.
    Ending { tid: i32 },
    /// This many events of the CPU were lost before this time, or an unknown number.
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

    /// Notes the name and priority of a thread.
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

    /// Sorts the events by time after their order was checked.
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

/// Returns a CPU that a recording names.
pub(crate) fn cpu(number: u64, place: Place) -> Result<CpuId, ImportError> {
    let most = CpuId::LIMIT as u64 - 1;
    match usize::try_from(number) {
        Ok(index) if index < CpuId::LIMIT => Ok(CpuId::new(index)),
        _ => Err(ImportError::BadCpu { place, cpu: number, most }),
    }
}

/// Returns a thread id that a recording names, of which 0 is the idle task.
pub(crate) fn tid(number: i64, place: Place) -> Result<i32, ImportError> {
    let most = i64::from(i32::MAX);
    let bad = ImportError::BadThread { place, tid: number, most };
    match i32::try_from(number) {
        Ok(tid) if tid == 0 || Tid::new(tid).is_some() => Ok(tid),
        _ => Err(bad),
    }
}

/// Writes a time in seconds, as recorders do.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}
