//! Scheduling of vCPUs in numbers: latencies, slices and imbalance in blocks of time, so that two
//! runs can be compared.
//!
//! The definitions are those of `sched aggregate` in systing, applied to vCPUs:
//!
//! - *Wake latency*: from the wake of a vCPU until it runs. Wakes after which the vCPU runs on its
//!   last CPU are counted separately from wakes after which it runs on another CPU.
//! - *Preemption wait*: from the moment at which a runnable vCPU loses the CPU until it runs again.
//! - *Slice*: time on one CPU without a break.
//! - *Imbalance*: the busiest CPU's part of all busy time, and the spread of the CPUs' busy times.
//!   Also the time in which a vCPU waited for one CPU while another CPU was idle.
//!
//! A run is divided into [`BLOCKS`] blocks of equal length. A sample counts for the block in which
//! it ends. A wait of a vCPU with a hard limit is not counted as imbalance, because the budget of
//! that vCPU may be exhausted.

mod difference;
mod idle_queue;
mod samples;

use std::collections::BTreeMap;

use slackline_trace::{Header, HostThread, RanEnd, Record, Sink, VcpuName};
use slackline_units::{CpuId, Span, Time, VcpuId};

pub use difference::{Change, Difference, LEAST_SAMPLES, Metric, MetricUnit, difference};
use idle_queue::IdleQueue;
use samples::Samples;

/// Number of blocks into which a run is divided.
pub const BLOCKS: usize = 20;

/// Scheduling of one run, divided into blocks.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Length of the run.
    pub length: Span,
    /// Number of CPUs of the host.
    pub cpus: usize,
    pub(crate) vms: BTreeMap<String, VmBlocks>,
    pub(crate) total: VmBlocks,
    /// Busy time of each CPU in each block.
    pub(crate) busy: Vec<[Span; BLOCKS]>,
    /// For each block, the time in which a vCPU waited for a CPU while another CPU was idle.
    pub(crate) idle_queue: [Span; BLOCKS],
    pub(crate) block: Span,
}

/// Samples of the vCPUs of one VM, or of all VMs.
#[derive(Clone, Debug, Default)]
pub(crate) struct VmBlocks {
    pub(crate) stayed: Samples,
    pub(crate) migrated: Samples,
    pub(crate) preempted: Samples,
    pub(crate) slices: Samples,
    pub(crate) used: [Span; BLOCKS],
}

/// Kind of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SampleKind {
    WokeAndStayed,
    WokeAndMigrated,
    Preempted,
    Slice,
}

impl VmBlocks {
    fn samples(&mut self, kind: SampleKind) -> &mut Samples {
        match kind {
            SampleKind::WokeAndStayed => &mut self.stayed,
            SampleKind::WokeAndMigrated => &mut self.migrated,
            SampleKind::Preempted => &mut self.preempted,
            SampleKind::Slice => &mut self.slices,
        }
    }
}

