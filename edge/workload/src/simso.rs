//! Task sets of SimSo: periodic tasks, and tasks with a list of activation dates.
//!
//! Each task becomes a VM with one vCPU. The VM reserves the task's worst-case execution time in
//! each period, so that EDF serves the jobs in the order of their deadlines.

use roxmltree::{Document, Node, ParsingOptions};
use slackline_units::Span;

use crate::decimal::scaled;
use crate::error::WorkloadError;
use crate::task_vms::{self, LONGEST, MOST_TASKS, TaskVms, VmTask};
use crate::write::{WrittenScenario, counted};
use crate::{Options, SourceFile};

/// Maximum number of processors in a file.
const MOST_CPUS: usize = 256;

pub(crate) fn convert(
    file: &SourceFile<'_>,
    options: &Options,
) -> Result<WrittenScenario, WorkloadError> {
    let wrong = |why: String| WorkloadError::file(file.name, why);
    let text = std::str::from_utf8(file.bytes)
        .map_err(|_| wrong("the file is not UTF-8 text".to_owned()))?;
    // Entities could make the text of a small file arbitrarily long.
    let parsing = ParsingOptions { allow_dtd: false, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, parsing)
        .map_err(|error| wrong(error.to_string()).advise("name an XML file of SimSo"))?;
    let root = document.root_element();
    if !root.has_tag_name("simulation") {
        let why = format!("the root element is `{}`, not `simulation`", root.tag_name().name());
        return Err(wrong(why).advise("name an XML file of SimSo"));
    }
    let tasks = elements(&root, "tasks", "task");
    let cpus = elements(&root, "processors", "processor").len();
    let is_possible = (1..=MOST_TASKS).contains(&tasks.len()) && (1..=MOST_CPUS).contains(&cpus);
    if !is_possible {
        let why = format!(
            "{} tasks and {cpus} processors; 1 to {MOST_TASKS} and 1 to {MOST_CPUS} are possible",
            tasks.len()
        );
        return Err(wrong(why));
    }
    let tasks = tasks.iter().map(|node| task(file, node)).collect::<Result<Vec<_>, _>>()?;
    let cycles = cycles(&root).map_err(wrong)?;
    let (length, is_stated) = length(&root, cycles, options);
    let switch = switch(&root, cycles).map_err(wrong)?;
    let cpus = options.cpus.map_or(cpus, usize::from);
    let mut assumptions = assumed(&root, &tasks, cpus);
    if !is_stated {
        assumptions.push(format!("the run takes {length}; the file states no valid duration"));
    }
    let title = format!("{} of SimSo", counted(tasks.len(), "task"));
    let set = TaskVms { kind: "simso", title: &title, tasks: &tasks, cpus, length, switch };
    Ok(set.write(assumptions))
}

fn elements<'a>(root: &Node<'a, 'a>, list: &str, name: &str) -> Vec<Node<'a, 'a>> {
    let list = root.children().find(|node| node.has_tag_name(list));
    let all = list.into_iter().flat_map(|list| list.children());
    all.filter(|node| node.has_tag_name(name)).collect()
}

/// Returns the number of cycles in a millisecond.
fn cycles(root: &Node<'_, '_>) -> Result<u64, String> {
    let text = root.attribute("cycles_per_ms").unwrap_or("1000000");
    let cycles = scaled(text, 0).filter(|&cycles| cycles > 0);
    cycles.ok_or_else(|| format!("cycles_per_ms `{text}` is not a number above zero"))
}

/// Returns the length of the run, and true if the file states this length.
fn length(root: &Node<'_, '_>, cycles: u64, options: &Options) -> (Span, bool) {
    let duration = root.attribute("duration").and_then(|text| scaled(text, 0));
    let ns = duration.map(|duration| u128::from(duration) * 1_000_000 / u128::from(cycles));
    let ns = ns.and_then(|ns| u64::try_from(ns).ok());
    let span = ns.map(Span::from_ns).filter(|span| !span.is_zero());
    let stated = span.filter(|&span| span <= Span::from_secs(LONGEST));
    (stated.unwrap_or(options.length), stated.is_some())
}

/// Returns the cost of a context switch, which must be the same on all processors.
fn switch(root: &Node<'_, '_>, cycles: u64) -> Result<Span, String> {
    let mut found = None;
    for node in elements(root, "processors", "processor") {
        let speed = node.attribute("speed").unwrap_or("1.0");
        if scaled(speed, 6) != Some(1_000_000) {
            return Err(format!("a processor has speed {speed}; all CPUs of a host have speed 1"));
        }
        let text = node.attribute("cs_overhead").unwrap_or("0");
        let cost =
            scaled(text, 0).ok_or_else(|| format!("cs_overhead `{text}` is not a number"))?;
        if found.is_some_and(|found| found != cost) {
            return Err("processors have different cs_overhead".to_owned());
        }
        found = Some(cost);
    }
    let ns = u128::from(found.unwrap_or_default()) * 1_000_000 / u128::from(cycles);
    u64::try_from(ns).map(Span::from_ns).map_err(|_| "cs_overhead is too large".to_owned())
}

