//! Header of a trace: the facts that hold for the whole run.

use slackline_units::{CpuSet, Span};

use crate::record::Knowledge;

/// Description of the run that a trace records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The title of the scenario.
    pub title: String,
    /// Kind of host: `sim` or `live`.
    pub machine: String,
    /// Policy as written in a scenario: its name and the parameters that differ from the defaults.
    pub policy: String,
    /// All parameters of the policy in written form. Empty if it has none.
    pub parameters: String,
    /// The seed of the run.
    pub seed: u64,
    /// Number of CPUs that were scheduled.
    pub cpus: usize,
    /// CPU topology: groups of CPUs by level, the narrowest level first. Empty if CPUs share
    /// nothing.
    pub groups: Vec<Vec<CpuSet>>,
    /// Dispatch overhead as counted in admission. Zero on a simulated host.
    pub dispatch: Span,
    /// End of the warm-up: metrics count from this time on.
    pub warmup: Span,
    /// Capabilities of the host to observe the run.
    pub knows: Knowledge,
    /// Text of the scenario file, so that the trace is self-contained.
    pub scenario: String,
}
