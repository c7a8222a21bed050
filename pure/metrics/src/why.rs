//! Causes of waiting: each nanosecond of waiting is attributed to one cause, its culprit.
//!
//! A vCPU waits from the time it becomes runnable until its thread has a CPU. It also waits from
//! the time it loses the CPU while it is still runnable. Time in which a hard limit or a person
//! keeps the vCPU from running counts as waiting. So does time in which a hypervisor below this
//! host has the CPU. The culprit is the thread that occupies the CPU on which the vCPU runs next.
//! The times of the culprits of a vCPU add up to its waiting time exactly. Waits before the vCPU
//! joined or after it left are not counted.
//!
//! The first rule that applies gives the cause:
//!
//! 1. Events of the CPU were lost: unexplained.
//! 2. A person paused the VM: paused.
//! 3. The dispatcher stopped the vCPU at its hard limit: exhausted, until the time at which the
//!    dispatcher should have resumed the vCPU. Throttling by `SCHED_DEADLINE` is exhausted too.
//! 4. Another signal stopped the thread: paused.
//! 5. A timer was late, and the CPU was idle or ran a vCPU: late timer.
//! 6. A thread was on the CPU, or the kernel was switching to it: its VM, process or kernel thread,
//!    or the dispatcher.
//! 7. No thread was on the CPU: the switch to the waiting thread or the CPU leaving idle if the
//!    time was short, otherwise unexplained.
//!
//! A context switch belongs to the thread to which the kernel switches, because the kernel counts
//! it as CPU time of that thread. A thread that runs often and briefly takes much of its CPU time
//! for switches.
//!
//! Stolen time is known as a sum per CPU and second. It is divided among the threads in proportion
//! to the time that each of them had the CPU.

mod answer;
mod culprit;
mod holder;
mod intervals;
mod target;
mod windows;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackline_trace::{
    HostThread, HostThreadId, HostThreadKind, Note, OffCpu, Record, Sink, VcpuName,
};
use slackline_units::{CpuId, Enforcement, Span, Time, VcpuId};

pub use answer::{Answer, Blame, Check, Gap};
pub use culprit::Culprit;
use intervals::Intervals;
use target::{KernelAccount, Target, Wait, WaitState};
use windows::Windows;

/// Maximum length of a gap between two threads on a CPU that counts as a context switch.
const SWITCH: Span = Span::from_us(20);

/// Longest time that an idle CPU may take from a wake to the first instruction of the woken thread.
/// A longer wait is unexplained.
const LEAVING_IDLE: Span = Span::from_ms(1);

/// Time for which the threads that ran on a CPU are remembered. A stop of a vCPU is recorded only
/// when it ends, and the finder must then know which threads ran during the stop.
const MEMORY: Span = Span::from_ms(500);

/// Sink that finds the causes of waiting of one VM, of one vCPU, or of all VMs.
#[derive(Debug)]
pub struct CulpritFinder {
    /// Name of the VM or vCPU whose waits are explained. `None` if the waits of all VMs are
    /// explained.
    name: Option<String>,
    names: BTreeMap<VcpuId, (String, String)>,
    threads: BTreeMap<HostThreadId, HostThread>,
    targets: BTreeMap<HostThreadId, Target>,
    /// Latest thread of each vCPU whose waits are explained.
    latest_of: BTreeMap<VcpuId, HostThreadId>,
    /// Threads of explained vCPUs that wait for a CPU, each with the start of its wait.
    ready: BTreeSet<(Time, HostThreadId)>,
    cpus: BTreeMap<CpuId, Cpu>,
    /// Intervals in which each vCPU ran within its reservation, without overrun.
    reserved: BTreeMap<VcpuId, Intervals>,
    /// vCPUs whose CPU time `SCHED_DEADLINE` enforces. Their threads run before all threads of
    /// other scheduling classes until their budget is exhausted.
    of_deadline: BTreeSet<VcpuId>,
    /// vCPUs in `of_deadline` whose CPU time the recording has from the kernel. They can run on
    /// CPUs that are not recorded, so their waits are unknown.
    unseen: BTreeSet<VcpuId>,
    paused_since: BTreeMap<VcpuId, Time>,
    /// Stops of vCPUs of which no thread was known at the time of the record. A session records a
    /// stop before the run intervals of the same time.
    early_stops: Vec<(VcpuId, Time, Time)>,
    windows: Windows,
    gaps: Vec<Gap>,
    notes: Vec<Note>,
    first: Option<Time>,
    now: Time,
}

