//! Conversion of context switches and wake-ups, in order of time, to records of a trace.
//!
//! Some facts are not reported by the kernel. These rules supply them:
//!
//! - If the first event of a thread is that it leaves a CPU, the thread is assumed to have been on
//!   that CPU since the CPU was first observed.
//! - A blocked thread that comes to a CPU without a wake-up is assumed to have been woken then.
//!   Some virtual hosts do not report wake-ups on an idle CPU.
//! - If no other wake-up follows, a wake-up just before a block counts as the end of the block.

mod split;

use std::collections::{BTreeMap, BTreeSet};

use slackline_linux::sys::Tid;
use slackline_linux::thread::Stat;
use slackline_trace::{
    HostThread, HostThreadId, HostThreadKind, OffCpu, RanEnd, Record, Sink, VcpuName, WakeMark,
};
use slackline_units::{CpuId, Enforcement, Span, Time, VcpuId};

use super::growing::{GrowingVm, GrowingVms};
use super::identity::{Identify, Identity};
use crate::watch::{Event, ThreadEventKind};

/// Maximum time from a late wake-up to the block that follows it. A late wake-up is a wake-up of a
/// running thread that may have come too late to keep the thread on its CPU.
const WAKE_RACE: Span = Span::from_us(50);

/// Age at which a thread's identity (names, user, cgroup) is read a second time. The identity can
/// change after the thread's start. For example, a new process first has the name of its parent.
const IDENTITY_AGE: Span = Span::from_secs(1);

/// Maximum number of times that [`IDENTITY_AGE`] is doubled. Each reading doubles it once.
const IDENTITY_DOUBLINGS: u32 = 6;

/// Longest run interval that is recorded in one piece. A longer interval is split.
const PIECE: Span = Span::from_secs(1);

/// Interval at which the kernel's count of each vCPU's CPU time is recorded.
const ACCOUNTING: Span = Span::from_secs(1);

/// Interval at which the states of blocked vCPUs are read from the kernel. A signal may have
/// stopped such a vCPU.
const STATE_INTERVAL: Span = Span::from_ms(100);

/// A vCPU whose thread is recorded, and its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedVcpu {
    /// Id of the vCPU's thread.
    pub tid: Tid,
    /// Id of the vCPU in the trace.
    pub vcpu: VcpuId,
    /// Name of the vCPU.
    pub name: String,
    /// Name of the vCPU's VM.
    pub domain: String,
    /// Mechanism that enforces CPU time of the thread: `deadline` for a thread that was under
    /// `SCHED_DEADLINE` when the recording began, or else the dispatcher.
    pub by: Enforcement,
    /// True if all threads and processes that the thread starts belong to the vCPU too.
    pub is_of_tree: bool,
}

/// Converts events of threads to records of a trace.
#[derive(Debug)]
pub struct Assembler<I> {
    /// Start of the trace, on the monotonic clock.
    origin: Time,
    mark: WakeMark,
    identify: I,
    /// For each CPU of the host, its number in the trace and the thread that runs there.
    cpus: BTreeMap<CpuId, CpuRow>,
    threads: BTreeMap<i32, ThreadRow>,
    next_id: u32,
    vcpus: BTreeMap<i32, RecordedVcpu>,
    /// Threads that threads of process trees have started, each with its vCPU.
    descendants: BTreeMap<i32, RecordedVcpu>,
    growing: GrowingVms,
    next_slot: u32,
    /// True if this assembler makes the records of vCPUs. If it is false, a session makes them.
    is_alone: bool,
    next_state: Time,
    next_accounting: Time,
}

/// State of one CPU.
#[derive(Clone, Copy, Debug)]
struct CpuRow {
    /// Number of the CPU in the trace.
    index: CpuId,
    /// Thread that runs on the CPU, and the start of the part of its run interval that was not
    /// recorded yet. `None` if no thread is known to run.
    occupant: Option<(i32, Time)>,
    /// Time of the latest change of `occupant`. If there was no change, the start of the trace.
    known_from: Time,
}

