//! Guests: the software on the vCPUs. A guest does not know how the host schedules. When a vCPU has
//! completed its work, the simulator calls the guest, which returns its next need.
//!
//! A domain without a simulated operating system runs one program on each of its vCPUs, and
//! [`Guests`] steps through that program. A domain with an operating system runs tasks on its
//! vCPUs, chosen by a scheduler of its own: [`system`]. [`Guests`] and [`system`] both step through
//! programs with [`steps`]. Devices are used through [`Devices`].

mod barrier;
mod effects;
mod locks;
mod scheduler;
mod steps;
mod system;
mod told;

use slackline_scenario::{ErrorKind, Purpose, Scenario, Stream};
use slackline_trace::{Record, Sink};
use slackline_units::{Span, Time, VcpuId};

pub(crate) use effects::InterruptTarget;
pub(crate) use steps::ProgramNeed;
pub(crate) use system::{Cause, Context, Devices, Seat, Systems, TaskOf, TaskStep};

use barrier::{Barriers, Waiting};
use locks::{Locks, SPIN};
use steps::{Job, Progress, StepLimit, Work};

/// Index of a simulated operating system among all operating systems of the scenario.
pub(crate) type SystemId = u16;

/// State of the guest on each vCPU, by slot.
pub(crate) struct Guests<'a> {
    guests: Vec<Guest>,
    works: Vec<Work<'a>>,
    barriers: Barriers,
    locks: Locks,
}

/// State of a guest. It must fit in one cache line, because up to a hundred thousand guests are
/// visited in random order.
#[repr(align(64))]
struct Guest {
    id: VcpuId,
    /// Time at which the guest's sleep ends, or until which the guest computes. `NEVER` if the
    /// guest neither sleeps nor computes until a fixed time.
    wakes: Time,
    /// Position in the guest's program. For a vCPU of a simulated operating system, this holds only
    /// the CPU time that the current work item still needs.
    progress: Progress,
}

const _: () = assert!(size_of::<Guest>() == 64);