/// Recent events of a CPU.
#[derive(Debug, Default)]
struct Cpu {
    /// Recent intervals in which threads had the CPU, in order of time.
    latest: VecDeque<(Time, Time, HostThreadId)>,
    busy: Span,
    /// Time for which each thread of an explained vCPU ran since the last accounting of the CPU.
    ran: BTreeMap<HostThreadId, Span>,
    late: Intervals,
    lost: Intervals,
}

impl CulpritFinder {
    /// Creates a sink that explains the waits of the VM or vCPU with this name.
    #[must_use]
    pub fn new(name: &str) -> CulpritFinder {
        CulpritFinder { name: Some(name.into()), ..CulpritFinder::of_all() }
    }

    /// Creates a sink that explains the waits of all VMs, and keeps every part of each wait.
    #[must_use]
    pub fn of_all() -> CulpritFinder {
        CulpritFinder {
            name: None,
            names: BTreeMap::new(),
            threads: BTreeMap::new(),
            targets: BTreeMap::new(),
            latest_of: BTreeMap::new(),
            ready: BTreeSet::new(),
            cpus: BTreeMap::new(),
            reserved: BTreeMap::new(),
            of_deadline: BTreeSet::new(),
            unseen: BTreeSet::new(),
            paused_since: BTreeMap::new(),
            early_stops: Vec::new(),
            windows: Windows::default(),
            gaps: Vec::new(),
            notes: Vec::new(),
            first: None,
            now: Time::START,
        }
    }

    /// Returns the causes of waiting in the records so far. The list of vCPUs is empty if no VM and
    /// no vCPU has the requested name.
    #[must_use]
    pub fn answer(mut self) -> Answer {
        let now = self.windows.end_or(self.now);
        for (vcpu, from, to) in std::mem::take(&mut self.early_stops) {
            self.stopped(vcpu, (from, to));
        }
        for (vcpu, since) in std::mem::take(&mut self.paused_since) {
            self.of_vcpu(vcpu, |target| target.paused.add(since, now));
        }
        let pending = self.targets.iter().filter_map(|(&id, target)| match target.state {
            WaitState::Ready(since) => Some((id, target.last_cpu, since)),
            WaitState::Blocked => None,
        });
        for (id, cpu, since) in pending.collect::<Vec<_>>() {
            self.wait(id, cpu, (since, now));
        }
        self.cpus.values_mut().for_each(|cpu| {
            cpu.late.settle();
            cpu.lost.settle();
        });
        self.reserved.values_mut().for_each(Intervals::settle);
        let mut blames: BTreeMap<VcpuId, Blame> = BTreeMap::new();
        let targets = std::mem::take(&mut self.targets).into_values();
        for mut target in targets.filter(|target| !self.unseen.contains(&target.vcpu)) {
            target.settle();
            let blame = self.blame(&target, now);
            match blames.get_mut(&target.vcpu) {
                Some(all) => all.add(blame),
                None => {
                    blames.insert(target.vcpu, blame);
                }
            }
        }
        let cpus = self.notes.iter().find_map(Note::cpus).unwrap_or_default();
        for gap in &mut self.gaps {
            gap.cpu = cpus.get(gap.cpu.index()).copied().unwrap_or(gap.cpu);
        }
        let mut vms: Vec<String> = self.names.into_values().map(|(_, domain)| domain).collect();
        vms.sort();
        vms.dedup();
        let mut vcpus: Vec<Blame> = blames.into_values().collect();
        vcpus.iter_mut().for_each(Blame::sort);
        let length = now.since(self.first.unwrap_or(now));
        Answer { length, vcpus, gaps: self.gaps, notes: self.notes, vms }
    }

