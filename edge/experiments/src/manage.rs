//! Simulated runs in which a rule changes shares between rounds, and the scores of these runs.
//!
//! A rule gets only what a live host can measure: the demand of the last rounds, and the misses.
//! The score is computed from the true demand. The true demand is found by a run in which each VM
//! has a CPU of its own. So the workload must be open: its jobs must not depend on the end of
//! earlier jobs.

mod draw;
mod goals;
mod knob;
mod live;
mod measured;
mod predictor;
mod rules;
mod score;
mod series;
mod steered;
mod truth;
mod window;

#[cfg(test)]
mod tests;

use slackline_manager::Pace;
use slackline_scenario::{Scenario, ScenarioError};
use slackline_service::Name;
use slackline_sim::RunError;
use slackline_units::{CpuShare, Span, Time};
use thiserror::Error;

pub use draw::drawn_series;
pub use goals::{GoalList, GoalsError, VmGoals};
pub use knob::slice_of;
pub use live::{
    Replay, ReplayDifference, SavedDecision, SavedPredictedVm, SavedPrediction, SavedRound,
    SavedRoundError, SavedVm, decide,
};
pub use measured::{MeasuredPeriods, PeriodPredictor, RecordedVm, VmPeriod, measure_recording};
pub use score::{Score, score};
pub use series::{BATCH, Series, SeriesError, SeriesRun};

use rules::{
    FixedShares, GoalRule, HistogramRule, HoldRule, LimitedOracle, ManagerRule, Oracle, ShareRule,
};
use steered::SteeredRun;
use truth::Truth;

/// A rule by which shares change between rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleKind {
    /// Shares that never change. In a comparison, their sum equals the mean sum of the manager's
    /// shares.
    Fixed,
    /// Shares that cover the demand of the next round, which only a simulation knows.
    Oracle,
    /// The oracle, limited to 3 % above the largest demand of each VM so far. Its misses are a
    /// bound for rules that reserve nothing for demand that no round has shown. Not in
    /// [`RuleKind::ALL`].
    LimitedOracle,
    /// The workload manager of this project.
    Manager,
    /// Rule of Neon's autoscaler: a goal for the load.
    Neon,
    /// Rule of the Vertical Pod Autoscaler: a decaying histogram of the use.
    Vpa,
    /// Rule of Proxmox VE: a change must exceed a margin and must be wanted for several rounds.
    Proxmox,
}

impl RuleKind {
    /// The rules that are compared, in the order of the tables.
    pub const ALL: [RuleKind; 6] = [
        RuleKind::Fixed,
        RuleKind::Oracle,
        RuleKind::Manager,
        RuleKind::Neon,
        RuleKind::Vpa,
        RuleKind::Proxmox,
    ];

    /// Returns the name of the rule, as users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RuleKind::Fixed => "fixed",
            RuleKind::Oracle => "oracle",
            RuleKind::LimitedOracle => "limited-oracle",
            RuleKind::Manager => "manager",
            RuleKind::Neon => "neon",
            RuleKind::Vpa => "vpa",
            RuleKind::Proxmox => "proxmox",
        }
    }

    fn rule(self, pace: Pace) -> Box<dyn ShareRule> {
        match self {
            RuleKind::Fixed => Box::new(FixedShares),
            RuleKind::Oracle => Box::new(Oracle),
            RuleKind::LimitedOracle => Box::<LimitedOracle>::default(),
            RuleKind::Manager => Box::new(ManagerRule::new(pace)),
            RuleKind::Neon => Box::new(GoalRule),
            RuleKind::Vpa => Box::<HistogramRule>::default(),
            RuleKind::Proxmox => Box::<HoldRule>::default(),
        }
    }
}

/// Parameters of managed runs.
#[derive(Clone, Debug)]
pub struct ManagePlan {
    /// Goals of the VMs.
    pub goals: GoalList,
    /// Length of a round.
    pub round: Span,
    /// Number of rounds that the predictor simulates again.
    pub window: usize,
    /// Delays and margins of the manager.
    pub pace: Pace,
}

/// Results of a managed run.
#[derive(Clone, Debug)]
pub struct ManagedRun {
    /// Names of the managed VMs.
    pub names: Vec<Name>,
    /// Rounds in order of time.
    pub rounds: Vec<ManagedRound>,
    /// Decisions with their explanations, in order of time.
    pub decisions: Vec<(Time, String)>,
    /// Number of changes that admission refused.
    pub declined: usize,
}

