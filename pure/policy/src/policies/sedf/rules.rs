//! Parameters of the policy, and the rules that they select.
//!
//! Xen's scheduler changed over the years and had compile-time options. Each difference is a
//! parameter here. The parameter `rules` sets all other parameters that are left at `as-rules`.

use alloc::vec::Vec;

use slackline_units::{CpuShare, Span};

use crate::admission::placement::Packing;
use crate::balance::fields::{
    BALANCER, BALANCER_SLICE, CLOSE, LEAST_DIFFERENCE, SMT_BELIEVED, TAU,
};
use crate::{Field, FieldError, Values};

const RULES: Field = Field::choice(
    "rules",
    &["best", "xen-3.0.3", "xen-3.0.2", "thesis"],
    "values of all parameters at as-rules: Slackline's, Xen's or the thesis's",
);
const UNBLOCKING: Field = Field::choice(
    "unblocking",
    &[
        AS_RULES,
        "proportional",
        "isochronous",
        "conservative",
        "short-resume",
        "latency-hint",
        "burst",
        "extra-support",
    ],
    "budget of a vCPU that wakes within its period",
);
const SLACK: Field = Field::choice(
    "slack",
    &[AS_RULES, "two-level", "penalty", "weighted", "round-robin", "none"],
    "order in which vCPUs get slack",
);
const COMPENSATION: Field = Field::choice(
    "compensation",
    &[AS_RULES, "in-period", "one-quantum", "whole-loss", "none"],
    "how much slack a vCPU gets for budget that it lost by blocking",
);
const OVERRUN: Field = Field::choice(
    "overrun",
    &[AS_RULES, "carried", "forgiven"],
    "an overrun is deducted from later slices, or forgiven once the vCPU uses slack",
);
const MISSES: Field = Field::choice(
    "misses",
    &[AS_RULES, "repaid", "forgotten"],
    "budget missing at a deadline is delivered later, or forgotten with the next slice",
);
const QUANTUM_CHARGE: Field = Field::choice(
    "quantum-charge",
    &[AS_RULES, "used", "whole"],
    "slack is charged as used, or in whole quanta",
);
const BELOW_QUANTUM: Field = Field::choice(
    "below-quantum",
    &[AS_RULES, "used", "idle"],
    "slack shorter than a quantum before a period begins is used, or left idle",
);
const FIRST_PERIOD: Field = Field::choice(
    "first-period",
    &[AS_RULES, "at-once", "after-a-slice"],
    "the first period of a vCPU begins at its first wake-up, or one slice later",
);
const CATCH_UP: Field = Field::choice(
    "catch-up",
    &[AS_RULES, "whole", "one-period"],
    "a best-effort vCPU whose period ended long ago skips all past periods, or only one",
);
const OLD_RESERVATION: Field = Field::choice(
    "old-reservation",
    &[AS_RULES, "forgotten", "counted"],
    "a slice that a vCPU gave up for an extra-weight is free, or still reserved",
);
const SLACK_SHARE: Field = Field::choice(
    "slack-share",
    &[AS_RULES, "slice", "set-slice", "one"],
    "meaning of extra-weight 0: slice/period; slice/period, but 1 if `weight` is set; or always 1",
);
const ADMISSION: Field = Field::choice(
    "admission",
    &[AS_RULES, "exact", "none"],
    "refuse slices that do not fit on a CPU, or accept all",
);
const RESERVE: Field = Field::share(
    "reserve",
    "0.05cpu",
    CpuShare::ONE,
    "part of each CPU that admission never reserves",
);
const PLACE: Field = Field::choice(
    "place",
    &["spread", "pack", "split"],
    "CPU of a vCPU with a slice: the one with most capacity left, the first that fits, or several",
);
const QUANTUM: Field = Field::span_within(
    "quantum",
    "500us",
    (Span::from_us(10), Span::from_ms(5)),
    "timeslice in slack",
);

const AS_RULES: &str = "as-rules";

pub(super) const FIELDS: &[Field] = &[
    RULES,
    UNBLOCKING,
    SLACK,
    COMPENSATION,
    OVERRUN,
    MISSES,
    QUANTUM_CHARGE,
    BELOW_QUANTUM,
    FIRST_PERIOD,
    CATCH_UP,
    OLD_RESERVATION,
    SLACK_SHARE,
    ADMISSION,
    RESERVE,
    PLACE,
    QUANTUM,
    BALANCER,
    BALANCER_SLICE,
    SMT_BELIEVED,
    TAU,
    CLOSE,
    LEAST_DIFFERENCE,
];

