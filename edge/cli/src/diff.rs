//! `slackline diff`: compares how two runs or recordings were scheduled.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use slackline_metrics::{
    BLOCKS, Change, Difference, LEAST_SAMPLES, MetricUnit, Schedule, ScheduleMeter, difference,
};
use slackline_terminal::{milliseconds, percent};
use slackline_units::{Span, Time};

use crate::counted::counted;
use crate::import_args::DiffArgs;
use crate::problem::Problem;
use crate::{show, terminal};

const FORMAT: &str = "slackline-diff-1";

pub(crate) fn diff(args: &DiffArgs) -> Result<(), Problem> {
    let runs = [schedule(&args.first)?, schedule(&args.second)?];
    let all = difference([&runs[0], &runs[1]]);
    match args.json {
        true => terminal::print(&as_json(args, &runs, &all))?,
        false => terminal::say(&as_text(args, &runs, &all))?,
    }
    let worse = all.iter().filter(|it| is_worse(it)).count();
    if args.check && worse > 0 {
        return Err(Problem::Worse(worse));
    }
    Ok(())
}

/// Reads a trace or recording, and returns how its vCPUs were scheduled.
fn schedule(file: &Path) -> Result<Schedule, Problem> {
    let (mut trace, names) = show::open(file)?;
    let begin = names.began.unwrap_or(Time::START);
    let end = names.ended.unwrap_or(names.last);
    let mut meter = ScheduleMeter::new(trace.header(), (begin, end));
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    trace.pass_to(&mut meter).map_err(bad)?;
    Ok(meter.finish())
}

/// Returns true if run B is worse than run A: the metric is larger by more than noise, and larger
/// values of this metric are worse.
fn is_worse(it: &Difference) -> bool {
    it.change == Change::More && it.metric.is_worse_if_larger()
}

fn as_text(args: &DiffArgs, runs: &[Schedule; 2], all: &[Difference]) -> String {
    let (first, second) = (args.first.display(), args.second.display());
    let mut text = format!(
        "A: {first}, {length_a}, {cpus_a}\nB: {second}, {length_b}, {cpus_b}\n\n",
        length_a = runs[0].length,
        cpus_a = counted(runs[0].cpus, "CPU"),
        length_b = runs[1].length,
        cpus_b = counted(runs[1].cpus, "CPU")
    );
    let name = |it: &Difference| it.vm.clone().unwrap_or_else(|| "all".into());
    let width = all.iter().map(|it| name(it).chars().count()).max().unwrap_or(3).max(3);
    let _ = writeln!(
        text,
        "{:width$}  {:21}  {:>11}  {:>11}  {:>12}  more than noise",
        "VM", "", "A", "B", "B - A"
    );
    let mut last = None;
    for it in all {
        let name = name(it);
        let shown = if last.as_ref() == Some(&name) { "" } else { &name };
        let [before, after] = it.values.map(|value| written(value, it.metric.unit()));
        let line = format!(
            "{shown:width$}  {:21}  {before:>11}  {after:>11}  {:>12}  {}",
            it.metric.name(),
            change(it),
            verdict(it)
        );
        let _ = writeln!(text, "{}", line.trim_end());
        last = Some(name);
    }
    let (more, judged) = (count(all, is_certain), count(all, |it| it.interval.is_some()));
    let _ = writeln!(
        text,
        "\n{more} of {judged} differences are more than noise. Such a difference has the same sign \
         in at least 99 % of random draws from the {BLOCKS} blocks of time of each run."
    );
    text
}

/// Returns true if a difference is more than noise.
fn is_certain(it: &Difference) -> bool {
    matches!(it.change, Change::More | Change::Less)
}

fn count(all: &[Difference], holds: impl Fn(&Difference) -> bool) -> usize {
    all.iter().filter(|it| holds(it)).count()
}

/// Returns the cell of the column `more than noise`.
fn verdict(it: &Difference) -> String {
    match it.change {
        Change::More if is_worse(it) => "more, worse".into(),
        Change::More => "more".into(),
        Change::Less if it.metric.is_worse_if_larger() => "less, better".into(),
        Change::Less => "less".into(),
        Change::Noise => String::new(),
        Change::Unjudged => match it.counts {
            [0, _] | [_, 0] => String::new(),
            [one, other] => format!("only {} samples, {LEAST_SAMPLES} are needed", one.min(other)),
        },
    }
}

/// Returns the value in run B minus the value in run A, with sign and unit.
fn change(it: &Difference) -> String {
    let [Some(before), Some(after)] = it.values else { return "-".into() };
    let by = written(Some(after.abs_diff(before)), it.metric.unit());
    if by.starts_with("0.00 ") || by.starts_with("0.000 ") {
        return "0".into();
    }
    format!("{}{by}", if after < before { "-" } else { "+" })
}

/// Formats a value with its unit.
fn written(value: Option<u64>, unit: MetricUnit) -> String {
    let Some(value) = value else { return "-".into() };
    match unit {
        MetricUnit::Time => format!("{} ms", milliseconds(Span::from_ns(value))),
        MetricUnit::Part => format!("{} %", percent(value)),
    }
}

fn as_json(args: &DiffArgs, runs: &[Schedule; 2], all: &[Difference]) -> String {
    let run = |file: &Path, run: &Schedule| {
        let length_ns = run.length.ns();
        json!({ "file": file, "length_ns": length_ns, "cpus": run.cpus })
    };
    let row = |it: &Difference| -> Value {
        let unit = match it.metric.unit() {
            MetricUnit::Time => "ns",
            MetricUnit::Part => "ppm",
        };
        json!({
            "vm": it.vm,
            "metric": format!("{}_{unit}", it.metric.field()),
            "a": it.values[0],
            "b": it.values[1],
            "samples": it.counts,
            "interval_99": it.interval.map(|(least, most)| [least, most]),
            "change": match it.change {
                Change::More => "more",
                Change::Less => "less",
                Change::Noise => "noise",
                Change::Unjudged => "unjudged",
            },
            "worse": is_worse(it),
        })
    };
    let file = json!({
        "format": FORMAT,
        "a": run(&args.first, &runs[0]),
        "b": run(&args.second, &runs[1]),
        "blocks": BLOCKS,
        "differences": all.iter().map(row).collect::<Vec<Value>>(),
    });
    format!("{file:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_diff_are_rounded_as_in_other_tables() {
        assert_eq!(written(Some(186_650), MetricUnit::Part), "18.67 %");
        assert_eq!(written(Some(186_649), MetricUnit::Part), "18.66 %");
        assert_eq!(written(Some(1_179_500), MetricUnit::Time), "1.180 ms");
    }
}
