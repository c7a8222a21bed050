//! What a machine reports, and what it is told to do.

use slackline_policy::{Entitlement, Values};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

/// What a machine reports: one fact at a time, in the order things happened.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// When it happened.
    pub now: Time,
    /// CPU time that the machine noticed by itself: used by vCPUs that have no CPU, or in stretches
    /// that are over. What occupants are using the host asks for when it needs it.
    pub used: &'a [Used],
    /// What happened.
    pub fact: Fact<'a>,
}

/// CPU time that a vCPU used on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Who.
    pub vcpu: VcpuId,
    /// Where.
    pub cpu: CpuId,
    /// From when: not before what was reported of this CPU before.
    pub from: Time,
    /// Until when: not after the report.
    pub to: Time,
    /// How much of that; not more than lies between the two.
    pub ran: Span,
}

/// On what terms a vCPU is here.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Its share.
    pub share: &'a Values,
    /// Where it may run; none is everywhere.
    pub cpus: Option<CpuSet>,
}

impl<'a> From<&'a Values> for Terms<'a> {
    /// That share, everywhere.
    fn from(share: &'a Values) -> Terms<'a> {
        Terms { share, cpus: None }
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Fact<'a> {
    /// A vCPU joins, asleep, on these terms.
    Joined(VcpuId, Terms<'a>),
    /// The terms of a vCPU are to change.
    TermsChanged(VcpuId, Terms<'a>),
    /// A vCPU is gone.
    Left(VcpuId),
    /// A vCPU has work again.
    Woke(VcpuId),
    /// A vCPU has no more work.
    Blocked(VcpuId),
    /// A vCPU with work is held; when it is let go it wakes.
    Paused(VcpuId),
    /// The occupant of a CPU gives the rest of its turn away.
    Yielded(CpuId),
    /// The occupant of a CPU has run until its limit.
    LimitReached(CpuId),
    /// The policy's alarm for a CPU went off.
    AlarmRang(CpuId),
    /// A vCPU that could not be run before can be run now.
    Allowed(VcpuId),
    /// Nothing but time has passed.
    Passed,
    /// The run is over.
    Ended,
}

/// What a machine is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Let `vcpu` have `cpu`, and report when the limit is reached. If it has it already, only the
    /// limit or the claim is new.
    Run {
        /// Where.
        cpu: CpuId,
        /// Who.
        vcpu: VcpuId,
        /// Until when at most.
        until: Option<Time>,
        /// By what right.
        entitlement: Entitlement,
    },
    /// Let nobody have `cpu`.
    Idle {
        /// Where.
        cpu: CpuId,
    },
}

/// How an order went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has been carried out.
    Done,
    /// It could not be carried out; the CPU has nobody now.
    Refused,
}

/// The part of a machine that measures and carries out orders.
pub trait Machine {
    /// What the occupant of a CPU has used since this was last asked, as measured; none if that is
    /// nothing or there is no occupant.
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<Used>;

    /// Carries out an order at once, or says that it cannot.
    fn carry_out(&mut self, order: Order) -> Outcome;

    /// The policy's alarm for a CPU may have changed; none means that it need not be rung.
    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>);
}