/// State of one thread.
#[derive(Debug)]
struct ThreadRow {
    id: HostThreadId,
    vcpu: Option<VcpuId>,
    identity: Identity,
    /// Time at which the identity was last read, and the number of readings.
    read: (Time, u32),
    state: ThreadState,
    /// Time of a wake-up that may have come too late to keep the thread on its CPU. `None` if there
    /// was no such wake-up.
    late_wake: Option<Time>,
    /// Time when the thread left its CPU, if a signal has stopped the thread. `None` if no signal
    /// has stopped it.
    halted: Option<Time>,
    is_ending: bool,
    /// Latest values that the kernel has counted for the thread: time of the reading, CPU time, and
    /// time spent waiting on run queues. `None` before the first reading.
    counted: Option<(Time, Span, Span)>,
    last_cpu: Option<CpuId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    Unknown,
    Running,
    Ready,
    Blocked(Time),
}

impl<I: Identify> Assembler<I> {
    /// Creates an assembler whose trace starts at `origin` on the monotonic clock. `cpus` has the
    /// number in the trace for each CPU of the host.
    #[must_use]
    pub fn new(
        origin: Time,
        cpus: impl IntoIterator<Item = (CpuId, CpuId)>,
        (mark, identify): (WakeMark, I),
    ) -> Assembler<I> {
        let cpu = |(real, index)| (real, CpuRow { index, occupant: None, known_from: origin });
        Assembler {
            origin,
            mark,
            identify,
            cpus: cpus.into_iter().map(cpu).collect(),
            threads: BTreeMap::new(),
            next_id: 0,
            vcpus: BTreeMap::new(),
            descendants: BTreeMap::new(),
            growing: GrowingVms::default(),
            next_slot: 0,
            is_alone: false,
            next_state: origin,
            next_accounting: origin,
        }
    }

    /// Adds vCPUs with their threads. From now on this assembler also makes the records of the
    /// vCPUs themselves.
    pub fn begin(&mut self, vcpus: Vec<RecordedVcpu>, sink: &mut impl Sink) {
        self.is_alone = true;
        for watched in vcpus {
            self.join(watched, self.origin, sink);
        }
    }

    /// Makes new threads of a VM count as vCPUs from now on.
    pub fn grow(&mut self, vm: GrowingVm) {
        self.growing.add(vm);
    }

    /// Registers a thread of a vCPU that a session schedules. The session makes the records of that
    /// vCPU.
    pub fn know(&mut self, watched: RecordedVcpu) {
        self.threads.remove(&watched.tid.raw());
        self.descendants.remove(&watched.tid.raw());
        self.vcpus.insert(watched.tid.raw(), watched);
    }

    /// Removes a thread from a vCPU. Threads that the vCPU has started since
    /// [`know`](Assembler::know) was called are removed from it too.
    pub fn forget(&mut self, vcpu: VcpuId, tid: Tid) {
        self.threads.remove(&tid.raw());
        self.vcpus.remove(&tid.raw());
        for (tid, _) in self.descendants.extract_if(.., |_, of| of.vcpu == vcpu) {
            self.threads.remove(&tid);
        }
    }

    /// Makes the assembler read the identities of a VM's threads again, except for vCPU threads.
    pub fn forget_monitors(&mut self, vm: &str) {
        let is_monitor = |of: &Identity| of.kind == HostThreadKind::Monitor && of.vm == vm;
        self.threads.retain(|_, row| !is_monitor(&row.identity));
    }

    /// Returns the threads about which the assembler may still make records.
    #[must_use]
    pub fn live(&self) -> BTreeSet<HostThreadId> {
        self.threads.values().map(|row| row.id).collect()
    }

    /// Returns the source of the identities of threads.
    pub fn identities(&mut self) -> &mut I {
        &mut self.identify
    }

    /// Converts the events of all CPUs to records. The events must be in the order of their times.
    pub fn take(&mut self, events: &[Event], sink: &mut impl Sink) {
        for event in events {
            // A session does not see how long a thread waits or runs on another CPU, so wake-ups
            // there are left out.
            let is_wake = self.is_alone && event.what == ThreadEventKind::Woke;
            if is_wake || self.cpus.contains_key(&event.cpu) {
                self.event(event, sink);
            }
        }
    }

