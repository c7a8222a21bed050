//! The claims of a scenario in a report, with their results.

use slackline_experiments::claims::failed;
use slackline_html::{Cell, Page, Table};
use slackline_metrics::Summary;
use slackline_scenario::{ClaimHosts, Scenario};

/// Machine name in the results of a live run.
const LIVE: &str = "live";

/// Adds a section with the claims of a scenario, and the result in each run. A run has a name,
/// which is empty if it is the only run. The page stays as it is if there are no claims, or if
/// `text` cannot be read without other files.
pub(crate) fn section(page: Page, text: &str, runs: &[(&str, &Summary)]) -> Page {
    let Ok(scenario) = Scenario::read(text) else { return page };
    let own = scenario.policy.to_string();
    let runs: Vec<_> = runs.iter().filter(|(_, summary)| summary.policy == own).collect();
    if scenario.claims.is_empty() || runs.is_empty() {
        return page;
    }
    let mut table = Table::new(["claim", "run", "result"])
        .caption("Claims are checked under the policy of the scenario only");
    for (name, summary) in runs {
        let on = if summary.machine == LIVE { ClaimHosts::Live } else { ClaimHosts::Sim };
        let Ok(failed) = failed(&scenario, on, summary) else { continue };
        let checked =
            scenario.claims.iter().filter(|claim| [ClaimHosts::Both, on].contains(&claim.on));
        for claim in checked {
            let failure = failed.iter().find(|it| it.claim.line == claim.line);
            let result = match failure {
                Some(failure) => format!("fails: {}", failure.got),
                None => "holds".to_owned(),
            };
            let run = match name.is_empty() {
                true => format!("{}, seed {}", summary.machine, summary.seed),
                false => format!("{name}, seed {}", summary.seed),
            };
            table =
                table.row([Cell::Text(claim.text.clone()), Cell::Text(run), Cell::Text(result)]);
        }
    }
    page.section("Claims").table(table)
}
