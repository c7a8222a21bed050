//! Which Credit: the rules of four versions, and each rule that is seen from outside by itself.

pub(crate) mod fields;

use slackline_units::Span;

use crate::{Field, Values};

use fields::{
    BOOST, CHANGES, CREDITS, FLOOR, LEAVING, NEWCOMERS, OFFSET, ORDER, OVER_CAP, PARK, PHASE,
    PLACEMENT, ROTATION, SAMPLING, SLICE, TICK, VERSIONS,
};

const LEAST_SLICE: Span = Span::from_us(100);

/// The rules in force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(super) slice: Span,
    pub(super) tick: Span,
    pub(super) clock: Clock,
    pub(super) sampling: Sampling,
    /// Credits a tick; none where a credit is a nanosecond.
    pub(super) credits: Option<i64>,
    /// How long a credit is: in it everything is rounded.
    pub(super) credit: i64,
    /// What a CPU is worth from one accounting to the next, in nanoseconds: as many whole credits
    /// as are given for it.
    pub(super) period: i64,
    pub(super) boost: Boost,
    pub(super) park: Park,
    pub(super) over_cap: OverCap,
    pub(super) floor: Floor,
    pub(super) leaving: Leaving,
    pub(super) newcomers: Newcomers,
    pub(super) rotation: Rotation,
    pub(super) changes: Changes,
    pub(super) placement: Placement,
}

/// When each CPU ticks first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// How much later than a tick after the start.
    offset: Span,
    /// And how much later than the CPU before it.
    phase: Span,
    /// Whether that is the one with the next higher number.
    is_downward: bool,
}

impl Clock {
    fn read(values: &Values) -> Clock {
        Clock {
            offset: values.span(&OFFSET),
            phase: values.span(&PHASE),
            is_downward: values.choice(&ORDER) == "down",
        }
    }

    /// How much later than a tick after the start one of so many CPUs ticks first.
    pub(super) fn first(&self, cpu: usize, cpus: usize) -> Span {
        let before = if self.is_downward { cpus - 1 - cpu } else { cpu };
        self.offset + self.phase * before as u64
    }
}

/// Who pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampling {
    Tick,
    Exact,
}

/// How long waking with credit is worth something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boost {
    Off,
    Tick,
    Exact,
}

/// What holds a vCPU to its cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Park {
    Queue,
    Pause,
    Budget,
}

/// Who is over its cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverCap {
    Debt,
    Cap,
}

/// Which debt is forgiven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Floor {
    Period,
    Turns,
}

/// What becomes of credit that is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    Forfeit,
    Keep,
}

/// From when on a vCPU is given credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newcomers {
    Active,
    Sampled,
    Awake,
}

/// When the next of a class has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    Pass,
    Turn,
}

/// From when on a change of class counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changes {
    Tick,
    Now,
}

/// When a better CPU is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    Stay,
    Tick,
    Wake,
}

impl Rules {
    /// What was said, and for the rest what that version's rules say. They differ as follows
    /// (reference, sections 7, 8 and 15):
    ///
    /// | | exact | 3.0.3 | 2006-10-30 | 3.0.4 |
    /// |---|---|---|---|---|
    /// | credits a tick | exact | 10 | 100 | 100 |
    /// | boost | exact | off | tick | tick |
    /// | park, over-cap | budget | queue, debt | queue, debt | pause, cap |
    /// | newcomers | awake | active | active | sampled |
    /// | placement | wake | stay | stay | tick |
    pub(crate) fn read(values: &Values, version: &str) -> Rules {
        // The column of the table.
        let column = VERSIONS.iter().position(|&of| of == version).expect("a version");
        let word = |field: &Field, by_rules: [&'static str; 4]| match values.choice(field) {
            "as-rules" => by_rules[column],
            said => said,
        };
        let xen = |exact, xen| [exact, xen, xen, xen];
        let tick = values.span(&TICK);
        let credits = credits(word(&CREDITS, ["exact", "ten", "hundred", "hundred"]));
        let (credit, period) = worth(credits, tick);
        Rules {
            slice: slice(values, if column == 0 { tick } else { tick * 3 }),
            tick,
            clock: Clock::read(values),
            sampling: match word(&SAMPLING, xen("exact", "tick")) {
                "tick" => Sampling::Tick,
                _ => Sampling::Exact,
            },
            credits,
            credit,
            period,
            boost: match word(&BOOST, ["exact", "off", "tick", "tick"]) {
                "off" => Boost::Off,
                "tick" => Boost::Tick,
                _ => Boost::Exact,
            },
            park: match word(&PARK, ["budget", "queue", "queue", "pause"]) {
                "queue" => Park::Queue,
                "pause" => Park::Pause,
                _ => Park::Budget,
            },
            over_cap: match word(&OVER_CAP, ["cap", "debt", "debt", "cap"]) {
                "debt" => OverCap::Debt,
                _ => OverCap::Cap,
            },
            floor: match word(&FLOOR, xen("turns", "period")) {
                "period" => Floor::Period,
                _ => Floor::Turns,
            },
            leaving: match word(&LEAVING, xen("keep", "forfeit")) {
                "forfeit" => Leaving::Forfeit,
                _ => Leaving::Keep,
            },
            newcomers: match word(&NEWCOMERS, ["awake", "active", "active", "sampled"]) {
                "active" => Newcomers::Active,
                "sampled" => Newcomers::Sampled,
                _ => Newcomers::Awake,
            },
            rotation: match word(&ROTATION, xen("turn", "pass")) {
                "pass" => Rotation::Pass,
                _ => Rotation::Turn,
            },
            changes: match word(&CHANGES, xen("now", "tick")) {
                "tick" => Changes::Tick,
                _ => Changes::Now,
            },
            placement: match word(&PLACEMENT, ["wake", "stay", "stay", "tick"]) {
                "stay" => Placement::Stay,
                "tick" => Placement::Tick,
                _ => Placement::Wake,
            },
        }
    }

    /// Whether every CPU ticks; otherwise there is only the accounting.
    pub(super) fn needs_ticks(&self) -> bool {
        self.sampling == Sampling::Tick
            || self.boost == Boost::Tick
            || self.changes == Changes::Tick
            || self.placement == Placement::Tick
    }
}

/// Credits a tick.
fn credits(word: &str) -> Option<i64> {
    match word {
        "ten" => Some(10),
        "hundred" => Some(100),
        _ => None,
    }
}

/// How long a credit is, and a period: so many whole credits.
fn worth(credits: Option<i64>, tick: Span) -> (i64, i64) {
    let tick = i64::try_from(tick.ns()).expect("a tick is at most a second");
    let credit = credits.map_or(1, |credits| (tick / credits).max(1));
    (credit, 3 * credits.unwrap_or(tick) * credit)
}

/// How long a turn lasts. Were it a whole period, three that may use 66 % each of two CPUs would
/// not get it: two that run all their room at once leave the third too little of the period.
fn slice(values: &Values, by_rules: Span) -> Span {
    match values.span(&SLICE) {
        Span::ZERO => by_rules,
        said => said.max(LEAST_SLICE),
    }
}
