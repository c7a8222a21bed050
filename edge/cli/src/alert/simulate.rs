//! Simulates a test: every case, target and seed, on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use slackline_metrics::{WholeSeconds, allocation_error};
use slackline_runs::header;
use slackline_scenario::Scenario;
use slackline_sim::RunError;
use slackline_units::{CpuShare, Span, Time};

use super::case::{Case, Form, Trial};
use super::outcome::{Outcome, Run, Subject};
use crate::problem::Problem;
use crate::terminal::Progress;

/// What is run of every case.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) form: Form,
    pub(super) targets: Vec<CpuShare>,
    pub(super) length: Span,
    pub(super) seeds: u64,
}

impl Grid {
    /// What is tested, in a sentence.
    pub(super) fn how(&self) -> String {
        let what = match self.form {
            Form::One => "one that never stops beside Dom0 at 6 % on one CPU",
            Form::Smp => "three that never stop on two CPUs",
        };
        format!("Simulated: {what}, {} at each target, {} seeds.", self.length, self.seeds)
    }

    /// The trials of one case.
    fn trials(&self) -> impl Iterator<Item = Trial> + '_ {
        let trial = |target, seed| Trial { form: self.form, target, length: self.length, seed };
        let targets = move |seed| self.targets.iter().map(move |&target| trial(target, seed));
        (1..=self.seeds).flat_map(targets)
    }

    /// Runs it for each case; outcomes come in the order of the cases.
    pub(super) fn run(&self, cases: &[Case]) -> Result<Vec<Outcome>, Problem> {
        let trial = |case| self.trials().map(move |trial| (case, trial));
        let trials: Vec<(&Case, Trial)> = cases.iter().flat_map(trial).collect();
        let workers = thread::available_parallelism().map_or(1, usize::from).min(trials.len());
        let next = AtomicUsize::new(0);
        let (tell, told) = mpsc::channel();
        let mut runs: Vec<Option<Vec<Run>>> = vec![None; trials.len()];
        thread::scope(|scope| {
            for _ in 0..workers {
                let (tell, next, trials) = (tell.clone(), &next, &trials);
                scope.spawn(move || {
                    loop {
                        let nth = next.fetch_add(1, Ordering::Relaxed);
                        let Some(&(case, trial)) = trials.get(nth) else { return };
                        let result = run(case, trial);
                        let failed = result.is_err();
                        if tell.send((nth, result)).is_err() || failed {
                            return;
                        }
                    }
                });
            }
            drop(tell);
            let all = self.length * u64::try_from(trials.len()).unwrap_or(u64::MAX);
            let mut progress = Progress::new("simulated", all);
            let mut done = Time::START;
            for (nth, result) in told {
                let result = result.inspect_err(|_| next.store(trials.len(), Ordering::Relaxed));
                runs[nth] = Some(result?);
                done += self.length;
                progress.at(done);
            }
            Ok::<(), Problem>(())
        })?;
        let of_case = trials.len() / cases.len().max(1);
        let runs: Vec<Run> = runs.into_iter().flatten().flatten().collect();
        let each = of_case * self.form.subjects();
        let outcome = |(case, runs): (&Case, &[Run])| Outcome {
            name: case.name.clone(),
            subject: Subject::Policy(case.spec.name),
            runs: runs.to_vec(),
        };
        Ok(cases.iter().zip(runs.chunks(each)).map(outcome).collect())
    }
}

impl Form {
    /// How many domains are limited and measured in a trial.
    pub(super) fn subjects(self) -> usize {
        match self {
            Form::One => 1,
            Form::Smp => 3,
        }
    }
}

/// One trial: a run for each domain that is measured.
fn run(case: &Case, trial: Trial) -> Result<Vec<Run>, Problem> {
    let text = case.scenario(trial);
    let name = format!("`{}` at {}", case.name, trial.target);
    let bad = |message: String, hint: Option<String>| Problem::BadOption {
        message: format!("{name}: {message}"),
        hint: hint.or(Some("`slackline help POLICY` says what may be set".into())),
    };
    let scenario = Scenario::read(&text).map_err(|error| bad(error.to_string(), error.hint()))?;
    let mut seconds = WholeSeconds::new(&header::of_simulation(&scenario));
    slackline_sim::run(&scenario, &mut seconds).map_err(|error| match error {
        RunError::Broken(broken) => {
            let message = format!("{name}: {broken} (seed {})", trial.seed);
            Problem::Bug { message, kept: None }
        }
        error => bad(error.to_string(), Some("test smaller shares, or another policy".into())),
    })?;
    let used = seconds.finish();
    // The last ones: next to Dom0 one is measured, by themselves all are.
    let measured = used.len() - trial.form.subjects();
    let second = Span::from_secs(1);
    let runs = used[measured..].iter().map(|used| {
        let error = |&used| allocation_error(used, second, trial.target);
        let sum = used.iter().copied().fold(Span::ZERO, |sum, used| sum + used);
        let all = second * used.len() as u64;
        Run {
            target: trial.target,
            seed: trial.seed,
            seconds: used.iter().map(error).collect(),
            average: allocation_error(sum, all, trial.target),
        }
    });
    Ok(runs.collect())
}
