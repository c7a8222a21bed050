//! Holds a run against what its scenario says will come of it.

use core::fmt;

use slackline_metrics::{Measure, Summary, UnknownMetric};
use slackline_scenario::{Amount, AmountOrPromised, Claim, On, Scenario, Test};
use thiserror::Error;

use crate::numbers::of_nothing;

/// A claim that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedClaim<'a> {
    /// What was claimed.
    pub claim: &'a Claim,
    /// What was measured, in words.
    pub got: String,
}

/// A claim about what nobody measures.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{unknown}")]
pub struct BadClaim {
    /// Where it stands in the file, counted from 1.
    pub line: usize,
    /// What is unknown, and what may have been meant.
    pub unknown: UnknownMetric,
}

/// Whether the scenario is there to be refused.
#[must_use]
pub fn expects_refusal(scenario: &Scenario) -> bool {
    scenario.claims.iter().any(|claim| claim.test == Test::Refused)
}

/// Checks that every claim is about something that is measured, without a run.
///
/// # Errors
/// At the first that is not.
pub fn check_names(scenario: &Scenario) -> Result<(), BadClaim> {
    let nothing = of_nothing(scenario);
    for claim in scenario.claims.iter().filter(|claim| claim.test != Test::Refused) {
        measure(claim, &nothing)?;
    }
    Ok(())
}

/// The claims about such a machine that do not hold of what came of a run on it.
///
/// # Errors
/// When a claim is about what nobody measures.
pub fn failed<'a>(
    scenario: &'a Scenario,
    on: On,
    summary: &Summary,
) -> Result<Vec<FailedClaim<'a>>, BadClaim> {
    let mut failed = Vec::new();
    for claim in scenario.claims.iter().filter(|claim| [On::Both, on].contains(&claim.on)) {
        let measured = measure(claim, summary)?;
        failed.extend(fails(claim, measured, summary).map(|got| FailedClaim { claim, got }));
    }
    Ok(failed)
}

impl fmt::Display for FailedClaim<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}, but it is {}", self.claim.text, self.got)
    }
}

fn measure(claim: &Claim, summary: &Summary) -> Result<Measure, BadClaim> {
    let measured = summary.lookup(&claim.metric, claim.of.as_deref());
    measured.map_err(|unknown| BadClaim { line: claim.line, unknown })
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
