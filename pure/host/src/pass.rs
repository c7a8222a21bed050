//! The passes that come last in an instant: CPUs are asked in order of their number, and what the
//! policy answers is ordered.

use slackline_policy::{Pick, TurnEnd};
use slackline_trace::{Order, Outcome, RanEnd, Record, Sink};
use slackline_units::{CpuId, CpuSet, Span, VcpuId};

use crate::check::{self, Broken, Fault};
use crate::turn::Turn;
use crate::{Hardware, Host};

/// How many turns of no length one instant may lead to at the most.
const EMPTY_TURNS: usize = 16 * CpuId::LIMIT;

impl Host {
    /// Asks about all CPUs that are to be asked, in order of their number, until none is left. Who
    /// woke and still waits then is offered to one idle CPU.
    pub(crate) fn decide<M: Hardware, S: Sink>(
        &mut self,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let (mut asked, mut count, mut offers) = (CpuSet::NONE, 0, 0);
        // Whoever gives way may have every CPU that idles asked again.
        let most = EMPTY_TURNS + self.moment.cpus() * self.moment.cpus();
        loop {
            let Some(cpu) = self.next_to_ask(&mut offers, &asked) else {
                self.to_offer.clear();
                return Ok(());
            };
            count += 1;
            if count > most {
                return Err(Fault::broken(Broken::Endless { now: self.moment.now() }));
            }
            let offered = self.to_offer.len();
            self.ask(cpu, hardware, sink)?;
            asked.insert(cpu);
            if self.to_offer.len() > offered {
                // An idle CPU that was asked before may have waited for just this one.
                self.to_ask.add(&asked.and(&self.moment.idle()));
            }
        }
    }

    #[inline]
    fn next_to_ask(&mut self, offers: &mut usize, asked: &CpuSet) -> Option<CpuId> {
        if self.to_ask.is_empty() && !self.moved.is_empty() {
            self.ask_for_moved();
        }
        let first = self.to_ask.first();
        if first.is_some() || self.to_offer.is_empty() { first } else { self.offer(offers, asked) }
    }

    /// A CPU may have been asked while somebody whom new terms move there was still on another, and
    /// could not be picked.
    fn ask_for_moved(&mut self) {
        for (vcpu, cpus) in core::mem::take(&mut self.moved) {
            if self.waits(vcpu) {
                self.to_ask.add(&cpus);
            }
        }
    }

    /// The idle CPU that is asked because somebody woke whom nobody has taken: the one that it had
    /// last, or the first that has not been asked.
    fn offer(&self, offers: &mut usize, asked: &CpuSet) -> Option<CpuId> {
        if self.moment.idle().is_empty() {
            return None;
        }
        let idle = self.moment.idle();
        while let Some(&vcpu) = self.to_offer.get(*offers) {
            *offers += 1;
            if self.waits(vcpu) {
                let idle = idle.and(&self.moment.allowed(vcpu));
                let last = self.moment.last_cpu_of(vcpu).filter(|&cpu| idle.contains(cpu));
                let cpu = last.or_else(|| idle.without(asked).first());
                if cpu.is_some_and(|cpu| !asked.contains(cpu)) {
                    return cpu;
                }
            }
        }
        None
    }

    /// Whether a vCPU could run and has no CPU.
    #[inline]
    fn waits(&self, vcpu: VcpuId) -> bool {
        self.moment.is_awake(vcpu) && self.moment.cpu_of(vcpu).is_none()
    }

    /// Asks the policy who should be on `cpu`, and has it so. An order that is refused leads to the
    /// next question, at most once a vCPU.
    pub(crate) fn ask<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::named_by_policy(cpu, &self.moment)?;
        self.measure(cpu, hardware, sink)?;
        self.to_ask.remove(cpu);
        let cpus = self.policy.pass(&self.moment, cpu);
        self.to_ask.add(&cpus);
        if !self.ask_once(cpu, hardware, sink)? {
            self.ask_again(cpu, hardware, sink)?;
        }
        hardware.set_alarm(cpu, self.policy.alarm(cpu));
        Ok(())
    }

    /// Refusals are rare.
    fn ask_again<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        while !self.ask_once(cpu, hardware, sink)? {}
        Ok(())
    }

    /// Whether the hardware did what the policy wants for `cpu`.
    #[inline(always)]
    fn ask_once<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<bool, Box<Fault>> {
        let Pick::Run { vcpu, limit, entitlement } = self.policy.pick(&self.moment, cpu) else {
            // Its occupant may have gone before.
            if self.turns.take(cpu).is_some() {
                self.turns.close(cpu, RanEnd::Preempted, sink);
                self.moment.vacate(cpu);
                hardware.carry_out(Order::Idle { cpu });
            }
            return Ok(true);
        };
        check::pick(vcpu, cpu, &self.moment)?;
        if limit.is_some_and(Span::is_zero) {
            self.count_empty_turn()?;
        }
        let until = limit.map(|limit| self.moment.now().after(limit));
        let turn = Turn { vcpu, until, entitlement };
        let turn = self.turns.until_it_is_measured(cpu, turn, self.moment.now());
        let before = self.turns.current(cpu);
        if before == Some(&turn) {
            return Ok(true);
        }
        let is_new = before.is_none_or(|before| before.vcpu != vcpu);
        if is_new || before.is_some_and(|before| before.entitlement != entitlement) {
            self.turns.close(cpu, RanEnd::Preempted, sink);
        }
        if let Some(gone) = self.moment.occupy(cpu, vcpu)
            && self.moment.is_awake(gone)
            && !self.moment.idle().is_empty()
        {
            // It might go on where a CPU idles.
            self.to_offer.push(gone);
        }
        self.turns.begin(cpu, turn, limit, self.moment.now());
        let until = turn.until;
        if hardware.carry_out(Order::Run { cpu, vcpu, until, entitlement }) == Outcome::Refused {
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

    /// A turn may have no length, as where a timer was late: then it is over at once. That the
    /// next one has none either, and so on, may not go on for ever.
    fn count_empty_turn(&mut self) -> Result<(), Box<Fault>> {
        self.empty_turns += 1;
        let broken = || Fault::broken(Broken::Endless { now: self.moment.now() });
        if self.empty_turns > EMPTY_TURNS { Err(broken()) } else { Ok(()) }
    }

    /// The hardware could not run a vCPU: nobody has the CPU, and it is not picked until it may be.
    fn refused<S: Sink>(&mut self, cpu: CpuId, vcpu: VcpuId, sink: &mut S) {
        sink.record(&Record::Refused { at: self.moment.now(), vcpu, cpu });
        self.turns.take(cpu);
        self.moment.vacate(cpu);
        self.moment.set_barred(vcpu, true);
    }
}
