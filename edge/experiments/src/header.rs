//! Trace headers for runs of a scenario.

use slackline_scenario::Scenario;
use slackline_trace::{Header, Knowledge};
use slackline_units::{CpuSet, Span};

pub use slackline_sim::trace_header as of_simulation;

/// Returns the trace header of a live run on this host. The header states what the host can
/// observe. `levels` are the groups of CPUs in the topology, and `dispatch` is the duration of a
/// dispatcher pass.
#[must_use]
pub fn of_live(
    scenario: &Scenario,
    knows: Knowledge,
    levels: Vec<Vec<CpuSet>>,
    dispatch: Span,
) -> Header {
    let machine = "live".into();
    Header { machine, knows, groups: levels, dispatch, ..of_simulation(scenario) }
}
