//! The function `fit`: its arguments, and the answer about a task set or a delay.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use slackline_experiments::fit::{
    AskedReservation, FitAnswer, FitError, FitQuestion, FitRefusal, MissWitness, RunPhaseError,
    answer, answer_delay, is_scenario,
};
use slackline_units::{CpuShare, Span};

use super::answer::Fit;
use super::simulated::{self, SimulatedQuestion};
use crate::error::{self, NotAdmitted, SlacklineError};
use crate::files;
use crate::interrupt::interruptible;
use crate::scenario::Scenario;
use crate::task_set::TaskSet;
use crate::value::{share, span};

/// First bytes of a trace.
const TRACE: &[u8] = b"slackline-trace-";

/// Default of the argument `reserve`.
const RESERVE: CpuShare = CpuShare::from_ppm(50_000);

/// Smallest valid value of the argument `share`.
const LEAST: CpuShare = CpuShare::from_ppm(1);

/// Argument `source` of `fit`: a task set, a scenario, or the path of a file.
#[derive(FromPyObject)]
pub(crate) enum FitSource<'py> {
    Tasks(PyRef<'py, TaskSet>),
    Scenario(PyRef<'py, Scenario>),
    Path(PathBuf),
}

/// Arguments of `fit`, parsed.
pub(crate) struct FitArguments {
    pub(crate) period: Option<Span>,
    pub(crate) share: Option<CpuShare>,
    pub(crate) delay: Option<Span>,
    pub(crate) most_vms: bool,
    pub(crate) step: Option<Span>,
    pub(crate) reserve: Option<CpuShare>,
    pub(crate) vm: Option<String>,
    pub(crate) seeds: Option<u64>,
    pub(crate) claims: Option<Vec<(String, String)>>,
    pub(crate) save: Option<String>,
}

/// Finds the smallest reservation with which a VM meets its deadlines, as `slackline fit` does.
///
/// `source` is a TaskSet, a Scenario, or the path of a task set, a scenario or a recording.
///
/// - For a task set the answer has two witnesses: a proof that the reservation suffices, and a
///   trace of a run in which a slightly smaller reservation misses a deadline. `period` ("5ms")
///   asks for the smallest slice, and `share` ("30%") for the largest period. `most_vms=True` asks
///   for the period with which the largest number of equal VMs fits on a CPU. The default is the
///   smallest slice for half of the shortest task period.
/// - Without a source, `share` and `delay` give a reservation with this share that never waits
///   longer than `delay` for CPU time.
/// - For the VM `vm` of a scenario, the simulator searches for the smallest slice with which all
///   claims hold. The claims must hold with each of `seeds` seeds (default 60), and then with as
///   many fresh seeds. `vm` can be left out if the scenario has one VM.
/// - For a recording (a trace of `slackline record`, `run` or `sim`), `claims` are pairs of a
///   metric and a test. An example is [("waiting of web", "below 2s")]. The default claim is that
///   the VM receives 99 % of the CPU time that it receives in a simulation of the unchanged
///   recording. One seed is used, since recorded work is not random.
///
/// `step` is the step of the slice, or with `share` the step of the period. The default is 1 us, or
/// 1 % of the period for a scenario. `reserve` is the part of a CPU that is never reserved, by
/// default "5%". A scenario states this part in its policy. `save` is the path to which the trace
/// is written.
///
/// Raises NotAdmitted if no reservation suffices, and SlacklineError for wrong arguments.
#[pyfunction]
#[pyo3(signature = (
    source=None, *, period=None, share=None, delay=None, most_vms=false, step=None, reserve=None,
    vm=None, seeds=None, claims=None, save=None
))]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments.
pub(crate) fn fit(
    py: Python<'_>,
    source: Option<FitSource<'_>>,
    period: Option<&str>,
    share: Option<&str>,
    delay: Option<&str>,
    most_vms: bool,
    step: Option<&str>,
    reserve: Option<&str>,
    vm: Option<String>,
    seeds: Option<u64>,
    claims: Option<Vec<(String, String)>>,
    save: Option<PathBuf>,
) -> PyResult<Fit> {
    let optional = |name, text: Option<&str>| text.map(|text| span(name, text)).transpose();
    let arguments = FitArguments {
        period: optional("period", period)?,
        share: share.map(|text| self::share("share", text, LEAST)).transpose()?,
        delay: optional("delay", delay)?,
        most_vms,
        step: optional("step", step)?,
        reserve: reserve.map(parse_reserve).transpose()?,
        vm,
        seeds,
        claims,
        save: save.map(|path| path.display().to_string()),
    };
    arguments.check(source.is_some())?;
    match source {
        None => arguments.of_delay(py),
        Some(FitSource::Tasks(tasks)) => arguments.of_tasks(py, &tasks, "the task set"),
        Some(FitSource::Scenario(scenario)) => {
            let question = SimulatedQuestion { what: "the scenario", seeds: seeds.unwrap_or(60) };
            simulated::fit(py, &scenario, &arguments, &question)
        }
        Some(FitSource::Path(path)) => arguments.of_file(py, &path),
    }
}

/// Parses the argument `reserve`: the share of a CPU that no reservation may use, at least 0 and
/// below one CPU.
fn parse_reserve(text: &str) -> PyResult<CpuShare> {
    let reserve = share("reserve", text, CpuShare::NONE)?;
    if reserve >= CpuShare::ONE {
        return Err(error::of_value(
            format!("reserve `{text}`: must be less than {}", CpuShare::ONE),
            "write it as \"5%\"",
        ));
    }
    Ok(reserve)
}

/// Returns the exception for arguments that cannot be combined.
fn combined(first: &str, second: &str, why: &str) -> PyErr {
    PyTypeError::new_err(format!("cannot use `{first}` with {second}: {why}"))
}

