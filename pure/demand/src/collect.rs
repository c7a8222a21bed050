//! Collector of a trace's demand: the work that its vCPUs asked for.

use std::collections::BTreeMap;

use slackline_trace::{
    Exchange, Fact, HostThread, KeptFact, OverheadKind, RanEnd, Record, Sink, VcpuName,
    WrittenTerms,
};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::cost::Samples;
use crate::others::ThreadCollector;
use crate::{Change, ChangeKind, CpuTimes, Demand, Job, RecordedReservation, VcpuDemand};

/// Sink that reads a trace and returns the demand of its vCPUs.
#[derive(Debug)]
pub struct Collector {
    /// End of the first part of the trace. Scheduling costs are fitted from that part only.
    fit_until: Time,
    demand: Demand,
    /// State of each vCPU that is on the host, from its join until it leaves.
    here: BTreeMap<VcpuId, Stay>,
    names: BTreeMap<VcpuId, (String, String)>,
    /// Parameters that were recorded before their vCPU joined.
    joining: BTreeMap<VcpuId, WrittenTerms>,
    /// vCPU whose parameters were changed last, while the policy can still decline the change.
    changing: Option<VcpuId>,
    timers: u64,
    /// Number of timers that expired before the timeslice was used up.
    early_timers: u64,
    others: ThreadCollector,
    /// Kind and end of the last recorded overhead of each CPU.
    spent: BTreeMap<CpuId, (OverheadKind, Time)>,
    /// Time at which the last vCPU on a CPU blocked, for each CPU on which no vCPU has run since.
    blocked: BTreeMap<CpuId, Time>,
}

/// Minimum time from a block to the next run interval on the same CPU if a dispatcher pass chose
/// the next vCPU. If the time is shorter, the kernel alone chose the next vCPU.
const KERNEL_SWITCH: Span = Span::from_us(5);

/// Minimum time from the start of a job to a brief block after which the job continues.
const LONG_JOB: Span = Span::from_ms(100);

/// Maximum length of a brief block. A CPU-bound program blocks so briefly now and then, for example
/// for a page fault.
const BRIEF_BLOCK: Span = Span::from_us(50);

/// Overhead of a CPU, as one record of the trace describes it.
#[derive(Clone, Copy, Debug)]
struct PaidOverhead {
    cpu: CpuId,
    vcpu: Option<VcpuId>,
    kind: OverheadKind,
    from: Time,
    to: Time,
}

/// Stay of a vCPU on the host: from its join until it leaves.
#[derive(Clone, Copy, Debug)]
struct Stay {
    index: usize,
    is_runnable: bool,
    is_paused: bool,
    /// Recorded overhead of a run interval that has not been recorded yet. When the run interval is
    /// recorded, this overhead is subtracted from the work of the vCPU's job.
    overhead: Span,
    /// CPU time that the vCPU used beyond the limit of its last reserved timeslice. `None` if that
    /// timeslice has not reached its limit, or if its overrun was counted.
    overrun: Option<Span>,
}

impl Collector {
    /// Creates a collector. Costs are fitted from the part of the trace up to `fit_until`.
    #[must_use]
    pub fn new(fit_until: Time) -> Collector {
        Collector {
            fit_until,
            demand: Demand::default(),
            here: BTreeMap::new(),
            names: BTreeMap::new(),
            joining: BTreeMap::new(),
            changing: None,
            timers: 0,
            early_timers: 0,
            others: ThreadCollector::default(),
            spent: BTreeMap::new(),
            blocked: BTreeMap::new(),
        }
    }

    /// Returns the demand of all records so far.
    #[must_use]
    pub fn finish(mut self) -> Demand {
        let late = self.demand.costs.lateness.count() as u64;
        (late..self.timers).for_each(|_| self.demand.costs.lateness.add(Span::ZERO));
        self.demand.timers = self.timers.saturating_sub(self.early_timers);
        let begin = self.demand.vcpus.iter().map(|vcpu| vcpu.joined).min();
        self.demand.others = self.others.finish(begin.unwrap_or(Time::START));
        self.demand
    }

