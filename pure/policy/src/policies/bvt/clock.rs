//! Virtual clock of one vCPU, and its warp.

use slackline_units::{CpuId, Pace, Span, Time, VirtualSpan, VirtualTime};

use super::rules::BvtRules;
use crate::{Field, Values};

pub(super) const WEIGHT: Field =
    Field::weight("weight", "1", "paper's rules: share of CPU time relative to other vCPUs");
pub(super) const WARP: Field = Field::span_within(
    "warp",
    "0ms",
    (Span::ZERO, Span::from_secs(3_600)),
    "paper's rules: how much earlier the clock reads while warped, as CPU time at weight 1",
);
pub(super) const ADVANCE: Field = Field::whole(
    "advance",
    "10",
    (1, u32::MAX as i64),
    "Xen's rules: virtual units per charging unit (mcuadv), an inverse weight",
);
pub(super) const WARPBACK: Field = Field::flag("warpback", "Xen's rules: the vCPU may warp");
pub(super) const WARPVALUE: Field = Field::whole(
    "warpvalue",
    "0",
    (i32::MIN as i64, i32::MAX as i64),
    "Xen's rules: how much earlier the clock reads while warped, in virtual units",
);
pub(super) const WARPL: Field = Field::span("warpl", "2s", "longest warp; 0ms is unlimited");
pub(super) const WARPU: Field =
    Field::span("warpu", "1s", "pause after the longest warp; 0ms ends warping for good");

/// Virtual clock of a vCPU.
#[derive(Clone, Debug)]
pub(super) struct VcpuClock {
    /// CPU on which the vCPU is queued and runs.
    pub(super) cpu: CpuId,
    pub(super) pace: Pace,
    /// Actual virtual time: CPU time charged so far, divided by weight.
    pub(super) actual: VirtualTime,
    /// Effective virtual time of the vCPU when it was last queued.
    pub(super) effective: VirtualTime,
    /// CPU time that is not charged yet. With Xen's fault `charge_again`, also CPU time that will
    /// be charged a second time.
    pub(super) used: Span,
    /// True if the warp is in effect. False during a pause, and after warping has ended for good.
    pub(super) warping: bool,
    /// True if the vCPU may warp at all.
    may_warp: bool,
    /// Amount by which the effective time is earlier than the actual time during a warp.
    warp: VirtualSpan,
    /// Longest warp, in CPU time. Zero means no limit.
    warp_limit: Span,
    /// Pause after the longest warp. Zero ends warping for good.
    warp_pause: Span,
    /// CPU time used in the current warp.
    warped: Span,
    /// Time at which the vCPU last blocked.
    asleep_since: Time,
}

/// Parameters of a vCPU's clock, without the limits of its warp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) pace: Pace,
    /// Amount by which the effective time is earlier than the actual time during a warp.
    pub(super) warp: VirtualSpan,
    pub(super) may_warp: bool,
}

/// Time from which a vCPU whose warp has ended may warp again, if ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarpEnd {
    /// The vCPU may warp again at this time.
    Until(Time),
    /// The vCPU never warps again.
    ForGood,
}

impl VcpuClock {
    pub(super) fn new(share: &Values, parameters: Parameters, cpu: CpuId) -> VcpuClock {
        let Parameters { pace, warp, may_warp } = parameters;
        VcpuClock {
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

    /// Returns the effective time of the vCPU if its actual time is `actual`.
    #[inline]
    pub(super) fn read(&self, rules: &BvtRules, actual: VirtualTime) -> VirtualTime {
        if self.warping { rules.warped(actual, self.warp) } else { actual }
    }

    /// Counts CPU time against the limit of a warp, before that time is charged. If the limit ends
    /// the warp, the result states from which time on the vCPU may warp again.
    pub(super) fn use_warp(&mut self, now: Time) -> Option<WarpEnd> {
        if !self.has_limit() {
            return None;
        }
        self.warped += self.used;
        (self.warped >= self.warp_limit).then(|| self.unwarp(now))
    }

    /// Ends a warp whose limit is used up. The result states from which time on the vCPU may warp
    /// again.
    pub(super) fn unwarp(&mut self, now: Time) -> WarpEnd {
        self.warping = false;
        if self.warp_pause.is_zero() {
            self.may_warp = false;
            return WarpEnd::ForGood;
        }
        WarpEnd::Until(now.after(self.warp_pause))
    }

    /// Ends the pause after a warp, so that the vCPU may warp again.
    pub(super) fn rewarp(&mut self) {
        self.warping = self.may_warp;
        self.warped = Span::ZERO;
    }

    /// Returns the CPU time until the warp ends. `None` if the vCPU does not warp or its warp has
    /// no limit.
    pub(super) fn warp_left(&self) -> Option<Span> {
        self.has_limit().then(|| self.warp_limit.left_after(self.warped))
    }

    /// Returns true if the vCPU warps now and its warp is limited.
    fn has_limit(&self) -> bool {
        self.warping && !self.warp_limit.is_zero()
    }

    pub(super) fn block(&mut self, now: Time) {
        self.asleep_since = now;
    }

    /// Handles a wake: moves the vCPU's actual time up to `floor`. A block that is at least as long
    /// as the pause after a warp renews the whole limit of the warp.
    pub(super) fn wake(&mut self, now: Time, floor: VirtualTime) {
        self.actual = self.actual.max(floor);
        if !self.warp_pause.is_zero() && now.since(self.asleep_since) >= self.warp_pause {
            self.warped = Span::ZERO;
        }
    }
}
