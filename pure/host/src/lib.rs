//! Who *can* run. The host stands between a machine and a policy: it keeps run states, charges what
//! the machine measured, checks both against the contract, and turns answers into orders.
//!
//! A machine is a loop: wait for a fact, [`Host::step`], carry out the orders. The host knows no
//! durations but those it is told, no policy by name, and nothing of the world.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod check;
mod machine;
mod recorded;
mod turn;

use slackline_policy::{
    Account, Entitlement, Moment, Pick, Policy, Promise, Spec, Told, Topology, TurnEnd, Values,
};
use slackline_trace::{RanEnd, Record, Sink};
use slackline_units::{CpuId, CpuSet, ReservationError, Span, Time, VcpuId};

pub use check::{Broken, Fault, NotEligible};
pub use machine::{Fact, Machine, Report, Terms};
pub use slackline_policy as policy;
pub use slackline_trace::{Order, Outcome, Used};
use turn::{Turn, Turns};

/// What a share promises, by a policy's own reading of it.
type PromiseOf = fn(&Values) -> Result<Option<Promise>, ReservationError>;

/// Run states, the contract, orders: for one policy and the CPUs it schedules.
pub struct Host {
    policy: Box<dyn Policy>,
    promise: PromiseOf,
    moment: Moment,
    turns: Turns,
    /// CPUs that a call has named which cannot ask by itself.
    to_ask: CpuSet,
}

/// How often one fact may lead to a question at the most.
const AT_ONCE: usize = 16 * CpuId::LIMIT;

