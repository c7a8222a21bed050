//! The meter, which turns records into a summary.

use std::collections::BTreeMap;

use slackline_trace::{Header, Knowledge, OverheadKind, Record, Sink, VcpuName};
use slackline_units::{ClientId, CpuId, DomId, GridClock, Span, TaskId, Time, VcpuId};

use crate::cumulative::Cumulative;
use crate::distribution::Tally;
use crate::jobs::Jobs;
use crate::promise::{ReservedRun, TimedReservation};
use crate::shared::{Counts, CpuAccounting};
use crate::split::Stretch;
use crate::stray::{StrayRecord, Strays, Unknown};
use crate::vcpu::VcpuMeter;
use crate::{CpuSummary, OverheadTimes, Summary, VcpuSummary};

/// Kind of a live host, as the header of a trace states it. A live host does not observe the speed
/// of its CPUs.
const LIVE: &str = "live";

/// Maximum number of vCPUs that have lost their slots to other vCPUs, and whose late records still
/// count. Such records arrive within milliseconds.
const MOST_GONE: usize = 10_000;

/// Sink that adds records up for the summary. Its sums and histograms do not grow with the length
/// of the run. The meter keeps sums for each vCPU that ever joined.
#[derive(Clone, Debug)]
pub struct Meter {
    header: Header,
    warmup: Time,
    /// Domains whose vCPUs are counted only from a later time than `warmup`, each with that time.
    domain_starts: BTreeMap<DomId, Time>,
    /// Time of the last record that the meter has received.
    now: Time,
    /// Clock that defines the grid on which periods with a phase begin.
    clock: GridClock,
    /// Current vCPU of each slot, with its sums. The rows are boxed, because a trace can name a
    /// high slot and no slots below it.
    vcpus: Vec<Option<Box<Row>>>,
    /// vCPUs whose slots were reassigned to other vCPUs, each with the time of the reassignment.
    /// The list is in order of time.
    gone: Vec<(Time, Box<Row>)>,
    cpus: Vec<CpuMeter>,
    timer_lateness: Tally,
    changes: Tally,
    declined: u64,
    refused: u64,
    strays: Strays,
    /// Jobs of named tasks. The key is the first vCPU of the domain, and the task.
    tasks: BTreeMap<(VcpuId, TaskId), Jobs>,
    /// Answers to each client, with the first vCPU of the domain to which the client sends
    /// requests.
    clients: BTreeMap<ClientId, (VcpuId, Jobs)>,
}

/// Name of a vCPU, and the sums counted under this name.
#[derive(Clone, Debug)]
struct Row {
    vcpu: VcpuId,
    name: String,
    domain: String,
    meter: VcpuMeter,
}

/// Sums of one CPU.
#[derive(Clone, Copy, Debug, Default)]
struct CpuMeter {
    due: Span,
    spare: Span,
    /// CPU time that scheduling took on this CPU. `None` if it was not recorded, as on simulated
    /// hosts.
    overhead: Option<Span>,
    overheads: OverheadTimes,
    /// Overhead of this CPU for which no vCPU was charged.
    unpaid: Span,
    switches: u64,
    /// The vCPU that ran last on this CPU, and the end of that run interval. `None` if none has
    /// run.
    last: Option<(VcpuId, Time)>,
    books: CpuAccounting,
}

impl Meter {
    /// Creates a meter for the run of this header.
    #[must_use]
    pub fn new(header: &Header) -> Meter {
        Meter {
            header: header.clone(),
            warmup: Time::START.after(header.warmup),
            domain_starts: BTreeMap::new(),
            now: Time::START,
            clock: GridClock::default(),
            vcpus: Vec::new(),
            gone: Vec::new(),
            cpus: vec![CpuMeter::default(); header.cpus],
            timer_lateness: Tally::default(),
            changes: Tally::default(),
            declined: 0,
            refused: 0,
            strays: Strays::default(),
            tasks: BTreeMap::new(),
            clients: BTreeMap::new(),
        }
    }

