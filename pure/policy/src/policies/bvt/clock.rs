//! What one vCPU has had, and how early its clock is read.

use slackline_units::{CpuId, Pace, Span, Time, VirtualSpan, VirtualTime};

use super::rules::Rules;
use crate::{Field, Values};

pub(super) const WEIGHT: Field =
    Field::weight("weight", "1", "paper: share of CPU time relative to other vCPUs");
pub(super) const WARP: Field = Field::span_within(
    "warp",
    "0ms",
    (Span::ZERO, Span::from_secs(3_600)),
    "paper: how much earlier the clock reads while warped, as CPU time at weight 1",
);
pub(super) const ADVANCE: Field = Field::whole(
    "advance",
    "10",
    (1, u32::MAX as i64),
    "Xen: virtual units per charging unit (mcuadv), an inverse weight",
);
pub(super) const WARPBACK: Field = Field::flag("warpback", "Xen: may warp");
pub(super) const WARPVALUE: Field = Field::whole(
    "warpvalue",
    "0",
    (i32::MIN as i64, i32::MAX as i64),
    "Xen: how much earlier the clock reads while warped, in virtual units",
);
pub(super) const WARPL: Field = Field::span("warpl", "2s", "longest warp; 0ms is unlimited");
pub(super) const WARPU: Field =
    Field::span("warpu", "1s", "pause after the longest warp; 0ms ends warping for good");

/// A vCPU's virtual clock.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Where it runs and stands in line.
    pub(super) cpu: CpuId,
    pub(super) pace: Pace,
    pub(super) actual: VirtualTime,
    /// As it was read when the vCPU was put in line.
    pub(super) effective: VirtualTime,
    /// Not charged yet, or to be charged again.
    pub(super) used: Span,
    pub(super) warping: bool,
    may_warp: bool,
    warp: VirtualSpan,
    /// How long it may warp at a stretch, and how long it must not after that.
    warp_limit: Span,
    warp_pause: Span,
    /// How much of the limit is used up.
    warped: Span,
    asleep_since: Time,
}

/// What a share says besides the limits of a warp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) pace: Pace,
    /// How much earlier the clock is read while it warps.
    pub(super) warp: VirtualSpan,
    pub(super) may_warp: bool,
}

/// What becomes of a warp whose limit is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unwarp {
    /// It pauses until then.
    Until(Time),
    /// It is over for good.
    ForGood,
}

impl Clock {
    pub(super) fn new(share: &Values, parameters: Parameters, cpu: CpuId) -> Clock {
        let Parameters { pace, warp, may_warp } = parameters;
        Clock {
            cpu,
            pace,
            actual: VirtualTime::START,
            effective: VirtualTime::START,
            used: Span::ZERO,
            warping: may_warp,
            may_warp,
            warp,
            warp_limit: share.span(&WARPL),
            warp_pause: share.span(&WARPU),
            warped: Span::ZERO,
            asleep_since: Time::START,
        }
    }

    /// As it is read where it stands at `actual`.
    #[inline]
    pub(super) fn read(&self, rules: &Rules, actual: VirtualTime) -> VirtualTime {
        if self.warping { rules.warped(actual, self.warp) } else { actual }
    }

    /// What was used counts for the limit of a warp. Says if that was the end of it.
    pub(super) fn use_warp(&mut self, now: Time) -> Option<Unwarp> {
        if !self.has_limit() {
            return None;
        }
        self.warped += self.used;
        (self.warped >= self.warp_limit).then(|| self.unwarp(now))
    }

    /// Ends a warp.
    pub(super) fn unwarp(&mut self, now: Time) -> Unwarp {
        self.warping = false;
        if self.warp_pause.is_zero() {
            self.may_warp = false;
            return Unwarp::ForGood;
        }
        Unwarp::Until(now.after(self.warp_pause))
    }

    /// A pause is over.
    pub(super) fn rewarp(&mut self) {
        self.warping = self.may_warp;
        self.warped = Span::ZERO;
    }

    /// How long it may still run until a warp is over, if it warps and that is limited.
    pub(super) fn warp_left(&self) -> Option<Span> {
        self.has_limit().then(|| self.warp_limit.left_after(self.warped))
    }

    fn has_limit(&self) -> bool {
        self.warping && !self.warp_limit.is_zero()
    }

    pub(super) fn block(&mut self, now: Time) {
        self.asleep_since = now;
    }

    /// Awake again, not behind `floor`. Who slept for as long as a pause has paused.
    pub(super) fn wake(&mut self, now: Time, floor: VirtualTime) {
        self.actual = self.actual.max(floor);
        if !self.warp_pause.is_zero() && now.since(self.asleep_since) >= self.warp_pause {
            self.warped = Span::ZERO;
        }
    }
}
