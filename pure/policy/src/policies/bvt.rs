//! Borrowed virtual time: each vCPU has a virtual clock, and the vCPU with the earliest clock runs.
//! Source: Duda and Cheriton, SOSP 1999, cited as [BVT], as summarised by Cherkasova, Gupta and
//! Vahdat, 2007; and Xen 2.0 to 3.0.2, cited as [Xen]. Virtual time is in nanoseconds at weight one
//! by the papers' rules, and in Xen's virtual units by Xen's rules.
//!
//! Actual virtual time advances while a vCPU runs, more slowly the heavier its weight. So equal
//! clocks mean use in proportion to weight. The running vCPU may get ahead of the next one by the
//! context switch allowance, in real time. A vCPU may warp: its effective virtual time is then
//! earlier than its actual virtual time. It runs sooner, waits later, and keeps its share over
//! longer intervals.
//!
//! Each CPU has its own queue, and a vCPU stays on the CPU that had the fewest vCPUs when it
//! joined. Xen's scheduler did so, and clocks need never be compared across CPUs.
//!
//! A *pass* ends a timeslice and chooses the next vCPU, as in Xen. CPU time is collected during a
//! timeslice and charged at the pass. The decision of a pass is stored and stays in force until the
//! next pass. The *floor* of a CPU is the earliest actual virtual time from which a vCPU that wakes
//! there starts.
//!
//! Rules in which the papers and Xen differ are in `paper` and `xen`; all others are common.
//!
//! Holds after every call:
//! - A runnable vCPU is in the queue of its CPU, also while it runs.
//! - The chosen vCPU of a CPU is in the queue there.
//! - By the papers' rules no clock of a runnable vCPU is behind `floor`, so a vCPU saves up nothing
//!   while it is blocked. No clock is ahead of the earliest one by more than the allowance, except
//!   for a warp.
//!
//! Departs from [Xen]: warps belong to vCPUs, not to domains. Requests for passes at one instant
//! are handled one by one, with the outcome that a single pass after all wakes would have had.

mod clock;
mod line;
mod page;
mod paper;
mod rules;
#[cfg(test)]
mod tests;
mod xen;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::marker::PhantomData;

use slackline_units::{CpuId, CpuSet, Pace, Span, Time, VcpuId, VirtualSpan, VirtualTime};

use crate::admission::placement::Population;
use crate::queues::ordered::Queues;
use crate::{
    Account, AdmitError, Entitlement, Moment, Pick, Policy, Roster, Spec, TimesliceEnd, Topology,
    Values,
};
use clock::{
    ADVANCE, Parameters, VcpuClock, WARP, WARPBACK, WARPL, WARPU, WARPVALUE, WEIGHT, WarpEnd,
};
use page::PAGE;
use paper::Paper;
use rules::{
    ALLOWANCE, BvtRules, CHARGE_AGAIN, NARROW, ROUND_UP, RULES, UNIT, UNIT_SLIP, WARP_UNDERFLOW,
};
use xen::Xen;

/// Description of the policy `bvt`.
pub(crate) const SPEC: Spec = Spec {
    name: "bvt",
    summary: "shares by weight, and warps for short waits (Xen 2.0)",
    page: PAGE,
    policy_fields: &[
        RULES,
        ALLOWANCE,
        UNIT,
        ROUND_UP,
        UNIT_SLIP,
        CHARGE_AGAIN,
        NARROW,
        WARP_UNDERFLOW,
    ],
    share_fields: &[WEIGHT, WARP, ADVANCE, WARPBACK, WARPVALUE, WARPL, WARPU],
    conflict: |_| None,
    promise: |_| Ok(None),
    keeps: |_, _| true,
    limit: None,
    together: None,
    payer: None,
    build: |values, topology| match values.choice(&RULES) {
        "paper" => Box::new(Bvt::<Paper>::new(values, topology)),
        _ => Box::new(Bvt::<Xen>::new(values, topology)),
    },
};

