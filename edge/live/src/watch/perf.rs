//! Exact scheduling facts from the kernel's perf events.
//!
//! Each CPU has a ring in which the kernel notes every switch there and every wake that is carried
//! out there (the tracepoint `sched_wakeup`): four descriptors a CPU, however many threads there
//! are. Switches are the events' own side records and no tracepoint, because on the virtual
//! machines spoken of below tracepoints are not hit either when a CPU goes from idle to a thread.
//! The kernel keeps from us the wakes that cannot concern us by a few ranges of numbers into which
//! all watched threads fall; switches, and wakes of others whose numbers fall into them, are told
//! of all.
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

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use slackline_units::{CpuId, Time, VcpuId};

use super::{Drained, Event, EventSource, What};
use slackline_linux::step::FifoPriority;
use slackline_linux::step::priority::Ladder;
use slackline_linux::sys::{
    Record, Ring, Tell, Tid, Tracepoint, TracepointError, get_scheduling, online_cpus, open_hits,
    open_holder, open_switches, share_ring, switch_on, tracepoint,
};
use slackline_linux::version::Version;

/// Room for the records of one CPU, in bytes.
///
/// A switch takes 64 bytes and a wake 56. A CPU that does nothing but switch between threads makes
/// about 400,000 switches a second, so this holds 40 ms of that. A ring that is half full notifies
/// its watcher.
pub const RING_BYTES: usize = 1 << 20;

/// How many ranges the kernel compares each number with, at most: it takes a page of text, and time
/// at every switch.
const RANGES: usize = 32;

