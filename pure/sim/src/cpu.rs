//! The CPUs: who runs, what switching costs, and timers with the resolution and lateness of real
//! ones. The only place where virtual hardware costs time.
//!
//! Time on a CPU is used time from the moment of the order, as a scheduler measures it; the first
//! `switch` of it (and `migrate` more, coming from another CPU) does no work for the guest.

use slackline_host::policy::{Level, Topology};
use slackline_host::{Hardware, Order, Outcome, Used};
use slackline_scenario::{Draw, HostSpec, Migrate, Purpose, Scenario, Stream};
use slackline_trace::{OverheadKind, Record};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::account::Account;
use crate::cold::Cold;
use crate::guest::Guests;
use crate::overhead::{Own, Unpaid};
use crate::queue::{Event, Queue};

/// What can happen on a CPU by itself. At one instant, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The occupant has computed what it wanted.
    Work,
    /// The policy's alarm.
    Alarm,
    /// The occupant's limit.
    Limit,
}

/// How long after a refusal a vCPU may be tried again.
const RETRY: Span = Span::from_ms(1);

#[derive(Clone, Copy, Debug)]
struct Armed {
    due: Time,
    rings: Time,
}

const OFF: Armed = Armed { due: Time::NEVER, rings: Time::NEVER };

struct Cpu {
    occupant: Option<VcpuId>,
    /// Who was here last: returning to the same costs no switch.
    last: Option<VcpuId>,
    /// Nobody has been here since.
    was_idle: bool,
    /// Since when the occupant has been here.
    began: Time,
    /// Up to when the occupant's time has been measured.
    measured: Time,
    /// Up to when its work has been counted; later than now while it pays for overhead.
    worked: Time,
    unpaid: Unpaid,
    work_ends: Time,
    limit: Armed,
    alarm: Armed,
    lateness: Stream,
    refusals: Stream,
}

/// How exact the timers of all CPUs are.
struct Timers {
    resolution: Span,
    lateness: Draw,
    /// Whether they ring exactly when they are due.
    are_exact: bool,
    slop: Span,
}

/// All CPUs of the host.
pub(crate) struct Cpus {
    cpus: Vec<Cpu>,
    firsts: Tournament,
    moves: Moves,
    timers: Timers,
    refuse_ppm: u32,
    account: Account,
}

/// What coming to a CPU costs.
struct Moves {
    switch: Span,
    migrate: Migrate,
    /// Whether that depends on where a vCPU comes from.
    migrate_differs: bool,
    topology: Topology,
    cold: Cold,
    /// By slot: where each vCPU last ran.
    homes: Vec<Option<CpuId>>,
    /// By slot: what the vCPU had not paid of its own overhead when it stopped there.
    owing: Vec<Own>,
}

impl Cpus {
    pub(crate) fn new(scenario: &Scenario) -> Cpus {
        let host = &scenario.host;
        let stream = |cpu, purpose| Stream::of_cpu(scenario.seed, CpuId::new(cpu), purpose);
        let cpu = |cpu| Cpu {
            occupant: None,
            last: None,
            was_idle: true,
            began: Time::START,
            measured: Time::START,
            worked: Time::START,
            unpaid: Unpaid::NONE,
            work_ends: Time::NEVER,
            limit: OFF,
            alarm: OFF,
            lateness: stream(cpu, Purpose::Timer),
            refusals: stream(cpu, Purpose::Refusal),
        };
        let vcpus = scenario.domains.iter().map(|domain| domain.vcpus.len()).sum();
        Cpus {
            cpus: (0..host.cpus).map(cpu).collect(),
            firsts: Tournament::new(host.cpus),
            moves: Moves {
                switch: host.switch,
                migrate: host.migrate,
                migrate_differs: host.migrate != everywhere(host.migrate.host),
                topology: host.topology.clone(),
                cold: Cold::new(scenario),
                homes: vec![None; vcpus],
                owing: vec![Own::default(); vcpus],
            },
            timers: Timers::new(host),
            refuse_ppm: host.refuse,
            account: Account::new(scenario),
        }
    }