impl<'a> Guests<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Guests<'a> {
        let asleep = |&id: &VcpuId| Guest { id, wakes: Time::NEVER, progress: Progress::new() };
        let ids = scenario.domains.iter().flat_map(|domain| &domain.vcpus);
        let guests: Vec<Guest> = ids.map(asleep).collect();
        let work = |&Guest { id, .. }: &Guest| {
            let program = scenario.domain_of(id).program_of(id);
            Work::new(program, Stream::of_vcpu(scenario.seed, id, Purpose::Work))
        };
        let works = guests.iter().map(work).collect();
        let (barriers, locks) = (Barriers::new(scenario), Locks::new(scenario));
        Guests { guests, works, barriers, locks }
    }

    /// Returns the vCPU in a slot.
    #[inline]
    pub(crate) fn vcpu(&self, slot: usize) -> VcpuId {
        self.guests[slot].id
    }

    /// Returns all vCPUs for which `holds` is true.
    pub(crate) fn all_at(&self, holds: impl Fn(VcpuId) -> bool) -> Vec<VcpuId> {
        self.guests.iter().map(|guest| guest.id).filter(|&vcpu| holds(vcpu)).collect()
    }

    /// Starts the program of a guest.
    pub(crate) fn begin(&mut self, vcpu: VcpuId, now: Time) {
        let guest = &mut self.guests[vcpu.slot()];
        guest.progress.begin(&mut self.works[vcpu.slot()], now);
        guest.wakes = now;
    }

    /// Ends the program of a guest, which does nothing more after that.
    pub(crate) fn end(&mut self, vcpu: VcpuId) {
        self.guests[vcpu.slot()].wakes = Time::NEVER;
    }

    /// Removes a guest that left the host. If other guests waited at a barrier only for this guest,
    /// they continue now. Returns each continuing guest with the time at which it continues.
    pub(crate) fn leave(&mut self, vcpu: VcpuId, now: Time) -> Vec<(Time, VcpuId)> {
        self.end(vcpu);
        self.locks.leave(vcpu);
        let released = self.barriers.leave(vcpu);
        self.let_go(released, now)
    }

    /// Records that a guest has reached the barrier of its parallel program. If all other guests
    /// have reached the barrier too, returns each guest with the time at which it continues.
    /// Otherwise returns an empty list.
    pub(crate) fn come(&mut self, vcpu: VcpuId, latency: Span, now: Time) -> Vec<(Time, VcpuId)> {
        let released = self.barriers.come(vcpu, latency);
        self.let_go(released, now)
    }

    fn let_go(&mut self, released: Vec<Waiting>, now: Time) -> Vec<(Time, VcpuId)> {
        let until = |(vcpu, latency): Waiting| {
            let wakes = now.after(latency);
            self.guests[vcpu.slot()].wakes = wakes;
            (wakes, vcpu)
        };
        released.into_iter().map(until).collect()
    }

    /// Returns true if the guest computes until a fixed time and that time is `now`.
    pub(crate) fn is_at_instant(&self, vcpu: VcpuId, now: Time) -> bool {
        self.is_due(vcpu, now) && !self.left(vcpu).is_zero()
    }

    /// Returns true if the guest's sleep, or its computing until a fixed time, ends exactly at
    /// `now`.
    #[inline]
    pub(crate) fn is_due(&self, vcpu: VcpuId, now: Time) -> bool {
        self.guests[vcpu.slot()].wakes == now
    }

    /// Returns true if the guest sleeps until after `now` or waits at a barrier. Returns false if
    /// its program has ended.
    pub(crate) fn is_asleep(&self, vcpu: VcpuId, now: Time) -> bool {
        let Guest { wakes, progress, .. } = &self.guests[vcpu.slot()];
        let is_timed = now < *wakes && *wakes < Time::NEVER;
        (is_timed && progress.left().is_zero()) || self.barriers.waits(vcpu)
    }

    /// Returns the CPU time that the guest still needs before its next step.
    #[inline]
    pub(crate) fn left(&self, vcpu: VcpuId) -> Span {
        self.guests[vcpu.slot()].progress.left()
    }

    /// Subtracts work done from the CPU time that a guest still needs. Work beyond that is ignored.
    #[inline]
    pub(crate) fn compute(&mut self, vcpu: VcpuId, work: Span) {
        self.guests[vcpu.slot()].progress.compute(work);
    }

    /// Sets the CPU time of the next work item of a vCPU that has a simulated operating system.
    #[inline]
    pub(crate) fn set_left(&mut self, vcpu: VcpuId, left: Span) {
        self.guests[vcpu.slot()].progress.set_left(left);
    }

    /// Records that a guest has received all the CPU time it needed before its next step.
    #[inline]
    pub(crate) fn finish_compute(&mut self, vcpu: VcpuId) {
        self.set_left(vcpu, Span::ZERO);
    }

    /// Makes a guest repeat the step of its program that it took last.
    pub(crate) fn again(&mut self, vcpu: VcpuId) {
        self.guests[vcpu.slot()].progress.again();
    }

    /// Returns the next vCPU that has been granted a spin lock it waited for. `None` if there is no
    /// such vCPU.
    #[inline]
    pub(crate) fn take_granted(&mut self) -> Option<VcpuId> {
        self.locks.take_granted()
    }

    /// Ends the spinning of a guest, if it spins on a lock. Returns the CPU time that the spinning
    /// has used up to now.
    pub(crate) fn stop_spinning(&mut self, vcpu: VcpuId) -> Span {
        let progress = &mut self.guests[vcpu.slot()].progress;
        let used = SPIN.left_after(progress.left());
        progress.set_left(Span::ZERO);
        used
    }

    /// Returns true if a guest spins on a lock.
    pub(crate) fn spins(&self, vcpu: VcpuId) -> bool {
        self.locks.waits(vcpu)
    }

    /// Records the overdue jobs of a guest, which will never be complete.
    pub(crate) fn record_overdue<S: Sink>(&self, vcpu: VcpuId, at: Time, sink: &mut S) {
        let work = &self.works[vcpu.slot()];
        for Job { released, deadline } in self.guests[vcpu.slot()].progress.overdue(work, at) {
            sink.record(&Record::Unfinished { at, vcpu, task: None, released, deadline });
        }
    }

    /// Removes and returns the reason why a recording could not be read to the end. `None` if there
    /// is no such reason.
    pub(crate) fn take_failure(&mut self) -> Option<ErrorKind> {
        self.works.iter_mut().find_map(Work::take_failure)
    }

    /// Continues the program of a guest, and returns its next need.
    #[inline(always)]
    pub(crate) fn advance<S: Sink>(
        &mut self,
        vcpu: VcpuId,
        now: Time,
        sink: &mut S,
    ) -> ProgramNeed {
        let Guests { guests, works, locks, .. } = self;
        let Guest { wakes, progress, .. } = &mut guests[vcpu.slot()];
        let work = &mut works[vcpu.slot()];
        let mut at_once = StepLimit::new();
        let need = loop {
            let need = progress.advance(work, now, &mut at_once, |job| {
                let (released, deadline, done) = (job.released, job.deadline, now);
                let (task, client) = (None, None);
                sink.record(&Record::Job { vcpu, task, client, released, deadline, done });
            });
            match need {
                ProgramNeed::Lock if !locks.take(vcpu) => {
                    progress.set_left(SPIN);
                    break ProgramNeed::Cpu;
                }
                ProgramNeed::Lock => {}
                ProgramNeed::Unlock => locks.give_back(vcpu),
                need => break need,
            }
        };
        *wakes = match need {
            ProgramNeed::Sleep(until) | ProgramNeed::Until(until) => until,
            _ => Time::NEVER,
        };
        need
    }
}
