//! Stopped vCPUs whose threads still run in the kernel: a stop takes effect only when a thread
//! leaves the kernel.

use slackline_units::{Span, Time, VcpuId};

use super::decider::{Decider, Vcpu};
use crate::watch::ThreadEventKind;
use crate::way::Place;

/// Time after a stop in which threads are expected to run although the vCPU is stopped. Each thread
/// of the vCPU wakes to handle the stop and runs for some microseconds.
const STOP_TIME: Span = Span::from_us(200);

impl Vcpu {
    /// Returns the class in which this vCPU is stopped.
    pub(super) const fn stop_place(&self) -> Place {
        if self.runs_after_stop { Place::Stopping } else { Place::Held }
    }
}

impl Decider {
    /// Records that a stopped vCPU still runs, if an event shows that one of its threads was
    /// preempted after the stop. Every thread that still runs gets such an event, at the latest
    /// when the dispatcher preempts the thread to read the events.
    pub(super) fn note_running_after_stop(
        &mut self,
        vcpu: VcpuId,
        what: ThreadEventKind,
        at: Time,
    ) {
        if what != (ThreadEventKind::SwitchedOut { ready: true }) {
            return;
        }
        let Some(known) = self.get_mut(vcpu) else { return };
        let is_late = known.held_since.is_some_and(|since| at.since(since) > STOP_TIME);
        if is_late && !known.runs_after_stop {
            known.runs_after_stop = true;
            self.touched.push(vcpu);
        }
    }
}
