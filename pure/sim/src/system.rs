//! Where systems and devices meet the host: vCPUs of systems wake, do one item after the other, and
//! block.

#[cfg(test)]
mod tests;

use slackline_host::{Fact, Fault};
use slackline_trace::{OverheadKind, Sink};
use slackline_units::{CpuId, Span, Time, Told, VcpuId};

use crate::Sim;
use crate::guest::{Cause, Context, Seat, Where};
use crate::queue::Event;

impl Sim<'_> {
    /// Which vCPU of a system this is, if it is one.
    #[inline]
    pub(crate) fn seat(&self, vcpu: VcpuId) -> Option<Seat> {
        self.systems.seat(vcpu)
    }

    pub(crate) fn system_joins(&mut self, vcpu: VcpuId, now: Time) {
        let Some(seat) = self.seat(vcpu) else { return };
        let Sim { systems, io, hardware, .. } = self;
        let mut context = Context { now, systems, queue: &mut hardware.queue };
        context.join(seat, io);
        if let (Some(io), 0) = (io, seat.number) {
            io.join(seat.system, &mut context);
        }
    }

    pub(crate) fn system_leaves(&mut self, vcpu: VcpuId) {
        if let Some(seat) = self.seat(vcpu) {
            self.systems.leave(seat);
            if seat.number == 0 {
                self.untold.retain(|&other| other != seat.system);
            }
        }
    }

    /// The run is over: what has not been told yet is.
    pub(crate) fn systems_end<S: Sink>(&mut self, sink: &mut S) {
        let Sim { systems, io, hardware, .. } = self;
        let mut context = Context { now: self.end, systems, queue: &mut hardware.queue };
        if let Some(io) = io {
            io.end(&mut context);
        }
        self.systems.effects.records.drain(..).for_each(|record| sink.record(&record));
    }

    /// Ticks begin, if they cost anything: of all CPUs at once, or one after the other.
    pub(crate) fn start_ticks(&mut self) {
        let host = &self.scenario.host;
        if host.tick_cost.is_zero() {
            return;
        }
        let firsts = if host.ticks_are_staggered { host.cpus } else { 1 };
        for cpu in 0..firsts {
            let later = host.tick * cpu as u64 / host.cpus as u64;
            self.hardware.queue.push(Time::START + host.tick + later, Event::Tick, cpu);
        }
    }

    /// The tick of a CPU comes, or those of all.
    pub(crate) fn tick(&mut self, now: Time, first: usize) {
        let host = &self.scenario.host;
        let last = if host.ticks_are_staggered { first + 1 } else { host.cpus };
        for cpu in (first..last).map(CpuId::new) {
            let tick = (OverheadKind::Tick, host.tick_cost);
            self.hardware.cpus.steal(cpu, now, tick, &mut self.hardware.guests);
        }
        self.hardware.queue.push(now + host.tick, Event::Tick, first);
    }

    /// A task's timer goes off, or something happens to the devices or outside.
    pub(crate) fn happen<S: Sink>(
        &mut self,
        now: Time,
        (event, about): (Event, usize),
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let Sim { systems, io, hardware, .. } = self;
        let mut context = Context { now, systems, queue: &mut hardware.queue };
        if event == Event::Task {
            let task = context.systems.task(about);
            context.go_on(task, Cause::Time, io);
        } else if let Some(io) = io {
            io.happen((event, about), &mut context);
        }
        self.settle(now, sink)
    }

    /// The occupant of a CPU, a vCPU of a system, has done one item. Whom that wakes may take the
    /// CPU before it comes to the next; else it does all those that are over before anything else
    /// happens.
    #[inline(always)]
    pub(crate) fn item_done<S: Sink>(
        &mut self,
        mut now: Time,
        (cpu, vcpu): (CpuId, VcpuId),
        seat: Seat,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let mut item = self.systems.stop(seat);
        loop {
            let Sim { systems, io, hardware, .. } = self;
            Context { now, systems, queue: &mut hardware.queue }.finish(seat, item, io);
            if self.systems.effects.are_due {
                self.systems.effects.signals_from = Some(cpu);
                self.carry_out(now, sink)?;
                if !self.host.is_settled() {
                    self.step(now, Fact::Settled, sink)?;
                }
                if !self.hardware.cpus.is_free(cpu, vcpu, now) {
                    return Ok(());
                }
            }
            let others = self.others(cpu);
            let Sim { systems, io, hardware, .. } = self;
            let next = Context { now, systems, queue: &mut hardware.queue }.next(seat, item, io);
            let Some(next) = next else {
                // What it has told the trace.
                self.settle(now, sink)?;
                return self.step(now, Fact::Blocked(vcpu), sink);
            };
            let done = now.after(next.cost);
            if done >= others || self.systems.effects.are_due {
                self.systems.begin(seat, next);
                self.hardware.guests.set_left(vcpu, next.cost);
                self.hardware.cpus.go_on(cpu, now, &self.hardware.guests);
                return self.settle(now, sink);
            }
            self.outcome.events += 1;
            (now, item) = (done, next);
        }
    }

    /// Until when nothing happens but that the occupant of a CPU has done what it does.
    #[inline]
    fn others(&self, cpu: CpuId) -> Time {
        #[cfg(test)]
        if self.one_by_one {
            return Time::START;
        }
        if self.hardware.cpus.has_speeds() {
            return Time::START; // How long an item takes is known of the first only.
        }
        self.hardware.cpus.others(cpu).min(self.hardware.queue.first()).min(self.next_stop)
    }

    /// Does what the devices ask for.
    #[inline]
    fn settle<S: Sink>(&mut self, now: Time, sink: &mut S) -> Result<(), Box<Fault>> {
        if self.systems.effects.are_due { self.carry_out(now, sink) } else { Ok(()) }
    }

    #[inline(never)]
    fn carry_out<S: Sink>(&mut self, now: Time, sink: &mut S) -> Result<(), Box<Fault>> {
        let effects = &mut self.systems.effects;
        effects.are_due = false;
        for record in effects.records.drain(..) {
            sink.record(&record);
        }
        let from = effects.signals_from.take();
        while let Some((at, span)) = effects.stolen.pop() {
            let cpu = match at {
                Where::Cpu(cpu) => Some(cpu),
                Where::OfVcpu(vcpu) => self.hardware.cpus.home(vcpu),
            };
            if let Some(cpu) = cpu {
                let interrupt = (OverheadKind::Interrupt, span);
                self.hardware.cpus.steal(cpu, now, interrupt, &mut self.hardware.guests);
            }
        }
        self.tell_pending(now, sink)?;
        let mut alerted = std::mem::take(&mut self.systems.effects.alerted);
        for vcpu in alerted.drain(..) {
            self.interrupt_other(now, vcpu, from);
            self.alert(now, vcpu, sink)?;
        }
        self.systems.effects.alerted = alerted;
        self.tell_tasks(now, sink)
    }

    /// Signalling a vCPU from another CPU interrupts whoever runs where it ran last, or runs.
    fn interrupt_other(&mut self, now: Time, vcpu: VcpuId, from: Option<CpuId>) {
        let cost = self.scenario.host.ipi;
        if cost.is_zero() {
            return;
        }
        let there =
            self.hardware.cpus.home(vcpu).filter(|&there| from.is_some_and(|from| from != there));
        if let Some(cpu) = there {
            let interrupt = (OverheadKind::Interrupt, cost);
            self.hardware.cpus.steal(cpu, now, interrupt, &mut self.hardware.guests);
        }
    }

    /// A vCPU of a system has something else to do than before.
    fn alert<S: Sink>(&mut self, now: Time, vcpu: VcpuId, sink: &mut S) -> Result<(), Box<Fault>> {
        if !self.host.moment().is_awake(vcpu) {
            return self.wake_system(now, vcpu, sink);
        }
        let cpu = self.host.moment().cpu_of(vcpu);
        if let Some(cpu) = cpu {
            self.hardware.cpus.count(cpu, now, &mut self.hardware.guests);
        }
        let left = self.hardware.guests.left(vcpu);
        if let Some(seat) = self.seat(vcpu)
            && self.systems.put_aside(seat, left)
        {
            self.hardware.guests.set_left(vcpu, Span::ZERO);
        }
        if let Some(cpu) = cpu {
            self.hardware.cpus.recount(cpu, &self.hardware.guests);
        }
        Ok(())
    }

    /// A sleeping vCPU of a system wakes, if it has anything to do and is not held.
    pub(crate) fn wake_system<S: Sink>(
        &mut self,
        now: Time,
        vcpu: VcpuId,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let has_work = self.seat(vcpu).is_some_and(|seat| self.systems.has_work(seat));
        let moment = self.host.moment();
        let may_wake = moment.is_member(vcpu) && !moment.is_awake(vcpu);
        if has_work && may_wake && !self.paused.contains(&vcpu) {
            self.step(now, Fact::Woke(vcpu), sink)?;
        }
        Ok(())
    }
}

