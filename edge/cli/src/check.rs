//! Command `slackline check`, which reads a scenario and tests its admission. It runs nothing.

use std::path::Path;

use serde_json::{Map, Value, json};
use slackline_experiments::axes::Axis;
use slackline_experiments::claims::expects_refusal;
use slackline_linux::cgroup::TreePlace;
use slackline_linux::sys::Tid;
use slackline_linux::thread::threads_of;
use slackline_live::vcpus::find;
use slackline_scenario::{Domain, LiveTarget, Scenario, Threads};

use crate::args::Check;
use crate::grid::{self, Grid, Input, Point};
use crate::places::Places;
use crate::problem::Problem;
use crate::{claims, terminal};

pub(crate) fn check(args: &Check) -> Result<(), Problem> {
    let scenario = match grid::read(&args.file, None, &Places::of(&[])?)? {
        Input::One(scenario) => *scenario,
        Input::Grid(grid) => return check_points(args, &grid),
    };
    let admitted = scenario.admit();
    let refused = admitted.as_ref().err().map(ToString::to_string);
    if args.json {
        terminal::print(&format!("{:#}\n", as_json(&scenario, refused.as_deref())))?;
    } else {
        let verdict = verdict(refused.as_deref(), expects_refusal(&scenario));
        terminal::say(&format!("{}\n  {}\n  {verdict}\n", scenario.title, what(&scenario)))?;
        for one in looked_at(&scenario) {
            let LookedAt { domain, is_there, says } = one;
            let word = if is_there { "" } else { "note: " };
            terminal::say(&format!("  {word}`{domain}`: {says}\n"))?;
        }
    }
    judged(&args.file, &scenario)
}

/// Checks every point of a scenario with axes.
///
/// # Errors
/// If a point is refused and no claim expects that, or if it is admitted although a claim expects a
/// refusal. Later points are then not checked.
fn check_points(args: &Check, grid: &Grid) -> Result<(), Problem> {
    let refused = |point: &Point| point.scenario.admit().err().map(|error| error.to_string());
    if args.json {
        let point = |point: &Point| {
            let mut found = as_json(&point.scenario, refused(point).as_deref());
            let place: Map<String, Value> = grid
                .point(&point.place)
                .into_iter()
                .map(|(axis, name)| (axis, json!(name)))
                .collect();
            found["point"] = Value::Object(place);
            found
        };
        let points: Vec<Value> = grid.points.iter().map(point).collect();
        terminal::print(&format!("{:#}\n", json!({ "points": points })))?;
    } else {
        let first = &grid.points[0].scenario;
        let axes: Vec<&str> = grid.axes.iter().map(Axis::name).collect();
        let count = number_of(grid.points.len(), "point");
        let mut text = format!("{}, over {}: {count}\n", first.title, axes.join(" / "));
        for point in &grid.points {
            let verdict = verdict(refused(point).as_deref(), expects_refusal(&point.scenario));
            text += &format!("  {}: {verdict}\n", point.name);
        }
        terminal::say(&text)?;
    }
    grid.points.iter().try_for_each(|point| match expects_refusal(&point.scenario) {
        true => judged(&args.file, &point.scenario),
        false => point.admitted(&args.file, &point.scenario),
    })
}

fn as_json(scenario: &Scenario, refused: Option<&str>) -> Value {
    json!({
        "title": scenario.title,
        "policy": scenario.policy.to_string(),
        "cpus": scenario.host.cpus,
        "domains": scenario.domains.len(),
        "vcpus": scenario.vcpus().count(),
        "changes": scenario.changes.len(),
        "claims": scenario.claims.len(),
        "length_ns": scenario.length.ns(),
        "admitted": refused.is_none(),
        "refused": refused,
        "live": looked_at(scenario).iter().map(LookedAt::to_json).collect::<Vec<_>>(),
    })
}

