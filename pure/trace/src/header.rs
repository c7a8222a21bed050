//! Header of a trace: facts that hold for the whole run.

use slackline_units::{CpuSet, Span};

use crate::record::Knowledge;

/// Description of the run that a trace records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Title of the scenario.
    pub title: String,
    /// Kind of host: `sim` or `live`.
    pub machine: String,
    /// Policy as written in a scenario: its name and the parameters that differ from the defaults.
    pub policy: String,
    /// All parameters of the policy in text form. Empty if the policy has none.
    pub parameters: String,
    /// Seed of the random numbers of the run.
    pub seed: u64,
    /// Number of CPUs that were scheduled.
    pub cpus: usize,
    /// CPU topology: groups of CPUs by level, the narrowest level first. Empty if CPUs share
    /// nothing.
    pub groups: Vec<Vec<CpuSet>>,
    /// CPU time of a dispatch that admission counts. Zero on a simulated host.
    pub dispatch: Span,
    /// End of the warm-up: metrics count from this time on.
    pub warmup: Span,
    /// Facts about a run that the host can observe.
    pub knows: Knowledge,
    /// Text of the scenario file, so that the trace is self-contained.
    pub scenario: String,
}
