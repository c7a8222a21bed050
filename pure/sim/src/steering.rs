//! Changes of parameters from outside the scenario, in mid-run.

use std::ops::ControlFlow;

use slackline_host::policy::Values;
use slackline_scenario::Scenario;
use slackline_trace::{Record, Sink};
use slackline_units::{Span, Time, VcpuId};

use crate::{RunError, Sim, SimResults};

/// New parameters of vCPUs.
pub type VcpuChanges = Vec<(VcpuId, Values)>;

/// Sink that also changes parameters in mid-run, as a controller of a live host does.
pub trait Steering: Sink {
    /// Returns new parameters of vCPUs, which take effect immediately, in the order of the list.
    /// Called at the start, after the first vCPUs have joined, and then at each multiple of the
    /// interval of [`run_steered`] before the end of the run. A change that admission refuses is
    /// listed in [`SimResults::declined`].
    fn steer(&mut self, now: Time) -> VcpuChanges;
}

/// Simulates the scenario from its start to its end. At the start and at each multiple of `every`,
/// `steering` can change parameters. `every` is not zero.
///
/// # Errors
/// In the same cases as [`run`](crate::run).
pub fn run_steered(
    scenario: &Scenario,
    every: Span,
    mut steering: &mut dyn Steering,
) -> Result<SimResults, RunError> {
    let scenario = scenario.simulated();
    let mut sim = Sim::new(&scenario);
    sim.next_steering = Time::START;
    sim.steering_interval = every;
    sim.find_next_stop();
    let steer = &mut |now, steering: &mut &mut dyn Steering| steering.steer(now);
    sim.run(&mut steering, |_| ControlFlow::Continue(()), steer)
}

impl Sim<'_> {
    /// Returns true if parameters can be changed from outside now. Actions of the scenario at the
    /// same time come first.
    pub(crate) fn is_steered(&self, now: Time) -> bool {
        self.next_steering <= now && self.actions.last().is_none_or(|action| action.at > now)
    }

    /// Applies changes from outside the scenario, and records each change that was admitted.
    /// Changes of vCPUs that are not on the host are ignored.
    pub(crate) fn take_changes<S: Sink>(
        &mut self,
        now: Time,
        changes: VcpuChanges,
        sink: &mut S,
    ) -> Result<(), RunError> {
        self.next_steering = now.after(self.steering_interval);
        self.find_next_stop();
        for (vcpu, share) in changes {
            if self.host.moment().is_member(vcpu)
                && self.change(now, vcpu, (Some(share), None), sink)?
            {
                sink.record(&Record::Changed { due: now, at: now, vcpu });
            }
        }
        Ok(())
    }
}
