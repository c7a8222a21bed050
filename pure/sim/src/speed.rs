//! Speeds of CPUs. A CPU is slower while other CPUs of the host are busy.
//!
//! The threads of a core share its capacity, and all CPUs share the memory bus. A vCPU on a slow
//! CPU receives its CPU time, as every scheduler counts it, and does less work in that time. Speeds
//! change only when a CPU starts or stops running a vCPU. Work is counted in millionths of a
//! nanosecond, and each vCPU carries fractions of a nanosecond over. So no work is lost, however
//! often speeds change.

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

/// Full speed: one nanosecond of CPU time does one nanosecond of work.
const FULL: u32 = 1_000_000;

/// Current speeds of all CPUs, in millionths of full speed.
pub(crate) struct Speeds {
    /// Speed of each thread of a core. The index is the number of busy threads of that core, minus
    /// one.
    of_threads: Vec<u32>,
    /// Speed factor of every CPU while more than one CPU is busy.
    bus: u32,
    cores: Vec<CpuSet>,
    /// Core of each CPU.
    core_of: Vec<usize>,
    busy: CpuSet,
    /// Speed of each CPU while it is busy.
    now: Vec<u32>,
    /// Work beyond whole nanoseconds, in millionths of a nanosecond, by vCPU slot.
    rests: Vec<u32>,
}

impl Speeds {
    /// Returns the speeds at the start of a run. `None` if CPUs of the scenario do not slow each
    /// other down.
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

    /// Returns the CPU time that an amount of work takes on a CPU if the CPU's speed does not
    /// change. Endless work takes forever.
    pub(crate) fn time(&self, cpu: CpuId, vcpu: VcpuId, work: Span) -> Span {
        if work == Span::MAX {
            return work;
        }
        let done = u128::from(self.rests[vcpu.slot()]);
        let left = (u128::from(work.ns()) * u128::from(FULL)).saturating_sub(done);
        let time = left.div_ceil(u128::from(self.now[cpu.index()]));
        Span::from_ns(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// Returns the work that a vCPU has done on a CPU between two times. If the CPU ran slower than
    /// at full speed, also adds a record `Slowed` with this work.
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
        *rest = u32::try_from(beyond).expect("a remainder is less than a million");
        let work = Span::from_ns(u64::try_from(whole).expect("work is at most the CPU time"));
        records.push(Record::Slowed { vcpu, from, to, work });
        work
    }

    /// Records that a CPU started or stopped running a vCPU. Returns the busy CPUs whose speed
    /// changes. This CPU can be among them.
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

    /// Recomputes the speed of a CPU from the CPUs that are busy now.
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

/// Returns `speed` times `part`, both in millionths, rounded down. Returns at least one, so that
/// work always ends.
fn of(speed: u32, part: u32) -> u32 {
    let speed = u64::from(speed) * u64::from(part) / u64::from(FULL);
    u32::try_from(speed).expect("a part is not more than the whole").max(1)
}