    /// Returns the summary up to the last record. The function can be called during the run: waits
    /// and periods in progress count up to the last record.
    ///
    /// # Errors
    /// If a record named an unknown vCPU or CPU.
    pub fn view(&self) -> Result<Summary, StrayRecord> {
        self.strays.check()?;
        let length = self.now.since(self.warmup);
        let cpus = self.cpus.iter().enumerate();
        let knows = self.header.knows;
        let cpus = cpus.map(|(index, cpu)| cpu.summary(CpuId::new(index), length, knows)).collect();
        let gone = self.gone.iter().map(|(_, row)| row);
        let rows = gone.chain(self.vcpus.iter().flatten());
        let mut vcpus: Vec<VcpuSummary> = rows.filter_map(|row| row.view(self.now)).collect();
        vcpus.sort_by_key(|vcpu| vcpu.id);
        if self.header.machine == LIVE {
            vcpus.iter_mut().for_each(|vcpu| (vcpu.slowed, vcpu.spun) = (None, None));
        } else {
            vcpus.iter_mut().for_each(|vcpu| vcpu.stopped = None);
        }
        Ok(Summary {
            title: self.header.title.clone(),
            machine: self.header.machine.clone(),
            policy: self.header.policy.clone(),
            seed: self.header.seed,
            length,
            vcpus,
            cpus,
            timer_lateness: self.timer_lateness.distribution(),
            changes: self.changes.distribution(),
            knows: self.header.knows,
            declined: self.declined,
            refused: self.refused,
            tasks: self
                .tasks
                .iter()
                .map(|(id, jobs)| jobs.summary(*id, self.domain(id.0)))
                .collect(),
            clients: self
                .clients
                .iter()
                .map(|(id, (vcpu, jobs))| jobs.of_client(*id, self.domain(*vcpu)))
                .collect(),
        })
    }

    /// Returns the cumulative distributions of wake to run, response time and job lateness. The
    /// rows are in the order of the slots of the vCPUs. vCPUs whose slots were reassigned, and
    /// distributions without values, are left out.
    #[must_use]
    pub fn cumulative(&self) -> Vec<Cumulative> {
        let rows = self.vcpus.iter().flatten();
        rows.flat_map(|row| row.meter.cumulative(&row.name)).collect()
    }

    /// Sets the time from which the meter counts. Must be called before anything is counted.
    pub(crate) fn count_from(&mut self, warmup: Time) {
        self.warmup = warmup;
        let gone = self.gone.iter_mut().map(|(_, row)| row);
        let rows = self.vcpus.iter_mut().flatten().chain(gone);
        rows.for_each(|row| row.meter.count_from(warmup));
    }

    /// Sets the times from which the vCPUs of some domains are counted, if these times are later
    /// than the time of [`Meter::count_from`]. Must be called after `count_from`, and before
    /// anything is counted.
    pub(crate) fn count_domains_from(&mut self, starts: &BTreeMap<DomId, Time>) {
        self.domain_starts = starts.clone();
        let gone = self.gone.iter_mut().map(|(_, row)| row);
        for row in self.vcpus.iter_mut().flatten().chain(gone) {
            if let Some(&start) = starts.get(&row.vcpu.domain()) {
                row.meter.count_from(start.max(self.warmup));
            }
        }
    }

    /// Returns the time from which a vCPU is counted.
    fn start_of(&self, vcpu: VcpuId) -> Time {
        let own = self.domain_starts.get(&vcpu.domain());
        own.map_or(self.warmup, |&start| start.max(self.warmup))
    }

    /// Removes the vCPUs whose slots were reassigned before the time `before`, and returns the
    /// results of these vCPUs. Later records must not name them.
    pub fn take_gone(&mut self, before: Time) -> Vec<VcpuSummary> {
        let kept = self.gone.iter().position(|&(at, _)| at >= before);
        let gone = self.gone.drain(..kept.unwrap_or(self.gone.len()));
        gone.filter_map(|(at, row)| row.view(at)).collect()
    }

    /// Removes all vCPUs whose slots were reassigned to other vCPUs.
    pub(crate) fn forget_gone(&mut self) {
        self.gone.clear();
    }

    #[inline]
    fn at(&mut self, at: Time) {
        self.now = self.now.max(at);
    }

    #[inline]
    fn vcpu(&mut self, vcpu: VcpuId) -> Option<&mut VcpuMeter> {
        let here = self.vcpus.get(vcpu.slot()).and_then(Option::as_ref);
        if here.is_some_and(|row| row.vcpu == vcpu) {
            return self.vcpus[vcpu.slot()].as_mut().map(|row| &mut row.meter);
        }
        self.gone_vcpu(vcpu)
    }

    /// Returns the sums of a vCPU whose slot was reassigned. These sums are needed because records
    /// of the vCPU can arrive after the reassignment.
    #[cold]
    fn gone_vcpu(&mut self, vcpu: VcpuId) -> Option<&mut VcpuMeter> {
        let mut latest = self.gone.iter_mut().rev().take(MOST_GONE);
        let found = latest.find(|(_, row)| row.vcpu == vcpu);
        if found.is_none() {
            self.strays.add(Unknown::Vcpu(vcpu));
        }
        found.map(|(_, row)| &mut row.meter)
    }

