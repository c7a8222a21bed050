//! Canaries: policies that are broken on purpose, to test the contract suite. Each wraps a real
//! policy and breaks one rule of the contract.

use std::sync::atomic::{AtomicU64, Ordering};

use slackline_policy::{
    Account, AdmitError, Entitlement, Moment, Pick, Policy, Spec, TimesliceEnd, Values, VcpuHint,
    find,
};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

/// Rule of the contract that a canary (a policy broken on purpose) breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Picks a blocked vCPU for a CPU that should be idle.
    PicksSleepers,
    /// For a CPU that should be idle, picks a vCPU that runs on another CPU.
    PicksFromElsewhere,
    /// For a CPU that should be idle, picks a vCPU that the hardware has refused.
    PicksRefused,
    /// For a CPU that should be idle, picks a vCPU that has left.
    PicksThoseWhoLeft,
    /// Sets a timer to a time in the past.
    RingsInThePast,
    /// Picks timeslices of length zero.
    HandsOutNothing,
    /// Ignores wakes of the vCPU in slot 0.
    ForgetsOne,
    /// Ignores wakes of the vCPU in slot 0 until the parameters of that vCPU change, and then
    /// handles them.
    ForgetsOneForAWhile,
    /// After a vCPU has left, treats the vCPU in the next occupied slot as blocked.
    DropsTheNext,
    /// Charges twice the CPU time used.
    ChargesTwice,
    /// Gives slack to vCPUs with a hard limit.
    GivesTooMuch,
    /// Returns different results for the same `pick`.
    AnswersOtherwise,
    /// Bases its results on the number of `pick` calls so far, but gives the same result in
    /// consecutive calls.
    WearsOut,
    /// Decides differently from an identical copy of itself.
    IsNotRepeatable,
    /// Returns, for rescheduling, a CPU that does not exist.
    NamesNoCpu,
    /// Adopts parameters that it rejects.
    TakesWhatItDeclines,
}

/// Returns the real policy that a canary (a policy broken on purpose) wraps.
pub(crate) fn wrapped(wrong: Wrong) -> &'static Spec {
    let name = match wrong {
        Wrong::ChargesTwice | Wrong::GivesTooMuch | Wrong::TakesWhatItDeclines => "edf",
        // `credit` has caps, so the suite waits longer before it reports a starved vCPU.
        Wrong::ForgetsOneForAWhile => "credit",
        _ => "round-robin",
    };
    find(name).expect("the wrapped policy is on the list")
}

/// Number of canaries (broken policies) created so far. A correct policy cannot depend on this
/// number, but a canary can.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Policy that wraps another policy and breaks one rule of the contract.
pub(crate) struct Canary {
    policy: Box<dyn Policy>,
    spec: &'static Spec,
    wrong: Wrong,
    number: u64,
    asked: AtomicU64,
    /// Number of `pick` calls before the last start of a vCPU.
    worn: u64,
    gone: Option<VcpuId>,
    now: Time,
}

impl Canary {
    pub(crate) fn new(policy: Box<dyn Policy>, wrong: Wrong) -> Canary {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let (spec, asked, now) = (wrapped(wrong), AtomicU64::new(0), Time::START);
        Canary { policy, spec, wrong, number, asked, worn: 0, gone: None, now }
    }

    /// Returns the pick for a CPU that the wrapped policy leaves idle.
    fn instead_of_idle(&self, at: &Moment, cpu: CpuId) -> Pick {
        let awake = |vcpu: VcpuId| at.is_awake(vcpu);
        let vcpu = match self.wrong {
            Wrong::PicksSleepers => at.members().find(|&vcpu| !awake(vcpu)),
            Wrong::PicksFromElsewhere => at
                .members()
                .find(|&vcpu| awake(vcpu) && at.cpu_of(vcpu).is_some_and(|other| other != cpu)),
            Wrong::PicksRefused => at.members().find(|&vcpu| {
                awake(vcpu) && at.cpu_of(vcpu).is_none() && !at.is_eligible(vcpu, cpu)
            }),
            Wrong::PicksThoseWhoLeft => self.gone.filter(|&vcpu| !at.is_member(vcpu)),
            Wrong::GivesTooMuch => at.eligible(cpu).next(),
            _ => None,
        };
        let limit = Some(Span::from_ms(1));
        vcpu.map_or(Pick::Idle, |vcpu| Pick::Run { vcpu, limit, entitlement: Entitlement::Spare })
    }

