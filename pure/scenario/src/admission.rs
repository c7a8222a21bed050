//! Admission test for a scenario: checks whether a policy would admit all its vCPUs, without a run.

use slackline_policy::{AdmitError, Trial};
use slackline_units::{CpuSet, VcpuId};
use thiserror::Error;

use crate::action::{Action, ActionKind, SharesInForce, actions};
use crate::{Scenario, ScenarioError};

/// A vCPU of a scenario that cannot be admitted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{policy} cannot admit `{vcpu}`: {error}")]
pub struct DeclinedVcpu {
    /// Name of the policy.
    pub policy: &'static str,
    /// Name of the vCPU that is not admitted.
    pub vcpu: String,
    /// Index of the vCPU's domain among the domains of the scenario.
    pub domain: usize,
    /// Reason for the refusal, given by the policy.
    pub error: AdmitError,
}

/// Reason why a scenario cannot be admitted.
#[derive(Debug, Error)]
pub enum NotAdmitted {
    /// A vCPU cannot be admitted with its parameters.
    #[error(transparent)]
    Declined(#[from] DeclinedVcpu),
    /// A domain lacks parameters that the policy needs.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

impl Scenario {
    /// Checks that every domain can be admitted when it joins, on a
    /// [simulated](Scenario::simulated) host. Later changes are not checked: if a change is refused
    /// during a run, the old parameters stay in force.
    ///
    /// # Errors
    /// If a domain cannot be admitted, or lacks parameters that the policy needs.
    pub fn admit(&self) -> Result<(), NotAdmitted> {
        self.simulated().admit_all()
    }

    fn admit_all(&self) -> Result<(), NotAdmitted> {
        let mut trial = Trial::new(self.policy.spec, &self.policy.values, &self.host.topology);
        let mut shares = SharesInForce::new(self);
        for Action { at, vcpu, what } in actions(self) {
            trial.advance(at);
            match what {
                ActionKind::Join => {
                    let domain = self.domain_of(vcpu);
                    let (share, start) = (shares.of(vcpu)?, domain.starts_on(vcpu));
                    let first = start.map(CpuSet::one).or(domain.cpus(vcpu));
                    let mut joined = trial.join(vcpu, &share, first);
                    if start.is_some() && joined.is_ok() {
                        joined = trial.change(vcpu, &share, Some(self.cpus(vcpu)));
                    }
                    joined.map_err(|error| self.declined(vcpu, error))?;
                }
                ActionKind::Leave => trial.leave(vcpu),
                ActionKind::Change(share, cpus) => {
                    let share = share.map_or_else(|| shares.of(vcpu), Ok)?;
                    if trial.change(vcpu, &share, cpus).is_ok() {
                        shares.set(vcpu, share);
                    }
                }
                // No vCPU runs in this test, so a pause or its end changes nothing.
                ActionKind::Pause | ActionKind::Release => {}
            }
        }
        Ok(())
    }

    /// Returns the error for a vCPU whose parameters were declined, with the name of the vCPU.
    #[must_use]
    pub fn declined(&self, vcpu: VcpuId, error: AdmitError) -> DeclinedVcpu {
        DeclinedVcpu {
            policy: self.policy.spec.name,
            vcpu: self.domain_of(vcpu).vcpu_name(vcpu),
            domain: vcpu.domain().number() as usize,
            error,
        }
    }
}
