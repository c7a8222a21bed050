//! Borrowed virtual time: every vCPU has a clock, and the earliest clock runs.
//! Source: Duda and Cheriton, SOSP 1999, cited as [BVT], as summed up by Cherkasova, Gupta and
//! Vahdat, 2007, cited as [Three]; and Xen 2.0 to 3.0.2, cited as [Xen]. Virtual time is in
//! nanoseconds at weight one by the papers' rules, and in Xen's virtual units by Xen's.
//!
//! Actual virtual time advances while a vCPU runs, slower the heavier its weight, so equal clocks
//! mean use in proportion to weight. Who runs may get ahead of the next in line by the context
//! switch allowance, in real time. A vCPU in a hurry may warp: its effective time is then earlier
//! than its actual time. It is served now, waits later, and keeps its share over a long stretch.
//!
//! Each CPU has a line of its own, and a vCPU stays on the CPU that had the fewest when it joined:
//! Xen's scheduler did so, and clocks need never be compared across CPUs.
//!
//! A *pass* ends a turn and chooses the next, as in Xen. Time used is gathered while a turn lasts
//! and charged at the pass. What a pass decides is kept, and is the answer until the next one.
//!
//! In what the papers and Xen differ stands in `paper` and in `xen`; everything else is common.
//!
//! Holds after every call:
//! - who is awake stands in line on its CPU, also while it runs;
//! - who is chosen on a CPU stands in line there;
//! - by the papers' rules no awake clock is behind `floor`, so sleeping saves nothing up, and none
//!   is ahead of the earliest by more than the allowance, but for a warp.
//!
//! Departs from [Xen]: warps are each vCPU's, not a domain's. Requests for a pass at one instant
//! are answered one by one, with the outcome that a single pass after all wakes would have had.

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
    Account, AdmitError, Entitlement, Moment, Pick, Policy, Roster, Spec, Topology, TurnEnd, Values,
};
use clock::{ADVANCE, Clock, Parameters, Unwarp, WARP, WARPBACK, WARPL, WARPU, WARPVALUE, WEIGHT};
use page::PAGE;
use paper::Paper;
use rules::{
    ALLOWANCE, CHARGE_AGAIN, NARROW, ROUND_UP, RULES, Rules, UNIT, UNIT_SLIP, WARP_UNDERFLOW,
};
use xen::Xen;

/// What people meet.
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

/// Where the rules come from: in what the papers and Xen differ.
trait Source: Sized + Send + 'static {
    /// What a share says.
    fn parameters(share: &Values, rules: &Rules) -> Parameters;

    /// Behind what nobody may wake.
    fn floor(bvt: &Bvt<Self>, now: Time, cpu: CpuId) -> VirtualTime;

    /// The same once a CPU idles whose last occupant's actual time is `last`.
    fn floor_of_idle(floor: VirtualTime, last: VirtualTime) -> VirtualTime;

    /// When the turn of who was chosen is over now that somebody is in line whose clock is `lead`
    /// ahead of its own.
    fn cut(bvt: &Bvt<Self>, now: Time, current: VcpuId, lead: VirtualSpan) -> Time;

    /// Who has a CPU from now on: the first in line, whose effective time is the earliest, or who
    /// has it already and does not give it away.
    fn choose(
        bvt: &Bvt<Self>,
        at: &Moment,
        earliest: (VirtualTime, VcpuId),
        holder: Option<VcpuId>,
    ) -> VcpuId;

    /// When the turn is over of who is alone in line.
    fn alone(now: Time, rules: &Rules) -> Time;

    /// When a turn ends and when the alarm for a warp rings, where these would end by themselves.
    fn ends(turn: Time, warp: Time) -> (Time, Time);

    /// What a vCPU used counts for the limit of its warp. Says if that was the end of it.
    fn use_warp(clock: &mut Clock, now: Time) -> Option<Unwarp>;

    /// The pause of somebody awake, or asleep, is over.
    fn may_warp_again(bvt: &mut Bvt<Self>, cpu: CpuId, vcpu: VcpuId);

    /// A lead, in charging units of a clock at this pace.
    fn charging_units(lead: VirtualSpan, pace: Pace, unit: Span) -> u64;
}

struct Bvt<S> {
    rules: Rules,
    source: PhantomData<S>,
    lines: Vec<Line>,
    population: Population,
    clocks: Roster<Clock>,
    /// Two queues a CPU, `plain` and `shifted`, by effective time and then by place in line.
    order: Queues<(VirtualTime, i64)>,
    /// One queue a CPU: who stands in `shifted`, by actual time.
    actuals: Queues<VirtualTime>,
    /// One queue a CPU: who may warp again, and when.
    pauses: Queues<Time>,
}