/// Rule that sets the budget of a vCPU that wakes, for its current period. [Diestelhorst §3.2.3]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unblocking {
    /// The larger of two amounts: the budget left had the vCPU run while it was blocked, and slice
    /// × rest of the period / period. Periods do not move.
    Proportional,
    /// Zero: the vCPU waits for its next period. Periods do not move.
    Isochronous,
    /// Zero after a short block: the vCPU waits for its next period. After a long block a new
    /// period begins at once.
    Conservative,
    /// The blocked time counts as used budget. After a long block a new period begins at once.
    ShortResume,
    /// As `Conservative`, but after a long block the first period is only as long as the latency
    /// hint. Each further period is twice as long, up to the full length.
    LatencyHint,
    /// As `ShortResume`, with one exception. If a short block leaves less than a quantum of budget,
    /// the next period is as long as the time between the last two wake-ups.
    Burst,
    /// As `Conservative`, and slack compensates the budget lost by blocking.
    ExtraSupport,
}

/// Distribution of slack, the time that no slice claims. `Penalty`: only to vCPUs that lost or
/// missed budget. `RoundRobin` and `Weighted`: only to vCPUs with `extra`, in turn or by weight.
/// `TwoLevel`: as `Penalty`, and what remains as `Weighted`. [Diestelhorst §3.2.4]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slack {
    None,
    RoundRobin,
    Weighted,
    Penalty,
    TwoLevel,
}

/// Compensation by slack for budget that a vCPU lost by blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compensation {
    /// Exact to the nanosecond, until the end of the period in which the budget was lost.
    InPeriod,
    /// One quantum of slack, whatever the amount of budget lost.
    OneQuantum,
    /// Whole quanta of slack until the lost budget is compensated.
    WholeLoss,
    None,
}

/// Selects the vCPUs without an extra-weight that share slack by slice/period. All other vCPUs
/// without an extra-weight count as extra-weight 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlackShare {
    /// All vCPUs with a slice.
    Slice,
    /// vCPUs whose slice was set explicitly. In Xen, setting a slice removes the extra-weight of 1
    /// that each vCPU is created with, but setting a weight does not. [Xen 3.0, §6.3, §6.9]
    SetSlice,
    /// Slice/period never counts: a vCPU without an extra-weight has extra-weight 1.
    One,
}

/// Rules in force: the values of all parameters, with `as-rules` resolved.
#[derive(Clone, Copy, Debug)]
pub(super) struct SedfRules {
    pub(super) unblocking: Unblocking,
    pub(super) slack: Slack,
    pub(super) compensation: Compensation,
    /// True if overruns are deducted from later slices even if the vCPU used slack in between.
    pub(super) carries_overrun: bool,
    /// True if slack compensates budget that a runnable vCPU missed at a deadline.
    pub(super) repays_misses: bool,
    /// True if a partly used quantum of slack is charged as a whole quantum.
    pub(super) charges_whole_quanta: bool,
    /// True if slack is used even if less than a quantum is left before a period begins. Periods of
    /// best-effort vCPUs, which only create such gaps, are then ignored.
    pub(super) fills_gaps: bool,
    /// True if the first period begins at the first wake, false if one slice later.
    pub(super) begins_at_once: bool,
    /// True if a best-effort vCPU skips all past periods at once, false if it skips one period in
    /// each pass.
    pub(super) catches_up: bool,
    /// True if a slice that was given up for an extra-weight still counts as reserved, as in Xen.
    pub(super) counts_old: bool,
    pub(super) slack_share: SlackShare,
    pub(super) admits_exactly: bool,
    /// Placement of vCPUs with a slice.
    pub(super) packing: Packing,
    /// Upper limit of the sum of slice/period on one CPU.
    pub(super) capacity: CpuShare,
    pub(super) quantum: Span,
}

/// Returns the error if other parameters do not allow the chosen value of `place`, else `None`.
pub(super) fn conflict(values: &Values) -> Option<FieldError> {
    let needs = SedfRules::said(values).place_needs();
    (!needs.is_empty()).then(|| FieldError::Alone(&PLACE, values.choice(&PLACE), needs))
}

impl SedfRules {
    /// Reads the rules. A `place` that other parameters do not allow becomes `spread`.
    pub(super) fn read(values: &Values) -> SedfRules {
        let rules = SedfRules::said(values);
        let is_possible = rules.place_needs().is_empty();
        let packing = if is_possible { rules.packing } else { Packing::Spread };
        SedfRules { packing, ..rules }
    }

