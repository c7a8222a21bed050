//! The instant, who is awake and who is where: kept by the host, lent to the policy.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Time, VcpuId};

/// The host as it is at one instant. A policy reads it; only the host changes it.
#[derive(Clone, Debug)]
pub struct Moment {
    now: Time,
    /// By slot.
    rows: Vec<Row>,
    /// By slot, of those who have ever joined. Apart, so that the rows that every event reads stay
    /// small.
    ids: Vec<VcpuId>,
    /// By slot, of those who may not run everywhere; empty where everybody may.
    allowed: Vec<CpuSet>,
    occupants: Vec<Option<VcpuId>>,
    idle: CpuSet,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    member: bool,
    awake: bool,
    barred: bool,
    cpu: Option<CpuId>,
    last_cpu: Option<CpuId>,
}

/// What a policy may ask.
impl Moment {
    /// The instant.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Whether the vCPU has work.
    #[inline]
    #[must_use]
    pub fn is_awake(&self, vcpu: VcpuId) -> bool {
        self.row(vcpu).awake
    }

    /// Whether the vCPU has joined and not left.
    #[inline]
    #[must_use]
    pub fn is_member(&self, vcpu: VcpuId) -> bool {
        self.row(vcpu).member
    }

    /// Whether `vcpu` may be picked for `cpu`: awake, on no other CPU, allowed there, and not
    /// refused.
    #[inline]
    #[must_use]
    pub fn is_eligible(&self, vcpu: VcpuId, cpu: CpuId) -> bool {
        self.row(vcpu).may_run_on(cpu) && self.is_allowed(vcpu, cpu)
    }

    /// Whether `vcpu` may ever run on `cpu`.
    #[inline]
    #[must_use]
    pub fn is_allowed(&self, vcpu: VcpuId, cpu: CpuId) -> bool {
        self.allowed.get(vcpu.slot()).is_none_or(|allowed| allowed.contains(cpu))
    }

    /// The CPUs on which `vcpu` may run.
    #[inline]
    #[must_use]
    pub fn allowed(&self, vcpu: VcpuId) -> CpuSet {
        let everywhere = || CpuSet::first_n(self.cpus());
        self.allowed.get(vcpu.slot()).copied().unwrap_or_else(everywhere)
    }

    /// Everybody who may be picked for `cpu`, in order of id. Walks all vCPUs: for tests and small
    /// accounts, not for the hot path.
    pub fn eligible(&self, cpu: CpuId) -> impl Iterator<Item = VcpuId> {
        let rows = self.rows.iter().zip(&self.ids);
        let may_run = move |row: &Row, vcpu| row.may_run_on(cpu) && self.is_allowed(vcpu, cpu);
        rows.filter(move |&(row, &vcpu)| may_run(row, vcpu)).map(|(_, &vcpu)| vcpu)
    }

    /// Everybody who has joined, in order of id.
    pub fn members(&self) -> impl Iterator<Item = VcpuId> {
        let rows = self.rows.iter().zip(&self.ids);
        rows.filter(|(row, _)| row.member).map(|(_, &vcpu)| vcpu)
    }

    /// Who has been given `cpu`.
    #[inline]
    #[must_use]
    pub fn occupant(&self, cpu: CpuId) -> Option<VcpuId> {
        self.occupants[cpu.index()]
    }

    /// The CPU that `vcpu` has been given.
    #[inline]
    #[must_use]
    pub fn cpu_of(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.row(vcpu).cpu
    }

    /// The CPU that `vcpu` had last.
    #[inline]
    #[must_use]
    pub fn last_cpu_of(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.row(vcpu).last_cpu
    }

    /// The CPUs that have no occupant.
    #[inline]
    #[must_use]
    pub fn idle(&self) -> CpuSet {
        self.idle
    }

    /// How many CPUs there are.
    #[inline]
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.occupants.len()
    }

    #[inline]
    fn row(&self, vcpu: VcpuId) -> &Row {
        self.rows.get(vcpu.slot()).unwrap_or(&Row::NOBODY)
    }
}

/// What the host does to it.
impl Moment {
    /// The start of a host with `cpus` CPUs, all idle, and no vCPU.
    #[must_use]
    pub fn at_start(cpus: usize) -> Moment {
        Moment {
            now: Time::START,
            rows: Vec::new(),
            ids: Vec::new(),
            allowed: Vec::new(),
            occupants: alloc::vec![None; cpus],
            idle: CpuSet::first_n(cpus),
        }
    }

    /// Time passes.
    #[inline]
    pub fn advance(&mut self, now: Time) {
        self.now = now;
    }

    /// A vCPU appears, asleep.
    pub fn join(&mut self, id: VcpuId) {
        if self.rows.len() <= id.slot() {
            self.rows.resize(id.slot() + 1, Row::NOBODY);
            // What stands in a slot before anybody has joined there is never read.
            self.ids.resize(id.slot() + 1, id);
        }
        self.ids[id.slot()] = id;
        self.rows[id.slot()] = Row { member: true, ..Row::NOBODY };
    }

    /// A vCPU may run on these CPUs only, from now on.
    pub fn allow(&mut self, vcpu: VcpuId, cpus: CpuSet) {
        if self.allowed.len() <= vcpu.slot() {
            self.allowed.resize(vcpu.slot() + 1, CpuSet::first_n(self.cpus()));
        }
        self.allowed[vcpu.slot()] = cpus;
    }

    /// A vCPU disappears; it must have no CPU.
    pub fn leave(&mut self, vcpu: VcpuId) {
        self.rows[vcpu.slot()] = Row::NOBODY;
        if let Some(allowed) = self.allowed.get_mut(vcpu.slot()) {
            *allowed = CpuSet::first_n(self.occupants.len());
        }
    }

    /// A vCPU has work, or has none.
    #[inline]
    pub fn set_awake(&mut self, vcpu: VcpuId, awake: bool) {
        self.row_mut(vcpu).awake = awake;
    }

    /// A vCPU may not be picked, or may again.
    #[inline]
    pub fn set_barred(&mut self, vcpu: VcpuId, barred: bool) {
        self.row_mut(vcpu).barred = barred;
    }

    /// A CPU is given to a vCPU that has none. Returns another one that had it, and has none now.
    #[inline(always)]
    pub fn occupy(&mut self, cpu: CpuId, vcpu: VcpuId) -> Option<VcpuId> {
        let before = self.occupants[cpu.index()].replace(vcpu);
        match before {
            Some(before) => self.row_mut(before).cpu = None,
            None => self.idle.remove(cpu),
        }
        let row = self.row_mut(vcpu);
        row.cpu = Some(cpu);
        row.last_cpu = Some(cpu);
        before.filter(|&before| before != vcpu)
    }

    /// A CPU is taken from whoever had it.
    #[inline]
    pub fn vacate(&mut self, cpu: CpuId) {
        if let Some(before) = self.occupants[cpu.index()].take() {
            self.row_mut(before).cpu = None;
            self.idle.insert(cpu);
        }
    }

    #[inline]
    fn row_mut(&mut self, vcpu: VcpuId) -> &mut Row {
        let row = &mut self.rows[vcpu.slot()];
        debug_assert!(row.member, "only who has joined changes");
        row
    }
}

impl Row {
    /// No vCPU has joined.
    const NOBODY: Row =
        Row { member: false, awake: false, barred: false, cpu: None, last_cpu: None };

    #[inline]
    fn may_run_on(&self, cpu: CpuId) -> bool {
        self.awake && !self.barred && self.cpu.is_none_or(|other| other == cpu)
    }
}
