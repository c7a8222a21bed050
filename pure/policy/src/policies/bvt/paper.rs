//! Borrowed virtual time by the papers' rules.
//!
//! - The vCPU with the earliest effective virtual time runs until it is ahead of the next vCPU by
//!   the context switch allowance C. C is in real time, so C has the same length for all weights
//!   [BVT].
//! - Actual time advances by the CPU time used divided by the weight [BVT].
//! - A vCPU that wakes with an actual time before the scheduler virtual time starts from the
//!   scheduler virtual time [BVT]. Scheduler virtual time is the earliest actual time of the
//!   runnable vCPUs.
//! - A warp ends after a limited amount of CPU time. The vCPU may warp again after a given pause
//!   [BVT].

use slackline_units::{CpuId, Pace, Span, Time, VcpuId, VirtualSpan, VirtualTime, Weight};

use super::clock::{Parameters, VcpuClock, WARP, WEIGHT, WarpEnd};
use super::rules::BvtRules;
use super::{Bvt, Source};
use crate::{Moment, Values};

/// The rules of Duda and Cheriton's paper.
pub(super) struct Paper;

impl Source for Paper {
    fn parameters(share: &Values, _: &BvtRules) -> Parameters {
        let warp = share.span(&WARP);
        Parameters {
            pace: share.weight(&WEIGHT).into(),
            warp: warp.aged(Weight::ONE.into()),
            may_warp: !warp.is_zero(),
        }
    }

    /// Returns the scheduler virtual time: the earliest actual time of the runnable vCPUs of the
    /// CPU, with the running vCPU charged up to now.
    fn floor(bvt: &Bvt<Paper>, _: Time, cpu: CpuId) -> VirtualTime {
        let line = bvt.line(cpu);
        let Some(current) = line.current else { return line.floor };
        let clock = &bvt.clocks[current];
        let actual = bvt.rules.charged(clock.actual, clock.used, clock.pace);
        let others = bvt.earliest_but(cpu, current);
        others.map_or(actual, |others| others.min(actual)).max(line.floor)
    }

    /// Returns the floor of a CPU that becomes idle: the earliest actual virtual time from which a
    /// vCPU that wakes there starts. The floor is not before the actual virtual time of the CPU's
    /// last occupant, so that a vCPU cannot save up time while all vCPUs are blocked.
    fn floor_of_idle(floor: VirtualTime, last: VirtualTime) -> VirtualTime {
        floor.max(last)
    }

    fn cut(bvt: &Bvt<Paper>, now: Time, current: VcpuId, lead: VirtualSpan) -> Time {
        bvt.rules.turn_end::<Paper>(now, bvt.clocks[current].pace, lead)
    }

    /// Returns the first vCPU in the queue, or the running vCPU while its context switch allowance
    /// is not used up.
    fn choose(
        bvt: &Bvt<Paper>,
        at: &Moment,
        (earliest, first): (VirtualTime, VcpuId),
        holder: Option<VcpuId>,
    ) -> VcpuId {
        let keeps = |&holder: &VcpuId| {
            let clock = &bvt.clocks[holder];
            let lead = earliest - clock.effective;
            let end = bvt.rules.turn_end::<Paper>(at.now(), clock.pace, lead);
            end > at.now() && at.is_eligible(holder, clock.cpu)
        };
        holder.filter(|&holder| holder == first || keeps(&holder)).unwrap_or(first)
    }

    fn alone(_: Time, _: &BvtRules) -> Time {
        Time::NEVER
    }

    /// Returns the end of the timeslice, which is the end of the warp if that is earlier.
    fn ends(turn: Time, warp: Time) -> (Time, Time) {
        (turn.min(warp), Time::NEVER)
    }

    fn use_warp(clock: &mut VcpuClock, now: Time) -> Option<WarpEnd> {
        clock.use_warp(now)
    }

    fn may_warp_again(bvt: &mut Bvt<Paper>, cpu: CpuId, vcpu: VcpuId) {
        bvt.requeue(cpu, vcpu);
    }

    fn charging_units(lead: VirtualSpan, pace: Pace, unit: Span) -> u64 {
        lead.real(pace) / unit
    }
}
