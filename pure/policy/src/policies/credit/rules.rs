//! Rules of four versions of Credit. Each rule whose effect is visible is a parameter of its own.

pub(crate) mod fields;

use slackline_units::Span;

use crate::{Field, Values};

use fields::{
    BOOST, CHANGES, CREDITS, FLOOR, LEAVING, NEWCOMERS, OFFSET, ORDER, OVER_CAP, PARK, PHASE,
    PLACEMENT, ROTATION, SAMPLING, SLICE, TICK, VERSIONS,
};

const LEAST_SLICE: Span = Span::from_us(100);

/// Rules in force, read from the policy's parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditRules {
    pub(super) slice: Span,
    pub(super) tick: Span,
    pub(super) clock: TickOffsets,
    pub(super) sampling: Sampling,
    /// Credits that one tick of CPU time costs. `None` if a credit is a nanosecond.
    pub(super) credits: Option<i64>,
    /// CPU time that one credit pays for, in nanoseconds. Amounts of credit are whole credits.
    pub(super) credit: i64,
    /// Credit that one CPU gives out in a period of three ticks, in nanoseconds: a whole number of
    /// credits.
    pub(super) period: i64,
    pub(super) boost: Boost,
    pub(super) park: Park,
    pub(super) over_cap: OverCap,
    pub(super) floor: Floor,
    pub(super) leaving: CreditOverflow,
    pub(super) newcomers: CreditStart,
    pub(super) rotation: Rotation,
    pub(super) changes: ClassChange,
    pub(super) placement: Placement,
}

/// Time of the first tick of each CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickOffsets {
    /// Delay of the first CPU's first tick, beyond one tick after the start.
    offset: Span,
    /// Delay of each CPU's first tick after the first tick of the CPU before it.
    phase: Span,
    /// True if the ticks start at the CPU with the highest number and go down. Otherwise they start
    /// at CPU 0 and go up.
    is_downward: bool,
}

impl TickOffsets {
    fn read(values: &Values) -> TickOffsets {
        TickOffsets {
            offset: values.span(&OFFSET),
            phase: values.span(&PHASE),
            is_downward: values.choice(&ORDER) == "down",
        }
    }

    /// Returns the delay of a CPU's first tick on a host with `cpus` CPUs. The delay counts from
    /// one tick after the start.
    pub(super) fn first(&self, cpu: usize, cpus: usize) -> Span {
        let before = if self.is_downward { cpus - 1 - cpu } else { cpu };
        self.offset + self.phase * before as u64
    }
}

/// Rule for charging CPU time. `Tick`: the vCPU that runs at a tick pays for the whole tick.
/// `Exact`: each vCPU pays for the time that it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampling {
    Tick,
    Exact,
}

/// Boost of a vCPU that wakes with credit. `Off`: none. `Tick`: until the next tick that finds the
/// vCPU running. `Exact`: for one tick of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boost {
    Off,
    Tick,
    Exact,
}

/// Enforcement of caps. `Queue`: a vCPU over its cap waits behind Xen's idle vCPU and does not run.
/// `Pause`: the vCPU is stopped at an accounting. `Budget`: the VM has a budget, and its vCPUs stop
/// when the budget is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Park {
    Queue,
    Pause,
    Budget,
}

/// Condition for a vCPU to be over its cap. `Debt`: any debt. `Cap`: a debt of more than the cap
/// allows in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverCap {
    Debt,
    Cap,
}

/// Largest debt that a vCPU keeps; any further debt is forgiven. `Period`: a period's credit.
/// `Turns`: (number of active vCPUs + 1) × a period's credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Floor {
    Period,
    Turns,
}

/// Treatment of a vCPU that has more than a period's credit. `Forfeit`: it loses all credit.
/// `Keep`: it loses the excess, but while runnable only the excess over the bound of [`Floor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CreditOverflow {
    Forfeit,
    Keep,
}

/// Time from which a new vCPU receives credit. `Active`: at once. `Sampled`: from the first tick
/// that finds it running. `Awake`: from its first wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CreditStart {
    Active,
    Sampled,
    Awake,
}