    /// The CPU on which something happens first.
    #[inline(always)]
    pub(crate) fn first(&self) -> CpuId {
        self.firsts.first()
    }

    /// When something happens on a CPU.
    #[inline(always)]
    pub(crate) fn next_time(&self, cpu: CpuId) -> Time {
        self.cpus[cpu.index()].next_time()
    }

    /// Until when nothing happens on any CPU but that the occupant of this one has done its work.
    #[inline(always)]
    pub(crate) fn others(&self, cpu: CpuId) -> Time {
        let this = &self.cpus[cpu.index()];
        let timers = this.alarm.rings.min(this.limit.rings);
        if self.cpus.len() == 1 { timers } else { timers.min(self.firsts.first_but(cpu)) }
    }

    /// What that is.
    #[inline(always)]
    pub(crate) fn next_timer(&self, cpu: CpuId) -> Timer {
        self.cpus[cpu.index()].next_timer()
    }

    /// Who runs there; there must be somebody.
    #[inline]
    pub(crate) fn occupant(&self, cpu: CpuId) -> VcpuId {
        self.cpus[cpu.index()].occupant.expect("work ends only where somebody works")
    }

    /// A timer has rung; returns when it was due. The other one rings with it if it is due soon.
    /// Only what was armed before does: what is armed for so short a time afterwards waits, or a
    /// turn shorter than the slop would end at the instant at which it begins, again and again.
    #[inline]
    pub(crate) fn take_timer(&mut self, cpu: CpuId, timer: Timer, now: Time) -> Time {
        let this = &mut self.cpus[cpu.index()];
        let (rung, other) = match timer {
            Timer::Limit => (&mut this.limit, &mut this.alarm),
            _ => (&mut this.alarm, &mut this.limit),
        };
        let due = std::mem::replace(rung, OFF).due;
        if !self.timers.slop.is_zero() && other.due <= now.after(self.timers.slop) {
            other.rings = now;
        }
        self.refresh(cpu);
        due
    }

    /// The occupant goes straight on with more work.
    #[inline]
    pub(crate) fn go_on(&mut self, cpu: CpuId, now: Time, guests: &Guests<'_>) {
        let this = &mut self.cpus[cpu.index()];
        let vcpu = this.occupant.expect("somebody works");
        this.worked = now;
        this.work_ends = now.after(self.account.time((cpu, vcpu), guests.left(vcpu)));
        self.refresh(cpu);
    }

    /// Whether the occupant of a CPU has nothing left to do and is not still being switched to.
    #[inline]
    pub(crate) fn is_free(&self, cpu: CpuId, vcpu: VcpuId, now: Time) -> bool {
        let this = &self.cpus[cpu.index()];
        this.occupant == Some(vcpu) && this.work_ends <= now
    }

    /// Counts what an occupant has done up to now, as what is left of its work is about to change.
    pub(crate) fn count(&mut self, cpu: CpuId, now: Time, guests: &mut Guests<'_>) {
        let this = &mut self.cpus[cpu.index()];
        if let Some(vcpu) = this.occupant {
            guests.compute(vcpu, self.account.work((cpu, vcpu), (this.worked, now)));
            this.worked = this.worked.max(now);
        }
    }

    /// Looks anew when the work of an occupant ends.
    pub(crate) fn recount(&mut self, cpu: CpuId, guests: &Guests<'_>) {
        let this = &mut self.cpus[cpu.index()];
        if let Some(vcpu) = this.occupant {
            let takes = self.account.time((cpu, vcpu), guests.left(vcpu));
            this.work_ends = this.worked.after(takes);
            self.refresh(cpu);
        }
    }

    /// The occupant of a CPU has done what it wanted to do: where work is not CPU time, what it has
    /// done is counted.
    #[inline]
    pub(crate) fn finish(&mut self, cpu: CpuId, now: Time, guests: &mut Guests<'_>) {
        if self.account.counts_pieces() {
            self.count(cpu, now, guests);
        }
    }