/// How many numbers beyond the newest thread of a tree are noted as well: telling the kernel anew
/// takes it tens of milliseconds, and each of a stranger's wakes among them wakes a dispatcher.
const AHEAD: i32 = 1024;

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
    #[error("perf events before Linux 4.17 do not report whether a preempted thread is runnable")]
    TooOld,
    /// The number of a tracepoint cannot be had.
    #[error(transparent)]
    NoTracepoint(#[from] TracepointError),
    /// A tracepoint records more than is read of it.
    #[error("the tracepoint {name} has an unknown layout")]
    UnknownLayout {
        /// Its name.
        name: &'static str,
    },
    /// The kernel names threads by numbers that mean nothing in this process's pid namespace.
    #[error("tracepoints report thread ids of the host, but this is {namespace}")]
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
    #[error("cannot observe {cpu}: out of file descriptors: {source}")]
    NoDescriptors {
        /// The CPU.
        cpu: CpuId,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The host's CPUs cannot be told.
    #[error("cannot read the list of online CPUs: {source}")]
    NoCpus {
        /// What reading them said.
        source: io::Error,
    },
    /// There is no memory, or the user may not lock so much, for a ring.
    #[error("cannot observe {cpu}: no ring buffer of {bytes} bytes: {source}")]
    NoRing {
        /// The CPU it was for.
        cpu: CpuId,
        /// The size asked for.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refuses this CPU for another reason.
    #[error("cannot observe {cpu}: {source}")]
    Refused {
        /// The CPU.
        cpu: CpuId,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A ring makes no sense.
    #[error("cannot parse the kernel's records of {cpu}: {source}")]
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
    wakes: Tracepoint<2>,
    cpus: Vec<Opened>,
    /// The numbers of the watched threads.
    threads: BTreeSet<i32>,
    /// Those of process trees, whose threads come and go.
    trees: BTreeMap<VcpuId, BTreeSet<i32>>,
    /// The numbers whose wakes are noted.
    ranges: Vec<RangeInclusive<i32>>,
}

/// The rings of all CPUs, for events to share.
#[derive(Debug)]
pub(crate) struct UseRings(pub(crate) BTreeMap<CpuId, Arc<OwnedFd>>);

/// What is open for one CPU.
#[derive(Debug)]
struct Opened {
    cpu: CpuId,
    /// Owns the ring.
    holder: Arc<OwnedFd>,
    /// Writes switches into the ring while it is open.
    _switches: OwnedFd,
    /// Write wakes into the ring while they are open.
    wakes: Vec<OwnedFd>,
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
            cpus.push(Opened { cpu, holder, _switches: switches, wakes: Vec::new() });
        }
        let (threads, trees, ranges) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        Ok((PerfWatch { wakes, cpus, threads, trees, ranges }, rings))
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
        self.add_all(&[tid], Vec::new())
    }

    /// As [`PerfWatch::add`], of many that are there, and of the threads of trees: the kernel is
    /// told once, which may take it as long as for one.
    ///
    /// # Errors
    /// When the kernel has no descriptors.
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

    /// As [`PerfWatch::add`], of all threads that are in a tree now, in place of those that were in
    /// it before. Others of it that are started soon are noted as well: the kernel gives
    /// out numbers in order.
    ///
    /// # Errors
    /// When the kernel has no descriptors.
    pub(crate) fn set_tree(&mut self, vcpu: VcpuId, tids: &[Tid]) -> Result<(), WatchError> {
        self.trees.insert(vcpu, tids.iter().map(|tid| tid.raw()).collect());
        let newest = tids.iter().filter(|tid| !self.is_told(**tid)).max();
        newest.map_or(Ok(()), |newest| self.renew(Some(*newest)))
    }

    /// What a tree does is of no more interest.
    pub(crate) fn remove_tree(&mut self, vcpu: VcpuId) {
        self.trees.remove(&vcpu);
    }

    fn is_told(&self, tid: Tid) -> bool {
        self.ranges.iter().any(|range| range.contains(&tid.raw()))
    }

    /// Tells the kernel of all, and of those that come next after `newest`.
    fn renew(&mut self, newest: Option<Tid>) -> Result<(), WatchError> {
        let of_trees = self.trees.values().flatten();
        let mut ranges = ranges(&self.threads.iter().chain(of_trees).copied().collect());
        ranges.extend(newest.map(|tid| tid.raw()..=tid.raw().saturating_add(AHEAD)));
        self.note(&ranges)?;
        self.ranges = ranges;
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

    /// What notices of CPU time are written into: the rings of all CPUs.
    pub(crate) fn rings(&self) -> UseRings {
        let ring = |opened: &Opened| (opened.cpu, Arc::clone(&opened.holder));
        UseRings(self.cpus.iter().map(ring).collect())
    }

    /// Has the kernel note wakes of threads with these numbers.
    ///
    /// A filter cannot be changed, so there are new events before the old ones go. What both note
    /// does no harm: nobody is switched in twice.
    fn note(&mut self, ranges: &[RangeInclusive<i32>]) -> Result<(), WatchError> {
        // The kernel's own number for a priority of FIFO is 99 less that.
        let [most, least] = [FifoPriority::CHOSEN, Ladder::LEAST].map(|it| 99 - it.number());
        let pid = within("pid", ranges);
        let wanted = [
            (format!("({pid})&&prio>{least}"), Tell::Watcher),
            (format!("({pid})&&prio>={most}&&prio<={least}"), Tell::Nobody),
        ];
        let wanted = wanted.map(|(text, tell)| (CString::new(text).unwrap_or_default(), tell));
        let mut opened = Vec::with_capacity(self.cpus.len());
        for Opened { cpu, holder, .. } in &self.cpus {
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

/// The records of one CPU.
#[derive(Debug)]
pub struct PerfRing {
    pub(super) cpu: CpuId,
    pub(super) ring: Ring,
    pub(super) wakes: Tracepoint<2>,
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
        let PerfRing { cpu, ring, wakes } = self;
        let cpu = *cpu;
        let (mut lost, mut result) = (0, io::Result::Ok(()));
        let used = ring.take(|record| match record.kind {
            // CPU time was received: the switches say by whom.
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
        Ok(Drained { lost })
    }
}

const RECORD_LOST: u32 = 2;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_SAMPLE: u32 = 9;
const RECORD_SWITCH_CPU_WIDE: u32 = 15;
const SWITCH_OUT: u16 = 1 << 13;
const SWITCH_OUT_READY: u16 = 1 << 14;

/// The largest record there is here, a wake, together with news of lost ones. A ring with less room
/// than that may have turned one away.
const LARGEST: usize = 64 + 40;

/// One leaves the CPU or comes; none if it is the idle one.
fn switched(record: &Record, cpu: CpuId) -> Option<Event> {
    // { other process, other thread }, { process, thread }, time
    let tid = Tid::new(i32::try_from(record.half(12)?).ok()?)?;
    let what = if record.flags & SWITCH_OUT == 0 {
        What::SwitchedIn
    } else {
        What::SwitchedOut { ready: record.flags & SWITCH_OUT_READY != 0 }
    };
    Some(Event { at: Time::from_ns(record.words[2]), tid, cpu, what })
}

/// A thread starts another one, or ends; none if nobody can have its number.
fn began_or_ends(record: &Record, cpu: CpuId) -> Option<Event> {
    // { process, its parent }, { thread, who started it }, time
    let tid = |at| Tid::new(i32::try_from(record.half(at)?).ok()?);
    let (thread, parent) = (tid(8)?, tid(12));
    let (tid, what) = if record.kind == RECORD_FORK {
        (parent?, What::Forked { child: thread })
    } else {
        (thread, What::Ending)
    };
    Some(Event { at: Time::from_ns(record.words[2]), tid, cpu, what })
}

/// Which thread a wake is of, and on which CPU it waits; none if the record is no wake.
fn woken(record: &Record, [tid, cpu]: [usize; 2]) -> Option<Event> {
    // The time and the size come before what the tracepoint records.
    let field = |offset: usize| record.half(8 + 4 + offset);
    let tid = Tid::new(i32::try_from(field(tid)?).ok()?)?;
    let cpu = CpuId::new(usize::from(u8::try_from(field(cpu)?).ok()?));
    Some(Event { at: Time::from_ns(record.words[0]), tid, cpu, what: What::Woke })
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
pub(super) fn check_namespace() -> Result<(), WatchError> {
    // The number the kernel gives to the pid namespace it starts with.
    const OF_THE_HOST: &str = "pid:[4026531836]";
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    if namespace.as_os_str() == OF_THE_HOST {
        return Ok(());
    }
    Err(WatchError::Namespace { namespace: namespace.display().to_string() })
}

/// The tracepoint of wakes, with where it keeps what is read of it.
fn find_wakes() -> Result<Tracepoint<2>, WatchError> {
    wakes_of("sched/sched_wakeup", "sched_wakeup")
}

/// A tracepoint of wakes, by its path and its name.
pub(super) fn wakes_of(path: &str, name: &'static str) -> Result<Tracepoint<2>, WatchError> {
    let found = tracepoint(path, ["pid", "target_cpu"])?;
    if found.offsets.iter().any(|offset| 8 + 4 + offset + 8 > Record::KEPT) {
        return Err(WatchError::UnknownLayout { name });
    }
    Ok(found)
}

/// The kernel's refusal of an event, by what can be done about it.
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
