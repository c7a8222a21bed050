//! Headers of the traces of a scenario.

use slackline_scenario::Scenario;
use slackline_trace::{Header, Knowledge};
use slackline_units::{CpuSet, Span};

pub use slackline_sim::trace_header as of_simulation;

/// Returns the header of a run on this host, with its capabilities to observe. `levels` has the
/// groups of its CPUs, and `dispatch` is the time of a dispatcher pass.
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
