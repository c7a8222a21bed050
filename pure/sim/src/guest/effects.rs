//! Effects of guests and devices on the rest of the host.

use slackline_trace::Record;
use slackline_units::{CpuId, Span, VcpuId};

use super::SystemId;

/// Target of an interrupt.
#[derive(Clone, Copy)]
pub(crate) enum InterruptTarget {
    /// The CPU with this number, whichever vCPU runs on it.
    Cpu(CpuId),
    /// The CPU on which a given vCPU runs or ran last.
    OfVcpu(VcpuId),
}

/// Effects of guests and devices that are still to be carried out, in the order of the fields.
#[derive(Default)]
pub(crate) struct Effects {
    /// True if there can be effects to carry out. The field is checked after every work item of a
    /// simulated operating system.
    pub(crate) are_due: bool,
    /// Records for the trace.
    pub(crate) records: Vec<Record>,
    /// CPU time that interrupts take from the vCPUs that run on the target CPUs.
    pub(crate) stolen: Vec<(InterruptTarget, Span)>,
    /// CPU on which the effects were caused, by a guest or by the interrupt of a device. A vCPU on
    /// another CPU is alerted by an interprocessor interrupt, which takes time from that CPU.
    /// `None` if the effects come from no CPU. No interprocessor interrupt is then needed.
    pub(crate) signals_from: Option<CpuId>,
    /// Operating systems whose pending I/O has changed.
    pub(crate) pending: Vec<SystemId>,
    /// Blocked vCPUs that have new work, and running vCPUs that have more urgent work.
    pub(crate) alerted: Vec<VcpuId>,
    /// Operating systems that report their tasks to the scheduler, and whose tasks have changed.
    pub(crate) changed: Vec<SystemId>,
}

impl Effects {
    pub(crate) fn record(&mut self, record: Record) {
        self.are_due = true;
        self.records.push(record);
    }

    pub(crate) fn steal(&mut self, at: InterruptTarget, span: Span) {
        self.are_due = true;
        self.stolen.push((at, span));
    }

    pub(crate) fn pending_changed(&mut self, of: SystemId) {
        self.are_due = true;
        self.pending.push(of);
    }

    /// Alerts a vCPU. Further alerts of the same vCPU have no effect until the effects are carried
    /// out.
    pub(crate) fn alert(&mut self, vcpu: Option<VcpuId>) {
        self.are_due |= vcpu.is_some();
        let news = vcpu.filter(|vcpu| !self.alerted.contains(vcpu));
        self.alerted.extend(news);
    }

    pub(crate) fn tasks_changed(&mut self, of: SystemId) {
        self.are_due = true;
        self.changed.push(of);
    }
}
