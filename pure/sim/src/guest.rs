//! Guests: what runs on the vCPUs. Knows nothing of scheduling by the host: a guest is told that it
//! has computed, and says what it needs next.
//!
//! A domain without a system runs one program on each of its vCPUs, which has the vCPU to itself:
//! [`Guests`] steps through it. A domain with a system runs tasks on its vCPUs, and its own
//! scheduler says which of them: [`system`]. Whoever steps through a program does it with
//! [`steps`]. What a guest does with devices is beyond its [`Devices`].

mod barrier;
mod effects;
mod locks;
mod scheduler;
mod steps;
mod system;
mod told;

use slackline_scenario::{Purpose, Scenario, Stream};
use slackline_trace::{Record, Sink};
use slackline_units::{Span, Time, VcpuId};

pub(crate) use effects::Where;
pub(crate) use steps::Need;
pub(crate) use system::{Cause, Context, Devices, Seat, Systems, TaskOf, Then};

use barrier::{Barriers, Waiting};
use locks::{Locks, SPIN};
use steps::{AtOnce, Job, Progress, Work};

/// The operating system of a domain, by its place among them.
pub(crate) type SystemId = u16;

/// What each vCPU does, by slot.
pub(crate) struct Guests<'a> {
    guests: Vec<Guest>,
    works: Vec<Work<'a>>,
    barriers: Barriers,
    locks: Locks,
}

/// One cache line, because a hundred thousand of them are walked in no order.
#[repr(align(64))]
struct Guest {
    id: VcpuId,
    /// When its sleep ends, or `NEVER`.
    wakes: Time,
    /// In its program; of a vCPU of a system, only what is left of what it does.
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

    /// The vCPU in a slot.
    #[inline]
    pub(crate) fn vcpu(&self, slot: usize) -> VcpuId {
        self.guests[slot].id
    }

    /// A guest begins its program now.
    pub(crate) fn begin(&mut self, vcpu: VcpuId, now: Time) {
        let guest = &mut self.guests[vcpu.slot()];
        guest.progress.begin(&mut self.works[vcpu.slot()], now);
        guest.wakes = now;
    }

    /// A guest does nothing more by itself.
    pub(crate) fn end(&mut self, vcpu: VcpuId) {
        self.guests[vcpu.slot()].wakes = Time::NEVER;
    }

    /// A guest has left; whom nobody keeps from going on any more, and when each of them does.
    pub(crate) fn leave(&mut self, vcpu: VcpuId, now: Time) -> Vec<(Time, VcpuId)> {
        self.end(vcpu);
        self.locks.leave(vcpu);
        let released = self.barriers.leave(vcpu);
        self.let_go(released, now)
    }

    /// A guest has come to the barrier of its parallel program; who goes on now, it among them, and
    /// when each of them does: nobody before the last has come.
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

    /// Whether the guest is asleep until just now.
    #[inline]
    pub(crate) fn is_due(&self, vcpu: VcpuId, now: Time) -> bool {
        self.guests[vcpu.slot()].wakes == now
    }

    /// Whether the guest sleeps beyond now, or waits for others; not whether its program is over.
    pub(crate) fn is_asleep(&self, vcpu: VcpuId, now: Time) -> bool {
        let wakes = self.guests[vcpu.slot()].wakes;
        (now < wakes && wakes < Time::NEVER) || self.barriers.waits(vcpu)
    }

    /// CPU time the guest wants before its next step.
    #[inline]
    pub(crate) fn left(&self, vcpu: VcpuId) -> Span {
        self.guests[vcpu.slot()].progress.left()
    }

    /// The guest was given time for this much work; what it did not want is not counted.
    #[inline]
    pub(crate) fn compute(&mut self, vcpu: VcpuId, work: Span) {
        self.guests[vcpu.slot()].progress.compute(work);
    }

    /// What the vCPU of a system does next takes this long.
    #[inline]
    pub(crate) fn set_left(&mut self, vcpu: VcpuId, left: Span) {
        self.guests[vcpu.slot()].progress.set_left(left);
    }

    /// The guest has computed all it wanted.
    #[inline]
    pub(crate) fn finish_compute(&mut self, vcpu: VcpuId) {
        self.set_left(vcpu, Span::ZERO);
    }

    /// The step that a guest took last is to be taken once more.
    pub(crate) fn again(&mut self, vcpu: VcpuId) {
        self.guests[vcpu.slot()].progress.again();
    }

    /// Who has got a lock for which it waited: it is let go on one after the other.
    #[inline]
    pub(crate) fn take_granted(&mut self) -> Option<VcpuId> {
        self.locks.take_granted()
    }

    /// A guest waits for no lock any more, if it did: what it used for that, counted up to now.
    pub(crate) fn stop_spinning(&mut self, vcpu: VcpuId) -> Span {
        let progress = &mut self.guests[vcpu.slot()].progress;
        let used = SPIN.left_after(progress.left());
        progress.set_left(Span::ZERO);
        used
    }

    /// Whether a guest waits for a lock.
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

    /// A guest goes on with its program.
    #[inline(always)]
    pub(crate) fn advance<S: Sink>(&mut self, vcpu: VcpuId, now: Time, sink: &mut S) -> Need {
        let Guests { guests, works, locks, .. } = self;
        let Guest { wakes, progress, .. } = &mut guests[vcpu.slot()];
        let work = &mut works[vcpu.slot()];
        let mut at_once = AtOnce::new();
        let need = loop {
            let need = progress.advance(work, now, &mut at_once, |job| {
                let (released, deadline) = (job.released, job.deadline);
                sink.record(&Record::Job { vcpu, task: None, released, deadline, done: now });
            });
            match need {
                Need::Lock if !locks.take(vcpu) => {
                    progress.set_left(SPIN);
                    break Need::Cpu;
                }
                Need::Lock => {}
                Need::Unlock => locks.give_back(vcpu),
                need => break need,
            }
        };
        *wakes = if let Need::Sleep(until) = need { until } else { Time::NEVER };
        need
    }
}