    /// Whether anybody can be slowed by others.
    #[inline]
    pub(crate) fn has_speeds(&self) -> bool {
        self.account.speeds.is_some()
    }

    /// Records of time that was not work at full speed, which the trace has not been told yet.
    #[inline]
    pub(crate) fn untold(&mut self) -> &mut Vec<Record> {
        &mut self.account.records
    }

    /// Counts all that was done and paid up to now: the run is over.
    pub(crate) fn end(&mut self, now: Time, guests: &mut Guests<'_>) {
        for cpu in (0..self.cpus.len()).map(CpuId::new) {
            self.count(cpu, now, guests);
            let this = &mut self.cpus[cpu.index()];
            this.unpaid.pay(now, (cpu, this.occupant), &mut self.account.records);
        }
    }

    /// A CPU has an occupant now or has none any more: whoever that slows or hastens goes on at
    /// another speed.
    #[inline(never)] // Most hosts have nothing of it.
    fn busy_changed(&mut self, cpu: CpuId, now: Time, guests: &mut Guests<'_>) {
        let is_busy = self.cpus[cpu.index()].occupant.is_some();
        let Some(speeds) = &mut self.account.speeds else { return };
        for other in speeds.busy_changed(cpu, is_busy).iter() {
            self.count(other, now, guests);
            if let Some(speeds) = &mut self.account.speeds {
                speeds.set(other);
            }
            self.recount(other, guests);
        }
    }

    /// Takes time from a CPU: from the running vCPU, or from the one that runs next. An interrupt
    /// of an idle CPU is free, because the cost of dispatching the vCPU that it wakes contains it.
    pub(crate) fn steal(
        &mut self,
        cpu: CpuId,
        now: Time,
        (kind, span): (OverheadKind, Span),
        guests: &mut Guests<'_>,
    ) {
        if kind == OverheadKind::Interrupt && self.cpus[cpu.index()].occupant.is_none() {
            return;
        }
        self.count(cpu, now, guests);
        let this = &mut self.cpus[cpu.index()];
        this.unpaid.pay(now, (cpu, this.occupant), &mut self.account.records);
        this.unpaid.add(now, kind, span);
        this.worked = this.worked.after(span);
        self.recount(cpu, guests);
    }

    /// Where a vCPU ran last.
    pub(crate) fn home(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.moves.homes[vcpu.slot()]
    }

    #[inline]
    fn refresh(&mut self, cpu: CpuId) {
        if self.cpus.len() == 1 {
            return; // It has nobody to play against.
        }
        let this = &self.cpus[cpu.index()];
        let first = (this.next_time(), this.next_timer());
        self.firsts.set(cpu, first);
    }
}

impl Timers {
    fn new(host: &HostSpec) -> Timers {
        let (resolution, lateness) = (host.timer_resolution, host.timer_lateness);
        let are_exact = resolution.is_zero() && lateness == Draw::Fixed(Span::ZERO);
        Timers { resolution, lateness, are_exact, slop: host.timer_slop }
    }

    /// A timer that is armed again for the same time keeps its lateness; due `NEVER` is off.
    #[inline]
    fn arm(&self, timer: &mut Armed, due: Time, now: Time, lateness: &mut Stream) {
        if timer.due == due {
            return;
        }
        let rings = if self.are_exact { due } else { self.inexact(due, lateness) };
        // What was due while an earlier alarm was late has passed already, and rings now.
        *timer = Armed { due, rings: rings.max(now) };
    }

    #[inline(never)]
    fn inexact(&self, due: Time, lateness: &mut Stream) -> Time {
        if due == Time::NEVER {
            return due;
        }
        let ticks = if self.resolution.is_zero() {
            due
        } else {
            let past = (due - Time::START) % self.resolution;
            if past.is_zero() { due } else { due.after(self.resolution - past) }
        };
        ticks.after(lateness.draw(&self.lateness))
    }
}

