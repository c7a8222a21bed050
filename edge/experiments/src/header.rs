//! What a trace of a scenario says about itself.

use slackline_scenario::Scenario;
use slackline_trace::{Header, Knowledge};
use slackline_units::{CpuSet, Span};

/// Of a simulation, which knows everything.
#[must_use]
pub fn of_simulation(scenario: &Scenario) -> Header {
    header(scenario, "sim", Knowledge::ALL, scenario.host.topology.levels(), Span::ZERO)
}

/// Of a run on this machine, which sees as much as it can; `levels` is which of its CPUs belong
/// together, and `dispatch` what a look at one of them takes.
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
