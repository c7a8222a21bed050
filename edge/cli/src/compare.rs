//! `slackline compare`: one scenario, several runs, one table.

use slackline_metrics::{Summary, side_by_side};

use crate::args::{Compare, Keeping};
use crate::problem::Problem;
use crate::{claims, input, json, run, sim, terminal};

pub(crate) fn compare(args: &Compare) -> Result<(), Problem> {
    let scenario = input::scenario(&args.file, args.length)?;
    let own = scenario.policy.spec.name.to_string();
    let policies = if args.policies.is_empty() { vec![own.clone()] } else { args.policies.clone() };
    let keeping = Keeping::default();
    let mut simulated = Vec::new();
    for policy in &policies {
        let scenario = input::under(&args.file, &scenario, policy)?;
        simulated
            .push((policy.as_str(), sim::simulate(&args.file, &scenario, &keeping)?.0.summary));
    }
    let live = if args.live || args.live_if_possible {
        match run::live(&args.file, &scenario, args.cpus.as_deref(), &keeping) {
            Ok(live) => Some(live),
            Err(problem) if args.live_if_possible && problem.is_about_the_host() => {
                problem.tell();
                terminal::tell("note:  simulated only\n\n");
                None
            }
            Err(problem) => return Err(problem),
        }
    } else {
        None
    };
    // With one policy the machines are what differs, with several the policies.
    let heading = |policy: &str| match (policies.len(), &live) {
        (1, Some(_)) => "simulated".to_string(),
        (_, Some(_)) => format!("{policy}, simulated"),
        _ => policy.to_string(),
    };
    let mut runs: Vec<(String, &Summary)> =
        simulated.iter().map(|(policy, summary)| (heading(policy), summary)).collect();
    if let Some(live) = &live {
        let heading = if policies.len() == 1 { "delivered".into() } else { format!("{own}, live") };
        runs.push((heading, live.summary()));
    }
    let runs: Vec<(&str, &Summary)> =
        runs.iter().map(|(name, run)| (name.as_str(), *run)).collect();
    if args.json {
        terminal::print(&json::runs(&runs))?;
    } else {
        let notes = live.as_ref().map_or(String::new(), |live| live.notes(&scenario));
        terminal::print(&(side_by_side(&runs) + &notes))?;
    }
    if let Some(live) = &live {
        live.was_whole()?;
    }
    let mut checked: Vec<_> = simulated
        .iter()
        .filter(|(policy, _)| *policy == own)
        .map(|(_, summary)| claims::Checked::sim(summary))
        .collect();
    checked.extend(live.as_ref().map(|live| claims::Checked::live(live.summary())));
    claims::check(&args.file, &scenario, &checked)
}
