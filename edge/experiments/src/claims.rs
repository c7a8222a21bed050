//! Comparison of a run's results with the claims in its scenario.

use core::fmt;

use slackline_metrics::{Measure, Summary, Unit, UnknownMetric};
use slackline_scenario::{Amount, AmountOrPromised, Claim, ClaimHosts, Scenario, Test};
use thiserror::Error;

use crate::numbers::of_nothing;

/// A claim that does not hold for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedClaim<'a> {
    /// Claim of the scenario.
    pub claim: &'a Claim,
    /// Measured value, in words.
    pub got: String,
}

/// A claim that is invalid: no run could ever meet it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BadClaim {
    /// The metric does not exist, or the claim names an unknown VM, vCPU or CPU.
    #[error("{unknown}")]
    Unknown {
        /// Line in the file, counted from 1.
        line: usize,
        /// Unknown name, and a similar name that exists.
        unknown: UnknownMetric,
    },
    /// The claim compares a metric with a value that has another unit.
    #[error("`{metric}` is {unit} and cannot be tested by `{test}`")]
    OtherUnit {
        /// Line in the file, counted from 1.
        line: usize,
        /// Metric of the claim.
        metric: String,
        /// Unit of the metric.
        unit: Unit,
        /// Comparison in the claim, in words.
        test: String,
    },
}

impl BadClaim {
    /// Returns the line of the claim in the file, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        let (BadClaim::Unknown { line, .. } | BadClaim::OtherUnit { line, .. }) = self;
        *line
    }

    /// Returns one line of advice on how to correct the error.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            BadClaim::Unknown { unknown, .. } => match &unknown.nearest {
                Some(nearest) => format!("did you mean `{nearest}`?"),
                None => format!("use one of: {}", unknown.known.join(", ")),
            },
            BadClaim::OtherUnit { unit: Unit::Time, .. } => {
                "write a test such as `below 8ms`".into()
            }
            BadClaim::OtherUnit { unit: Unit::Part, .. } => {
                "write a test such as `at least 20%`".into()
            }
            BadClaim::OtherUnit { unit: Unit::Things, .. } => {
                "write a test such as `at most 3`".into()
            }
        }
    }
}

/// Returns true if the scenario claims that admission refuses its VMs.
#[must_use]
pub fn expects_refusal(scenario: &Scenario) -> bool {
    scenario.claims.iter().any(|claim| claim.test == Test::Refused)
}

/// Checks before a run that every claim names an existing metric, and compares it with a value that
/// has the unit of the metric.
///
/// # Errors
/// If a claim is invalid. The error describes the first such claim.
pub fn check(scenario: &Scenario) -> Result<(), BadClaim> {
    let mut claims = scenario.claims.iter().filter(|claim| claim.test != Test::Refused).peekable();
    if claims.peek().is_none() {
        return Ok(());
    }
    let nothing = of_nothing(scenario);
    for claim in claims {
        let Claim { line, ref metric, ref of, ref test, .. } = *claim;
        let unit = nothing.unit(metric, of.as_deref());
        let unit = unit.map_err(|unknown| BadClaim::Unknown { line, unknown })?;
        let is_part = nothing.part_of_cpu(metric, of.as_deref()).is_some();
        let has_unit = fits(unit, test) || is_part && fits(Unit::Part, test);
        if !has_unit {
            let (metric, test) = (metric.clone(), test.to_string());
            return Err(BadClaim::OtherUnit { line, metric, unit, test });
        }
    }
    Ok(())
}

/// Returns true if a metric with this unit can be compared with the value of a claim.
fn fits(unit: Unit, test: &Test) -> bool {
    let is_of = |amount: &Amount| amount_number(*amount).1 == unit;
    match test {
        Test::Refused => true,
        Test::Below(amount)
        | Test::Above(amount)
        | Test::AtMost(amount)
        | Test::AtLeast(amount)
        | Test::WithinPercent { of: AmountOrPromised::Amount(amount), .. } => is_of(amount),
        Test::WithinPoints { of: AmountOrPromised::Amount(amount), .. } => {
            unit == Unit::Part && is_of(amount)
        }
        Test::WithinPercent { of: AmountOrPromised::Promised, .. }
        | Test::WithinPoints { of: AmountOrPromised::Promised, .. } => unit == Unit::Part,
    }
}

/// Result of a claim in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The claim holds for the run.
    Holds,
    /// The claim does not hold. The value is the measured value in words. For a quantile, the text
    /// ends in the number of values, as in `12ms (n 99)`.
    Fails(String),
    /// The host of the run cannot measure the value.
    NotMeasured,
}

