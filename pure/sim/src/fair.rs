//! Ordinary scheduling of slack, as a live host does it. The kernel, and not the policy, divides
//! slack among all runnable vCPUs of a CPU that are allowed to receive more than their reservation.
//! Source: EEVDF in Linux 6.12 and later. An entity (a vCPU in the queue) that leaves keeps its
//! lag, the time by which its virtual time is behind the average. It has the same lag when it
//! returns. Of the entities that are not ahead of the average, the one with the earliest deadline
//! runs. It runs at least until a tick finds that its slice is used.
//!
//! Virtual times, lags and deadlines are in nanoseconds.
//!
//! Departs from its source: all entities have the same weight, so that virtual time is CPU time. A
//! vCPU that wakes never preempts the running vCPU.

use slackline_units::{CpuId, Span, Time, VcpuId};

/// Model of the kernel's ordinary scheduling class, which divides slack among vCPUs.
pub(crate) struct FairClass {
    slice: i64,
    tick: Span,
    phase: Span,
    cpus: Vec<FairCpu>,
    /// State of each vCPU by its slot.
    entities: Vec<Entity>,
}

#[derive(Clone, Debug, Default)]
struct FairCpu {
    /// True while the CPU has slack.
    is_on: bool,
    /// Average virtual time just before the queue last became empty.
    base: i64,
    queue: Vec<VcpuId>,
    /// Running entity, and the time up to which its run is counted.
    running: Option<(VcpuId, Time)>,
    /// Time of the next tick. `NEVER` if no tick is due.
    tick: Time,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entity {
    /// True if the vCPU is runnable.
    is_awake: bool,
    /// True if the reservation of the vCPU is a hard limit. Such a vCPU never competes for slack.
    is_bounded: bool,
    is_queued: bool,
    /// True if the vCPU left while its virtual time was ahead of the average. The vCPU stays in the
    /// queue until the average has caught up.
    is_delayed: bool,
    runtime: i64,
    deadline: i64,
    lag: i64,
}

impl FairClass {
    pub(crate) fn new((slice, tick, phase): (Span, Span, Span), cpus: usize, slots: usize) -> Self {
        let cpu = FairCpu { tick: Time::NEVER, ..FairCpu::default() };
        FairClass {
            slice: signed(slice),
            tick,
            phase,
            cpus: vec![cpu; cpus],
            entities: vec![Entity::default(); slots],
        }
    }

    pub(crate) fn set_bounded(&mut self, vcpu: VcpuId, is_bounded: bool) {
        self.entities[vcpu.slot()].is_bounded = is_bounded;
    }

    /// Returns true if the CPU has slack.
    #[inline]
    pub(crate) fn is_on(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].is_on
    }

    /// Records that a vCPU became runnable. `home` is the CPU on which it ran last. If that CPU has
    /// slack, the vCPU competes for the slack.
    pub(crate) fn woke(&mut self, vcpu: VcpuId, home: Option<CpuId>) {
        self.entities[vcpu.slot()].is_awake = true;
        if let Some(cpu) = home.filter(|&cpu| self.is_on(cpu)) {
            self.enter(cpu, vcpu);
        }
    }

    /// Records that a vCPU blocked, and removes it from the queue as [`leave`](Self::leave) does.
    pub(crate) fn blocked(&mut self, vcpu: VcpuId) {
        self.entities[vcpu.slot()].is_awake = false;
        self.leave(vcpu);
    }

    /// Adds a vCPU whose reserved run has ended, so that it competes for slack.
    pub(crate) fn enter(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let Entity { is_awake, is_bounded, is_queued, is_delayed, lag, .. } =
            self.entities[vcpu.slot()];
        if is_bounded || !is_awake || is_queued && !is_delayed {
            return;
        }
        let count = self.cpus[cpu.index()].queue.len();
        let average = self.average(cpu);
        let entity = &mut self.entities[vcpu.slot()];
        if is_delayed {
            entity.is_delayed = false;
            entity.runtime = entity.runtime.max(average);
            return;
        }
        let behind = match i64::try_from(count) {
            Ok(count @ 1..) => lag * (count + 1) / count,
            _ => 0,
        };
        entity.is_queued = true;
        entity.runtime = average - behind;
        entity.deadline = entity.runtime + self.slice;
        self.cpus[cpu.index()].queue.push(vcpu);
    }