/// Rules in which the papers and Xen differ.
trait Source: Sized + Send + 'static {
    /// Returns the parameters of a vCPU's clock, read from `share`, the parameters of the vCPU.
    fn parameters(share: &Values, rules: &BvtRules) -> Parameters;

    /// Returns the *floor* of `cpu`. If a vCPU wakes there with an earlier actual virtual time, its
    /// actual virtual time is set to the floor.
    fn floor(bvt: &Bvt<Self>, now: Time, cpu: CpuId) -> VirtualTime;

    /// Returns the floor of a CPU that becomes idle: the earliest actual virtual time from which a
    /// vCPU that wakes there starts. `last` is the actual virtual time of the CPU's last occupant.
    fn floor_of_idle(floor: VirtualTime, last: VirtualTime) -> VirtualTime;

    /// Returns the end of the current timeslice after another vCPU was queued. `lead` is the amount
    /// by which the clock of the queued vCPU is ahead of the clock of the running vCPU.
    fn cut(bvt: &Bvt<Self>, now: Time, current: VcpuId, lead: VirtualSpan) -> Time;

    /// Returns the vCPU to choose: the first in the queue (`earliest`, with its effective time), or
    /// `holder` if it keeps the CPU.
    fn choose(
        bvt: &Bvt<Self>,
        at: &Moment,
        earliest: (VirtualTime, VcpuId),
        holder: Option<VcpuId>,
    ) -> VcpuId;

    /// Returns the end of the timeslice of a vCPU that is alone in the queue.
    fn alone(now: Time, rules: &BvtRules) -> Time;

    /// Returns the end of the timeslice and the expiry of the warp timer. `turn` and `warp` are the
    /// times at which the timeslice and the warp would end independently.
    fn ends(turn: Time, warp: Time) -> (Time, Time);

    /// Counts CPU time against the limit of a warp. If the limit ends the warp, returns when the
    /// vCPU may warp again.
    fn use_warp(clock: &mut VcpuClock, now: Time) -> Option<WarpEnd>;

    /// Handles the end of the pause after which a vCPU may warp again.
    fn may_warp_again(bvt: &mut Bvt<Self>, cpu: CpuId, vcpu: VcpuId);

    /// Converts a lead in virtual time to charging units, for a clock at the pace `pace`.
    fn charging_units(lead: VirtualSpan, pace: Pace, unit: Span) -> u64;
}

struct Bvt<S> {
    rules: BvtRules,
    source: PhantomData<S>,
    lines: Vec<BvtCpu>,
    population: Population,
    clocks: Roster<VcpuClock>,
    /// Two queues per CPU, `plain` and `shifted`, by effective time and then by position.
    order: Queues<(VirtualTime, i64)>,
    /// One queue per CPU: the vCPUs in `shifted`, by actual time.
    actuals: Queues<VirtualTime>,
    /// One queue per CPU: vCPUs that may not warp for a while, by the end of that pause.
    pauses: Queues<Time>,
}

/// State of one CPU: the vCPU chosen by the last pass, its timeslice, and the floor of clocks.
#[derive(Clone, Debug)]
struct BvtCpu {
    /// vCPU chosen by the last pass.
    current: Option<VcpuId>,
    /// Start of the current timeslice, from which CPU time is charged.
    since: Time,
    until: Time,
    /// Earliest actual time of the runnable vCPUs. A vCPU that wakes starts from this time or
    /// later.
    floor: VirtualTime,
    /// Time of the latest pass that a timer or a wake requested. Such a pass follows after all
    /// wakes of the same instant.
    pending: Time,
    floor_before: VirtualTime,
    /// Last position assigned at the head of the queue.
    head: i64,
    tail: i64,
    /// End of the warp of the chosen vCPU, by Xen's rules.
    warp_ends: Time,
}

/// Reason for a scheduling pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassCause {
    /// A timer or a wake requests the pass. The pass follows after all wakes of the same instant.
    Asked,
    /// The chosen vCPU is preempted or blocks, or its clock was set to a new value.
    AtOnce,
    /// The chosen vCPU yields.
    Yield,
}

