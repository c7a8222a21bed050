//! What comes out as text: tables for people, JSON and lines for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};
use slackline_report::Made;
use slackline_units::CpuShare;

use super::outcome::{Outcome, OverSeeds, Subject, percent};
use super::published::Compared;

/// How much room a number has.
const WIDTH: usize = 9;

/// All outcomes below each other, a row a target, and how they stand to the paper.
pub(super) fn table(how: &str, outcomes: &[Outcome], compared: &[Compared]) -> String {
    let mut text = format!(
        "{how}\nerror of a second, (used - target) / target, in %; `all`: of the whole time\n"
    );
    for outcome in outcomes {
        let _ = writeln!(
            text,
            "\n{}\n {:>8} {:>WIDTH$} {:>WIDTH$} {:>WIDTH$} {:>WIDTH$}\n{}",
            outcome.name,
            "target %",
            "least",
            "median",
            "most",
            "all",
            "\u{2500}".repeat(9 + 4 * (WIDTH + 1))
        );
        for target in outcome.targets() {
            let errors = outcome.errors(None, |other| other == target);
            let of = |error: Option<i64>| error.map_or("-".into(), |ppm| fixed(percent(ppm)));
            let average = outcome.averages(target).map_or("-".into(), |of| fixed(of.median));
            let _ = writeln!(
                text,
                " {:>8} {:>WIDTH$} {:>WIDTH$} {:>WIDTH$} {average:>WIDTH$}",
                share(target),
                of(errors.smallest()),
                of(errors.median()),
                of(errors.largest()),
            );
        }
    }
    if !compared.is_empty() {
        text += "\nagainst Cherkasova, Gupta, Vahdat 2007, section 5\n";
    }
    for Compared { published, ours, verdict, sentence } in compared {
        let (says, value) = (&published.says, published.shown());
        let _ = writeln!(text, " {verdict:<10}  {says}: {value}; ours {ours}; {sentence}");
    }
    text
}

/// What one rule does to the errors, a row a rule.
pub(super) fn ablation(base: &Outcome, ablated: &[Outcome]) -> String {
    let mut text = format!(
        "\n{}, one rule changed at a time\n \
         {:>WIDTH$} {:>WIDTH$} {:>WIDTH$} {:>WIDTH$}  rule\n{}\n",
        base.name,
        "mean size",
        "least",
        "most",
        "median",
        "\u{2500}".repeat(9 + 4 * (WIDTH + 1))
    );
    for outcome in std::iter::once(base).chain(ablated) {
        let errors = outcome.errors(None, |_| true);
        let of = |error: Option<i64>| error.map_or("-".into(), |ppm| fixed(percent(ppm)));
        let size = super::published::mean_size(&errors).map_or("-".into(), |of| format!("{of:.2}"));
        let _ = writeln!(
            text,
            " {size:>WIDTH$} {:>WIDTH$} {:>WIDTH$} {:>WIDTH$}  {}",
            of(errors.smallest()),
            of(errors.largest()),
            of(errors.median()),
            outcome.name,
        );
    }
    text
}

/// Everything with names that carry their units: `_ppm` is millionths of a CPU for a target, and of
/// the target for an error.
pub(super) fn as_json(made: &Made, outcomes: &[Outcome], compared: &[Compared]) -> String {
    let range = |of: Option<OverSeeds>| {
        of.map(|of| json!({ "least": of.least, "median": of.median, "most": of.most }))
    };
    let target = |outcome: &Outcome, target: CpuShare| {
        let errors = outcome.errors(None, |other| other == target);
        json!({
            "target_ppm": target.ppm(),
            "seconds": errors.sorted().len(),
            "error_least_ppm": errors.smallest(),
            "error_median_ppm": errors.median(),
            "error_most_ppm": errors.largest(),
            "error_mean_size_ppm": errors.mean_size(),
            "whole_time_error_percent": range(outcome.averages(target)),
        })
    };
    let case = |outcome: &Outcome| {
        let (under, over) = outcome.signs();
        let targets: Vec<Value> =
            outcome.targets().into_iter().map(|of| target(outcome, of)).collect();
        json!({
            "case": outcome.name,
            "machine": if outcome.subject == Subject::Live { "live" } else { "sim" },
            "seconds_under": under,
            "seconds_over": over,
            "targets": targets,
        })
    };
    let verdict = |of: &Compared| {
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
    let whole = json!({
        "format": "slackline-alert-1",
        "made": made.line(),
        "cases": outcomes.iter().map(case).collect::<Vec<_>>(),
        "verdicts": compared.iter().map(verdict).collect::<Vec<_>>(),
    });
    format!("{whole:#}\n")
}

/// A line a second. Errors are in millionths of the target.
pub(super) fn csv(made: &Made, outcomes: &[Outcome]) -> String {
    let mut text = format!("# {}\ncase,target_ppm,seed,second,error_ppm\n", made.line());
    for outcome in outcomes {
        // A command may have commas and quotes in it.
        let name = outcome.name.replace('"', "\"\"");
        for run in &outcome.runs {
            for (second, error) in run.seconds.iter().enumerate() {
                let (target, seed) = (run.target.ppm(), run.seed);
                let _ = writeln!(text, "\"{name}\",{target},{seed},{second},{error}");
            }
        }
    }
    text
}

/// A target in percent, as short as it can be.
pub(super) fn share(target: CpuShare) -> String {
    format!("{}", f64::from(target.ppm()) / 1e4)
}

/// Two decimals, with a sign unless it is rounded to nothing.
pub(super) fn fixed(value: f64) -> String {
    let text = format!("{value:+.2}");
    if matches!(&*text, "+0.00" | "-0.00") { "0.00".into() } else { text }
}

/// The middle, and the range where there is one.
pub(super) fn ranged(of: OverSeeds) -> String {
    let OverSeeds { least, median, most } = of;
    let [least, median, most] = [least, median, most].map(fixed);
    if least == most { median } else { format!("{median} ({least} to {most})") }
}
