//! The instant, who is awake and who is where: kept by the host, lent to the policy.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Time, VcpuId};

/// The host as it is at one instant. A policy reads it; only the host changes it.
#[derive(Clone, Debug)]
pub struct Moment {
    now: Time,
    /// By slot; none where no vCPU has joined.
    rows: Vec<Option<Row>>,
    occupants: Vec<Option<VcpuId>>,
    idle: CpuSet,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    id: VcpuId,
    awake: bool,
    barred: bool,
    cpu: Option<CpuId>,
    last_cpu: Option<CpuId>,
}

/// What a policy may ask.
impl Moment {
    /// The instant.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Whether the vCPU has work.
    #[must_use]
    pub fn is_awake(&self, vcpu: VcpuId) -> bool {
        self.row(vcpu).is_some_and(|row| row.awake)
    }

    /// Whether the vCPU has joined and not left.
    #[must_use]
    pub fn is_member(&self, vcpu: VcpuId) -> bool {
        self.row(vcpu).is_some()
    }

    /// Whether `vcpu` may be picked for `cpu`: awake, on no other CPU, and not refused there.
    #[must_use]
    pub fn is_eligible(&self, vcpu: VcpuId, cpu: CpuId) -> bool {
        self.row(vcpu).is_some_and(|row| row.may_run_on(cpu))
    }

    /// Everybody who may be picked for `cpu`, in order of id. Walks all vCPUs: for tests and small
    /// accounts, not for the hot path.
    pub fn eligible(&self, cpu: CpuId) -> impl Iterator<Item = VcpuId> {
        self.rows.iter().flatten().filter(move |row| row.may_run_on(cpu)).map(|row| row.id)
    }

    /// Everybody who has joined, in order of id.
    pub fn members(&self) -> impl Iterator<Item = VcpuId> {
        self.rows.iter().flatten().map(|row| row.id)
    }

    /// Who has been given `cpu`.
    #[must_use]
    pub fn occupant(&self, cpu: CpuId) -> Option<VcpuId> {
        self.occupants[cpu.index()]
    }

    /// The CPU that `vcpu` has been given.
    #[must_use]
    pub fn cpu_of(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.row(vcpu).and_then(|row| row.cpu)
    }

    /// The CPU that `vcpu` had last.
    #[must_use]
    pub fn last_cpu_of(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.row(vcpu).and_then(|row| row.last_cpu)
    }

    /// The CPUs that have no occupant.
    #[must_use]
    pub fn idle(&self) -> CpuSet {
        self.idle
    }

    /// How many CPUs there are.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.occupants.len()
    }

    fn row(&self, vcpu: VcpuId) -> Option<&Row> {
        self.rows.get(vcpu.slot())?.as_ref()
    }
}

/// What the host does to it.
impl Moment {
    /// The start of a host with `cpus` CPUs, all idle, and no vCPU.
    #[must_use]
    pub fn at_start(cpus: usize) -> Moment {
        let idle = CpuSet::first_n(cpus);
        Moment { now: Time::START, rows: Vec::new(), occupants: alloc::vec![None; cpus], idle }
    }

    /// Time passes.
    pub fn advance(&mut self, now: Time) {
        self.now = now;
    }

    /// A vCPU appears, asleep.
    pub fn join(&mut self, id: VcpuId) {
        if self.rows.len() <= id.slot() {
            self.rows.resize(id.slot() + 1, None);
        }
        let row = Row { id, awake: false, barred: false, cpu: None, last_cpu: None };
        self.rows[id.slot()] = Some(row);
    }

    /// A vCPU disappears; it must have no CPU.
    pub fn leave(&mut self, vcpu: VcpuId) {
        self.rows[vcpu.slot()] = None;
    }

    /// A vCPU has work, or has none.
    pub fn set_awake(&mut self, vcpu: VcpuId, awake: bool) {
        self.row_mut(vcpu).awake = awake;
    }

    /// A vCPU may not be picked, or may again.
    pub fn set_barred(&mut self, vcpu: VcpuId, barred: bool) {
        self.row_mut(vcpu).barred = barred;
    }

    /// A CPU is given to a vCPU that has none; the one that had it goes without.
    pub fn occupy(&mut self, cpu: CpuId, vcpu: VcpuId) {
        self.vacate(cpu);
        self.occupants[cpu.index()] = Some(vcpu);
        self.idle.remove(cpu);
        let row = self.row_mut(vcpu);
        row.cpu = Some(cpu);
        row.last_cpu = Some(cpu);
    }

    /// A CPU is taken from whoever had it.
    pub fn vacate(&mut self, cpu: CpuId) {
        if let Some(before) = self.occupants[cpu.index()].take() {
            self.row_mut(before).cpu = None;
            self.idle.insert(cpu);
        }
    }

    fn row_mut(&mut self, vcpu: VcpuId) -> &mut Row {
        self.rows[vcpu.slot()].as_mut().expect("a vCPU that has joined")
    }
}

impl Row {
    fn may_run_on(&self, cpu: CpuId) -> bool {
        self.awake && !self.barred && self.cpu.is_none_or(|other| other == cpu)
    }
}