    /// Records that events of a CPU were lost between two times.
    pub fn lost(
        &mut self,
        cpu: CpuId,
        (from, to): (Time, Time),
        events: u64,
        sink: &mut impl Sink,
    ) {
        let Some(state) = self.cpus.get(&cpu) else { return };
        let (from, to) = (self.of_trace(from), self.of_trace(to));
        sink.record(&Record::Lost { cpu: state.index, from, to, events });
    }

    /// Makes the records that do not follow from events: parts of long run intervals, stops by
    /// signals, and the kernel's counts of CPU time. `now` is the monotonic time up to which events
    /// were converted.
    pub fn tick(&mut self, now: Time, sink: &mut impl Sink) {
        self.split(now, PIECE, sink);
        if now >= self.next_state {
            self.next_state = now + STATE_INTERVAL;
            self.find_halted();
        }
        if now >= self.next_accounting {
            self.next_accounting = now + ACCOUNTING;
            self.account(now, sink);
        }
    }

    /// Records the run intervals and states that are still open at the end.
    pub fn finish(&mut self, now: Time, sink: &mut impl Sink) {
        let reals: Vec<CpuId> = self.cpus.keys().copied().collect();
        reals.into_iter().for_each(|real| self.vacate(real, now, sink));
        self.account(now, sink);
        let to = self.of_trace(now);
        for row in self.threads.values() {
            if let Some(from) = row.halted {
                sink.record(&Record::Halted { thread: row.id, from: self.of_trace(from), to });
            }
        }
        if self.is_alone {
            sink.record(&Record::Ended { at: to });
        }
    }

    /// Returns each CPU whose running thread is known. Each item is the CPU, the thread, and the
    /// start of the part of the thread's run interval that is not recorded yet.
    pub fn occupants(&self) -> impl Iterator<Item = (CpuId, HostThreadId, Time)> {
        self.cpus.values().filter_map(|cpu| {
            let (tid, since) = cpu.occupant?;
            Some((cpu.index, self.threads.get(&tid)?.id, self.of_trace(since)))
        })
    }

    fn of_trace(&self, at: Time) -> Time {
        Time::START + at.since(self.origin)
    }

    fn join(&mut self, watched: RecordedVcpu, at: Time, sink: &mut impl Sink) {
        let (at_trace, vcpu) = (self.of_trace(at), watched.vcpu);
        let (name, domain) = (watched.name.clone(), watched.domain.clone());
        self.next_slot = self.next_slot.max(u32::try_from(vcpu.slot()).unwrap_or(u32::MAX) + 1);
        sink.named(&VcpuName { at: at_trace, vcpu, name, domain });
        sink.record(&Record::Joined { at: at_trace, vcpu });
        let (exact, phase, by) = (false, None, watched.by);
        sink.record(&Record::Promised { at: at_trace, vcpu, reservation: None, exact, phase, by });
        let tid = watched.tid;
        self.threads.remove(&tid.raw());
        self.vcpus.insert(tid.raw(), watched);
        self.row(tid, at, sink);
        let stat = self.process_of(tid).and_then(|process| self.identify.stat(process, tid));
        match stat.map(Stat::runnable) {
            Some(true) => self.woken(tid, at, None, sink),
            Some(false) => self.set_state(tid, ThreadState::Blocked(at)),
            // The state is not known. The first event of the thread shows it.
            None => {}
        }
    }

    fn event(&mut self, event: &Event, sink: &mut impl Sink) {
        let Event { at, tid, cpu, what } = *event;
        // Events from before the start of the trace count as events at its start.
        let at = at.max(self.origin);
        match what {
            ThreadEventKind::SwitchedIn => self.switched_in((cpu, tid), at, sink),
            ThreadEventKind::SwitchedOut { ready } => {
                self.switched_out((cpu, tid), at, ready, sink);
            }
            ThreadEventKind::Woke => {
                let cpu = self.cpus.get(&cpu).map(|state| state.index);
                self.row(tid, at, sink);
                self.woken(tid, at, cpu, sink);
            }
            ThreadEventKind::Forked { child } => self.forked(tid, child, (at, cpu), sink),
            ThreadEventKind::Ending => self.row(tid, at, sink).is_ending = true,
        }
    }