/// One round of a managed run. Each list has one entry per VM.
#[derive(Clone, Debug, Default)]
pub struct ManagedRound {
    /// Reserved share of each VM in the round.
    pub shares: Vec<CpuShare>,
    /// CPU time that each VM received in the round.
    pub used: Vec<Span>,
    /// Number of each VM's jobs that became ready in the round and were late.
    pub misses: Vec<u64>,
    /// Number of each VM's jobs that became ready in the round.
    pub jobs: Vec<u64>,
    /// Needed share of each VM: the share that would have covered the VM's demand in the round.
    pub needs: Vec<CpuShare>,
}

/// Reason why a run could not be managed.
#[derive(Debug, Error)]
pub enum ManageError {
    /// The scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The run did not complete.
    #[error(transparent)]
    Run(#[from] RunError),
    /// No VM of the scenario can be managed.
    #[error(
        "cannot manage: no VM has one vCPU, a share that policy `{policy}` can change, and goals"
    )]
    NoVms {
        /// Name of the policy.
        policy: &'static str,
    },
    /// The name of a VM is not allowed as the name of a reservation.
    #[error("cannot manage `{name}`: its name {why}")]
    BadName {
        /// Name of the VM.
        name: String,
        /// Reason why the name is not allowed.
        why: slackline_service::NameError,
    },
    /// The release of a job of a managed VM depends on the end of an earlier job.
    #[error("cannot manage `{name}`: its work {step}, so its demand depends on its share")]
    Closed {
        /// Name of the VM.
        name: String,
        /// Description of the step on which the demand depends.
        step: &'static str,
    },
    /// The run is shorter than two rounds.
    #[error(
        "cannot manage a run of {length} in rounds of {round}: it must have at least two rounds"
    )]
    Short {
        /// Length of the run.
        length: Span,
        /// Length of a round.
        round: Span,
    },
}

impl ManagePlan {
    /// Simulates the scenario under a rule.
    ///
    /// # Errors
    /// If no VM can be managed, or the run did not complete.
    pub fn run(&self, scenario: &Scenario, rule: RuleKind) -> Result<ManagedRun, ManageError> {
        self.run_with(scenario, &Truth::of(scenario, self)?, (rule, None))
    }

    /// Simulates the scenario under each rule in [`RuleKind::ALL`]. The sum of the fixed shares is
    /// the mean sum of the manager's shares. The sum of the fixed shares is divided among the VMs
    /// in proportion to their mean demand.
    ///
    /// # Errors
    /// If no VM can be managed, or if a run did not complete.
    pub fn compare(&self, scenario: &Scenario) -> Result<Vec<(RuleKind, ManagedRun)>, ManageError> {
        let truth = Truth::of(scenario, self)?;
        let managed = self.run_with(scenario, &truth, (RuleKind::Manager, None))?;
        let fixed = truth.fixed_shares(mean_sum(&managed));
        let run = |rule: RuleKind| {
            let run = match rule {
                RuleKind::Manager => managed.clone(),
                RuleKind::Fixed => self.run_with(scenario, &truth, (rule, Some(&fixed)))?,
                rule => self.run_with(scenario, &truth, (rule, None))?,
            };
            Ok((rule, run))
        };
        RuleKind::ALL.into_iter().map(run).collect()
    }

    fn run_with(
        &self,
        scenario: &Scenario,
        truth: &Truth,
        (rule, first): (RuleKind, Option<&[CpuShare]>),
    ) -> Result<ManagedRun, ManageError> {
        let mut steered = SteeredRun::new(scenario, self, truth, rule.rule(self.pace))?;
        if let Some(first) = first {
            steered.begin_with(first);
        }
        let finished = slackline_sim::run_steered(scenario, self.round, &mut steered)?;
        Ok(steered.finish(finished.declined.len()))
    }
}

/// Returns the sum of all shares, averaged over all rounds, in millionths of a CPU.
fn mean_sum(run: &ManagedRun) -> u64 {
    let sum = |round: &ManagedRound| round.shares.iter().map(|it| u64::from(it.ppm())).sum::<u64>();
    let rounds = (run.rounds.len() as u64).max(1);
    run.rounds.iter().map(sum).sum::<u64>() / rounds
}