fn task(file: &SourceFile<'_>, node: &Node<'_, '_>) -> Result<VmTask, WorkloadError> {
    let name = node.attribute("name").unwrap_or("task").to_owned();
    let wrong = |why: String| WorkloadError::task(file.name, &name, why);
    let millis = |key: &str| -> Result<Span, WorkloadError> {
        let text = node.attribute(key).unwrap_or_default();
        let ns = scaled(text, 6).filter(|&ns| ns <= LONGEST * 1_000_000_000);
        ns.map(Span::from_ns).ok_or_else(|| wrong(format!("{key} `{text}` is not a time in ms")))
    };
    let (work, deadline) = (millis("WCET")?, millis("deadline")?);
    if node.attribute("followed_by").is_some_and(|next| !next.is_empty()) {
        return Err(wrong("`followed_by` cannot be expressed in a scenario".to_owned()));
    }
    let mut task = VmTask {
        name: name.clone(),
        work,
        period: None,
        deadline,
        offset: Span::ZERO,
        dates: vec![],
    };
    match node.attribute("task_type").unwrap_or("Periodic") {
        "Periodic" => {
            task.period = Some(millis("period")?);
            task.offset = millis("activationDate")?;
        }
        "APeriodic" | "Sporadic" => {
            let list = node.attribute("list_activation_dates").unwrap_or_default();
            for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
                let ns = scaled(text, 6).filter(|&ns| ns <= LONGEST * 1_000_000_000);
                let ns = ns.ok_or_else(|| {
                    wrong(format!("activation date `{text}` is not a time in ms"))
                })?;
                task.dates.push(Span::from_ns(ns));
            }
            task.dates.sort_unstable();
            if task.dates.is_empty() {
                return Err(wrong("the task has no activation dates".to_owned()));
            }
        }
        other => return Err(wrong(format!("tasks of type {other} cannot be expressed"))),
    }
    let due = task.due();
    if work.is_zero() || due.is_zero() || work > due {
        let why =
            format!("WCET {work} does not fit into {due}, the shorter of deadline and period");
        return Err(wrong(why));
    }
    Ok(task)
}

fn assumed(root: &Node<'_, '_>, tasks: &[VmTask], cpus: usize) -> Vec<String> {
    let mut all = task_vms::assumed(tasks);
    let sched = root.children().find(|node| node.has_tag_name("sched"));
    let class = sched.and_then(|node| node.attribute("class")).unwrap_or_default();
    let class = class.rsplit('.').next().unwrap_or_default();
    let ours = if cpus == 1 { "edf" } else { "gedf" };
    if !(class == "EDF" && cpus == 1) && class != "EDF_US" {
        all.push(format!("scheduler `{class}` of the file is replaced by `{ours}`"));
    }
    if tasks.iter().any(|task| !task.dates.is_empty()) {
        all.push(
            "jobs of tasks with activation dates have no deadlines in the scenario".to_owned(),
        );
    }
    all.extend(task_vms::overload(tasks, cpus));
    let costs = ["overhead", "overhead_activate", "overhead_terminate"];
    let is_free = |key: &str| sched.and_then(|node| node.attribute(key)).is_none_or(|it| it == "0");
    if let Some(cost) = costs.into_iter().find(|key| !is_free(key)) {
        all.push(format!("`{cost}` of the scheduler is left out"));
    }
    all.extend(left_out(root));
    all
}

/// Returns statements about attributes that have an effect in SimSo and none in the scenario.
fn left_out(root: &Node<'_, '_>) -> Vec<String> {
    let mut all = Vec::new();
    let costs = [("processors", "processor", "cl_overhead"), ("tasks", "task", "preemption_cost")];
    for (list, name, key) in costs {
        let cost = |node: &Node<'_, '_>| node.attribute(key).is_some_and(|it| it != "0");
        if elements(root, list, name).iter().any(cost) {
            all.push(format!("`{key}` of the {list} is left out"));
        }
    }
    let aborts = |node: &Node<'_, '_>| node.attribute("abort_on_miss") == Some("yes");
    if elements(root, "tasks", "task").iter().any(aborts) {
        all.push("`abort_on_miss` of the tasks is left out: late jobs go on".to_owned());
    }
    if let Some(model) = root.attribute("etm").filter(|&model| model != "wcet") {
        all.push(format!("execution time model `{model}` is replaced by the WCET of each task"));
    }
    all
}
