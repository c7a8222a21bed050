//! Parameters that choose the rules of `bvt`, and the known faults of Xen's scheduler by name.

use slackline_units::{Pace, Span, Time, VirtualSpan, VirtualTime};

use super::Source;
use crate::{Field, Values};

pub(super) const RULES: Field = Field::choice(
    "rules",
    &["paper", "xen-2.0", "xen-3.0.2"],
    "rules of the paper, of Xen 2.0 and 3.0.0, or of Xen 3.0.2",
);
pub(super) const ALLOWANCE: Field = Field::span_within(
    "allowance",
    "5ms",
    (Span::from_us(1), Span::from_secs(10)),
    "context switch allowance: how far a vCPU may get ahead of the next vCPU",
);
pub(super) const UNIT: Field = Field::span_within(
    "unit",
    "100us",
    (Span::from_us(1), Span::from_secs(1)),
    "minimum charging unit, to which `advance` and `round_up` refer",
);

const SWITCH: &[&str] = &["as-rules", "on", "off"];

pub(super) const ROUND_UP: Field =
    Field::choice("round_up", SWITCH, "fault: time is charged in whole charging units, rounded up");
pub(super) const UNIT_SLIP: Field = Field::choice(
    "unit_slip",
    SWITCH,
    "fault: the catch-up time is computed in charging units and used as nanoseconds",
);
pub(super) const CHARGE_AGAIN: Field = Field::choice(
    "charge_again",
    SWITCH,
    "fault: if a vCPU is chosen twice in a row, its first run is charged twice",
);
pub(super) const NARROW: Field = Field::choice(
    "narrow",
    SWITCH,
    "fault: clocks wrap at 32 bits; all are moved back when the earliest is nearly full",
);
pub(super) const WARP_UNDERFLOW: Field = Field::choice(
    "warp_underflow",
    SWITCH,
    "fault: a warp larger than the clock reads as a time far in the future",
);

/// Rules in force, read from the policy's parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct BvtRules {
    /// Context switch allowance, in real time.
    pub(super) allowance: Span,
    /// Minimum charging unit of Xen.
    pub(super) unit: Span,
    pub(super) charge_again: bool,
    round_up: bool,
    unit_slip: bool,
    narrow: bool,
    warp_underflow: bool,
}

/// Number of virtual units after which a clock of 32 bits wraps.
const WRAP: i64 = 1 << 32;

/// Clock value from which Xen moves the clocks of a CPU back, in virtual units.
const REBASE_FROM: i128 = 0xf000_0000;
const REBASE_BY: VirtualSpan = VirtualSpan::from_units(0xe000_0000);

impl BvtRules {
    pub(super) fn new(values: &Values) -> BvtRules {
        let rules = values.choice(&RULES);
        let is_xen = rules != "paper";
        let switch = |field, by_rules| match values.choice(field) {
            "on" => true,
            "off" => false,
            _ => by_rules,
        };
        BvtRules {
            allowance: values.span(&ALLOWANCE),
            unit: values.span(&UNIT),
            charge_again: switch(&CHARGE_AGAIN, rules == "xen-3.0.2"),
            round_up: switch(&ROUND_UP, is_xen),
            unit_slip: switch(&UNIT_SLIP, is_xen),
            narrow: switch(&NARROW, is_xen),
            warp_underflow: switch(&WARP_UNDERFLOW, is_xen),
        }
    }

    /// Returns the clock `actual` after `ran` has been charged to it.
    #[inline(always)]
    pub(super) fn charged(&self, actual: VirtualTime, ran: Span, pace: Pace) -> VirtualTime {
        let ran = if self.narrow { Span::from_ns(ran.ns() & u64::from(u32::MAX)) } else { ran };
        let ran = if self.round_up { self.unit * ran.ns().div_ceil(self.unit.ns()) } else { ran };
        self.fit(actual + ran.aged(pace))
    }

    /// Returns the part of `ran` that may be charged now although the run interval goes on. If time
    /// is charged in whole charging units (`round_up`), the result is a whole number of units.
    pub(super) fn part(&self, ran: Span) -> Span {
        if self.round_up { ran - ran % self.unit } else { ran }
    }

    /// Returns the effective time: `actual` minus `warp`.
    #[inline]
    pub(super) fn warped(&self, actual: VirtualTime, warp: VirtualSpan) -> VirtualTime {
        let effective = actual - warp;
        if self.warp_underflow { wrap(effective) } else { effective }
    }

    /// Returns the end of a timeslice that began at `from`. The vCPU runs until its clock has
    /// caught up with the next vCPU, whose clock is ahead by `lead`. It then runs for the context
    /// switch allowance.
    #[inline(always)]
    pub(super) fn turn_end<S: Source>(&self, from: Time, pace: Pace, lead: VirtualSpan) -> Time {
        if lead > VirtualSpan::ZERO {
            return from.after(self.catch_up::<S>(lead, pace)).after(self.allowance);
        }
        from.after(self.allowance.left_after((-lead).real(pace)))
    }

    /// Returns the real time in which a clock at this pace advances by `lead`. With Xen's fault
    /// `unit_slip` the result is too short.
    fn catch_up<S: Source>(&self, lead: VirtualSpan, pace: Pace) -> Span {
        let real = lead.real(pace);
        if !self.unit_slip || real.is_zero() {
            return real;
        }
        Span::from_ns(S::charging_units(lead, pace, self.unit))
    }

    /// Returns true if the clocks of a CPU, which are at least `floor`, must be moved back.
    #[inline]
    pub(super) fn is_full(&self, floor: VirtualTime) -> bool {
        self.narrow && (floor - VirtualTime::START).units() >= REBASE_FROM
    }

    /// Returns a clock after all clocks of its CPU were moved back.
    pub(super) fn rebased(&self, clock: VirtualTime) -> VirtualTime {
        wrap(clock - REBASE_BY)
    }

    /// Truncates a clock to 32 bits if Xen's fault `narrow` is on.
    #[inline]
    fn fit(&self, clock: VirtualTime) -> VirtualTime {
        if self.narrow { wrap(clock) } else { clock }
    }
}

/// Truncates a clock to 32 bits.
fn wrap(clock: VirtualTime) -> VirtualTime {
    let wraps = (clock - VirtualTime::START).units().div_euclid(i128::from(WRAP));
    if wraps == 0 {
        return clock;
    }
    let wraps =
        i64::try_from(wraps).expect("a run interval of 32 bits wraps a clock a few times only");
    clock - VirtualSpan::from_units(wraps.checked_mul(WRAP).expect("a few wraps fit 64 bits"))
}
