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
    /// CPU time that admission reserves for each dispatch. Zero on a simulated host.
    pub dispatch: Span,
    /// End of the warm-up: metrics count from this time on.
    pub warmup: Span,
    /// Facts that the host can observe about the run.
    pub knows: Knowledge,
    /// Text of the scenario file, so that the trace is self-contained.
    pub scenario: String,
}

impl Header {
    /// Returns the header of a recording: a trace of a host whose vCPUs Slackline observed and did
    /// not schedule. A recording has no seed, no warm-up and no scenario. The times in it are exact
    /// to a few microseconds.
    #[must_use]
    pub fn of_recording(
        title: &str,
        policy: &str,
        cpus: usize,
        groups: Vec<Vec<CpuSet>>,
    ) -> Header {
        Header {
            title: title.into(),
            machine: "live".into(),
            policy: policy.into(),
            parameters: String::new(),
            seed: 0,
            cpus,
            groups,
            dispatch: Span::ZERO,
            warmup: Span::ZERO,
            knows: Knowledge {
                sleep: true,
                stretches: true,
                resolution: Span::from_us(5),
                overhead: false,
            },
            scenario: String::new(),
        }
    }
}
