//! Layer between a policy and the hardware, simulated or live.
//!
//! The host tracks which vCPUs are runnable, and charges each vCPU for the CPU time that the
//! hardware measured. It checks that hardware and policy keep the contract between them, and turns
//! the policy's picks into orders to the hardware.
//!
//! The hardware runs a loop. It reports all events of an instant one by one with [`Host::step`],
//! and then that the instant is settled: it has no more events. At that report the host reschedules
//! CPUs in order of their number, and the hardware carries out the orders. The host has no timing
//! constants, knows no policy by name and does no I/O.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod boosts;
mod check;
mod hardware;
mod pass;
mod recorded;
mod turn;

use slackline_policy::{
    Account, Entitlement, Moment, Pick, Policy, Promise, Spec, TimesliceEnd, Topology, Values,
    VcpuHint,
};
use slackline_trace::{RanEnd, Record, Sink};
use slackline_units::{CpuId, CpuSet, CpuShare, Enforcement, ReservationError, Span, Time, VcpuId};

use boosts::Boosts;
pub use check::{Broken, Fault, NotEligible};
pub use hardware::{Fact, Hardware, Report, VcpuTerms};
pub use slackline_policy as policy;
pub use slackline_trace::{CpuUse, Order, Outcome};
use turn::Turns;

/// Function that computes a vCPU's reservation from its parameters, as the policy defines it.
type PromiseOf = fn(&Values) -> Result<Option<Promise>, ReservationError>;

/// Layer between one policy and the hardware of one host. It keeps the run states of the vCPUs,
/// checks the contract, and gives orders to the hardware.
pub struct Host {
    policy: Box<dyn Policy>,
    promise: PromiseOf,
    moment: Moment,
    turns: Turns,
    boosts: Boosts,
    /// CPUs to reschedule at the end of the current instant.
    to_ask: CpuSet,
    /// vCPUs that woke, were preempted or got another affinity at the current instant. If one of
    /// them still waits at the end of the instant, an idle CPU is rescheduled for it.
    to_offer: Vec<VcpuId>,
    /// vCPUs that were running when their parameters changed at the current instant, each with the
    /// CPUs that the policy returned for rescheduling.
    moved: Vec<(VcpuId, CpuSet)>,
    /// Number of zero-length timeslices ordered at the current instant.
    empty_turns: usize,
}

/// Reason why a vCPU stops being runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Blocked,
    Paused,
}

/// Entry of the list that [`Host::in_line`] makes for a CPU: the vCPU that would run there if all
/// vCPUs earlier in the list were blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextInLine {
    /// vCPU that would run.
    pub vcpu: VcpuId,
    /// Length limit of the vCPU's timeslice. `None` if the timeslice has no limit.
    pub limit: Option<Span>,
}

impl Host {
    /// Creates a host with these CPUs and no vCPU, under a policy with these parameters.
    #[must_use]
    pub fn new(spec: &Spec, values: &Values, topology: &Topology) -> Host {
        Host::with((spec.build)(values, topology), spec.promise, topology.cpus())
    }

    /// Creates a host under any policy, even one that users cannot choose, such as a policy that is
    /// broken on purpose for a test.
    #[must_use]
    pub fn with(policy: Box<dyn Policy>, promise: PromiseOf, cpus: usize) -> Host {
        let (moment, turns, boosts) = (Moment::at_start(cpus), Turns::new(cpus), Boosts::new(cpus));
        let (to_ask, to_offer, moved) = (CpuSet::NONE, Vec::new(), Vec::new());
        Host { policy, promise, moment, turns, boosts, to_ask, to_offer, moved, empty_turns: 0 }
    }

    /// Returns the current state of the host, as policies read it.
    #[must_use]
    #[inline]
    pub fn moment(&self) -> &Moment {
        &self.moment
    }

    /// Returns the policy's state of a vCPU as (name, text) rows, for display.
    #[must_use]
    pub fn account(&self, vcpu: VcpuId) -> Account {
        self.policy.account(vcpu)
    }

