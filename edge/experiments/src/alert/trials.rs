//! The trials of a test, simulated: every case at every target, with every seed.

use slackline_metrics::{WholeSeconds, allocation_error};
use slackline_scenario::{Scenario, ScenarioError};
use slackline_sim::RunError;
use slackline_units::{CpuShare, Span};
use thiserror::Error;

use super::case::{Case, Form, Trial};
use super::result::{CaseResult, Limiter, Run};
use crate::grid::{self, GridError, Watch};
use crate::header;

/// The trials of every case.
#[derive(Clone, Debug)]
pub struct Trials {
    /// Which test.
    pub form: Form,
    /// What domains are limited to, one after the other.
    pub targets: Vec<CpuShare>,
    /// How long each target is tested.
    pub length: Span,
    /// How many seeds, from 1 on.
    pub seeds: u64,
}

/// A trial that came to nothing.
#[derive(Debug, Error)]
#[error("`{case}` at {target}: {why}")]
pub struct TrialError {
    /// The case, as people would write it.
    pub case: String,
    /// At which target.
    pub target: CpuShare,
    /// With which seed.
    pub seed: u64,
    /// Why.
    pub why: Box<TrialFault>,
}

/// Why a trial came to nothing.
#[derive(Debug, Error)]
pub enum TrialFault {
    /// A parameter has a value that it cannot have.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The policy does not admit it, or broke the contract.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Trials {
    /// Runs it for each case, over all cores; results come in the order of the cases.
    ///
    /// # Errors
    /// When a trial cannot be run, or `watch` breaks off.
    pub fn run(
        &self,
        cases: &[Case],
        watch: &Watch<'_>,
    ) -> Result<Vec<CaseResult>, GridError<TrialError>> {
        let at = |case| self.targets.iter().map(move |&target| (case, target));
        let all: Vec<(&Case, CpuShare)> = cases.iter().flat_map(at).collect();
        let seeds: Vec<u64> = (1..=self.seeds).collect();
        let runs = grid::run(&all, &seeds, watch, |&(case, target), seed| {
            self.trial(case, Trial { form: self.form, target, length: self.length, seed })
        })?;
        let of_case = |(case, runs): (&Case, &[Vec<Vec<Run>>])| {
            let by_seed = (0..seeds.len()).flat_map(|nth| runs.iter().map(move |of| &of[nth]));
            CaseResult {
                name: case.name.clone(),
                limiter: Limiter::Policy(case.spec.name),
                runs: by_seed.flatten().cloned().collect(),
            }
        };
        Ok(cases.iter().zip(runs.chunks(self.targets.len().max(1))).map(of_case).collect())
    }

    /// One trial: a run for each domain that is measured.
    fn trial(&self, case: &Case, trial: Trial) -> Result<Vec<Run>, TrialError> {
        let Trial { target, seed, .. } = trial;
        let fault = |why: TrialFault| TrialError {
            case: case.name.clone(),
            target,
            seed,
            why: Box::new(why),
        };
        let scenario =
            Scenario::read(&case.scenario(trial)).map_err(|error| fault(error.into()))?;
        let mut seconds = WholeSeconds::new(&header::of_simulation(&scenario));
        slackline_sim::run(&scenario, &mut seconds).map_err(|error| fault(error.into()))?;
        let used = seconds.finish();
        // The last ones: next to Dom0 one is measured, by themselves all are.
        let measured = used.len() - self.form.measured();
        Ok(used[measured..].iter().map(|used| errors(used, trial)).collect())
    }
}

/// The errors of what was used in each second.
fn errors(used: &[Span], trial: Trial) -> Run {
    let Trial { target, seed, .. } = trial;
    let second = Span::from_secs(1);
    let error = |&used| allocation_error(used, second, target);
    let sum = used.iter().copied().fold(Span::ZERO, |sum, used| sum + used);
    let average = allocation_error(sum, second * used.len() as u64, target);
    Run { target, seed, seconds: used.iter().map(error).collect(), average }
}

impl TrialError {
    /// What to type instead, in a line.
    #[must_use]
    pub fn hint(&self) -> String {
        let usual = || "list fields with `slackline help POLICY`".into();
        match &*self.why {
            TrialFault::Scenario(error) => error.hint().unwrap_or_else(usual),
            TrialFault::Run(_) => "test smaller shares, or another policy".into(),
        }
    }
}