/// Sink that measures how vCPUs were scheduled between two times.
#[derive(Debug)]
pub struct ScheduleMeter {
    begin: Time,
    end: Time,
    schedule: Schedule,
    names: BTreeMap<VcpuId, String>,
    vcpus: BTreeMap<VcpuId, VcpuRow>,
    /// True if the trace has host threads, which show when a CPU was busy.
    has_threads: bool,
    /// Intervals in which vCPUs had CPUs, each with the CPU.
    by_vcpus: Vec<(CpuId, Time, Time)>,
    by_threads: Vec<(CpuId, Time, Time)>,
    waits: Vec<(CpuId, Time, Time)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct VcpuRow {
    woke: Option<Time>,
    /// Time at which the vCPU lost its CPU while it was still runnable. `None` if the vCPU is
    /// running, or if it has blocked after it lost the CPU.
    lost: Option<Time>,
    last_cpu: Option<CpuId>,
    /// Start of the vCPU's current slice. The next run interval can continue this slice. `None` if
    /// there is no current slice.
    slice: Option<Time>,
    has_limit: bool,
}

impl ScheduleMeter {
    /// Creates a meter for the part of a trace from `begin` to `end`. If the warm-up ends after
    /// `begin`, the meter starts at the end of the warm-up. `header` is the header of the trace.
    #[must_use]
    pub fn new(header: &Header, (begin, end): (Time, Time)) -> ScheduleMeter {
        let begin = begin.max(Time::START + header.warmup).min(end);
        let length = end.since(begin);
        let block = (length / BLOCKS as u64).max(Span::from_ns(1));
        ScheduleMeter {
            begin,
            end,
            schedule: Schedule {
                length,
                cpus: header.cpus,
                vms: BTreeMap::new(),
                total: VmBlocks::default(),
                busy: vec![[Span::ZERO; BLOCKS]; header.cpus],
                idle_queue: [Span::ZERO; BLOCKS],
                block,
            },
            names: BTreeMap::new(),
            vcpus: BTreeMap::new(),
            has_threads: false,
            by_vcpus: Vec::new(),
            by_threads: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// Returns the scheduling of the run.
    #[must_use]
    pub fn finish(mut self) -> Schedule {
        let rows: Vec<VcpuId> = self.vcpus.keys().copied().collect();
        for vcpu in rows {
            let lost = self.vcpus[&vcpu].lost.unwrap_or(self.end);
            self.close_slice(vcpu, lost);
        }
        let busy = if self.has_threads { &self.by_threads } else { &self.by_vcpus };
        for &(cpu, from, to) in busy {
            if let Some(row) = self.schedule.busy.get_mut(cpu.index()) {
                spread((self.begin, self.schedule.block), (from, to), row);
            }
        }
        let mut queue = IdleQueue::new(self.schedule.cpus);
        busy.iter().for_each(|&(cpu, from, to)| queue.busy(cpu, from, to));
        self.waits.iter().for_each(|&(cpu, from, to)| queue.waits(cpu, from, to));
        for (from, to) in queue.intervals((self.begin, self.end)) {
            spread((self.begin, self.schedule.block), (from, to), &mut self.schedule.idle_queue);
        }
        self.schedule
    }

    /// Adds a sample to the samples of a VM and to the samples of all VMs. `at` is the time at
    /// which the sample ends.
    fn add(&mut self, vcpu: VcpuId, at: Time, length: Span, kind: SampleKind) {
        if at < self.begin || at > self.end {
            return;
        }
        let block = self.block_of(at);
        self.schedule.total.samples(kind).add(block, length);
        let Some(name) = self.names.get(&vcpu) else { return };
        let blocks = self.schedule.vms.entry(name.clone()).or_default();
        blocks.samples(kind).add(block, length);
    }

    fn block_of(&self, at: Time) -> usize {
        let block = at.since(self.begin) / self.schedule.block;
        usize::try_from(block).unwrap_or(BLOCKS).min(BLOCKS - 1)
    }

    fn ran(&mut self, (vcpu, cpu): (VcpuId, CpuId), (from, to): (Time, Time), end: RanEnd) {
        let row = *self.vcpus.entry(vcpu).or_default();
        let moved = row.last_cpu.is_some_and(|last| last != cpu);
        let goes_on = row.lost == Some(from) && !moved;
        if let (false, Some(lost)) = (goes_on, row.lost) {
            self.close_slice(vcpu, lost);
        }
        if let Some(woke) = row.woke.filter(|&woke| woke <= from) {
            let kind = match moved {
                true => SampleKind::WokeAndMigrated,
                false => SampleKind::WokeAndStayed,
            };
            self.add(vcpu, from, from.since(woke), kind);
            self.waits_for(vcpu, cpu, (woke, from));
        } else if let Some(lost) = row.lost.filter(|_| !goes_on) {
            self.add(vcpu, from, from.since(lost), SampleKind::Preempted);
            self.waits_for(vcpu, cpu, (lost, from));
        }
        self.by_vcpus.push((cpu, from, to));
        let (begin, block) = (self.begin, self.schedule.block);
        spread((begin, block), (from, to), &mut self.schedule.total.used);
        if let Some(name) = self.names.get(&vcpu) {
            let blocks = self.schedule.vms.entry(name.clone()).or_default();
            spread((begin, block), (from, to), &mut blocks.used);
        }
        let row = self.vcpus.entry(vcpu).or_default();
        row.woke = row.woke.filter(|&woke| woke > from);
        row.last_cpu = Some(cpu);
        row.slice = row.slice.or(Some(from));
        let has_ended = matches!(end, RanEnd::Blocked | RanEnd::Over);
        row.lost = (!has_ended).then_some(to);
        if has_ended {
            self.close_slice(vcpu, to);
        }
    }

    fn close_slice(&mut self, vcpu: VcpuId, to: Time) {
        let slice = self.vcpus.get_mut(&vcpu).and_then(|row| row.slice.take());
        if let Some(from) = slice {
            self.add(vcpu, to, to.since(from), SampleKind::Slice);
        }
    }

    fn waits_for(&mut self, vcpu: VcpuId, cpu: CpuId, (from, to): (Time, Time)) {
        if from < to && !self.vcpus[&vcpu].has_limit {
            self.waits.push((cpu, from, to));
        }
    }

    fn stop(&mut self, vcpu: VcpuId) {
        let row = self.vcpus.entry(vcpu).or_default();
        let lost = row.lost.take();
        row.woke = None;
        if let Some(lost) = lost {
            self.close_slice(vcpu, lost);
        }
    }
}

impl Sink for ScheduleMeter {
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Woke { at, vcpu } => {
                let row = self.vcpus.entry(vcpu).or_default();
                if row.lost.is_none() {
                    row.woke = row.woke.or(Some(at));
                }
            }
            Record::Blocked { vcpu, .. } | Record::Paused { vcpu, .. } => self.stop(vcpu),
            Record::Left { vcpu, .. } => {
                self.stop(vcpu);
                self.vcpus.remove(&vcpu);
            }
            Record::Ran { vcpu, cpu, from, to, end, .. } => self.ran((vcpu, cpu), (from, to), end),
            Record::Promised { vcpu, exact, .. } => {
                self.vcpus.entry(vcpu).or_default().has_limit = exact;
            }
            Record::OnCpu { cpu, from, to, .. } => self.by_threads.push((cpu, from, to)),
            _ => {}
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.names.insert(named.vcpu, named.domain.clone());
    }

    fn host_thread(&mut self, _: &HostThread) {
        self.has_threads = true;
    }
}

/// Adds to each block the part of the interval from `from` to `to` that lies in the block. The
/// first block begins at `begin`, and each block has the length `block`.
fn spread((begin, block): (Time, Span), (from, to): (Time, Time), row: &mut [Span; BLOCKS]) {
    let end = begin + block * BLOCKS as u64;
    let (mut at, to) = (from.max(begin), to.min(end));
    while at < to {
        let index = at.since(begin) / block;
        let next = (begin + block * (index + 1)).min(to);
        if let Some(sum) = usize::try_from(index).ok().and_then(|index| row.get_mut(index)) {
            *sum += next.since(at);
        }
        at = next;
    }
}
