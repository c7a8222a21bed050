//! Who *can* run. The host stands between hardware, simulated or live, and a policy: it keeps run
//! states, charges what was measured, checks both against the contract, and turns answers into
//! orders.
//!
//! Hardware is a loop: report the facts of an instant one by one with [`Host::step`], say that it
//! is settled, and carry out the orders that come of it. CPUs are asked in order of their number,
//! the last thing in an instant. The host knows no durations but those it is told, no policy by
//! name, and nothing of the world.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod check;
mod hardware;
mod pass;
mod recorded;
mod turn;

use slackline_policy::{
    Account, Entitlement, Moment, Pick, Policy, Promise, Spec, Told, Topology, TurnEnd, Values,
};
use slackline_trace::{RanEnd, Record, Sink};
use slackline_units::{CpuId, CpuSet, CpuShare, ReservationError, Span, Time, VcpuId};

pub use check::{Broken, Fault, NotEligible};
pub use hardware::{Fact, Hardware, Report, VcpuTerms};
pub use slackline_policy as policy;
pub use slackline_trace::{Order, Outcome, Used};
use turn::Turns;

/// What a share promises, by a policy's own reading of it.
type PromiseOf = fn(&Values) -> Result<Option<Promise>, ReservationError>;

/// Run states, the contract, orders: for one policy and the CPUs it schedules.
pub struct Host {
    policy: Box<dyn Policy>,
    promise: PromiseOf,
    moment: Moment,
    turns: Turns,
    /// The CPUs to ask once the instant is settled.
    to_ask: CpuSet,
    /// Who woke at this instant, had to go, or may run elsewhere from now on: an idle CPU is asked
    /// if nobody else takes it.
    to_offer: Vec<VcpuId>,
    /// Who had a CPU as its terms changed at this instant, and the CPUs that its policy then named.
    moved: Vec<(VcpuId, CpuSet)>,
    /// How many turns of no length there were at this instant.
    empty_turns: usize,
}

/// Why a vCPU cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Blocked,
    Paused,
}

/// A vCPU that would run if those before it did not want to, and for how long at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextInLine {
    /// Who.
    pub vcpu: VcpuId,
    /// For how long at most.
    pub limit: Option<Span>,
}

impl Host {
    /// A host with these CPUs under a policy with these parameters, and no vCPU yet.
    #[must_use]
    pub fn new(spec: &Spec, values: &Values, topology: &Topology) -> Host {
        Host::with((spec.build)(values, topology), spec.promise, topology.cpus())
    }

    /// A host under a policy that need not be on any list, as the contract suite's canaries.
    #[must_use]
    pub fn with(policy: Box<dyn Policy>, promise: PromiseOf, cpus: usize) -> Host {
        let (moment, turns) = (Moment::at_start(cpus), Turns::new(cpus));
        let (to_ask, to_offer, moved) = (CpuSet::NONE, Vec::new(), Vec::new());
        Host { policy, promise, moment, turns, to_ask, to_offer, moved, empty_turns: 0 }
    }

    /// The host as it is.
    #[must_use]
    #[inline]
    pub fn moment(&self) -> &Moment {
        &self.moment
    }

    /// What the policy shows about a vCPU.
    #[must_use]
    pub fn account(&self, vcpu: VcpuId) -> Account {
        self.policy.account(vcpu)
    }

    /// The longest slice in every such period that would be admitted at the time of the last report
    /// for one more who may run on these CPUs, at least one. None where slices are not promised, or
    /// are promised to everybody who asks.
    #[must_use]
    pub fn room(&self, period: Span, allowed: CpuSet) -> Option<Span> {
        self.policy.room(&self.moment, period, allowed)
    }

    /// Returns the sum of all reservations on a CPU, without the overhead that admission counts.
    /// `None` where slices are not reserved on single CPUs.
    #[must_use]
    pub fn reserved(&self, cpu: CpuId) -> Option<CpuShare> {
        self.policy.reserved(cpu)
    }

