//! Reservations of each CPU, and the test for a quiescent CPU.

use slackline_units::{CpuId, CpuSet, CpuShare, Periods, Time, VcpuId};

use super::split::demands;
use super::{Edf, EdfServer, owed};
use crate::admission::bookings::{AdmissionRequest, BookedPlacement, Tenant};
use crate::{AdmitError, Moment};

impl Edf {
    /// Reserves capacity for a vCPU. If `tenant` is given, replaces the vCPU's previous
    /// reservation.
    pub(super) fn promise(
        &mut self,
        at: &Moment,
        vcpu: VcpuId,
        tenant: Option<Tenant>,
        periods: Periods,
    ) -> Result<BookedPlacement, AdmitError> {
        let (share, allowed) = (periods.reservation, at.allowed(vcpu));
        let asked = self.promised.asked(at, share, allowed, |cpu| self.rests(at.now(), cpu));
        let how = (&self.clock, self.promised.looks());
        let servers = &self.servers;
        let demands = || demands(servers, Some(vcpu), (at, allowed), how);
        let (on_grid, lent) = (periods.phase.is_some(), self.lent(at, allowed));
        let asked = AdmissionRequest { on_grid, lent: &lent, demands: &demands, ..asked };
        match tenant {
            Some(tenant) => self.promised.replace(tenant, &asked),
            None => self.promised.add(vcpu, &asked),
        }
    }

    /// Returns true if a vCPU that wakes on this CPU forfeits budget. Either a vCPU is split on the
    /// CPU, or one was split there and the CPU has not been quiescent since.
    #[inline(never)]
    pub(super) fn is_strict(&mut self, at: &Moment, cpu: CpuId) -> bool {
        if self.promised.is_left_over(cpu) && self.rests(at.now(), cpu) {
            self.promised.rest(cpu);
        }
        self.promised.strict().contains(cpu)
    }

    /// Returns the CPUs in `cpus` that are quiescent. Empty if quiescence would neither free a
    /// share nor end the demand test on a CPU.
    fn resting(&self, at: &Moment, cpus: CpuSet) -> CpuSet {
        self.promised.resting(cpus, |cpu| self.rests(at.now(), cpu))
    }

    /// Returns true if the CPU is quiescent: no vCPU on it has budget left or will have budget when
    /// it wakes.
    pub(super) fn rests(&self, now: Time, cpu: CpuId) -> bool {
        let claims =
            |server: &EdfServer| server.cpu == cpu && server.claims_to_run(now, &self.clock);
        self.deadlines.is_empty(owed(cpu)) && !self.servers.iter().any(claims)
    }

    /// Frees shares that are still held after vCPUs gave them up, if the CPU is quiescent. Updates
    /// the unreserved share of the CPU. Called after the reservations of the CPU changed.
    pub(super) fn note_promises(&mut self, at: &Moment, cpu: CpuId) {
        let resting = self.resting(at, CpuSet::one(cpu));
        resting.iter().for_each(|cpu| self.promised.rest(cpu));
        self.note_spare_time(at.now(), cpu);
    }

    /// Updates the share of a CPU from which overruns are paid: its unreserved share, minus the
    /// share that is lent.
    pub(super) fn note_spare_time(&mut self, now: Time, cpu: CpuId) {
        let lent = (self.loans.rate(cpu, now) * 1_000_000).div_ceil(1 << 64);
        let lent = CpuShare::from_ppm(u32::try_from(lent).unwrap_or(u32::MAX));
        self.spare_time[cpu.index()].share = self.promised.left(cpu).less(lent);
    }
}