    fn is_target(&self, vcpu: VcpuId) -> bool {
        let Some(asked) = &self.name else { return true };
        self.names.get(&vcpu).is_some_and(|(name, domain)| name == asked || domain == asked)
    }

    /// Calls `act` with the latest thread of a vCPU. Does nothing if the waits of that vCPU are not
    /// explained.
    fn of_vcpu(&mut self, vcpu: VcpuId, act: impl FnOnce(&mut Target)) {
        let latest = self.latest_of.get(&vcpu).and_then(|id| self.targets.get_mut(id));
        if let Some(target) = latest {
            act(target);
        }
    }

    fn set_state(&mut self, thread: HostThreadId, state: WaitState) {
        let Some(target) = self.targets.get_mut(&thread) else { return };
        if let WaitState::Ready(since) = std::mem::replace(&mut target.state, state) {
            self.ready.remove(&(since, thread));
        }
        if let WaitState::Ready(since) = state {
            self.ready.insert((since, thread));
        }
    }

    fn on_cpu(&mut self, thread: HostThreadId, cpu: CpuId, (from, to): (Time, Time), end: OffCpu) {
        if let Some(target) = self.targets.get(&thread)
            && let WaitState::Ready(since) = target.state
        {
            self.wait(thread, cpu, (since, from));
            if let Some(target) = self.targets.get_mut(&thread) {
                target.closed.push((from, from.since(since)));
            }
        }
        let state = self.cpus.entry(cpu).or_default();
        state.latest.push_back((from, to, thread));
        state.busy += to.since(from);
        if let Some(target) = self.targets.get_mut(&thread) {
            target.ran.add(from, to);
            target.ran_until = Some(to);
            *state.ran.entry(thread).or_default() += to.since(from);
            target.last_cpu = cpu;
            let state = match end {
                OffCpu::Blocked => WaitState::Blocked,
                OffCpu::Ready | OffCpu::Unknown => WaitState::Ready(to),
            };
            self.set_state(thread, state);
        }
        self.drop_old(cpu);
    }

    /// Drops intervals of a CPU that are so old that no further wait needs them.
    fn drop_old(&mut self, cpu: CpuId) {
        let waits_since = self.ready.first().map_or(Time::NEVER, |&(since, _)| since);
        let remembered = Time::START + self.now.since(Time::START + MEMORY);
        let oldest = waits_since.min(remembered);
        let Some(state) = self.cpus.get_mut(&cpu) else { return };
        // The latest entries are kept even if they are old, because a wake may be reported late.
        while state.latest.len() > 8 && state.latest.front().is_some_and(|&(_, to, _)| to <= oldest)
        {
            state.latest.pop_front();
        }
    }

    /// Records that a thread waited for a CPU.
    fn wait(&mut self, thread: HostThreadId, cpu: CpuId, (since, to): (Time, Time)) {
        if self.targets.get(&thread).is_some_and(|target| self.unseen.contains(&target.vcpu)) {
            return;
        }
        let parts = self.parts(cpu, (since, to));
        let exhausted = self.throttled_parts(thread, &parts);
        if let Some(target) = self.targets.get_mut(&thread) {
            exhausted.into_iter().for_each(|(from, to)| target.exhausted.add(from, to));
            target.waits.extend(parts);
        }
    }

