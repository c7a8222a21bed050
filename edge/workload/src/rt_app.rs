//! Workloads of rt-app: threads with phases, and events in each phase.
//!
//! Each thread becomes a VM with one vCPU. `run`, `runtime`, `sleep` and `timer` can be expressed.
//! A thread that repeats one phase forever becomes work of kind `periodic`, `interactive` or
//! `spin`. Any other thread becomes a list of jobs for the length of the run. Events by which
//! threads wait for each other are refused.

mod json;
mod task;
mod unroll;

use std::fmt::Write as _;

use slackline_units::Span;

use crate::error::WorkloadError;
use crate::names::Names;
use crate::rt_app::json::Node;
use crate::rt_app::task::{RtPolicy, Task};
use crate::write::{WrittenScenario, counted, head, quoted};
use crate::{Options, SourceFile};

/// Weight of a thread of nice value 0 under `fair`. The weight under `credit` is a quarter of this
/// weight.
const WEIGHT: u64 = 1_024;
/// Largest weight that the policies accept.
const MOST_WEIGHT: u64 = 65_535;
/// Longest run in seconds: a day.
const LONGEST: u64 = 86_400;
/// Maximum number of threads in a scenario.
const MOST_THREADS: u64 = 10_000;

pub(crate) fn convert(
    file: &SourceFile<'_>,
    options: &Options,
    stem: &str,
) -> Result<WrittenScenario, WorkloadError> {
    let root = json::parse(file)?;
    let wrong = |why: &str| WorkloadError::file(file.name, why);
    let tasks = root.get("tasks").and_then(Node::object);
    let tasks = tasks.ok_or_else(|| {
        wrong("the file has no object `tasks`").advise("name a file that rt-app reads")
    })?;
    let global = root.get("global");
    let policy = global.and_then(|it| it.get("default_policy")).and_then(Node::text);
    let read = |(name, node): &(String, Node)| {
        Task::read(name, node, policy).map_err(|why| WorkloadError::task(file.name, name, why))
    };
    let tasks: Vec<Task> = tasks.iter().map(read).collect::<Result<_, _>>()?;
    if tasks.is_empty() {
        return Err(wrong("the object `tasks` has no thread"));
    }
    let threads = tasks.iter().map(|task| task.instances).sum::<u64>();
    if threads > MOST_THREADS {
        return Err(wrong(&format!("{threads} threads; at most {MOST_THREADS} are possible")));
    }
    let duration = global.and_then(|it| it.get("duration")).and_then(Node::number);
    let length = match duration.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) if (1..=LONGEST).contains(&seconds) => Span::from_secs(seconds),
        _ => options.length,
    };
    let assumptions = assumed(&tasks, duration, length, options);
    write(file, &tasks, (length, options), stem, assumptions)
}

fn assumed(tasks: &[Task], duration: Option<i64>, length: Span, options: &Options) -> Vec<String> {
    let mut all = vec![
        "each thread is a VM with one vCPU".to_owned(),
        "`run` of 1 us is 1 us of CPU time on this host, as after rt-app's calibration".to_owned(),
    ];
    if tasks.iter().any(|task| task.has_runtime) {
        all.push(
            "`runtime` of 1 us is 1 us of CPU time; rt-app also counts the time of preemptions"
                .to_owned(),
        );
    }
    if tasks.iter().any(Task::has_timer) {
        all.push("all timers are absolute: a late job does not delay later jobs".to_owned());
    }
    match duration {
        Some(seconds) if Span::from_secs(seconds.unsigned_abs()) == length => {}
        Some(seconds) => {
            all.push(format!("the run takes {length}; a duration of {seconds} s is not possible"));
        }
        None => all.push(format!("the run takes {length}; the file has no duration")),
    }
    if options.cpus.is_none() {
        let cpus = usize::from(cpus(tasks, options));
        all.push(format!(
            "the host has {}, because the file does not state the number of CPUs",
            counted(cpus, "CPU")
        ));
    }
    for task in tasks {
        if let RtPolicy::Deadline { deadline, period, .. } = task.policy
            && deadline != period
        {
            let name = &task.name;
            all.push(format!(
                "`{name}` receives its runtime by the end of its period {period}, not by its \
                 deadline {deadline}"
            ));
        }
    }
    if is_mixed(tasks) {
        all.push(
            "threads without SCHED_DEADLINE reserve 1us of 100ms and divide the slack of their \
             CPU equally"
                .to_owned(),
        );
        if cpus(tasks, options) > 1 {
            all.push(
                "`edf` keeps each thread on one CPU, which it chooses by reservations only: \
                 threads without SCHED_DEADLINE can share one CPU while another is idle; `cpus` \
                 in the scenario places them"
                    .to_owned(),
            );
        }
    }
    all
}

