//! Demand of the programs that share CPUs with the vCPUs, from the host threads of a recording.
//!
//! A job of a host thread is on one CPU. The job begins when the thread becomes runnable on this
//! CPU, and ends when the thread blocks or migrates to another CPU. There are two kinds of jobs. A
//! thread that ran while a vCPU with budget left waited has precedence over all vCPUs, as interrupt
//! threads and real-time programs have. The jobs of such threads and of kernel threads are
//! *interference*. The jobs of all other threads are ordinary: they compete for slack.
//!
//! The kernel can enforce the reservation of a vCPU, for example by `SCHED_DEADLINE`. Each run
//! interval of such a vCPU is interference too: the vCPU has precedence over all other vCPUs.
//!
//! A *competitor* is a sequence of ordinary jobs of any programs on one CPU. The number of
//! competitors depends on the number of programs that were runnable at the same time, and not on
//! the number of programs that ran in total.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackline_trace::{HostThread, HostThreadId, HostThreadKind, OffCpu, RanEnd, Record};
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

use crate::ticks;
use crate::{Job, Samples, VcpuDemand};

/// Minimum time without a running thread for which a CPU counts as idle. A context switch takes
/// less.
const IDLE: Span = Span::from_us(50);

/// Time without a run interval after which a thread counts as gone from its CPU.
const GONE: Span = Span::from_secs(1);

/// Longest time from a vCPU's wake until it runs that counts as wake latency. A longer time counts
/// as waiting for another thread.
const LATENCY: Span = Span::from_us(500);

/// Maximum number of competitors on one CPU. A competitor is a sequence of jobs of ordinary
/// programs, usually with one job at a time.
const MOST: usize = 8;

/// Limit in percent: an ordinary thread uses at most this much of its CPU time while a vCPU with
/// budget left waits. A thread above this limit has precedence over all vCPUs.
const ABOVE_PERCENT: u64 = 10;

/// Prefix of the names of dispatcher threads.
const DISPATCHER: &str = "dispatcher";

/// Demand of the programs that share CPUs with the vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherDemand {
    /// Jobs of ordinary programs, which compete for slack. One entry per competitor, each on one
    /// CPU.
    pub competitors: Vec<(CpuId, VcpuDemand)>,
    /// Jobs of threads that have precedence over all vCPUs, by CPU.
    pub interference: Vec<(CpuId, Vec<Job>)>,
    /// CPU time of each dispatcher pass in the part of the recording from which costs are fitted.
    pub passes: Samples,
    /// Period of the kernel's tick, and the time of the first tick in the trace. `None` if the
    /// recorded preemptions do not show a tick.
    pub tick: Option<(Span, Span)>,
    /// Times from a wake of a vCPU until it ran, for each vCPU. Only wakes in the part of the
    /// recording from which costs are fitted are included. Left out are wakes after which the vCPU
    /// ran only after 500 us or more, or waited for the reserved timeslice of another vCPU.
    pub wake_latency: BTreeMap<VcpuId, Samples>,
}

/// Collects the jobs of host threads.
#[derive(Debug, Default)]
pub(crate) struct ThreadCollector {
    threads: BTreeMap<HostThreadId, ThreadRow>,
    cpus: BTreeMap<CpuId, CpuRow>,
    passes: Samples,
    wake_latency: BTreeMap<VcpuId, Samples>,
    /// Time of the last wake of each vCPU that has not run since.
    woken: BTreeMap<VcpuId, Time>,
    /// vCPUs whose reservation the kernel enforces now.
    of_kernel: BTreeSet<VcpuId>,
    /// Times at which an ordinary thread lost a CPU to another ordinary thread.
    preempted: Vec<Time>,
}

#[derive(Debug)]
struct ThreadRow {
    role: Role,
    /// vCPU of the thread. `None` if the thread belongs to no vCPU.
    vcpu: Option<VcpuId>,
    /// Time of a wake after which the thread has not run yet. `None` if there is no such wake.
    woken: Option<Time>,
    open: Option<OpenJob>,
    jobs: Vec<(CpuId, Job)>,
    used: Span,
    /// CPU time of the thread while a vCPU with budget left waited for the same CPU.
    above: Span,
}

