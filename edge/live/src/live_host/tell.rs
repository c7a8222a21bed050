//! Passing hints to the policy. Hints come from guests, and from programs that do I/O for guests.

use slackline_host::Fact;
use slackline_units::{Time, VcpuHint, VcpuId};

use super::decider::{Decider, broken};
use super::{LiveHost, LiveHostError};

/// State of a vCPU: running, waiting for a CPU, or blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VcpuActivity {
    /// The vCPU is blocked.
    Asleep,
    /// The vCPU is runnable but not running.
    Waits,
    /// The vCPU is running.
    Runs,
}

impl LiveHost {
    /// Returns the state of a vCPU. A vCPU that is not present counts as blocked.
    pub(crate) fn is_at(&self, vcpu: VcpuId) -> VcpuActivity {
        let decider = self.decider();
        let moment = decider.host.moment();
        match decider.get(vcpu) {
            Some(_) if moment.cpu_of(vcpu).is_some() => VcpuActivity::Runs,
            Some(_) if moment.is_awake(vcpu) => VcpuActivity::Waits,
            _ => VcpuActivity::Asleep,
        }
    }

    /// Passes a hint about a vCPU to the policy. A hint about a vCPU that is not present is
    /// ignored.
    pub(crate) fn tell(&self, vcpu: VcpuId, told: &VcpuHint) -> Result<(), LiveHostError> {
        // The events of the vCPU's CPU are read first. So the CPU time that the vCPU has used is
        // charged before the hint is reported.
        let cpu = self.decider().host.moment().cpu_of(vcpu);
        let news = cpu.map(|cpu| self.drain_view(&self.views[cpu.index()])).transpose()?;
        let mut decider = self.decider();
        if decider.is_over {
            return Ok(());
        }
        if let Some(news) = &news {
            self.apply_events(&mut decider, news)?;
        }
        let now = decider.of_run(self.clock.now());
        decider.tell(vcpu, told, now)?;
        self.finish(decider)
    }
}

impl Decider {
    fn tell(&mut self, vcpu: VcpuId, told: &VcpuHint, now: Time) -> Result<(), LiveHostError> {
        if self.get(vcpu).is_none() {
            return Ok(());
        }
        self.now = self.now.max(now);
        self.step(self.now, &[], Fact::Told(vcpu, told)).map_err(broken)
    }
}
