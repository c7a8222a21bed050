//! Header of the trace of a simulation.

use slackline_scenario::Scenario;
use slackline_trace::{Header, Knowledge};
use slackline_units::Span;

/// Returns the header of the trace of a simulation. Its field `knows` says that every kind of event
/// was observed.
#[must_use]
pub fn trace_header(scenario: &Scenario) -> Header {
    Header {
        title: scenario.title.clone(),
        machine: "sim".into(),
        policy: scenario.policy.to_string(),
        parameters: scenario.policy.values.to_string(),
        seed: scenario.seed,
        cpus: scenario.host.cpus,
        groups: scenario.host.topology.levels(),
        dispatch: Span::ZERO,
        warmup: scenario.warmup,
        knows: Knowledge::ALL,
        scenario: scenario.text.clone(),
    }
}