    /// Returns the length limit of a timeslice to use instead of `limit`.
    fn limit(&self, limit: Option<Span>) -> Option<Span> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let more = match self.wrong {
            Wrong::HandsOutNothing => return Some(Span::ZERO),
            Wrong::AnswersOtherwise => asked % 2,
            Wrong::WearsOut => self.worn,
            Wrong::IsNotRepeatable => self.number,
            _ => 0,
        };
        limit.map(|limit| limit + Span::from_ns(more))
    }
}

impl Policy for Canary {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        self.policy.admit(at, vcpu, share)
    }

    fn on_join(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.policy.on_join(at, vcpu)
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        if self.wrong == Wrong::ForgetsOneForAWhile && vcpu.slot() == 0 && at.is_awake(vcpu) {
            let cpus = self.policy.on_wake(at, vcpu);
            return self
                .policy
                .adjust(at, vcpu, share)
                .map(|more| cpus.iter().chain(more.iter()).collect());
        }
        let answer = self.policy.adjust(at, vcpu, share);
        if answer.is_err() && self.wrong == Wrong::TakesWhatItDeclines {
            // A tiny slice, which always fits.
            let least = slackline_policy::RawValue::Text("1ns");
            let most = slackline_policy::RawValue::Text("1ms");
            let small = [("slice", least), ("period", most)].into_iter();
            let small = Values::read(self.spec.share_fields, small)
                .expect("`slice` and `period` are fields of EDF");
            let _ = self.policy.adjust(at, vcpu, &small);
        }
        answer
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.gone = Some(vcpu);
        let mut cpus = self.policy.on_leave(at, vcpu);
        if self.wrong == Wrong::DropsTheNext {
            let next = at.members().find(|&other| other > vcpu);
            next.into_iter().for_each(|next| cpus.extend(self.policy.on_block(at, next).iter()));
        }
        cpus
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.now = at.now();
        match self.wrong {
            Wrong::ForgetsOne | Wrong::ForgetsOneForAWhile if vcpu.slot() == 0 => CpuSet::NONE,
            Wrong::NamesNoCpu => CpuSet::one(CpuId::new(77)),
            _ => self.policy.on_wake(at, vcpu),
        }
    }

    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.worn = self.asked.load(Ordering::Relaxed);
        self.policy.on_start(at, vcpu)
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let idle = |cpu| self.policy.pick(at, cpu) == Pick::Idle;
        match self.wrong {
            Wrong::ChargesTwice => self.policy.charge(at, vcpu, ran * 2),
            // Slack that was given away is not charged.
            Wrong::GivesTooMuch if at.cpu_of(vcpu).is_some_and(idle) => CpuSet::NONE,
            _ => self.policy.charge(at, vcpu, ran),
        }
    }

    fn on_timeslice_end(&mut self, at: &Moment, vcpu: VcpuId, why: TimesliceEnd) -> CpuSet {
        self.policy.on_timeslice_end(at, vcpu, why)
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.policy.on_block(at, vcpu)
    }

    fn prepare_pick(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.policy.prepare_pick(at, cpu)
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        match self.policy.pick(at, cpu) {
            Pick::Idle => self.instead_of_idle(at, cpu),
            Pick::Run { vcpu, limit, entitlement } => {
                Pick::Run { vcpu, limit: self.limit(limit), entitlement }
            }
        }
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        if self.wrong == Wrong::RingsInThePast && self.now > Time::START {
            return Some(self.now - Span::from_ns(1));
        }
        self.policy.next_timer(cpu)
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.policy.on_timer(at, cpu)
    }

    fn timer_charges(&self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.policy.timer_charges(at, cpu)
    }

    fn on_hint(&mut self, at: &Moment, vcpu: VcpuId, told: &VcpuHint) -> CpuSet {
        self.policy.on_hint(at, vcpu, told)
    }

    fn set_clock(&mut self, at: &Moment, ahead: Span) {
        self.policy.set_clock(at, ahead);
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        self.policy.account(vcpu)
    }
}
