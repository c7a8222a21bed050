//! Tries the admission of a scenario without running anything.

use slackline_host::{Fact, Fault, Host, Machine, Order, Outcome, Report, Terms, Used};
use slackline_scenario::Scenario;
use slackline_units::{CpuId, Time};

use crate::action::{Action, Shares, What, actions};
use crate::{RunError, declined};

/// A machine on which nothing ever runs.
struct Nothing;

impl Machine for Nothing {
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
    let mut host = Host::new(policy.spec, &policy.values, scenario.host.topology());
    let mut shares = Shares::new(scenario);
    for Action { at, vcpu, what } in actions(scenario) {
        let mut step = |fact| {
            let report = Report { now: at, used: &[], fact };
            host.step(report, &mut Nothing, &mut ()).map_err(|fault| *fault)
        };
        let result = match what {
            What::Join => step(shares.joined(vcpu, &shares.of(vcpu)?)),
            What::Leave => step(Fact::Left(vcpu)),
            What::Change(share, cpus) => {
                let share = share.map_or_else(|| shares.of(vcpu), Ok)?;
                match step(Fact::TermsChanged(vcpu, Terms { share: &share, cpus })) {
                    Err(Fault::Declined { .. }) => continue,
                    result => {
                        shares.set(vcpu, share);
                        result
                    }
                }
            }
            // Nobody is awake here.
            What::Pause | What::Release => continue,
        };
        result.map_err(|fault| declined(scenario, fault))?;
    }
    Ok(())
}