/// What guests and the driver tell. It costs nothing.
impl Sim<'_> {
    /// The driver tells what waits for whom.
    fn tell_pending<S: Sink>(&mut self, now: Time, sink: &mut S) -> Result<(), Box<Fault>> {
        for id in std::mem::take(&mut self.systems.effects.pending) {
            let news = self.io.as_mut().and_then(|io| io.pending(id, &self.systems));
            if let Some((driver, told)) = news
                && self.host.moment().is_member(driver)
            {
                self.step(now, Fact::Told(driver, &told), sink)?;
            }
        }
        Ok(())
    }

    /// Guests whose tasks do something else tell so, or will once they run.
    fn tell_tasks<S: Sink>(&mut self, now: Time, sink: &mut S) -> Result<(), Box<Fault>> {
        if self.systems.effects.changed.is_empty() {
            return Ok(());
        }
        for id in std::mem::take(&mut self.systems.effects.changed) {
            if !self.untold.contains(&id) {
                self.untold.push(id);
            }
        }
        self.tell_what_was_untold(now, sink)
    }

    /// Who has something to tell, and of whom a vCPU runs, tells it of all its vCPUs: they share a
    /// memory. What that leads to may let others run who have.
    #[inline(never)] // Most hosts have nobody who tells.
    pub(crate) fn tell_what_was_untold<S: Sink>(
        &mut self,
        now: Time,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        loop {
            let runs = |vcpu| self.host.moment().cpu_of(vcpu).is_some();
            let place = self.untold.iter().position(|&id| self.systems.any(id, runs));
            let Some(place) = place else { return Ok(()) };
            match self.systems.news(self.untold[place]) {
                Some((vcpu, tasks)) => {
                    self.step_once(now, Fact::Told(vcpu, &Told::Tasks(tasks)), sink)?;
                }
                None => {
                    self.untold.remove(place);
                }
            }
        }
    }
}
