//! Exact scheduling facts from the kernel's perf events.
//!
//! Each CPU has a ring in which the kernel notes every switch there (the tracepoint `sched_switch`)
//! and every wake that is carried out there (`sched_wakeup`): four descriptors a CPU, however many
//! threads there are. The kernel keeps from us what cannot concern us by a few ranges of numbers
//! into which all watched threads fall; what others do whose numbers fall into them is told too.
//!
//! Nobody is notified of switches: a watcher that woke at each would cause the next. A wake does
//! notify, unless the thread is raised ([`FifoPriority::CHOSEN`] and below): then it runs by
//! itself, or right after those before it. Nearly all such wakes are our own, of threads that we
//! stopped. Wakes of what is more urgent than that, as our own dispatchers, are not noted at all.
//!
//! Times are `CLOCK_MONOTONIC`, read by the kernel where it happens. Of one CPU, events come in the
//! order in which they happened. What the kernel cannot tell:
//!
//! - A wake is noted on the CPU that carries it out, often that of the waker, not where the thread
//!   waits: of one thread, a wake may be read before the sleep that it ends.
//! - A thread that is stopped, traced or frozen is switched out and not ready, as if it slept, and
//!   is woken when it goes on. It runs for a moment first, even if it slept, to stop itself.
//! - What a thread was doing before its first event.
//! - Whether a thread yielded: one that is alone at its real-time priority, as the chosen one is,
//!   goes on and is not switched out; any other shows as if it had been made to leave its CPU.
//! - Some wakes on a CPU that idles, where the woken thread can run at once. Virtual machines have
//!   been seen whose second CPU noted hardly any of them. The thread is then switched in without
//!   having been woken, and nobody is notified.
//! - What threads do on CPUs that come online later.
//!
//! Of the kernel's wakes some end no sleep: it also reports waking a thread that had not got round
//! to sleeping yet.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use slackline_units::{CpuId, Time};

use super::{Drained, Event, EventSource, What};
use crate::step::FifoPriority;
use crate::step::priority::Ladder;
use crate::sys::{
    Record, Ring, Tell, Tid, Tracepoint, TracepointError, get_scheduling, online_cpus, open_hits,
    open_holder, share_ring, switch_on, tracepoint,
};
use crate::version::Version;

/// Room for the records of one CPU, in bytes.
///
/// A switch takes 88 bytes and a wake 56. A CPU that does nothing but switch between threads notes
/// about 400,000 records a second, so this holds 30 ms of that. A ring that is half full notifies
/// its watcher.
pub const RING_BYTES: usize = 1 << 20;

/// How many ranges the kernel compares each number with, at most: it takes a page of text, and time
/// at every switch.
const RANGES: usize = 32;

