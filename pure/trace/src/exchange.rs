//! What passes between a machine and its host: facts and measurements one way, orders the other.
//!
//! In the order in which they passed, these are all that a run depends on: a host that is told the
//! same facts and given the same measurements must give the same orders.

use slackline_units::{CpuId, CpuSet, Entitlement, Span, Time, Told, VcpuId};

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

/// Something that happened; `T` is how the terms of a vCPU are given, `W` how its words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact<T, W> {
    /// A vCPU joins, asleep, on these terms.
    Joined(VcpuId, T),
    /// The terms of a vCPU are to change.
    TermsChanged(VcpuId, T),
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
    /// A vCPU tells something about its guest's tasks, or about I/O that it does for others.
    Told(VcpuId, W),
    /// A vCPU that could not be run before can be run now.
    Allowed(VcpuId),
    /// The clock by which phases are told is so far ahead of the host's time from now on.
    ClockSet(Span),
    /// Nothing but time has passed.
    Passed,
    /// Nothing more happens at this instant: whoever is to be asked is asked now.
    Settled,
    /// The run is over.
    Ended,
}

impl<T, W> Fact<T, W> {
    /// The same fact with terms and words given in another way.
    pub fn map<U, V>(
        self,
        as_other: impl FnOnce(T) -> U,
        in_words: impl FnOnce(W) -> V,
    ) -> Fact<U, V> {
        match self {
            Fact::Joined(vcpu, terms) => Fact::Joined(vcpu, as_other(terms)),
            Fact::TermsChanged(vcpu, terms) => Fact::TermsChanged(vcpu, as_other(terms)),
            Fact::Left(vcpu) => Fact::Left(vcpu),
            Fact::Woke(vcpu) => Fact::Woke(vcpu),
            Fact::Blocked(vcpu) => Fact::Blocked(vcpu),
            Fact::Paused(vcpu) => Fact::Paused(vcpu),
            Fact::Yielded(cpu) => Fact::Yielded(cpu),
            Fact::LimitReached(cpu) => Fact::LimitReached(cpu),
            Fact::AlarmRang(cpu) => Fact::AlarmRang(cpu),
            Fact::Told(vcpu, told) => Fact::Told(vcpu, in_words(told)),
            Fact::Allowed(vcpu) => Fact::Allowed(vcpu),
            Fact::ClockSet(ahead) => Fact::ClockSet(ahead),
            Fact::Passed => Fact::Passed,
            Fact::Settled => Fact::Settled,
            Fact::Ended => Fact::Ended,
        }
    }
}

/// What a machine is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Let `vcpu` have `cpu`, and report when the limit is reached. If it has it already, only the
    /// limit or the entitlement is new.
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

/// A fact that owns what it says, to be kept.
pub type KeptFact = Fact<Box<WrittenTerms>, Box<Told>>;

/// The terms of a vCPU as they are written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenTerms {
    /// Its share, all fields of it: `slice=6ms period=10ms exact=true`.
    pub share: String,
    /// Where it may run; none is everywhere.
    pub cpus: Option<CpuSet>,
}

/// One thing that passed between a machine and its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// The machine tells of CPU time that it noticed by itself; the fact comes next.
    Noticed(Used),
    /// The machine reports a fact.
    Reported {
        /// When it happened.
        now: Time,
        /// What happened.
        fact: KeptFact,
    },
    /// The machine was asked what an occupant had used, and that was not nothing.
    Measured(Used),
    /// The machine was given an order.
    Ordered {
        /// What it was to do.
        order: Order,
        /// How that went.
        outcome: Outcome,
    },
    /// The machine was told when to ring for a CPU.
    AlarmSet {
        /// Which.
        cpu: CpuId,
        /// When; none is not at all.
        alarm: Option<Time>,
    },
    /// The share in the fact cannot be honoured: nothing has changed.
    Declined,
}
