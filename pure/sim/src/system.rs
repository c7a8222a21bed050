//! Simulated operating systems and devices on the host. The vCPUs of an operating system wake, do
//! one work item after the other, and block.

#[cfg(test)]
mod tests;

use slackline_host::{Fact, Fault};
use slackline_scenario::{Draw, Scenario};
use slackline_trace::{OverheadKind, Sink};
use slackline_units::{CpuId, Span, Time, VcpuHint, VcpuId};

use crate::Sim;
use crate::guest::{Cause, Context, InterruptTarget, Seat};
use crate::queue::Event;

impl Sim<'_> {
    /// Returns the operating system and index of a vCPU. `None` if its domain has no simulated
    /// operating system.
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

    /// Records the overdue jobs of a vCPU that leaves the host, or of every vCPU at the end of the
    /// run. All jobs of an operating system are recorded with its first vCPU.
    pub(crate) fn record_overdue<S: Sink>(&self, vcpu: VcpuId, now: Time, sink: &mut S) {
        match self.seat(vcpu) {
            None => self.hardware.guests.record_overdue(vcpu, now, sink),
            Some(seat) if seat.number == 0 => self.systems.record_overdue(seat.system, now, sink),
            Some(_) => {}
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

    /// Moves the remaining records of operating systems and devices to the trace, at the end of the
    /// run.
    pub(crate) fn systems_end<S: Sink>(&mut self, sink: &mut S) {
        let Sim { systems, io, hardware, .. } = self;
        let mut context = Context { now: self.end, systems, queue: &mut hardware.queue };
        if let Some(io) = io {
            io.end(&mut context);
        }
        self.systems.effects.records.drain(..).for_each(|record| sink.record(&record));
    }

    /// Schedules the first timer ticks, if ticks have a cost: one event for all CPUs if their ticks
    /// coincide, otherwise one event for each CPU.
    pub(crate) fn start_ticks(&mut self) {
        let host = &self.scenario.host;
        if host.tick_cost.is_zero() {
            return;
        }
        let firsts = if host.ticks_are_together() { 1 } else { host.cpus };
        for cpu in 0..firsts {
            let later = host.first_tick(cpu);
            self.hardware.queue.push(Time::START + later, Event::Tick, cpu);
        }
    }

    pub(crate) fn start_interference(&mut self) {
        for (index, interference) in self.scenario.interference.iter().enumerate() {
            if let Some(&(ready, _)) = interference.jobs.first() {
                self.hardware.queue.push(Time::START + ready, Event::Interfere, index);
            }
        }
    }

    /// Starts the next job of an interference, a program with precedence over all vCPUs: takes the
    /// CPU of the program from all vCPUs for the length of the job.
    pub(crate) fn interfere(&mut self, now: Time, index: usize) {
        let jobs = &self.scenario.interference[index].jobs;
        let cpu = self.scenario.interference[index].cpu;
        let (_, length) = jobs[self.interfered[index]];
        self.interfered[index] += 1;
        self.hardware.cpus.take(cpu, now, length, &mut self.hardware.guests);
        if let Some(&(ready, _)) = jobs.get(self.interfered[index]) {
            self.hardware.queue.push(Time::START + ready, Event::Interfere, index);
        }
    }

    /// Takes the CPU time of a scheduling pass from a CPU. Does nothing if `cpu` is `None` or if
    /// scheduling passes take no time.
    #[inline]
    pub(crate) fn take_pass(&mut self, now: Time, cpu: Option<CpuId>, pass: &Draw) {
        if let (true, Some(cpu)) = (self.has_passes, cpu) {
            self.hardware.cpus.take_pass(cpu, now, pass, &mut self.hardware.guests);
        }
    }

    /// Handles the timer tick of CPU `first`, or of all CPUs if their ticks coincide.
    pub(crate) fn tick(&mut self, now: Time, first: usize) {
        let host = &self.scenario.host;
        let last = if host.ticks_are_together() { host.cpus } else { first + 1 };
        for cpu in (first..last).map(CpuId::new) {
            let tick = (OverheadKind::Tick, host.tick_cost);
            self.hardware.cpus.steal(cpu, now, tick, &mut self.hardware.guests);
        }
        self.hardware.queue.push(now + host.tick, Event::Tick, first);
    }

    /// Handles an event of a task's timer, of a device or of a client.
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

    /// Handles the end of a work item on a vCPU with a simulated operating system. If the item
    /// wakes another vCPU, that vCPU can preempt this vCPU before its next item. Otherwise all
    /// further items that end before any other event are done in one step.
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
            let others = self.next_other_event(cpu);
            let Sim { systems, io, hardware, .. } = self;
            let left = systems.called(seat, |vcpu| hardware.cpus.runs(vcpu));
            let mut context = Context { now, systems, queue: &mut hardware.queue };
            let Some(next) = context.next(seat, (item, left), io) else {
                // Records of the item go to the trace before the block.
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

    /// Returns the time of the next event. Ignores the end of the work item that runs on `cpu`.
    /// Returns `Time::START` if work items must be simulated one at a time, for instance because
    /// CPU speeds can change.
    #[inline]
    fn next_other_event(&self, cpu: CpuId) -> Time {
        #[cfg(test)]
        if self.one_by_one {
            return Time::START;
        }
        if self.hardware.cpus.has_speeds() {
            return Time::START; // The speed may change during later items.
        }
        self.hardware.cpus.others(cpu).min(self.hardware.queue.first()).min(self.next_stop)
    }

    /// Carries out the pending effects of guests and devices, if there are any.
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
                InterruptTarget::Cpu(cpu) => Some(cpu),
                InterruptTarget::OfVcpu(vcpu) => self.hardware.cpus.home(vcpu),
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

    /// Interrupts the CPU on which `vcpu` runs or ran last, if the signal comes from another CPU.
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

    /// Makes a vCPU look for work, because its simulated operating system has new or more urgent
    /// work. A blocked vCPU wakes. A running vCPU puts its task back into the run queue.
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

    /// Wakes a blocked vCPU that has a simulated operating system, if it has work and is not
    /// paused.
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

/// Hints that guests and the driver domain give to the policy. They take no CPU time.
impl Sim<'_> {
    /// Reports to the policy the domains whose pending I/O has changed.
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

    /// Reports the tasks of guests that run and whose tasks have changed. A guest that does not run
    /// reports when it next runs.
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

    /// Reports the tasks of every operating system whose tasks have changed and that has a running
    /// vCPU. Such a system reports for all its vCPUs, because they share memory. Reports can make
    /// the policy run other vCPUs, whose operating systems then report as well.
    #[inline(never)] // Few guests report tasks.
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
                    self.step_once(now, Fact::Told(vcpu, &VcpuHint::Tasks(tasks)), sink)?;
                }
                None => {
                    self.untold.remove(place);
                }
            }
        }
    }
}

/// Returns true if the scheduler needs CPU time at timers or at wakes.
pub(crate) fn has_passes(scenario: &Scenario) -> bool {
    let host = [&scenario.host.timer_pass, &scenario.host.wake_pass].into_iter();
    let own = scenario.domains.iter().filter_map(|domain| domain.wake_pass.as_ref());
    host.chain(own).any(|pass| !pass.scale().is_zero())
}
