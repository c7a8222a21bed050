//! Headers of the traces of a scenario.

use slackline_scenario::Scenario;
use slackline_trace::{Header, Knowledge};
use slackline_units::{CpuSet, Span};

/// Returns the header of a simulation, which observes everything.
#[must_use]
pub fn of_simulation(scenario: &Scenario) -> Header {
    header(scenario, "sim", Knowledge::ALL, scenario.host.topology.levels(), Span::ZERO)
}

/// Returns the header of a run on this host, with its capabilities to observe. `levels` has the
/// groups of its CPUs, and `dispatch` is the time of a dispatcher pass.
#[must_use]
pub fn of_live(
    scenario: &Scenario,
    knows: Knowledge,
    levels: Vec<Vec<CpuSet>>,
    dispatch: Span,
) -> Header {
    header(scenario, "live", knows, levels, dispatch)
}

fn header(
    scenario: &Scenario,
    machine: &str,
    knows: Knowledge,
    levels: Vec<Vec<CpuSet>>,
    dispatch: Span,
) -> Header {
    Header {
        title: scenario.title.clone(),
        machine: machine.into(),
        policy: scenario.policy.to_string(),
        parameters: scenario.policy.values.to_string(),
        seed: scenario.seed,
        cpus: scenario.host.cpus,
        groups: levels,
        dispatch,
        warmup: scenario.warmup,
        knows,
        scenario: scenario.text.clone(),
    }
}