/// Time at which a running vCPU goes behind the other vCPUs of its class. `Pass`: at every pass.
/// `Turn`: when its timeslice is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    Pass,
    Turn,
}

/// Time at which a change of a vCPU's class takes effect. `Tick`: at the next tick. `Now`: at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassChange {
    Tick,
    Now,
}

/// Times at which a better CPU is sought for a vCPU. `Stay`: never. `Tick`: at ticks, for the
/// running vCPU. `Wake`: at wake-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    Stay,
    Tick,
    Wake,
}

impl CreditRules {
    /// Reads the parameters. A parameter with the value `as-rules` follows `version`. The versions
    /// differ as follows (reference on Credit, sections 7, 8 and 15):
    ///
    /// | | exact | 3.0.3 | 2006-10-30 | 3.0.4 |
    /// |---|---|---|---|---|
    /// | credits a tick | exact | 10 | 100 | 100 |
    /// | boost | exact | off | tick | tick |
    /// | park, over-cap | budget | queue, debt | queue, debt | pause, cap |
    /// | newcomers | awake | active | active | sampled |
    /// | placement | wake | stay | stay | tick |
    pub(crate) fn read(values: &Values, version: &str) -> CreditRules {
        // Column of the table above.
        let column =
            VERSIONS.iter().position(|&of| of == version).expect("the version is one of VERSIONS");
        let word = |field: &Field, by_rules: [&'static str; 4]| match values.choice(field) {
            "as-rules" => by_rules[column],
            said => said,
        };
        let xen = |exact, xen| [exact, xen, xen, xen];
        let tick = values.span(&TICK);
        let credits = credits(word(&CREDITS, ["exact", "ten", "hundred", "hundred"]));
        let (credit, period) = worth(credits, tick);
        CreditRules {
            slice: slice(values, if column == 0 { tick } else { tick * 3 }),
            tick,
            clock: TickOffsets::read(values),
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
                "forfeit" => CreditOverflow::Forfeit,
                _ => CreditOverflow::Keep,
            },
            newcomers: match word(&NEWCOMERS, ["awake", "active", "active", "sampled"]) {
                "active" => CreditStart::Active,
                "sampled" => CreditStart::Sampled,
                _ => CreditStart::Awake,
            },
            rotation: match word(&ROTATION, xen("turn", "pass")) {
                "pass" => Rotation::Pass,
                _ => Rotation::Turn,
            },
            changes: match word(&CHANGES, xen("now", "tick")) {
                "tick" => ClassChange::Tick,
                _ => ClassChange::Now,
            },
            placement: match word(&PLACEMENT, ["wake", "stay", "stay", "tick"]) {
                "stay" => Placement::Stay,
                "tick" => Placement::Tick,
                _ => Placement::Wake,
            },
        }
    }

    /// Returns true if the rules need ticks on every CPU. If not, only the accounting has a timer.
    pub(super) fn needs_ticks(&self) -> bool {
        self.sampling == Sampling::Tick
            || self.boost == Boost::Tick
            || self.changes == ClassChange::Tick
            || self.placement == Placement::Tick
    }
}

/// Returns the credits per tick. `None` if a credit is a nanosecond.
fn credits(word: &str) -> Option<i64> {
    match word {
        "ten" => Some(10),
        "hundred" => Some(100),
        _ => None,
    }
}

/// Returns the length of a credit and the credit of one CPU in a period, both in nanoseconds.
fn worth(credits: Option<i64>, tick: Span) -> (i64, i64) {
    let tick = i64::try_from(tick.ns()).expect("a tick is at most a second");
    let credit = credits.map_or(1, |credits| (tick / credits).max(1));
    (credit, 3 * credits.unwrap_or(tick) * credit)
}

/// Returns the length of a timeslice: the parameter if it is set, else `by_rules`. By the exact
/// rules a timeslice is a tick. If a timeslice were a whole period, three vCPUs with caps of 66 %
/// each on two CPUs would not reach their caps. The two vCPUs that run first would leave too little
/// of the period for the third.
fn slice(values: &Values, by_rules: Span) -> Span {
    match values.span(&SLICE) {
        Span::ZERO => by_rules,
        said => said.max(LEAST_SLICE),
    }
}
