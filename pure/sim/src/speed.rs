//! How fast CPUs are: slower while others work beside them.
//!
//! The threads of a core share what the core can do, and all CPUs share the way to memory. Who is
//! slowed has its CPU time all the same, as every scheduler counts it, and gets less done in it.
//! Speeds change exactly when an occupant comes or goes; what has been done until then is counted
//! in millionths of a nanosecond, and what is no whole nanosecond stays with its vCPU, so that
//! nothing is lost however often speeds change.

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

/// At full speed one nanosecond of work takes one of CPU time.
const FULL: u32 = 1_000_000;

/// The speeds of all CPUs, in millionths of full speed.
pub(crate) struct Speeds {
    /// By how many of its threads are busy, less one: the speed of each of them.
    of_threads: Vec<u32>,
    /// Of all, while more than one CPU is busy.
    bus: u32,
    cores: Vec<CpuSet>,
    /// By CPU: its core.
    core_of: Vec<usize>,
    busy: CpuSet,
    /// By CPU: its speed while it is busy.
    now: Vec<u32>,
    /// By slot: what has been done beyond whole nanoseconds, in millionths of one.
    rests: Vec<u32>,
}

impl Speeds {
    /// None if nobody slows anybody.
    pub(crate) fn new(scenario: &Scenario) -> Option<Speeds> {
        let (host, topology) = (&scenario.host, &scenario.host.topology);
        if host.smt.is_none() && host.bus.is_none() {
            return None;
        }
        let mut cores: Vec<CpuSet> = Vec::new();
        let mut core_of = Vec::with_capacity(host.cpus);
        for cpu in (0..host.cpus).map(CpuId::new) {
            let core = topology.core_of(cpu);
            let known = cores.iter().position(|&other| other == core);
            core_of.push(known.unwrap_or_else(|| {
                cores.push(core);
                cores.len() - 1
            }));
        }
        let threads = cores.iter().map(CpuSet::len).max().unwrap_or(1);
        let smt = host.smt.unwrap_or(FULL);
        let of_threads = std::iter::successors(Some(FULL), |&before| Some(of(before, smt)));
        let vcpus = scenario.domains.iter().map(|domain| domain.vcpus.len()).sum();
        Some(Speeds {
            of_threads: of_threads.take(threads).collect(),
            bus: host.bus.unwrap_or(FULL),
            cores,
            core_of,
            busy: CpuSet::default(),
            now: vec![FULL; host.cpus],
            rests: vec![0; vcpus],
        })
    }

    /// How long so much work takes on a CPU if its speed stays as it is: what is for ever takes for
    /// ever.
    pub(crate) fn time(&self, cpu: CpuId, vcpu: VcpuId, work: Span) -> Span {
        if work == Span::MAX {
            return work;
        }
        let done = u128::from(self.rests[vcpu.slot()]);
        let left = (u128::from(work.ns()) * u128::from(FULL)).saturating_sub(done);
        let time = left.div_ceil(u128::from(self.now[cpu.index()]));
        Span::from_ns(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// What a vCPU has done on a CPU in some time up to now. Records it if that was slowed.
    pub(crate) fn work(
        &mut self,
        (cpu, vcpu): (CpuId, VcpuId),
        (from, to): (Time, Time),
        records: &mut Vec<Record>,
    ) -> Span {
        let (speed, span) = (self.now[cpu.index()], to.since(from));
        if speed == FULL || span.is_zero() {
            return span;
        }
        let rest = &mut self.rests[vcpu.slot()];
        let done = u128::from(span.ns()) * u128::from(speed) + u128::from(*rest);
        let (whole, beyond) = (done / u128::from(FULL), done % u128::from(FULL));
        *rest = u32::try_from(beyond).expect("less than a million");
        let work = Span::from_ns(u64::try_from(whole).expect("no more than the time"));
        records.push(Record::Slowed { vcpu, from, to, work });
        work
    }

    /// A CPU has an occupant now, or has none any more. Returns whose speed that changes, itself
    /// among them.
    pub(crate) fn busy_changed(&mut self, cpu: CpuId, is_busy: bool) -> CpuSet {
        let was_shared = self.bus_is_shared();
        if is_busy {
            self.busy.insert(cpu);
        } else {
            self.busy.remove(cpu);
        }
        let others = if self.bus < FULL && was_shared != self.bus_is_shared() {
            self.busy
        } else {
            self.cores[self.core_of[cpu.index()]].and(&self.busy)
        };
        others.iter().filter(|&cpu| self.now[cpu.index()] != self.speed(cpu)).collect()
    }

    /// The speed of a CPU is from now on what follows from who is busy.
    pub(crate) fn set(&mut self, cpu: CpuId) {
        self.now[cpu.index()] = self.speed(cpu);
    }

    fn bus_is_shared(&self) -> bool {
        self.busy.len() > 1
    }

    fn speed(&self, cpu: CpuId) -> u32 {
        let threads = self.cores[self.core_of[cpu.index()]].and(&self.busy).len();
        let speed = self.of_threads[threads.saturating_sub(1)];
        if self.bus_is_shared() { of(speed, self.bus) } else { speed }
    }
}

/// A part of a speed, rounded down to a millionth: never nothing, or nobody would ever be done.
fn of(speed: u32, part: u32) -> u32 {
    let speed = u64::from(speed) * u64::from(part) / u64::from(FULL);
    u32::try_from(speed).expect("a part is not more than the whole").max(1)
}