impl FitArguments {
    /// Checks that the arguments can be combined.
    fn check(&self, has_source: bool) -> PyResult<()> {
        let goals = [
            ("period", self.period.is_some()),
            ("share", self.share.is_some()),
            ("most_vms", self.most_vms),
        ];
        let mut goals = goals.into_iter().filter(|(_, is_given)| *is_given);
        if let (Some((first, _)), Some((second, _))) = (goals.next(), goals.next()) {
            return Err(combined(first, &format!("`{second}`"), "ask for one of them"));
        }
        if has_source && self.delay.is_some() {
            return Err(combined("delay", "a source", "a delay needs only `share`"));
        }
        if self.delay.is_some() && self.step.is_some() {
            return Err(combined("step", "`delay`", "the period is computed without steps"));
        }
        if !has_source && (self.delay.is_none() || self.share.is_none()) {
            let message = "name a task set, a scenario or a recording, or both `share` and `delay`";
            return Err(PyTypeError::new_err(message));
        }
        if self.seeds.is_some_and(|seeds| !(1..=10_000).contains(&seeds)) {
            let seeds = self.seeds.unwrap_or_default();
            let message = format!("seeds {seeds}: must be from 1 to 10000");
            return Err(error::of_value(
                message,
                "use 300 seeds to show that at most 1 % of all seeds fail",
            ));
        }
        Ok(())
    }

    /// Refuses arguments that are possible only with a scenario or a recording.
    fn check_tasks(&self, what: &str) -> PyResult<()> {
        let given = [
            ("vm", self.vm.is_some()),
            ("seeds", self.seeds.is_some()),
            ("claims", self.claims.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(combined(name, what, "it needs a scenario or a recording")),
            None => Ok(()),
        }
    }

    /// Returns the part of a CPU that is never reserved.
    fn reserve(&self) -> CpuShare {
        self.reserve.unwrap_or(RESERVE)
    }

    fn of_delay(&self, py: Python<'_>) -> PyResult<Fit> {
        self.check_tasks("a delay")?;
        let (Some(share), Some(delay)) = (self.share, self.delay) else {
            return Err(PyTypeError::new_err("name both `share` and `delay`"));
        };
        let reserve = self.reserve();
        let answer = interruptible(py, |_| answer_delay(share, delay, reserve))?;
        self.finish(py, answer, "the share")
    }

    fn of_tasks(&self, py: Python<'_>, tasks: &TaskSet, what: &str) -> PyResult<Fit> {
        self.check_tasks("a task set")?;
        let asked = match self.share {
            _ if self.most_vms => AskedReservation::MostVms,
            Some(share) => AskedReservation::Period { share },
            None => AskedReservation::Slice { period: self.period },
        };
        let question = FitQuestion::about(&tasks.inner, asked, self.step, self.reserve());
        let tasks = tasks.inner.clone();
        let answer = interruptible(py, |_| answer(tasks, question))?;
        self.finish(py, answer, what)
    }

    fn of_file(&self, py: Python<'_>, path: &Path) -> PyResult<Fit> {
        let path = &path.display().to_string();
        if files::begins_with(path, TRACE)? {
            return simulated::of_recording(py, path, self);
        }
        let text = files::text(path)?;
        if is_scenario(&text) {
            let scenario = Scenario::of_file(py, path, &text)?;
            let question = SimulatedQuestion { what: path, seeds: self.seeds.unwrap_or(60) };
            return simulated::fit(py, &scenario, self, &question);
        }
        self.of_tasks(py, &TaskSet::of_text(py, (Some(path), &text))?, path)
    }

    fn finish(
        &self,
        py: Python<'_>,
        answer: Result<FitAnswer, FitError>,
        what: &str,
    ) -> PyResult<Fit> {
        let answer = answer.map_err(|error| {
            match error.refusal(what, (self.share, self.reserve()), argument) {
                Some(refusal) => refused(refusal),
                None => SlacklineError::new_err(error.to_string()),
            }
        })?;
        if let Some(path) = &self.save {
            save(py, path, answer.miss.as_ref())?;
        }
        Fit::of_tasks(py, &answer)
    }
}

/// Formats the name of an argument in a hint.
pub(super) fn argument(name: &str) -> String {
    format!("`{name}`")
}

/// Returns the exception for a question that has no answer.
pub(super) fn refused(refusal: FitRefusal) -> PyErr {
    let FitRefusal { message, hint, is_bad_question } = refusal;
    let raised = match is_bad_question {
        true => SlacklineError::new_err(message),
        false => NotAdmitted::new_err(message),
    };
    error::hinted(raised, hint.as_deref())
}

/// Returns the exception for a trace that cannot be saved. `why` is the reason why there is no run
/// to save.
pub(super) fn no_trace(path: &str, why: &str) -> PyErr {
    let message = format!("cannot write {path}: {why}");
    error::hinted(NotAdmitted::new_err(message), Some("use a smaller `step`"))
}

/// Saves the trace of the run that misses a deadline.
fn save(py: Python<'_>, path: &str, miss: Option<&MissWitness>) -> PyResult<()> {
    let Some(miss) = miss else {
        let why = "no slightly smaller reservation is known to miss a deadline, so there is no run \
                   to save";
        return Err(no_trace(path, why));
    };
    let written = py.detach(|| {
        let file = File::create(path)?;
        miss.phase.run(Some(BufWriter::new(file)))
    });
    written.map(|_| ()).map_err(|error| match error {
        RunPhaseError::Trace(error) => PyOSError::new_err(format!("cannot write {path}: {error}")),
        error => SlacklineError::new_err(error.to_string()),
    })
}