    /// Takes one report in: charges, and tells the policy. The CPUs whose answer may have changed
    /// are asked once the hardware says that the instant is [settled](Fact::Settled); who blocks or
    /// yields is followed at once on its CPU.
    ///
    /// # Errors
    /// [`Fault::Declined`] when a share cannot be honoured: then nothing has changed.
    /// [`Fault::Broken`] when the hardware or the policy broke the contract: then this host is of
    /// no more use.
    #[inline(always)]
    pub fn step<M: Hardware, S: Sink>(
        &mut self,
        report: Report<'_>,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        if sink.wants_exchanges() {
            self.step_recorded(report, hardware, sink)
        } else {
            self.take_in(report, hardware, sink)
        }
    }

    #[inline(always)]
    fn take_in<M: Hardware, S: Sink>(
        &mut self,
        report: Report<'_>,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        self.pass_time(report.now)?;
        for used in report.used {
            self.charge(*used, sink)?;
        }
        match report.fact {
            Fact::Joined(vcpu, terms) => self.join(vcpu, terms, hardware, sink),
            Fact::TermsChanged(vcpu, terms) => self.change_terms(vcpu, terms, hardware, sink),
            Fact::Left(vcpu) => self.leave(vcpu, hardware, sink),
            Fact::Woke(vcpu) => self.wake(vcpu, hardware, sink),
            Fact::Blocked(vcpu) => self.block(vcpu, Rest::Blocked, hardware, sink),
            Fact::Paused(vcpu) => self.block(vcpu, Rest::Paused, hardware, sink),
            Fact::Yielded(cpu) => self.yields(cpu, hardware, sink),
            Fact::LimitReached(cpu) => self.end_turn(cpu, TurnEnd::Limit, hardware, sink),
            Fact::AlarmRang(cpu) => self.ring(cpu, hardware, sink),
            Fact::Told(vcpu, told) => self.hear(vcpu, told, hardware, sink),
            Fact::Allowed(vcpu) => self.allow(vcpu),
            Fact::ClockSet(ahead) => {
                self.policy.set_clock(&self.moment, ahead);
                sink.record(&Record::ClockSet { at: report.now, ahead });
                Ok(())
            }
            Fact::Passed => Ok(()),
            Fact::Settled => self.decide(hardware, sink),
            Fact::Ended => {
                for index in 0..self.moment.cpus() {
                    self.measure(CpuId::new(index), hardware, sink)?;
                }
                self.turns.close_all(RanEnd::Over, sink);
                sink.record(&Record::Ended { at: report.now });
                Ok(())
            }
        }
    }

    /// Whether no CPU is to be asked: it need not be said that the instant is settled.
    #[must_use]
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.to_ask.is_empty() && self.to_offer.is_empty()
    }

    /// What the policy would answer for a CPU now. Nothing comes of it.
    #[must_use]
    pub fn answer(&self, cpu: CpuId) -> Pick {
        self.policy.pick(&self.moment, cpu)
    }

    /// Whether the policy shares spare time out too, not alike.
    #[must_use]
    pub fn weighs_spare_time(&self) -> bool {
        self.policy.weighs_spare_time()
    }

    /// Who would be due on `cpu` one after the other, if each before did not want it: the occupant
    /// first, and so many at most. Hardware that learns late that a vCPU went to sleep has the
    /// next one ready.
    pub fn in_line(&mut self, cpu: CpuId, most: usize, into: &mut Vec<NextInLine>) {
        self.line(cpu, most, |entitlement| entitlement == Entitlement::Due, into);
    }

    /// The same of all who would run there, by whatever right. Looks at each of them.
    pub fn in_turn(&mut self, cpu: CpuId, into: &mut Vec<NextInLine>) {
        self.line(cpu, usize::MAX, |_| true, into);
    }

    fn line(
        &mut self,
        cpu: CpuId,
        most: usize,
        counts: impl Fn(Entitlement) -> bool,
        into: &mut Vec<NextInLine>,
    ) {
        into.clear();
        while into.len() < most
            && let Pick::Run { vcpu, limit, entitlement } = self.policy.pick(&self.moment, cpu)
            && counts(entitlement)
        {
            if !self.moment.is_eligible(vcpu, cpu) {
                break; // The next step that asks will say what is wrong.
            }
            into.push(NextInLine { vcpu, limit });
            self.moment.set_barred(vcpu, true);
        }
        for next in into.iter() {
            self.moment.set_barred(next.vcpu, false);
        }
    }

    #[inline]
    fn pass_time(&mut self, now: Time) -> Result<(), Box<Fault>> {
        let before = self.moment.now();
        if now < before {
            return Err(Fault::broken(Broken::TimeWentBack { before, now }));
        }
        if now > before {
            self.empty_turns = 0;
        }
        self.moment.advance(now);
        Ok(())
    }

    /// Brings the accounts of a CPU's occupant up to date.
    #[inline(always)]
    fn measure<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        if self.moment.occupant(cpu).is_none() || self.turns.reported(cpu) == self.moment.now() {
            return Ok(());
        }
        self.measure_now(cpu, hardware, sink)
    }

    fn measure_now<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        match hardware.measure(cpu, self.moment.now()) {
            Some(used) => self.charge(used, sink),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn charge<S: Sink>(&mut self, used: Used, sink: &mut S) -> Result<(), Box<Fault>> {
        check::used(&used, &self.moment)?;
        self.turns.add(used, sink)?;
        if !used.ran.is_zero() {
            let cpus = self.policy.charge(&self.moment, used.vcpu, used.ran);
            self.to_ask.add(&cpus);
        }
        Ok(())
    }

    fn join<M: Hardware, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        terms: VcpuTerms<'_>,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        if self.moment.is_member(vcpu) {
            return Err(Fault::broken(Broken::JoinedTwice { vcpu }));
        }
        self.moment.join(vcpu);
        if let Some(cpus) = terms.cpus {
            check::somewhere(vcpu, cpus, &self.moment)?;
            self.moment.allow(vcpu, cpus);
        }
        if let Err(error) = self.policy.admit(&self.moment, vcpu, terms.share) {
            self.moment.leave(vcpu);
            return Err(Box::new(Fault::Declined { vcpu, error }));
        }
        let at = self.moment.now();
        sink.record(&Record::Joined { at, vcpu });
        self.record_promise(vcpu, terms.share, sink);
        for cpu in (0..self.moment.cpus()).map(CpuId::new) {
            hardware.set_alarm(cpu, self.policy.alarm(cpu));
        }
        Ok(())
    }

    fn change_terms<M: Hardware, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        terms: VcpuTerms<'_>,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        if let Some(cpu) = self.moment.cpu_of(vcpu) {
            self.measure(cpu, hardware, sink)?;
            self.turns.close(cpu, RanEnd::Preempted, sink);
        }
        let before = self.moment.allowed(vcpu);
        if let Some(cpus) = terms.cpus {
            check::somewhere(vcpu, cpus, &self.moment)?;
            self.moment.allow(vcpu, cpus);
        }
        let cpus = match self.policy.adjust(&self.moment, vcpu, terms.share) {
            Ok(cpus) => cpus,
            Err(error) => {
                if terms.cpus.is_some() {
                    self.moment.allow(vcpu, before);
                }
                sink.record(&Record::Declined { at: self.moment.now(), vcpu });
                return Err(Box::new(Fault::Declined { vcpu, error }));
            }
        };
        self.record_promise(vcpu, terms.share, sink);
        self.to_ask.add(&cpus);
        if let Some(cpu) = self.moment.cpu_of(vcpu) {
            self.to_ask.insert(cpu);
            self.moved.push((vcpu, cpus));
        }
        if self.moment.is_awake(vcpu) {
            self.to_offer.push(vcpu);
        }
        Ok(())
    }

    fn record_promise<S: Sink>(&self, vcpu: VcpuId, share: &Values, sink: &mut S) {
        let promise = (self.promise)(share).ok().flatten();
        sink.record(&Record::Promised {
            at: self.moment.now(),
            vcpu,
            reservation: promise.map(|promise| promise.reservation),
            exact: promise.is_some_and(|promise| promise.exact),
            phase: promise.and_then(|promise| promise.phase),
        });
    }

    fn leave<M: Hardware, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        let cpu = self.moment.cpu_of(vcpu);
        if let Some(cpu) = cpu {
            self.measure(cpu, hardware, sink)?;
            self.turns.close(cpu, RanEnd::Over, sink);
            self.clear(cpu, hardware);
        }
        self.to_ask.extend(cpu.or(self.moment.last_cpu_of(vcpu)));
        self.to_offer.retain(|&other| other != vcpu);
        self.moved.retain(|&(other, _)| other != vcpu);
        self.moment.leave(vcpu);
        let cpus = self.policy.leave(&self.moment, vcpu);
        self.to_ask.add(&cpus);
        sink.record(&Record::Left { at: self.moment.now(), vcpu });
        Ok(())
    }

    #[inline(always)]
    fn wake<M: Hardware, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::asleep(vcpu, &self.moment)?;
        match self.moment.last_cpu_of(vcpu) {
            Some(cpu) => self.measure(cpu, hardware, sink)?,
            // Its first wake: where it belongs only the policy knows.
            None => {
                for cpu in self.moment.allowed(vcpu).iter() {
                    self.measure(cpu, hardware, sink)?;
                }
            }
        }
        self.moment.set_awake(vcpu, true);
        sink.record(&Record::Woke { at: self.moment.now(), vcpu });
        let cpus = self.policy.wake(&self.moment, vcpu);
        self.to_ask.add(&cpus);
        self.to_offer.push(vcpu);
        Ok(())
    }

    #[inline(always)]
    fn block<M: Hardware, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        why: Rest,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::awake(vcpu, &self.moment)?;
        // Asleep before it is charged: a policy need not queue up for more whom that leaves with
        // nothing.
        self.moment.set_awake(vcpu, false);
        self.moment.set_barred(vcpu, false);
        let cpu = self.moment.cpu_of(vcpu);
        if let Some(cpu) = cpu {
            self.measure(cpu, hardware, sink)?;
            self.turns.close(cpu, RanEnd::Blocked, sink);
            self.moment.vacate(cpu);
        } else if let Some(cpu) = self.moment.last_cpu_of(vcpu) {
            // Ordinary scheduling may have let it run, or it slept again before it was decided.
            self.turns.close_of(vcpu, cpu, RanEnd::Blocked, sink);
        }
        let at = self.moment.now();
        sink.record(&match why {
            Rest::Blocked => Record::Blocked { at, vcpu },
            Rest::Paused => Record::Paused { at, vcpu },
        });
        let cpus = self.policy.block(&self.moment, vcpu);
        self.to_ask.add(&cpus);
        match (cpu, why) {
            (Some(cpu), Rest::Blocked) => return self.ask(cpu, hardware, sink),
            (Some(cpu), Rest::Paused) => self.clear(cpu, hardware),
            (None, _) => {}
        }
        self.to_ask.extend(cpu.or(self.moment.last_cpu_of(vcpu)));
        Ok(())
    }

    /// Who had a CPU is held or gone: it does not run until others have been asked about.
    fn clear<M: Hardware>(&mut self, cpu: CpuId, hardware: &mut M) {
        self.turns.take(cpu);
        self.moment.vacate(cpu);
        hardware.carry_out(Order::Idle { cpu });
    }

    fn hear<M: Hardware, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        told: &Told,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        if let Some(cpu) = self.moment.cpu_of(vcpu) {
            self.measure(cpu, hardware, sink)?;
        }
        let cpus = self.policy.hear(&self.moment, vcpu, told);
        self.to_ask.add(&cpus);
        Ok(())
    }

    /// Where somebody who may be run again should run only the policy knows. It is rare, so every
    /// CPU is asked.
    fn allow(&mut self, vcpu: VcpuId) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        self.moment.set_barred(vcpu, false);
        if self.moment.is_awake(vcpu) && self.moment.cpu_of(vcpu).is_none() {
            self.to_ask.add(&CpuSet::first_n(self.moment.cpus()));
        }
        Ok(())
    }

    fn yields<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        self.end_turn(cpu, TurnEnd::Yield, hardware, sink)?;
        self.ask(cpu, hardware, sink)
    }

    fn end_turn<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        why: TurnEnd,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::named_by_hardware(cpu, &self.moment)?;
        let vcpu =
            self.moment.occupant(cpu).ok_or_else(|| Fault::broken(Broken::NobodyThere { cpu }))?;
        self.measure(cpu, hardware, sink)?;
        let cpus = self.policy.turn_over(&self.moment, vcpu, why);
        self.to_ask.add(&cpus);
        self.to_ask.insert(cpu);
        let end = match why {
            TurnEnd::Limit => RanEnd::Limit,
            TurnEnd::Yield => RanEnd::Yielded,
        };
        self.turns.close(cpu, end, sink);
        self.turns.end(cpu);
        Ok(())
    }

    fn ring<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::named_by_hardware(cpu, &self.moment)?;
        self.measure(cpu, hardware, sink)?;
        for other in self.policy.ring_needs(&self.moment, cpu).iter() {
            check::named_by_policy(other, &self.moment)?;
            self.measure(other, hardware, sink)?;
        }
        self.turns.close(cpu, RanEnd::Preempted, sink);
        let cpus = self.policy.ring(&self.moment, cpu);
        check::alarm(self.policy.alarm(cpu), cpu, self.moment.now())?;
        self.to_ask.add(&cpus);
        self.to_ask.insert(cpu);
        Ok(())
    }
}
