//! Where the devices meet the host: vCPUs of systems wake, do one item after the other, and block.

use slackline_host::Fact;
use slackline_trace::Sink;
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::queue::Event;
use crate::{RunError, Sim};

impl Sim<'_> {
    /// Whether a vCPU is one of a system.
    #[inline]
    pub(crate) fn is_system(&self, vcpu: VcpuId) -> bool {
        self.io.as_ref().is_some_and(|io| io.owns(vcpu))
    }

    pub(crate) fn io_joins(&mut self, vcpu: VcpuId, now: Time) {
        if let Some(io) = self.io.as_mut().filter(|io| io.owns(vcpu)) {
            io.join(vcpu, now, &mut self.queue);
        }
    }

    pub(crate) fn io_leaves(&mut self, vcpu: VcpuId) {
        if let Some(io) = self.io.as_mut().filter(|io| io.owns(vcpu)) {
            io.leave(vcpu);
        }
    }

    /// The run is over: what has not been told yet is.
    pub(crate) fn io_ends<S: Sink>(&mut self, sink: &mut S) {
        if let Some(io) = &mut self.io {
            io.end(self.end);
            io.effects.records.drain(..).for_each(|record| sink.record(&record));
        }
    }

    /// The ticks of all CPUs come.
    pub(crate) fn tick(&mut self, now: Time) {
        let host = &self.scenario.host;
        for cpu in (0..host.cpus).map(CpuId::new) {
            self.cpus.steal(cpu, (now, host.tick_cost), &mut self.guests);
        }
        self.queue.push(now + host.tick, Event::Tick);
    }

    /// Something happens to the devices or outside.
    pub(crate) fn happen<S: Sink>(
        &mut self,
        now: Time,
        event: Event,
        sink: &mut S,
    ) -> Result<(), RunError> {
        let Some(io) = &mut self.io else { return Ok(()) };
        io.happen(event, now, &mut self.queue);
        self.settle(now, sink)
    }

    /// The occupant of a CPU, a vCPU of a system, has done one item. Whom that wakes may take the
    /// CPU before it comes to the next.
    pub(crate) fn item_done<S: Sink>(
        &mut self,
        now: Time,
        cpu: CpuId,
        sink: &mut S,
    ) -> Result<(), RunError> {
        let vcpu = self.cpus.occupant(cpu);
        let Some(io) = &mut self.io else { return Ok(()) };
        io.finish(vcpu, now, &mut self.queue);
        self.settle(now, sink)?;
        if !self.cpus.is_free(cpu, vcpu, now) {
            return Ok(());
        }
        let Some(io) = &mut self.io else { return Ok(()) };
        match io.next(vcpu, now) {
            Some(cost) => {
                self.guests.set_left(vcpu, cost);
                self.cpus.go_on(cpu, now, &self.guests);
                Ok(())
            }
            None => {
                // What it has told the trace.
                self.settle(now, sink)?;
                Ok(self.step(now, Fact::Blocked(vcpu), sink)?)
            }
        }
    }

    /// Does what the devices ask for.
    #[inline]
    fn settle<S: Sink>(&mut self, now: Time, sink: &mut S) -> Result<(), RunError> {
        let Some(io) = &mut self.io else { return Ok(()) };
        let effects = &mut io.effects;
        if effects.are_none() {
            return Ok(());
        }
        self.carry_out(now, sink)
    }

    #[inline(never)]
    fn carry_out<S: Sink>(&mut self, now: Time, sink: &mut S) -> Result<(), RunError> {
        let Some(io) = &mut self.io else { return Ok(()) };
        let effects = &mut io.effects;
        for record in effects.records.drain(..) {
            sink.record(&record);
        }
        while let Some((vcpu, span)) = effects.stolen.pop() {
            if let Some(cpu) = self.cpus.home(vcpu) {
                self.cpus.steal(cpu, (now, span), &mut self.guests);
            }
        }
        let mut alerted = std::mem::take(&mut effects.alerted);
        for vcpu in alerted.drain(..) {
            self.alert(now, vcpu, sink)?;
        }
        if let Some(io) = &mut self.io {
            io.effects.alerted = alerted;
        }
        Ok(())
    }

    /// A vCPU of a system has something else to do than before.
    fn alert<S: Sink>(&mut self, now: Time, vcpu: VcpuId, sink: &mut S) -> Result<(), RunError> {
        if !self.host.moment().is_awake(vcpu) {
            return self.wake_system(now, vcpu, sink);
        }
        let cpu = self.host.moment().cpu_of(vcpu);
        if let Some(cpu) = cpu {
            self.cpus.count(cpu, now, &mut self.guests);
        }
        let Some(io) = &mut self.io else { return Ok(()) };
        if io.put_aside(vcpu, self.guests.left(vcpu)) {
            self.guests.set_left(vcpu, Span::ZERO);
        }
        if let Some(cpu) = cpu {
            self.cpus.recount(cpu, &self.guests);
        }
        Ok(())
    }

    /// A sleeping vCPU of a system wakes, if it has anything to do and is not held.
    pub(crate) fn wake_system<S: Sink>(
        &mut self,
        now: Time,
        vcpu: VcpuId,
        sink: &mut S,
    ) -> Result<(), RunError> {
        let has_work = self.io.as_ref().is_some_and(|io| io.has_work(vcpu));
        let moment = self.host.moment();
        let may_wake = moment.is_member(vcpu) && !moment.is_awake(vcpu);
        if has_work && may_wake && !self.paused.contains(&vcpu) {
            self.step(now, Fact::Woke(vcpu), sink)?;
        }
        Ok(())
    }
}
