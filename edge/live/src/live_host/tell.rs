//! What a guest, or who does I/O for it, has to tell.

use slackline_host::Fact;
use slackline_units::{Time, Told, VcpuId};

use super::decider::{Decider, broken};
use super::{LiveHost, LiveHostError};

/// What a vCPU is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Asleep,
    /// It wants a CPU and has none.
    Waits,
    Runs,
}

impl LiveHost {
    /// What a vCPU is at, as far as is known.
    pub(crate) fn is_at(&self, vcpu: VcpuId) -> At {
        let decider = self.decider();
        let moment = decider.host.moment();
        match decider.get(vcpu) {
            Some(_) if moment.cpu_of(vcpu).is_some() => At::Runs,
            Some(_) if moment.is_awake(vcpu) => At::Waits,
            _ => At::Asleep,
        }
    }

    /// A vCPU tells something; of one that is not here it is ignored.
    pub(crate) fn tell(&self, vcpu: VcpuId, told: &Told) -> Result<(), LiveHostError> {
        // What has happened where it runs comes first: what it used until now is counted with this.
        let cpu = self.decider().host.moment().cpu_of(vcpu);
        let news = cpu.map(|cpu| self.see(&self.views[cpu.index()])).transpose()?;
        let mut decider = self.decider();
        if decider.is_over {
            return Ok(());
        }
        if let Some(news) = &news {
            self.take_in(&mut decider, news)?;
        }
        let now = decider.of_run(self.clock.now());
        decider.tell(vcpu, told, now)?;
        self.finish(decider)
    }
}

impl Decider {
    fn tell(&mut self, vcpu: VcpuId, told: &Told, now: Time) -> Result<(), LiveHostError> {
        if self.get(vcpu).is_none() {
            return Ok(());
        }
        self.now = self.now.max(now);
        self.step(self.now, &[], Fact::Told(vcpu, told)).map_err(broken)
    }
}
