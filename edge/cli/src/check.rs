//! `slackline check`: reads a scenario and tries its admission; runs nothing.

use slackline_runs::claims::expects_refusal;

use crate::args::Check;
use crate::places::Places;
use crate::problem::Problem;
use crate::{claims, input, terminal};

pub(crate) fn check(args: &Check) -> Result<(), Problem> {
    let scenario = input::scenario(&args.file, None, &Places::of(&[])?)?;
    let vcpus = scenario.vcpus().count();
    let admitted = scenario.admit();
    let refused = admitted.as_ref().err().map(ToString::to_string);
    let expected = expects_refusal(&scenario);
    if args.json {
        let found = serde_json::json!({
            "title": scenario.title,
            "policy": scenario.policy.to_string(),
            "cpus": scenario.host.cpus,
            "domains": scenario.domains.len(),
            "vcpus": vcpus,
            "changes": scenario.changes.len(),
            "claims": scenario.claims.len(),
            "length_ns": scenario.length.ns(),
            "admitted": refused.is_none(),
            "refused": refused,
        });
        terminal::print(&format!("{found:#}\n"))?;
    } else {
        let domains = number_of(scenario.domains.len(), "domain");
        let claims = number_of(scenario.claims.len(), "claim");
        let (cpus, vcpus) = (number_of(scenario.host.cpus, "CPU"), number_of(vcpus, "vCPU"));
        let verdict = match (&refused, expected) {
            (None, _) => "everything can be promised".to_string(),
            (Some(why), true) => format!("refused, as it says it must be: {why}"),
            (Some(_), false) => "refused".to_string(),
        };
        terminal::print(&format!(
            "{}\n  {} on {cpus} for {}: {domains}, {vcpus}, {claims}\n  {verdict}\n",
            scenario.title, scenario.policy, scenario.length,
        ))?;
    }
    match admitted {
        Ok(()) if expected => claims::check_refusal(&args.file, &scenario),
        Err(error) if !expected => Err(Problem::of_sim(&args.file, &scenario, error.into())),
        _ => Ok(()),
    }
}

/// `1 CPU`, `2 CPUs`.
fn number_of(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
