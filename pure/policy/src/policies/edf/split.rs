//! Migration of split vCPUs from subtask to subtask, and the demand of all vCPUs on a CPU.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, GridClock, Span, Time, VcpuId};

use super::{Edf, EdfServer};
use crate::admission::demand::Demand;
use crate::admission::dispatch_overhead::DispatchOverhead;
use crate::admission::subtasks::{PeriodState, SubtaskCursor};
use crate::{Moment, Roster};

impl EdfServer {
    /// Returns the deadline of the current subtask, or of the period if the vCPU is not split.
    #[inline(always)]
    pub(super) fn due_by(&self) -> Time {
        match &self.in_parts {
            None => self.deadline,
            Some(in_parts) => self.begin_of_period().after(in_parts.now().ends),
        }
    }

    /// Returns the longest timeslice on budget. It lasts until the budget is exhausted or the vCPU
    /// migrates to its next subtask.
    #[inline(always)]
    pub(super) fn limit(&self) -> Span {
        match &self.in_parts {
            None => self.remaining,
            Some(in_parts) => in_parts.left_of(self.remaining),
        }
    }

    /// Returns the CPU to which the vCPU is bound, or the CPUs of all its subtasks.
    pub(super) fn cpus(&self) -> CpuSet {
        self.in_parts.as_ref().map_or(CpuSet::one(self.cpu), SubtaskCursor::cpus)
    }

    /// Returns the CPU of the vCPU's current subtask, which can differ from the CPU that the vCPU
    /// ran on last. Empty if the vCPU is not split.
    pub(super) fn elsewhere(&self) -> CpuSet {
        self.in_parts.as_ref().map_or(CpuSet::NONE, |in_parts| CpuSet::one(in_parts.now().cpu))
    }

    /// Returns the start of the current period of a vCPU without a phase.
    pub(super) fn begin_of_period(&self) -> Time {
        let since_start = self.deadline.since(Time::START);
        Time::START.after(since_start.left_after(self.periods.reservation.period()))
    }

    /// Records that the vCPU is now on the CPU of its current subtask.
    fn settle_parts(&mut self) {
        if let Some(in_parts) = &self.in_parts {
            self.cpu = in_parts.now().cpu;
        }
    }

    /// Goes back to the first subtask at the start of a period.
    pub(super) fn restart_parts(&mut self) {
        if let Some(in_parts) = &mut self.in_parts {
            in_parts.restart();
            self.settle_parts();
        }
    }

    /// Advances through the subtasks by `ran`, an amount of the slice that the vCPU received or
    /// forfeited.
    pub(super) fn go_on(&mut self, ran: Span) {
        if let Some(in_parts) = &mut self.in_parts {
            in_parts.go_on(ran);
            self.settle_parts();
        }
    }

    /// Moves on to the subtask that may run at `now`, even if earlier subtasks are incomplete.
    pub(super) fn catch_up(&mut self, now: Time) {
        let since_begin = now.since(self.begin_of_period());
        if let Some(in_parts) = &mut self.in_parts {
            in_parts.catch_up(since_begin);
            self.settle_parts();
        }
    }

    /// Returns the state of the vCPU in its current period, or in the period that contains `at` if
    /// the current period has ended.
    fn standing(&self, at: Time, clock: &GridClock) -> PeriodState {
        let is_over = at >= self.deadline;
        let (begins, left, deadline) = if is_over {
            let coming = self.coming(at, clock);
            (coming.begins, coming.slice, coming.deadline)
        } else {
            (self.begin_of_period(), self.if_cut(at), self.deadline)
        };
        let mut in_parts = self.in_parts.clone();
        in_parts.iter_mut().filter(|_| is_over).for_each(SubtaskCursor::restart);
        // Zero if the vCPU is runnable.
        let slept = at.since(self.asleep_since.max(begins));
        let (share, cpu) = (self.periods.reservation, self.cpu);
        PeriodState { share, cpu, in_parts, begins, deadline, left, slept }
    }
}

/// Returns the demand of all vCPUs except `but` on each CPU from now on. The entry of a CPU is
/// `None` if a vCPU on it has a phase, or if the CPU is not in `cpus`.
pub(super) fn demands(
    servers: &Roster<EdfServer>,
    but: Option<VcpuId>,
    (at, cpus): (&Moment, CpuSet),
    (clock, looks): (&GridClock, DispatchOverhead),
) -> Vec<Option<Demand>> {
    let is_asked = |index| cpus.contains(CpuId::new(index));
    let mut demands: Vec<_> =
        (0..at.cpus()).map(|index| is_asked(index).then(Demand::default)).collect();
    for server in servers.others(but) {
        if server.periods.phase.is_some() {
            demands[server.cpu.index()] = None;
            continue;
        }
        for (cpu, one) in server.standing(at.now(), clock).demands(at.now(), looks) {
            if let Some(demand) = &mut demands[cpu.index()] {
                demand.add(one);
            }
        }
    }
    demands
}

/// Returns the sum of slice/period of all vCPUs on a CPU, rounded up to a millionth. Of a split
/// vCPU only the subtasks on the CPU count.
pub(super) fn reserved(servers: &Roster<EdfServer>, cpu: CpuId) -> CpuShare {
    let share = |server: &EdfServer| {
        let whole = server.periods.reservation;
        let slice: Span = match &server.in_parts {
            Some(parts) => parts.iter().filter(|one| one.cpu == cpu).map(|one| one.slice).sum(),
            None if server.cpu == cpu => whole.slice(),
            None => Span::ZERO,
        };
        (u128::from(slice.ns()) << 64) / u128::from(whole.period().ns())
    };
    let parts: u128 = servers.iter().map(share).sum();
    let ppm = (parts * 1_000_000).div_ceil(1 << 64);
    CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX))
}

impl Edf {
    /// Moves a split vCPU from CPU `before` to the CPU of its current subtask. Returns the CPUs to
    /// reschedule.
    pub(super) fn follow(&mut self, vcpu: VcpuId, before: CpuId, is_awake: bool) -> CpuSet {
        let server = &mut self.servers[vcpu];
        if server.cpu == before {
            return CpuSet::NONE;
        }
        server.spare_used = server.spare_used.max(self.spare_floor[server.cpu.index()]);
        let cpus = [before, server.cpu].into_iter().collect();
        if is_awake {
            self.enqueue(vcpu);
        }
        cpus
    }
}
