//! Results of the allocation error test as text: tables for terminals, and JSON and CSV for
//! programs.

use std::fmt::Write as _;

use serde_json::{Value, json};
use slackline_experiments::OverSeeds;
use slackline_experiments::alert::{CaseResult, Limiter, percent};
use slackline_html::FigureOrigin;
use slackline_units::CpuShare;

use crate::json::Completion;

use super::numbers::{fixed, share};
use super::published::{PublishedComparison, mean_size};

/// Width of a column of numbers, in characters.
const WIDTH: usize = 9;

/// Formats all results one below another, with one row per target share, and then the verdicts.
pub(super) fn table(
    how: &str,
    results: &[CaseResult],
    compared: &[PublishedComparison],
    columns: usize,
) -> String {
    let mut text = format!(
        "{how}\nErrors of n single seconds: (used - target) / target in %. `all`: error over all \
         seconds together\n"
    );
    for result in results {
        let row = |target: CpuShare| {
            let errors = result.errors(None, |other| other == target);
            let average = result.averages(target).map_or("-".into(), |of| fixed(of.median));
            let [least, median, most] =
                [errors.smallest(), errors.median(), errors.largest()].map(in_percent);
            let count = errors.sorted().len().to_string();
            (share(target), vec![count, least, median, most, average])
        };
        let rows: Vec<_> = result.targets().into_iter().map(row).collect();
        let _ = writeln!(text, "\n{}", result.name);
        text += &packed("target %", &["n", "least", "median", "most", "all"], &rows, columns);
    }
    if !compared.is_empty() {
        text += "\nCompared with Cherkasova, Gupta, Vahdat 2007, section 5\n";
    }
    for PublishedComparison { published, ours, verdict, sentence } in compared {
        let (says, value) = (&published.says, published.shown());
        let _ =
            writeln!(text, " {verdict:<10}  {says}: published {value}, here {ours}; {sentence}");
    }
    text
}

/// Formats the effect of each rule on the errors, with one row per rule.
pub(super) fn ablation(base: &CaseResult, ablated: &[CaseResult], columns: usize) -> String {
    let row = |result: &CaseResult| {
        let errors = result.errors(None, |_| true);
        let size = mean_size(&errors).map_or("-".into(), |of| format!("{of:.2}"));
        let [least, most, median] =
            [errors.smallest(), errors.largest(), errors.median()].map(in_percent);
        let count = errors.sorted().len().to_string();
        (result.name.clone(), vec![count, size, least, most, median])
    };
    let rows: Vec<_> = std::iter::once(base).chain(ablated).map(row).collect();
    let title = format!("\n{}, with one rule changed in each row\n", base.name);
    title + &packed("rule", &["n", "mean abs.", "least", "most", "median"], &rows, columns)
}

fn in_percent(error: Option<i64>) -> String {
    error.map_or("-".into(), |ppm| fixed(percent(ppm)))
}

/// Lays out rows of numbers after their names. As many columns as fit are placed side by side, and
/// the other columns in further blocks below. If the names are too long, each name is placed above
/// its numbers.
pub(crate) fn packed(
    name: &str,
    headings: &[&str],
    rows: &[(String, Vec<String>)],
    columns: usize,
) -> String {
    let names = rows.iter().map(|(name, _)| name.chars().count());
    let widest = names.max().unwrap_or(0).max(name.chars().count());
    let stands_above = 1 + widest + 2 * (WIDTH + 1) > columns;
    let widest = if stands_above { 0 } else { widest };
    let beside = (columns.saturating_sub(1 + widest) / (WIDTH + 1)).max(1);
    let mut text = String::new();
    for from in (0..headings.len()).step_by(beside) {
        let to = headings.len().min(from + beside);
        let line = |text: &mut String, name: &str, cells: &[&str]| {
            let cells: String = cells.iter().map(|cell| format!(" {cell:>WIDTH$}")).collect();
            let _ = if stands_above && !name.is_empty() {
                writeln!(text, "{name}\n {cells}")
            } else {
                writeln!(text, " {name:>widest$}{cells}")
            };
        };
        if from > 0 {
            text.push('\n');
        }
        line(&mut text, if stands_above { "" } else { name }, &headings[from..to]);
        let _ = writeln!(text, "{}", "\u{2500}".repeat(1 + widest + (to - from) * (WIDTH + 1)));
        for (name, cells) in rows {
            let cells: Vec<&str> = cells[from..to].iter().map(String::as_str).collect();
            line(&mut text, name, &cells);
        }
    }
    text
}

/// Returns all results as JSON. Names carry units: `_ppm` means millionths of a CPU for a target
/// share, and millionths of the target for an error.
pub(super) fn as_json(
    made: &FigureOrigin,
    results: &[CaseResult],
    compared: &[PublishedComparison],
) -> String {
    let range = |of: Option<OverSeeds>| {
        of.map(|of| json!({ "least": of.lowest, "median": of.median, "most": of.highest }))
    };
    let target = |result: &CaseResult, target: CpuShare| {
        let errors = result.errors(None, |other| other == target);
        json!({
            "target_ppm": target.ppm(),
            "seconds": errors.sorted().len(),
            "error_least_ppm": errors.smallest(),
            "error_median_ppm": errors.median(),
            "error_most_ppm": errors.largest(),
            "error_mean_size_ppm": errors.mean_size(),
            "whole_time_error_percent": range(result.averages(target)),
        })
    };
    let case = |result: &CaseResult| {
        let (under, over) = result.signs();
        let targets: Vec<Value> =
            result.targets().into_iter().map(|of| target(result, of)).collect();
        json!({
            "case": result.name,
            "machine": if result.limiter == Limiter::Host { "live" } else { "sim" },
            "seconds_under": under,
            "seconds_over": over,
            "targets": targets,
        })
    };
    let verdict = |of: &PublishedComparison| {
        json!({
            "id": of.published.id,
            "says": of.published.says,
            "from": of.published.from,
            "published": of.published.is.to_string(),
            "unit": of.published.unit,
            "ours": of.ours,
            "verdict": of.verdict.to_string(),
            "sentence": of.sentence,
        })
    };
    let cases: Vec<Value> = results.iter().map(case).collect();
    let verdicts: Vec<Value> = compared.iter().map(verdict).collect();
    whole(made, Completion::Whole, &cases, &verdicts)
}

/// Returns the JSON output, without results, for tests that a signal ended early.
pub(super) fn interrupted(made: &FigureOrigin) -> String {
    whole(made, Completion::Interrupted, &[], &[])
}

fn whole(made: &FigureOrigin, end: Completion, cases: &[Value], verdicts: &[Value]) -> String {
    let whole = json!({
        "format": "slackline-alert-1",
        "interrupted": end == Completion::Interrupted,
        "made": made.line(),
        "cases": cases,
        "verdicts": verdicts,
    });
    format!("{whole:#}\n")
}

/// Returns one CSV line per second. Errors are in millionths of the target.
pub(super) fn csv(made: &FigureOrigin, results: &[CaseResult]) -> String {
    let mut text = format!("# {}\ncase,target_ppm,seed,second,error_ppm\n", made.line());
    for result in results {
        // The name of a command may contain commas and quotes.
        let name = result.name.replace('"', "\"\"");
        for run in &result.runs {
            for (second, error) in run.seconds.iter().enumerate() {
                let (target, seed) = (run.target.ppm(), run.seed);
                let _ = writeln!(text, "\"{name}\",{target},{seed},{second},{error}");
            }
        }
    }
    text
}
