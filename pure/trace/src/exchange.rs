//! Exchanges between the hardware and the host that drives the policy. The hardware sends events
//! and measurements, the host sends orders.
//!
//! The exchanges in their order determine a run: a host that receives the same events and
//! measurements must give the same orders.

use slackline_units::{CpuId, CpuSet, Entitlement, Span, Time, VcpuHint, VcpuId};

/// CPU time that a vCPU used on a CPU in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuUse {
    /// vCPU that used the CPU time.
    pub vcpu: VcpuId,
    /// CPU on which the vCPU ran.
    pub cpu: CpuId,
    /// Start of the interval. The start is not earlier than the end of the last interval reported
    /// for this CPU.
    pub from: Time,
    /// End of the interval. The end is not later than the time of the report.
    pub to: Time,
    /// CPU time used in the interval, at most its length.
    pub ran: Span,
}

/// Event that the hardware reports to the host. `T` is the type of a vCPU's parameters, `W` the
/// type of its hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact<T, W> {
    /// A vCPU joins with these parameters. It is blocked at first.
    Joined(VcpuId, T),
    /// The parameters of a vCPU change to the given parameters.
    TermsChanged(VcpuId, T),
    /// A vCPU left the host.
    Left(VcpuId),
    /// A vCPU becomes runnable.
    Woke(VcpuId),
    /// A vCPU blocks: it has no more work.
    Blocked(VcpuId),
    /// A runnable vCPU is paused. A report of its wake follows when it is resumed.
    Paused(VcpuId),
    /// The vCPU that occupies a CPU gives up the rest of its timeslice.
    Yielded(CpuId),
    /// The vCPU that occupies a CPU has run until the limit of its timeslice.
    LimitReached(CpuId),
    /// The policy's timer for a CPU expired.
    AlarmRang(CpuId),
    /// A vCPU gives a hint to the scheduler: about its guest's tasks, or about I/O that it does for
    /// other VMs.
    Told(VcpuId, W),
    /// The hardware can again run a vCPU for which it refused an order.
    Allowed(VcpuId),
    /// The clock that aligns periods with a phase was set. From now on that clock is ahead of the
    /// host's time by the given span.
    ClockSet(Span),
    /// Time has passed without any other event.
    Passed,
    /// No more events follow at this instant. The host then reschedules the CPUs whose pick may
    /// have changed.
    Settled,
    /// The run is over.
    Ended,
}

impl<T, W> Fact<T, W> {
    /// Converts the parameters and hints of the event to another form.
    pub fn map<U, V>(
        self,
        map_terms: impl FnOnce(T) -> U,
        map_hint: impl FnOnce(W) -> V,
    ) -> Fact<U, V> {
        match self {
            Fact::Joined(vcpu, terms) => Fact::Joined(vcpu, map_terms(terms)),
            Fact::TermsChanged(vcpu, terms) => Fact::TermsChanged(vcpu, map_terms(terms)),
            Fact::Left(vcpu) => Fact::Left(vcpu),
            Fact::Woke(vcpu) => Fact::Woke(vcpu),
            Fact::Blocked(vcpu) => Fact::Blocked(vcpu),
            Fact::Paused(vcpu) => Fact::Paused(vcpu),
            Fact::Yielded(cpu) => Fact::Yielded(cpu),
            Fact::LimitReached(cpu) => Fact::LimitReached(cpu),
            Fact::AlarmRang(cpu) => Fact::AlarmRang(cpu),
            Fact::Told(vcpu, told) => Fact::Told(vcpu, map_hint(told)),
            Fact::Allowed(vcpu) => Fact::Allowed(vcpu),
            Fact::ClockSet(ahead) => Fact::ClockSet(ahead),
            Fact::Passed => Fact::Passed,
            Fact::Settled => Fact::Settled,
            Fact::Ended => Fact::Ended,
        }
    }
}

/// Order that the host gives to the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Run `vcpu` on `cpu`, and report when the limit is reached. If `vcpu` runs on `cpu` already,
    /// only the limit or the entitlement changes.
    Run {
        /// CPU to run on.
        cpu: CpuId,
        /// vCPU that is to run on `cpu`.
        vcpu: VcpuId,
        /// End of the timeslice. With `None` the timeslice has no limit.
        until: Option<Time>,
        /// Entitlement by which the vCPU runs.
        entitlement: Entitlement,
    },
    /// Leave `cpu` idle: no vCPU runs on it.
    Idle {
        /// CPU to leave idle.
        cpu: CpuId,
    },
}

/// Outcome of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The order was carried out.
    Done,
    /// The order could not be carried out. The CPU is idle now.
    Refused,
}

/// Event that owns its parameters and hints, for recording.
pub type KeptFact = Fact<Box<WrittenTerms>, Box<VcpuHint>>;

/// Parameters of a vCPU in the form in which they are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenTerms {
    /// Parameters with all their fields, such as `slice=6ms period=10ms exact=true`.
    pub share: String,
    /// CPUs that the affinity of the vCPU allows. If a vCPU joins with `None`, all CPUs are
    /// allowed. If parameters change and the affinity is `None`, the vCPU keeps its affinity.
    pub cpus: Option<CpuSet>,
}

/// One exchange between the hardware and its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// The hardware reports CPU time of a vCPU without a request from the host, and before it
    /// reports an event.
    Noticed(CpuUse),
    /// The hardware reports an event.
    Reported {
        /// Time of the event.
        now: Time,
        /// Event that the hardware reported.
        fact: KeptFact,
    },
    /// The host measured the CPU time of the vCPU that occupies a CPU. Recorded only if the CPU
    /// time is not zero.
    Measured(CpuUse),
    /// The host gave an order.
    Ordered {
        /// Order that was given.
        order: Order,
        /// `Done` if the hardware carried out the order, `Refused` if it could not.
        outcome: Outcome,
    },
    /// The host set the timer of a CPU.
    AlarmSet {
        /// CPU of the timer.
        cpu: CpuId,
        /// Time at which the timer expires. `None` if the timer is cleared.
        alarm: Option<Time>,
    },
    /// The policy refused the parameters in the last event, so nothing has changed.
    Declined,
}

impl Exchange {
    /// Returns true if this exchange is needed to compute the demand of vCPUs: if it is about
    /// parameters, a guest's hint, the end of a timeslice or an expired timer. A replay also needs
    /// all other exchanges.
    #[must_use]
    pub fn affects_demand(&self) -> bool {
        match self {
            Exchange::Reported { fact, .. } => matches!(
                fact,
                Fact::Joined(..)
                    | Fact::TermsChanged(..)
                    | Fact::Told(..)
                    | Fact::LimitReached(_)
                    | Fact::AlarmRang(_)
            ),
            Exchange::Declined => true,
            Exchange::Noticed(_)
            | Exchange::Measured(_)
            | Exchange::Ordered { .. }
            | Exchange::AlarmSet { .. } => false,
        }
    }
}
