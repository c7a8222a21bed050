//! Answers of `slackline fit` as text.

use std::fmt::Write as _;

use slackline_experiments::fit::{DeadlineMiss, FitAnswer, PeriodRow};
use slackline_fit::search::TriedPeriods;
use slackline_fit::{Proof, TaskScheduler};
use slackline_terminal::percent;
use slackline_units::{Reservation, Span, Time};

use crate::fit_args::FitArgs;

/// Maximum number of points of a proof that are printed without --proof.
const FEW_POINTS: usize = 4;

/// Returns an answer as text.
pub(super) fn answer(args: &FitArgs, answer: &FitAnswer) -> String {
    let FitAnswer { tasks, fit, .. } = answer;
    let mut text = match args.delay {
        Some(_) => format!("{}\n\n", tasks.title),
        None => {
            let scheduler = match tasks.set.scheduler() {
                TaskScheduler::Edf => "EDF",
                TaskScheduler::Fixed => "fixed priorities",
            };
            let count = tasks.names.len();
            let s = if count == 1 { "" } else { "s" };
            let used = percent(tasks.set.utilisation_ppm());
            format!("{}: {count} task{s}, {scheduler}, {used} % of a CPU\n\n", tasks.title)
        }
    };
    let reservation = fit.reservation;
    let (slice, period) = (reservation.slice(), reservation.period());
    let _ = write!(
        text,
        "  reservation  {slice} every {period}, {} of a CPU\n\
         \x20 VMs          {}, if {} of the CPU is never reserved\n",
        share(reservation),
        vms_on_a_cpu(answer.vms),
        format_args!("{} %", percent(args.reserve().ppm().into())),
    );
    text += &fit.tried.map_or(String::new(), |tried| tried_line(tried, answer));
    text += &proof_line(&fit.proof, answer);
    text += &miss_line(args, answer);
    text.push('\n');
    if answer.is_reservable() {
        let _ = writeln!(text, "  slackline reserve NAME --slice {slice} --period {period}");
    }
    let _ = writeln!(
        text,
        "  share.edf = {{ slice = \"{slice}\", period = \"{period}\", exact = true }}"
    );
    text += &proof(args, answer);
    text + &periods(answer)
}

fn vms_on_a_cpu(vms: u64) -> String {
    match vms {
        1 => "a CPU has capacity for one such VM".into(),
        _ => format!("a CPU has capacity for {vms} such VMs"),
    }
}

/// Returns the line about the periods with which --most-vms searched for more VMs.
fn tried_line(tried: TriedPeriods, answer: &FitAnswer) -> String {
    let TriedPeriods { count, shortest, longest, step, shortest_slice, is_most } = tried;
    let (more, used) = (answer.vms + 1, percent(answer.tasks.set.utilisation_ppm()));
    let s = if count == 1 { "" } else { "s" };
    let end = match is_most {
        true => format!("the tasks use {used} %, so no period has capacity for {more} VMs"),
        false => {
            let least = match shortest_slice.is_zero() {
                true => String::new(),
                false => format!(" of at least {shortest_slice}"),
            };
            format!(
                "none has capacity for {more} VMs\n{:15}with slices{least} in steps of {step}",
                ""
            )
        }
    };
    format!("  periods      {count} period{s} tried, from {longest} to {shortest}: {end}\n")
}

fn share(reservation: Reservation) -> String {
    format!("{} %", percent(reservation.share().ppm().into()))
}

fn proof_line(proof: &Proof, answer: &FitAnswer) -> String {
    let jobs = answer.check.jobs;
    let steps = proof.steps();
    let how = match proof {
        Proof::Demand { busy, .. } if steps == 0 => {
            format!("all jobs are done within {busy}, before any deadline")
        }
        Proof::Demand { busy, .. } => {
            let s = if steps == 1 { "" } else { "s" };
            format!(
                "no interval of up to {busy} has more demand than supply ({steps} point{s} checked)"
            )
        }
        Proof::Responses(_) => format!("response times of {steps} tasks are within the deadlines"),
    };
    let s = if jobs == 1 { "" } else { "s" };
    format!(
        "  proof        {how}\n               simulated in the worst phase: {jobs} job{s} in time\n"
    )
}

fn miss_line(args: &FitArgs, answer: &FitAnswer) -> String {
    let Some(miss) = &answer.miss else {
        let why = match (answer.fit.tried, answer.fit.below) {
            (Some(_), None) => "a slice that was not tried has capacity for more VMs",
            _ => "no slightly smaller reservation is known to miss a deadline",
        };
        return format!("  trace        none: {why}\n");
    };
    let DeadlineMiss { task, released, deadline, done } = &miss.miss;
    let at = |time: Time| time.since(Time::START);
    let done = match done {
        Some(done) => format!("done {} late", done.since(*deadline)),
        None => "not done".into(),
    };
    let mut text = format!(
        "  trace        with {} a job of `{task}` misses its deadline:\n\
         \x20              released at {}, due at {}, {done}\n",
        miss.reservation,
        at(*released),
        at(*deadline),
    );
    if let Some(file) = &args.save {
        let _ = writeln!(text, "               saved in {}", file.display());
    }
    text
}

/// Returns the points of the proof. Without --proof, at most [`FEW_POINTS`] points are included.
fn proof(args: &FitArgs, answer: &FitAnswer) -> String {
    let most = if args.proof { usize::MAX } else { FEW_POINTS };
    let mut rows: Vec<Vec<String>> = Vec::new();
    let heads: &[&str] = match &answer.fit.proof {
        Proof::Demand { points, .. } => {
            rows.extend(points.iter().rev().take(most).map(|point| {
                vec![point.until.to_string(), point.demand.to_string(), point.from.to_string()]
            }));
            &["interval", "demand", "supplied within"]
        }
        Proof::Responses(responses) => {
            let named = responses.iter().zip(&answer.tasks.names).take(most);
            rows.extend(named.map(|(of, name)| {
                let spans =
                    [of.response, of.deadline, of.demand].map(|span: Span| span.to_string());
                [name.clone()].into_iter().chain(spans).collect()
            }));
            &["task", "response", "deadline", "demand"]
        }
    };
    if rows.is_empty() {
        return String::new();
    }
    let left = answer.fit.proof.steps() - rows.len();
    let mut text = format!("\nProof:\n{}", columns(heads, &rows));
    if left > 0 {
        let _ = writeln!(text, "  ... and {left} more (--proof)");
    }
    text
}

fn periods(answer: &FitAnswer) -> String {
    if answer.periods.is_empty() {
        return String::new();
    }
    let row = |row: &PeriodRow| match row.fits {
        Some((reservation, vms)) => vec![
            row.period.to_string(),
            reservation.slice().to_string(),
            percent(reservation.share().ppm().into()),
            vms.to_string(),
        ],
        None => vec![row.period.to_string(), "-".into(), "-".into(), "0".into()],
    };
    let rows: Vec<Vec<String>> = answer.periods.iter().map(row).collect();
    let heads = ["period", "slice", "share %", "VMs per CPU"];
    format!("\nPeriods:\n{}", columns(&heads, &rows))
}

/// Returns rows in right-aligned columns.
fn columns(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).map(|(cell, &width)| format!("  {cell:>width$}"));
        cells.collect::<String>() + "\n"
    };
    let mut text = line(&mut heads.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}