    /// Returns those parts of a wait in which `SCHED_DEADLINE` throttled the thread because its
    /// budget was exhausted. The kernel reports no throttling. But a thread under `SCHED_DEADLINE`
    /// that has budget left does not wait for an idle CPU or for a thread of another class.
    fn throttled_parts(&self, thread: HostThreadId, parts: &[Wait]) -> Vec<(Time, Time)> {
        let target = self.targets.get(&thread);
        let Some(target) = target.filter(|it| self.of_deadline.contains(&it.vcpu)) else {
            return Vec::new();
        };
        let is_throttled = |part: &&Wait| {
            let holder = part.by.and_then(|by| self.threads.get(&by));
            let has_precedence = holder.is_some_and(|holder| {
                let of_deadline = holder.vcpu.is_some_and(|vcpu| self.of_deadline.contains(&vcpu));
                of_deadline || holder.kind == HostThreadKind::Kernel
            });
            // The kernel needs a moment to switch threads, and more if the CPU was idle at a wake.
            let needed = if target.ran_until == Some(part.since) { SWITCH } else { LEAVING_IDLE };
            !has_precedence && part.to - part.since > needed
        };
        parts.iter().filter(is_throttled).map(|part| (part.from, part.to)).collect()
    }

    /// Splits an interval on a CPU into parts, each with the thread that had the CPU.
    fn parts(&self, cpu: CpuId, (since, to): (Time, Time)) -> Vec<Wait> {
        let (mut at, mut parts) = (since, Vec::new());
        let mut add = |from: Time, to: Time, by, switch_to| {
            if to > from {
                parts.push(Wait { cpu, from, to, by, switch_to, since });
            }
        };
        let nothing = VecDeque::new();
        let all = self.cpus.get(&cpu).map_or(&nothing, |cpu| &cpu.latest);
        // While one thread waits for long, the intervals of all CPUs since its wait began are kept.
        // Those that end before the wait examined here are skipped.
        let first = all.partition_point(|&(_, end, _)| end <= since);
        let mut left = first.checked_sub(1).map(|before| all[before].1);
        for &(start, end, by) in all.range(first..).take_while(|&&(at, ..)| at < to) {
            let (start, end) = (start.max(at), end.min(to));
            if end > start {
                let is_switch = left == Some(at) && start - at <= SWITCH;
                add(at, start, None, is_switch.then_some(by));
                add(start, end, Some(by), None);
                (at, left) = (end, Some(end));
            }
        }
        add(at, to, None, None);
        parts
    }

    fn promised(&mut self, vcpu: VcpuId, by: Enforcement) {
        if by == Enforcement::Deadline {
            self.of_deadline.insert(vcpu);
        } else {
            self.of_deadline.remove(&vcpu);
            self.unseen.remove(&vcpu);
        }
    }

    fn stopped(&mut self, vcpu: VcpuId, (from, to): (Time, Time)) {
        // A stop for an escape is recorded as a pause too, but it is no pause by a user.
        if let Some(since) = self.paused_since.get_mut(&vcpu) {
            *since = to.max(*since);
        }
        let known = self.latest_of.get(&vcpu).and_then(|id| self.targets.get(id));
        let Some(cpu) = known.map(|target| target.last_cpu) else {
            let is_target = self.is_target(vcpu);
            return self.early_stops.extend(is_target.then_some((vcpu, from, to)));
        };
        let parts = self.parts(cpu, (from, to));
        self.of_vcpu(vcpu, |target| {
            target.exhausted.add(from, to);
            target.stops.extend(parts);
        });
    }

    fn accounted(&mut self, cpu: CpuId, stolen: Span) {
        let Some(state) = self.cpus.get_mut(&cpu) else { return };
        let busy = std::mem::take(&mut state.busy);
        let stolen = stolen.min(busy);
        for (thread, ran) in std::mem::take(&mut state.ran) {
            let Some(target) = self.targets.get_mut(&thread) else { continue };
            let part = u128::from(stolen.ns()) * u128::from(ran.ns());
            let part = part.checked_div(u128::from(busy.ns())).unwrap_or(0);
            target.stolen += Span::from_ns(u64::try_from(part).unwrap_or(u64::MAX)).min(ran);
        }
    }