    /// Returns the longest slice in every `period` that the policy would admit for one more vCPU at
    /// the time of the last report. `allowed` is the affinity of that vCPU. `None` if the policy
    /// reserves no slices, or admits every vCPU.
    #[must_use]
    pub fn room(&self, period: Span, allowed: CpuSet) -> Option<Span> {
        self.policy.available_slice(&self.moment, period, allowed)
    }

    /// Returns the sum of slice/period of all reservations on a CPU, without dispatch overhead.
    /// `None` if the policy does not reserve slices on single CPUs.
    #[must_use]
    pub fn reserved(&self, cpu: CpuId) -> Option<CpuShare> {
        self.policy.reserved(cpu)
    }

    /// Handles one report: charges the reported CPU time and notifies the policy. CPUs whose pick
    /// may have changed are rescheduled once the hardware reports that the instant is
    /// [settled](Fact::Settled). The CPU of a vCPU that blocks or yields is rescheduled at once.
    ///
    /// # Errors
    /// [`Fault::Declined`] if the policy cannot honour the parameters of a vCPU. The vCPU then has
    /// not joined, or keeps its old parameters. [`Fault::Broken`] if the hardware or the policy
    /// broke the contract. After [`Fault::Broken`] the host must not be used any more.
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

    /// Charges the CPU time of a report and handles its event.
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
            Fact::LimitReached(cpu) => self.end_turn(cpu, TimesliceEnd::Limit, hardware, sink),
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
                self.boosts.stop_all(report.now, sink);
                sink.record(&Record::Ended { at: report.now });
                Ok(())
            }
        }
    }

    /// Returns true if no CPU has to be rescheduled at the current instant. The hardware may then
    /// omit the report of [`Fact::Settled`].
    #[must_use]
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.to_ask.is_empty() && self.to_offer.is_empty()
    }

    /// Returns the policy's current pick for a CPU, without giving an order.
    #[must_use]
    pub fn answer(&self, cpu: CpuId) -> Pick {
        self.policy.pick(&self.moment, cpu)
    }

    /// Returns true if the policy divides slack by weight, false if equally.
    #[must_use]
    pub fn weighs_spare_time(&self) -> bool {
        self.policy.weighs_slack()
    }

    /// Lists up to `most` vCPUs in the order in which they would be picked for `cpu` if each vCPU
    /// blocked after its pick. The list ends before the first pick that runs on slack. Hardware
    /// that learns of a block with delay uses the list to prepare the next vCPU.
    pub fn in_line(&mut self, cpu: CpuId, most: usize, into: &mut Vec<NextInLine>) {
        self.line(cpu, most, |entitlement| entitlement != Entitlement::Spare, into);
    }

    /// Lists all vCPUs in the order in which they would be picked for `cpu`, on reserved time or
    /// slack. The order assumes that each vCPU blocks after its pick. The list can contain every
    /// runnable vCPU, so the call costs more than [`Host::in_line`].
    pub fn in_turn(&mut self, cpu: CpuId, into: &mut Vec<NextInLine>) {
        self.line(cpu, usize::MAX, |_| true, into);
    }

    /// Lists up to `most` vCPUs in the order in which they would be picked for `cpu` if each vCPU
    /// blocked after its pick. The list ends before the first pick for whose entitlement `counts`
    /// returns false.
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
                break; // The next scheduling pass of this CPU reports the violation.
            }
            into.push(NextInLine { vcpu, limit });
            self.moment.set_barred(vcpu, true);
        }
        for next in into.iter() {
            self.moment.set_barred(next.vcpu, false);
        }
    }

    /// Sets the current time. Returns an error if `now` is before the current time.
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

    /// Charges the vCPU that occupies a CPU for the CPU time that it has used until now.
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

    /// Queries the hardware for the CPU time of the occupant of a CPU, and charges it.
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

    /// Charges a vCPU for CPU time that the hardware measured.
    #[inline(always)]
    fn charge<S: Sink>(&mut self, used: CpuUse, sink: &mut S) -> Result<(), Box<Fault>> {
        check::used(&used, &self.moment)?;
        self.turns.add(used, sink)?;
        if !used.ran.is_zero() {
            let cpus = self.policy.charge(&self.moment, used.vcpu, used.ran);
            self.to_ask.add(&cpus);
            self.boosts.check(|| CpuSet::one(used.cpu), (&*self.policy, used.to), sink);
        }
        Ok(())
    }

    /// Handles a vCPU that joins. A vCPU that the policy declines is not a member.
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
        let cpus = self.policy.on_join(&self.moment, vcpu);
        self.to_ask.add(&cpus);
        for cpu in (0..self.moment.cpus()).map(CpuId::new) {
            hardware.set_alarm(cpu, self.policy.next_timer(cpu));
        }
        Ok(())
    }

    /// Handles new parameters and a new affinity of a vCPU. If the policy declines them, the old
    /// parameters and the old affinity stay in force.
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

    /// Writes the reservation of a vCPU to the trace.
    fn record_promise<S: Sink>(&self, vcpu: VcpuId, share: &Values, sink: &mut S) {
        let promise = (self.promise)(share).ok().flatten();
        sink.record(&Record::Promised {
            at: self.moment.now(),
            vcpu,
            reservation: promise.map(|promise| promise.reservation),
            exact: promise.is_some_and(|promise| promise.exact),
            phase: promise.and_then(|promise| promise.phase),
            by: Enforcement::Dispatcher,
        });
    }

    /// Handles a vCPU that leaves.
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
            self.clear(cpu, hardware, sink);
        }
        self.to_ask.extend(cpu.or(self.moment.last_cpu_of(vcpu)));
        self.to_offer.retain(|&other| other != vcpu);
        self.moved.retain(|&(other, _)| other != vcpu);
        self.moment.leave(vcpu);
        let cpus = self.policy.on_leave(&self.moment, vcpu);
        self.to_ask.add(&cpus);
        sink.record(&Record::Left { at: self.moment.now(), vcpu });
        Ok(())
    }

    /// Handles a vCPU that wakes.
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
            // A vCPU that has not run yet has no last CPU. The policy may choose any allowed CPU.
            None => {
                for cpu in self.moment.allowed(vcpu).iter() {
                    self.measure(cpu, hardware, sink)?;
                }
            }
        }
        self.moment.set_awake(vcpu, true);
        sink.record(&Record::Woke { at: self.moment.now(), vcpu });
        let cpus = self.policy.on_wake(&self.moment, vcpu);
        self.to_ask.add(&cpus);
        self.to_offer.push(vcpu);
        Ok(())
    }

    /// Handles a vCPU that blocks or is paused. The CPU of a vCPU that blocks is rescheduled at
    /// once.
    #[inline(always)]
    fn block<M: Hardware, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        why: Rest,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::awake(vcpu, &self.moment)?;
        // The vCPU is marked as blocked before it is charged. If the charge exhausts its budget,
        // the policy then does not queue the vCPU to wait for the next budget.
        self.moment.set_awake(vcpu, false);
        self.moment.set_barred(vcpu, false);
        let cpu = self.moment.cpu_of(vcpu);
        if let Some(cpu) = cpu {
            self.measure(cpu, hardware, sink)?;
            self.turns.close(cpu, RanEnd::Blocked, sink);
            self.boosts.stop(cpu, self.moment.now(), sink);
            self.moment.vacate(cpu);
        } else if let Some(cpu) = self.moment.last_cpu_of(vcpu) {
            // The vCPU occupies no CPU. Its run interval is still open if it ran under ordinary
            // scheduling, without a pick of the policy, or if it blocked before the next pick.
            self.turns.close_of(vcpu, cpu, RanEnd::Blocked, sink);
        }
        let at = self.moment.now();
        sink.record(&match why {
            Rest::Blocked => Record::Blocked { at, vcpu },
            Rest::Paused => Record::Paused { at, vcpu },
        });
        let cpus = self.policy.on_block(&self.moment, vcpu);
        self.to_ask.add(&cpus);
        match (cpu, why) {
            (Some(cpu), Rest::Blocked) => return self.ask(cpu, hardware, sink),
            (Some(cpu), Rest::Paused) => self.clear(cpu, hardware, sink),
            (None, _) => {}
        }
        self.to_ask.extend(cpu.or(self.moment.last_cpu_of(vcpu)));
        Ok(())
    }

    /// Takes the CPU from a vCPU that was paused or has left. The CPU stays idle until it is
    /// rescheduled.
    fn clear<M: Hardware, S: Sink>(&mut self, cpu: CpuId, hardware: &mut M, sink: &mut S) {
        self.turns.take(cpu);
        self.boosts.stop(cpu, self.moment.now(), sink);
        self.moment.vacate(cpu);
        hardware.carry_out(Order::Idle { cpu });
    }

    /// Passes a hint from a vCPU to the policy.
    fn hear<M: Hardware, S: Sink>(
        &mut self,
        vcpu: VcpuId,
        told: &VcpuHint,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        if let Some(cpu) = self.moment.cpu_of(vcpu) {
            self.measure(cpu, hardware, sink)?;
        }
        let cpus = self.policy.on_hint(&self.moment, vcpu, told);
        self.to_ask.add(&cpus);
        Ok(())
    }

    /// Makes a vCPU eligible again after the hardware refused to run it. Only the policy knows on
    /// which CPU the vCPU would run, so all CPUs are rescheduled. This happens rarely.
    fn allow(&mut self, vcpu: VcpuId) -> Result<(), Box<Fault>> {
        check::member(vcpu, &self.moment)?;
        self.moment.set_barred(vcpu, false);
        if self.moment.is_awake(vcpu) && self.moment.cpu_of(vcpu).is_none() {
            self.to_ask.add(&CpuSet::first_n(self.moment.cpus()));
        }
        Ok(())
    }

    /// Handles a vCPU that yields. Its CPU is rescheduled at once.
    fn yields<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        self.end_turn(cpu, TimesliceEnd::Yield, hardware, sink)?;
        self.ask(cpu, hardware, sink)
    }

    /// Handles the end of a timeslice of a vCPU that stays runnable.
    fn end_turn<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        why: TimesliceEnd,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::named_by_hardware(cpu, &self.moment)?;
        let vcpu =
            self.moment.occupant(cpu).ok_or_else(|| Fault::broken(Broken::NobodyThere { cpu }))?;
        self.measure(cpu, hardware, sink)?;
        let cpus = self.policy.on_timeslice_end(&self.moment, vcpu, why);
        self.to_ask.add(&cpus);
        self.to_ask.insert(cpu);
        let end = match why {
            TimesliceEnd::Limit => RanEnd::Limit,
            TimesliceEnd::Yield => RanEnd::Yielded,
        };
        self.turns.close(cpu, end, sink);
        self.turns.end(cpu, why);
        Ok(())
    }

    /// Handles the expiry of the timer of a CPU.
    fn ring<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::named_by_hardware(cpu, &self.moment)?;
        self.measure(cpu, hardware, sink)?;
        for other in self.policy.timer_charges(&self.moment, cpu).iter() {
            check::named_by_policy(other, &self.moment)?;
            self.measure(other, hardware, sink)?;
        }
        self.turns.close(cpu, RanEnd::Preempted, sink);
        let now = self.moment.now();
        let cpus = self.policy.on_timer(&self.moment, cpu);
        check::alarm(self.policy.next_timer(cpu), cpu, now)?;
        let all = || CpuSet::first_n(self.moment.cpus());
        self.boosts.check(all, (&*self.policy, now), sink);
        self.to_ask.add(&cpus);
        self.to_ask.insert(cpu);
        Ok(())
    }
}