fn has_deadline(task: &Task) -> bool {
    matches!(task.policy, RtPolicy::Deadline { .. })
}

fn is_mixed(tasks: &[Task]) -> bool {
    tasks.iter().any(has_deadline) && !tasks.iter().all(has_deadline)
}

/// Returns the number of CPUs of the host: the option, or one more than the largest CPU number in
/// the file.
fn cpus(tasks: &[Task], options: &Options) -> u16 {
    let named = tasks.iter().filter_map(|task| task.cpus.iter().max()).max();
    options.cpus.unwrap_or_else(|| named.map_or(1, |largest| largest + 1))
}

fn write(
    file: &SourceFile<'_>,
    tasks: &[Task],
    (length, options): (Span, &Options),
    stem: &str,
    assumptions: Vec<String>,
) -> Result<WrittenScenario, WorkloadError> {
    let is_edf = tasks.iter().any(has_deadline);
    let policy = if is_edf { "{ name = \"edf\" }" } else { "{ name = \"fair\" }" };
    let threads: u64 = tasks.iter().map(|task| task.instances).sum();
    let threads = usize::try_from(threads).unwrap_or(usize::MAX);
    let title = format!("{} of rt-app", counted(threads, "thread"));
    let mut text = head("rt-app", (&title, length, policy), &assumptions);
    let _ = writeln!(text, "\n[host]\ncpus = {}", cpus(tasks, options));
    let mut names = Names::default();
    let mut files = Vec::new();
    for task in tasks {
        let name = names.make(&task.name);
        let wrong = |why| WorkloadError::task(file.name, &task.name, why);
        let work = unroll::work(task, length).map_err(wrong)?;
        let _ = writeln!(text, "\n[[domain]]\nname = {}", quoted(&name));
        if task.instances > 1 {
            let _ = writeln!(text, "copies = {}", task.instances);
        }
        if !task.cpus.is_empty() {
            let list: Vec<String> = task.cpus.iter().map(u16::to_string).collect();
            let _ = writeln!(text, "cpus = [{}]", list.join(", "));
        }
        if !task.delay.is_zero() {
            let _ = writeln!(text, "joins = \"{}\"", task.delay);
        }
        let work = work.text(&format!("{stem}-{name}.jobs"), &mut files);
        let _ = writeln!(text, "work = {work}");
        text.push_str(&share(task, is_edf));
    }
    Ok(WrittenScenario { text, axis: String::new(), files, assumptions })
}

fn share(task: &Task, is_edf: bool) -> String {
    match task.policy {
        RtPolicy::Deadline { runtime, period, .. } => {
            format!(
                "share.edf = {{ slice = \"{runtime}\", period = \"{period}\", exact = true }}\n"
            )
        }
        RtPolicy::Other { .. } if is_edf => {
            "share.edf = { slice = \"1us\", period = \"100ms\" }\n".to_owned()
        }
        RtPolicy::Other { nice } => {
            let weight = weight(nice);
            let credit = (weight / 4).max(1);
            format!(
                "share.fair = {{ weight = {weight} }}\nshare.credit = {{ weight = {credit} }}\n"
            )
        }
    }
}

/// Returns the weight of a nice value. Each lower nice value has a quarter more weight, and each
/// higher nice value a fifth less.
fn weight(nice: i64) -> u64 {
    let step = |weight: u64| if nice < 0 { weight * 5 / 4 } else { weight * 4 / 5 };
    // The weight is scaled, so that rounding errors do not add up.
    let scaled = (0..nice.unsigned_abs()).fold(WEIGHT << 20, |weight, _| step(weight));
    (scaled >> 20).clamp(1, MOST_WEIGHT)
}

#[cfg(test)]
mod tests {
    use super::weight;

    #[test]
    fn weight_of_nice_value_changes_by_a_quarter_per_step() {
        assert_eq!(weight(0), 1_024);
        assert_eq!(weight(-1), 1_280);
        assert_eq!(weight(1), 819);
        assert_eq!(weight(19), 14);
        assert_eq!(weight(-20), 65_535);
    }
}