    /// Divides the waits of a thread among their causes, in a recording that ends at `end`.
    fn blame(&self, target: &Target, end: Time) -> Blame {
        let (begin, end) = self.windows.of(target.vcpu, end);
        let mut sums: BTreeMap<Culprit, Span> = BTreeMap::new();
        let mut parts = Vec::new();
        let mut add = |culprit: Culprit, (from, to): (Time, Time)| {
            let (from, to) = (from.max(begin), to.min(end));
            if to <= from {
                return;
            }
            if self.name.is_none() {
                parts.push((from, to, culprit.clone()));
            }
            *sums.entry(culprit).or_default() += to - from;
        };
        for wait in &target.waits {
            self.split(target, wait, &mut add);
        }
        // Times in which the thread ran or waited. The kernel counted any other time as blocked, so
        // a pause in such time explains no wait.
        let mut kept = target.ran.clone();
        target.waits.iter().for_each(|wait| kept.add(wait.from, wait.to));
        kept.settle();
        let pause = |kept: &mut Intervals, pauses: &Intervals, add: &mut dyn FnMut(_, _)| {
            for interval in pauses.iter() {
                kept.cut(interval, |from, to, is_in| {
                    if !is_in {
                        add(Culprit::Paused, (from, to));
                    }
                });
            }
            pauses.iter().for_each(|(from, to)| kept.add(from, to));
            kept.settle();
        };
        pause(&mut kept, &target.paused, &mut add);
        for stop in &target.stops {
            kept.cut((stop.from, stop.to), |from, to, is_in| {
                if !is_in {
                    self.by_stop(target, stop, (from, to), &mut add);
                }
            });
        }
        target.exhausted.iter().for_each(|(from, to)| kept.add(from, to));
        kept.settle();
        pause(&mut kept, &target.halted, &mut add);
        if !target.stolen.is_zero() {
            *sums.entry(Culprit::Hypervisor).or_default() += target.stolen;
        }
        let waited = sums.values().copied().sum();
        let within = |(from, to): (Time, Time)| to.min(end).since(from.max(begin));
        let on_cpu: Span = target.ran.iter().map(within).sum();
        let name = self.names.get(&target.vcpu).map(|(name, _)| name.clone()).unwrap_or_default();
        Blame {
            vcpu: target.vcpu,
            name,
            recorded: end.since(begin.max(self.first.unwrap_or(end))),
            ran: on_cpu.left_after(target.stolen),
            waited,
            culprits: sums.into_iter().collect(),
            parts,
            check: target.check(),
        }
    }

    fn split(&self, target: &Target, wait: &Wait, add: &mut impl FnMut(Culprit, (Time, Time))) {
        let cpu = self.cpus.get(&wait.cpu);
        let nothing = Intervals::default();
        let (lost, late) = cpu.map_or((&nothing, &nothing), |cpu| (&cpu.lost, &cpu.late));
        lost.cut((wait.from, wait.to), |from, to, is_lost| {
            if is_lost {
                return add(Culprit::Unexplained, (from, to));
            }
            target.paused.cut((from, to), |from, to, is_paused| {
                if is_paused {
                    return add(Culprit::Paused, (from, to));
                }
                target.exhausted.cut((from, to), |from, to, is_exhausted| {
                    if is_exhausted {
                        return self.by_stop(target, wait, (from, to), add);
                    }
                    target.halted.cut((from, to), |from, to, is_halted| {
                        if is_halted {
                            return add(Culprit::Paused, (from, to));
                        }
                        self.by_thread(target, (wait, late), (from, to), add);
                    });
                });
            });
        });
    }

    /// Splits an interval in which the dispatcher kept the vCPU from running. If the dispatcher's
    /// timer was late, the last part of the interval is attributed to the thread that had the CPU.
    fn by_stop(
        &self,
        target: &Target,
        wait: &Wait,
        interval: (Time, Time),
        add: &mut impl FnMut(Culprit, (Time, Time)),
    ) {
        let nothing = Intervals::default();
        let late = self.cpus.get(&wait.cpu).map_or(&nothing, |cpu| &cpu.late);
        late.cut(interval, |from, to, is_late| {
            if is_late {
                self.by_thread(target, (wait, late), (from, to), add);
            } else {
                add(Culprit::Exhausted, (from, to));
            }
        });
    }
}