    fn switched_in(&mut self, (cpu, tid): (CpuId, Tid), at: Time, sink: &mut impl Sink) {
        if let Some((other, since)) = self.cpus[&cpu].occupant
            && other != tid.raw()
        {
            // The event with which the other thread left the CPU was lost.
            self.on_cpu((cpu, other), (since, at), OffCpu::Unknown, sink);
        }
        self.read_again(tid, at, sink);
        let row = self.row(tid, at, sink);
        match (row.state, row.late_wake) {
            (ThreadState::Blocked(since), Some(_)) => self.wake_at(tid, since, None, sink),
            (ThreadState::Blocked(_) | ThreadState::Unknown, _) => {
                self.wake_at(tid, at, None, sink);
            }
            _ => {}
        }
        self.set_state(tid, ThreadState::Running);
        self.set_occupant(cpu, Some((tid.raw(), at)), at);
    }

    fn switched_out(
        &mut self,
        (cpu, tid): (CpuId, Tid),
        at: Time,
        ready: bool,
        sink: &mut impl Sink,
    ) {
        let row = self.row(tid, at, sink);
        let late_wake = row.late_wake.filter(|wake| at.since(*wake) <= WAKE_RACE && !ready);
        let (is_ending, is_new) = (row.is_ending && !ready, row.state == ThreadState::Unknown);
        row.late_wake = late_wake;
        let known_from = self.cpus[&cpu].known_from;
        let since = match self.cpus[&cpu].occupant {
            Some((occupant, since)) if occupant == tid.raw() => since,
            _ => known_from,
        };
        if is_new {
            self.wake_at(tid, since, None, sink);
        }
        let end = if ready { OffCpu::Ready } else { OffCpu::Blocked };
        self.on_cpu((cpu, tid.raw()), (since, at), end, sink);
        self.set_state(tid, if ready { ThreadState::Ready } else { ThreadState::Blocked(at) });
        self.set_occupant(cpu, None, at);
        if let Some(row) = self.threads.get(&tid.raw()).filter(|_| self.is_alone && !ready)
            && let Some(vcpu) = row.vcpu
        {
            let at = self.of_trace(at);
            sink.record(&Record::Blocked { at, vcpu });
            if is_ending {
                sink.record(&Record::Left { at, vcpu });
            }
        }
        if is_ending {
            self.threads.remove(&tid.raw());
            self.vcpus.remove(&tid.raw());
            self.descendants.remove(&tid.raw());
        }
    }

    fn woken(&mut self, tid: Tid, at: Time, cpu: Option<CpuId>, sink: &mut impl Sink) {
        let Some(row) = self.threads.get_mut(&tid.raw()) else { return };
        match row.state {
            ThreadState::Running => row.late_wake = Some(at),
            ThreadState::Ready => {}
            ThreadState::Unknown | ThreadState::Blocked(_) => {
                row.late_wake = None;
                self.wake_at(tid, at, cpu, sink);
                self.set_state(tid, ThreadState::Ready);
            }
        }
    }

    fn wake_at(&mut self, tid: Tid, at: Time, cpu: Option<CpuId>, sink: &mut impl Sink) {
        let Some(row) = self.threads.get_mut(&tid.raw()) else { return };
        let (thread, vcpu, halted) = (row.id, row.vcpu, row.halted.take());
        let cpu = cpu.or(row.last_cpu).unwrap_or(CpuId::new(0));
        row.late_wake = None;
        let (to, mark) = (self.of_trace(at), self.mark);
        if let Some(from) = halted {
            sink.record(&Record::Halted { thread, from: self.of_trace(from), to });
        }
        sink.record(&Record::Awoken { at: to, thread, cpu, mark });
        if let Some(vcpu) = vcpu.filter(|_| self.is_alone) {
            sink.record(&Record::Woke { at: to, vcpu });
        }
    }