    /// Removes a vCPU that blocked or begins to run on reserved time. A vCPU whose virtual time is
    /// ahead of the average stays in the queue until the average has caught up.
    pub(crate) fn leave(&mut self, vcpu: VcpuId) {
        let Entity { is_queued, is_delayed, runtime, .. } = self.entities[vcpu.slot()];
        if !is_queued || is_delayed {
            return;
        }
        let place = self.cpus.iter().position(|cpu| cpu.queue.contains(&vcpu));
        let Some(cpu) = place.map(CpuId::new) else { return };
        let this = &mut self.cpus[cpu.index()];
        this.running = this.running.filter(|&(running, _)| running != vcpu);
        if runtime > self.average(cpu) {
            self.entities[vcpu.slot()].is_delayed = true;
        } else {
            self.remove(cpu, vcpu);
        }
    }

    fn remove(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let average = self.average(cpu);
        let limit = (2 * self.slice).max(signed(self.tick));
        let entity = &mut self.entities[vcpu.slot()];
        let lag = (average - entity.runtime).clamp(-limit, limit);
        entity.lag = if entity.is_delayed { 0 } else { lag };
        (entity.is_queued, entity.is_delayed) = (false, false);
        let cpu = &mut self.cpus[cpu.index()];
        cpu.queue.retain(|&other| other != vcpu);
        if cpu.queue.is_empty() {
            cpu.base = average;
        }
    }

    /// Starts ordinary scheduling on a CPU that has slack. The vCPUs of `runnable` compete from now
    /// on. Returns the time of the next tick, or `None` if a tick is scheduled already.
    pub(crate) fn begin(
        &mut self,
        cpu: CpuId,
        now: Time,
        runnable: impl Iterator<Item = VcpuId>,
    ) -> Option<Time> {
        self.cpus[cpu.index()].is_on = true;
        runnable.for_each(|vcpu| self.enter(cpu, vcpu));
        let next = self.next_tick(now);
        let this = &mut self.cpus[cpu.index()];
        let is_new = this.tick == Time::NEVER;
        this.tick = next;
        is_new.then_some(next)
    }

    /// Ends ordinary scheduling on a CPU that has no slack left.
    pub(crate) fn end(&mut self, cpu: CpuId) {
        let this = &mut self.cpus[cpu.index()];
        (this.is_on, this.running) = (false, None);
    }

    /// Adds the CPU time that the running vCPU has received since the last count to its virtual
    /// time. `ran` returns this CPU time, given the time of the last count.
    pub(crate) fn count(&mut self, cpu: CpuId, now: Time, ran: impl FnOnce(Time) -> Span) {
        if let Some((vcpu, since)) = &mut self.cpus[cpu.index()].running {
            let ran = ran(*since);
            *since = now;
            self.entities[vcpu.slot()].runtime += signed(ran);
        }
    }

    /// Handles the tick of a CPU. Returns the time of the next tick, or `None` if the CPU has no
    /// slack.
    pub(crate) fn tick(&mut self, cpu: CpuId, now: Time) -> Option<Time> {
        let next = self.next_tick(now);
        let this = &mut self.cpus[cpu.index()];
        this.tick = if this.is_on { next } else { Time::NEVER };
        this.is_on.then_some(next)
    }

    /// Returns the vCPU that ordinary scheduling runs next. The running vCPU continues until its
    /// slice is used. `None` if no vCPU is in the queue.
    pub(crate) fn pick(&mut self, cpu: CpuId, now: Time) -> Option<VcpuId> {
        let this = &self.cpus[cpu.index()];
        if let Some((running, _)) = this.running {
            let entity = &mut self.entities[running.slot()];
            if entity.runtime < entity.deadline {
                return Some(running);
            }
            entity.deadline = entity.runtime + self.slice;
        }
        loop {
            let average = self.average(cpu);
            let key = |vcpu: &VcpuId| {
                let entity = &self.entities[vcpu.slot()];
                (entity.runtime > average, entity.deadline, vcpu.slot())
            };
            let picked = self.cpus[cpu.index()].queue.iter().copied().min_by_key(key);
            match picked {
                Some(vcpu) if self.entities[vcpu.slot()].is_delayed => self.remove(cpu, vcpu),
                _ => {
                    self.cpus[cpu.index()].running = picked.map(|picked| (picked, now));
                    return picked;
                }
            }
        }
    }

    /// Returns the average of the virtual times of all vCPUs in the queue.
    fn average(&self, cpu: CpuId) -> i64 {
        let this = &self.cpus[cpu.index()];
        let sum: i128 =
            this.queue.iter().map(|it| i128::from(self.entities[it.slot()].runtime)).sum();
        let count = this.queue.len() as i128;
        let average = sum.checked_div(count).and_then(|average| i64::try_from(average).ok());
        average.unwrap_or(this.base)
    }

    fn next_tick(&self, now: Time) -> Time {
        let passed = (now.since(Time::START) + self.tick).left_after(self.phase % self.tick);
        now.after(self.tick - passed % self.tick)
    }
}

fn signed(span: Span) -> i64 {
    i64::try_from(span.ns()).unwrap_or(i64::MAX / 4)
}