/// Why threads cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The kernel has no perf events, or a sandbox hides them.
    #[error("this kernel has no perf events: {source}")]
    NoPerf {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel has perf events for others.
    #[error(
        "no permission for perf events (needs CAP_PERFMON or a lower kernel.perf_event_paranoid \
         than {}): {source}", paranoid.trim()
    )]
    NotPermitted {
        /// What the host's `kernel.perf_event_paranoid` is, as text; `unknown` if it cannot be
        /// read.
        paranoid: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel does not say of a thread that left its CPU whether it still wants it.
    #[error("perf events say too little before Linux 4.17")]
    TooOld,
    /// The number of a tracepoint cannot be had.
    #[error(transparent)]
    NoTracepoint(#[from] TracepointError),
    /// A tracepoint records more than is read of it.
    #[error("the tracepoint {name} keeps its fields where nobody looks")]
    UnknownLayout {
        /// Its name.
        name: &'static str,
    },
    /// The kernel names threads by numbers that mean nothing in this process's pid namespace.
    #[error("tracepoints name threads of the host, not of {namespace}")]
    Namespace {
        /// The pid namespace of this process, as procfs writes it.
        namespace: String,
    },
    /// The thread has ended.
    #[error("there is no thread {tid}")]
    NoThread {
        /// The thread asked for.
        tid: Tid,
    },
    /// Each CPU takes four descriptors, and there are no more.
    #[error("no descriptors left to watch {cpu} with: {source}")]
    NoDescriptors {
        /// The CPU.
        cpu: CpuId,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The host's CPUs cannot be told.
    #[error("cannot tell which CPUs are online: {source}")]
    NoCpus {
        /// What reading them said.
        source: io::Error,
    },
    /// There is no memory, or the user may not lock so much, for a ring.
    #[error("no ring of {bytes} bytes for {cpu}: {source}")]
    NoRing {
        /// The CPU it was for.
        cpu: CpuId,
        /// The size asked for.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refuses this CPU for another reason.
    #[error("cannot watch {cpu}: {source}")]
    Refused {
        /// The CPU.
        cpu: CpuId,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A ring makes no sense.
    #[error("what the kernel says about {cpu} makes no sense: {source}")]
    Garbled {
        /// The CPU it is about.
        cpu: CpuId,
        /// What was wrong.
        source: io::Error,
    },
}

/// Which threads the kernel notes things of, on all CPUs.
#[derive(Debug)]
pub struct PerfWatch {
    switches: Tracepoint<3>,
    wakes: Tracepoint<3>,
    cpus: Vec<Opened>,
    /// The numbers of the watched threads.
    threads: BTreeSet<i32>,
    /// The numbers of which things are noted.
    ranges: Vec<RangeInclusive<i32>>,
    /// Keeps the kernel's hook into switches, as the owners of the rings keep that into wakes.
    _hook: OwnedFd,
}

/// What is open for one CPU.
#[derive(Debug)]
struct Opened {
    cpu: CpuId,
    /// Owns the ring.
    holder: OwnedFd,
    /// Write into the ring while they are open.
    events: Vec<OwnedFd>,
}

impl PerfWatch {
    /// A watch of no threads yet, and the source of each CPU that is online, if this host allows
    /// it.
    ///
    /// # Errors
    /// All but [`WatchError::NoThread`] and [`WatchError::Garbled`].
    pub fn open() -> Result<(PerfWatch, Vec<PerfRing>), WatchError> {
        PerfWatch::with_rings_of(RING_BYTES)
    }

    /// As [`PerfWatch::open`], with room for so many bytes of records a CPU: a power of two, or a
    /// page where that is more.
    ///
    /// # Errors
    /// As for [`PerfWatch::open`].
    pub fn with_rings_of(bytes: usize) -> Result<(PerfWatch, Vec<PerfRing>), WatchError> {
        if Version::of_host().is_ok_and(|version| version < Version::TELLS_READINESS) {
            return Err(WatchError::TooOld);
        }
        let online = online_cpus().map_err(|source| WatchError::NoCpus { source })?;
        let first = online.first().ok_or_else(|| {
            let source = io::ErrorKind::InvalidData.into();
            WatchError::NoCpus { source }
        })?;
        // Asked first without a tracepoint, to know whom to blame.
        open_holder(first, None).map_err(|source| refused(first, source))?;
        check_namespace()?;
        let (switches, wakes) = find_tracepoints()?;
        let hook = open_holder(first, Some(switches.id)).map_err(|why| refused(first, why))?;
        let (mut cpus, mut rings) = (Vec::new(), Vec::new());
        for cpu in online.iter() {
            let holder = open_holder(cpu, Some(wakes.id)).map_err(|why| refused(cpu, why))?;
            let ring = Ring::map(holder.as_fd(), bytes).map_err(|source| WatchError::NoRing {
                cpu,
                bytes,
                source,
            })?;
            let places = (switches, wakes);
            rings.push(PerfRing { cpu, ring, places });
            cpus.push(Opened { cpu, holder, events: Vec::new() });
        }
        let (threads, ranges) = (BTreeSet::new(), Vec::new());
        Ok((PerfWatch { switches, wakes, cpus, threads, ranges, _hook: hook }, rings))
    }

    /// What this thread does is noted from now on, on whatever CPU. The first one may take tens of
    /// milliseconds, while the kernel puts its hooks in.
    ///
    /// # Errors
    /// When the thread has ended, or the kernel has no descriptors.
    pub fn add(&mut self, tid: Tid) -> Result<(), WatchError> {
        if get_scheduling(tid).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) {
            return Err(WatchError::NoThread { tid });
        }
        self.add_all(&[tid])
    }

    /// As [`PerfWatch::add`], of many that are there: the kernel is told once, which may take it as
    /// long as for one.
    ///
    /// # Errors
    /// When the kernel has no descriptors.
    pub fn add_all(&mut self, tids: &[Tid]) -> Result<(), WatchError> {
        self.threads.extend(tids.iter().map(|tid| tid.raw()));
        let is_told = |tid: &Tid| self.ranges.iter().any(|range| range.contains(&tid.raw()));
        if !tids.iter().all(is_told) {
            let ranges = ranges(&self.threads);
            self.note(&ranges)?;
            self.ranges = ranges;
        }
        Ok(())
    }

    /// What this thread does is of no more interest: the kernel is told when it is next told of
    /// another one.
    pub fn remove(&mut self, tid: Tid) {
        self.threads.remove(&tid.raw());
    }

    /// A descriptor a CPU, the same ones for as long as this watch lives, that polls readable once
    /// for a wake (or several) carried out there, and when the ring is half full. Polling takes the
    /// news away; without a poll it stays, so that a drain in between leaves one readiness behind
    /// that means nothing.
    pub fn wake_fds(&self) -> impl Iterator<Item = (CpuId, BorrowedFd<'_>)> {
        self.cpus.iter().map(|opened| (opened.cpu, opened.holder.as_fd()))
    }

    /// Has the kernel note what threads with these numbers do.
    ///
    /// A filter cannot be changed, so there are new events before the old ones go. What both note
    /// does no harm: nobody is switched in twice.
    fn note(&mut self, ranges: &[RangeInclusive<i32>]) -> Result<(), WatchError> {
        // The kernel's own number for a priority of FIFO is 99 less that.
        let [most, least] = [FifoPriority::CHOSEN, Ladder::LEAST].map(|it| 99 - it.number());
        let [prev, next, pid] = ["prev_pid", "next_pid", "pid"].map(|name| within(name, ranges));
        let wanted = [
            (self.switches.id, format!("{prev}||{next}"), Tell::Nobody),
            (self.wakes.id, format!("({pid})&&prio>{least}"), Tell::Watcher),
            (self.wakes.id, format!("({pid})&&prio>={most}&&prio<={least}"), Tell::Nobody),
        ];
        let wanted =
            wanted.map(|(id, text, tell)| (id, CString::new(text).unwrap_or_default(), tell));
        let mut opened = Vec::with_capacity(self.cpus.len());
        for Opened { cpu, holder, .. } in &self.cpus {
            let mut events = Vec::with_capacity(wanted.len());
            for (tracepoint, filter, tell) in &wanted {
                let event = open_hits(*tracepoint, *cpu, filter, *tell).and_then(|event| {
                    share_ring(event.as_fd(), holder.as_fd())?;
                    switch_on(event.as_fd())?;
                    Ok(event)
                });
                events.push(event.map_err(|source| refused(*cpu, source))?);
            }
            opened.push(events);
        }
        for (cpu, events) in self.cpus.iter_mut().zip(opened) {
            cpu.events = events;
        }
        Ok(())
    }
}

/// The records of one CPU.
#[derive(Debug)]
pub struct PerfRing {
    cpu: CpuId,
    ring: Ring,
    /// Of switches and of wakes.
    places: (Tracepoint<3>, Tracepoint<3>),
}

impl PerfRing {
    /// Which CPU.
    #[must_use]
    pub const fn cpu(&self) -> CpuId {
        self.cpu
    }
}

impl EventSource for PerfRing {
    fn drain(&mut self, each: &mut dyn FnMut(Event)) -> Result<Drained, WatchError> {
        let PerfRing { cpu, ring, places: (switches, wakes) } = self;
        let cpu = *cpu;
        let (mut lost, mut result) = (0, io::Result::Ok(()));
        let used = ring.take(|record| match record.kind {
            RECORD_SAMPLE => {
                let at = Time::from_ns(record.words[0]);
                let told = match kind(&record) {
                    Some(kind) if kind == switches.id => {
                        switched(&record, at, cpu, switches.offsets, each)
                    }
                    Some(kind) if kind == wakes.id => {
                        woken(&record, at, wakes.offsets).map(&mut *each)
                    }
                    _ => None,
                };
                if told.is_none() {
                    result = Err(io::ErrorKind::InvalidData.into());
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
        Ok(Drained { lost })
    }
}

const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;

/// The largest record there is here, a switch, together with news of lost ones. A ring with less
/// room than that may have turned one away.
const LARGEST: usize = 88 + 40;

/// The states in which a thread that left its CPU wants none; what is above says that it was
/// preempted.
const NOT_READY: u32 = 0xff;

/// The half word at this offset in what the tracepoint records: the time and the size come before.
fn field(record: &Record, offset: usize) -> Option<u32> {
    record.half(8 + 4 + offset)
}

/// The number of the tracepoint: the first two bytes of what it records.
fn kind(record: &Record) -> Option<u64> {
    let [a, b, ..] = field(record, 0)?.to_ne_bytes();
    Some(u64::from(u16::from_ne_bytes([a, b])))
}

/// The thread with the number at this offset; none is the idle one.
fn thread(record: &Record, offset: usize) -> Option<Option<Tid>> {
    Some(i32::try_from(field(record, offset)?).ok().and_then(Tid::new))
}

/// One leaves the CPU, and another one comes; none if the record is no switch.
fn switched(
    record: &Record,
    at: Time,
    cpu: CpuId,
    [previous, state, next]: [usize; 3],
    each: &mut dyn FnMut(Event),
) -> Option<()> {
    let (previous, next) = (thread(record, previous)?, thread(record, next)?);
    // A long, of which only the low bits are in use.
    let low = if cfg!(target_endian = "little") { state } else { state + size_of::<usize>() - 4 };
    let ready = field(record, low)? & NOT_READY == 0;
    let leaves = previous.map(|tid| (tid, What::SwitchedOut { ready }));
    let comes = next.map(|tid| (tid, What::SwitchedIn));
    for (tid, what) in leaves.into_iter().chain(comes) {
        each(Event { at, tid, cpu, what });
    }
    Some(())
}

/// Which thread a wake is of, and on which CPU it waits; none if the record is no wake.
fn woken(record: &Record, at: Time, [tid, cpu, _]: [usize; 3]) -> Option<Event> {
    let tid = thread(record, tid)??;
    let cpu = usize::from(u8::try_from(field(record, cpu)?).ok()?);
    Some(Event { at, tid, cpu: CpuId::new(cpu), what: What::Woke })
}

/// The condition, in the kernel's language, that a field is in one of these ranges.
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

/// Ranges that hold all these numbers, and as few others as so few ranges can. Where there are many
/// threads the last one is stretched beyond them, so that not each that comes next needs new ones.
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

/// Tracepoints name threads by the numbers they have on the host.
fn check_namespace() -> Result<(), WatchError> {
    // The number the kernel gives to the pid namespace it starts with.
    const OF_THE_HOST: &str = "pid:[4026531836]";
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    if namespace.as_os_str() == OF_THE_HOST {
        return Ok(());
    }
    Err(WatchError::Namespace { namespace: namespace.display().to_string() })
}

/// The tracepoints of switches and wakes, with where they keep what is read of them.
fn find_tracepoints() -> Result<(Tracepoint<3>, Tracepoint<3>), WatchError> {
    let switches = tracepoint("sched/sched_switch", ["prev_pid", "prev_state", "next_pid"])?;
    let wakes = tracepoint("sched/sched_wakeup", ["pid", "target_cpu", "prio"])?;
    for (name, found) in [("sched_switch", switches), ("sched_wakeup", wakes)] {
        if found.offsets.iter().any(|offset| 8 + 4 + offset + 8 > Record::KEPT) {
            return Err(WatchError::UnknownLayout { name });
        }
    }
    Ok((switches, wakes))
}

/// The kernel's refusal of an event, by what can be done about it.
fn refused(cpu: CpuId, source: io::Error) -> WatchError {
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
    fn few_threads_are_told_apart_from_all_others() {
        assert_eq!(ranges_of([]), []);
        assert_eq!(ranges_of([7, 5, 900]), [5..=5, 7..=7, 900..=900]);
    }

    #[test]
    fn many_threads_take_no_more_ranges_and_the_widest_gaps_are_left_out() {
        // Two thousand in pairs, with one gap among them that is wider than all others.
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
    fn the_condition_fits_on_the_page_that_the_kernel_takes() {
        let most = ranges_of((0..10_000).map(|at| 4_000_000 + at * 10));
        let both = within("prev_pid", &most).len() + within("next_pid", &most).len();
        assert!(both < 4000, "{both}");
        assert_eq!(within("pid", &[5..=5, 7..=9]), "pid==5||(pid>=7&&pid<=9)");
    }
}
