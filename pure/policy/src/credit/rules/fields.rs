//! What can be said of it: each rule that is seen from outside is a field.

use slackline_units::Span;

use crate::Field;

/// Whose Credit there is.
pub(in crate::credit) const VERSIONS: &[&str] =
    &["exact", "xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"];

pub(in crate::credit) const RULES: Field = Field::choice(
    "rules",
    VERSIONS,
    "whose Credit: one without known flaws, or Xen's as it was then",
);
pub(crate) const SLICE: Field = Field::span_within(
    "slice",
    "0ms",
    (Span::ZERO, Span::from_secs(1)),
    "how long a turn lasts, 100us at least; 0ms is a tick, or three by the rules of Xen",
);
pub(crate) const TICK: Field = Field::span_within(
    "tick",
    "10ms",
    (Span::from_us(100), Span::from_secs(1)),
    "how often a CPU ticks; credits are given at every third tick",
);
pub(crate) const PHASE: Field =
    Field::span("phase", "0ns", "how much later each CPU ticks than the one before it");
pub(crate) const ORDER: Field = Field::choice(
    "order",
    &["up", "down"],
    "whether the CPU before one is that of the next lower number or of the next higher",
);
pub(crate) const OFFSET: Field = Field::span(
    "offset",
    "0ns",
    "how much later the first tick comes than a tick after the first vCPU has joined",
);
pub(crate) const SAMPLING: Field = Field::choice(
    "sampling",
    &["as-rules", "tick", "exact"],
    "who runs at a tick pays for all of it, or everybody for what was used",
);
pub(crate) const CREDITS: Field = Field::choice(
    "credits",
    &["as-rules", "ten", "hundred", "exact"],
    "credits a tick; grants and caps are rounded up to a whole one",
);
pub(crate) const BOOST: Field = Field::choice(
    "boost",
    &["as-rules", "off", "tick", "exact"],
    "who wakes with credit goes first: never, until a tick meets it, for one tick of CPU time",
);
pub(crate) const PARK: Field = Field::choice(
    "park",
    &["as-rules", "queue", "pause", "budget"],
    "over its cap: behind idle from the next pass on, stopped at accounting, or at once",
);
pub(crate) const OVER_CAP: Field = Field::choice(
    "over-cap",
    &["as-rules", "debt", "cap"],
    "over its cap is who is in debt at all, or by more than the cap gives in a period",
);
pub(crate) const FLOOR: Field = Field::choice(
    "floor",
    &["as-rules", "period", "turns"],
    "debt is forgiven beyond one period, or beyond one for each active vCPU",
);
pub(crate) const LEAVING: Field = Field::choice(
    "leaving",
    &["as-rules", "forfeit", "keep"],
    "who has more than a period of credit loses it all, or if asleep what is beyond",
);
pub(crate) const NEWCOMERS: Field = Field::choice(
    "newcomers",
    &["as-rules", "active", "sampled", "awake"],
    "who joins is given credit at once, from when a tick meets it, or while awake",
);
pub(crate) const ROTATION: Field = Field::choice(
    "rotation",
    &["as-rules", "pass", "turn"],
    "the occupant goes behind its class at every pass, or once it is owed no more turns",
);
pub(crate) const CHANGES: Field = Field::choice(
    "changes",
    &["as-rules", "tick", "now"],
    "a change of class counts from the next tick and pass on, or at once",
);
pub(crate) const PLACEMENT: Field = Field::choice(
    "placement",
    &["as-rules", "stay", "tick", "wake"],
    "a better CPU is looked for never, at ticks, or when waking; any idle CPU steals",
);

pub(in crate::credit) const GANG: Field = Field::choice(
    "gang",
    &["none", "relaxed"],
    "whether vCPUs of domains with gang = true are started and stopped together",
);

pub(in crate::credit) const SKEW: Field = Field::span_within(
    "skew",
    "500us",
    (Span::from_us(100), Span::from_secs(1)),
    "gang = relaxed: how long one runs on while a sibling that wants to cannot, if others wait",
);

/// All of them, in the order in which they are shown.
pub(in crate::credit) const FIELDS: &[Field] = &[
    RULES, SLICE, TICK, PHASE, ORDER, OFFSET, SAMPLING, CREDITS, BOOST, PARK, OVER_CAP, FLOOR,
    LEAVING, NEWCOMERS, ROTATION, CHANGES, PLACEMENT, GANG, SKEW,
];