/// Returns the outcome of each claim for the results of a run. Claims for the other kind of host
/// (simulated or live) are left out.
///
/// # Errors
/// If a claim names a metric that does not exist.
pub fn outcomes<'a>(
    scenario: &'a Scenario,
    on: ClaimHosts,
    summary: &Summary,
) -> Result<Vec<(&'a Claim, ClaimOutcome)>, BadClaim> {
    let claims = scenario.claims.iter().filter(|claim| [ClaimHosts::Both, on].contains(&claim.on));
    let outcome = |claim: &'a Claim| {
        let measured =
            measure(claim, summary).or_else(|unknown| of_no_row(claim, scenario, unknown))?;
        let outcome = match holds(claim, measured, summary) {
            None => ClaimOutcome::NotMeasured,
            Some(true) => ClaimOutcome::Holds,
            Some(false) => {
                let values = summary.values_of_quantile(&claim.metric, claim.of.as_deref());
                let number = values.map(|values| format!(" (n {values})")).unwrap_or_default();
                ClaimOutcome::Fails(in_words(measured) + &number)
            }
        };
        Ok((claim, outcome))
    };
    claims.map(outcome).collect()
}

/// Returns the claims that do not hold for the results of a run. Claims for the other kind of host
/// (simulated or live) are not checked.
///
/// # Errors
/// If a claim names a metric that does not exist.
pub fn failed<'a>(
    scenario: &'a Scenario,
    on: ClaimHosts,
    summary: &Summary,
) -> Result<Vec<FailedClaim<'a>>, BadClaim> {
    let failure = |(claim, outcome)| match outcome {
        ClaimOutcome::Fails(got) => Some(FailedClaim { claim, got }),
        ClaimOutcome::Holds | ClaimOutcome::NotMeasured => None,
    };
    Ok(outcomes(scenario, on, summary)?.into_iter().filter_map(failure).collect())
}

impl fmt::Display for FailedClaim<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{claim}, but it is {got}", claim = self.claim.text, got = self.got)
    }
}

fn measure(claim: &Claim, summary: &Summary) -> Result<Measure, BadClaim> {
    let (metric, of) = (&claim.metric, claim.of.as_deref());
    let part = Some(()).filter(|()| fits(Unit::Part, &claim.test));
    // Tables show the time of a CPU in percent, so a claim may also state it in percent.
    if let Some(part) = part.and_then(|()| summary.part_of_cpu(metric, of)) {
        return Ok(part);
    }
    let measured = summary.lookup(metric, of);
    measured.map_err(|unknown| BadClaim::Unknown { line: claim.line, unknown })
}

/// Returns true if the claim holds. `None` if this host cannot measure the value.
fn holds(claim: &Claim, measured: Measure, summary: &Summary) -> Option<bool> {
    let (got, unit) = number(measured)?;
    // The error is compared without its sign, so that it is small if it is near zero.
    let got = if claim.metric == "error" { got.abs() } else { got };
    let compare = |amount: Amount, holds: fn(i128, i128) -> bool| {
        let (wanted, wanted_unit) = amount_number(amount);
        wanted_unit == unit && holds(got, wanted)
    };
    Some(match claim.test {
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
    })
}

/// Returns the value of a metric that the summary lacks because the task had no job or the client
/// did not start. A count is then zero, and any other value is unknown.
fn of_no_row(claim: &Claim, scenario: &Scenario, unknown: BadClaim) -> Result<Measure, BadClaim> {
    match of_nothing(scenario).unit(&claim.metric, claim.of.as_deref()) {
        Ok(Unit::Things) => Ok(Measure::Count(0)),
        Ok(_) => Ok(Measure::Unknown),
        Err(_) => Err(unknown),
    }
}

fn number(measure: Measure) -> Option<(i128, Unit)> {
    match measure {
        Measure::Span(span) => Some((i128::from(span.ns()), Unit::Time)),
        Measure::Ppm(ppm) => Some((i128::from(ppm), Unit::Part)),
        Measure::Count(count) => Some((i128::from(count), Unit::Things)),
        Measure::Unknown => None,
    }
}

fn amount_number(amount: Amount) -> (i128, Unit) {
    match amount {
        Amount::Span(span) => (i128::from(span.ns()), Unit::Time),
        Amount::Ppm(ppm) => (i128::from(ppm), Unit::Part),
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
        Measure::Unknown => "not measured".into(),
    }
}
