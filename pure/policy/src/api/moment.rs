//! Current state of the host: time, runnable vCPUs and occupied CPUs. The host owns this state and
//! lends it to the policy.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Time, VcpuId};

/// State of the host at one instant. A policy reads it; only the host changes it.
#[derive(Clone, Debug)]
pub struct Moment {
    now: Time,
    /// States of vCPUs, indexed by slot.
    rows: Vec<VcpuRow>,
    /// Ids of all vCPUs that ever joined, indexed by slot. Stored separately so that `rows`, which
    /// every event reads, stays small.
    ids: Vec<VcpuId>,
    /// Affinity of vCPUs, indexed by slot. A vCPU whose slot is beyond the end of this list may run
    /// on all CPUs.
    allowed: Vec<CpuSet>,
    occupants: Vec<Option<VcpuId>>,
    idle: CpuSet,
}

#[derive(Clone, Copy, Debug)]
struct VcpuRow {
    member: bool,
    awake: bool,
    barred: bool,
    cpu: Option<CpuId>,
    last_cpu: Option<CpuId>,
}

/// Queries about the state of the host, for policies.
impl Moment {
    /// Returns the current time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns true if the vCPU is runnable.
    #[inline]
    #[must_use]
    pub fn is_awake(&self, vcpu: VcpuId) -> bool {
        self.row(vcpu).awake
    }

    /// Returns true if the vCPU has joined and has not left.
    #[inline]
    #[must_use]
    pub fn is_member(&self, vcpu: VcpuId) -> bool {
        self.row(vcpu).member
    }

    /// Returns true if `vcpu` may be picked for `cpu`. It must be runnable, occupy no other CPU,
    /// have an affinity that allows `cpu`, and not be barred by the host.
    #[inline]
    #[must_use]
    pub fn is_eligible(&self, vcpu: VcpuId, cpu: CpuId) -> bool {
        self.row(vcpu).may_run_on(cpu) && self.is_allowed(vcpu, cpu)
    }

    /// Returns true if the affinity of `vcpu` allows `cpu`.
    #[inline]
    #[must_use]
    pub fn is_allowed(&self, vcpu: VcpuId, cpu: CpuId) -> bool {
        self.allowed.get(vcpu.slot()).is_none_or(|allowed| allowed.contains(cpu))
    }

    /// Returns the affinity of `vcpu`: the CPUs that it may run on.
    #[inline]
    #[must_use]
    pub fn allowed(&self, vcpu: VcpuId) -> CpuSet {
        let everywhere = || CpuSet::first_n(self.cpus());
        self.allowed.get(vcpu.slot()).copied().unwrap_or_else(everywhere)
    }

    /// Returns all vCPUs that may be picked for `cpu`, in order of id. Takes time proportional to
    /// the number of vCPUs, so it is for tests and for display, not for the hot path.
    pub fn eligible(&self, cpu: CpuId) -> impl Iterator<Item = VcpuId> {
        let rows = self.rows.iter().zip(&self.ids);
        let may_run = move |row: &VcpuRow, vcpu| row.may_run_on(cpu) && self.is_allowed(vcpu, cpu);
        rows.filter(move |&(row, &vcpu)| may_run(row, vcpu)).map(|(_, &vcpu)| vcpu)
    }

    /// Returns all vCPUs that have joined, in order of id.
    pub fn members(&self) -> impl Iterator<Item = VcpuId> {
        let rows = self.rows.iter().zip(&self.ids);
        rows.filter(|(row, _)| row.member).map(|(_, &vcpu)| vcpu)
    }

    /// Returns the vCPU that occupies `cpu`. `None` if the CPU is idle.
    #[inline]
    #[must_use]
    pub fn occupant(&self, cpu: CpuId) -> Option<VcpuId> {
        self.occupants[cpu.index()]
    }

    /// Returns the CPU that `vcpu` occupies. `None` if it occupies none.
    #[inline]
    #[must_use]
    pub fn cpu_of(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.row(vcpu).cpu
    }

