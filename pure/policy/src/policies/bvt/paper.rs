//! Borrowed virtual time as the papers have it.
//!
//! The one with the earliest effective virtual time runs [BVT], and keeps the CPU until it is
//! the context switch allowance C ahead of the next in line: in real time, so C means the same
//! whatever the weights [BVT]. Actual time advances by what was used divided by the weight
//! [BVT]. Who wakes starts from the scheduler virtual time, the earliest actual time of those
//! awake, if its own is earlier [BVT]. A warp is limited by the CPU time that is used in it,
//! and once that is used up must pause for as long as is said [BVT].

use slackline_units::{CpuId, Pace, Span, Time, VcpuId, VirtualSpan, VirtualTime, Weight};

use super::clock::{Clock, Parameters, Unwarp, WARP, WEIGHT};
use super::rules::Rules;
use super::{Bvt, Source};
use crate::{Moment, Values};

/// Duda and Cheriton's rules.
pub(super) struct Paper;

impl Source for Paper {
    fn parameters(share: &Values, _: &Rules) -> Parameters {
        let warp = share.span(&WARP);
        Parameters {
            pace: share.weight(&WEIGHT).into(),
            warp: warp.aged(Weight::ONE.into()),
            may_warp: !warp.is_zero(),
        }
    }

    /// The earliest actual time of those awake, whoever runs among them as it has run by now.
    fn floor(bvt: &Bvt<Paper>, _: Time, cpu: CpuId) -> VirtualTime {
        let line = bvt.line(cpu);
        let Some(current) = line.current else { return line.floor };
        let clock = &bvt.clocks[current];
        let actual = bvt.rules.charged(clock.actual, clock.used, clock.pace);
        let others = bvt.earliest_but(cpu, current);
        others.map_or(actual, |others| others.min(actual)).max(line.floor)
    }

    /// Whoever wakes first must not find the time saved up that the others slept through.
    fn floor_of_idle(floor: VirtualTime, last: VirtualTime) -> VirtualTime {
        floor.max(last)
    }

    fn cut(bvt: &Bvt<Paper>, now: Time, current: VcpuId, lead: VirtualSpan) -> Time {
        bvt.rules.turn_end::<Paper>(now, bvt.clocks[current].pace, lead)
    }

    /// Who has the CPU keeps it for the allowance.
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

    fn alone(_: Time, _: &Rules) -> Time {
        Time::NEVER
    }

    /// A turn ends with the warp.
    fn ends(turn: Time, warp: Time) -> (Time, Time) {
        (turn.min(warp), Time::NEVER)
    }

    fn use_warp(clock: &mut Clock, now: Time) -> Option<Unwarp> {
        clock.use_warp(now)
    }

    fn may_warp_again(bvt: &mut Bvt<Paper>, cpu: CpuId, vcpu: VcpuId) {
        bvt.requeue(cpu, vcpu);
    }

    fn charging_units(lead: VirtualSpan, pace: Pace, unit: Span) -> u64 {
        lead.real(pace) / unit
    }
}
