//! Exact scheduling facts about chosen threads, from the kernel's perf events.
//!
//! Each CPU has a ring in which the kernel notes every switch of a watched thread onto that CPU or
//! off it, and every wake of one that is carried out there (the tracepoint `sched_wakeup`). Nobody
//! is notified of switches: a watcher that woke at each would cause the next. A wake does notify,
//! unless the thread is one that we stop and it is raised: nearly all such wakes are our own.
//!
//! Times are `CLOCK_MONOTONIC`, read by the kernel where it happens. Of one thread, events come in
//! the order in which they happened. What the kernel cannot tell:
//!
//! - A thread that is stopped, traced or frozen is switched out and not ready, as if it slept, and
//!   is woken when it goes on. It runs for a moment first, even if it slept, to stop itself.
//! - What a thread was doing when it was added, until its first event.
//! - The end of a thread: its last switch out is never noted.
//! - Some wakes on a CPU that idles, where the woken thread can run at once. Virtual machines have
//!   been seen whose second CPU noted hardly any of them. The thread is then switched in without
//!   having been woken, and nobody is notified; drains count how often.
//! - What threads do on CPUs that come online later.
//! - Before Linux 4.17, whether a thread that was switched out was ready. There is no watch there:
//!   who waits for a CPU would be taken to sleep.
//!
//! Of the kernel's wakes only those are passed on that end a sleep: it also reports waking a thread
//! that had not got round to sleeping yet.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use slackline_units::{CpuId, Time};

use crate::version::Version;
use crate::way::FifoPriority;
use crate::way::priority::Ladder;

use crate::sys::{
    Record, Ring, Tell, Tid, Tracepoint, TracepointError, event_id, monotonic, online_cpus,
    open_hits, open_holder, open_switches, own_tid, share_ring, switch_on, tracepoint,
};

/// Room for the records of one CPU, in bytes.
///
/// A switch takes 24 bytes and a wake 56. A CPU that does nothing but switch between watched
/// threads makes a switch out, a switch in and a wake every 4 us, so this holds 10 ms of that. A
/// ring that is half full notifies its watcher, so whoever answers within 5 ms loses nothing.
pub const RING_BYTES: usize = 1 << 18;

/// Something a watched thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, on `CLOCK_MONOTONIC`.
    pub at: Time,
    /// Which thread.
    pub tid: Tid,
    /// Where: the CPU it was switched in or out on or, having been woken, waits on.
    pub cpu: CpuId,
    /// What.
    pub what: What,
}

/// What a watched thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It began to run.
    SwitchedIn,
    /// It ceased to run.
    SwitchedOut {
        /// Whether it was made to, and still wants the CPU.
        ready: bool,
    },
    /// Its sleep ended: it wants a CPU.
    Woke,
}

