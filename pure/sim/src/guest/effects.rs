//! What guests and devices do to the world outside of them.

use slackline_trace::Record;
use slackline_units::{CpuId, Span, VcpuId};

use super::SystemId;

/// Where something interrupts.
#[derive(Clone, Copy)]
pub(crate) enum Where {
    /// Always there.
    Cpu(CpuId),
    /// Where this vCPU ran last.
    OfVcpu(VcpuId),
}

/// What must be done outside of the guests, in the order of the fields.
#[derive(Default)]
pub(crate) struct Effects {
    /// Whether there may be any: this is looked at after every item of a system.
    pub(crate) are_due: bool,
    /// For the trace.
    pub(crate) records: Vec<Record>,
    /// CPU time that an interrupt takes from whoever runs there.
    pub(crate) stolen: Vec<(Where, Span)>,
    /// The CPU from which it all comes; none where nothing on a CPU led to it.
    pub(crate) signals_from: Option<CpuId>,
    /// For whom more or less waits than before.
    pub(crate) pending: Vec<SystemId>,
    /// Who has something else to do now: asleep, or at work on something less urgent.
    pub(crate) alerted: Vec<VcpuId>,
    /// Systems that tell what their tasks do, whose tasks do something else now.
    pub(crate) changed: Vec<SystemId>,
}

impl Effects {
    pub(crate) fn record(&mut self, record: Record) {
        self.are_due = true;
        self.records.push(record);
    }

    pub(crate) fn steal(&mut self, at: Where, span: Span) {
        self.are_due = true;
        self.stolen.push((at, span));
    }

    pub(crate) fn pending_changed(&mut self, of: SystemId) {
        self.are_due = true;
        self.pending.push(of);
    }

    pub(crate) fn alert(&mut self, vcpu: Option<VcpuId>) {
        self.are_due |= vcpu.is_some();
        self.alerted.extend(vcpu);
    }

    pub(crate) fn tasks_changed(&mut self, of: SystemId) {
        self.are_due = true;
        self.changed.push(of);
    }
}
