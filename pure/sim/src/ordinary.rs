//! Ordinary scheduling on the virtual hardware. In slack, the kernel and not the policy picks the
//! vCPU that runs. As on a live host, the host layer finds out from the measured CPU time which
//! vCPU ran.

use slackline_host::policy::Entitlement;
use slackline_host::{Fact, Fault, Hardware, Order, Outcome, Report};
use slackline_trace::Sink;
use slackline_units::{CpuId, Time, VcpuId};

use crate::Sim;
use crate::cpu::VirtualHardware;
use crate::queue::Event;

impl VirtualHardware<'_> {
    /// Carries out an order as a live host does. A vCPU that runs on reserved time is real-time. In
    /// slack all runnable vCPUs of the CPU compete, whichever of them the policy picked.
    #[inline(never)]
    pub(crate) fn carry_out_fairly(&mut self, order: Order) -> Outcome {
        let (Order::Idle { cpu } | Order::Run { cpu, .. }) = order;
        let now = self.now();
        self.count_fair(cpu);
        let exhausted = self.cpus.occupant_of(cpu).filter(|_| self.cpus.is_exhausted(cpu));
        // Only slack is divided among all vCPUs of the CPU.
        let homes: Vec<VcpuId> = match order {
            Order::Run { entitlement: Entitlement::Spare, .. } => {
                self.guests.all_at(|vcpu| self.cpus.home(vcpu) == Some(cpu))
            }
            _ => Vec::new(),
        };
        let Some(fair) = &mut self.cpus.fair else { return self.carry_out_exactly(order) };
        match order {
            Order::Run { cpu, vcpu, until, entitlement: Entitlement::Spare } => {
                let tick = fair.begin(cpu, now, homes.into_iter().chain([vcpu]));
                let vcpu = fair.pick(cpu, now).unwrap_or(vcpu);
                if let Some(tick) = tick {
                    self.queue.push(tick, Event::FairTick, cpu.index());
                }
                let entitlement = Entitlement::Spare;
                self.carry_out_exactly(Order::Run { cpu, vcpu, until, entitlement })
            }
            Order::Run { vcpu, .. } => {
                if let Some(exhausted) = exhausted.filter(|&it| it != vcpu && !fair.is_on(cpu)) {
                    fair.enter(cpu, exhausted);
                }
                fair.end(cpu);
                fair.leave(vcpu);
                self.carry_out_exactly(order)
            }
            Order::Idle { .. } => {
                fair.end(cpu);
                self.carry_out_exactly(order)
            }
        }
    }

    /// Updates the virtual time of the vCPU that ordinary scheduling runs on a CPU: adds the CPU
    /// time since the last update.
    fn count_fair(&mut self, cpu: CpuId) {
        let (now, Some(mut fair)) = (self.now(), self.cpus.fair.take()) else { return };
        fair.count(cpu, now, |since| self.cpus.ran_since(cpu, since, now));
        self.cpus.fair = Some(fair);
    }
}

impl Sim<'_> {
    /// Updates the state of ordinary scheduling after an event of a vCPU.
    pub(crate) fn note_fair(&mut self, fact: &Fact<'_>) {
        let promise = self.scenario.policy.spec.promise;
        let home = match fact {
            Fact::Woke(vcpu) => self.hardware.cpus.home(*vcpu),
            _ => None,
        };
        let Some(fair) = &mut self.hardware.cpus.fair else { return };
        match *fact {
            Fact::Joined(vcpu, terms) | Fact::TermsChanged(vcpu, terms) => {
                let promise = promise(terms.share).ok().flatten();
                fair.set_bounded(vcpu, promise.is_some_and(|it| it.bounded));
            }
            Fact::Woke(vcpu) => fair.woke(vcpu, home),
            Fact::Blocked(vcpu) | Fact::Paused(vcpu) | Fact::Left(vcpu) => fair.blocked(vcpu),
            _ => {}
        }
    }

    /// Steps the host layer on a host where ordinary scheduling divides slack.
    #[inline(never)]
    pub(crate) fn step_fairly<S: Sink>(
        &mut self,
        now: Time,
        fact: Fact<'_>,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let mut used = None;
        if let Fact::Blocked(vcpu) | Fact::Paused(vcpu) | Fact::Left(vcpu) = fact
            && let Some(cpu) = self.hardware.cpus.home(vcpu)
            && self.hardware.cpus.occupant_of(cpu) == Some(vcpu)
        {
            // The host layer may assume that another vCPU ran on this CPU.
            used = self.hardware.measure(cpu, now);
        }
        self.note_fair(&fact);
        let report = Report { now, used: used.as_slice(), fact };
        let stepped = self.host.step(report, &mut self.hardware, sink);
        let settled = stepped.and_then(|()| self.settle_fair(now, sink));
        self.tell_account(sink);
        settled
    }

    /// Handles a tick of ordinary scheduling.
    pub(crate) fn fair_tick<S: Sink>(
        &mut self,
        now: Time,
        cpu: CpuId,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        self.hardware.advance(now);
        self.hardware.count_fair(cpu);
        let Some(fair) = &mut self.hardware.cpus.fair else { return Ok(()) };
        if let Some(next) = fair.tick(cpu, now) {
            self.hardware.queue.push(next, Event::FairTick, cpu.index());
        }
        self.settle_fair(now, sink)
    }

    /// Runs the vCPUs that ordinary scheduling picks. The CPU time of the previous vCPU is reported
    /// first, because the host layer may assume that another vCPU ran.
    pub(crate) fn settle_fair<S: Sink>(
        &mut self,
        now: Time,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        for cpu in (0..self.scenario.host.cpus).map(CpuId::new) {
            let Some(fair) = &mut self.hardware.cpus.fair else { return Ok(()) };
            if !fair.is_on(cpu) {
                continue;
            }
            let picked = fair.pick(cpu, now);
            if picked == self.hardware.cpus.occupant_of(cpu) {
                continue;
            }
            let used = self.hardware.measure(cpu, now);
            let report = Report { now, used: used.as_slice(), fact: Fact::Passed };
            self.host.step(report, &mut self.hardware, sink)?;
            let VirtualHardware { cpus, guests, .. } = &mut self.hardware;
            cpus.exchange(cpu, picked, now, guests);
        }
        Ok(())
    }
}
