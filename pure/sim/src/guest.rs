//! Steps the workload program of each vCPU. Knows nothing of scheduling: a guest is told that it
//! has computed, and says what it needs next.

use slackline_scenario::{Program, Purpose, Scenario, Step, Stream};
use slackline_trace::{Record, Sink};
use slackline_units::{Span, Time, VcpuId};

/// What a guest needs to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// CPU time: see [`Guests::left`].
    Cpu,
    /// That it becomes this late.
    Sleep(Time),
    /// Nothing any more: its program is over.
    Nothing,
}

/// All guests, by slot.
pub(crate) struct Guests<'a> {
    guests: Vec<Guest>,
    workloads: Vec<Workload<'a>>,
}

/// What a guest runs.
struct Workload<'a> {
    program: &'a Program,
    stream: Stream,
}

/// One cache line, because a hundred thousand of them are walked in no order.
#[repr(align(64))]
struct Guest {
    id: VcpuId,
    /// The next step of its program.
    step: u32,
    /// CPU time it still wants before its next step; `Span::MAX` is for ever.
    left: Span,
    /// When it began its program; releases are counted from there.
    began: Time,
    /// When its sleep ends, or `NEVER`.
    wakes: Time,
    /// How many releases there have been.
    releases: u64,
    released: Time,
    deadline: Time,
}

/// How many steps a program may take at one instant: one that neither computes nor sleeps would
/// otherwise hold time up for ever.
const STEPS_AT_ONCE: u32 = 10_000;

impl<'a> Guests<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Guests<'a> {
        let asleep = |&id: &VcpuId| Guest {
            id,
            step: 0,
            left: Span::ZERO,
            began: Time::START,
            wakes: Time::NEVER,
            releases: 0,
            released: Time::START,
            deadline: Time::NEVER,
        };
        let ids = scenario.domains.iter().flat_map(|domain| &domain.vcpus);
        let guests: Vec<Guest> = ids.map(asleep).collect();
        let workload = |&Guest { id, .. }: &Guest| Workload {
            program: &scenario.domains[id.domain().number() as usize].program,
            stream: Stream::of_vcpu(scenario.seed, id, Purpose::Work),
        };
        let workloads = guests.iter().map(workload).collect();
        Guests { guests, workloads }
    }

    /// The vCPU in a slot.
    #[inline]
    pub(crate) fn vcpu(&self, slot: usize) -> VcpuId {
        self.guests[slot].id
    }

    /// A guest begins its program now.
    pub(crate) fn begin(&mut self, vcpu: VcpuId, now: Time) {
        let guest = &mut self.guests[vcpu.slot()];
        guest.began = now;
        guest.wakes = now;
    }

    /// A guest has left.
    pub(crate) fn end(&mut self, vcpu: VcpuId) {
        self.guests[vcpu.slot()].wakes = Time::NEVER;
    }

    /// Whether the guest is asleep until just now.
    #[inline]
    pub(crate) fn is_due(&self, vcpu: VcpuId, now: Time) -> bool {
        self.guests[vcpu.slot()].wakes == now
    }

    /// Whether the guest sleeps beyond now; not whether its program is over.
    pub(crate) fn is_asleep(&self, vcpu: VcpuId, now: Time) -> bool {
        let wakes = self.guests[vcpu.slot()].wakes;
        now < wakes && wakes < Time::NEVER
    }

    /// CPU time the guest wants before its next step.
    #[inline]
    pub(crate) fn left(&self, vcpu: VcpuId) -> Span {
        self.guests[vcpu.slot()].left
    }

    /// The guest was given time for this much work; what it did not want is not counted.
    #[inline]
    pub(crate) fn compute(&mut self, vcpu: VcpuId, work: Span) {
        let guest = &mut self.guests[vcpu.slot()];
        if guest.left != Span::MAX {
            guest.left = guest.left.left_after(work);
        }
    }

    /// What the vCPU of a system does next takes this long.
    #[inline]
    pub(crate) fn set_left(&mut self, vcpu: VcpuId, left: Span) {
        self.guests[vcpu.slot()].left = left;
    }

    /// The guest has computed all it wanted.
    #[inline]
    pub(crate) fn finish_compute(&mut self, vcpu: VcpuId) {
        self.guests[vcpu.slot()].left = Span::ZERO;
    }

    /// Takes the steps that take no time, up to one that does.
    #[inline(always)]
    pub(crate) fn advance<S: Sink>(&mut self, vcpu: VcpuId, now: Time, sink: &mut S) -> Need {
        let guest = &mut self.guests[vcpu.slot()];
        let Workload { program, stream } = &mut self.workloads[vcpu.slot()];
        guest.wakes = Time::NEVER;
        for _ in 0..STEPS_AT_ONCE {
            let Some(step) = program.steps.get(guest.step as usize) else {
                if !program.repeat {
                    return Need::Nothing;
                }
                guest.step = 0;
                continue;
            };
            guest.step += 1;
            match step {
                Step::Compute(draw) => {
                    guest.left = stream.draw(draw);
                    if !guest.left.is_zero() {
                        return Need::Cpu;
                    }
                }
                Step::ComputeForever => {
                    guest.left = Span::MAX;
                    return Need::Cpu;
                }
                Step::Sleep(draw) => {
                    let span = stream.draw(draw);
                    if !span.is_zero() {
                        return guest.sleep_until(now.after(span));
                    }
                }
                Step::Release { period, deadline, offset } => {
                    let released = guest.began.after(*offset).after(*period * guest.releases);
                    guest.releases += 1;
                    guest.released = released;
                    guest.deadline = deadline.map_or(Time::NEVER, |span| released.after(span));
                    if released > now {
                        return guest.sleep_until(released);
                    }
                }
                Step::Done => {
                    let (released, deadline) = (guest.released, guest.deadline);
                    sink.record(&Record::Job { vcpu, task: None, released, deadline, done: now });
                }
            }
        }
        // A program that does nothing is asleep for all anybody can see.
        guest.sleep_until(now.after(Span::from_ns(1)))
    }
}

impl Guest {
    #[inline]
    fn sleep_until(&mut self, until: Time) -> Need {
        self.wakes = until;
        Need::Sleep(until)
    }
}
