//! The hardware, simulated or live, as the host sees it: the reports that the hardware makes and
//! the orders that it carries out.

use slackline_policy::Values;
use slackline_trace::{CpuUse, Order, Outcome};
use slackline_units::{CpuId, CpuSet, Time, VcpuHint};

/// Event reported by the hardware, with the vCPU's parameters in the form that policies read.
pub type Fact<'a> = slackline_trace::Fact<VcpuTerms<'a>, &'a VcpuHint>;

/// Report of one event by the hardware. Reports are made in the order of their events.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// Time of the event.
    pub now: Time,
    /// CPU time that the hardware reports without a request from the host. This CPU time was used
    /// in run intervals that have ended, or by vCPUs that occupied no CPU. The host queries the CPU
    /// time of running vCPUs with [`Hardware::measure`].
    pub used: &'a [CpuUse],
    /// Event that the hardware reports.
    pub fact: Fact<'a>,
}

/// Parameters of a vCPU, and its affinity.
#[derive(Clone, Copy, Debug)]
pub struct VcpuTerms<'a> {
    /// Parameters that the policy reads, such as slice and period.
    pub share: &'a Values,
    /// Affinity: CPUs on which the vCPU may run. If a vCPU joins with `None`, all CPUs are allowed.
    /// If parameters change and the affinity is `None`, the vCPU keeps its affinity.
    pub cpus: Option<CpuSet>,
}

impl<'a> From<&'a Values> for VcpuTerms<'a> {
    /// Returns these parameters without an affinity. A vCPU that joins may then use all CPUs, and a
    /// vCPU that changes its parameters keeps its affinity.
    fn from(share: &'a Values) -> VcpuTerms<'a> {
        VcpuTerms { share, cpus: None }
    }
}

/// Hardware that measures CPU time and carries out orders.
pub trait Hardware {
    /// Measures the CPU time that the vCPU occupying `cpu` has used since the last call for `cpu`.
    /// `None` if the CPU time is zero or the CPU is idle.
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse>;

    /// Carries out an order at once, or refuses it.
    fn carry_out(&mut self, order: Order) -> Outcome;

    /// Replaces the timer of a CPU by one that expires at `alarm`. At that time the hardware
    /// reports that the timer has expired, and the host asks the policy to pick a vCPU. `None`
    /// clears the timer. The call may repeat the time that is already set.
    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>);
}