    #[inline]
    fn cpu(&mut self, cpu: CpuId) -> Option<&mut CpuMeter> {
        let found = self.cpus.get_mut(cpu.index());
        if found.is_none() {
            self.strays.add(Unknown::Cpu(cpu));
        }
        found
    }

    #[inline]
    fn ran(&mut self, vcpu: VcpuId, cpu: CpuId, ran: ReservedRun) {
        let Stretch { from, to, .. } = ran.stretch;
        let is_measured = from >= self.warmup;
        let Some(meter) = self.cpu(cpu) else { return };
        let is_switch = meter.last != Some((vcpu, from));
        meter.last = Some((vcpu, to));
        meter.switches += u64::from(is_switch && is_measured);
        let Some(meter) = self.vcpu(vcpu) else { return };
        let used = meter.ran(ran, cpu, is_switch);
        if let Some(meter) = self.cpu(cpu) {
            *(if ran.due { &mut meter.due } else { &mut meter.spare }) += used;
        }
        self.at(to);
    }

    /// Returns the name of the domain of a vCPU.
    fn domain(&self, vcpu: VcpuId) -> String {
        let gone = self.gone.iter().map(|(_, row)| row);
        let mut rows = self.vcpus.iter().flatten().chain(gone);
        let row = rows.find(|row| row.vcpu == vcpu);
        row.map_or_else(|| vcpu.domain().to_string(), |row| row.domain.clone())
    }

    /// Adds a job to the counts of its named task, and an answer to the counts of its client.
    fn job_of_task(&mut self, record: &Record) {
        match *record {
            Record::Job { vcpu, task, client, released, deadline, done } if done >= self.warmup => {
                let client = client.map(|client| self.clients.entry(client));
                let client = client.map(|entry| &mut entry.or_insert((vcpu, Jobs::default())).1);
                let task = task.map(|task| self.tasks.entry((vcpu, task)).or_default());
                for jobs in client.into_iter().chain(task) {
                    jobs.finished(self.warmup, (released, deadline, done));
                }
            }
            Record::ClientStarted { client, vcpu, .. } => {
                self.clients.entry(client).or_insert((vcpu, Jobs::default()));
            }
            Record::Unfinished { at, vcpu, task: Some(task), released, deadline }
                if released >= self.warmup =>
            {
                self.tasks.entry((vcpu, task)).or_default().unfinished(deadline, at);
            }
            _ => {}
        }
    }

    /// Handles the rare kinds of records that are about one vCPU.
    fn seldom_of(&mut self, vcpu: VcpuId, record: &Record) {
        let clock = self.clock;
        let Some(meter) = self.vcpu(vcpu) else { return };
        match *record {
            Record::Joined { at, .. } => meter.joined(at),
            Record::Promised { at, reservation, exact, phase, .. } => {
                meter.promised(TimedReservation { at, reservation, exact, phase }, clock);
            }
            Record::Left { at, .. } => meter.over(at),
            Record::Job { released, deadline, done, .. } => meter.job(released, deadline, done),
            Record::Unfinished { at, released, deadline, .. } => {
                meter.unfinished(released, deadline, at);
            }
            Record::Moved { at, bytes, .. } => meter.moved(at, bytes),
            Record::Spun { at, used, .. } => meter.spun(at, used),
            Record::Slowed { from, to, work, .. } => meter.slowed(from, to, work),
            Record::Boosted { from, to, used_up, .. } => meter.boosted((from, to), used_up),
            Record::Stopped { from, to, .. } => meter.stopped(from, to),
            Record::Elsewhere { from, to, used, .. } => meter.elsewhere(Stretch { from, to, used }),
            _ => {}
        }
    }

    /// Adds overhead of a CPU.
    fn spent(&mut self, cpu: CpuId, vcpu: Option<VcpuId>, kind: OverheadKind, time: (Time, Time)) {
        let span = time.1.since(time.0.max(self.warmup));
        if let Some(meter) = self.cpu(cpu) {
            meter.overheads.add(kind, span);
            if vcpu.is_none() {
                meter.unpaid += span;
            }
        }
        if let Some(meter) = vcpu.and_then(|vcpu| self.vcpu(vcpu)) {
            meter.spent(kind, time.0, time.1);
        }
    }