/// What one drain amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// How many events were appended.
    pub events: usize,
    /// How many records the rings had no room for, at least: the kernel tells with the next record
    /// that finds room, and until then a ring found full counts as one. Unless this is zero, what
    /// any thread does is unknown until its next event.
    pub lost: u64,
    /// How many threads were switched in after a sleep whose end was not noted.
    pub unnoted: u64,
}

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
    /// The thread has ended.
    #[error("there is no thread {tid}")]
    NoThread {
        /// The thread asked for.
        tid: Tid,
    },
    /// Each thread takes as many descriptors as there are CPUs, and there are no more.
    #[error("no descriptors left to watch thread {tid} with: {source}")]
    NoDescriptors {
        /// The thread asked for.
        tid: Tid,
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
    /// The kernel refuses this thread for another reason.
    #[error("cannot watch thread {tid}: {source}")]
    Refused {
        /// The thread asked for.
        tid: Tid,
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

/// Why wakes are not known, only switches.
#[derive(Debug, thiserror::Error)]
pub enum WakesUnknown {
    /// The number of the tracepoint `sched_wakeup` cannot be had.
    #[error(transparent)]
    NoTracepoint(#[from] TracepointError),
    /// The kernel names woken threads by numbers that mean nothing in this process's pid namespace.
    #[error("the tracepoint sched_wakeup names threads of the host, not of {namespace}")]
    Namespace {
        /// The pid namespace of this process, as procfs writes it.
        namespace: String,
    },
    /// The kernel lets us watch switches, but not tracepoints.
    #[error("the tracepoint sched_wakeup is refused: {source}")]
    Refused {
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A set of watched threads.
#[derive(Debug)]
pub struct PerfWatch {
    wakes: Result<Tracepoint<2>, WakesUnknown>,
    rings: Vec<CpuRing>,
    /// In order of their tids.
    threads: Vec<Watched>,
    /// Whose events have which numbers, in order of the numbers.
    owners: Vec<(u64, Tid)>,
    /// Records taken out of the rings but not handed out yet.
    records: Vec<Noted>,
    taken: u64,
}

impl PerfWatch {
    /// A watch of no threads yet, if this host allows any. That it can tell nothing of wakes is no
    /// error: see [`PerfWatch::knows_wakes`].
    ///
    /// # Errors
    /// [`WatchError::NoPerf`], [`WatchError::TooOld`] or [`WatchError::NotPermitted`];
    /// [`WatchError::NoCpus`],
    /// [`WatchError::NoRing`], [`WatchError::NoDescriptors`].
    pub fn open() -> Result<PerfWatch, WatchError> {
        PerfWatch::with_rings_of(RING_BYTES)
    }

    /// As [`PerfWatch::open`], with room for so many bytes of records a CPU: a power of two, or a
    /// page where that is more.
    ///
    /// # Errors
    /// As for [`PerfWatch::open`].
    pub fn with_rings_of(bytes: usize) -> Result<PerfWatch, WatchError> {
        if Version::of_host().is_ok_and(|version| version < Version::TELLS_READINESS) {
            return Err(WatchError::TooOld);
        }
        let cpus = online_cpus().map_err(|source| WatchError::NoCpus { source })?;
        let first = cpus.first().ok_or_else(|| {
            let source = io::ErrorKind::InvalidData.into();
            WatchError::NoCpus { source }
        })?;
        // Asked first without the tracepoint, to know whom to blame.
        open_holder(first, None).map_err(|source| refused(own_tid(), source))?;
        let wakes = find_wakes(first);
        let ring =
            |cpu| {
                let holder = open_holder(cpu, wakes.as_ref().ok().map(|wakes| wakes.id))
                    .map_err(|source| refused(own_tid(), source))?;
                let ring = Ring::map(holder.as_fd(), bytes)
                    .map_err(|source| WatchError::NoRing { cpu, bytes, source })?;
                Ok(CpuRing { cpu, holder, ring, wakes: Vec::new() })
            };
        let rings = cpus.iter().map(ring).collect::<Result<_, WatchError>>()?;
        let (threads, owners, records) = (Vec::new(), Vec::new(), Vec::new());
        Ok(PerfWatch { wakes, rings, threads, owners, records, taken: 0 })
    }

    /// Whether there will be [`What::Woke`] events and notifications.
    #[must_use]
    pub const fn knows_wakes(&self) -> bool {
        self.wakes.is_ok()
    }

    /// Why there will be none, if so.
    #[must_use]
    pub fn why_no_wakes(&self) -> Option<&WakesUnknown> {
        self.wakes.as_ref().err()
    }

    /// Watches a thread from now on. One that is watched already stays so. The first thread may
    /// take tens of milliseconds, while the kernel puts its hooks in.
    ///
    /// # Errors
    /// When the thread has ended, or the kernel has no descriptor or permission for it.
    pub fn add(&mut self, tid: Tid) -> Result<(), WatchError> {
        self.watch(tid, false)
    }

    /// As [`PerfWatch::add`], for a thread that its watcher stops and lets go: that it wakes while
    /// it is raised is noted, but nobody is notified.
    ///
    /// # Errors
    /// As for [`PerfWatch::add`].
    pub fn add_stopped(&mut self, tid: Tid) -> Result<(), WatchError> {
        self.watch(tid, true)
    }

    fn watch(&mut self, tid: Tid, stops: bool) -> Result<(), WatchError> {
        let Err(place) = self.place(tid) else { return Ok(()) };
        let mut events = Vec::with_capacity(self.rings.len());
        let mut ids = Vec::with_capacity(self.rings.len());
        for CpuRing { cpu, holder, .. } in &self.rings {
            let event = open_switches(tid, *cpu).and_then(|event| {
                ids.push((event_id(event.as_fd())?, tid));
                share_ring(event.as_fd(), holder.as_fd())?;
                Ok(event)
            });
            events.push(event.map_err(|source| refused(tid, source))?);
        }
        self.threads.insert(place, Watched { tid, stops, state: State::Unknown, _events: events });
        if let Err(source) = self.watch_wakes() {
            self.threads.remove(place);
            return Err(refused(tid, source));
        }
        self.owners.extend(ids);
        self.owners.sort_unstable_by_key(|&(id, _)| id);
        Ok(())
    }

    /// Watches a thread no more; events not drained yet are dropped. One not watched is ignored.
    pub fn remove(&mut self, tid: Tid) {
        if let Ok(place) = self.place(tid) {
            self.threads.remove(place);
            self.owners.retain(|&(_, owner)| owner != tid);
            self.records.retain(|noted| noted.tid != tid);
            // Where this fails the old filter stays, which lets too much through but no less.
            let _ = self.watch_wakes();
        }
    }

    /// The threads watched, in order.
    pub fn threads(&self) -> impl Iterator<Item = Tid> {
        self.threads.iter().map(|thread| thread.tid)
    }

    /// A descriptor a CPU, the same ones for as long as this watch lives, that polls readable once
    /// for a wake (or several) of any watched thread carried out there, and when the ring is half
    /// full. Polling takes the news away; without a poll it stays, so that a drain in between
    /// leaves one readiness behind that means nothing.
    pub fn wake_fds(&self) -> impl Iterator<Item = (CpuId, BorrowedFd<'_>)> {
        self.rings.iter().map(|ring| (ring.cpu, ring.holder.as_fd()))
    }

    /// Appends the events since the last drain, sorted by time and tid; those of one thread that
    /// bear the same time in the order in which they happened.
    ///
    /// Events that happen during the call are left for the next one. Of different threads an event
    /// may come with the next drain that is older than the last of this one, by as long as a CPU
    /// takes to note it.
    ///
    /// # Errors
    /// [`WatchError::Garbled`]; what could be read of all CPUs is appended all the same.
    pub fn drain(&mut self, into: &mut Vec<Event>) -> Result<Drained, WatchError> {
        // A thread may sleep on a CPU whose ring was just read and be woken on one whose ring is
        // about to be. What is later than this was perhaps preceded by something not seen yet;
        // what is earlier was not, because the kernel notes a sleep before it allows the wake.
        let until = monotonic();
        let mut result = Ok(());
        let (mut lost, mut unnoted) = (0, 0);
        for index in 0..self.rings.len() {
            match self.take(index) {
                Ok(more) => lost += more,
                Err(source) => {
                    result = Err(WatchError::Garbled { cpu: self.rings[index].cpu, source });
                }
            }
        }
        if lost > 0 || result.is_err() {
            self.threads.iter_mut().for_each(|thread| thread.state = State::Unknown);
        }
        self.records.sort_unstable_by_key(|noted| (noted.at, noted.tid, noted.place));
        let before = into.len();
        let ripe = self.records.partition_point(|noted| noted.at < until);
        let PerfWatch { records, threads, .. } = self;
        for noted in records.drain(..ripe) {
            let Ok(place) = threads.binary_search_by_key(&noted.tid, |thread| thread.tid) else {
                continue;
            };
            let state = &mut threads[place].state;
            unnoted += u64::from(*state == State::Asleep && noted.what == What::SwitchedIn);
            into.extend(state.follow(noted));
        }
        result.map(|()| Drained { events: into.len() - before, lost, unnoted })
    }

    /// Takes all records out of one CPU's ring; the answer is how many were lost.
    fn take(&mut self, index: usize) -> io::Result<u64> {
        let PerfWatch { wakes, rings, owners, records, taken, .. } = self;
        let offsets = wakes.as_ref().map_or([0; 2], |wakes| wakes.offsets);
        let CpuRing { cpu, ring, .. } = &mut rings[index];
        let (mut lost, mut result) = (0, io::Result::Ok(()));
        let used = ring.take(|record| {
            *taken += 1;
            let (at, place) = (Time::from_ns(record.words[0]), *taken);
            let mut note = |tid, cpu, what| records.push(Noted { at, tid, place, cpu, what });
            match record.kind {
                RECORD_SAMPLE => match woken(&record, offsets) {
                    Some((tid, cpu)) => note(tid, cpu, What::Woke),
                    None => result = Err(io::ErrorKind::InvalidData.into()),
                },
                RECORD_SWITCH => {
                    // Threads no longer watched may have left records behind.
                    let id = record.words[1];
                    if let Ok(owner) = owners.binary_search_by_key(&id, |&(id, _)| id) {
                        note(owners[owner].1, *cpu, switch(record.flags));
                    }
                }
                // { id, lost }
                RECORD_LOST => lost += record.words[1],
                _ => {}
            }
        })?;
        result?;
        if lost == 0 && ring.size() - used < LARGEST {
            lost = 1;
        }
        Ok(lost)
    }

    /// Has the kernel note the wakes of exactly the threads there are.
    ///
    /// A filter cannot be changed, so there are new events before the old ones go. Wakes noted by
    /// both do no harm: the second one wakes nobody.
    fn watch_wakes(&mut self) -> io::Result<()> {
        let Ok(wakes) = &self.wakes else { return Ok(()) };
        let mut events: Vec<Vec<OwnedFd>> = self.rings.iter().map(|_| Vec::new()).collect();
        for (filter, tell) in filters(&self.threads) {
            for (CpuRing { cpu, holder, .. }, events) in self.rings.iter().zip(&mut events) {
                let event = open_hits(wakes.id, *cpu, &filter, tell)?;
                share_ring(event.as_fd(), holder.as_fd())?;
                switch_on(event.as_fd())?;
                events.push(event);
            }
        }
        for (ring, events) in self.rings.iter_mut().zip(events) {
            ring.wakes = events;
        }
        Ok(())
    }

    fn place(&self, tid: Tid) -> Result<usize, usize> {
        self.threads.binary_search_by_key(&tid, |thread| thread.tid)
    }
}

const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
const RECORD_SWITCH: u32 = 14;
const SWITCH_OUT: u16 = 1 << 13;
const SWITCH_OUT_READY: u16 = 1 << 14;

/// The largest record there is here, a wake, together with news of lost ones. A ring with less room
/// than that may have turned one away.
const LARGEST: usize = 56 + 40;

#[derive(Debug)]
struct CpuRing {
    cpu: CpuId,
    /// Owns the ring.
    holder: OwnedFd,
    ring: Ring,
    /// Notes wakes into the ring, while there are threads to note them of.
    wakes: Vec<OwnedFd>,
}

#[derive(Debug)]
struct Watched {
    tid: Tid,
    /// Whether whoever watches it stops it and lets it go.
    stops: bool,
    state: State,
    /// One a CPU; they note things for as long as they are open.
    _events: Vec<OwnedFd>,
}

/// What a thread was last seen doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    /// Running, or waiting for a CPU.
    Ready,
    Asleep,
}

/// A record that concerns a watched thread.
#[derive(Clone, Copy, Debug)]
struct Noted {
    at: Time,
    tid: Tid,
    /// Counts records, so that an unstable sort, which needs no memory, keeps the order of those of
    /// one ring that bear the same time.
    place: u64,
    cpu: CpuId,
    what: What,
}

impl State {
    /// What a record means for a thread in this state, which it changes.
    fn follow(&mut self, noted: Noted) -> Option<Event> {
        let before = *self;
        *self = match noted.what {
            What::SwitchedOut { ready: false } => State::Asleep,
            What::SwitchedIn | What::SwitchedOut { ready: true } | What::Woke => State::Ready,
        };
        let Noted { at, tid, cpu, what, .. } = noted;
        let awake_already = what == What::Woke && before == State::Ready;
        (!awake_already).then_some(Event { at, tid, cpu, what })
    }
}

/// The tracepoint of wakes with where it keeps the thread and its CPU, if it is of use here.
fn find_wakes(cpu: CpuId) -> Result<Tracepoint<2>, WakesUnknown> {
    // The number the kernel gives to the pid namespace it starts with.
    const OF_THE_HOST: &str = "pid:[4026531836]";
    let refused = |source| WakesUnknown::Refused { source };
    let namespace = fs::read_link("/proc/self/ns/pid").map_err(refused)?;
    if namespace.as_os_str() != OF_THE_HOST {
        return Err(WakesUnknown::Namespace { namespace: namespace.display().to_string() });
    }
    let found = tracepoint("sched/sched_wakeup", ["pid", "target_cpu"])?;
    open_hits(found.id, cpu, c"pid==0", Tell::Nobody).map_err(refused)?;
    Ok(found)
}

/// Which thread a wake is of, and on which CPU it waits.
fn woken(record: &Record, [tid, cpu]: [usize; 2]) -> Option<(Tid, CpuId)> {
    // The time and the size come before what the tracepoint records.
    let field = |offset: usize| record.half(8 + 4 + offset);
    let tid = Tid::new(i32::try_from(field(tid)?).ok()?)?;
    let cpu = usize::from(u8::try_from(field(cpu)?).ok()?);
    Some((tid, CpuId::new(cpu)))
}

fn switch(flags: u16) -> What {
    if flags & SWITCH_OUT == 0 {
        What::SwitchedIn
    } else {
        What::SwitchedOut { ready: flags & SWITCH_OUT_READY != 0 }
    }
}

/// Which wakes to note, and whom to tell of them: those of these threads.
///
/// The kernel takes a page of text. Threads that do not fit on one are described by their lowest
/// and highest number: then others are noted too, notify, and are thrown away afterwards.
fn filters(threads: &[Watched]) -> Vec<(CString, Tell)> {
    const LONGEST: usize = 4000;
    let (Some(first), Some(last)) = (threads.first(), threads.last()) else { return Vec::new() };
    let those = |stops: bool| {
        let those = threads.iter().filter(|thread| thread.stops == stops);
        those.map(|thread| format!("pid=={}", thread.tid)).collect::<Vec<_>>().join("||")
    };
    // The kernel's own number for a priority of FIFO is 99 less that.
    let [most, least] = [FifoPriority::CHOSEN, Ladder::LEAST].map(|it| 99 - it.number());
    let (raised, ordinary) =
        (format!("prio>={most}&&prio<={least}"), format!("prio<{most}||prio>{least}"));
    let texts = match (those(false), those(true)) {
        (all, stops) if all.len() + stops.len() > LONGEST => {
            vec![(format!("pid>={}&&pid<={}", first.tid, last.tid), Tell::Watcher)]
        }
        (all, stops) if stops.is_empty() => vec![(all, Tell::Watcher)],
        (all, stops) => {
            let stops_ordinary = format!("({stops})&&({ordinary})");
            let loud =
                if all.is_empty() { stops_ordinary } else { format!("{all}||({stops_ordinary})") };
            vec![(loud, Tell::Watcher), (format!("({stops})&&({raised})"), Tell::Nobody)]
        }
    };
    texts.into_iter().filter_map(|(text, tell)| Some((CString::new(text).ok()?, tell))).collect()
}

/// The kernel's refusal of an event, by what can be done about it.
fn refused(tid: Tid, source: io::Error) -> WatchError {
    match source.raw_os_error() {
        Some(libc::ESRCH) => WatchError::NoThread { tid },
        Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP) => WatchError::NoPerf { source },
        Some(libc::EACCES | libc::EPERM) => {
            let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
            let paranoid = paranoid.unwrap_or_else(|_| "unknown".to_owned());
            WatchError::NotPermitted { paranoid, source }
        }
        Some(libc::EMFILE | libc::ENFILE) => WatchError::NoDescriptors { tid, source },
        _ => WatchError::Refused { tid, source },
    }
}