    fn stay(&mut self, vcpu: VcpuId) -> Option<(&mut Stay, &mut VcpuDemand)> {
        let stay = self.here.get_mut(&vcpu)?;
        let demand = &mut self.demand.vcpus[stay.index];
        Some((stay, demand))
    }

    fn joined(&mut self, at: Time, vcpu: VcpuId) {
        let (name, domain) = self.names.get(&vcpu).cloned().unwrap_or_else(|| {
            let name = vcpu.to_string();
            (name.clone(), name)
        });
        let index = self.demand.vcpus.len();
        let (overhead, overrun) = (Span::ZERO, None);
        let stay = Stay { index, is_runnable: false, is_paused: false, overhead, overrun };
        self.here.insert(vcpu, stay);
        self.demand.vcpus.push(VcpuDemand {
            vcpu,
            name,
            domain,
            joined: at,
            left: None,
            terms: self.joining.remove(&vcpu),
            reserved: None,
            starts_on: None,
            changes: Vec::new(),
            jobs: Vec::new(),
            overruns: Samples::default(),
        });
    }

    fn woke(&mut self, at: Time, vcpu: VcpuId) {
        let Some((stay, demand)) = self.stay(vcpu) else { return };
        if std::mem::take(&mut stay.is_paused) {
            demand.changes.push(Change { at, what: ChangeKind::Resumed });
            if stay.is_runnable {
                return;
            }
        }
        if !std::mem::replace(&mut stay.is_runnable, true) {
            if let Some(last) = demand.jobs.last_mut().filter(|last| continues(last, at)) {
                last.blocked = Time::NEVER;
                return;
            }
            demand.jobs.push(Job { ready: at, work: Span::ZERO, blocked: Time::NEVER });
        }
    }

    fn blocked(&mut self, at: Time, vcpu: VcpuId) {
        let Some((stay, demand)) = self.stay(vcpu) else { return };
        if std::mem::take(&mut stay.is_runnable)
            && let Some(job) = demand.jobs.last_mut()
        {
            job.blocked = at;
        }
    }

    fn paused(&mut self, at: Time, vcpu: VcpuId) {
        let Some((stay, demand)) = self.stay(vcpu) else { return };
        if !std::mem::replace(&mut stay.is_paused, true) {
            demand.changes.push(Change { at, what: ChangeKind::Paused });
        }
    }

    fn left(&mut self, at: Time, vcpu: VcpuId) {
        let Some((_, demand)) = self.stay(vcpu) else { return };
        demand.left = Some(at);
        self.here.remove(&vcpu);
    }

    /// Adds the CPU time of a run interval to the vCPU's last job. The trace records a run interval
    /// before it records that the vCPU left.
    fn ran(&mut self, vcpu: VcpuId, cpu: CpuId, used: Span) {
        self.cpu(cpu).vcpus += used;
        if let Some((stay, demand)) = self.stay(vcpu)
            && let Some(job) = demand.jobs.last_mut()
        {
            let overhead = stay.overhead.min(used);
            stay.overhead -= overhead;
            job.work += used - overhead;
        }
    }

    /// Subtracts overhead from the work of the vCPU's last job. The trace records overhead before
    /// or after the run interval in which the vCPU paid it.
    fn overhead(&mut self, vcpu: VcpuId, used: Span) {
        let Some((stay, demand)) = self.stay(vcpu) else { return };
        let known = demand.jobs.last_mut().map(|job| {
            let known = job.work.min(used);
            job.work -= known;
            known
        });
        stay.overhead += used - known.unwrap_or(Span::ZERO);
    }

    fn cpu(&mut self, cpu: CpuId) -> &mut CpuTimes {
        let cpus = &mut self.demand.cpus;
        while cpus.len() <= cpu.index() {
            cpus.push(CpuTimes::new(CpuId::new(cpus.len())));
        }
        &mut cpus[cpu.index()]
    }

