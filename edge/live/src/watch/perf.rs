//! Exact scheduling events from the kernel's perf events.
//!
//! Each CPU has a ring. The kernel writes into the ring every context switch and every wake-up
//! (tracepoint `sched_wakeup`) that happens on that CPU. The events need four descriptors per CPU,
//! for any number of threads. Switches are read from side-band records of the events and not from a
//! tracepoint. On the virtual hosts described below, tracepoints do not fire when a CPU goes from
//! idle to a thread. A filter in the kernel drops wake-ups of threads whose ids are outside a few
//! ranges, which cover all watched threads. Switches of all threads are reported, and so are
//! wake-ups of other threads with ids in the ranges.
//!
//! The kernel does not notify a ring's reader about a switch, since waking the reader would cause
//! another switch. The kernel notifies the reader about a wake-up. The one exception is a woken
//! thread that Slackline has raised to a real-time priority ([`FifoPriority::CHOSEN`] and below).
//! The kernel runs a raised thread by itself, in the order of priorities. Nearly all wake-ups of
//! raised threads are caused by Slackline, which resumes threads that it stopped. Wake-ups of
//! threads with a higher priority, such as the dispatchers, are not recorded.
//!
//! Times are `CLOCK_MONOTONIC`, read by the kernel when the event happens. The events of one CPU
//! are in the order in which they happened. These are the limits of the kernel's reports:
//!
//! - A wake-up is recorded on the CPU on which it happens, often the waker's CPU, and not on the
//!   CPU of the woken thread. So a wake-up may be read before the block that it ends.
//! - A thread that is stopped, traced or frozen is reported as if it blocked: it is switched out
//!   and not runnable. When it continues, it is reported as woken. Before it stops it runs for a
//!   moment, even if it was blocked.
//! - The state of a thread before its first event is unknown.
//! - A yield is not reported as such. A thread that is alone at its real-time priority, such as the
//!   chosen thread, continues without a switch. Any other thread that yields appears as preempted.
//! - Some wake-ups on an idle CPU are not recorded if the woken thread can run immediately. On some
//!   virtual hosts the second CPU records hardly any of its wake-ups. In such a case the thread is
//!   switched in without a wake-up, and no reader is notified.
//! - CPUs that come online later are not covered.
//!
//! Some reported wake-ups do not end a block: the thread was about to block and had not blocked
//! yet.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use slackline_units::{CpuId, Time, VcpuId};

use super::{DrainReport, Event, EventSource, ThreadEventKind};
use slackline_linux::step::FifoPriority;
use slackline_linux::step::priority::Ladder;
use slackline_linux::sys::{
    Record, Ring, Tell, Tid, Tracepoint, TracepointError, get_scheduling, online_cpus, open_hits,
    open_holder, open_switches, share_ring, switch_on, tracepoint,
};
use slackline_linux::version::KernelVersion;

/// Capacity of the ring of one CPU, in bytes.
///
/// A switch takes 64 bytes and a wake-up 56. A CPU that does nothing but switch between threads
/// makes about 400,000 switches a second, so the ring holds 40 ms of such switches. The reader is
/// notified when the ring is half full.
pub const RING_BYTES: usize = 1 << 20;

/// Maximum number of ranges of thread ids in the kernel's filter. More ranges make each wake-up
/// slower, and the text of the filter is limited to a page.
const RANGES: usize = 32;

/// Number of additional thread ids that the kernel's filter covers, above the id of a tree's newest
/// thread. A larger number saves replacements of the filter, each of which takes tens of
/// milliseconds. The disadvantage is that every wake-up of an unrelated thread with such an id
/// wakes a dispatcher.
const AHEAD: i32 = 1024;

