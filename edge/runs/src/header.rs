//! What a trace of a scenario says about itself.

use slackline_scenario::Scenario;
use slackline_trace::{Header, Knowledge, VcpuName};

/// Of a simulation, which knows everything.
#[must_use]
pub fn of_simulation(scenario: &Scenario) -> Header {
    header(scenario, "sim", Knowledge::ALL)
}

/// Of a run on this machine, which sees as much as it can.
#[must_use]
pub fn of_live(scenario: &Scenario, knows: Knowledge) -> Header {
    header(scenario, "live", knows)
}

fn header(scenario: &Scenario, machine: &str, knows: Knowledge) -> Header {
    Header {
        title: scenario.title.clone(),
        machine: machine.into(),
        policy: scenario.policy.to_string(),
        seed: scenario.seed,
        cpus: scenario.host.cpus,
        warmup: scenario.warmup,
        knows,
        scenario: scenario.text.clone(),
        vcpus: scenario.vcpus().map(|(id, name)| VcpuName { id, name }).collect(),
    }
}