/// What one CPU is doing.
#[derive(Clone, Debug)]
struct Line {
    /// Who was chosen at the last pass.
    current: Option<VcpuId>,
    /// Since when it has been, as charging goes by.
    since: Time,
    until: Time,
    /// The earliest actual time of those awake: nobody wakes with less.
    floor: VirtualTime,
    /// When a pass was last due for a reason that a wake of the same instant comes before, and what
    /// the floor was then.
    pending: Time,
    floor_before: VirtualTime,
    /// The last place in line that was given out at the head, and at the tail.
    head: i64,
    tail: i64,
    /// When the warp of who was chosen is over, by Xen's rules.
    warp_ends: Time,
}

/// Why there is a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A timer or a wake asks for one: all wakes of the instant come before it.
    Asked,
    /// Who was chosen gives way, or its clock was set anew.
    AtOnce,
    /// Who was chosen gives the rest of its turn away.
    Yield,
}

impl<S: Source> Policy for Bvt<S> {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let cpu = self.population.join(at.allowed(vcpu));
        let mut clock = Clock::new(share, S::parameters(share, &self.rules), cpu);
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
        let mut clock = Clock::new(share, S::parameters(share, &self.rules), cpu);
        let before = &self.clocks[vcpu];
        clock.actual = if cpu == home { before.actual } else { self.line(cpu).floor };
        clock.used = if is_current { Span::ZERO } else { before.used };
        self.clocks[vcpu] = clock;
        if is_current && cpu != home {
            self.lines[home.index()].current = None;
            self.pass(at, home, Cause::AtOnce);
        }
        if is_current && cpu == home {
            self.enqueue_last(home, vcpu);
            self.pass(at, home, Cause::AtOnce);
        } else if is_queued {
            self.arrive(at, vcpu);
        }
        Ok([home, cpu].into_iter().collect())
    }

    fn leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.pauses.remove(vcpu);
        let clock = self.clocks.remove(vcpu).expect("a vCPU that has joined");
        self.population.leave(clock.cpu);
        let line = &mut self.lines[clock.cpu.index()];
        if line.current == Some(vcpu) {
            line.current = None;
            self.pass(at, clock.cpu, Cause::AtOnce);
        }
        CpuSet::NONE
    }

    fn wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpu = self.clocks[vcpu].cpu;
        let floor = S::floor(self, at.now(), cpu);
        self.clocks[vcpu].wake(at.now(), floor);
        self.arrive(at, vcpu);
        CpuSet::one(cpu)
    }

    /// Who was picked although another had been chosen, because the machine refused that one, is
    /// the one chosen now.
    fn start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
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

    fn turn_over(&mut self, at: &Moment, vcpu: VcpuId, why: TurnEnd) -> CpuSet {
        let cpu = self.clocks[vcpu].cpu;
        if self.line(cpu).current == Some(vcpu) {
            let cause = if why == TurnEnd::Yield { Cause::Yield } else { Cause::Asked };
            self.pass(at, cpu, cause);
        }
        CpuSet::NONE
    }

    fn block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.clocks[vcpu].block(at.now());
        let cpu = self.clocks[vcpu].cpu;
        if self.line(cpu).current != Some(vcpu) {
            return CpuSet::NONE;
        }
        self.pass(at, cpu, Cause::AtOnce);
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

    fn alarm(&self, cpu: CpuId) -> Option<Time> {
        let pause = self.pauses.first(cpu.index()).map_or(Time::NEVER, |(end, _)| end);
        Some(self.line(cpu).warp_ends.min(pause)).filter(|&alarm| alarm != Time::NEVER)
    }

    fn ring(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let mut asks = false;
        let line = &mut self.lines[cpu.index()];
        if line.warp_ends <= at.now() {
            line.warp_ends = Time::NEVER;
            let current = line.current.expect("the warp of who was chosen");
            let unwarp = self.clocks[current].unwarp(at.now());
            // Where it may warp again it has the rest of its turn [Xen].
            asks |= unwarp == Unwarp::ForGood;
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
            self.pass(at, cpu, Cause::AtOnce);
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
        let line = Line {
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
            rules: Rules::new(values),
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
    fn line(&self, cpu: CpuId) -> &Line {
        &self.lines[cpu.index()]
    }

    /// Somebody awake comes into line: before those whose clocks are read the same [Xen].
    fn arrive(&mut self, at: &Moment, vcpu: VcpuId) {
        let (now, cpu) = (at.now(), self.clocks[vcpu].cpu);
        let line = &mut self.lines[cpu.index()];
        line.head -= 1;
        let head = line.head;
        self.enqueue(vcpu, head);
        let line = self.line(cpu);
        let current = line.current.filter(|&current| at.is_eligible(current, cpu));
        let Some(current) = current else { return self.pass(at, cpu, Cause::Asked) };
        let lead = self.clocks[vcpu].effective - self.reading(now, current);
        let end = S::cut(self, now, current, lead);
        if end <= now {
            self.pass(at, cpu, Cause::Asked);
        } else {
            let line = &mut self.lines[cpu.index()];
            line.until = line.until.min(end);
        }
    }

    /// Charges who was chosen, and chooses.
    fn pass(&mut self, at: &Moment, cpu: CpuId, cause: Cause) {
        let (now, line) = (at.now(), self.line(cpu));
        // A pass of this very instant has charged it already, and it has not run since.
        let is_again = line.pending == now;
        let current = line.current;
        if let Some(current) = current {
            if !is_again {
                self.settle(now, current);
            }
            let stays = is_again && cause == Cause::Asked;
            if !stays {
                self.requeue(cpu, current);
            }
        }
        if cause == Cause::Asked && !is_again {
            let line = &mut self.lines[cpu.index()];
            (line.pending, line.floor_before) = (now, line.floor);
        }
        let holder = current.filter(|_| cause != Cause::Yield);
        let next = self.choose(at, cpu, holder);
        self.grant(at, cpu, next);
    }

    /// Charges what was used outside of a turn: there is no pass to wait for.
    fn charge_at_once(&mut self, vcpu: VcpuId) {
        let clock = &mut self.clocks[vcpu];
        let part = self.rules.part(clock.used);
        clock.actual = self.rules.charged(clock.actual, part, clock.pace);
        clock.used -= part;
        let cpu = clock.cpu;
        self.requeue(cpu, vcpu);
    }

    /// Charges a vCPU what it used.
    #[inline(always)]
    fn settle(&mut self, now: Time, vcpu: VcpuId) {
        let clock = &mut self.clocks[vcpu];
        clock.actual = self.rules.charged(clock.actual, clock.used, clock.pace);
        if let Some(unwarp) = S::use_warp(clock, now) {
            self.pause(vcpu, unwarp);
        }
    }

    fn pause(&mut self, vcpu: VcpuId, unwarp: Unwarp) {
        if let Unwarp::Until(end) = unwarp {
            self.pauses.insert(self.clocks[vcpu].cpu.index(), end, vcpu);
        }
    }

    /// Who has a CPU from now on; who has it already may keep it, if that is `holder`.
    fn choose(&self, at: &Moment, cpu: CpuId, holder: Option<VcpuId>) -> Option<VcpuId> {
        let is_eligible = |vcpu| at.is_eligible(vcpu, cpu);
        let ((earliest, _), first) = self.first_that(cpu, is_eligible)?;
        Some(S::choose(self, at, (earliest, first), holder))
    }

    /// Keeps what a pass decided.
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

    /// When the turn of `vcpu` is over if nothing happens before.
    fn turn_end(&self, at: &Moment, vcpu: VcpuId, clock: &Clock) -> Time {
        let (now, cpu) = (at.now(), clock.cpu);
        match self.first_but(cpu, vcpu) {
            // One that the machine refused may be far behind, and may run again any time.
            Some((_, rival)) if !at.is_eligible(rival, cpu) => now.after(self.rules.allowance),
            Some(((rival, _), _)) => {
                self.rules.turn_end::<S>(now, clock.pace, rival - clock.effective)
            }
            None => S::alone(now, &self.rules),
        }
    }

    /// The effective time of who was chosen, as it would be if it were charged now.
    fn reading(&self, now: Time, current: VcpuId) -> VirtualTime {
        let clock = &self.clocks[current];
        if self.line(clock.cpu).pending == now {
            return clock.effective;
        }
        clock.read(&self.rules, self.rules.charged(clock.actual, clock.used, clock.pace))
    }

    /// Moves all clocks of a CPU back, sleepers' too, which wrap [Xen].
    fn rebase(&mut self, at: &Moment, cpu: CpuId) {
        let floor = self.line(cpu).floor;
        self.lines[cpu.index()].floor = self.rules.rebased(floor);
        for vcpu in at.members() {
            // One that joins at this moment has no clock yet.
            if self.clocks.get(vcpu).is_none_or(|clock| clock.cpu != cpu) {
                continue;
            }
            self.clocks[vcpu].actual = self.rules.rebased(self.clocks[vcpu].actual);
            self.requeue(cpu, vcpu);
        }
    }
}