    fn spent(&mut self, spent: PaidOverhead) {
        let PaidOverhead { cpu, vcpu, kind, from, to } = spent;
        let used = to.since(from);
        if let Some(vcpu) = vcpu {
            self.overhead(vcpu, used);
        }
        // Overhead that is paid in parts is one cost.
        let is_part = self.spent.insert(cpu, (kind, to)) == Some((kind, from));
        let Demand { costs, later, .. } = &mut self.demand;
        let costs = if to > self.fit_until { later } else { costs };
        let samples = match kind {
            OverheadKind::Switch => &mut costs.switch,
            OverheadKind::Migration => &mut costs.migration,
            OverheadKind::Refill => &mut costs.refill,
            OverheadKind::Tick => &mut costs.tick,
            OverheadKind::Interrupt => &mut costs.interrupt,
            OverheadKind::Balancing => &mut costs.balancing,
        };
        if is_part { samples.extend_last(used) } else { samples.add(used) }
    }

    fn reported(&mut self, now: Time, fact: &KeptFact) {
        self.changing = None;
        match fact {
            Fact::Joined(vcpu, terms) => {
                self.joining.insert(*vcpu, (**terms).clone());
            }
            Fact::TermsChanged(vcpu, terms) => self.terms_changed(now, *vcpu, terms),
            Fact::Told(..) => self.demand.beyond.hints += 1,
            Fact::LimitReached(_) | Fact::AlarmRang(_) if now <= self.fit_until => {
                self.timers += 1;
            }
            _ => {}
        }
    }

    fn terms_changed(&mut self, at: Time, vcpu: VcpuId, terms: &WrittenTerms) {
        let Some((_, demand)) = self.stay(vcpu) else { return };
        if let (true, Some(first)) = (demand.joined == at, &mut demand.terms) {
            // A vCPU with a start CPU joins with an affinity to that CPU only.
            let placed = first.cpus.filter(|cpus| cpus.len() == 1);
            demand.starts_on = placed.and_then(|cpus| cpus.first());
            *first = terms.clone();
            return;
        }
        demand.changes.push(Change { at, what: ChangeKind::Terms(terms.clone()) });
        self.changing = Some(vcpu);
    }

    fn promised(&mut self, at: Time, vcpu: VcpuId, reserved: RecordedReservation) {
        let Some((_, demand)) = self.stay(vcpu) else { return };
        if demand.joined == at {
            demand.reserved = Some(reserved);
        } else {
            demand.changes.push(Change { at, what: ChangeKind::Reserved(reserved) });
        }
    }

    /// Counts the overrun of a reserved timeslice: the CPU time that the vCPU uses beyond the
    /// timeslice's `limit`. `limit` is `None` if the run interval did not end at the limit of a
    /// reserved timeslice.
    ///
    /// If the timer of the timeslice expires early, the vCPU has used less than `limit`. The vCPU
    /// is not stopped then, but runs again until it has used the whole limit. Only that last run
    /// interval has an overrun.
    ///
    /// A live vCPU with a hard limit can run once more outside its slice after it has reached the
    /// limit, because the vCPU needs time to stop itself. This run interval belongs to the same
    /// stop. A further run interval outside the slice can follow a block of another vCPU. Such a
    /// run interval belongs to no stop, and is not counted.
    fn overran(&mut self, vcpu: VcpuId, used: Span, due: bool, limit: Option<Span>) {
        let Some((stay, demand)) = self.stay(vcpu) else { return };
        let is_exact = demand.reserved.is_some_and(|it| it.exact && it.reservation.is_some());
        let stopping = if due || !is_exact { Span::ZERO } else { used };
        let overrun = limit.filter(|limit| used >= *limit).map(|limit| used - limit);
        let is_early = limit.is_some() && overrun.is_none();
        let ended = std::mem::replace(&mut stay.overrun, overrun);
        ended.into_iter().for_each(|overrun| demand.overruns.add(overrun + stopping));
        self.early_timers += u64::from(is_early);
    }

    /// Skips the timeslice that has just reached its limit: its overrun is not counted. The kernel
    /// began that timeslice when another vCPU blocked, and the dispatcher noticed the block later.
    /// So the overrun is not the lateness of a stop.
    fn drop_overrun(&mut self, vcpu: VcpuId) {
        if let Some((stay, _)) = self.stay(vcpu) {
            stay.overrun = None;
        }
    }

