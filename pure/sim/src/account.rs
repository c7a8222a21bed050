//! Accounting of the CPU time of vCPUs: the work that vCPUs do in this time, and records of
//! overhead and slowdown.

use slackline_scenario::Scenario;
use slackline_trace::{OverheadKind, Record};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::speed::Speeds;

/// Conversion of CPU time into work. Also collects records of the time that was overhead or was
/// spent at less than full speed.
pub(crate) struct Account {
    /// Speeds of the CPUs. `None` if all CPUs always have full speed. Work then equals CPU time.
    pub(crate) speeds: Option<Box<Speeds>>,
    /// The vCPU that makes the calls of the policy's balancer. All its CPU time is overhead.
    balancer: Option<VcpuId>,
    /// Records that are not yet in the trace.
    pub(crate) records: Vec<Record>,
}

impl Account {
    pub(crate) fn new(scenario: &Scenario) -> Account {
        let speeds = Speeds::new(scenario).map(Box::new);
        Account { speeds, balancer: scenario.balancer(), records: Vec::new() }
    }

    /// Returns true if the work of each interval must be counted, because the work can differ from
    /// CPU time.
    #[inline]
    pub(crate) fn counts_pieces(&self) -> bool {
        self.speeds.is_some() || self.balancer.is_some()
    }

    /// Returns the CPU time that an amount of work of a vCPU takes on a CPU.
    #[inline(always)]
    pub(crate) fn time(&self, (cpu, vcpu): (CpuId, VcpuId), work: Span) -> Span {
        match &self.speeds {
            None => work,
            Some(speeds) => speeds.time(cpu, vcpu, work),
        }
    }

    /// Returns the work that a vCPU has done on a CPU between two times. Also records the time that
    /// was overhead or was spent at less than full speed.
    #[inline(always)]
    pub(crate) fn work(&mut self, (cpu, vcpu): (CpuId, VcpuId), (from, to): (Time, Time)) -> Span {
        if self.balancer == Some(vcpu) && from < to {
            let (vcpu, kind) = (Some(vcpu), OverheadKind::Balancing);
            self.records.push(Record::Spent { cpu, vcpu, kind, from, to });
        }
        match &mut self.speeds {
            None => to.since(from),
            Some(speeds) => speeds.work((cpu, vcpu), (from, to), &mut self.records),
        }
    }
}