impl<S: Source> Policy for Bvt<S> {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let cpu = self.population.join(at.allowed(vcpu));
        let mut clock = VcpuClock::new(share, S::parameters(share, &self.rules), cpu);
        clock.actual = self.line(cpu).floor;
        self.clocks.insert(vcpu, clock);
        Ok(())
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let home = self.clocks[vcpu].cpu;
        let is_current = self.line(home).current == Some(vcpu);
        if is_current && self.line(home).pending != at.now() {
            self.settle(at.now(), vcpu); // At the old pace.
        }
        let cpu = self.population.stay_or_move(home, at.allowed(vcpu));
        let is_queued = self.order.queue_of(vcpu).is_some();
        self.dequeue(vcpu);
        self.pauses.remove(vcpu);
        let mut clock = VcpuClock::new(share, S::parameters(share, &self.rules), cpu);
        let before = &self.clocks[vcpu];
        clock.actual = if cpu == home { before.actual } else { self.line(cpu).floor };
        clock.used = if is_current { Span::ZERO } else { before.used };
        self.clocks[vcpu] = clock;
        if is_current && cpu != home {
            self.lines[home.index()].current = None;
            self.pass(at, home, PassCause::AtOnce);
        }
        if is_current && cpu == home {
            self.enqueue_last(home, vcpu);
            self.pass(at, home, PassCause::AtOnce);
        } else if is_queued {
            self.arrive(at, vcpu);
        }
        Ok([home, cpu].into_iter().collect())
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.pauses.remove(vcpu);
        let clock = self.clocks.remove(vcpu).expect("a joined vCPU has a clock");
        self.population.leave(clock.cpu);
        let line = &mut self.lines[clock.cpu.index()];
        if line.current == Some(vcpu) {
            line.current = None;
            self.pass(at, clock.cpu, PassCause::AtOnce);
        }
        CpuSet::NONE
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpu = self.clocks[vcpu].cpu;
        let floor = S::floor(self, at.now(), cpu);
        self.clocks[vcpu].wake(at.now(), floor);
        self.arrive(at, vcpu);
        CpuSet::one(cpu)
    }

    /// Handles the start of a vCPU. If the host barred the chosen vCPU and another vCPU was picked,
    /// the vCPU that starts becomes the chosen vCPU.
    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpu = self.clocks[vcpu].cpu;
        let line = &mut self.lines[cpu.index()];
        if line.current != Some(vcpu) {
            line.current = Some(vcpu);
            line.since = at.now();
            line.until = at.now().after(self.rules.allowance);
            line.warp_ends = Time::NEVER;
        }
        CpuSet::NONE
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let clock = &mut self.clocks[vcpu];
        clock.used += ran;
        if self.lines[clock.cpu.index()].current != Some(vcpu) || at.cpu_of(vcpu).is_none() {
            self.charge_at_once(vcpu);
        }
        CpuSet::NONE
    }

    fn on_timeslice_end(&mut self, at: &Moment, vcpu: VcpuId, why: TimesliceEnd) -> CpuSet {
        let cpu = self.clocks[vcpu].cpu;
        if self.line(cpu).current == Some(vcpu) {
            let cause =
                if why == TimesliceEnd::Yield { PassCause::Yield } else { PassCause::Asked };
            self.pass(at, cpu, cause);
        }
        CpuSet::NONE
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.clocks[vcpu].block(at.now());
        let cpu = self.clocks[vcpu].cpu;
        if self.line(cpu).current != Some(vcpu) {
            return CpuSet::NONE;
        }
        self.pass(at, cpu, PassCause::AtOnce);
        let line = &mut self.lines[cpu.index()];
        if line.current.is_none() {
            line.floor = S::floor_of_idle(line.floor, self.clocks[vcpu].actual);
        }
        CpuSet::NONE
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let line = self.line(cpu);
        let current = line.current.filter(|&vcpu| at.is_eligible(vcpu, cpu));
        let Some(vcpu) = current.or_else(|| self.first(at, cpu)) else { return Pick::Idle };
        let limit = match current {
            None => Some(self.rules.allowance),
            Some(_) if line.until == Time::NEVER => None,
            Some(_) => Some(line.until.since(at.now())),
        };
        Pick::Run { vcpu, limit, entitlement: Entitlement::Due }
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        let pause = self.pauses.first(cpu.index()).map_or(Time::NEVER, |(end, _)| end);
        Some(self.line(cpu).warp_ends.min(pause)).filter(|&alarm| alarm != Time::NEVER)
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let mut asks = false;
        let line = &mut self.lines[cpu.index()];
        if line.warp_ends <= at.now() {
            line.warp_ends = Time::NEVER;
            let current = line.current.expect("a warp timer belongs to a chosen vCPU");
            let unwarp = self.clocks[current].unwarp(at.now());
            // A vCPU that may warp again keeps the rest of its timeslice [Xen].
            asks |= unwarp == WarpEnd::ForGood;
            self.pause(current, unwarp);
        }
        while let Some((end, vcpu)) = self.pauses.first(cpu.index()) {
            if end > at.now() {
                break;
            }
            self.pauses.remove(vcpu);
            self.clocks[vcpu].rewarp();
            S::may_warp_again(self, cpu, vcpu);
            asks = true;
        }
        if asks {
            self.pass(at, cpu, PassCause::AtOnce);
        }
        CpuSet::one(cpu)
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        let clock = &self.clocks[vcpu];
        let (actual, effective) = (clock.actual, clock.read(&self.rules, clock.actual));
        alloc::vec![
            ("cpu", clock.cpu.to_string()),
            ("actual", actual.to_string()),
            ("effective", effective.to_string()),
            ("not charged yet", clock.used.to_string()),
        ]
    }
}