    fn forked(&mut self, parent: Tid, child: Tid, (at, cpu): (Time, CpuId), sink: &mut impl Sink) {
        self.threads.remove(&child.raw());
        self.descendants.remove(&child.raw());
        self.growing.forget(child);
        let of_tree = self.watched(parent).filter(|of| of.is_of_tree).cloned();
        if let Some(of_tree) = of_tree.filter(|_| !self.vcpus.contains_key(&child.raw())) {
            self.descendants.insert(child.raw(), RecordedVcpu { tid: child, ..of_tree });
        }
        let row = self.row(child, at, sink);
        if row.identity.process.is_none()
            && let Some(identity) = self.threads.get(&parent.raw()).map(|row| row.identity.clone())
        {
            // The child ended before its name could be read, so it gets the name of its parent.
            self.rename(child, identity, at, sink);
        }
        let (of_parent, process) = (self.process_of(parent), self.process_of(child));
        if let Some((id, domain, number)) = process.and_then(|it| self.growing.next(of_parent, it))
            && let Some(vcpu) = VcpuId::checked(self.next_slot, id, number)
        {
            let name = format!("{domain}.{number}");
            // A child of a thread under `SCHED_DEADLINE` is an ordinary thread.
            let (by, is_of_tree) = (Enforcement::Dispatcher, false);
            let watched = RecordedVcpu { tid: child, vcpu, name, domain, by, is_of_tree };
            self.join(watched, at, sink);
        }
        let cpu = self.cpus.get(&cpu).map(|state| state.index);
        if self.threads.get(&child.raw()).is_some_and(|row| row.state != ThreadState::Ready) {
            self.wake_at(child, at, cpu, sink);
            self.set_state(child, ThreadState::Ready);
        }
    }

