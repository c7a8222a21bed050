//! Who is split over several CPUs goes from one to the next, and what all that are bound to a CPU,
//! or run a part there, demand of it.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, GridClock, Span, Time, VcpuId};

use super::{Edf, Server};
use crate::admission::demand::Demand;
use crate::admission::dispatch_overhead::Looks;
use crate::admission::subtasks::{InParts, Standing};
use crate::{Moment, Roster};

impl Server {
    /// When the part that it is in must be over, or the period.
    #[inline(always)]
    pub(super) fn due_by(&self) -> Time {
        match &self.in_parts {
            None => self.deadline,
            Some(in_parts) => self.begin_of_period().after(in_parts.now().ends),
        }
    }

    /// The most that it may have now before something changes.
    #[inline(always)]
    pub(super) fn limit(&self) -> Span {
        match &self.in_parts {
            None => self.remaining,
            Some(in_parts) => in_parts.left_of(self.remaining),
        }
    }

    /// All CPUs on which it runs.
    pub(super) fn cpus(&self) -> CpuSet {
        self.in_parts.as_ref().map_or(CpuSet::one(self.cpu), InParts::cpus)
    }

    /// The CPU to ask where it was to run next, which need not be where it ran last.
    pub(super) fn elsewhere(&self) -> CpuSet {
        self.in_parts.as_ref().map_or(CpuSet::NONE, |in_parts| CpuSet::one(in_parts.now().cpu))
    }

    /// When a period began that is not on a grid.
    pub(super) fn begin_of_period(&self) -> Time {
        let since_start = self.deadline.since(Time::START);
        Time::START.after(since_start.left_after(self.periods.reservation.period()))
    }

    /// Where what it does next is to be done.
    fn settle_parts(&mut self) {
        if let Some(in_parts) = &self.in_parts {
            self.cpu = in_parts.now().cpu;
        }
    }

    /// It is in the first part.
    pub(super) fn restart_parts(&mut self) {
        if let Some(in_parts) = &mut self.in_parts {
            in_parts.restart();
            self.settle_parts();
        }
    }

    /// It had so much of its slice.
    pub(super) fn go_on(&mut self, ran: Span) {
        if let Some(in_parts) = &mut self.in_parts {
            in_parts.go_on(ran);
            self.settle_parts();
        }
    }

    /// A part is over at its time, although it did not have all of it.
    pub(super) fn catch_up(&mut self, now: Time) {
        let since_begin = now.since(self.begin_of_period());
        if let Some(in_parts) = &mut self.in_parts {
            in_parts.catch_up(since_begin);
            self.settle_parts();
        }
    }

    /// Where it is in its period, or in the one that has come.
    fn standing(&self, at: Time, clock: &GridClock) -> Standing {
        let is_over = at >= self.deadline;
        let (begins, left, deadline) = if is_over {
            let coming = self.coming(at, clock);
            (coming.begins, coming.slice, coming.deadline)
        } else {
            (self.begin_of_period(), self.if_cut(at), self.deadline)
        };
        let mut in_parts = self.in_parts.clone();
        in_parts.iter_mut().filter(|_| is_over).for_each(InParts::restart);
        // No time for who is awake.
        let slept = at.since(self.asleep_since.max(begins));
        let (share, cpu) = (self.periods.reservation, self.cpu);
        Standing { share, cpu, in_parts, begins, deadline, left, slept }
    }
}

/// What all but one demand of each CPU from now on; none where periods begin on a grid.
pub(super) fn demands(
    servers: &Roster<Server>,
    but: Option<VcpuId>,
    (at, cpus): (&Moment, CpuSet),
    (clock, looks): (&GridClock, Looks),
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

/// Returns the sum of the slices on a CPU by their periods, rounded up to a millionth.
pub(super) fn reserved(servers: &Roster<Server>, cpu: CpuId) -> CpuShare {
    let share = |server: &Server| {
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
    /// Moves somebody who is split to where it belongs now that time has passed or been used.
    /// Returns the CPUs that this concerns.
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