impl<S: Source> Bvt<S> {
    fn new(values: &Values, topology: &Topology) -> Bvt<S> {
        let line = BvtCpu {
            current: None,
            since: Time::START,
            until: Time::NEVER,
            floor: VirtualTime::START,
            pending: Time::NEVER,
            floor_before: VirtualTime::START,
            head: 0,
            tail: 0,
            warp_ends: Time::NEVER,
        };
        Bvt {
            rules: BvtRules::new(values),
            source: PhantomData,
            lines: alloc::vec![line; topology.cpus()],
            population: Population::new(topology.cpus()),
            clocks: Roster::default(),
            order: Queues::new(2 * topology.cpus()),
            actuals: Queues::new(topology.cpus()),
            pauses: Queues::new(topology.cpus()),
        }
    }

    #[inline]
    fn line(&self, cpu: CpuId) -> &BvtCpu {
        &self.lines[cpu.index()]
    }

    /// Puts a runnable vCPU into the queue, before vCPUs with the same effective time [Xen].
    fn arrive(&mut self, at: &Moment, vcpu: VcpuId) {
        let (now, cpu) = (at.now(), self.clocks[vcpu].cpu);
        let line = &mut self.lines[cpu.index()];
        line.head -= 1;
        let head = line.head;
        self.enqueue(vcpu, head);
        let line = self.line(cpu);
        let current = line.current.filter(|&current| at.is_eligible(current, cpu));
        let Some(current) = current else { return self.pass(at, cpu, PassCause::Asked) };
        let lead = self.clocks[vcpu].effective - self.reading(now, current);
        let end = S::cut(self, now, current, lead);
        if end <= now {
            self.pass(at, cpu, PassCause::Asked);
        } else {
            let line = &mut self.lines[cpu.index()];
            line.until = line.until.min(end);
        }
    }

    /// Runs a pass: charges the chosen vCPU of a CPU and chooses again.
    fn pass(&mut self, at: &Moment, cpu: CpuId, cause: PassCause) {
        let (now, line) = (at.now(), self.line(cpu));
        // True if a pass at this instant has already charged the chosen vCPU. The vCPU has not run
        // since then.
        let is_again = line.pending == now;
        let current = line.current;
        if let Some(current) = current {
            if !is_again {
                self.settle(now, current);
            }
            let stays = is_again && cause == PassCause::Asked;
            if !stays {
                self.requeue(cpu, current);
            }
        }
        if cause == PassCause::Asked && !is_again {
            let line = &mut self.lines[cpu.index()];
            (line.pending, line.floor_before) = (now, line.floor);
        }
        let holder = current.filter(|_| cause != PassCause::Yield);
        let next = self.choose(at, cpu, holder);
        self.grant(at, cpu, next);
    }

