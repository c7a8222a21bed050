//! Tasks as VMs: each task of a set becomes a VM with one vCPU, whose reservation is its worst-case
//! execution time (WCET) in each period.

use std::fmt::Write as _;

use slackline_units::Span;

use crate::names::Names;
use crate::write::{WrittenScenario, counted, head, quoted};

/// Maximum number of tasks.
pub(crate) const MOST_TASKS: usize = 10_000;
/// Longest run, and longest period of a task, in seconds: a day.
pub(crate) const LONGEST: u64 = 86_400;
/// Number of millionths of a CPU in a CPU.
const MILLION: u128 = 1_000_000;

/// A task that becomes a VM.
pub(crate) struct VmTask {
    pub(crate) name: String,
    pub(crate) work: Span,
    /// Period, or `None` if the task has a list of activation dates.
    pub(crate) period: Option<Span>,
    pub(crate) deadline: Span,
    /// Time of the first activation.
    pub(crate) offset: Span,
    /// Times of all activations, if they are listed.
    pub(crate) dates: Vec<Span>,
}

/// Tasks as the VMs of a host.
pub(crate) struct TaskVms<'a> {
    /// Name of the kind on the command line.
    pub(crate) kind: &'a str,
    pub(crate) title: &'a str,
    pub(crate) tasks: &'a [VmTask],
    pub(crate) cpus: usize,
    pub(crate) length: Span,
    /// Cost of a context switch.
    pub(crate) switch: Span,
}

impl VmTask {
    /// Creates a periodic task that is released first at the start of the run.
    pub(crate) fn periodic(name: String, work: Span, period: Span, deadline: Span) -> VmTask {
        let (offset, dates) = (Span::ZERO, Vec::new());
        VmTask { name, work, period: Some(period), deadline, offset, dates }
    }

    /// Returns the period of the reservation: the deadline or the period of the task, whichever is
    /// shorter.
    pub(crate) fn due(&self) -> Span {
        self.period.map_or(self.deadline, |period| period.min(self.deadline))
    }
}

/// Returns the assumptions about the tasks themselves.
pub(crate) fn assumed(tasks: &[VmTask]) -> Vec<String> {
    let mut all = vec![
        "each task is a VM that reserves its WCET in each period".to_owned(),
        "every job needs its WCET, and a job that misses its deadline continues".to_owned(),
    ];
    if tasks.iter().any(|task| task.period.is_some_and(|period| task.deadline < period)) {
        all.push(
            "if the deadline of a task is shorter than its period, the period of the reservation \
             is the deadline"
                .to_owned(),
        );
    }
    all
}

/// Returns the assumption that the reservations exceed the CPUs of the host, as a sentence. `None`
/// if the reservations fit on the CPUs.
pub(crate) fn overload(tasks: &[VmTask], cpus: usize) -> Option<String> {
    (demand(tasks) > MILLION * cpus as u128).then(|| {
        format!(
            "the reservations need more than {}, so that no policy admits them together",
            counted(cpus, "CPU")
        )
    })
}

/// Returns the smallest number of CPUs whose capacity covers all reservations.
pub(crate) fn cpus_for(tasks: &[VmTask]) -> usize {
    usize::try_from(demand(tasks).div_ceil(MILLION)).unwrap_or(usize::MAX).max(1)
}

/// Returns the sum of all reservations in millionths of a CPU, rounded down.
fn demand(tasks: &[VmTask]) -> u128 {
    let of = |task: &VmTask| u128::from(task.work.ns()) * MILLION / u128::from(task.due().ns());
    tasks.iter().map(of).sum()
}

impl TaskVms<'_> {
    /// Writes the scenario with these assumptions.
    pub(crate) fn write(&self, assumptions: Vec<String>) -> WrittenScenario {
        let TaskVms { kind, title, tasks, cpus, length, switch } = *self;
        let policy = match cpus {
            1 => "{ name = \"edf\", reserve = \"0cpu\", unblocking = \"new-period\" }",
            _ => "{ name = \"gedf\", reserve = \"0cpu\" }",
        };
        let mut text = head(kind, (title, length, policy), &assumptions);
        let _ = writeln!(text, "\n[host]\ncpus = {cpus}");
        if !switch.is_zero() {
            let _ = writeln!(text, "switch = \"{switch}\"");
        }
        let mut names = Names::default();
        for task in tasks {
            let name = names.make(&task.name);
            let (work, deadline, due) = (task.work, task.deadline, task.due());
            let _ = writeln!(text, "\n[[domain]]\nname = {}", quoted(&name));
            let _ = match task.period {
                Some(period) => {
                    let mut keys = format!("period = \"{period}\", work = \"{work}\"");
                    if deadline != period {
                        let _ = write!(keys, ", deadline = \"{deadline}\"");
                    }
                    if !task.offset.is_zero() {
                        let _ = write!(keys, ", offset = \"{}\"", task.offset);
                    }
                    writeln!(text, "work = {{ kind = \"periodic\", {keys} }}")
                }
                None => {
                    let list = |all: &[String]| all.join(", ");
                    let ready: Vec<String> =
                        task.dates.iter().map(|it| format!("\"{it}\"")).collect();
                    let works = vec![format!("\"{work}\""); ready.len()];
                    let (ready, works) = (list(&ready), list(&works));
                    writeln!(
                        text,
                        "work = {{ kind = \"jobs\", ready = [{ready}], work = [{works}] }}"
                    )
                }
            };
            let _ = match cpus {
                1 => writeln!(
                    text,
                    "share.edf = {{ slice = \"{work}\", period = \"{due}\", exact = true }}"
                ),
                _ => writeln!(
                    text,
                    "share.gedf = {{ budget = \"{work}\", period = \"{due}\", extra = false }}"
                ),
            };
        }
        WrittenScenario { text, axis: String::new(), files: Vec::new(), assumptions }
    }
}
