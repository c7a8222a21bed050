//! `slackline sim`: simulates a scenario.

use std::fmt::Write as _;
use std::path::Path;

use slackline_scenario::Scenario;
use slackline_sim::Finished;
use slackline_trace::Knowledge;

use crate::args::{Keeping, Sim};
use crate::outputs::{Numbers, Outputs, header};
use crate::problem::Problem;
use crate::terminal::{self, Progress};
use crate::{claims, input, json};

pub(crate) fn sim(args: &Sim) -> Result<(), Problem> {
    let mut scenario = input::scenario(&args.file, args.length)?;
    if let Some(policy) = &args.policy {
        scenario = input::under(&args.file, &scenario, policy)?;
    }
    if let Some(seed) = args.seed {
        scenario.seed = seed;
    }
    if claims::expects_refusal(&scenario) {
        return claims::check_refusal(&args.file, &scenario);
    }
    let (numbers, outcome) = simulate(&args.file, &scenario, &args.keeping)?;
    if args.keeping.json {
        terminal::print(&json::numbers("sim", &numbers))?;
    } else {
        let mut text = numbers.render();
        for (at, vcpu, error) in &outcome.declined {
            let name = scenario.domains[vcpu.domain().number() as usize].vcpu_name(*vcpu);
            let _ = writeln!(text, "declined at {at}: `{name}`: {error}");
        }
        terminal::print(&text)?;
    }
    claims::check(&args.file, &scenario, &[claims::Checked::sim(&numbers.summary)])
}

/// Simulates; what is kept is kept.
pub(crate) fn simulate(
    file: &Path,
    scenario: &Scenario,
    keeping: &Keeping,
) -> Result<(Numbers, Finished), Problem> {
    let header = header(scenario, "sim", Knowledge::ALL);
    let progress = Progress::new("simulated", scenario.length);
    let mut outputs = Outputs::new(&header, keeping, Some(progress))?;
    match slackline_sim::run(scenario, &mut outputs) {
        Ok(outcome) => Ok((outputs.finish()?, outcome)),
        Err(error) => Err(explain(file, scenario, error)),
    }
}

/// A broken contract is ours to explain: the run is the same every time, so it is made again to
/// keep its trace.
fn explain(file: &Path, scenario: &Scenario, error: slackline_sim::RunError) -> Problem {
    let problem = Problem::of_sim(file, scenario, error);
    let Problem::Bug { message, .. } = problem else { return problem };
    let name = format!("slackline-bug-{}.trace", scenario.seed);
    let keeping = Keeping { save: Some(name.clone().into()), ..Keeping::default() };
    let header = header(scenario, "sim", Knowledge::ALL);
    let kept = Outputs::new(&header, &keeping, None).ok().and_then(|mut outputs| {
        let _ = slackline_sim::run(scenario, &mut outputs);
        outputs.finish().ok()
    });
    Problem::Bug { message, kept: kept.map(|_| name.into()) }
}