    /// Charges CPU time that a vCPU used outside of a timeslice, since no pass follows that would
    /// charge it.
    fn charge_at_once(&mut self, vcpu: VcpuId) {
        let clock = &mut self.clocks[vcpu];
        let part = self.rules.part(clock.used);
        clock.actual = self.rules.charged(clock.actual, part, clock.pace);
        clock.used -= part;
        let cpu = clock.cpu;
        self.requeue(cpu, vcpu);
    }

    /// Charges a vCPU for the CPU time that it has used.
    #[inline(always)]
    fn settle(&mut self, now: Time, vcpu: VcpuId) {
        let clock = &mut self.clocks[vcpu];
        clock.actual = self.rules.charged(clock.actual, clock.used, clock.pace);
        if let Some(unwarp) = S::use_warp(clock, now) {
            self.pause(vcpu, unwarp);
        }
    }

    fn pause(&mut self, vcpu: VcpuId, unwarp: WarpEnd) {
        if let WarpEnd::Until(end) = unwarp {
            self.pauses.insert(self.clocks[vcpu].cpu.index(), end, vcpu);
        }
    }

    /// Returns the vCPU to choose for a CPU. `holder` is the vCPU that may keep the CPU, if any.
    fn choose(&self, at: &Moment, cpu: CpuId, holder: Option<VcpuId>) -> Option<VcpuId> {
        let is_eligible = |vcpu| at.is_eligible(vcpu, cpu);
        let ((earliest, _), first) = self.first_that(cpu, is_eligible)?;
        Some(S::choose(self, at, (earliest, first), holder))
    }

    /// Stores the decision of a pass.
    fn grant(&mut self, at: &Moment, cpu: CpuId, next: Option<VcpuId>) {
        let now = at.now();
        if let Some(floor) = self.earliest(cpu) {
            self.lines[cpu.index()].floor = floor;
            if self.rules.is_full(floor) {
                self.rebase(at, cpu);
            }
        }
        let (mut until, mut warp_ends) = (Time::NEVER, Time::NEVER);
        if let Some(next) = next {
            let clock = &self.clocks[next];
            let warp = clock.warp_left().map_or(Time::NEVER, |left| now.after(left));
            (until, warp_ends) = S::ends(self.turn_end(at, next, clock), warp);
        }
        let line = &mut self.lines[cpu.index()];
        let goes_on = self.rules.charge_again && line.current == next;
        if !goes_on {
            if let Some(before) = line.current {
                self.clocks[before].used = Span::ZERO;
            }
            line.since = now;
        }
        (line.current, line.until, line.warp_ends) = (next, until, warp_ends);
    }

    /// Returns the end of the timeslice of `vcpu` if no event comes before it.
    fn turn_end(&self, at: &Moment, vcpu: VcpuId, clock: &VcpuClock) -> Time {
        let (now, cpu) = (at.now(), clock.cpu);
        match self.first_but(cpu, vcpu) {
            // A barred vCPU may be far behind and may become eligible at any time.
            Some((_, rival)) if !at.is_eligible(rival, cpu) => now.after(self.rules.allowance),
            Some(((rival, _), _)) => {
                self.rules.turn_end::<S>(now, clock.pace, rival - clock.effective)
            }
            None => S::alone(now, &self.rules),
        }
    }

    /// Returns the effective virtual time that the chosen vCPU would have if it were charged now.
    fn reading(&self, now: Time, current: VcpuId) -> VirtualTime {
        let clock = &self.clocks[current];
        if self.line(clock.cpu).pending == now {
            return clock.effective;
        }
        clock.read(&self.rules, self.rules.charged(clock.actual, clock.used, clock.pace))
    }

    /// Moves all clocks of a CPU back, as Xen does before they overflow. The clocks of blocked
    /// vCPUs can wrap [Xen].
    fn rebase(&mut self, at: &Moment, cpu: CpuId) {
        let floor = self.line(cpu).floor;
        self.lines[cpu.index()].floor = self.rules.rebased(floor);
        for vcpu in at.members() {
            // A vCPU that is just joining has no clock yet.
            if self.clocks.get(vcpu).is_none_or(|clock| clock.cpu != cpu) {
                continue;
            }
            self.clocks[vcpu].actual = self.rules.rebased(self.clocks[vcpu].actual);
            self.requeue(cpu, vcpu);
        }
    }
}
