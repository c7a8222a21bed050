//! Orders that the kernel refused. A refused order affects only the vCPU for which it was given.

use std::sync::Arc;

use slackline_host::Fact;
use slackline_units::{CpuId, Span, VcpuId};

use super::decider::{Decider, broken};
use super::{LiveHost, LiveHostError};
use crate::way::FailedAssignment;
use slackline_linux::step::ActError;

/// Delay before a vCPU is chosen again after the kernel refused an order for it.
pub(super) const AGAIN: Span = Span::from_ms(100);

impl LiveHost {
    /// Returns the list of refused orders that would have restored or resumed threads, and clears
    /// the list. The threads of these vCPUs are in an ordinary class or stopped.
    pub(crate) fn take_failures(&self) -> Vec<(VcpuId, ActError)> {
        std::mem::take(&mut self.decider().failures)
    }
}

impl Decider {
    /// Handles orders that the kernel refused. If the order was to run a vCPU, the vCPU is not
    /// chosen again before the delay [`AGAIN`] has passed. If the order was to restore or resume a
    /// vCPU, the vCPU's threads are taken out of the real-time class or stopped instead. If the
    /// kernel refuses that too, the vCPU could keep all other threads from running, so the run ends
    /// with the error.
    pub(super) fn apply_refusals(
        &mut self,
        failed: Vec<FailedAssignment>,
    ) -> Result<(), LiveHostError> {
        for FailedAssignment { handle, error } in failed {
            let vcpu = handle.vcpu;
            let known = self.vcpus.get(vcpu.slot()).and_then(Option::as_ref);
            if known.is_none_or(|known| !Arc::ptr_eq(&known.handle, &handle)) {
                continue;
            }
            if error.means_gone() {
                if !self.gone.contains(&vcpu) {
                    self.gone.push(vcpu);
                }
                continue;
            }
            if !error.is_refusal() {
                if !handle.disarm() {
                    return Err(error.into());
                }
                self.failures.push((vcpu, error));
            }
            self.refuse(vcpu)?;
        }
        Ok(())
    }

    fn refuse(&mut self, vcpu: VcpuId) -> Result<(), LiveHostError> {
        self.note_let_go(vcpu);
        let Some(known) = &mut self.vcpus[vcpu.slot()] else { return Ok(()) };
        known.held_since = None;
        let home = known.home.get().unwrap_or(CpuId::new(0));
        if !self.refused.contains(&vcpu) {
            self.refused.push(vcpu);
        }
        if self.pcpus.is_refused(vcpu) {
            // A further order would be refused again at once, and so on forever.
            return Ok(());
        }
        self.pcpus.refused.push((vcpu, home, self.now.after(AGAIN)));
        self.touched.push(vcpu);
        self.pcpus.all[home.index()].is_stale = true;
        // The vCPU loses the rest of its timeslice, and is not eligible until `AGAIN` has passed.
        match self.host.moment().cpu_of(vcpu) {
            Some(cpu) => self.step(self.now, &[], Fact::Yielded(cpu)).map_err(broken),
            None => Ok(()),
        }
    }
}
