//! The worst phase of a reservation, as a scenario.
//!
//! The VM has the CPU alone in its first period, so its slice comes at the start of the period.
//! From the second period on, a rival VM uses the remaining CPU time. The rival has the same
//! deadlines as the VM, and has precedence. So every slice of the VM comes at the end of its
//! period. All tasks are released together when the first slice is exhausted. One more task of the
//! guest computes whenever no other task is runnable, so the VM uses up each slice.

use std::fmt::Write as _;
use std::io::Write;

use slackline_fit::TaskScheduler;
use slackline_scenario::{Scenario, ScenarioError};
use slackline_sim::RunError;
use slackline_trace::{Exchange, Record, Sink, VcpuName, Writer};
use slackline_units::{Reservation, Span, TaskId, Time};
use thiserror::Error;

use super::tasks::NamedTasks;
use crate::header;

/// Name of the VM with the tasks.
pub(crate) const VM: &str = "vm";

/// Scenario in which a VM with a task set runs in the worst phase of its reservation. All tasks are
/// released when a slice is exhausted, and each later slice comes at the end of its period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorstPhase {
    names: Vec<String>,
    text: String,
}

/// Results of a run in the worst phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseRun {
    /// Number of jobs that were completed in the run.
    pub jobs: u64,
    /// First missed deadline. `None` if all deadlines were met.
    pub first_miss: Option<DeadlineMiss>,
}

/// A deadline that was missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlineMiss {
    /// Name of the task.
    pub task: String,
    /// Time at which the job was released.
    pub released: Time,
    /// Deadline of the job.
    pub deadline: Time,
    /// Time at which the job was done. `None` if the job was not done at the end of the run.
    pub done: Option<Time>,
}

/// Reason why a run in the worst phase failed.
#[derive(Debug, Error)]
pub enum RunPhaseError {
    /// The scenario is not valid, which is a bug.
    #[error("the scenario of the worst phase is not valid: {0}")]
    Scenario(ScenarioError),
    /// The simulation failed, which is a bug.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A reservation that has a proof missed a deadline, which is a bug.
    #[error("a proven reservation missed a deadline of the task `{}` in simulation", .0.task)]
    Contradiction(DeadlineMiss),
    /// The trace could not be written.
    #[error(transparent)]
    Trace(#[from] std::io::Error),
}

impl WorstPhase {
    /// Creates the scenario for a task set and a reservation. The run lasts for `within` after the
    /// release of all tasks, plus one period.
    #[must_use]
    pub fn new(tasks: &NamedTasks, reservation: Reservation, within: Span) -> WorstPhase {
        let text = scenario(tasks, reservation, within);
        WorstPhase { names: tasks.names.clone(), text }
    }

    /// Returns the scenario as a file.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Simulates the scenario, and writes its trace if a writer is given.
    ///
    /// # Errors
    /// If the trace cannot be written, or if the simulation fails, which is a bug.
    pub fn run<W: Write>(&self, trace: Option<W>) -> Result<PhaseRun, RunPhaseError> {
        let scenario = Scenario::read(&self.text).map_err(RunPhaseError::Scenario)?;
        let trace = trace.map(|out| Writer::new(out, &header::of_simulation(&scenario)));
        let mut watch = JobWatch { names: &self.names, jobs: 0, first_miss: None, trace };
        slackline_sim::run(&scenario, &mut watch)?;
        watch.trace.map(Writer::finish).transpose()?;
        Ok(PhaseRun { jobs: watch.jobs, first_miss: watch.first_miss })
    }
}

/// Sink that counts jobs and finds the first deadline that is missed.
struct JobWatch<'a, W: Write> {
    names: &'a [String],
    jobs: u64,
    first_miss: Option<DeadlineMiss>,
    trace: Option<Writer<W>>,
}

impl<W: Write> JobWatch<'_, W> {
    fn note(&mut self, task: Option<TaskId>, job: (Time, Time), done: Option<Time>) {
        let (released, deadline) = job;
        let name = task.and_then(|task| self.names.get(usize::from(task.number())));
        let is_late = done.is_none_or(|done| done > deadline);
        let is_first = self.first_miss.as_ref().is_none_or(|first| deadline < first.deadline);
        if let (Some(name), true, true) = (name, is_late, is_first) {
            let task = name.clone();
            self.first_miss = Some(DeadlineMiss { task, released, deadline, done });
        }
    }
}

