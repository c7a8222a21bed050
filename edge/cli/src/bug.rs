//! Reporting of a simulation that fails because of a bug.

use std::path::Path;

use slackline_experiments::{Outputs, header};
use slackline_scenario::Scenario;

use crate::args::Keeping;
use crate::outputs::Files;
use crate::problem::Problem;

/// Converts the error of a simulation to a problem. If policy and host have violated their
/// contract, the run is repeated to save its trace. Runs are deterministic, so the repeated run
/// fails too.
pub(crate) fn explain(file: &Path, scenario: &Scenario, error: slackline_sim::RunError) -> Problem {
    let problem = Problem::of_sim(file, scenario, error);
    let Problem::Bug { message, .. } = problem else { return problem };
    let name = format!("slackline-bug-{}.trace", scenario.seed);
    let keeping = Keeping { save: Some(name.clone().into()), ..Keeping::default() };
    let kept = Files::begin(&keeping).ok().and_then(|(files, wanted)| {
        let mut outputs = Outputs::new(&header::of_simulation(scenario), wanted);
        let _ = slackline_sim::run(scenario, &mut outputs);
        files.keep(outputs.finish(), |_, _| Ok(())).ok()
    });
    Problem::Bug { message, kept: kept.map(|_| name.into()) }
}