    /// Handles the rare kinds of records that are about the whole run or a CPU.
    fn seldom(&mut self, record: &Record) {
        if !matches!(record, Record::Overhead { .. }) {
            self.at(record.when().1);
        }
        self.job_of_task(record);
        match *record {
            Record::Joined { vcpu, .. }
            | Record::Promised { vcpu, .. }
            | Record::Left { vcpu, .. }
            | Record::Job { vcpu, .. }
            | Record::Unfinished { vcpu, .. }
            | Record::Moved { vcpu, .. }
            | Record::Spun { vcpu, .. }
            | Record::Slowed { vcpu, .. }
            | Record::Boosted { vcpu, .. }
            | Record::Stopped { vcpu, .. }
            | Record::Elsewhere { vcpu, .. } => self.seldom_of(vcpu, record),
            Record::Spent { cpu, vcpu, kind, from, to } => self.spent(cpu, vcpu, kind, (from, to)),
            Record::RangLate { at, late, .. } if at >= self.warmup => self.timer_lateness.add(late),
            Record::ClockSet { at, ahead } => {
                self.clock.set(at, ahead);
                for row in self.vcpus.iter_mut().flatten() {
                    row.meter.clock_set(at, ahead);
                }
            }
            Record::Refused { at, .. } => self.refused += u64::from(at >= self.warmup),
            Record::Declined { at, .. } => self.declined += u64::from(at >= self.warmup),
            Record::Changed { due, at, .. } if due >= self.warmup => {
                self.changes.add(at.since(due));
            }
            Record::Overhead { cpu, used } => {
                if let Some(meter) = self.cpu(cpu) {
                    meter.overhead = Some(meter.overhead.unwrap_or_default() + used);
                }
            }
            Record::Accounted { cpu, from, to, idle, stolen, dispatching } => {
                let counts = Counts { idle, stolen, dispatching };
                let warmup = self.warmup;
                if let Some(meter) = self.cpu(cpu) {
                    meter.books.add((from, to), counts, warmup, meter.due + meter.spare);
                }
            }
            _ => {}
        }
    }
}

impl Sink for Meter {
    #[inline]
    fn record(&mut self, record: &Record) {
        self.strays.count();
        match *record {
            Record::Woke { at, vcpu } => {
                self.at(at);
                if let Some(meter) = self.vcpu(vcpu) {
                    meter.woke(at);
                }
            }
            Record::Blocked { at, vcpu } => {
                self.at(at);
                if let Some(meter) = self.vcpu(vcpu) {
                    meter.blocked(at);
                }
            }
            Record::Paused { at, vcpu } => {
                self.at(at);
                if let Some(meter) = self.vcpu(vcpu) {
                    meter.paused(at);
                }
            }
            Record::Ran { vcpu, cpu, from, to, used, late, due, .. } => {
                let stretch = Stretch { from, to, used };
                self.ran(vcpu, cpu, ReservedRun { stretch, late, due });
            }
            _ => self.seldom(record),
        }
    }

    /// Handles a record that gives a vCPU its name. If a vCPU rejoins under its old name, its old
    /// sums continue. Any other vCPU starts with new sums.
    fn named(&mut self, named: &VcpuName) {
        let slot = named.vcpu.slot();
        if self.vcpus.len() <= slot {
            self.vcpus.resize(slot + 1, None);
        }
        let is_same = |row: &Row| row.vcpu == named.vcpu && row.name == named.name;
        if self.vcpus[slot].as_deref().is_some_and(is_same) {
            return;
        }
        let begins_at_wake = self.header.parameters.contains("new-period");
        let start = self.start_of(named.vcpu);
        let meter = VcpuMeter::new(start, self.header.knows, begins_at_wake);
        let (name, domain) = (named.name.clone(), named.domain.clone());
        let row = Box::new(Row { vcpu: named.vcpu, name, domain, meter });
        if let Some(mut before) = self.vcpus[slot].replace(row) {
            before.meter.over(named.at);
            self.gone.push((named.at, before));
        }
    }
}

impl Row {
    /// Returns the results of the vCPU as if it left at `now`. `None` if it never joined.
    fn view(&self, now: Time) -> Option<VcpuSummary> {
        let mut meter = self.meter.clone();
        meter.over(now);
        meter.finish(self.vcpu, (&self.name, &self.domain))
    }
}

impl CpuMeter {
    fn summary(&self, cpu: CpuId, length: Span, knows: Knowledge) -> CpuSummary {
        let busy = self.due + self.spare;
        let overheads = knows.overhead.then_some(self.overheads);
        let paid = |overheads: OverheadTimes| overheads.total() - self.unpaid;
        CpuSummary {
            cpu,
            busy,
            due: self.due,
            spare: self.spare,
            idle: length.left_after(busy + self.unpaid),
            program: overheads.map(|overheads| busy.left_after(paid(overheads))),
            shared: self.books.shared(),
            overhead: overheads.map(|overheads| overheads.total()).or(self.overhead),
            overheads,
            switches: self.switches,
        }
    }
}