/// Kind of a host thread, by which its jobs are classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Vcpu,
    Dispatcher,
    Kernel,
    Program,
}

#[derive(Clone, Copy, Debug)]
struct OpenJob {
    cpu: CpuId,
    ready: Time,
    work: Span,
    /// End of the job's last interval on the CPU.
    until: Time,
}

#[derive(Debug, Default)]
struct CpuRow {
    busy_until: Time,
    /// Threads with unfinished jobs on this CPU.
    open: BTreeSet<HostThreadId>,
    /// vCPU of the last run interval on this CPU, and the end of that interval. `None` if that
    /// interval was not reserved, or did not end by preemption.
    cut: Option<(VcpuId, Time)>,
    /// Start, end and thread of recent run intervals of other programs, in the order of their ends.
    ran: VecDeque<(Time, Time, HostThreadId)>,
    /// Recent intervals in which a vCPU with budget left waited. They are kept for comparison with
    /// the run intervals in `ran`, since the trace can record either of them first. They are in the
    /// order of their ends.
    waits: VecDeque<(Time, Time)>,
    /// Thread that ran last on this CPU if it was preempted, with the time of the preemption.
    lost: Option<(HostThreadId, Time)>,
    /// End of the last reserved run interval on this CPU that ended without a preemption.
    reserved_until: Time,
}

impl ThreadCollector {
    pub(crate) fn host_thread(&mut self, thread: &HostThread) {
        let role = match thread.kind {
            HostThreadKind::Vcpu => Role::Vcpu,
            HostThreadKind::Slackline if thread.name.starts_with(DISPATCHER) => Role::Dispatcher,
            HostThreadKind::Kernel => Role::Kernel,
            HostThreadKind::Slackline | HostThreadKind::Monitor | HostThreadKind::Process => {
                Role::Program
            }
        };
        let (vcpu, used, above) = (thread.vcpu, Span::ZERO, Span::ZERO);
        let row = ThreadRow { role, vcpu, woken: None, open: None, jobs: Vec::new(), used, above };
        self.threads.entry(thread.id).or_insert(row);
    }

    /// Adds a record of a host thread or of a vCPU. Costs are not fitted from records that end
    /// after `fit_until`.
    pub(crate) fn record(&mut self, record: &Record, fit_until: Time) {
        match *record {
            Record::OnCpu { thread, cpu, from, to, end } => {
                self.on_cpu((thread, cpu), (from, to), end, to <= fit_until);
            }
            Record::Awoken { at, thread, .. } => self.awoken(at, thread),
            Record::Woke { at, vcpu } => {
                self.woken.insert(vcpu, at);
            }
            Record::Promised { vcpu, by, .. } => {
                self.of_kernel.remove(&vcpu);
                self.of_kernel.extend(by.is_of_kernel().then_some(vcpu));
            }
            Record::Ran { vcpu, cpu, from, to, end, due, .. } => {
                if let Some(at) = self.woken.remove(&vcpu).filter(|_| from <= fit_until) {
                    self.ran_after_wake((vcpu, cpu), at, from);
                }
                self.ran((vcpu, cpu), (from, to), (end, due));
            }
            _ => {}
        }
    }

    /// Returns true if the kernel enforces the reservation of a vCPU now.
    pub(crate) fn is_of_kernel(&self, vcpu: VcpuId) -> bool {
        self.of_kernel.contains(&vcpu)
    }

    fn awoken(&mut self, at: Time, thread: HostThreadId) {
        if let Some(row) = self.threads.get_mut(&thread).filter(|row| row.open.is_none()) {
            row.woken = Some(at);
        }
    }

