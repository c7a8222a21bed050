//! What the scenario does at given times, in the words of the machine.

use std::collections::BTreeMap;

use slackline_host::policy::Values;
use slackline_host::{Fact, Terms};
use slackline_scenario::{Hold, Scenario, ScenarioError};
use slackline_units::{CpuSet, Time, VcpuId};

/// Something that the scenario does at a given time.
pub(crate) struct Action {
    pub(crate) at: Time,
    pub(crate) vcpu: VcpuId,
    pub(crate) what: What,
}

/// What it does to a vCPU.
pub(crate) enum What {
    Join,
    /// Its share, where it may run, or both.
    Change(Option<Values>, Option<CpuSet>),
    Pause,
    Release,
    Leave,
}

/// What the scenario does, in order of time; at one time in the order of the file.
pub(crate) fn actions(scenario: &Scenario) -> Vec<Action> {
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
pub(crate) struct Shares<'a> {
    scenario: &'a Scenario,
    /// Those that are not what they were on joining, by slot.
    changed: BTreeMap<usize, Values>,
}

impl<'a> Shares<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Shares<'a> {
        Shares { scenario, changed: BTreeMap::new() }
    }

    /// The share of a vCPU as it is now.
    pub(crate) fn of(&self, vcpu: VcpuId) -> Result<Values, ScenarioError> {
        match self.changed.get(&vcpu.slot()) {
            Some(share) => Ok(share.clone()),
            None => self.domain(vcpu).share(vcpu, self.scenario.policy.spec),
        }
    }

    /// A share has been changed to this.
    pub(crate) fn set(&mut self, vcpu: VcpuId, share: Values) {
        self.changed.insert(vcpu.slot(), share);
    }

    /// The fact that a vCPU joins with this share.
    pub(crate) fn joined<'b>(&self, vcpu: VcpuId, share: &'b Values) -> Fact<'b> {
        Fact::Joined(vcpu, Terms { share, cpus: self.domain(vcpu).cpus(vcpu) })
    }

    fn domain(&self, vcpu: VcpuId) -> &'a slackline_scenario::Domain {
        &self.scenario.domains[vcpu.domain().number() as usize]
    }
}