impl<W: Write> Sink for JobWatch<'_, W> {
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Job { task, released, deadline, done, .. } => {
                self.jobs += 1;
                self.note(task, (released, deadline), Some(done));
            }
            Record::Unfinished { task, released, deadline, .. } => {
                self.note(task, (released, deadline), None);
            }
            _ => {}
        }
        if let Some(writer) = &mut self.trace {
            writer.record(record);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.trace.named(named);
    }

    fn wants_exchanges(&self) -> bool {
        self.trace.is_some()
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.trace.exchange(exchange);
    }
}

fn scenario(tasks: &NamedTasks, reservation: Reservation, within: Span) -> String {
    let (slice, period) = (reservation.slice(), reservation.period());
    let title = tasks.title.replace(|c: char| c.is_control() || c == '"' || c == '\\', " ");
    let length = slice + within + period * 2;
    let scheduler = tasks.set.scheduler().name();
    let mut text = format!(
        "# Worst phase of {slice}/{period}: the first slice comes at once, each later one at the\n\
         # end of its period. All tasks are released when the first slice is exhausted.\n\
         title  = \"{title}: {slice}/{period} in the worst phase\"\n\
         length = \"{length}\"\n\
         policy = {{ name = \"edf\", reserve = \"0cpu\" }}\n"
    );
    let rest = period - slice;
    if !rest.is_zero() {
        let _ = write!(
            text,
            "\n[[domain]]\n\
             name      = \"rival\"\n\
             joins     = \"{period}\"\n\
             work      = {{ kind = \"spin\" }}\n\
             share.edf = {{ slice = \"{rest}\", period = \"{period}\" }}\n"
        );
    }
    let _ = write!(
        text,
        "\n[[domain]]\n\
         name      = \"{VM}\"\n\
         kernel    = {{ scheduler = \"{scheduler}\" }}\n\
         share.edf = {{ slice = \"{slice}\", period = \"{period}\", exact = true }}\n"
    );
    for ((task, name), rank) in tasks.set.tasks().iter().zip(&tasks.names).zip(0u8..) {
        let (work, period, deadline) = (task.work(), task.period(), task.deadline());
        let priority = match tasks.set.scheduler() {
            TaskScheduler::Fixed => format!("priority = {}\n", u8::MAX - rank),
            TaskScheduler::Edf => String::new(),
        };
        let _ = write!(
            text,
            "\n[[domain.task]]\n\
             name = \"{name}\"\n\
             {priority}\
             work = {{ kind = \"periodic\", period = \"{period}\", work = \"{work}\", \
             deadline = \"{deadline}\", offset = \"{slice}\" }}\n"
        );
    }
    let _ = write!(
        text,
        "\n[[domain.task]]\n\
         priority = 0\n\
         work = {{ kind = \"spin\" }}\n\
         \n[[claim]]\n\
         that = \"jobs late of {VM}\"\n\
         is   = \"at most 0\"\n\
         on   = \"sim\"\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_fit::search::smallest_slice;

    const TASKS: &str = "[[task]]\nname = 'a'\nwork = '1ms'\nperiod = '10ms'\n";

    #[test]
    fn fitted_slice_meets_worst_phase_deadlines_but_smaller_slice_fails() {
        for scheduler in ["edf", "fixed"] {
            let tasks = NamedTasks::read(&format!("scheduler = '{scheduler}'\n{TASKS}")).unwrap();
            let fit = smallest_slice(&tasks.set, Span::from_ms(5), Span::from_us(1)).unwrap();
            let within = Span::from_ms(100);
            let meets = WorstPhase::new(&tasks, fit.reservation, within);
            let run = meets.run(None::<std::io::Sink>).unwrap();
            assert_eq!(run, PhaseRun { jobs: 11, first_miss: None });
            let witness = super::super::miss_below(&tasks, &fit).unwrap().unwrap();
            assert_eq!(witness.reservation.slice(), Span::from_us(999));
            let at = |us| Time::START.after(Span::from_us(us));
            let miss = DeadlineMiss {
                task: "a".into(),
                released: at(999),
                deadline: at(10_999),
                done: Some(at(14_002)),
            };
            assert_eq!(witness.miss, miss);
        }
    }
}