/// Reason why the events of threads cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The kernel has no perf events, or a sandbox hides them.
    #[error("this kernel has no perf events: {source}")]
    NoPerf {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel has perf events, but this process is not permitted to use them.
    #[error(
        "no permission for perf events (needs CAP_PERFMON or a lower kernel.perf_event_paranoid \
         than {}): {source}", paranoid.trim()
    )]
    NotPermitted {
        /// Value of the host's setting `kernel.perf_event_paranoid` as text. `unknown` if the
        /// setting cannot be read.
        paranoid: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel is too old: its switch records do not show whether a preempted thread is still
    /// runnable.
    #[error("perf events before Linux 4.17 do not report whether a preempted thread is runnable")]
    TooOld,
    /// The id of a tracepoint cannot be read.
    #[error(transparent)]
    NoTracepoint(#[from] TracepointError),
    /// The records of a tracepoint have a layout that this code does not know.
    #[error("the tracepoint {name} has an unknown layout")]
    UnknownLayout {
        /// Name of the tracepoint.
        name: &'static str,
    },
    /// The thread ids that the kernel reports are not valid in this process's PID namespace.
    #[error("tracepoints report thread ids of the host, but this is {namespace}")]
    Namespace {
        /// PID namespace of this process, as procfs shows it.
        namespace: String,
    },
    /// The thread has exited.
    #[error("there is no thread {tid}")]
    NoThread {
        /// Id of the thread.
        tid: Tid,
    },
    /// This process cannot open more descriptors. The events of each CPU take four descriptors.
    #[error("cannot observe {cpu}: out of file descriptors: {source}")]
    NoDescriptors {
        /// CPU without a descriptor.
        cpu: CpuId,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The list of online CPUs cannot be read.
    #[error("cannot read the list of online CPUs: {source}")]
    NoCpus {
        /// Error of the read.
        source: io::Error,
    },
    /// There is not enough memory for a ring, or the user is not permitted to lock so much memory.
    #[error("cannot observe {cpu}: no ring buffer of {bytes} bytes: {source}")]
    NoRing {
        /// CPU of the ring.
        cpu: CpuId,
        /// Size of the ring in bytes.
        bytes: usize,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel refuses an event on this CPU, for a reason that no other variant of this error
    /// names.
    #[error("cannot observe {cpu}: {source}")]
    Refused {
        /// CPU for which the event was refused.
        cpu: CpuId,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A record in a ring is malformed.
    #[error("cannot parse the kernel's records of {cpu}: {source}")]
    Garbled {
        /// CPU of the ring.
        cpu: CpuId,
        /// Error of reading from the ring.
        source: io::Error,
    },
}

/// The kernel's events and filters for the watched threads, on all CPUs.
#[derive(Debug)]
pub struct PerfWatch {
    /// Tracepoint at which the kernel records wake-ups.
    wakes: Tracepoint<2>,
    cpus: Vec<CpuEvents>,
    /// Ids of the watched threads that belong to no process tree.
    threads: BTreeSet<i32>,
    /// Ids of the threads of process trees, by vCPU. Such threads can start and end while their
    /// tree is watched.
    trees: BTreeMap<VcpuId, BTreeSet<i32>>,
    /// Ranges of thread ids whose wake-ups are recorded.
    ranges: Vec<RangeInclusive<i32>>,
}

/// Rings of all CPUs, by CPU. Additional perf events can write into these rings too.
#[derive(Debug)]
pub(crate) struct UseRings(pub(crate) BTreeMap<CpuId, Arc<OwnedFd>>);

/// Perf events that are open for one CPU.
#[derive(Debug)]
struct CpuEvents {
    cpu: CpuId,
    /// Event that owns the ring.
    holder: Arc<OwnedFd>,
    /// Event that writes context switches into the ring. Kept because closing it ends the records.
    _switches: OwnedFd,
    /// Events that write wake-ups into the ring. Kept because closing them ends the records.
    wakes: Vec<OwnedFd>,
}

impl PerfWatch {
    /// Opens a watch that watches no threads yet, and the ring of each online CPU.
    ///
    /// # Errors
    /// Any [`WatchError`] except [`WatchError::NoThread`] and [`WatchError::Garbled`].
    pub fn open() -> Result<(PerfWatch, Vec<PerfRing>), WatchError> {
        PerfWatch::with_rings_of(RING_BYTES)
    }

    /// Opens a watch as [`PerfWatch::open`] does, with rings of `bytes` bytes. The size must be a
    /// power of two and at least a page.
    ///
    /// # Errors
    /// On the same conditions as [`PerfWatch::open`].
    pub fn with_rings_of(bytes: usize) -> Result<(PerfWatch, Vec<PerfRing>), WatchError> {
        if KernelVersion::of_host().is_ok_and(|version| version < KernelVersion::TELLS_READINESS) {
            return Err(WatchError::TooOld);
        }
        let online = online_cpus().map_err(|source| WatchError::NoCpus { source })?;
        let first = online.first().ok_or_else(|| {
            let source = io::ErrorKind::InvalidData.into();
            WatchError::NoCpus { source }
        })?;
        // An event without a tracepoint is tried first, so that a refusal of perf events is not
        // mistaken for a refusal of the tracepoint.
        open_holder(first, None).map_err(|source| refused(first, source))?;
        check_namespace()?;
        let wakes = find_wakes()?;
        let (mut cpus, mut rings) = (Vec::new(), Vec::new());
        for cpu in online.iter() {
            let holder = open_holder(cpu, Some(wakes.id)).map_err(|why| refused(cpu, why))?;
            let ring = Ring::map(holder.as_fd(), bytes).map_err(|source| WatchError::NoRing {
                cpu,
                bytes,
                source,
            })?;
            let switches = open_switches(cpu).map_err(|why| refused(cpu, why))?;
            share_ring(switches.as_fd(), holder.as_fd()).map_err(|why| refused(cpu, why))?;
            rings.push(PerfRing { cpu, ring, wakes });
            let holder = Arc::new(holder);
            cpus.push(CpuEvents { cpu, holder, _switches: switches, wakes: Vec::new() });
        }
        let (threads, trees, ranges) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        Ok((PerfWatch { wakes, cpus, threads, trees, ranges }, rings))
    }

    /// Starts watching a thread on all CPUs. The first call can take tens of milliseconds, while
    /// the kernel activates its tracepoint.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses the new filter.
    pub fn add(&mut self, tid: Tid) -> Result<(), WatchError> {
        if get_scheduling(tid).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) {
            return Err(WatchError::NoThread { tid });
        }
        self.add_all(&[tid], Vec::new())
    }

    /// Starts watching existing threads, and the threads of trees. The kernel's filter is replaced
    /// only once for all of them, which takes as long as for one thread.
    ///
    /// # Errors
    /// If the kernel refuses the new filter.
    pub(crate) fn add_all(
        &mut self,
        threads: &[Tid],
        trees: Vec<(VcpuId, Vec<Tid>)>,
    ) -> Result<(), WatchError> {
        let of_trees = trees.iter().flat_map(|(_, tids)| tids);
        let is_new = |tid: &&Tid| !self.is_told(**tid);
        let newest = of_trees.filter(is_new).max().copied();
        let is_renewed = newest.is_some() || threads.iter().any(|tid| is_new(&tid));
        self.threads.extend(threads.iter().map(|tid| tid.raw()));
        for (vcpu, tids) in trees {
            self.trees.insert(vcpu, tids.iter().map(|tid| tid.raw()).collect());
        }
        if is_renewed { self.renew(newest) } else { Ok(()) }
    }

    /// Starts watching the threads that a process tree has at present, and stops watching threads
    /// that have left the tree. The filter also covers ids above the newest thread's id. The
    /// threads that the tree starts next get these ids, since the kernel assigns ids in order.
    ///
    /// # Errors
    /// If the kernel refuses the new filter.
    pub(crate) fn set_tree(&mut self, vcpu: VcpuId, tids: &[Tid]) -> Result<(), WatchError> {
        self.trees.insert(vcpu, tids.iter().map(|tid| tid.raw()).collect());
        let newest = tids.iter().filter(|tid| !self.is_told(**tid)).max();
        newest.map_or(Ok(()), |newest| self.renew(Some(*newest)))
    }

    /// Stops watching a tree. The kernel's filter still covers the tree's threads until the filter
    /// is replaced the next time.
    pub(crate) fn remove_tree(&mut self, vcpu: VcpuId) {
        self.trees.remove(&vcpu);
    }

    /// Returns true if the kernel's filter covers this thread id, so that wake-ups of the thread
    /// are recorded.
    fn is_told(&self, tid: Tid) -> bool {
        self.ranges.iter().any(|range| range.contains(&tid.raw()))
    }

    /// Replaces the kernel's filter by a filter that covers all watched threads and the ids after
    /// `newest`, the id of a tree's newest thread.
    fn renew(&mut self, newest: Option<Tid>) -> Result<(), WatchError> {
        let of_trees = self.trees.values().flatten();
        let mut ranges = ranges(&self.threads.iter().chain(of_trees).copied().collect());
        ranges.extend(newest.map(|tid| tid.raw()..=tid.raw().saturating_add(AHEAD)));
        self.note(&ranges)?;
        self.ranges = ranges;
        Ok(())
    }

    /// Stops watching a thread. The kernel's filter still covers the thread until the filter is
    /// replaced the next time.
    pub fn remove(&mut self, tid: Tid) {
        self.threads.remove(&tid.raw());
    }

    /// Returns one descriptor per CPU. The descriptors stay the same for the lifetime of this
    /// watch. A descriptor becomes readable after a wake-up on its CPU, and when the CPU's ring is
    /// half full. A poll resets the descriptor, but reading the ring does not. So the first poll
    /// after the ring was read may return although there are no new events.
    pub fn wake_fds(&self) -> impl Iterator<Item = (CpuId, BorrowedFd<'_>)> {
        self.cpus.iter().map(|opened| (opened.cpu, opened.holder.as_fd()))
    }

    /// Returns the rings of all CPUs, into which notifications of CPU time are written too.
    pub(crate) fn rings(&self) -> UseRings {
        let ring = |opened: &CpuEvents| (opened.cpu, Arc::clone(&opened.holder));
        UseRings(self.cpus.iter().map(ring).collect())
    }

    /// Makes the kernel record the wake-ups of threads with ids in these ranges.
    ///
    /// The filter of an event cannot be changed, so new events are opened before the old events are
    /// closed. In between, the old and the new event may both record the same wake-up. The second
    /// record has no effect, because the thread already counts as runnable.
    fn note(&mut self, ranges: &[RangeInclusive<i32>]) -> Result<(), WatchError> {
        // The kernel's internal priority is 99 less the FIFO priority.
        let [most, least] = [FifoPriority::CHOSEN, Ladder::LEAST].map(|it| 99 - it.number());
        let pid = within("pid", ranges);
        let wanted = [
            (format!("({pid})&&prio>{least}"), Tell::Watcher),
            (format!("({pid})&&prio>={most}&&prio<={least}"), Tell::Nobody),
        ];
        let wanted = wanted.map(|(text, tell)| (CString::new(text).unwrap_or_default(), tell));
        let mut opened = Vec::with_capacity(self.cpus.len());
        for CpuEvents { cpu, holder, .. } in &self.cpus {
            let mut events = Vec::with_capacity(wanted.len());
            for (filter, tell) in &wanted {
                let event = open_hits(self.wakes.id, *cpu, filter, *tell).and_then(|event| {
                    share_ring(event.as_fd(), holder.as_fd())?;
                    switch_on(event.as_fd())?;
                    Ok(event)
                });
                events.push(event.map_err(|source| refused(*cpu, source))?);
            }
            opened.push(events);
        }
        for (cpu, events) in self.cpus.iter_mut().zip(opened) {
            cpu.wakes = events;
        }
        Ok(())
    }
}

/// Reader of the records of one CPU, from the ring that the kernel writes.
#[derive(Debug)]
pub struct PerfRing {
    pub(super) cpu: CpuId,
    pub(super) ring: Ring,
    pub(super) wakes: Tracepoint<2>,
}

impl PerfRing {
    /// Returns the CPU to which the ring belongs.
    #[must_use]
    pub const fn cpu(&self) -> CpuId {
        self.cpu
    }
}

impl EventSource for PerfRing {
    fn drain(&mut self, each: &mut dyn FnMut(Event)) -> Result<DrainReport, WatchError> {
        let PerfRing { cpu, ring, wakes } = self;
        let cpu = *cpu;
        let (mut lost, mut result) = (0, io::Result::Ok(()));
        let used = ring.take(|record| match record.kind {
            // A notification of CPU time received. The switches show which thread received it.
            RECORD_SAMPLE if record.words[0] == 0 => {}
            RECORD_SAMPLE => match woken(&record, wakes.offsets) {
                Some(event) => each(event),
                None => result = Err(io::ErrorKind::InvalidData.into()),
            },
            RECORD_SWITCH_CPU_WIDE => {
                if let Some(event) = switched(&record, cpu) {
                    each(event);
                }
            }
            RECORD_FORK | RECORD_EXIT => {
                if let Some(event) = began_or_ends(&record, cpu) {
                    each(event);
                }
            }
            // { id, lost }
            RECORD_LOST => lost += record.words[1],
            _ => {}
        });
        let used = used.and_then(|used| result.map(|()| used));
        let used = used.map_err(|source| WatchError::Garbled { cpu, source })?;
        if lost == 0 && ring.size() - used < LARGEST {
            lost = 1;
        }
        Ok(DrainReport { lost })
    }

    fn has_unread(&self) -> bool {
        self.ring.has_unread()
    }
}

const RECORD_LOST: u32 = 2;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_SAMPLE: u32 = 9;
const RECORD_SWITCH_CPU_WIDE: u32 = 15;
const SWITCH_OUT: u16 = 1 << 13;
const SWITCH_OUT_READY: u16 = 1 << 14;

/// Size in bytes of the largest record in the ring, a wake-up, plus the size of a report of lost
/// records. If the free space in the ring is smaller than this sum, the kernel may have dropped a
/// record.
const LARGEST: usize = 64 + 40;

/// Parses a context switch. `None` if the thread is the idle task.
fn switched(record: &Record, cpu: CpuId) -> Option<Event> {
    // { other process, other thread }, { process, thread }, time
    let tid = Tid::new(i32::try_from(record.half(12)?).ok()?)?;
    let what = if record.flags & SWITCH_OUT == 0 {
        ThreadEventKind::SwitchedIn
    } else {
        ThreadEventKind::SwitchedOut { ready: record.flags & SWITCH_OUT_READY != 0 }
    };
    Some(Event { at: Time::from_ns(record.words[2]), tid, cpu, what })
}

/// Parses the start or exit of a thread. `None` if the record has an impossible thread id.
fn began_or_ends(record: &Record, cpu: CpuId) -> Option<Event> {
    // { process, its parent }, { thread, thread that started it }, time
    let tid = |at| Tid::new(i32::try_from(record.half(at)?).ok()?);
    let (thread, parent) = (tid(8)?, tid(12));
    let (tid, what) = if record.kind == RECORD_FORK {
        (parent?, ThreadEventKind::Forked { child: thread })
    } else {
        (thread, ThreadEventKind::Ending)
    };
    Some(Event { at: Time::from_ns(record.words[2]), tid, cpu, what })
}

/// Parses a wake-up: the woken thread, and the CPU on which it will run. `None` if the record is
/// not a valid wake-up.
fn woken(record: &Record, [tid, cpu]: [usize; 2]) -> Option<Event> {
    // The time (8 bytes) and the size (4 bytes) precede the fields of the tracepoint.
    let field = |offset: usize| record.half(8 + 4 + offset);
    let tid = Tid::new(i32::try_from(field(tid)?).ok()?)?;
    let cpu = CpuId::new(usize::from(u8::try_from(field(cpu)?).ok()?));
    Some(Event { at: Time::from_ns(record.words[0]), tid, cpu, what: ThreadEventKind::Woke })
}

/// Returns a condition in the kernel's filter language that is true if the value of `field` is in
/// one of these ranges.
fn within(field: &str, ranges: &[RangeInclusive<i32>]) -> String {
    let one = |range: &RangeInclusive<i32>| {
        let (first, last) = (range.start(), range.end());
        if first == last {
            format!("{field}=={first}")
        } else {
            format!("({field}>={first}&&{field}<={last})")
        }
    };
    ranges.iter().map(one).collect::<Vec<_>>().join("||")
}

/// Returns at most [`RANGES`] ranges of thread ids. They contain all ids in `threads`, and as few
/// other ids as possible. If there are many threads, the last range extends beyond the highest id,
/// so that not every new thread needs a new filter.
fn ranges(threads: &BTreeSet<i32>) -> Vec<RangeInclusive<i32>> {
    let numbers: Vec<i32> = threads.iter().copied().collect();
    let mut gaps: Vec<usize> = (1..numbers.len()).collect();
    gaps.sort_by_key(|&at| std::cmp::Reverse(numbers[at] - numbers[at - 1]));
    gaps.truncate(RANGES - 1);
    gaps.sort_unstable();
    let starts = std::iter::once(0).chain(gaps.iter().copied());
    let ends = gaps.iter().copied().chain(std::iter::once(numbers.len()));
    let stretch = i32::try_from(numbers.len() / 8).unwrap_or(i32::MAX);
    let ranges = starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| {
        let last = numbers[end - 1];
        let is_last = end == numbers.len();
        numbers[start]..=if is_last { last.saturating_add(stretch) } else { last }
    });
    ranges.collect()
}

/// Checks that this process is in the host's PID namespace. Tracepoints report thread ids of that
/// namespace.
pub(super) fn check_namespace() -> Result<(), WatchError> {
    // The initial PID namespace always has this inode number.
    const OF_THE_HOST: &str = "pid:[4026531836]";
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    if namespace.as_os_str() == OF_THE_HOST {
        return Ok(());
    }
    Err(WatchError::Namespace { namespace: namespace.display().to_string() })
}

/// Finds the tracepoint of wake-ups, and the offsets of the fields that are read.
fn find_wakes() -> Result<Tracepoint<2>, WatchError> {
    wakes_of("sched/sched_wakeup", "sched_wakeup")
}

/// Finds a tracepoint of wake-ups, by its path and its name.
pub(super) fn wakes_of(path: &str, name: &'static str) -> Result<Tracepoint<2>, WatchError> {
    let found = tracepoint(path, ["pid", "target_cpu"])?;
    if found.offsets.iter().any(|offset| 8 + 4 + offset + 8 > Record::KEPT) {
        return Err(WatchError::UnknownLayout { name });
    }
    Ok(found)
}

/// Converts an error with which the kernel has refused an event to an error that states the reason.
pub(super) fn refused(cpu: CpuId, source: io::Error) -> WatchError {
    match source.raw_os_error() {
        Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP) => WatchError::NoPerf { source },
        Some(libc::EACCES | libc::EPERM) => {
            let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
            let paranoid = paranoid.unwrap_or_else(|_| "unknown".to_owned());
            WatchError::NotPermitted { paranoid, source }
        }
        Some(libc::EMFILE | libc::ENFILE) => WatchError::NoDescriptors { cpu, source },
        _ => WatchError::Refused { cpu, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges_of(numbers: impl IntoIterator<Item = i32>) -> Vec<RangeInclusive<i32>> {
        ranges(&numbers.into_iter().collect())
    }

    #[test]
    fn perf_filter_for_a_few_threads_matches_exactly_these_threads() {
        assert_eq!(ranges_of([]), []);
        assert_eq!(ranges_of([7, 5, 900]), [5..=5, 7..=7, 900..=900]);
    }

    #[test]
    fn perf_filter_for_many_threads_merges_closest_thread_id_ranges() {
        // Two thousand ids in pairs of neighbours, and one gap that is wider than all other gaps.
        let numbers = (0..1000).flat_map(|pair| [pair * 10, pair * 10 + 1]);
        let numbers: Vec<i32> = numbers.map(|at| at + if at > 5000 { 1000 } else { 1 }).collect();
        let ranges = ranges_of(numbers.iter().copied());
        assert_eq!(ranges.len(), RANGES);
        let holds = |number| ranges.iter().any(|range| range.contains(&number));
        assert!(numbers.iter().all(|&number| holds(number)));
        assert!(!(5003..=6000).any(holds), "{ranges:?}");
        let last = numbers.last().copied().unwrap();
        assert!(holds(last + 250) && !holds(last + 251));
    }

    #[test]
    fn condition_of_a_perf_filter_fits_into_one_memory_page() {
        let most = ranges_of((0..10_000).map(|at| 4_000_000 + at * 10));
        let both = within("prev_pid", &most).len() + within("next_pid", &most).len();
        assert!(both < 4000, "{both}");
        assert_eq!(within("pid", &[5..=5, 7..=9]), "pid==5||(pid>=7&&pid<=9)");
    }
}
