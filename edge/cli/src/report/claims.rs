//! The claims of a scenario in a report, with their results.

use slackline_experiments::claims::{ClaimOutcome, outcomes};
use slackline_html::{Cell, Page, Table};
use slackline_scenario::Scenario;

use crate::claims::CheckedRun;

/// Adds to a page a section with the claims of a scenario, and the result of each claim in each
/// run. `runs` has the name of each run. If there are no claims or no runs, returns the page
/// unchanged.
pub(crate) fn section(page: Page, scenario: &Scenario, runs: &[(String, CheckedRun<'_>)]) -> Page {
    if scenario.claims.is_empty() || runs.is_empty() {
        return page;
    }
    let mut table = Table::new(["claim", "run", "result"])
        .caption("Claims are checked under the policy of the scenario");
    for (name, CheckedRun { on, summary }) in runs {
        // Claims about unknown metrics were refused before the run.
        for (claim, outcome) in outcomes(scenario, *on, summary).unwrap_or_default() {
            let result = match outcome {
                ClaimOutcome::Holds => "holds".to_owned(),
                ClaimOutcome::Fails(got) => format!("fails: {got}"),
                ClaimOutcome::NotMeasured => "not measured".to_owned(),
            };
            let run = format!("{name}, seed {}", summary.seed);
            table =
                table.row([Cell::Text(claim.text.clone()), Cell::Text(run), Cell::Text(result)]);
        }
    }
    page.section("Claims").table(table)
}