/// Describes a scenario in one line: its policy, its length and its size.
fn what(scenario: &Scenario) -> String {
    let domains = number_of(scenario.domains.len(), "domain");
    let claims = number_of(scenario.claims.len(), "claim");
    let cpus = number_of(scenario.host.cpus, "CPU");
    let vcpus = number_of(scenario.vcpus().count(), "vCPU");
    let (policy, length) = (&scenario.policy, scenario.length);
    format!("{policy} on {cpus} for {length}: {domains}, {vcpus}, {claims}")
}

/// Returns the result of admission as a sentence. `expected` is true if a claim expects a refusal.
fn verdict(refused: Option<&str>, expected: bool) -> String {
    match (refused, expected) {
        (None, _) => "admitted".into(),
        (Some(why), true) => format!("admission refuses the scenario, as its claim expects: {why}"),
        (Some(_), false) => "refused".into(),
    }
}

/// Checks that the result of admission is as expected: a refusal if a claim expects a refusal,
/// otherwise acceptance.
fn judged(file: &Path, scenario: &Scenario) -> Result<(), Problem> {
    let expected = expects_refusal(scenario);
    match scenario.admit() {
        Ok(()) if expected => claims::check_refusal(file, scenario),
        Err(error) if !expected => Err(Problem::of_sim(file, scenario, error.into())),
        _ => Ok(()),
    }
}

/// State of a domain's live target (process or VM) on this host. A missing target is no error,
/// because the scenario may be meant for another host or for another time.
struct LookedAt {
    domain: String,
    is_there: bool,
    says: String,
}

impl LookedAt {
    fn to_json(&self) -> Value {
        let LookedAt { domain, is_there, says } = self;
        json!({ "domain": domain, "is_there": is_there, "says": says })
    }
}

/// Returns the state of each live target that the scenario names.
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

/// Describes the live target of a domain with `vcpus` vCPUs. The error states what is missing.
fn look_at(target: &LiveTarget, vcpus: usize) -> Result<String, String> {
    let running = |place: &TreePlace, name: String| match place.processes() {
        Ok(processes) if processes.is_empty() => Err(format!("{name} has no processes")),
        Ok(processes) => Ok(format!("{name} has {}", number(processes.len()))),
        Err(error) => Err(error.to_string()),
    };
    match target {
        LiveTarget::Command { argv, .. } => Ok(format!("`{}` is started only by `run`", argv[0])),
        LiveTarget::Pid { pid, threads: Threads::Process } => {
            let threads = Tid::new(*pid).map(threads_of);
            match threads {
                Some(Ok(threads)) => {
                    Ok(format!("process {pid} has {}", number_of(threads.len(), "thread")))
                }
                _ => Err(format!("there is no process {pid}")),
            }
        }
        LiveTarget::Pid { pid, threads: Threads::Vcpus } => match find(*pid) {
            Ok(found) if found.len() == vcpus => {
                Ok(format!("process {pid} has {}", number_of(vcpus, "vCPU thread")))
            }
            Ok(found) => Err(format!(
                "process {pid} has {}, but the domain has {}",
                number_of(found.len(), "vCPU thread"),
                number_of(vcpus, "vCPU"),
            )),
            Err(error) => Err(error.to_string()),
        },
        LiveTarget::Cgroup { path } => {
            let place = TreePlace::existing(Path::new(path)).map_err(|error| error.to_string())?;
            running(&place, format!("cgroup {path}"))
        }
        LiveTarget::Unit { name } => {
            let place = TreePlace::of_unit(name).map_err(|error| error.to_string())?;
            running(&place, name.clone())
        }
    }
}

/// Formats a number of processes, such as `1 process` or `2 processes`.
fn number(processes: usize) -> String {
    let plural = if processes == 1 { "" } else { "es" };
    format!("{processes} process{plural}")
}

/// Formats a number with its noun, such as `1 CPU` or `2 CPUs`.
pub(crate) fn number_of(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
