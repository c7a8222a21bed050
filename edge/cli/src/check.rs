//! `slackline check`: reads a scenario and tries its admission; runs nothing.

use std::path::Path;

use slackline_live::cgroup::TreePlace;
use slackline_live::sys::Tid;
use slackline_live::thread::threads_of;
use slackline_live::vcpus::find;
use slackline_runs::claims::expects_refusal;
use slackline_scenario::{Domain, LiveSubject, Scenario, Threads};

use crate::args::Check;
use crate::places::Places;
use crate::problem::Problem;
use crate::{claims, grid, terminal};

pub(crate) fn check(args: &Check) -> Result<(), Problem> {
    let scenario = grid::scenario(&args.file, None, &Places::of(&[])?)?;
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
            "live": looked_at(&scenario).iter().map(LookedAt::to_json).collect::<Vec<_>>(),
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
        for one in looked_at(&scenario) {
            let LookedAt { domain, is_there, says } = one;
            let word = if is_there { "" } else { "note: " };
            terminal::print(&format!("  {word}`{domain}`: {says}\n"))?;
        }
    }
    match admitted {
        Ok(()) if expected => claims::check_refusal(&args.file, &scenario),
        Err(error) if !expected => Err(Problem::of_sim(&args.file, &scenario, error.into())),
        _ => Ok(()),
    }
}

/// What is seen on this machine, just now, of whom a domain is to be here. That it is not there is
/// no fault of the scenario's: it may be meant for another machine, or for later.
struct LookedAt {
    domain: String,
    is_there: bool,
    says: String,
}

impl LookedAt {
    fn to_json(&self) -> serde_json::Value {
        let LookedAt { domain, is_there, says } = self;
        serde_json::json!({ "domain": domain, "is_there": is_there, "says": says })
    }
}

fn looked_at(scenario: &Scenario) -> Vec<LookedAt> {
    let of = |domain: &Domain| {
        let found = look_at(domain.live.as_ref()?, domain.vcpus.len());
        let (is_there, says) = match found {
            Ok(says) => (true, says),
            Err(says) => (false, says),
        };
        Some(LookedAt { domain: domain.name.clone(), is_there, says })
    };
    scenario.domains.iter().filter_map(of).collect()
}

fn look_at(subject: &LiveSubject, vcpus: usize) -> Result<String, String> {
    let running = |place: &TreePlace, name: String| match place.processes() {
        Ok(processes) if processes.is_empty() => Err(format!("nothing runs in {name} here")),
        Ok(processes) => Ok(format!("{name} is here, with {} in it", number(processes.len()))),
        Err(error) => Err(error.to_string()),
    };
    match subject {
        LiveSubject::Command { argv, .. } => Ok(format!("`{}` was not tried", argv[0])),
        LiveSubject::Pid { pid, threads: Threads::Process } => {
            let threads = Tid::new(*pid).map(threads_of);
            match threads {
                Some(Ok(threads)) => Ok(format!(
                    "process {pid} is here, with {}",
                    number_of(threads.len(), "thread")
                )),
                _ => Err(format!("there is no process {pid} here")),
            }
        }
        LiveSubject::Pid { pid, threads: Threads::Vcpus } => match find(*pid) {
            Ok(found) if found.len() == vcpus => {
                Ok(format!("process {pid} is here, with {}", number_of(vcpus, "vCPU thread")))
            }
            Ok(found) => Err(format!(
                "process {pid} has {}, but the domain has {}",
                number_of(found.len(), "vCPU thread"),
                number_of(vcpus, "vCPU"),
            )),
            Err(error) => Err(error.to_string()),
        },
        LiveSubject::Cgroup { path } => {
            let place = TreePlace::existing(Path::new(path)).map_err(|error| error.to_string())?;
            running(&place, format!("cgroup {path}"))
        }
        LiveSubject::Unit { name } => {
            let place = TreePlace::of_unit(name).map_err(|error| error.to_string())?;
            running(&place, name.clone())
        }
    }
}

/// `1 process`, `2 processes`.
fn number(processes: usize) -> String {
    let plural = if processes == 1 { "" } else { "es" };
    format!("{processes} process{plural}")
}

/// `1 CPU`, `2 CPUs`.
fn number_of(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
