//! Command `slackline sim`, which simulates a scenario.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use slackline_experiments::claims::expects_refusal;
use slackline_experiments::{Outputs, SimulationResults, header};
use slackline_scenario::Scenario;
use slackline_terminal::over_runs;
use slackline_units::{Time, VcpuId};

use crate::args::{Keeping, Sim};
use crate::cost::{Cost, CostStart};
use crate::grid::{self, Input};
use crate::outputs::{Files, tables};
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal::{self, Progress};
use crate::{bug, claims, input, json, points, report, seeds};

/// Maximum number of vCPUs for which the completion time of their work is printed.
const MOST_DONE: usize = 10;

pub(crate) fn sim(args: &Sim) -> Result<(), Problem> {
    let places = args.keeping.places()?;
    let mut scenario = match grid::read(&args.file, args.length, &places)? {
        Input::One(scenario) => *scenario,
        Input::Grid(grid) => return points::sim(args, &grid),
    };
    if let Some(policy) = &args.policy {
        scenario = input::under(&args.file, &scenario, policy)?;
    }
    if let Some(seed) = args.seed {
        scenario.seed = seed;
    }
    if expects_refusal(&scenario) {
        return claims::check_refusal(&args.file, &scenario);
    }
    if args.seeds.is_some() {
        args.keeping.is_of_one_run("--seeds")?;
        return over_seeds(args, &scenario);
    }
    let started = CostStart::now();
    let SimulationResults { numbers, finished } = simulate(&args.file, &scenario, &args.keeping)?;
    let cost = args.cost.then(|| Cost::since(started, finished.events));
    // The run was stopped during the warm-up, so nothing was measured.
    let is_empty = |at: Time| at <= Time::START + scenario.warmup;
    if finished.stopped.is_some_and(is_empty) {
        if args.keeping.json {
            terminal::print(&json::nothing())?;
        }
        terminal::tell("note: stopped during the warm-up; nothing was measured\n");
        return Err(Problem::Interrupted);
    }
    if args.keeping.json {
        let end = match finished.stopped {
            Some(_) => json::Completion::Interrupted,
            None => json::Completion::Whole,
        };
        terminal::print(&json::numbers_at_cost("sim", &numbers, cost.as_ref(), end))?;
    } else {
        let mut text = tables(&numbers);
        let name = |vcpu: VcpuId| scenario.domains[vcpu.domain().number() as usize].vcpu_name(vcpu);
        for (at, vcpu) in finished.done.iter().take(MOST_DONE) {
            let _ = writeln!(text, "note: `{}` finished its work at {at}", name(*vcpu));
        }
        if let Some(more @ 1..) = finished.done.len().checked_sub(MOST_DONE) {
            let _ = writeln!(text, "note: {more} more vCPUs finished their work");
        }
        for (at, vcpu, error) in &finished.declined {
            let name = name(*vcpu);
            let _ = writeln!(
                text,
                "note: admission refused a join or change of `{name}` at {at}: {error}"
            );
        }
        if let Some(cost) = cost {
            let _ = writeln!(text, "note: {cost}");
        }
        if let Some(at) = finished.stopped {
            let _ = writeln!(text, "note: stopped at {at}, before the end of the run");
        }
        terminal::say(&text)?;
    }
    if finished.stopped.is_some() {
        return Err(Problem::Interrupted);
    }
    claims::check(&args.file, &scenario, &[claims::CheckedRun::sim(&numbers.summary)])
}

/// Simulates a scenario with several seeds, and prints statistics over all seeds.
fn over_seeds(args: &Sim, scenario: &Scenario) -> Result<(), Problem> {
    let seeds = seeds::seeds(scenario, args.seeds)?;
    let simulated = seeds::simulated(&args.file, std::slice::from_ref(scenario), &seeds)?;
    let runs = simulated.finished().pop().unwrap_or_default();
    let name = scenario.policy.spec.name;
    if args.keeping.json {
        let end = json::Completion::of(&simulated.was_whole());
        terminal::print(&json::cases(&[json::Case::new(name, runs.clone())], &seeds, end))?;
    } else if !runs.is_empty() {
        let title = format!("{}: {}, sim\n\n", scenario.title, scenario.policy);
        let table = over_runs(&[(name, &runs)], terminal::width(), terminal::paint());
        terminal::say(&(title + &table))?;
    }
    terminal::tell(&simulated.missing(&[name.to_string()], &seeds));
    simulated.was_whole()?;
    let checked: Vec<_> = runs.iter().map(claims::CheckedRun::sim).collect();
    claims::check(&args.file, scenario, &checked)
}

/// Simulates a scenario, and writes the requested files.
fn simulate(
    file: &Path,
    scenario: &Scenario,
    keeping: &Keeping,
) -> Result<SimulationResults, Problem> {
    let (files, wanted) = Files::begin(keeping)?;
    let mut progress = Progress::new("simulated", scenario.length);
    let mut outputs = Outputs::new(&header::of_simulation(scenario), wanted);
    let stop = stop_flag()?;
    let finished = slackline_sim::run_while(scenario, &mut outputs, &mut |now| {
        progress.at(now);
        match stop.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    drop(progress);
    match finished {
        Ok(finished) => {
            let checked = (scenario, finished.stopped.is_none());
            let report = |trace: &Path, to: &Path| report::write(trace, to, checked);
            Ok(SimulationResults { numbers: files.keep(outputs.finish(), report)?, finished })
        }
        Err(error) => Err(bug::explain(file, scenario, error)),
    }
}