impl Cpu {
    /// Somebody whose work takes so long comes to this CPU.
    #[inline(always)]
    fn start(
        &mut self,
        (cpu, vcpu): (CpuId, VcpuId),
        (now, takes): (Time, Span),
        (moves, account): (&mut Moves, &mut Account),
    ) {
        let home = moves.homes[vcpu.slot()].replace(cpu);
        let before = self.last.filter(|_| !self.was_idle);
        self.unpaid.pay(now, (cpu, None), &mut account.records);
        if self.last != Some(vcpu) {
            self.unpaid.add(now, OverheadKind::Switch, moves.switch);
        }
        let mut own = std::mem::take(&mut moves.owing[vcpu.slot()]);
        if let Some(home) = home.filter(|&home| home != cpu) {
            own = Own { migration: moves.migrate(home, cpu), refill: Span::ZERO };
        }
        if !moves.cold.is_free() {
            self.unpaid.add(now, OverheadKind::Switch, moves.cold.dispatch(vcpu, before));
            own.refill = moves.cold.refill((vcpu, own.refill), (cpu, home));
        }
        self.unpaid.add(now, OverheadKind::Migration, own.migration);
        self.unpaid.add(now, OverheadKind::Refill, own.refill);
        self.was_idle = false;
        self.occupant = Some(vcpu);
        self.last = Some(vcpu);
        self.began = now;
        self.measured = now;
        self.worked = self.unpaid.end(now);
        self.work_ends = self.worked.after(takes);
    }

    /// The occupant, if there is one, is taken off.
    #[inline]
    fn stop(
        &mut self,
        cpu: CpuId,
        now: Time,
        guests: &mut Guests<'_>,
        (moves, account): (&mut Moves, &mut Account),
    ) {
        if let Some(vcpu) = self.occupant.take() {
            guests.compute(vcpu, account.work((cpu, vcpu), (self.worked, now)));
            self.unpaid.pay(now, (cpu, Some(vcpu)), &mut account.records);
            if self.worked > now {
                moves.owing[vcpu.slot()] = self.unpaid.take_own();
            }
            self.work_ends = Time::NEVER;
            self.limit = OFF;
            if !moves.cold.is_free() {
                moves.cold.stop(vcpu, cpu, now - self.began);
            }
        }
    }

    #[inline(always)]
    fn next_time(&self) -> Time {
        self.work_ends.min(self.alarm.rings).min(self.limit.rings)
    }

    #[inline(always)]
    fn next_timer(&self) -> Timer {
        let next = self.next_time();
        if next == self.work_ends {
            Timer::Work
        } else if next == self.alarm.rings {
            Timer::Alarm
        } else {
            Timer::Limit
        }
    }
}

/// What the host has its orders carried out by.
pub(crate) struct VirtualHardware<'a> {
    now: Time,
    pub(crate) cpus: Cpus,
    pub(crate) guests: Guests<'a>,
    pub(crate) queue: Queue,
}

impl<'a> VirtualHardware<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> VirtualHardware<'a> {
        let (cpus, guests) = (Cpus::new(scenario), Guests::new(scenario));
        VirtualHardware { now: Time::START, cpus, guests, queue: Queue::new() }
    }

    /// Time passes.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time) {
        self.now = now;
    }
}

