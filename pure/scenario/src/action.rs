//! What a scenario does at given times, in the words of a machine.

use std::collections::BTreeMap;

use slackline_policy::Values;
use slackline_units::{CpuSet, Time, VcpuId};

use crate::{Domain, Hold, Scenario, ScenarioError};

/// Something that a scenario does at a given time.
#[derive(Clone, Debug)]
pub struct Action {
    /// When.
    pub at: Time,
    /// To whom.
    pub vcpu: VcpuId,
    /// What.
    pub what: What,
}

/// What a scenario does to a vCPU.
#[derive(Clone, Debug)]
pub enum What {
    /// It joins.
    Join,
    /// Its share, where it may run, or both change.
    Change(Option<Values>, Option<CpuSet>),
    /// It is held.
    Pause,
    /// It is let go.
    Release,
    /// It leaves.
    Leave,
}

/// What the scenario does, in order of time; at one time in the order of the file.
#[must_use]
pub fn actions(scenario: &Scenario) -> Vec<Action> {
    let mut actions = Vec::new();
    for domain in &scenario.domains {
        for &vcpu in &domain.vcpus {
            actions.push(Action { at: domain.joins, vcpu, what: What::Join });
            let leave = |at| Action { at, vcpu, what: What::Leave };
            actions.extend(domain.leaves.map(leave));
        }
    }
    for change in &scenario.changes {
        let share = change.share(scenario.policy.spec);
        for &vcpu in scenario.vcpus_of(change) {
            let mut add = |what| actions.push(Action { at: change.at, vcpu, what });
            if share.is_some() || change.cpus.is_some() {
                add(What::Change(share.clone(), change.cpus));
            }
            match change.hold {
                Some(Hold::Pause) => add(What::Pause),
                Some(Hold::Release) => add(What::Release),
                None => {}
            }
        }
    }
    actions.sort_by_key(|action| action.at);
    actions
}

/// The shares that are in force.
#[derive(Clone, Debug)]
pub struct SharesInForce<'a> {
    scenario: &'a Scenario,
    /// Those that are not what they were on joining, by slot.
    changed: BTreeMap<usize, Values>,
}

impl<'a> SharesInForce<'a> {
    /// Those with which everybody joins.
    #[must_use]
    pub fn new(scenario: &'a Scenario) -> SharesInForce<'a> {
        SharesInForce { scenario, changed: BTreeMap::new() }
    }

    /// The share of a vCPU as it is now.
    ///
    /// # Errors
    /// When it has none and the policy needs one.
    pub fn of(&self, vcpu: VcpuId) -> Result<Values, ScenarioError> {
        match self.changed.get(&vcpu.slot()) {
            Some(share) => Ok(share.clone()),
            None => self.scenario.domain_of(vcpu).share(vcpu, self.scenario.policy.spec),
        }
    }

    /// A share has been changed to this.
    pub fn set(&mut self, vcpu: VcpuId, share: Values) {
        self.changed.insert(vcpu.slot(), share);
    }
}

impl Scenario {
    /// The domain of one of its vCPUs.
    #[must_use]
    pub fn domain_of(&self, vcpu: VcpuId) -> &Domain {
        &self.domains[vcpu.domain().number() as usize]
    }

    /// Where one of its vCPUs may run.
    #[must_use]
    pub fn cpus(&self, vcpu: VcpuId) -> CpuSet {
        let all = || CpuSet::first_n(self.host.cpus);
        self.domain_of(vcpu).cpus(vcpu).unwrap_or_else(all)
    }
}
