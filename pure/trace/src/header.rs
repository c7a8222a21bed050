//! What a trace says before anything happens.

use slackline_units::{CpuSet, Span};

use crate::record::Knowledge;

/// What a trace is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The title of the scenario.
    pub title: String,
    /// The machine: `sim` or `live`.
    pub machine: String,
    /// The policy, as one would write it in a scenario: its name, and what differs from the
    /// defaults.
    pub policy: String,
    /// All parameters of the policy, as they are written down; empty where it has none.
    pub parameters: String,
    /// The seed of the run.
    pub seed: u64,
    /// How many CPUs were scheduled.
    pub cpus: usize,
    /// Which CPUs belong together: by level, the narrowest first. Empty where each is by itself.
    pub groups: Vec<Vec<CpuSet>>,
    /// What a look at a CPU takes, as far as admission counted it: nothing on a simulated host.
    pub dispatch: Span,
    /// From when on the numbers count.
    pub warmup: Span,
    /// What the machine could see.
    pub knows: Knowledge,
    /// The text of the scenario file, so that a trace explains itself.
    pub scenario: String,
}
