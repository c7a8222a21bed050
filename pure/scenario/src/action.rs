//! Timed actions of a scenario on vCPUs: joining, leaving, changes and pauses.

use std::collections::BTreeMap;

use slackline_policy::Values;
use slackline_units::{CpuSet, Time, VcpuId};

use crate::{Domain, Hold, Scenario, ScenarioError};

/// An action of a scenario at a given time.
#[derive(Clone, Debug)]
pub struct Action {
    /// Time at which the action takes effect.
    pub at: Time,
    /// vCPU to which the action applies.
    pub vcpu: VcpuId,
    /// Kind of the action.
    pub what: ActionKind,
}

/// Kind of an action on a vCPU.
#[derive(Clone, Debug)]
pub enum ActionKind {
    /// The vCPU joins the host.
    Join,
    /// The parameters of the vCPU, its affinity, or both change.
    Change(Option<Values>, Option<CpuSet>),
    /// The vCPU is paused.
    Pause,
    /// The vCPU is released from its pause.
    Release,
    /// The vCPU leaves the host.
    Leave,
}

/// Returns the actions of a scenario in order of time. Actions at the same time keep the order of
/// the file.
#[must_use]
pub fn actions(scenario: &Scenario) -> Vec<Action> {
    let mut actions = Vec::new();
    for domain in &scenario.domains {
        for &vcpu in &domain.vcpus {
            actions.push(Action { at: domain.joins, vcpu, what: ActionKind::Join });
            let leave = |at| Action { at, vcpu, what: ActionKind::Leave };
            actions.extend(domain.leaves.map(leave));
        }
    }
    for change in &scenario.changes {
        let share = change.share(scenario.policy.spec);
        for &vcpu in scenario.vcpus_of(change) {
            let mut add = |what| actions.push(Action { at: change.at, vcpu, what });
            if share.is_some() || change.cpus.is_some() {
                add(ActionKind::Change(share.clone(), change.cpus));
            }
            match change.hold {
                Some(Hold::Pause) => add(ActionKind::Pause),
                Some(Hold::Release) => add(ActionKind::Release),
                None => {}
            }
        }
    }
    actions.sort_by_key(|action| action.at);
    actions
}

/// Parameters of every vCPU at one point of the run, with all changes up to that point.
#[derive(Clone, Debug)]
pub struct SharesInForce<'a> {
    scenario: &'a Scenario,
    /// Current parameters of each vCPU whose parameters changed after the vCPU joined. The key is
    /// the slot of the vCPU: its index among all vCPUs of the scenario.
    changed: BTreeMap<usize, Values>,
}

impl<'a> SharesInForce<'a> {
    /// Creates the state at the start: each vCPU has the parameters with which it joins.
    #[must_use]
    pub fn new(scenario: &'a Scenario) -> SharesInForce<'a> {
        SharesInForce { scenario, changed: BTreeMap::new() }
    }

    /// Returns the current parameters of a vCPU.
    ///
    /// # Errors
    /// If the scenario sets no parameters (`share`) for the vCPU, but the policy requires them.
    pub fn of(&self, vcpu: VcpuId) -> Result<Values, ScenarioError> {
        match self.changed.get(&vcpu.slot()) {
            Some(share) => Ok(share.clone()),
            None => self.scenario.domain_of(vcpu).share(vcpu, self.scenario.policy.spec),
        }
    }

    /// Records new parameters of a vCPU.
    pub fn set(&mut self, vcpu: VcpuId, share: Values) {
        self.changed.insert(vcpu.slot(), share);
    }
}

impl Scenario {
    /// Returns the domain to which a vCPU belongs.
    #[must_use]
    pub fn domain_of(&self, vcpu: VcpuId) -> &Domain {
        &self.domains[vcpu.domain().number() as usize]
    }

    /// Returns the CPUs that the affinity of a vCPU allows.
    #[must_use]
    pub fn cpus(&self, vcpu: VcpuId) -> CpuSet {
        let all = || CpuSet::first_n(self.host.cpus);
        self.domain_of(vcpu).cpus(vcpu).unwrap_or_else(all)
    }
}