    /// Reads the rules as given, even if other parameters do not allow the value of `place`.
    fn said(values: &Values) -> SedfRules {
        let rules = values.choice(&RULES);
        let is_best = rules == "best";
        // Value of the field, or the default of the chosen rules if the field says `as-rules`.
        let word = |field: &Field, best: &'static str, xen: &'static str| match values.choice(field)
        {
            AS_RULES if is_best => best,
            AS_RULES => xen,
            word => word,
        };
        let makes_up = if rules == "xen-3.0.3" { "one-quantum" } else { "whole-loss" };
        let moves_on = if rules == "thesis" { "one-period" } else { "whole" };
        let packing = match values.choice(&PLACE) {
            "pack" => Packing::Pack,
            "split" => Packing::Split,
            _ => Packing::Spread,
        };
        SedfRules {
            unblocking: match word(&UNBLOCKING, "proportional", "extra-support") {
                "proportional" => Unblocking::Proportional,
                "isochronous" => Unblocking::Isochronous,
                "conservative" => Unblocking::Conservative,
                "short-resume" => Unblocking::ShortResume,
                "latency-hint" => Unblocking::LatencyHint,
                "burst" => Unblocking::Burst,
                _ => Unblocking::ExtraSupport,
            },
            slack: match word(&SLACK, "two-level", "two-level") {
                "none" => Slack::None,
                "round-robin" => Slack::RoundRobin,
                "weighted" => Slack::Weighted,
                "penalty" => Slack::Penalty,
                _ => Slack::TwoLevel,
            },
            compensation: match word(&COMPENSATION, "in-period", makes_up) {
                "none" => Compensation::None,
                "one-quantum" => Compensation::OneQuantum,
                "whole-loss" => Compensation::WholeLoss,
                _ => Compensation::InPeriod,
            },
            carries_overrun: word(&OVERRUN, "carried", "forgiven") == "carried",
            repays_misses: word(&MISSES, "repaid", "forgotten") == "repaid",
            charges_whole_quanta: word(&QUANTUM_CHARGE, "used", "whole") == "whole",
            fills_gaps: word(&BELOW_QUANTUM, "used", "idle") == "used",
            begins_at_once: word(&FIRST_PERIOD, "at-once", "after-a-slice") == "at-once",
            catches_up: word(&CATCH_UP, "whole", moves_on) == "whole",
            counts_old: word(&OLD_RESERVATION, "forgotten", "counted") == "counted",
            slack_share: match word(&SLACK_SHARE, "slice", "set-slice") {
                "slice" => SlackShare::Slice,
                "one" => SlackShare::One,
                _ => SlackShare::SetSlice,
            },
            admits_exactly: word(&ADMISSION, "exact", "none") == "exact",
            packing,
            capacity: CpuShare::ONE.less(values.share(&RESERVE)),
            quantum: values.span(&QUANTUM),
        }
    }

    /// Returns the parameter values that `place` needs and that were not given. Packing needs
    /// admission control. Splitting also needs periods that do not move.
    fn place_needs(&self) -> Vec<(&'static Field, &'static str)> {
        let (places, splits) = (self.packing != Packing::Spread, self.packing == Packing::Split);
        let moves = self.unblocking != Unblocking::Proportional;
        let needs = [
            (places && !self.admits_exactly, (&ADMISSION, "exact")),
            (splits && moves, (&UNBLOCKING, "proportional")),
            (splits && !self.begins_at_once, (&FIRST_PERIOD, "at-once")),
        ];
        needs.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, need)| need).collect()
    }

    /// Returns true if each admitted slice is delivered in every period since its admission. This
    /// guarantee needs admission control and periods that never move.
    pub(super) fn keep_promises(&self) -> bool {
        let in_period = matches!(self.compensation, Compensation::InPeriod | Compensation::None);
        let stay = self.unblocking == Unblocking::Proportional && self.begins_at_once;
        stay && self.admits_exactly && in_period
    }

    /// Returns true if the usage of a vCPU in excess of the fluid rate is always known. For this,
    /// periods must not move at wake-ups.
    pub(super) fn keeps_accounts(&self) -> bool {
        self.unblocking == Unblocking::Proportional
    }

    /// Returns true if a slice by weight is fixed for a whole period. Otherwise it changes whenever
    /// weights change.
    pub(super) fn keeps_slices(&self) -> bool {
        self.keeps_accounts() && self.admits_exactly
    }

    /// Returns true if vCPUs that lost budget by blocking come first when there is slack.
    pub(super) fn has_penalty_queue(&self) -> bool {
        matches!(self.slack, Slack::Penalty | Slack::TwoLevel)
    }

    /// Returns true if slack is shared by all vCPUs with `extra`.
    pub(super) fn has_extra_queue(&self) -> bool {
        matches!(self.slack, Slack::RoundRobin | Slack::Weighted | Slack::TwoLevel)
    }
}