impl Sink for CulpritFinder {
    fn named(&mut self, named: &VcpuName) {
        self.names.insert(named.vcpu, (named.name.clone(), named.domain.clone()));
    }

    fn host_thread(&mut self, thread: &HostThread) {
        if let Some(vcpu) = thread.vcpu.filter(|vcpu| self.is_target(*vcpu))
            && let Entry::Vacant(target) = self.targets.entry(thread.id)
        {
            target.insert(Target::new(vcpu));
            let latest = self.latest_of.entry(vcpu).or_insert(thread.id);
            *latest = thread.id.max(*latest);
        }
        self.threads.insert(thread.id, thread.clone());
    }

    fn note(&mut self, note: &Note) {
        self.notes.push(note.clone());
    }

    fn record(&mut self, record: &Record) {
        let (_, to) = record.when();
        self.windows.record(record);
        if !matches!(record, Record::Overhead { .. }) {
            // The first accounting of a recording states the values at its start.
            self.first.get_or_insert(to);
            self.now = self.now.max(to);
        }
        match *record {
            Record::OnCpu { thread, cpu, from, to, end } => {
                self.on_cpu(thread, cpu, (from, to), end);
            }
            Record::Awoken { at, thread, cpu, .. } => {
                if let Some(target) = self.targets.get_mut(&thread)
                    && target.state == WaitState::Blocked
                {
                    target.last_cpu = cpu;
                    self.set_state(thread, WaitState::Ready(at));
                }
            }
            Record::Promised { vcpu, by, .. } => self.promised(vcpu, by),
            Record::Elsewhere { vcpu, .. } if self.of_deadline.contains(&vcpu) => {
                self.unseen.insert(vcpu);
            }
            Record::Halted { thread, from, to } => {
                if let Some(target) = self.targets.get_mut(&thread) {
                    target.halted.add(from, to);
                }
            }
            Record::Stopped { vcpu, from, to } => {
                self.stopped(vcpu, (from, to));
            }
            Record::Paused { at, vcpu } => {
                self.paused_since.entry(vcpu).or_insert(at);
            }
            Record::Woke { at, vcpu } | Record::Left { at, vcpu } => {
                if let Some(since) = self.paused_since.remove(&vcpu) {
                    self.of_vcpu(vcpu, |target| target.paused.add(since, at));
                }
            }
            Record::Ran { vcpu, from, to, late, due: true, .. } => {
                let reserved = self.reserved.entry(vcpu).or_default();
                let until = Time::from_ns(to.ns().saturating_sub(late.ns()));
                reserved.add(from, until);
            }
            Record::RangLate { at, cpu, late } => {
                let due = Time::from_ns(at.ns().saturating_sub(late.ns()));
                self.cpus.entry(cpu).or_default().late.add(due, at);
            }
            Record::Lost { cpu, from, to, events } => {
                self.gaps.push(Gap { cpu, from, to, events });
                self.cpus.entry(cpu).or_default().lost.add(from, to);
            }
            Record::Accounted { cpu, stolen, .. } => self.accounted(cpu, stolen),
            Record::Counted { thread, from, to, used, ready }
                if self.first.is_some_and(|first| first <= from) =>
            {
                if let Some(target) = self.targets.get_mut(&thread) {
                    let counted =
                        KernelAccount { from, to: from, used: Span::ZERO, ready: Span::ZERO };
                    let counted = target.counted.get_or_insert(counted);
                    counted.to = to;
                    counted.used = counted.used.checked_add(used).unwrap_or(Span::MAX);
                    counted.ready = counted.ready.checked_add(ready).unwrap_or(Span::MAX);
                }
            }
            _ => {}
        }
    }
}
