//! Reports about claims of a scenario that do not hold.

use std::path::Path;

use slackline_experiments::claims::{self, BadClaim, failed};
use slackline_metrics::Summary;
use slackline_scenario::{ClaimHosts, NotAdmitted, Scenario};

use crate::problem::Problem;
use crate::terminal;

/// A run whose results the claims are checked against.
pub(crate) struct CheckedRun<'a> {
    pub(crate) on: ClaimHosts,
    pub(crate) summary: &'a Summary,
}

impl<'a> CheckedRun<'a> {
    pub(crate) fn sim(summary: &'a Summary) -> CheckedRun<'a> {
        CheckedRun { on: ClaimHosts::Sim, summary }
    }

    pub(crate) fn live(summary: &'a Summary) -> CheckedRun<'a> {
        CheckedRun { on: ClaimHosts::Live, summary }
    }
}

/// Checks that admission refuses a scenario with the claim `refused`.
pub(crate) fn check_refusal(file: &Path, scenario: &Scenario) -> Result<(), Problem> {
    match scenario.admit() {
        Err(error @ NotAdmitted::Declined(_)) => terminal::say(&format!(
            "admission refuses the scenario, as its claim expects: {error}\n"
        )),
        Err(error) => Err(Problem::of_sim(file, scenario, error.into())),
        Ok(()) => {
            let file = file.display();
            terminal::tell(&format!(
                "claim failed: `refused`, but admission accepted the scenario ({file})\n"
            ));
            Err(Problem::ClaimsFailed(1))
        }
    }
}

/// Checks before any run that every claim is about a value that is measured.
pub(crate) fn check_measured(file: &Path, scenario: &Scenario) -> Result<(), Problem> {
    claims::check(scenario).map_err(|bad| problem(file, &bad))
}

/// Checks every claim on each run to which the claim applies, and reports the claims that do not
/// hold.
pub(crate) fn check(
    file: &Path,
    scenario: &Scenario,
    runs: &[CheckedRun<'_>],
) -> Result<(), Problem> {
    check_at("", file, scenario, runs)
}

/// Checks the claims at a point of a scenario with axes.
pub(crate) fn check_at(
    point: &str,
    file: &Path,
    scenario: &Scenario,
    runs: &[CheckedRun<'_>],
) -> Result<(), Problem> {
    let at = if point.is_empty() { String::new() } else { format!(", at {point}") };
    let mut count = 0;
    for CheckedRun { on, summary } in runs {
        for claim in failed(scenario, *on, summary).map_err(|bad| problem(file, &bad))? {
            count += 1;
            terminal::tell(&format!(
                "claim failed: {claim} ({}:{}{at}, {}, {}, seed {})\n",
                file.display(),
                claim.claim.line,
                summary.machine,
                summary.policy,
                summary.seed,
            ));
        }
    }
    if count == 0 { Ok(()) } else { Err(Problem::ClaimsFailed(count)) }
}

fn problem(file: &Path, bad: &BadClaim) -> Problem {
    let (line, message, hint) = (bad.line(), bad.to_string(), Some(bad.hint()));
    Problem::BadClaim { file: file.into(), line, message, hint }
}