    fn on_cpu(
        &mut self,
        (thread, cpu): (HostThreadId, CpuId),
        (from, to): (Time, Time),
        end: OffCpu,
        is_fitted: bool,
    ) {
        self.note_idle(cpu, from);
        let state = self.cpus.entry(cpu).or_default();
        state.busy_until = state.busy_until.max(to);
        let Some(row) = self.threads.get_mut(&thread) else { return };
        let is_ordinary = matches!(row.role, Role::Vcpu | Role::Program);
        let lost = state.lost.take().filter(|&(other, at)| {
            is_fitted && is_ordinary && other != thread && from.since(at) < IDLE
        });
        self.preempted.extend(lost.map(|(_, at)| at));
        state.lost = (is_ordinary && end == OffCpu::Ready).then_some((thread, to));
        match row.role {
            Role::Dispatcher if is_fitted => self.passes.add(to.since(from)),
            _ => {}
        }
        if matches!(row.role, Role::Dispatcher | Role::Vcpu) {
            if row.vcpu.is_some_and(|vcpu| self.of_kernel.contains(&vcpu)) {
                // The kernel also stops such a thread at the end of its slice, where it does not
                // block. So each run interval is a job of its own.
                row.jobs.push((cpu, Job { ready: from, work: to.since(from), blocked: to }));
            }
            return;
        }
        let waits = state.waits.iter().rev().take_while(|&&(_, until)| until > from);
        row.above += waits.map(|&(since, until)| to.min(until).since(from.max(since))).sum();
        while state.ran.pop_front_if(|&mut (_, ends, _)| ends.after(GONE) <= to).is_some() {}
        state.ran.push_back((from, to, thread));
        if let Some(open) = row.open.filter(|open| open.cpu != cpu) {
            self.close(thread, open.until);
        }
        let Some(row) = self.threads.get_mut(&thread) else { return };
        let ready = row.woken.take().map_or(from, |woken| woken.min(from));
        let open = row.open.get_or_insert(OpenJob { cpu, ready, work: Span::ZERO, until: to });
        open.work += to.since(from);
        open.until = to;
        row.used += to.since(from);
        self.cpus.entry(cpu).or_default().open.insert(thread);
        if end == OffCpu::Blocked {
            self.close(thread, to);
        }
    }

    /// Measures the wake latency of a vCPU that woke at `at` and runs at `from`. A wait for the
    /// reserved timeslice of another vCPU is no latency: a simulation of the policy contains such
    /// waits already.
    fn ran_after_wake(&mut self, (vcpu, cpu): (VcpuId, CpuId), at: Time, from: Time) {
        let latency = from.since(at);
        let has_waited = self.cpus.get(&cpu).is_some_and(|state| state.reserved_until > at);
        if latency < LATENCY && !has_waited {
            self.wake_latency.entry(vcpu).or_default().add(latency);
        }
    }

    /// Records a run interval of a vCPU. If this vCPU was preempted in its previous reserved run
    /// interval, the programs that have run since that preemption have precedence over the vCPU.
    fn ran(
        &mut self,
        (vcpu, cpu): (VcpuId, CpuId),
        (from, to): (Time, Time),
        (end, is_due): (RanEnd, bool),
    ) {
        let state = self.cpus.entry(cpu).or_default();
        if is_due && end != RanEnd::Preempted {
            state.reserved_until = to;
        }
        let cut = state.cut.take().filter(|&(other, _)| is_due && other == vcpu);
        state.cut = (is_due && end == RanEnd::Preempted).then_some((vcpu, to));
        let Some((_, since)) = cut.filter(|&(_, since)| since < from) else { return };
        let ran_meanwhile = state.ran.iter().rev().take_while(|&&(_, ends, _)| ends > since);
        for &(begins, ends, thread) in ran_meanwhile {
            if let Some(row) = self.threads.get_mut(&thread) {
                row.above += ends.min(from).since(begins.max(since));
            }
        }
        while state.waits.pop_front_if(|&mut (_, ends)| ends.after(GONE) <= from).is_some() {}
        state.waits.push_back((since, from));
    }

