//! The hardware as the host sees it, simulated or live: the reports it makes and the orders it
//! takes.

use slackline_policy::Values;
use slackline_trace::{CpuUse, Order, Outcome};
use slackline_units::{CpuId, CpuSet, Time, VcpuHint};

/// Event reported by the hardware, with the vCPU's parameters in the form that policies read.
pub type Fact<'a> = slackline_trace::Fact<VcpuTerms<'a>, &'a VcpuHint>;

/// Report by the hardware: one event. Reports are made in the order of their events.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// Time of the event.
    pub now: Time,
    /// CPU time that the hardware noticed without being asked: used by vCPUs without a CPU, or in
    /// run intervals that have ended. The host measures the CPU time of running vCPUs itself, with
    /// [`Hardware::measure`].
    pub used: &'a [CpuUse],
    /// Event that the hardware reports.
    pub fact: Fact<'a>,
}

/// Parameters of a vCPU: its share and its affinity.
#[derive(Clone, Copy, Debug)]
pub struct VcpuTerms<'a> {
    /// Share under the policy, such as slice and period.
    pub share: &'a Values,
    /// CPUs that the vCPU may run on. `None` allows all.
    pub cpus: Option<CpuSet>,
}

impl<'a> From<&'a Values> for VcpuTerms<'a> {
    /// Returns terms with this share and without a limit on the CPUs.
    fn from(share: &'a Values) -> VcpuTerms<'a> {
        VcpuTerms { share, cpus: None }
    }
}

/// Part of the hardware that measures CPU time and carries out orders.
pub trait Hardware {
    /// Returns the CPU time that the occupant of `cpu` has used since the last call, as measured.
    /// `None` if it used nothing or the CPU has no occupant.
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse>;

    /// Carries out an order at once, or refuses it.
    fn carry_out(&mut self, order: Order) -> Outcome;

    /// Sets the policy's timer for a CPU, which may have changed. `None` disarms it.
    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>);
}
