//! Tries the admission of a scenario without running anything.

use slackline_host::{Fact, Fault, Hands, Host, Order, Outcome, Report, Used};
use slackline_scenario::Scenario;
use slackline_units::{CpuId, Time};

use crate::{RunError, What, actions, declined};

/// A machine on which nothing ever runs.
struct Nothing;

impl Hands for Nothing {
    fn measure(&mut self, _: CpuId, _: Time) -> Option<Used> {
        None
    }

    fn carry_out(&mut self, _: Order) -> Outcome {
        Outcome::Done
    }

    fn set_alarm(&mut self, _: CpuId, _: Option<Time>) {}
}

/// Whether every domain of the scenario can be admitted when it joins. Changes are left to the run,
/// in which a change that is declined leaves the old share in place.
///
/// # Errors
/// When a domain cannot be admitted, or a share is missing.
pub fn admit(scenario: &Scenario) -> Result<(), RunError> {
    let policy = &scenario.policy;
    let mut host = Host::new(policy.spec, &policy.values, scenario.host.cpus);
    for action in actions(scenario)? {
        let fact = match &action.what {
            What::Join(vcpu, share) => Fact::Joined(*vcpu, share),
            What::Change(vcpu, share) => Fact::ShareChanged(*vcpu, share),
            What::Leave(vcpu) => Fact::Left(*vcpu),
        };
        let report = Report { now: action.at, used: &[], fact };
        match host.step(report, &mut Nothing, &mut ()).map_err(|fault| *fault) {
            Err(Fault::Declined { .. }) if matches!(action.what, What::Change(..)) => {}
            Err(fault) => return Err(declined(scenario, fault)),
            Ok(()) => {}
        }
    }
    Ok(())
}
