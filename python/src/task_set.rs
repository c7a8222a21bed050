//! Task sets: the periodic tasks of a guest with one vCPU.

use std::path::PathBuf;

use pyo3::prelude::*;
use slackline_experiments::fit::NamedTasks;
use slackline_units::Span;

use crate::error::{self, ScenarioError};
use crate::files;

/// A task of a task set. Times are nanoseconds.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct FitTask {
    /// Name of the task.
    name: String,
    /// Longest CPU time of a job.
    work_ns: u64,
    /// Shortest time between two releases.
    period_ns: u64,
    /// Time from the release of a job until it must be done.
    deadline_ns: u64,
}

/// The periodic tasks of a guest with one vCPU, for `fit`.
///
/// `TaskSet(text)` reads TOML as `slackline help tasks` describes. Raises ScenarioError with the
/// line, the column and a hint.
#[pyclass(frozen, module = "slackline")]
#[derive(Clone)]
pub(crate) struct TaskSet {
    pub(crate) inner: NamedTasks,
}

impl TaskSet {
    /// Reads a task set from a text. `file` is the name of the task set in messages.
    pub(crate) fn of_text(py: Python<'_>, (file, text): (Option<&str>, &str)) -> PyResult<TaskSet> {
        let inner = NamedTasks::read(text).map_err(|wrong| {
            let before = text.get(..wrong.at).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            let file = file.map(|file| format!("{file}:")).unwrap_or_default();
            let raised = ScenarioError::new_err(format!("{file}{line}:{column}: {wrong}"));
            let value = raised.value(py);
            let set = value.setattr("line", line).and_then(|()| value.setattr("column", column));
            match set {
                Ok(()) => error::hinted(raised, wrong.hint.as_deref()),
                Err(error) => error,
            }
        })?;
        Ok(TaskSet { inner })
    }
}

#[pymethods]
impl TaskSet {
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<TaskSet> {
        TaskSet::of_text(py, (None, text))
    }

    /// Reads a task set from a file.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<TaskSet> {
        let path = &path.display().to_string();
        TaskSet::of_text(py, (Some(path), &files::text(path)?))
    }

    /// Title of the task set.
    #[getter]
    fn title(&self) -> &str {
        &self.inner.title
    }

    /// Scheduler of the guest: "edf" or "fixed".
    #[getter]
    fn scheduler(&self) -> &str {
        self.inner.set.scheduler().name()
    }

    /// Part of a CPU that the tasks use, in parts per million.
    #[getter]
    fn utilisation_ppm(&self) -> u64 {
        self.inner.set.utilisation_ppm()
    }

    /// The tasks. If the scheduler is "fixed", they are in the order of their priorities.
    #[getter]
    fn tasks(&self) -> Vec<FitTask> {
        rows(&self.inner)
    }

    fn __len__(&self) -> usize {
        self.inner.names.len()
    }

    fn __repr__(&self) -> String {
        let tasks = self.inner.names.len();
        format!("TaskSet({:?}, {tasks} tasks, scheduler={:?})", self.inner.title, self.scheduler())
    }
}

/// Returns the tasks of a set.
pub(crate) fn rows(tasks: &NamedTasks) -> Vec<FitTask> {
    let ns = Span::ns;
    let of = |(task, name): (&slackline_fit::PeriodicTask, &String)| FitTask {
        name: name.clone(),
        work_ns: ns(task.work()),
        period_ns: ns(task.period()),
        deadline_ns: ns(task.deadline()),
    };
    tasks.set.tasks().iter().zip(&tasks.names).map(of).collect()
}
