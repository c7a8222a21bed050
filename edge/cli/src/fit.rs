//! Command `slackline fit`, which finds the smallest reservation with which a VM meets its
//! deadlines.

mod json;
mod show;
mod simulate;

use std::io::Write as _;
use std::path::Path;

use slackline_experiments::fit::{
    FitAnswer, FitError, FitQuestion, MissWitness, NamedTasks, RunPhaseError, answer, answer_delay,
};
use slackline_fit::search::{Goal, NoFit};
use slackline_units::{CpuShare, Span};

use crate::fit_args::FitArgs;
use crate::grid::position;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::{input, terminal};

/// Step of slices that are found by analysis.
const STEP: Span = Span::from_us(1);

pub(crate) fn fit(args: &FitArgs) -> Result<(), Problem> {
    let places = Places::of(&[
        ("--save", args.save.as_deref()),
        ("--save-scenario", args.save_scenario.as_deref()),
    ])?;
    let answer = match (&args.file, args.share, args.delay) {
        (None, Some(share), Some(delay)) => answer_delay(share, delay, args.reserve),
        (Some(file), ..) => {
            places.read("the task set", file)?;
            let text = input::text(file)?;
            if is_scenario(&text) {
                return simulate::fit(args, file, &text, &places);
            }
            if let Some(vm) = &args.vm {
                return Err(Problem::BadOption {
                    message: format!("cannot use --vm {vm}: {} is a task set", file.display()),
                    hint: Some("drop --vm, or name a scenario".into()),
                });
            }
            let tasks = tasks_of(file, &text)?;
            answer(tasks.clone(), question(args, &tasks))
        }
        _ => unreachable!("clap requires a file or --delay"),
    };
    let answer = answer.map_err(|error| problem(args, error))?;
    keep_miss(args, answer.miss.as_ref())?;
    if args.json {
        return terminal::print(&format!("{:#}\n", json::answer(&answer)));
    }
    terminal::say(&show::answer(args, &answer))?;
    tell_hint(args, &answer);
    Ok(())
}

/// Returns true if a text is a scenario and not a task set.
fn is_scenario(text: &str) -> bool {
    let table = text.parse::<toml::Table>();
    table.is_ok_and(|table| !table.contains_key("task") && table.contains_key("policy"))
}

/// Returns the tasks of a file.
fn tasks_of(file: &Path, text: &str) -> Result<NamedTasks, Problem> {
    NamedTasks::read(text).map_err(|error| {
        let (line, column) = position(text, error.at);
        let (message, hint) = (error.message, error.hint);
        Problem::BadAxis { file: file.into(), line, column, message, hint }
    })
}

fn question(args: &FitArgs, tasks: &NamedTasks) -> FitQuestion {
    let half = Span::from_us(tasks.set.shortest_period() / 2 / Span::from_us(1));
    let goal = match (args.share, args.period) {
        _ if args.most_vms => Goal::Vms { reserve: args.reserve },
        (Some(share), _) => Goal::Period { share },
        (None, Some(period)) => Goal::Slice { period },
        (None, None) => Goal::Slice { period: half.max(STEP) },
    };
    FitQuestion { goal, step: args.step.unwrap_or(STEP), reserve: args.reserve }
}

/// Saves the trace and the scenario of the run that misses a deadline, if the user requested them.
fn keep_miss(args: &FitArgs, miss: Option<&MissWitness>) -> Result<(), Problem> {
    let names = [&args.save, &args.save_scenario];
    let Some(name) = names.into_iter().flatten().next() else { return Ok(()) };
    let Some(miss) = miss else {
        return Err(Problem::NotAdmitted {
            message: format!("cannot write {}: no run that misses a deadline", name.display()),
            hint: Some("use a smaller --step".into()),
        });
    };
    if let Some(name) = &args.save {
        let (file, out) = Pending::new(name)?;
        file.keep(match miss.phase.run(Some(out)) {
            Ok(_) => Ok(()),
            Err(RunPhaseError::Trace(error)) => Err(error),
            Err(error) => return Err(bug(&error)),
        })?;
    }
    if let Some(name) = &args.save_scenario {
        let (file, mut out) = Pending::new(name)?;
        file.keep(out.write_all(miss.phase.text().as_bytes()).and_then(|()| out.flush()))?;
    }
    Ok(())
}

fn bug(error: &RunPhaseError) -> Problem {
    Problem::Bug { message: error.to_string(), kept: None }
}

fn problem(args: &FitArgs, error: FitError) -> Problem {
    let what = args.file.as_ref().map_or("the share".into(), |file| file.display().to_string());
    let percent =
        |share: CpuShare| format!("{} %", slackline_terminal::percent(share.ppm().into()));
    match error {
        FitError::Run(error) => bug(&error),
        FitError::Delay => Problem::BadOption {
            message: "cannot fit the delay: its period is shorter than 1us".into(),
            hint: Some("use a longer --delay, or a larger --share".into()),
        },
        FitError::NoFit { error: error @ NoFit::Step { .. }, .. } => Problem::BadOption {
            message: format!("cannot fit {what}: {error}"),
            hint: Some("use a shorter --step".into()),
        },
        FitError::NoFit { error, least } => {
            let why = match (error, least) {
                (NoFit::WholeCpu(_), None) => "the tasks miss deadlines with a whole CPU".into(),
                (NoFit::Share, None) => "the tasks miss deadlines with a whole CPU".into(),
                (_, Some(least)) => {
                    let given = args.share.map(percent).unwrap_or_default();
                    format!("the tasks need at least {} of a CPU, not {given}", percent(least))
                }
                (error, None) => error.to_string(),
            };
            let hint = match least {
                Some(_) => "use a larger --share",
                None => "move tasks to another vCPU, or give them later deadlines",
            };
            Problem::NotAdmitted {
                message: format!("cannot fit {what}: {why}"),
                hint: Some(hint.into()),
            }
        }
        FitError::OverCapacity { reservation, least } => {
            let capacity = percent(CpuShare::ONE.less(args.reserve));
            let needs = percent(reservation.share());
            let hint = least.map(|least| match least <= CpuShare::ONE.less(args.reserve) {
                true => format!("use a shorter --period; {} can suffice", percent(least)),
                false => format!("use a smaller --reserve; {} is the minimum", percent(least)),
            });
            Problem::NotAdmitted {
                message: format!(
                    "cannot fit {what}: {reservation} is {needs} of a CPU, and a CPU admits \
                     {capacity}"
                ),
                hint,
            }
        }
    }
}

/// Prints a hint if the period of the answer is long for its tasks.
fn tell_hint(args: &FitArgs, answer: &FitAnswer) {
    let (period, shortest) = (answer.fit.reservation.period(), answer.tasks.set.shortest_period());
    if args.delay.is_none() && period > shortest * 2 {
        terminal::tell(&format!(
            "hint:  the period {period} is more than twice the shortest period of a task, \
             {shortest}; a period of {shortest} or less needs a smaller share\n"
        ));
    }
}
