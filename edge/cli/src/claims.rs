//! Checks what a scenario says will come of it.

use std::path::Path;

use slackline_metrics::{Measure, Meter, Summary};
use slackline_scenario::{Amount, AmountOrPromised, Claim, NotAdmitted, On, Scenario, Test};
use slackline_trace::{Knowledge, Record, Sink};
use slackline_units::Time;

use crate::problem::Problem;
use crate::terminal;

/// A run that claims are checked on.
pub(crate) struct Checked<'a> {
    on: On,
    summary: &'a Summary,
}

impl<'a> Checked<'a> {
    pub(crate) fn sim(summary: &'a Summary) -> Checked<'a> {
        Checked { on: On::Sim, summary }
    }

    pub(crate) fn live(summary: &'a Summary) -> Checked<'a> {
        Checked { on: On::Live, summary }
    }
}

/// Whether the scenario is there to be refused.
pub(crate) fn expects_refusal(scenario: &Scenario) -> bool {
    scenario.claims.iter().any(|claim| claim.test == Test::Refused)
}

/// Checks that it is refused.
pub(crate) fn check_refusal(file: &Path, scenario: &Scenario) -> Result<(), Problem> {
    match scenario.admit() {
        Err(error @ NotAdmitted::Declined(_)) => {
            terminal::print(&format!("refused, as it says it must be: {error}\n"))
        }
        Err(error) => Err(Problem::of_sim(file, scenario, error.into())),
        Ok(()) => {
            let file = file.display();
            terminal::tell(&format!("claim failed: everything was admitted ({file})\n"));
            Err(Problem::ClaimsFailed(1))
        }
    }
}

/// Checks that every claim is about something that is measured, without a run.
pub(crate) fn check_names(file: &Path, scenario: &Scenario) -> Result<(), Problem> {
    let header = crate::outputs::header(scenario, "sim", Knowledge::ALL);
    let mut meter = Meter::new(&header);
    for (vcpu, _) in scenario.vcpus() {
        meter.record(&Record::Joined { at: Time::START, vcpu });
    }
    let empty = meter.finish();
    for claim in scenario.claims.iter().filter(|claim| claim.test != Test::Refused) {
        measure(file, claim, &empty)?;
    }
    Ok(())
}

/// Checks every claim on every run that it is about; tells which do not hold.
pub(crate) fn check(file: &Path, scenario: &Scenario, runs: &[Checked<'_>]) -> Result<(), Problem> {
    let mut failed = 0;
    for run in runs {
        for claim in scenario.claims.iter().filter(|claim| [On::Both, run.on].contains(&claim.on)) {
            let measured = measure(file, claim, run.summary)?;
            if let Some(got) = fails(claim, measured, run.summary) {
                failed += 1;
                terminal::tell(&format!(
                    "claim failed: {}, but it is {got} ({}:{}, {}, {}, seed {})\n",
                    claim.text,
                    file.display(),
                    claim.line,
                    run.summary.machine,
                    run.summary.policy,
                    run.summary.seed,
                ));
            }
        }
    }
    if failed == 0 { Ok(()) } else { Err(Problem::ClaimsFailed(failed)) }
}

fn measure(file: &Path, claim: &Claim, summary: &Summary) -> Result<Measure, Problem> {
    summary.lookup(&claim.metric, claim.of.as_deref()).map_err(|unknown| {
        let hint = match &unknown.nearest {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => format!("known are: {}", unknown.known.join(", ")),
        };
        let (message, hint) = (unknown.to_string(), Some(hint));
        Problem::BadClaim { file: file.into(), line: claim.line, message, hint }
    })
}

/// What was measured, in words, if it is not what was claimed. What this machine cannot know
/// contradicts nothing.
fn fails(claim: &Claim, measured: Measure, summary: &Summary) -> Option<String> {
    let (got, unit) = number(measured)?;
    // An error is small when it is near nothing, on either side.
    let got = if claim.metric == "error" { got.abs() } else { got };
    let compare = |amount: Amount, holds: fn(i128, i128) -> bool| {
        let (wanted, wanted_unit) = amount_number(amount);
        wanted_unit == unit && holds(got, wanted)
    };
    let holds = match claim.test {
        Test::Refused => true,
        Test::Below(amount) => compare(amount, |got, wanted| got < wanted),
        Test::Above(amount) => compare(amount, |got, wanted| got > wanted),
        Test::AtMost(amount) => compare(amount, |got, wanted| got <= wanted),
        Test::AtLeast(amount) => compare(amount, |got, wanted| got >= wanted),
        Test::WithinPercent { tolerance_ppm, of } => {
            let wanted = resolve(of, claim, summary)?;
            (got - wanted).abs() * 1_000_000 <= wanted.abs() * i128::from(tolerance_ppm)
        }
        Test::WithinPoints { tolerance_ppm, of } => {
            let wanted = resolve(of, claim, summary)?;
            (got - wanted).abs() <= i128::from(tolerance_ppm)
        }
    };
    (!holds).then(|| in_words(measured))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Nanoseconds,
    Millionths,
    Things,
}

fn number(measure: Measure) -> Option<(i128, Unit)> {
    match measure {
        Measure::Span(span) => Some((i128::from(span.ns()), Unit::Nanoseconds)),
        Measure::Ppm(ppm) => Some((i128::from(ppm), Unit::Millionths)),
        Measure::Count(count) => Some((i128::from(count), Unit::Things)),
        Measure::Unknown => None,
    }
}

fn amount_number(amount: Amount) -> (i128, Unit) {
    match amount {
        Amount::Span(span) => (i128::from(span.ns()), Unit::Nanoseconds),
        Amount::Ppm(ppm) => (i128::from(ppm), Unit::Millionths),
        Amount::Count(count) => (i128::from(count), Unit::Things),
    }
}

fn resolve(of: AmountOrPromised, claim: &Claim, summary: &Summary) -> Option<i128> {
    match of {
        AmountOrPromised::Amount(amount) => Some(amount_number(amount).0),
        AmountOrPromised::Promised => {
            let promised = summary.lookup("promised", claim.of.as_deref()).ok()?;
            number(promised).map(|(number, _)| number)
        }
    }
}

fn in_words(measure: Measure) -> String {
    match measure {
        Measure::Span(span) => span.to_string(),
        Measure::Ppm(ppm) => {
            let (sign, ppm) = (if ppm < 0 { "-" } else { "" }, ppm.unsigned_abs());
            format!("{sign}{}.{:04}%", ppm / 10_000, ppm % 10_000)
        }
        Measure::Count(count) => count.to_string(),
        Measure::Unknown => "not known here".into(),
    }
}
