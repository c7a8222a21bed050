//! Scheduling passes at the end of an instant. CPUs are rescheduled in order of their number, and
//! the policy's picks become orders.

use slackline_policy::{Pick, TimesliceEnd};
use slackline_trace::{Order, Outcome, RanEnd, Record, Sink};
use slackline_units::{CpuId, CpuSet, Span, VcpuId};

use crate::check::{self, Broken, Fault};
use crate::turn::Turn;
use crate::{Hardware, Host};

/// Maximum number of zero-length timeslices that may be ordered at one instant.
const EMPTY_TURNS: usize = 16 * CpuId::LIMIT;

impl Host {
    /// Reschedules all CPUs in `to_ask`, in order of their number, until none is left. Then one
    /// idle CPU is rescheduled for each vCPU in `to_offer` that still waits.
    pub(crate) fn decide<M: Hardware, S: Sink>(
        &mut self,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let (mut asked, mut count, mut offers) = (CpuSet::NONE, 0, 0);
        // Each preemption can cause all idle CPUs to be rescheduled.
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
                // An idle CPU that was rescheduled before may be able to run the preempted vCPU.
                self.to_ask.add(&asked.and(&self.moment.idle()));
            }
        }
    }

    /// Returns the next CPU to reschedule at this instant. `None` if no CPU is left.
    #[inline]
    fn next_to_ask(&mut self, offers: &mut usize, asked: &CpuSet) -> Option<CpuId> {
        if self.to_ask.is_empty() && !self.moved.is_empty() {
            self.ask_for_moved();
        }
        let first = self.to_ask.first();
        if first.is_some() || self.to_offer.is_empty() { first } else { self.offer(offers, asked) }
    }

    /// Requests rescheduling of CPUs for vCPUs that must migrate after a change of parameters. Such
    /// a CPU may have been rescheduled already, while the vCPU still ran on its old CPU and could
    /// not be picked.
    fn ask_for_moved(&mut self) {
        for (vcpu, cpus) in core::mem::take(&mut self.moved) {
            if self.waits(vcpu) {
                self.to_ask.add(&cpus);
            }
        }
    }

    /// Returns the idle CPU to reschedule for the next vCPU in `to_offer` that still waits: its
    /// last CPU if that CPU is idle, otherwise the first idle CPU that its affinity allows. Never
    /// returns a CPU that was rescheduled at this instant. A vCPU whose idle last CPU was
    /// rescheduled is skipped. `None` if no vCPU in the list has such a CPU.
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

    /// Returns true if the vCPU is runnable and occupies no CPU.
    #[inline]
    fn waits(&self, vcpu: VcpuId) -> bool {
        self.moment.is_awake(vcpu) && self.moment.cpu_of(vcpu).is_none()
    }

    /// Reschedules `cpu`: asks the policy for a pick and gives the order. If the hardware refuses
    /// the order, the policy picks again, at most once for each vCPU.
    pub(crate) fn ask<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        check::named_by_policy(cpu, &self.moment)?;
        self.measure(cpu, hardware, sink)?;
        self.to_ask.remove(cpu);
        let cpus = self.policy.prepare_pick(&self.moment, cpu);
        self.to_ask.add(&cpus);
        if !self.ask_once(cpu, hardware, sink)? {
            self.ask_again(cpu, hardware, sink)?;
        }
        hardware.set_alarm(cpu, self.policy.next_timer(cpu));
        Ok(())
    }

    /// Repeats the pick for a CPU until the hardware carries out an order. Not inlined, since
    /// refusals are rare.
    fn ask_again<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        while !self.ask_once(cpu, hardware, sink)? {}
        Ok(())
    }

    /// Asks the policy for one pick and gives the order. Returns true if the hardware carried it
    /// out.
    #[inline(always)]
    fn ask_once<M: Hardware, S: Sink>(
        &mut self,
        cpu: CpuId,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<bool, Box<Fault>> {
        let Pick::Run { vcpu, limit, entitlement } = self.policy.pick(&self.moment, cpu) else {
            // The timeslice decides, not the occupant: a vCPU that blocked occupies no CPU any
            // more, but its timeslice remains until the CPU gets another order.
            if self.turns.take(cpu).is_some() {
                self.turns.close(cpu, RanEnd::Preempted, sink);
                self.boosts.stop(cpu, self.moment.now(), sink);
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
        if self.turns.is_in_force(cpu, &turn) {
            return Ok(true);
        }
        let before = self.turns.current(cpu);
        let is_new = before.is_none_or(|before| before.vcpu != vcpu);
        if is_new || before.is_some_and(|before| before.entitlement != entitlement) {
            self.turns.close(cpu, RanEnd::Preempted, sink);
        }
        if is_new {
            self.boosts.stop(cpu, self.moment.now(), sink);
        }
        if let Some(gone) = self.moment.occupy(cpu, vcpu)
            && self.moment.is_awake(gone)
            && !self.moment.idle().is_empty()
        {
            // The preempted vCPU may continue on an idle CPU.
            self.to_offer.push(gone);
        }
        self.turns.begin(cpu, turn, limit, self.moment.now());
        let until = turn.until;
        if hardware.carry_out(Order::Run { cpu, vcpu, until, entitlement }) == Outcome::Refused {
            self.refused(cpu, vcpu, sink);
            if !is_new {
                // The vCPU loses the rest of its timeslice. The policy must learn that the vCPU no
                // longer occupies the CPU.
                let cpus = self.policy.on_timeslice_end(&self.moment, vcpu, TimesliceEnd::Yield);
                self.to_ask.add(&cpus);
            }
            return Ok(false);
        }
        if self.policy.is_boosted(vcpu) {
            self.boosts.begin(cpu, vcpu, self.moment.now());
        }
        if is_new {
            let cpus = self.policy.on_start(&self.moment, vcpu);
            self.to_ask.add(&cpus);
        }
        Ok(true)
    }

    /// Counts a zero-length timeslice. One such timeslice is legal, for example after a late timer.
    /// A policy that keeps picking them makes no progress and breaks the contract.
    fn count_empty_turn(&mut self) -> Result<(), Box<Fault>> {
        self.empty_turns += 1;
        let broken = || Fault::broken(Broken::Endless { now: self.moment.now() });
        if self.empty_turns > EMPTY_TURNS { Err(broken()) } else { Ok(()) }
    }

    /// Records that the hardware refused to run a vCPU. The CPU is then idle, and the vCPU is not
    /// eligible until the hardware reports that it can run again.
    fn refused<S: Sink>(&mut self, cpu: CpuId, vcpu: VcpuId, sink: &mut S) {
        sink.record(&Record::Refused { at: self.moment.now(), vcpu, cpu });
        self.turns.take(cpu);
        self.boosts.stop(cpu, self.moment.now(), sink);
        self.moment.vacate(cpu);
        self.moment.set_barred(vcpu, true);
    }
}
