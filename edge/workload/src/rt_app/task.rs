//! A thread of rt-app.

use slackline_units::Span;

use crate::rt_app::json::Node;

/// Longest time of an event: an hour, in microseconds.
const LONGEST_US: u64 = 3_600_000_000;
/// Largest number of repetitions and of threads.
const MOST_LOOPS: u64 = 1_000_000_000;
/// Events that a scenario can express. `runtime` must precede `run`, because a key is matched by
/// how it begins.
const EVENTS: [&str; 4] = ["runtime", "run", "sleep", "timer"];
/// Events by which threads wait for each other or use more than CPU time.
const OTHERS: [&str; 14] = [
    "barrier",
    "lock",
    "unlock",
    "wait",
    "signal",
    "broad",
    "sync",
    "suspend",
    "resume",
    "mem",
    "iorun",
    "yield",
    "fork",
    "sig_and_wait",
];
/// Keys of a thread or a phase that are not events.
const KEYS: [&str; 14] = [
    "instance",
    "policy",
    "priority",
    "dl-runtime",
    "dl-period",
    "dl-deadline",
    "cpus",
    "delay",
    "loop",
    "phases",
    "util_min",
    "util_max",
    "nodes_membind",
    "taskgroup",
];

/// A thread of rt-app.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) name: String,
    /// Number of identical threads that rt-app starts for this entry of the file.
    pub(crate) instances: u64,
    pub(crate) policy: RtPolicy,
    /// Affinity. If empty, all CPUs are allowed.
    pub(crate) cpus: Vec<u16>,
    /// Time before the thread begins.
    pub(crate) delay: Span,
    /// Number of repetitions of all phases. `None` if the phases are repeated forever.
    pub(crate) loops: Option<u64>,
    pub(crate) phases: Vec<Phase>,
    /// True if the thread has an event `runtime`, which computes until a time has passed.
    pub(crate) has_runtime: bool,
}

/// Scheduling class of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RtPolicy {
    /// `SCHED_OTHER` with this nice value.
    Other { nice: i64 },
    /// `SCHED_DEADLINE` with its three parameters.
    Deadline { runtime: Span, deadline: Span, period: Span },
}

/// Events that are repeated.
#[derive(Debug)]
pub(crate) struct Phase {
    /// Number of repetitions. `None` if the events are repeated forever.
    pub(crate) loops: Option<u64>,
    pub(crate) events: Vec<Event>,
}

/// Event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Computes for this CPU time.
    Run(Span),
    /// Sleeps for this time.
    Sleep(Span),
    /// Sleeps until this time has passed since the last use of the timer.
    Timer(Span),
}

impl Task {
    /// Reads a thread. The error says which part of the thread a scenario cannot express.
    pub(crate) fn read(name: &str, node: &Node, default: Option<&str>) -> Result<Task, String> {
        let fields = node.object().ok_or("the thread is not an object")?;
        let phases = match node.get("phases") {
            Some(phases) => {
                let phases = phases.object().ok_or("`phases` is not an object")?;
                if let Some((key, _)) = fields.iter().find(|(key, _)| event(key).is_some()) {
                    return Err(format!(
                        "a thread with `phases` has the event `{key}` outside of its phases"
                    ));
                }
                check_keys(fields)?;
                phases.iter().map(|(name, node)| phase(name, node)).collect::<Result<_, _>>()?
            }
            None => vec![Phase { loops: Some(1), events: events(fields)? }],
        };
        let instances = match node.get("instance") {
            None => 1,
            Some(node) => positive(node, "instance")?,
        };
        let delay = match node.get("delay") {
            None => Span::ZERO,
            Some(node) => micros(node, "delay")?,
        };
        Ok(Task {
            name: name.to_owned(),
            instances,
            policy: policy(node, default)?,
            cpus: cpus(node)?,
            delay,
            loops: loops(node, None)?,
            phases,
            has_runtime: has_runtime(fields),
        })
    }

    /// Returns true if a timer wakes the thread.
    pub(crate) fn has_timer(&self) -> bool {
        self.events().any(|event| matches!(event, Event::Timer(_)))
    }

    /// Returns all events of all phases.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Event> {
        self.phases.iter().flat_map(|phase| &phase.events)
    }
}

/// Returns true if a thread or one of its phases has an event `runtime`.
fn has_runtime(fields: &[(String, Node)]) -> bool {
    let of_phase = |(_, phase): &(String, Node)| phase.object().is_some_and(has_runtime);
    fields.iter().any(|(key, node)| match &**key {
        "phases" => node.object().is_some_and(|phases| phases.iter().any(of_phase)),
        _ => key.starts_with("runtime"),
    })
}