    /// Returns the CPU that `vcpu` occupies or occupied last. `None` if it has not run yet.
    #[inline]
    #[must_use]
    pub fn last_cpu_of(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.row(vcpu).last_cpu
    }

    /// Returns the CPUs that have no occupant.
    #[inline]
    #[must_use]
    pub fn idle(&self) -> CpuSet {
        self.idle
    }

    /// Returns the number of CPUs.
    #[inline]
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.occupants.len()
    }

    #[inline]
    fn row(&self, vcpu: VcpuId) -> &VcpuRow {
        self.rows.get(vcpu.slot()).unwrap_or(&VcpuRow::NOBODY)
    }
}

/// Changes of the state of the host. Only the host makes them.
impl Moment {
    /// Returns the initial state of a host with `cpus` CPUs, all idle, and no vCPU.
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

    /// Sets the current time.
    #[inline]
    pub fn advance(&mut self, now: Time) {
        self.now = now;
    }

    /// Adds a vCPU, which counts as blocked until its first wake.
    pub fn join(&mut self, id: VcpuId) {
        if self.rows.len() <= id.slot() {
            self.rows.resize(id.slot() + 1, VcpuRow::NOBODY);
            // An id in a slot that no vCPU has used is never read.
            self.ids.resize(id.slot() + 1, id);
        }
        self.ids[id.slot()] = id;
        self.rows[id.slot()] = VcpuRow { member: true, ..VcpuRow::NOBODY };
    }

    /// Sets the affinity of a vCPU.
    pub fn allow(&mut self, vcpu: VcpuId, cpus: CpuSet) {
        if self.allowed.len() <= vcpu.slot() {
            self.allowed.resize(vcpu.slot() + 1, CpuSet::first_n(self.cpus()));
        }
        self.allowed[vcpu.slot()] = cpus;
    }

    /// Removes a vCPU. It must not occupy a CPU.
    pub fn leave(&mut self, vcpu: VcpuId) {
        self.rows[vcpu.slot()] = VcpuRow::NOBODY;
        if let Some(allowed) = self.allowed.get_mut(vcpu.slot()) {
            *allowed = CpuSet::first_n(self.occupants.len());
        }
    }

    /// Marks a vCPU as runnable or blocked.
    #[inline]
    pub fn set_awake(&mut self, vcpu: VcpuId, awake: bool) {
        self.row_mut(vcpu).awake = awake;
    }

    /// Makes a vCPU ineligible for all CPUs if `barred` is true, or ends this state. For example,
    /// the host bars a vCPU that the hardware refused to run.
    #[inline]
    pub fn set_barred(&mut self, vcpu: VcpuId, barred: bool) {
        self.row_mut(vcpu).barred = barred;
    }

    /// Gives `cpu` to `vcpu`, which occupies no CPU yet. Returns the previous occupant if it was
    /// another vCPU; the previous occupant then occupies no CPU.
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

    /// Takes a CPU from its occupant, if the CPU has an occupant.
    #[inline]
    pub fn vacate(&mut self, cpu: CpuId) {
        if let Some(before) = self.occupants[cpu.index()].take() {
            self.row_mut(before).cpu = None;
            self.idle.insert(cpu);
        }
    }

    #[inline]
    fn row_mut(&mut self, vcpu: VcpuId) -> &mut VcpuRow {
        let row = &mut self.rows[vcpu.slot()];
        debug_assert!(row.member, "only a joined vCPU changes");
        row
    }
}

impl VcpuRow {
    /// Row of a slot that has no vCPU.
    const NOBODY: VcpuRow =
        VcpuRow { member: false, awake: false, barred: false, cpu: None, last_cpu: None };

    #[inline]
    fn may_run_on(&self, cpu: CpuId) -> bool {
        self.awake && !self.barred && self.cpu.is_none_or(|other| other == cpu)
    }
}
