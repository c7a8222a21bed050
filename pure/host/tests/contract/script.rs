//! Random scripts. A step is a kind and two numbers, which are read against the hardware as it is
//! when the step comes: so every step is legal, and a script can be cut short anywhere.

use std::fmt;

use proptest::prelude::*;
use slackline_policy::Topology;
use slackline_units::Time;

use crate::dice::Dice;

/// What happens, from start to end.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) cpus: usize,
    /// When the hardware reports for the first time.
    pub(crate) start: Time,
    pub(crate) manner: Manner,
    /// What the policy's own parameters, the host's topology and the hardware's whims are drawn
    /// from.
    pub(crate) seed: u64,
    /// How many vCPUs are of one domain.
    pub(crate) of_a_domain: usize,
    pub(crate) steps: Vec<Step>,
}

impl Script {
    /// How its CPUs belong together.
    pub(crate) fn topology(&self) -> Topology {
        // From numbers of its own: what else is drawn stays as it is.
        Dice(!self.seed).topology(self.cpus)
    }
}

/// How well the hardware does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Timers ring in time, every order is carried out, all of a CPU's time is the occupant's.
    Exact,
    /// Timers ring late, orders are refused, and some of the time goes elsewhere.
    Rough,
}

/// One step.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    /// Who: the so manyth of those who can.
    pub(crate) who: u8,
    /// What everything else about the step is drawn from.
    pub(crate) draw: u64,
}

/// On one line, so that a script that failed can be read.
impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} {} {}", self.kind, self.who, self.draw)
    }
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody joins, with a share.
    Join,
    /// Somebody leaves.
    Leave,
    /// A share changes.
    Change,
    /// A sleeper wakes.
    Wake,
    /// Somebody awake goes to sleep, whether it is running or not.
    Block,
    /// An occupant gives the rest of its turn away.
    Yield,
    /// The hardware will refuse an order soon.
    Refuse,
    /// Somebody who was refused may be run again.
    Allow,
    /// Somebody tells something about tasks or about I/O.
    Tell,
    /// The clock by which phases are told is set.
    SetClock,
    /// Time passes; what rings meanwhile rings.
    Pass,
}

/// A hundred years after the start.
const CENTURY: Time = Time::from_ns(100 * 365 * 24 * 3_600 * 1_000_000_000);

/// Any script in this manner.
pub(crate) fn script(manner: impl Strategy<Value = Manner>) -> impl Strategy<Value = Script> {
    let kind = prop_oneof![
        4 => Just(Kind::Join),
        1 => Just(Kind::Leave),
        2 => Just(Kind::Change),
        6 => Just(Kind::Wake),
        4 => Just(Kind::Block),
        1 => Just(Kind::Yield),
        1 => Just(Kind::Refuse),
        2 => Just(Kind::Allow),
        2 => Just(Kind::Tell),
        1 => Just(Kind::SetClock),
        8 => Just(Kind::Pass),
    ];
    let step = (kind, any::<u8>(), any::<u64>());
    let step = step.prop_map(|(kind, who, draw)| Step { kind, who, draw });
    let steps = prop::collection::vec(step, 1..120);
    let start = prop_oneof![Just(Time::START), Just(CENTURY)];
    (1..=4_usize, start, manner, any::<u64>(), steps).prop_map(
        |(cpus, start, manner, seed, steps)| {
            let of_a_domain = 1;
            Script { cpus, start, manner, seed, of_a_domain, steps }
        },
    )
}

/// Either manner.
pub(crate) fn any_manner() -> impl Strategy<Value = Manner> {
    prop_oneof![Just(Manner::Exact), Just(Manner::Rough)]
}