    /// Ends the unfinished jobs of a CPU that was idle, since their threads did not wait for this
    /// CPU.
    fn note_idle(&mut self, cpu: CpuId, now: Time) {
        let state = self.cpus.entry(cpu).or_default();
        let idle_from = state.busy_until;
        if now.since(idle_from) < IDLE || state.open.is_empty() {
            return;
        }
        for thread in std::mem::take(&mut state.open) {
            self.close(thread, idle_from);
        }
    }

    fn close(&mut self, thread: HostThreadId, at: Time) {
        let Some(row) = self.threads.get_mut(&thread) else { return };
        let Some(OpenJob { cpu, ready, work, .. }) = row.open.take() else { return };
        row.jobs.push((cpu, Job { ready, work, blocked: at.max(ready) }));
        if let Some(state) = self.cpus.get_mut(&cpu) {
            state.open.remove(&thread);
        }
    }

    pub(crate) fn finish(mut self, begin: Time) -> OtherDemand {
        let open: Vec<_> = self.cpus.values().flat_map(|cpu| cpu.open.iter().copied()).collect();
        let end = self.cpus.values().map(|cpu| cpu.busy_until).max().unwrap_or(begin);
        for thread in open {
            let until = self.threads.get(&thread).and_then(|row| Some(row.open?.until));
            match until {
                Some(until) if end.since(until) < GONE => self.close(thread, Time::NEVER),
                until => self.close(thread, until.unwrap_or(end)),
            }
        }
        let (mut ordinary, mut above) = (BTreeMap::new(), BTreeMap::new());
        for row in self.threads.values() {
            let is_above = row.above.ns() > row.used.ns() / 100 * ABOVE_PERCENT;
            // A vCPU has jobs here only if the kernel enforced its reservation.
            let is_above = is_above || matches!(row.role, Role::Kernel | Role::Vcpu);
            let jobs = if is_above { &mut above } else { &mut ordinary };
            for &(cpu, job) in &row.jobs {
                jobs.entry(cpu).or_insert_with(Vec::new).push(job);
            }
        }
        let sorted = |(cpu, mut jobs): (CpuId, Vec<Job>)| {
            jobs.sort_by_key(|job| (job.ready, job.blocked));
            (cpu, jobs)
        };
        let competitors = ordinary.into_iter().map(sorted).flat_map(|(cpu, jobs)| {
            spread(jobs).into_iter().map(move |jobs| (cpu, competitor(jobs, begin)))
        });
        // Without a dispatcher, only other vCPUs delay a wake.
        let has_passes = self.passes.count() > 0;
        let wake_latency = if has_passes { self.wake_latency } else { BTreeMap::new() };
        OtherDemand {
            competitors: competitors.collect(),
            interference: above.into_iter().map(sorted).collect(),
            passes: self.passes,
            wake_latency,
            tick: ticks::find(&self.preempted),
        }
    }
}

/// Distributes jobs among as few competitors as possible, at most `MOST`. Each competitor has one
/// job at a time, unless more than `MOST` jobs overlap.
fn spread(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let mut all: Vec<Vec<Job>> = Vec::new();
    for job in jobs {
        let ends = |jobs: &Vec<Job>| jobs.last().map_or(Time::START, |last| last.blocked);
        let free = all.iter().position(|jobs| ends(jobs) <= job.ready);
        let place = match free {
            Some(place) => place,
            None if all.len() < MOST => {
                all.push(Vec::new());
                all.len() - 1
            }
            None => (0..all.len()).min_by_key(|&place| ends(&all[place])).unwrap_or(0),
        };
        all[place].push(job);
    }
    all
}

fn competitor(jobs: Vec<Job>, begin: Time) -> VcpuDemand {
    VcpuDemand {
        vcpu: VcpuId::new(0, DomId::new(0), 0),
        name: String::new(),
        domain: String::new(),
        joined: begin,
        left: None,
        terms: None,
        reserved: None,
        starts_on: None,
        changes: Vec::new(),
        jobs,
        overruns: Samples::default(),
    }
}
