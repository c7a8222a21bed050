//! What a trace of a scenario says about itself.

use slackline_scenario::Scenario;
use slackline_trace::{Header, Knowledge};
use slackline_units::CpuSet;

/// Of a simulation, which knows everything.
#[must_use]
pub fn of_simulation(scenario: &Scenario) -> Header {
    header(scenario, "sim", Knowledge::ALL, scenario.host.topology.levels())
}

/// Of a run on this machine, which sees as much as it can; `levels` is which of its CPUs belong
/// together.
#[must_use]
pub fn of_live(scenario: &Scenario, knows: Knowledge, levels: Vec<Vec<CpuSet>>) -> Header {
    header(scenario, "live", knows, levels)
}

fn header(
    scenario: &Scenario,
    machine: &str,
    knows: Knowledge,
    levels: Vec<Vec<CpuSet>>,
) -> Header {
    Header {
        title: scenario.title.clone(),
        machine: machine.into(),
        policy: scenario.policy.to_string(),
        parameters: scenario.policy.values.to_string(),
        seed: scenario.seed,
        cpus: scenario.host.cpus,
        groups: levels,
        warmup: scenario.warmup,
        knows,
        scenario: scenario.text.clone(),
    }
}
