//! The smallest slice of a VM of a scenario or of a recording, by simulation.

use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::Arc;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use slackline_experiments::fit::simulated::{
    FailedSeed, SearchError, SimulatedFit, SliceRange, search,
};
use slackline_experiments::fit::{SearchedVm, SearchedVmError};
use slackline_experiments::{NamedMetric, claims, header, simulate};
use slackline_trace::Writer;
use slackline_units::{Reservation, Span};
use slackline_whatif::{Form, Model};

use super::answer::{Fit, FitTrace, reservation};
use super::question::{FitArguments, argument, no_trace, refused};
use crate::error::{self, ScenarioError, SlacklineError};
use crate::interrupt::interruptible;
use crate::recording;
use crate::scenario::{NamedFiles, Scenario};

/// A question about a VM: the name of its source in messages, and the number of seeds that each
/// slice must pass.
pub(super) struct SimulatedQuestion<'a> {
    pub(super) what: &'a str,
    pub(super) seeds: u64,
}

/// Finds the smallest slice of a VM with which all claims of a scenario hold.
pub(super) fn fit(
    py: Python<'_>,
    scenario: &Scenario,
    arguments: &FitArguments,
    question: &SimulatedQuestion<'_>,
) -> PyResult<Fit> {
    let what = question.what;
    check_arguments(arguments, "a scenario")?;
    if arguments.claims.is_some() {
        let message = "cannot use `claims` with a scenario: its own claims are tested".to_owned();
        let hint = "write each claim into the scenario as a `[[claim]]` table";
        return Err(error::of_value(message, hint));
    }
    search_vm(py, scenario, arguments, question).map_err(|failed| match failed {
        SearchFailure::Raised(raised) => raised,
        SearchFailure::Unfit(unfit) => {
            error::of_value(format!("cannot fit {what}: {unfit}"), &unfit.hint(argument))
        }
    })
}

/// Refuses arguments that are possible only with a task set.
fn check_arguments(arguments: &FitArguments, what: &str) -> PyResult<()> {
    let given = [
        ("share", arguments.share.is_some(), "use `period`"),
        ("most_vms", arguments.most_vms, "use `period`"),
        ("reserve", arguments.reserve.is_some(), "write the key `reserve` into the policy"),
    ];
    match given.into_iter().find(|(_, is_given, _)| *is_given) {
        None => Ok(()),
        Some((name, _, hint)) => {
            let message = format!("cannot use `{name}` with {what}: its claims are tested");
            Err(error::of_value(message, hint))
        }
    }
}

/// Finds the smallest slice of a VM of a recording.
pub(super) fn of_recording(py: Python<'_>, path: &str, arguments: &FitArguments) -> PyResult<Fit> {
    check_arguments(arguments, "a recording")?;
    let bad = |why: &dyn ToString| recording::failed(path, why);
    let written = py.detach(|| {
        let recording = recording::read(path)?;
        let model = Model::new(&recording).map_err(|error| bad(&error))?;
        model.written(&recording.demand, Form::Open, "jobs").map_err(|error| bad(&error))
    })?;
    let files = NamedFiles::Made(Arc::new(written.files));
    let claims = match (&arguments.claims, &arguments.vm) {
        (Some(claims), _) => claims.clone(),
        (None, Some(vm)) => {
            let unchanged = Scenario::of_text(py, (Some(path), &written.text), files.clone())?;
            vec![as_recorded(py, &unchanged, vm)?]
        }
        (None, None) => {
            let message = format!("cannot fit {path}: no VM is named");
            return Err(error::of_value(message, "name a VM with `vm`"));
        }
    };
    let claim = |(that, is): &(String, String)| {
        let text = |text: &str| toml::Value::from(text).to_string();
        format!("\n[[claim]]\nthat = {}\nis = {}\n", text(that), text(is))
    };
    let text = written.text + &claims.iter().map(claim).collect::<String>();
    let scenario = Scenario::of_text(py, (Some(path), &text), files)?;
    let question = SimulatedQuestion { what: path, seeds: arguments.seeds.unwrap_or(1) };
    search_vm(py, &scenario, arguments, &question).map_err(|failed| match failed {
        SearchFailure::Raised(raised) => raised,
        SearchFailure::Unfit(unfit) => {
            error::of_value(format!("cannot fit {path}: {unfit}"), &unfit.hint(argument))
        }
    })
}

/// Returns the claim that a VM receives at least 99 % of the CPU time that it receives in a
/// simulation of the unchanged recording.
fn as_recorded(py: Python<'_>, unchanged: &Scenario, vm: &str) -> PyResult<(String, String)> {
    let metric = format!("delivered of {vm}");
    let results = py.detach(|| simulate(&unchanged.inner));
    let results = results.map_err(|error| error::of_run(py, &error))?;
    let summary = &results.numbers.summary;
    summary.unit("delivered", Some(vm)).map_err(|unknown| {
        let hint = unknown.nearest.as_ref().map(|nearest| format!("did you mean `{nearest}`?"));
        error::hinted(SlacklineError::new_err(unknown.to_string()), hint.as_deref())
    })?;
    let share = NamedMetric::read(&metric).value(summary).unwrap_or_default();
    let least = share.max(0) * 99 / 100;
    Ok((metric, format!("at least {}.{:04}%", least / 10_000, least % 10_000)))
}

