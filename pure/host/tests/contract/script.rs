//! Random scripts for the contract suite. A step is a kind and two numbers, which are interpreted
//! against the state of the hardware at that step. So every step is legal, and a script can be cut
//! short at any step.

use std::fmt;

use proptest::prelude::*;
use slackline_policy::Topology;
use slackline_units::Time;

use crate::dice::Dice;

/// Host, initial state and steps of one run.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) cpus: usize,
    /// Time of the first report of the hardware.
    pub(crate) start: Time,
    pub(crate) manner: Manner,
    /// Seed for the policy's parameters, the host's topology and the random behaviour of the
    /// hardware.
    pub(crate) seed: u64,
    /// Number of vCPUs in each domain.
    pub(crate) of_a_domain: usize,
    pub(crate) steps: Vec<Step>,
}

impl Script {
    /// Returns the topology of the host, drawn from the seed of the script.
    pub(crate) fn topology(&self) -> Topology {
        // A separate seed, so that the topology does not affect the other draws.
        Dice(!self.seed).topology(self.cpus)
    }
}

/// Precision of the simulated hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Timers expire on time, every order is carried out, and a vCPU on a CPU gets all time of the
    /// CPU.
    Exact,
    /// Timers expire late, some orders are refused, and some CPU time goes to other programs.
    Rough,
}

/// Single step of a script.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    /// Number that selects one of the vCPUs to which the step can apply, modulo the number of such
    /// vCPUs.
    pub(crate) who: u8,
    /// Seed for all other random draws of the step.
    pub(crate) draw: u64,
}

/// Prints a step on one line, to keep a failed script readable.
impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} {} {}", self.kind, self.who, self.draw)
    }
}

/// Event of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A vCPU joins with randomly drawn parameters.
    Join,
    /// A joined vCPU leaves.
    Leave,
    /// The parameters of a vCPU change.
    Change,
    /// A blocked vCPU wakes.
    Wake,
    /// A runnable vCPU blocks, whether it is running or not.
    Block,
    /// A vCPU that occupies a CPU yields the rest of its timeslice.
    Yield,
    /// The hardware will refuse the next orders: zero to three of them, by a random draw. If the
    /// hardware is [`Manner::Exact`], the step refuses nothing and lets time pass.
    Refuse,
    /// A vCPU that the hardware refused to run can run again.
    Allow,
    /// A vCPU sends a hint about its tasks or about I/O.
    Tell,
    /// The clock that aligns periods with a phase is set.
    SetClock,
    /// Time passes, and timers that are due expire.
    Pass,
}

/// Start time of some scripts: a hundred years after time zero.
const CENTURY: Time = Time::from_ns(100 * 365 * 24 * 3_600 * 1_000_000_000);

/// Strategy for scripts that run on hardware of the precision `manner`.
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

/// Strategy that draws exact or rough hardware.
pub(crate) fn any_manner() -> impl Strategy<Value = Manner> {
    prop_oneof![Just(Manner::Exact), Just(Manner::Rough)]
}