    fn declined(&mut self) {
        if let Some(vcpu) = self.changing.take()
            && let Some((_, demand)) = self.stay(vcpu)
        {
            let is_terms = |it: &Change| matches!(it.what, ChangeKind::Terms(_));
            if let Some(last) = demand.changes.iter().rposition(is_terms) {
                demand.changes.remove(last);
            }
        }
    }
}

/// Returns true if a job continues when its vCPU wakes at `woken`, because the job was long and the
/// block was brief. If the rest of the job were a separate job, that job would be ready only at
/// `woken`. That would be wrong in a simulation in which the vCPU receives its CPU time earlier.
fn continues(job: &Job, woken: Time) -> bool {
    job.blocked.since(job.ready) >= LONG_JOB && woken.since(job.blocked) <= BRIEF_BLOCK
}

impl Sink for Collector {
    fn named(&mut self, named: &VcpuName) {
        self.names.insert(named.vcpu, (named.name.clone(), named.domain.clone()));
    }

    fn host_thread(&mut self, thread: &HostThread) {
        self.others.host_thread(thread);
    }

    fn record(&mut self, record: &Record) {
        self.others.record(record, self.fit_until);
        match *record {
            Record::Ran { vcpu, cpu, from, to, used, granted, end, due, .. } => {
                let follows_block = self.blocked.remove(&cpu);
                let follows_block = follows_block.is_some_and(|at| from.since(at) < KERNEL_SWITCH);
                if end == RanEnd::Blocked {
                    self.blocked.insert(cpu, to);
                }
                if to <= self.fit_until {
                    let limit = granted.filter(|_| due && end == RanEnd::Limit);
                    match limit.filter(|_| follows_block) {
                        Some(_) => self.drop_overrun(vcpu),
                        None => self.overran(vcpu, used, due, limit),
                    }
                }
                self.demand.beyond.yields += u64::from(end == RanEnd::Yielded);
                self.ran(vcpu, cpu, used);
            }
            Record::Woke { at, vcpu } => self.woke(at, vcpu),
            Record::Blocked { at, vcpu } => self.blocked(at, vcpu),
            Record::Spent { cpu, vcpu, kind, from, to } => {
                self.spent(PaidOverhead { cpu, vcpu, kind, from, to });
            }
            Record::Joined { at, vcpu } => self.joined(at, vcpu),
            Record::Promised { at, vcpu, reservation, exact, phase, by } => {
                self.promised(at, vcpu, RecordedReservation { reservation, exact, phase, by });
            }
            Record::Left { at, vcpu } => self.left(at, vcpu),
            Record::Paused { at, vcpu } => self.paused(at, vcpu),
            Record::Slowed { vcpu, from, to, work } => {
                self.demand.beyond.slowed += 1;
                self.overhead(vcpu, to.since(from).left_after(work));
            }
            Record::RangLate { at, late, .. } if at <= self.fit_until => {
                self.demand.costs.lateness.add(late);
            }
            Record::Spun { .. } => self.demand.beyond.spins += 1,
            Record::Served { .. } => self.demand.beyond.services += 1,
            Record::Refused { .. } => self.demand.beyond.refused += 1,
            Record::Elsewhere { vcpu, .. } if !self.others.is_of_kernel(vcpu) => {
                self.demand.beyond.elsewhere += 1;
            }
            Record::ClockSet { .. } => self.demand.beyond.clock_sets += 1,
            Record::Accounted { cpu, from, to, idle, stolen, dispatching } => {
                let times = self.cpu(cpu);
                times.accounted += to.since(from);
                times.idle += idle;
                times.stolen += stolen;
                times.dispatching += dispatching;
            }
            Record::Ended { at } => self.demand.length = at.since(Time::START),
            _ => {}
        }
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        match exchange {
            Exchange::Reported { now, fact } => self.reported(*now, fact),
            Exchange::Declined => self.declined(),
            Exchange::Ordered { .. }
            | Exchange::Noticed(_)
            | Exchange::Measured(_)
            | Exchange::AlarmSet { .. } => {}
        }
    }
}