/// Reason why a search has no answer.
enum SearchFailure {
    Raised(PyErr),
    Unfit(SearchedVmError),
}

impl From<PyErr> for SearchFailure {
    fn from(raised: PyErr) -> SearchFailure {
        SearchFailure::Raised(raised)
    }
}

impl From<SearchedVmError> for SearchFailure {
    fn from(unfit: SearchedVmError) -> SearchFailure {
        SearchFailure::Unfit(unfit)
    }
}

fn search_vm(
    py: Python<'_>,
    scenario: &Scenario,
    arguments: &FitArguments,
    question: &SimulatedQuestion<'_>,
) -> Result<Fit, SearchFailure> {
    let inner = &scenario.inner;
    claims::check(inner).map_err(|bad| of_claim(&bad))?;
    let vm = SearchedVm::of(inner, arguments.vm.as_deref(), arguments.period)?;
    let range = vm.range(arguments.step, (inner.seed, question.seeds))?;
    let read = |slice: Span| scenario.files.scenario(&vm.with_slice(slice).to_string());
    let found = interruptible(py, |stop| search(&range, read, &|_| stop.flow()))?;
    let found = found.map_err(|error| match (vm.refusal(&range, &error), error) {
        (Some(refusal), _) => refused(refusal),
        (None, SearchError::Scenario(error)) => error::of_scenario(py, None, &error),
        (None, SearchError::Run(failed)) => error::of_run(py, &failed.1),
        (None, _) => SlacklineError::new_err("the search was stopped"),
    })?;
    let run = |failing: &Option<(Span, FailedSeed)>| {
        let failing = failing.as_ref();
        failing.map(|(slice, failed)| trace(py, scenario, &vm, (*slice, failed))).transpose()
    };
    let (larger, trace) = (run(&found.above)?, run(&found.below)?);
    if let Some(path) = &arguments.save {
        let Some(trace) = &trace else {
            let why = "all claims hold for every tested slice, so there is no failed run";
            return Err(no_trace(path, why).into());
        };
        py.detach(|| save(path, &trace.scenario))?;
    }
    let hint = vm.warning(inner, &found);
    let fit = of_search(&inner.title, &vm, (&range, &found), trace);
    Ok(Fit { larger, hint, ..fit })
}

fn of_claim(bad: &claims::BadClaim) -> PyErr {
    let raised = ScenarioError::new_err(format!("{}: {bad}", bad.line()));
    Python::attach(|py| match raised.value(py).setattr("line", bad.line()) {
        Ok(()) => error::hinted(raised, Some(&bad.hint())),
        Err(error) => error,
    })
}

fn of_search(
    title: &str,
    vm: &SearchedVm,
    (range, found): (&SliceRange, &SimulatedFit),
    trace: Option<FitTrace>,
) -> Fit {
    let witnesses = [Some("seeds"), trace.as_ref().map(|_| "trace")];
    let answer = Reservation::new(found.slice, range.period).expect("a slice within the period");
    Fit {
        title: title.to_owned(),
        reservation: reservation(answer),
        witnesses: witnesses.into_iter().flatten().map(str::to_owned).collect(),
        proof: None,
        trace,
        larger: None,
        hint: None,
        tasks: Vec::new(),
        scheduler: None,
        utilisation_ppm: None,
        vms_per_cpu: None,
        tried_periods: None,
        periods: Vec::new(),
        simulated_jobs: None,
        vm: Some(vm.name().to_owned()),
        policy: Some(vm.policy().to_owned()),
        seeds: Some(range.seeds),
        first_seed: Some(range.seed),
        first_fresh_seed: Some(found.fresh_from),
        failing_seeds_at_most: Some(found.failing_at_most),
        confidence: Some(0.95),
        runs: Some(found.runs),
    }
}

fn trace(
    py: Python<'_>,
    scenario: &Scenario,
    vm: &SearchedVm,
    (slice, failed): (Span, &FailedSeed),
) -> PyResult<FitTrace> {
    let text = vm.with_seed(slice, failed.seed).to_string();
    let of = Reservation::new(slice, vm.period()).expect("a slice within the period");
    Ok(FitTrace {
        reservation: reservation(of),
        task: None,
        released_ns: None,
        deadline_ns: None,
        done_ns: None,
        seed: Some(failed.seed),
        claim: Some(failed.claim.clone()),
        scenario: Scenario::of_text(py, (None, &text), scenario.files.clone())?,
    })
}

/// Runs a scenario and writes its trace.
fn save(path: &str, scenario: &Scenario) -> PyResult<()> {
    let unwritable = |error: io::Error| PyOSError::new_err(format!("cannot write {path}: {error}"));
    let file = File::create(path).map_err(unwritable)?;
    let mut writer = Writer::new(BufWriter::new(file), &header::of_simulation(&scenario.inner));
    slackline_sim::run(&scenario.inner, &mut writer)
        .map_err(|error| SlacklineError::new_err(error.to_string()))?;
    writer.finish().map_err(unwritable)
}
