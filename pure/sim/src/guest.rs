//! Guests: the software on the vCPUs. A guest does not know how the host schedules. It is called
//! when it has computed, and returns its next need.
//!
//! A domain without a system runs one program on each of its vCPUs: [`Guests`] steps through it. A
//! domain with a system runs tasks on its vCPUs, chosen by a scheduler of its own: [`system`]. Both
//! step through programs with [`steps`]. Use of devices goes through [`Devices`].

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

/// Index of the operating system of a domain among all of them.
pub(crate) type SystemId = u16;

/// State of the guest on each vCPU, by slot.
pub(crate) struct Guests<'a> {
    guests: Vec<Guest>,
    works: Vec<Work<'a>>,
    barriers: Barriers,
    locks: Locks,
}

/// State of a guest. It fits in one cache line, because a hundred thousand of them are visited in
/// no order.
#[repr(align(64))]
struct Guest {
    id: VcpuId,
    /// Time at which it stops to sleep, or to compute until an instant. `NEVER` if it does neither.
    wakes: Time,
    /// Position in its program. For a vCPU of a system only the CPU time left of its item.
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

    /// Returns all vCPUs that a condition holds for.
    pub(crate) fn all_at(&self, holds: impl Fn(VcpuId) -> bool) -> Vec<VcpuId> {
        self.guests.iter().map(|guest| guest.id).filter(|&vcpu| holds(vcpu)).collect()
    }

    /// Starts the program of a guest.
    pub(crate) fn begin(&mut self, vcpu: VcpuId, now: Time) {
        let guest = &mut self.guests[vcpu.slot()];
        guest.progress.begin(&mut self.works[vcpu.slot()], now);
        guest.wakes = now;
    }

    /// Stops a guest: it does nothing more on its own.
    pub(crate) fn end(&mut self, vcpu: VcpuId) {
        self.guests[vcpu.slot()].wakes = Time::NEVER;
    }

    /// Removes a guest that left. Returns the guests that no longer wait for it, with the times at
    /// which they continue.
    pub(crate) fn leave(&mut self, vcpu: VcpuId, now: Time) -> Vec<(Time, VcpuId)> {
        self.end(vcpu);
        self.locks.leave(vcpu);
        let released = self.barriers.leave(vcpu);
        self.let_go(released, now)
    }

    /// Notes that a guest has reached the barrier of its parallel program. Returns the guests that
    /// continue, with the times of that. Empty until the last one has reached it.
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

    /// Returns true if the guest computes until an instant, which is exactly now.
    pub(crate) fn is_at_instant(&self, vcpu: VcpuId, now: Time) -> bool {
        self.is_due(vcpu, now) && !self.left(vcpu).is_zero()
    }

    /// Returns true if the sleep of the guest, or its computing until an instant, ends exactly now.
    #[inline]
    pub(crate) fn is_due(&self, vcpu: VcpuId, now: Time) -> bool {
        self.guests[vcpu.slot()].wakes == now
    }

    /// Returns true if the guest sleeps beyond now or waits at a barrier. False if its program has
    /// ended.
    pub(crate) fn is_asleep(&self, vcpu: VcpuId, now: Time) -> bool {
        let Guest { wakes, progress, .. } = &self.guests[vcpu.slot()];
        let is_timed = now < *wakes && *wakes < Time::NEVER;
        (is_timed && progress.left().is_zero()) || self.barriers.waits(vcpu)
    }

    /// Returns the CPU time that the guest wants before its next step.
    #[inline]
    pub(crate) fn left(&self, vcpu: VcpuId) -> Span {
        self.guests[vcpu.slot()].progress.left()
    }

    /// Counts work of a guest. Work beyond what it wanted is ignored.
    #[inline]
    pub(crate) fn compute(&mut self, vcpu: VcpuId, work: Span) {
        self.guests[vcpu.slot()].progress.compute(work);
    }

    /// Sets the CPU time of the next item of a vCPU of a system.
    #[inline]
    pub(crate) fn set_left(&mut self, vcpu: VcpuId, left: Span) {
        self.guests[vcpu.slot()].progress.set_left(left);
    }

    /// Notes that the guest has computed all it wanted.
    #[inline]
    pub(crate) fn finish_compute(&mut self, vcpu: VcpuId) {
        self.set_left(vcpu, Span::ZERO);
    }

    /// Repeats the last step of a guest.
    pub(crate) fn again(&mut self, vcpu: VcpuId) {
        self.guests[vcpu.slot()].progress.again();
    }

    /// Returns the next vCPU that has been granted a lock it waited for, if there is one.
    #[inline]
    pub(crate) fn take_granted(&mut self) -> Option<VcpuId> {
        self.locks.take_granted()
    }

    /// Ends the spin of a guest, if it spins. Returns the CPU time spent on it, counted up to now.
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

    /// Records the jobs of a guest that are overdue and will never be done.
    pub(crate) fn record_overdue<S: Sink>(&self, vcpu: VcpuId, at: Time, sink: &mut S) {
        let work = &self.works[vcpu.slot()];
        for Job { released, deadline } in self.guests[vcpu.slot()].progress.overdue(work, at) {
            sink.record(&Record::Unfinished { at, vcpu, task: None, released, deadline });
        }
    }

    /// Takes the reason why a recording could not be read to the end.
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
