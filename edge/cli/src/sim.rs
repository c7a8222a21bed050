//! `slackline sim`: simulates a scenario.

use std::fmt::Write as _;
use std::path::Path;

use slackline_runs::claims::expects_refusal;
use slackline_runs::{Outputs, Simulated, header};
use slackline_scenario::Scenario;

use crate::args::{Keeping, Sim};
use crate::outputs::{Files, tables};
use crate::problem::Problem;
use crate::terminal::{self, Progress};
use crate::{claims, input, json};

pub(crate) fn sim(args: &Sim) -> Result<(), Problem> {
    let places = args.keeping.places()?;
    let mut scenario = input::scenario(&args.file, args.length, &places)?;
    if let Some(policy) = &args.policy {
        scenario = input::under(&args.file, &scenario, policy)?;
    }
    if let Some(seed) = args.seed {
        scenario.seed = seed;
    }
    if expects_refusal(&scenario) {
        return claims::check_refusal(&args.file, &scenario);
    }
    let Simulated { numbers, finished } = simulate(&args.file, &scenario, &args.keeping)?;
    if args.keeping.json {
        terminal::print(&json::numbers("sim", &numbers))?;
    } else {
        let mut text = tables(&numbers);
        for (at, vcpu, error) in &finished.declined {
            let name = scenario.domains[vcpu.domain().number() as usize].vcpu_name(*vcpu);
            let _ = writeln!(text, "declined at {at}: `{name}`: {error}");
        }
        terminal::print(&text)?;
    }
    claims::check(&args.file, &scenario, &[claims::Checked::sim(&numbers.summary)])
}

/// Simulates; what is kept is kept.
fn simulate(file: &Path, scenario: &Scenario, keeping: &Keeping) -> Result<Simulated, Problem> {
    let (files, wanted) = Files::begin(keeping)?;
    let mut progress = Progress::new("simulated", scenario.length);
    let mut tell = |now| progress.at(now);
    let mut outputs = Outputs::new(&header::of_simulation(scenario), wanted, &mut tell);
    match slackline_sim::run(scenario, &mut outputs) {
        Ok(finished) => Ok(Simulated { numbers: files.keep(outputs.finish())?, finished }),
        Err(error) => Err(explain(file, scenario, error)),
    }
}

/// A broken contract is ours to explain: the run is the same every time, so it is made again to
/// keep its trace.
pub(crate) fn explain(file: &Path, scenario: &Scenario, error: slackline_sim::RunError) -> Problem {
    let problem = Problem::of_sim(file, scenario, error);
    let Problem::Bug { message, .. } = problem else { return problem };
    let name = format!("slackline-bug-{}.trace", scenario.seed);
    let keeping = Keeping { save: Some(name.clone().into()), ..Keeping::default() };
    let kept = Files::begin(&keeping).ok().and_then(|(files, wanted)| {
        let mut quietly = |_| ();
        let mut outputs = Outputs::new(&header::of_simulation(scenario), wanted, &mut quietly);
        let _ = slackline_sim::run(scenario, &mut outputs);
        files.keep(outputs.finish()).ok()
    });
    Problem::Bug { message, kept: kept.map(|_| name.into()) }
}
