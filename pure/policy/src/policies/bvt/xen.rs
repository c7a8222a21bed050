//! Borrowed virtual time as in Xen 2.0 to 3.0.2.
//!
//! - At each pass the vCPU with the earliest effective virtual time runs, even if the next vCPU's
//!   time is only slightly later. The next pass is due when the running vCPU has caught up with the
//!   next vCPU and has then run for the context switch allowance. If no other vCPU is runnable, the
//!   next pass is ten allowances later.
//! - A clock advances by `mcuadv` virtual units per charging unit, an inverse weight.
//! - A vCPU that wakes starts from the scheduler virtual time of the last pass.
//! - A warp is limited by a timer that starts when the vCPU starts to run, so that each timeslice
//!   may use the whole limit. A second timer ends the pause.
//! - Each fault is a parameter.

use slackline_units::{CpuId, Pace, Span, Time, VcpuId, VirtualSpan, VirtualTime};

use super::clock::{ADVANCE, Parameters, VcpuClock, WARPBACK, WARPVALUE, WarpEnd};
use super::rules::BvtRules;
use super::{Bvt, Source};
use crate::{Moment, Values};

/// Number of context switch allowances in the timeslice of a vCPU that is alone.
const ALONE: u64 = 10;

/// Rules of Xen 2.0 to 3.0.2.
pub(super) struct Xen;

impl Source for Xen {
    fn parameters(share: &Values, rules: &BvtRules) -> Parameters {
        let advance = u32::try_from(share.whole(&ADVANCE)).expect("the field limits the number");
        Parameters {
            pace: Pace::new(advance, rules.unit).expect("both fields are positive"),
            warp: VirtualSpan::from_units(share.whole(&WARPVALUE)),
            may_warp: share.flag(&WARPBACK),
        }
    }

    /// Returns the scheduler virtual time of the last pass. If a vCPU wakes at the instant of that
    /// pass, returns the scheduler virtual time of the previous pass.
    fn floor(bvt: &Bvt<Xen>, now: Time, cpu: CpuId) -> VirtualTime {
        let line = bvt.line(cpu);
        if line.pending == now { line.floor_before } else { line.floor }
    }

    fn floor_of_idle(floor: VirtualTime, _: VirtualTime) -> VirtualTime {
        floor
    }

    /// Returns the end of the current timeslice after another vCPU was queued. As in Xen, the time
    /// to catch up counts from the start of the timeslice, although the clock is read as of now.
    fn cut(bvt: &Bvt<Xen>, now: Time, current: VcpuId, lead: VirtualSpan) -> Time {
        let clock = &bvt.clocks[current];
        let line = bvt.line(clock.cpu);
        if lead <= VirtualSpan::ZERO || line.pending == now {
            return now;
        }
        bvt.rules.turn_end::<Xen>(line.since, clock.pace, lead)
    }

    /// Returns the first vCPU in the queue: the running vCPU never keeps the CPU.
    fn choose(
        _: &Bvt<Xen>,
        _: &Moment,
        (_, first): (VirtualTime, VcpuId),
        _: Option<VcpuId>,
    ) -> VcpuId {
        first
    }

    fn alone(now: Time, rules: &BvtRules) -> Time {
        now.after(rules.allowance * ALONE)
    }

    /// Returns the end of the timeslice and the end of the warp. A warp that ends does not end the
    /// timeslice.
    fn ends(turn: Time, warp: Time) -> (Time, Time) {
        (turn, warp)
    }

    /// Does nothing: in Xen a timer limits the warp, however much CPU time the vCPU uses.
    fn use_warp(_: &mut VcpuClock, _: Time) -> Option<WarpEnd> {
        None
    }

    /// Does nothing: in Xen the effective time is updated only when the vCPU runs or wakes.
    fn may_warp_again(_: &mut Bvt<Xen>, _: CpuId, _: VcpuId) {}

    fn charging_units(lead: VirtualSpan, pace: Pace, _: Span) -> u64 {
        let units = lead.units() / i128::from(pace.units());
        u64::try_from(units).expect("clocks are less than 2^64 units apart")
    }
}
