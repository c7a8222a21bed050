//! The hardware as a host sees it, simulated or live: what it reports, and what it is told to do.

use slackline_policy::Values;
use slackline_trace::{Order, Outcome, Used};
use slackline_units::{CpuId, CpuSet, Time, Told};

/// Something that happened, with terms as a policy reads them.
pub type Fact<'a> = slackline_trace::Fact<VcpuTerms<'a>, &'a Told>;

/// What the hardware reports: one fact at a time, in the order things happened.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// When it happened.
    pub now: Time,
    /// CPU time that was noticed without being asked for: used by vCPUs that have no CPU, or in
    /// stretches that are over. What occupants are using the host asks for when it needs it.
    pub used: &'a [Used],
    /// What happened.
    pub fact: Fact<'a>,
}

/// On what terms a vCPU is here.
#[derive(Clone, Copy, Debug)]
pub struct VcpuTerms<'a> {
    /// Its share.
    pub share: &'a Values,
    /// Where it may run; none is everywhere.
    pub cpus: Option<CpuSet>,
}

impl<'a> From<&'a Values> for VcpuTerms<'a> {
    /// That share, everywhere.
    fn from(share: &'a Values) -> VcpuTerms<'a> {
        VcpuTerms { share, cpus: None }
    }
}

/// The part of the hardware that measures and carries out orders.
pub trait Hardware {
    /// What the occupant of a CPU has used since this was last asked, as measured; none if that is
    /// nothing or there is no occupant.
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<Used>;

    /// Carries out an order at once, or says that it cannot.
    fn carry_out(&mut self, order: Order) -> Outcome;

    /// The policy's alarm for a CPU may have changed; none means that it need not be rung.
    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>);
}
