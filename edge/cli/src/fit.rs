//! Command `slackline fit`, which finds the smallest reservation with which a VM meets its
//! deadlines.

mod json;
mod show;
mod simulate;

use std::io::Write as _;
use std::path::Path;

use slackline_experiments::fit::{
    AskedReservation, FitAnswer, FitError, FitQuestion, FitRefusal, MissWitness, NamedTasks,
    RunPhaseError, answer, answer_delay, is_scenario,
};

use crate::fit_args::FitArgs;
use crate::grid::position;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::{input, terminal};

pub(crate) fn fit(args: &FitArgs) -> Result<(), Problem> {
    let places = Places::of(&[
        ("--save", args.save.as_deref()),
        ("--save-scenario", args.save_scenario.as_deref()),
    ])?;
    let answer = match (&args.file, args.share, args.delay) {
        (None, Some(share), Some(delay)) => answer_delay(share, delay, args.reserve()),
        (Some(file), ..) => {
            places.read("the task set", file)?;
            let text = input::text(file)?;
            if is_scenario(&text) {
                return simulate::fit(args, file, &places);
            }
            let given = [
                args.vm.as_ref().map(|vm| ("--vm", vm.clone())),
                args.seeds.map(|seeds| ("--seeds", seeds.to_string())),
            ];
            if let Some((option, value)) = given.into_iter().flatten().next() {
                let file = file.display();
                return Err(Problem::BadOption {
                    message: format!("cannot use {option} {value}: {file} is a task set"),
                    hint: Some(format!("drop {option}, or name a scenario")),
                });
            }
            let tasks = tasks_of(file, &text)?;
            let question = FitQuestion::about(&tasks, asked(args), args.step, args.reserve());
            answer(tasks, question)
        }
        _ => unreachable!("clap requires a file or --delay"),
    };
    let answer = answer.map_err(|error| problem(args, error))?;
    keep_miss(args, answer.miss.as_ref())?;
    if args.json {
        return terminal::print(&format!("{:#}\n", json::answer(&answer)));
    }
    terminal::say(&show::answer(args, &answer))?;
    tell_hint(&answer);
    Ok(())
}

/// Returns the tasks of a file.
fn tasks_of(file: &Path, text: &str) -> Result<NamedTasks, Problem> {
    NamedTasks::read(text).map_err(|error| {
        let (line, column) = position(text, error.at);
        let (message, hint) = (error.message, error.hint);
        Problem::BadAxis { file: file.into(), line, column, message, hint }
    })
}

/// Returns the kind of reservation that the options ask for: the smallest slice, the largest
/// period, or the period with which the largest number of VMs fits.
fn asked(args: &FitArgs) -> AskedReservation {
    match args.share {
        _ if args.most_vms => AskedReservation::MostVms,
        Some(share) => AskedReservation::Period { share },
        None => AskedReservation::Slice { period: args.period },
    }
}

/// Formats the name of an option in a hint.
fn option(name: &str) -> String {
    format!("--{name}")
}

/// Saves the trace and the scenario of the run that misses a deadline, if the user requested them.
fn keep_miss(args: &FitArgs, miss: Option<&MissWitness>) -> Result<(), Problem> {
    let names = [&args.save, &args.save_scenario];
    let Some(name) = names.into_iter().flatten().next() else { return Ok(()) };
    let Some(miss) = miss else {
        return Err(Problem::NotAdmitted {
            message: format!(
                "cannot write {}: no slightly smaller reservation is known to miss a deadline, so \
                 there is no run to save",
                name.display()
            ),
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
    match (error.refusal(&what, (args.share, args.reserve()), option), error) {
        (Some(refusal), _) => refused(refusal),
        (None, FitError::Run(error)) => bug(&error),
        (None, error) => Problem::Bug { message: error.to_string(), kept: None },
    }
}

/// Converts a refusal, by which `fit` explains that a question has no answer, to a problem.
fn refused(refusal: FitRefusal) -> Problem {
    let FitRefusal { message, hint, is_bad_question } = refusal;
    match is_bad_question {
        true => Problem::BadOption { message, hint },
        false => Problem::NotAdmitted { message, hint },
    }
}

/// Prints the hint of an answer, if there is one.
fn tell_hint(answer: &FitAnswer) {
    if let Some(hint) = answer.hint() {
        terminal::tell(&format!("hint:  {hint}\n"));
    }
}