impl Hardware for VirtualHardware<'_> {
    #[inline(always)]
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<Used> {
        let this = &mut self.cpus.cpus[cpu.index()];
        let vcpu = this.occupant?;
        let from = std::mem::replace(&mut this.measured, now);
        let ran = now - from;
        (!ran.is_zero()).then_some(Used { vcpu, cpu, from, to: now, ran })
    }

    #[inline(always)]
    fn carry_out(&mut self, order: Order) -> Outcome {
        let (Order::Idle { cpu } | Order::Run { cpu, .. }) = order;
        let Cpus { cpus, moves, timers, refuse_ppm, account, .. } = &mut self.cpus;
        let this = &mut cpus[cpu.index()];
        let was_busy = this.occupant.is_some();
        let mut outcome = Outcome::Done;
        match order {
            Order::Idle { .. } => {
                this.stop(cpu, self.now, &mut self.guests, (moves, account));
                this.was_idle = true;
            }
            Order::Run { vcpu, until, .. } => {
                if this.occupant != Some(vcpu) {
                    this.stop(cpu, self.now, &mut self.guests, (moves, account));
                    if *refuse_ppm > 0 && this.refusals.chance(*refuse_ppm) {
                        self.queue.push(self.now + RETRY, Event::Allow, vcpu.slot());
                        outcome = Outcome::Refused;
                    } else {
                        let takes = account.time((cpu, vcpu), self.guests.left(vcpu));
                        this.start((cpu, vcpu), (self.now, takes), (moves, account));
                    }
                }
                if outcome == Outcome::Done {
                    let until = until.unwrap_or(Time::NEVER);
                    timers.arm(&mut this.limit, until, self.now, &mut this.lateness);
                }
            }
        }
        self.cpus.refresh(cpu);
        if self.cpus.has_speeds() && was_busy != self.cpus.cpus[cpu.index()].occupant.is_some() {
            self.cpus.busy_changed(cpu, self.now, &mut self.guests);
        }
        outcome
    }

    #[inline(always)]
    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        let this = &mut self.cpus.cpus[cpu.index()];
        let alarm = alarm.unwrap_or(Time::NEVER);
        if alarm != this.alarm.due {
            self.cpus.timers.arm(&mut this.alarm, alarm, self.now, &mut this.lateness);
            self.cpus.refresh(cpu);
        }
    }
}

/// The same cost from wherever.
fn everywhere(cost: Span) -> Migrate {
    Migrate { core: cost, cache: cost, node: cost, host: cost }
}

impl Moves {
    /// What it costs to come from one CPU to another, by the least that they have in common.
    #[inline]
    fn migrate(&self, from: CpuId, to: CpuId) -> Span {
        let Migrate { core, cache, node, host } = self.migrate;
        if !self.migrate_differs {
            return host;
        }
        let levels = [(Level::Core, core), (Level::Cache, cache), (Level::Node, node)];
        let shares = |level| self.topology.group_of(level, from).contains(to);
        levels.into_iter().find(|&(level, _)| shares(level)).map_or(host, |(_, cost)| cost)
    }
}

/// Which CPU is first, kept as a tree of matches: setting one CPU's time costs O(log CPUs), and
/// with one CPU nothing.
struct Tournament {
    /// The winners of all matches; the final is at 1, the CPUs themselves from `leaves` on.
    tree: Vec<((Time, Timer), CpuId)>,
    leaves: usize,
}

impl Tournament {
    fn new(cpus: usize) -> Tournament {
        let leaves = cpus.next_power_of_two();
        let cpu = |place: usize| CpuId::new((place % leaves).min(cpus - 1));
        let tree = (0..2 * leaves).map(|place| ((Time::NEVER, Timer::Limit), cpu(place))).collect();
        Tournament { tree, leaves }
    }

    #[inline]
    fn first(&self) -> CpuId {
        self.tree[1].1
    }

    /// When the first of the others is due: of those who have lost to this CPU or to whom it lost.
    fn first_but(&self, cpu: CpuId) -> Time {
        let up = |&place: &usize| Some(place / 2);
        let path = std::iter::successors(Some(self.leaves + cpu.index()), up);
        let rivals = path.take_while(|&place| place > 1).map(|place| self.tree[place ^ 1].0.0);
        rivals.min().unwrap_or(Time::NEVER)
    }

    fn set(&mut self, cpu: CpuId, first: (Time, Timer)) {
        let mut place = self.leaves + cpu.index();
        self.tree[place] = (first, cpu);
        while place > 1 {
            place /= 2;
            self.tree[place] = self.tree[2 * place].min(self.tree[2 * place + 1]);
        }
    }
}