/// Why a vCPU cannot go on.
#[derive(Clone, Copy, Debug)]
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
        Host { policy, promise, moment, turns, to_ask: CpuSet::NONE }
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

    /// Takes one report in: charges, tells the policy, asks it about every CPU whose answer may
    /// have changed, and has the orders carried out.
    ///
    /// # Errors
    /// [`Fault::Declined`] when a share cannot be honoured: then nothing has changed.
    /// [`Fault::Broken`] when the machine or the policy broke the contract: then this host is of no
    /// more use.
    #[inline(always)]
    pub fn step<M: Machine, S: Sink>(
        &mut self,
        report: Report<'_>,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        if sink.wants_exchanges() {
            self.step_recorded(report, machine, sink)
        } else {
            self.take_in(report, machine, sink)
        }
    }

    #[inline(always)]
    fn take_in<M: Machine, S: Sink>(
        &mut self,
        report: Report<'_>,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        self.pass_time(report.now)?;
        for used in report.used {
            self.charge(*used, sink)?;
        }
        match report.fact {
            Fact::Joined(vcpu, terms) => self.join(vcpu, terms, machine, sink),
            Fact::TermsChanged(vcpu, terms) => self.change_terms(vcpu, terms, machine, sink),
            Fact::Left(vcpu) => self.leave(vcpu, machine, sink),
            Fact::Woke(vcpu) => self.wake(vcpu, machine, sink),
            Fact::Blocked(vcpu) => self.block(vcpu, Rest::Blocked, machine, sink),
            Fact::Paused(vcpu) => self.block(vcpu, Rest::Paused, machine, sink),
            Fact::Yielded(cpu) => self.end_turn(cpu, TurnEnd::Yield, machine, sink),
            Fact::LimitReached(cpu) => self.end_turn(cpu, TurnEnd::Limit, machine, sink),
            Fact::AlarmRang(cpu) => self.ring(cpu, machine, sink),
            Fact::Told(vcpu, told) => self.hear(vcpu, told, machine, sink),
            Fact::Allowed(vcpu) => self.allow(vcpu, machine, sink),
            Fact::Passed => Ok(()),
            Fact::Ended => {
                for index in 0..self.moment.cpus() {
                    self.measure(CpuId::new(index), machine, sink)?;
                }
                self.turns.close_all(RanEnd::Over, sink);
                sink.record(&Record::Ended { at: report.now });
                return Ok(());
            }
        }?;
        if self.to_ask.is_empty() { Ok(()) } else { self.ask_others(machine, sink) }
    }

    /// Asks about the CPUs that were named on the way, which may name more.
    #[cold]
    fn ask_others<M: Machine, S: Sink>(
        &mut self,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        for _ in 0..AT_ONCE {
            let Some(cpu) = self.to_ask.first() else { return Ok(()) };
            self.to_ask.remove(cpu);
            self.ask(cpu, RanEnd::Preempted, machine, sink)?;
        }
        Err(Fault::broken(Broken::Endless { now: self.moment.now() }))
    }

    /// Who would be due on `cpu` one after the other, if each before did not want it: the occupant
    /// first. A machine that learns late that a vCPU went to sleep has the next one ready.
    pub fn in_line(&mut self, cpu: CpuId, into: &mut Vec<NextInLine>) {
        into.clear();
        while let Pick::Run { vcpu, limit, entitlement: Entitlement::Due } =
            self.policy.pick(&self.moment, cpu)
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
        self.moment.advance(now);
        Ok(())
    }

    /// Brings the accounts of a CPU's occupant up to date.
    #[inline(always)]
    fn measure<M: Machine, S: Sink>(
        &mut self,
        cpu: CpuId,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        if self.moment.occupant(cpu).is_none() || self.turns.reported(cpu) == self.moment.now() {
            return Ok(());
        }
        self.measure_now(cpu, machine, sink)
    }

    fn measure_now<M: Machine, S: Sink>(
        &mut self,
        cpu: CpuId,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        match machine.measure(cpu, self.moment.now()) {
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

    fn join<M: Machine, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        terms: Terms<'_>,
        machine: &mut M,
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
            machine.set_alarm(cpu, self.policy.alarm(cpu));
        }
        Ok(())
    }

    fn change_terms<M: Machine, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        terms: Terms<'_>,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        if let Some(cpu) = self.moment.cpu_of(vcpu) {
            self.measure(cpu, machine, sink)?;
            self.turns.close(cpu, RanEnd::Preempted, sink);
        }
        let before = self.moment.allowed(vcpu);
        if let Some(cpus) = terms.cpus {
            check::somewhere(vcpu, cpus, &self.moment)?;
            self.moment.allow(vcpu, cpus);
        }
        let mut cpus = match self.policy.adjust(&self.moment, vcpu, terms.share) {
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
        cpus.extend(self.moment.cpu_of(vcpu));
        self.ask_all(&cpus, RanEnd::Preempted, machine, sink)?;
        if self.moment.is_awake(vcpu) && self.moment.cpu_of(vcpu).is_none() {
            // It may have been moved to a CPU that was asked before the one it was on.
            self.ask_all(&cpus, RanEnd::Preempted, machine, sink)?;
            self.offer(vcpu, &cpus, machine, sink)?;
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
        });
    }

    fn leave<M: Machine, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        let cpu = self.moment.cpu_of(vcpu);
        if let Some(cpu) = cpu {
            self.measure(cpu, machine, sink)?;
            self.turns.close(cpu, RanEnd::Over, sink);
            self.moment.vacate(cpu);
        }
        let last = self.moment.last_cpu_of(vcpu);
        self.moment.leave(vcpu);
        let cpus = self.policy.leave(&self.moment, vcpu);
        self.to_ask.add(&cpus);
        sink.record(&Record::Left { at: self.moment.now(), vcpu });
        match cpu.or(last) {
            Some(cpu) => self.ask(cpu, RanEnd::Over, machine, sink),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn wake<M: Machine, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::asleep(vcpu, &self.moment)?;
        match self.moment.last_cpu_of(vcpu) {
            Some(cpu) => self.measure(cpu, machine, sink)?,
            // Its first wake: where it belongs only the policy knows.
            None => {
                for cpu in self.moment.allowed(vcpu).iter() {
                    self.measure(cpu, machine, sink)?;
                }
            }
        }
        self.moment.set_awake(vcpu, true);
        sink.record(&Record::Woke { at: self.moment.now(), vcpu });
        let cpus = self.policy.wake(&self.moment, vcpu);
        self.ask_all(&cpus, RanEnd::Preempted, machine, sink)?;
        self.offer(vcpu, &cpus, machine, sink)
    }

    /// Offers a vCPU that waits to an idle CPU, if there is one that has not been asked.
    #[inline(always)]
    fn offer<M: Machine, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        asked: &CpuSet,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        if self.moment.idle().is_empty() || self.moment.cpu_of(vcpu).is_some() {
            return Ok(());
        }
        self.offer_idle(vcpu, asked, machine, sink)
    }

    #[inline(never)] // Mostly nobody waits while a CPU idles.
    fn offer_idle<M: Machine, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        asked: &CpuSet,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let idle = self.moment.idle().and(&self.moment.allowed(vcpu));
        let last = self.moment.last_cpu_of(vcpu).filter(|&cpu| idle.contains(cpu));
        match last.or_else(|| idle.first()).filter(|&cpu| !asked.contains(cpu)) {
            Some(cpu) => self.ask(cpu, RanEnd::Preempted, machine, sink),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn block<M: Machine, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        why: Rest,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::awake(vcpu, &self.moment)?;
        // Asleep before it is charged: a policy need not queue up for more whom that leaves with
        // nothing.
        self.moment.set_awake(vcpu, false);
        self.moment.set_barred(vcpu, false);
        let cpu = self.moment.cpu_of(vcpu);
        if let Some(cpu) = cpu {
            self.measure(cpu, machine, sink)?;
            self.turns.close(cpu, RanEnd::Blocked, sink);
            self.moment.vacate(cpu);
        }
        let at = self.moment.now();
        sink.record(&match why {
            Rest::Blocked => Record::Blocked { at, vcpu },
            Rest::Paused => Record::Paused { at, vcpu },
        });
        let cpus = self.policy.block(&self.moment, vcpu);
        self.to_ask.add(&cpus);
        match cpu.or_else(|| self.moment.last_cpu_of(vcpu)) {
            Some(cpu) => self.ask(cpu, RanEnd::Blocked, machine, sink),
            None => Ok(()),
        }
    }

    fn hear<M: Machine, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        told: &Told,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        if let Some(cpu) = self.moment.cpu_of(vcpu) {
            self.measure(cpu, machine, sink)?;
        }
        let cpus = self.policy.hear(&self.moment, vcpu, told);
        self.ask_all(&cpus, RanEnd::Preempted, machine, sink)
    }

    /// Where somebody who may be run again should run only the policy knows. It is rare, so every
    /// CPU is asked until one takes it.
    fn allow<M: Machine, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        self.moment.set_barred(vcpu, false);
        let last = self.moment.last_cpu_of(vcpu);
        let others = (0..self.moment.cpus()).map(CpuId::new).filter(|&cpu| Some(cpu) != last);
        for cpu in last.into_iter().chain(others) {
            if !self.moment.is_awake(vcpu) || self.moment.cpu_of(vcpu).is_some() {
                break;
            }
            self.ask(cpu, RanEnd::Preempted, machine, sink)?;
        }
        Ok(())
    }

    fn end_turn<M: Machine, S: Sink>(
        &mut self,
        cpu: CpuId,
        why: TurnEnd,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let vcpu =
            self.moment.occupant(cpu).ok_or_else(|| Fault::broken(Broken::NobodyThere { cpu }))?;
        self.measure(cpu, machine, sink)?;
        let cpus = self.policy.turn_over(&self.moment, vcpu, why);
        self.to_ask.add(&cpus);
        let end = match why {
            TurnEnd::Limit => RanEnd::Limit,
            TurnEnd::Yield => RanEnd::Yielded,
        };
        self.turns.close(cpu, end, sink);
        self.decide(cpu, end, machine, sink)
    }

    fn ring<M: Machine, S: Sink>(
        &mut self,
        cpu: CpuId,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        self.measure(cpu, machine, sink)?;
        for other in self.policy.ring_needs(&self.moment, cpu).iter() {
            self.measure(other, machine, sink)?;
        }
        self.turns.close(cpu, RanEnd::Preempted, sink);
        let mut cpus = self.policy.ring(&self.moment, cpu);
        check::alarm(self.policy.alarm(cpu), cpu, self.moment.now())?;
        cpus.insert(cpu);
        self.ask_all(&cpus, RanEnd::Preempted, machine, sink)
    }

    /// Asks about these CPUs, idle ones last: they may take whoever is pushed off another.
    #[inline(always)]
    fn ask_all<M: Machine, S: Sink>(
        &mut self,
        cpus: &CpuSet,
        end: RanEnd,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        match cpus.only() {
            Some(cpu) => self.ask(cpu, end, machine, sink),
            None => self.ask_several(cpus, end, machine, sink),
        }
    }

    #[inline(never)] // Mostly it is one.
    fn ask_several<M: Machine, S: Sink>(
        &mut self,
        cpus: &CpuSet,
        end: RanEnd,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let idle = self.moment.idle();
        let (busy, idle) = (cpus.without(&idle), cpus.and(&idle));
        busy.iter().try_for_each(|cpu| self.ask(cpu, end, machine, sink))?;
        idle.iter().try_for_each(|cpu| self.ask(cpu, end, machine, sink))
    }

    /// Asks about a CPU of which it is not known how much of its time has been reported.
    #[inline]
    fn ask<M: Machine, S: Sink>(
        &mut self,
        cpu: CpuId,
        end: RanEnd,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        self.measure(cpu, machine, sink)?;
        self.decide(cpu, end, machine, sink)
    }

    /// Asks the policy who should be on `cpu`, whose time has been reported, and has it so. `end`
    /// is why the occupant stops, if it does. An order that is refused leads to the next question,
    /// at most once a vCPU.
    fn decide<M: Machine, S: Sink>(
        &mut self,
        cpu: CpuId,
        end: RanEnd,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        if !self.ask_once(cpu, end, machine, sink)? {
            self.ask_again(cpu, end, machine, sink)?;
        }
        machine.set_alarm(cpu, self.policy.alarm(cpu));
        Ok(())
    }

    /// Refusals are rare: apart, they cost the others nothing.
    #[cold]
    fn ask_again<M: Machine, S: Sink>(
        &mut self,
        cpu: CpuId,
        end: RanEnd,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        while !self.ask_once(cpu, end, machine, sink)? {}
        Ok(())
    }

    /// Whether the machine did what the policy wants for `cpu`.
    #[inline(always)]
    fn ask_once<M: Machine, S: Sink>(
        &mut self,
        cpu: CpuId,
        end: RanEnd,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<bool, Box<Fault>> {
        let Pick::Run { vcpu, limit, entitlement } = self.policy.pick(&self.moment, cpu) else {
            // Its occupant may have gone before.
            if self.turns.take(cpu).is_some() {
                self.turns.close(cpu, end, sink);
                self.moment.vacate(cpu);
                machine.carry_out(Order::Idle { cpu });
            }
            return Ok(true);
        };
        check::pick(vcpu, limit, cpu, &self.moment)?;
        let until = limit.map(|limit| self.moment.now().after(limit));
        let turn = Turn { vcpu, until, entitlement };
        let before = self.turns.current(cpu);
        if before == Some(&turn) {
            return Ok(true);
        }
        let is_new = before.is_none_or(|before| before.vcpu != vcpu);
        if is_new || before.is_some_and(|before| before.entitlement != entitlement) {
            self.turns.close(cpu, end, sink);
        }
        self.moment.occupy(cpu, vcpu);
        self.turns.begin(cpu, turn, limit);
        if machine.carry_out(Order::Run { cpu, vcpu, until, entitlement }) == Outcome::Refused {
            self.refused(cpu, vcpu, sink);
            if !is_new {
                // It was in its turn and lost the rest of it; it must not be taken for somebody
                // who still has a CPU.
                let cpus = self.policy.turn_over(&self.moment, vcpu, TurnEnd::Yield);
                self.to_ask.add(&cpus);
            }
            return Ok(false);
        }
        if is_new {
            let cpus = self.policy.start(&self.moment, vcpu);
            self.to_ask.add(&cpus);
        }
        Ok(true)
    }

    /// The machine could not run a vCPU: nobody has the CPU, and it is not picked until it may be.
    #[cold]
    fn refused<S: Sink>(&mut self, cpu: CpuId, vcpu: VcpuId, sink: &mut S) {
        sink.record(&Record::Refused { at: self.moment.now(), vcpu, cpu });
        self.turns.take(cpu);
        self.moment.vacate(cpu);
        self.moment.set_barred(vcpu, true);
    }
}