fn phase(name: &str, node: &Node) -> Result<Phase, String> {
    let fields = node.object().ok_or_else(|| format!("phase `{name}` is not an object"))?;
    if node.get("cpus").is_some() {
        return Err(format!("phase `{name}` changes `cpus`; a VM cannot change its affinity"));
    }
    Ok(Phase { loops: loops(node, Some(1))?, events: events(fields)? })
}

fn events(fields: &[(String, Node)]) -> Result<Vec<Event>, String> {
    check_keys(fields)?;
    let mut all = Vec::new();
    for (key, node) in fields {
        let Some(kind) = event(key) else { continue };
        all.push(match kind {
            "sleep" => Event::Sleep(micros(node, key)?),
            "timer" => {
                let period = node.get("period").ok_or_else(|| format!("`{key}` has no period"))?;
                Event::Timer(micros(period, key)?)
            }
            _ => Event::Run(micros(node, key)?),
        });
    }
    Ok(all)
}

/// Returns the kind of the event that a key names. rt-app knows events by how their keys begin.
fn event(key: &str) -> Option<&'static str> {
    EVENTS.into_iter().find(|event| key.starts_with(event))
}

fn check_keys(fields: &[(String, Node)]) -> Result<(), String> {
    for (key, _) in fields {
        let is_known = KEYS.contains(&key.as_str()) || event(key).is_some();
        if is_known {
            continue;
        }
        return Err(match OTHERS.iter().find(|other| key.starts_with(*other)) {
            Some(other) => format!("event `{other}` cannot be expressed in a scenario"),
            None => format!("key `{key}` is unknown"),
        });
    }
    Ok(())
}

fn policy(node: &Node, default: Option<&str>) -> Result<RtPolicy, String> {
    let name = node.get("policy").and_then(Node::text).or(default).unwrap_or("SCHED_OTHER");
    match name {
        "SCHED_OTHER" => {
            let nice = node.get("priority").and_then(Node::number).unwrap_or_default();
            if (-20..=19).contains(&nice) {
                return Ok(RtPolicy::Other { nice });
            }
            Err(format!("priority {nice} of SCHED_OTHER; -20 to 19 are possible"))
        }
        "SCHED_DEADLINE" => {
            let runtime = node.get("dl-runtime").ok_or("SCHED_DEADLINE needs `dl-runtime`")?;
            let runtime = micros(runtime, "dl-runtime")?;
            let period = node.get("dl-period").map(|it| micros(it, "dl-period")).transpose()?;
            let deadline =
                node.get("dl-deadline").map(|it| micros(it, "dl-deadline")).transpose()?;
            let period = period.or(deadline).unwrap_or(runtime);
            let deadline = deadline.unwrap_or(period);
            if runtime.is_zero() || runtime > deadline || deadline > period {
                return Err(format!(
                    "dl-runtime {runtime}, dl-deadline {deadline}, dl-period {period}; \
                     0 < runtime <= deadline <= period is required"
                ));
            }
            Ok(RtPolicy::Deadline { runtime, deadline, period })
        }
        other => {
            Err(format!("policy {other} cannot be expressed; SCHED_OTHER and SCHED_DEADLINE can"))
        }
    }
}

fn cpus(node: &Node) -> Result<Vec<u16>, String> {
    let list = match node.get("cpus") {
        None => return Ok(Vec::new()),
        Some(Node::List(list)) => list,
        Some(_) => return Err("`cpus` is not a list".to_owned()),
    };
    let cpu = |node: &Node| {
        let number = node.number().and_then(|number| u16::try_from(number).ok());
        number.filter(|&number| number < 256).ok_or("`cpus` has a number that is not 0 to 255")
    };
    Ok(list.iter().map(cpu).collect::<Result<_, _>>()?)
}

/// Returns the number of repetitions. `None` if the file has -1, which means forever.
fn loops(node: &Node, default: Option<u64>) -> Result<Option<u64>, String> {
    match node.get("loop").map(|it| (it, it.number())) {
        None => Ok(default),
        Some((_, Some(-1))) => Ok(None),
        Some((node, _)) => match positive(node, "loop") {
            Ok(loops) => Ok(Some(loops)),
            Err(_) => Err(format!("`loop` is not -1 or 1 to {MOST_LOOPS}")),
        },
    }
}

fn positive(node: &Node, key: &str) -> Result<u64, String> {
    let number = node.number().and_then(|number| u64::try_from(number).ok());
    let number = number.filter(|&number| (1..=MOST_LOOPS).contains(&number));
    number.ok_or_else(|| format!("`{key}` is not 1 to {MOST_LOOPS}"))
}

fn micros(node: &Node, key: &str) -> Result<Span, String> {
    let number = node.number().and_then(|number| u64::try_from(number).ok());
    let number = number.filter(|&number| number <= LONGEST_US);
    number.map(Span::from_us).ok_or_else(|| format!("`{key}` is not 0 to {LONGEST_US} us"))
}
