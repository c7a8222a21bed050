//! Parameters of Credit: one for each rule whose effect is visible.

use slackline_units::Span;

use crate::Field;

/// Versions of the rules: Slackline's own (`exact`) and three of Xen's.
pub(in crate::policies::credit) const VERSIONS: &[&str] =
    &["exact", "xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"];

pub(in crate::policies::credit) const RULES: Field = Field::choice(
    "rules",
    VERSIONS,
    "rules of Slackline's Credit, without known faults, or of a version of Xen",
);
pub(crate) const SLICE: Field = Field::span_within(
    "slice",
    "0ms",
    (Span::ZERO, Span::from_secs(1)),
    "timeslice, at least 100us; 0ms stands for one tick, or three ticks by Xen's rules",
);
pub(crate) const TICK: Field = Field::span_within(
    "tick",
    "10ms",
    (Span::from_us(100), Span::from_secs(1)),
    "time between ticks of a CPU; credit is given at every third tick",
);
pub(crate) const PHASE: Field =
    Field::span("phase", "0ns", "delay of each CPU's ticks after those of the previous CPU");
pub(crate) const ORDER: Field = Field::choice(
    "order",
    &["up", "down"],
    "order of the CPUs for `phase`: by rising number, or by falling number",
);
pub(crate) const OFFSET: Field = Field::span(
    "offset",
    "0ns",
    "delay of the first tick, in addition to one tick after the first vCPU joins",
);
pub(crate) const SAMPLING: Field = Field::choice(
    "sampling",
    &["as-rules", "tick", "exact"],
    "the vCPU that runs at a tick pays for the whole tick, or each vCPU for the time it used",
);
pub(crate) const CREDITS: Field = Field::choice(
    "credits",
    &["as-rules", "ten", "hundred", "exact"],
    "credits that a tick of CPU time costs; grants and caps are rounded up to a whole credit",
);
pub(crate) const BOOST: Field = Field::choice(
    "boost",
    &["as-rules", "off", "tick", "exact"],
    "a vCPU that wakes with credit runs first: never, until a tick, or for a tick of CPU time",
);
pub(crate) const PARK: Field = Field::choice(
    "park",
    &["as-rules", "queue", "pause", "budget"],
    "a vCPU over its cap waits behind the idle vCPU, stops at the next accounting, or at once",
);
pub(crate) const OVER_CAP: Field = Field::choice(
    "over-cap",
    &["as-rules", "debt", "cap"],
    "a vCPU is over its cap with any debt, or with more debt than the cap gives in a period",
);
pub(crate) const FLOOR: Field = Field::choice(
    "floor",
    &["as-rules", "period", "turns"],
    "debt beyond one period is forgiven, or debt beyond n + 1 periods, for n active vCPUs",
);
pub(crate) const LEAVING: Field = Field::choice(
    "leaving",
    &["as-rules", "forfeit", "keep"],
    "credit beyond one period: a vCPU loses all its credit, or a blocked vCPU only the excess",
);
pub(crate) const NEWCOMERS: Field = Field::choice(
    "newcomers",
    &["as-rules", "active", "sampled", "awake"],
    "a new vCPU gets credit at once, from the first tick at which it runs, or while runnable",
);
pub(crate) const ROTATION: Field = Field::choice(
    "rotation",
    &["as-rules", "pass", "turn"],
    "the running vCPU goes to the end of its class at every pass, or after its timeslice",
);
pub(crate) const CHANGES: Field = Field::choice(
    "changes",
    &["as-rules", "tick", "now"],
    "a change of class takes effect at the next tick and pass, or at once",
);
pub(crate) const PLACEMENT: Field = Field::choice(
    "placement",
    &["as-rules", "stay", "tick", "wake"],
    "a better CPU for a vCPU is sought never, at ticks, or at wake-up. In all cases idle CPUs \
     steal vCPUs",
);

pub(in crate::policies::credit) const GANG: Field = Field::choice(
    "gang",
    &["none", "relaxed"],
    "start and stop the vCPUs of VMs with gang = true together",
);

pub(in crate::policies::credit) const SKEW: Field = Field::span_within(
    "skew",
    "500us",
    (Span::from_us(100), Span::from_secs(1)),
    "with gang = \"relaxed\": how long a vCPU runs on while a runnable sibling cannot run",
);

/// All parameters, in the order in which they are shown.
pub(in crate::policies::credit) const FIELDS: &[Field] = &[
    RULES, SLICE, TICK, PHASE, ORDER, OFFSET, SAMPLING, CREDITS, BOOST, PARK, OVER_CAP, FLOOR,
    LEAVING, NEWCOMERS, ROTATION, CHANGES, PLACEMENT, GANG, SKEW,
];