    fn on_cpu(
        &mut self,
        (real, tid): (CpuId, i32),
        (since, to): (Time, Time),
        end: OffCpu,
        sink: &mut impl Sink,
    ) {
        let cpu = self.cpus[&real].index;
        // An event that arrives late may be older than the latest record.
        let (from, to) = (self.of_trace(since.min(to)), self.of_trace(to));
        let Some(row) = self.threads.get_mut(&tid) else { return };
        row.last_cpu = Some(cpu);
        sink.record(&Record::OnCpu { thread: row.id, cpu, from, to, end });
        if let Some(vcpu) = row.vcpu.filter(|_| self.is_alone && to > from) {
            let end = match end {
                OffCpu::Blocked => RanEnd::Blocked,
                OffCpu::Ready => RanEnd::Preempted,
                OffCpu::Unknown => RanEnd::Limit,
            };
            let (used, granted, late, due) = (to - from, None, Span::ZERO, false);
            sink.record(&Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due });
        }
    }

    /// Ends the run interval on CPU `real` at time `at`. Does nothing if no thread runs there.
    pub(super) fn vacate(&mut self, real: CpuId, at: Time, sink: &mut impl Sink) {
        if let Some((tid, since)) = self.cpus.get(&real).and_then(|cpu| cpu.occupant) {
            self.on_cpu((real, tid), (since, at), OffCpu::Unknown, sink);
            self.set_occupant(real, None, at);
        }
    }

    fn set_occupant(&mut self, cpu: CpuId, occupant: Option<(i32, Time)>, known_from: Time) {
        if let Some(cpu) = self.cpus.get_mut(&cpu) {
            (cpu.occupant, cpu.known_from) = (occupant, known_from);
        }
    }

    fn set_state(&mut self, tid: Tid, state: ThreadState) {
        if let Some(row) = self.threads.get_mut(&tid.raw()) {
            row.state = state;
        }
    }

    /// Returns the vCPU to which a thread belongs. `None` if the thread belongs to no vCPU.
    fn watched(&self, tid: Tid) -> Option<&RecordedVcpu> {
        self.vcpus.get(&tid.raw()).or_else(|| self.descendants.get(&tid.raw()))
    }

    fn process_of(&self, tid: Tid) -> Option<Tid> {
        self.threads.get(&tid.raw())?.identity.process
    }

    /// Returns the state of a thread. Records the thread's identity when it is seen for the first
    /// time.
    fn row(&mut self, tid: Tid, at: Time, sink: &mut impl Sink) -> &mut ThreadRow {
        if !self.threads.contains_key(&tid.raw()) {
            let mut identity = self.identify.identify(tid);
            let watched = self.watched(tid);
            if let Some(watched) = watched {
                (identity.kind, identity.vm) = (HostThreadKind::Vcpu, watched.domain.clone());
            }
            let vcpu = watched.map(|watched| watched.vcpu);
            let id = self.tell((tid, vcpu), &identity, at, sink);
            let row = ThreadRow {
                id,
                vcpu,
                identity,
                read: (at, 1),
                state: ThreadState::Unknown,
                late_wake: None,
                halted: None,
                is_ending: false,
                counted: None,
                last_cpu: None,
            };
            self.threads.insert(tid.raw(), row);
        }
        self.threads.get_mut(&tid.raw()).expect("the thread was inserted above")
    }

    /// Records the identity of a thread under a new id of the trace. Returns this id.
    fn tell(
        &mut self,
        (tid, vcpu): (Tid, Option<VcpuId>),
        identity: &Identity,
        at: Time,
        sink: &mut impl Sink,
    ) -> HostThreadId {
        let id = HostThreadId::new(self.next_id);
        self.next_id += 1;
        let Identity { kind, process, user, name, command, vm, group } = identity.clone();
        sink.host_thread(&HostThread {
            at: self.of_trace(at),
            id,
            kind,
            vcpu,
            tid: tid.raw().cast_unsigned(),
            process: process.map_or(0, |process| process.raw().cast_unsigned()),
            user,
            name,
            command,
            vm,
            group,
        });
        id
    }

    /// Reads the identity of a thread again if the last reading was some time ago. Threads get
    /// names after they have started, and processes execute other programs.
    fn read_again(&mut self, tid: Tid, at: Time, sink: &mut impl Sink) {
        let Some(row) = self.threads.get_mut(&tid.raw()) else { return };
        let (read, times) = row.read;
        let age = IDENTITY_AGE * (1 << (times - 1).min(IDENTITY_DOUBLINGS));
        if row.vcpu.is_some() || at.since(read) < age {
            return;
        }
        row.read = (at, times.saturating_add(1));
        let identity = self.identify.identify(tid);
        if identity.process.is_some() && self.threads[&tid.raw()].identity != identity {
            self.rename(tid, identity, at, sink);
        }
    }

    fn rename(&mut self, tid: Tid, identity: Identity, at: Time, sink: &mut impl Sink) {
        let vcpu = self.watched(tid).map(|watched| watched.vcpu);
        let id = self.tell((tid, vcpu), &identity, at, sink);
        if let Some(row) = self.threads.get_mut(&tid.raw()) {
            (row.id, row.identity) = (id, identity);
        }
    }

    /// Finds blocked vCPU threads that a signal has stopped, and marks them.
    fn find_halted(&mut self) {
        for (&tid, row) in &mut self.threads {
            let (ThreadState::Blocked(since), Some(_), None) = (row.state, row.vcpu, row.halted)
            else {
                continue;
            };
            // A tree can start many threads, so only its first threads are read.
            let first = row.identity.process.filter(|_| self.vcpus.contains_key(&tid));
            let stat = first.zip(Tid::new(tid));
            let stat = stat.and_then(|(process, tid)| self.identify.stat(process, tid));
            if stat.is_some_and(Stat::stopped) {
                row.halted = Some(since);
            }
        }
    }

    /// Records the kernel's count of each vCPU thread's CPU time since the last record.
    fn account(&mut self, now: Time, sink: &mut impl Sink) {
        let to = self.of_trace(now);
        for (&tid, row) in &mut self.threads {
            let first = row.identity.process.filter(|_| self.vcpus.contains_key(&tid));
            let known = row.vcpu.and(first.zip(Tid::new(tid)));
            let Some((process, tid)) = known else { continue };
            let Some((used, ready)) = self.identify.counted(process, tid) else { continue };
            if let Some((from, used_before, ready_before)) = row.counted {
                let (used, ready) = (used.left_after(used_before), ready.left_after(ready_before));
                sink.record(&Record::Counted { thread: row.id, from, to, used, ready });
            }
            row.counted = Some((to, used, ready));
        }
    }
}
