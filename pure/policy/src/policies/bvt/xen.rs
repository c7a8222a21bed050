//! Borrowed virtual time as Xen 2.0 to 3.0.2 had it.
//!
//! At every pass the one with the earliest effective virtual time runs, also if it gains nothing by
//! that: the allowance only decides when the next pass comes, after as long as the next in line
//! takes to catch up and the allowance on top, or after ten allowances where nobody else is awake.
//! A clock advances by `mcuadv` virtual units for each charging unit, the inverse of a weight. Who
//! wakes starts from the scheduler virtual time of the last pass. A warp's limit is a timer from
//! when its vCPU is put on the CPU, so that each turn may last for all of it; when it rings the
//! warp is over, and a second timer ends the pause. What was a fault is a parameter of its own.

use slackline_units::{CpuId, Pace, Span, Time, VcpuId, VirtualSpan, VirtualTime};

use super::clock::{ADVANCE, Clock, Parameters, Unwarp, WARPBACK, WARPVALUE};
use super::rules::Rules;
use super::{Bvt, Source};
use crate::{Moment, Values};

/// How many allowances a vCPU gets where it is alone.
const ALONE: u64 = 10;

/// Xen's rules.
pub(super) struct Xen;

impl Source for Xen {
    fn parameters(share: &Values, rules: &Rules) -> Parameters {
        let advance = u32::try_from(share.whole(&ADVANCE)).expect("checked as a field");
        Parameters {
            pace: Pace::new(advance, rules.unit).expect("checked as fields"),
            warp: VirtualSpan::from_units(share.whole(&WARPVALUE)),
            may_warp: share.flag(&WARPBACK),
        }
    }

    /// As the last pass left it; for wakes of the instant of a pass, the one before.
    fn floor(bvt: &Bvt<Xen>, now: Time, cpu: CpuId) -> VirtualTime {
        let line = bvt.line(cpu);
        if line.pending == now { line.floor_before } else { line.floor }
    }

    fn floor_of_idle(floor: VirtualTime, _: VirtualTime) -> VirtualTime {
        floor
    }

    /// From the start of the turn, although the clock is read as it is now.
    fn cut(bvt: &Bvt<Xen>, now: Time, current: VcpuId, lead: VirtualSpan) -> Time {
        let clock = &bvt.clocks[current];
        let line = bvt.line(clock.cpu);
        if lead <= VirtualSpan::ZERO || line.pending == now {
            return now;
        }
        bvt.rules.turn_end::<Xen>(line.since, clock.pace, lead)
    }

    /// Nobody keeps a CPU.
    fn choose(
        _: &Bvt<Xen>,
        _: &Moment,
        (_, first): (VirtualTime, VcpuId),
        _: Option<VcpuId>,
    ) -> VcpuId {
        first
    }

    fn alone(now: Time, rules: &Rules) -> Time {
        now.after(rules.allowance * ALONE)
    }

    /// The end of a warp is an alarm, and the turn goes on.
    fn ends(turn: Time, warp: Time) -> (Time, Time) {
        (turn, warp)
    }

    /// A timer limits it.
    fn use_warp(_: &mut Clock, _: Time) -> Option<Unwarp> {
        None
    }

    /// A clock is read anew only when its vCPU runs or wakes.
    fn may_warp_again(_: &mut Bvt<Xen>, _: CpuId, _: VcpuId) {}

    fn charging_units(lead: VirtualSpan, pace: Pace, _: Span) -> u64 {
        let units = lead.units() / i128::from(pace.units());
        u64::try_from(units).expect("clocks are less than 2^64 units apart")
    }
}
