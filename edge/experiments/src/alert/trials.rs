//! Simulated trials of an allocation error test: every case at every target share with every seed.

use slackline_metrics::{WholeSeconds, allocation_error};
use slackline_scenario::{Scenario, ScenarioError};
use slackline_sim::RunError;
use slackline_units::{CpuShare, Span};
use thiserror::Error;

use super::case::{Case, Form, Trial};
use super::result::{CaseResult, DomainErrors, Limiter};
use crate::grid::{self, GridError, Watch};
use crate::header;

/// Parameters that the trials of all cases share.
#[derive(Clone, Debug)]
pub struct Trials {
    /// Kind of allocation error test: the domains and the number of CPUs.
    pub form: Form,
    /// Target shares to which domains are limited, in different trials.
    pub targets: Vec<CpuShare>,
    /// Measured time at each target share.
    pub length: Span,
    /// Number of seeds. The seeds are 1, 2, 3 and so on.
    pub seeds: u64,
}

/// Target shares of the paper on one CPU, in percent of a CPU.
const TARGETS: [u32; 18] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90];

/// Target share of the paper on two CPUs, in percent of a CPU.
const SMP_TARGET: [u32; 1] = [66];

/// Time for which the paper tests each target share on one CPU.
pub const PUBLISHED_LENGTH: Span = Span::from_secs(180);

/// Time for which the paper tests the target share on two CPUs.
const SMP_LENGTH: Span = Span::from_secs(600);

impl Trials {
    /// Returns the trials of the paper, with ten seeds.
    #[must_use]
    pub fn as_published(form: Form) -> Trials {
        let (targets, length): (&[u32], Span) = match form {
            Form::One => (&TARGETS, PUBLISHED_LENGTH),
            Form::Smp => (&SMP_TARGET, SMP_LENGTH),
        };
        let share = |percent: &u32| CpuShare::from_ppm(percent * 10_000);
        Trials { form, targets: targets.iter().map(share).collect(), length, seeds: 10 }
    }

    /// Returns trials that are shorter than the trials of the paper. So their errors cannot be
    /// compared with the errors in the paper.
    #[must_use]
    pub fn quick(form: Form) -> Trials {
        Trials { length: Span::from_secs(20), seeds: 3, ..Trials::as_published(form) }
    }
}

/// Converts percent of a CPU to a target share. `None` unless `percent` is above 0 and at most 100.
#[must_use]
pub fn target_of_percent(percent: f64) -> Option<CpuShare> {
    let ppm = (percent * 10_000.0).round();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The range is checked.
    (1.0..=1_000_000.0).contains(&ppm).then(|| CpuShare::from_ppm(ppm as u32))
}

/// Error of a trial.
#[derive(Debug, Error)]
#[error("`{case}` at {target}: {why}")]
pub struct TrialError {
    /// Text of the case, as users write it.
    pub case: String,
    /// Target share of the trial.
    pub target: CpuShare,
    /// Seed of the trial.
    pub seed: u64,
    /// Reason for the error.
    pub why: Box<TrialFault>,
}

/// Reason why a trial failed.
#[derive(Debug, Error)]
pub enum TrialFault {
    /// The value of a parameter is not valid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The policy does not admit the domains, or the policy broke its contract with the host.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Trials {
    /// Runs the trials of each case on all cores. Results are in the order of the cases.
    ///
    /// # Errors
    /// If a trial fails, or `watch` stops the runs.
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
        let of_case = |(case, runs): (&Case, &[Vec<Vec<DomainErrors>>])| {
            let by_seed = (0..seeds.len()).flat_map(|nth| runs.iter().map(move |of| &of[nth]));
            CaseResult {
                name: case.name.clone(),
                limiter: Limiter::Policy(case.spec.name),
                runs: by_seed.flatten().cloned().collect(),
            }
        };
        Ok(cases.iter().zip(runs.chunks(self.targets.len().max(1))).map(of_case).collect())
    }

    /// Runs one trial. Returns the errors of each domain that is measured.
    fn trial(&self, case: &Case, trial: Trial) -> Result<Vec<DomainErrors>, TrialError> {
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
        // The last domains are measured: the one domain in addition to Dom0, or all three.
        let measured = used.len() - self.form.measured();
        Ok(used[measured..].iter().map(|used| errors(used, trial)).collect())
    }
}

/// Computes the errors from the CPU time used in each second.
fn errors(used: &[Span], trial: Trial) -> DomainErrors {
    let Trial { target, seed, .. } = trial;
    let second = Span::from_secs(1);
    let error = |&used| allocation_error(used, second, target);
    let sum = used.iter().copied().fold(Span::ZERO, |sum, used| sum + used);
    let average = allocation_error(sum, second * used.len() as u64, target);
    DomainErrors { target, seed, seconds: used.iter().map(error).collect(), average }
}

impl TrialError {
    /// Returns one line of advice on how to correct the trial.
    #[must_use]
    pub fn hint(&self) -> String {
        let usual = || "list fields with `slackline help POLICY`".into();
        match &*self.why {
            TrialFault::Scenario(error) => error.hint().unwrap_or_else(usual),
            TrialFault::Run(_) => "test smaller shares, or another policy".into(),
        }
    }
}
