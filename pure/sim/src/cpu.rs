//! The simulated CPUs: their running vCPUs ("occupants"), costs of dispatches and interrupts, and
//! timers with the resolution and lateness of real timers.
//!
//! CPU time counts as used from the moment of the order that starts a vCPU, as schedulers measure
//! it. The vCPU first pays for a context switch (`switch`), and does no work for its guest in that
//! time. A vCPU that ran last on another CPU also pays for its migration (`migrate`).

use slackline_host::policy::{Level, Topology};
use slackline_host::{CpuUse, Hardware, Order, Outcome};
use slackline_scenario::{Domain, Draw, FairSlack, MigrationCost, Purpose, Scenario, Stream};
use slackline_trace::{OverheadKind, Record};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::account::Account;
use crate::cold::CacheModel;
use crate::fair::FairClass;
use crate::guest::Guests;
use crate::overhead::{PendingOverhead, VcpuOverhead};
use crate::queue::{Event, Queue};
use crate::taken::TakenTime;
use crate::timer::{ArmedTimer, OFF, Timer, Timers};
use crate::tournament::Tournament;

/// Delay after a refused order until the host layer can run the vCPU again.
const RETRY: Span = Span::from_ms(1);

struct Cpu {
    occupant: Option<VcpuId>,
    /// The vCPU that ran last on this CPU. Dispatching this vCPU again costs no context switch.
    last: Option<VcpuId>,
    /// True if the CPU has been idle since its last vCPU stopped.
    was_idle: bool,
    /// Time at which the running vCPU was started.
    began: Time,
    /// Time up to which the running vCPU's CPU time has been measured.
    measured: Time,
    /// Time up to which the running vCPU's work has been counted. This time lies in the future
    /// while the vCPU pays overhead.
    worked: Time,
    unpaid: PendingOverhead,
    taken: TakenTime,
    /// Time at which the running vCPU completes its work. `NEVER` if no vCPU runs.
    work_ends: Time,
    limit: ArmedTimer,
    alarm: ArmedTimer,
    lateness: Stream,
    refusals: Stream,
    passes: Stream,
}

/// All CPUs of the host.
pub(crate) struct Cpus {
    cpus: Vec<Cpu>,
    firsts: Tournament,
    moves: DispatchCosts,
    timers: Timers,
    /// Distribution of the delay with which a vCPU stops after the limit of its timeslice, by vCPU
    /// slot. `None` for a vCPU with the lateness of the host's timers. Empty if all vCPUs have that
    /// lateness.
    stop_lateness: Vec<Option<Draw>>,
    refuse_ppm: u32,
    account: Account,
    /// Model of the kernel's ordinary scheduling, which divides slack. `None` if the policy divides
    /// slack.
    pub(crate) fair: Option<Box<FairClass>>,
}

/// Costs of dispatching a vCPU on a CPU.
struct DispatchCosts {
    switch: Span,
    migrate: MigrationCost,
    /// True if the cost of a migration depends on the distance between the two CPUs.
    migrate_differs: bool,
    topology: Topology,
    cold: CacheModel,
    /// CPU on which each vCPU ran last, by slot.
    homes: Vec<Option<CpuId>>,
    /// Overhead (such as cache refill) that each vCPU had not paid when it stopped, by vCPU slot.
    owing: Vec<VcpuOverhead>,
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
            unpaid: PendingOverhead::NONE,
            taken: TakenTime::default(),
            work_ends: Time::NEVER,
            limit: OFF,
            alarm: OFF,
            lateness: stream(cpu, Purpose::Timer),
            refusals: stream(cpu, Purpose::Refusal),
            passes: stream(cpu, Purpose::Pass),
        };
        let vcpus = scenario.domains.iter().map(|domain| domain.vcpus.len()).sum();
        Cpus {
            cpus: (0..host.cpus).map(cpu).collect(),
            firsts: Tournament::new(host.cpus),
            moves: DispatchCosts {
                switch: host.switch,
                migrate: host.migrate,
                migrate_differs: host.migrate != everywhere(host.migrate.host),
                topology: host.topology.clone(),
                cold: CacheModel::new(scenario),
                homes: vec![None; vcpus],
                owing: vec![VcpuOverhead::default(); vcpus],
            },
            timers: Timers::new(host),
            stop_lateness: stop_lateness(scenario),
            refuse_ppm: host.refuse,
            fair: host.fair.map(|FairSlack { slice, tick, phase }| {
                Box::new(FairClass::new((slice, tick, phase), host.cpus, vcpus))
            }),
            account: Account::new(scenario),
        }
    }

    /// Returns the CPU with the earliest event.
    #[inline(always)]
    pub(crate) fn first(&self) -> CpuId {
        self.firsts.first()
    }

    /// Returns the time of the next event on a CPU.
    #[inline(always)]
    pub(crate) fn next_time(&self, cpu: CpuId) -> Time {
        self.cpus[cpu.index()].next_time()
    }

    /// Returns the time of the earliest event of any CPU. Ignores the end of the work that runs on
    /// `cpu`.
    #[inline(always)]
    pub(crate) fn others(&self, cpu: CpuId) -> Time {
        let this = &self.cpus[cpu.index()];
        let timers = this.alarm.rings.min(this.limit.rings);
        if self.cpus.len() == 1 { timers } else { timers.min(self.firsts.first_but(cpu)) }
    }

    /// Returns the kind of the next event on a CPU.
    #[inline(always)]
    pub(crate) fn next_timer(&self, cpu: CpuId) -> Timer {
        self.cpus[cpu.index()].next_timer()
    }

    /// Returns the vCPU that runs on a CPU. The CPU must not be idle.
    #[inline]
    pub(crate) fn occupant(&self, cpu: CpuId) -> VcpuId {
        self.cpus[cpu.index()].occupant.expect("work ends only on a CPU with an occupant")
    }

    /// Handles a timer that expired, and returns the time at which it was due. If the CPU's other
    /// timer is due within the timer slop (the time by which timers can expire early), that timer
    /// expires as well. Only a timer that is armed now can expire early, not one that is armed
    /// afterwards: a timeslice shorter than the slop would end as soon as it begins, over and over.
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

    /// Lets the running vCPU continue after its guest was given more work.
    #[inline]
    pub(crate) fn go_on(&mut self, cpu: CpuId, now: Time, guests: &Guests<'_>) {
        let this = &mut self.cpus[cpu.index()];
        let vcpu = this.occupant.expect("the CPU has an occupant");
        this.worked = this.taken.until(now);
        this.work_ends = this.worked.after(self.account.time((cpu, vcpu), guests.left(vcpu)));
        self.refresh(cpu);
    }

    /// Returns true if a vCPU runs on a CPU and has neither work nor unpaid overhead left.
    #[inline]
    pub(crate) fn is_free(&self, cpu: CpuId, vcpu: VcpuId, now: Time) -> bool {
        let this = &self.cpus[cpu.index()];
        this.occupant == Some(vcpu) && this.work_ends <= now
    }

    /// Counts the work that the running vCPU has done up to now. Must be called before its
    /// remaining work changes.
    pub(crate) fn count(&mut self, cpu: CpuId, now: Time, guests: &mut Guests<'_>) {
        let this = &mut self.cpus[cpu.index()];
        if let Some(vcpu) = this.occupant {
            guests.compute(vcpu, self.account.work((cpu, vcpu), (this.worked, now)));
            this.worked = this.worked.max(now);
        }
    }

    /// Updates the time at which the work of the running vCPU ends.
    pub(crate) fn recount(&mut self, cpu: CpuId, guests: &Guests<'_>) {
        let this = &mut self.cpus[cpu.index()];
        if let Some(vcpu) = this.occupant {
            let takes = self.account.time((cpu, vcpu), guests.left(vcpu));
            this.work_ends = this.worked.after(takes);
            self.refresh(cpu);
        }
    }

    /// Counts the work of a running vCPU that has completed all its work, if work differs from CPU
    /// time.
    #[inline]
    pub(crate) fn finish(&mut self, cpu: CpuId, now: Time, guests: &mut Guests<'_>) {
        if self.account.counts_pieces() {
            self.count(cpu, now, guests);
        }
    }

    /// Returns true if the speed of a CPU depends on which other CPUs are busy.
    #[inline]
    pub(crate) fn has_speeds(&self) -> bool {
        self.account.speeds.is_some()
    }

    /// Returns the records of overhead and slowdown that are not in the trace yet.
    #[inline]
    pub(crate) fn untold(&mut self) -> &mut Vec<Record> {
        &mut self.account.records
    }

    /// Counts all work and overhead up to now, at the end of the run.
    pub(crate) fn end(&mut self, now: Time, guests: &mut Guests<'_>) {
        for cpu in (0..self.cpus.len()).map(CpuId::new) {
            self.count(cpu, now, guests);
            let this = &mut self.cpus[cpu.index()];
            this.unpaid.pay(now, (cpu, this.occupant), &mut self.account.records);
            this.taken.end(cpu, now, &mut self.account.records);
        }
    }

    /// Updates the speed of all CPUs that are slower while this CPU is busy. Called after this CPU
    /// started or stopped running a vCPU.
    #[inline(never)] // Most hosts have one speed.
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

    /// Takes the time of an interrupt or of a timer tick from a CPU. The running vCPU pays for this
    /// time. On an idle CPU, a tick passes while no vCPU runs. A vCPU that starts before the tick
    /// is over pays for the rest. An interrupt of an idle CPU is free, because the cost of
    /// dispatching the woken vCPU includes the interrupt.
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

    /// Takes a CPU from all vCPUs for `span`: from now on, or from the end of the time for which
    /// the CPU is taken already.
    pub(crate) fn take(&mut self, cpu: CpuId, now: Time, span: Span, guests: &mut Guests<'_>) {
        if span.is_zero() {
            return;
        }
        self.count(cpu, now, guests);
        let this = &mut self.cpus[cpu.index()];
        this.unpaid.pay(now, (cpu, this.occupant), &mut self.account.records);
        this.unpaid.postpone(span);
        // The next measurement of the occupant still needs the taken intervals since the last one.
        let passed = if this.occupant.is_some() { this.measured } else { now };
        this.taken.drop_passed(cpu, passed, &mut self.account.records);
        this.taken.take(now, span);
        this.worked = this.worked.max(now).after(span);
        self.recount(cpu, guests);
    }

    /// Takes a CPU from all vCPUs for the time of a scheduling pass that begins now. The length of
    /// the pass is drawn from `of`. Time for which the CPU is taken already is not taken twice.
    pub(crate) fn take_pass(&mut self, cpu: CpuId, now: Time, of: &Draw, guests: &mut Guests<'_>) {
        let this = &mut self.cpus[cpu.index()];
        let end = now.after(this.passes.draw(of));
        let span = end.since(this.taken.until(now));
        self.take(cpu, now, span, guests);
    }

    /// Returns true if the time limit of the last order for a CPU has expired, or if that order had
    /// no limit.
    pub(crate) fn is_exhausted(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].limit.due == Time::NEVER
    }

    /// Returns the time from `since` to `now` in which vCPUs could run on a CPU. Time for which the
    /// CPU was taken does not count.
    pub(crate) fn ran_since(&self, cpu: CpuId, since: Time, now: Time) -> Span {
        let (from, taken) = self.cpus[cpu.index()].taken.within(since, now);
        now - from - taken
    }

    /// Returns the vCPU that runs on a CPU. `None` if the CPU is idle.
    pub(crate) fn occupant_of(&self, cpu: CpuId) -> Option<VcpuId> {
        self.cpus[cpu.index()].occupant
    }

    /// Makes another vCPU run on a CPU, up to the same time limit as the vCPU before it. `None`
    /// makes the CPU idle.
    pub(crate) fn exchange(
        &mut self,
        cpu: CpuId,
        vcpu: Option<VcpuId>,
        now: Time,
        guests: &mut Guests<'_>,
    ) {
        let Cpus { cpus, moves, account, .. } = self;
        let this = &mut cpus[cpu.index()];
        let limit = this.limit;
        this.stop(cpu, now, guests, (moves, account));
        match vcpu {
            Some(vcpu) => {
                let takes = account.time((cpu, vcpu), guests.left(vcpu));
                this.start((cpu, vcpu), (now, takes), (moves, account));
            }
            None => this.was_idle = true,
        }
        this.limit = limit;
        self.refresh(cpu);
    }

    /// Returns true if a vCPU runs on a CPU.
    pub(crate) fn runs(&self, vcpu: VcpuId) -> bool {
        self.home(vcpu).is_some_and(|cpu| self.occupant_of(cpu) == Some(vcpu))
    }

    /// Returns the CPU on which a vCPU ran last. `None` if it never ran.
    pub(crate) fn home(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.moves.homes[vcpu.slot()]
    }

    #[inline]
    fn refresh(&mut self, cpu: CpuId) {
        if self.cpus.len() == 1 {
            return; // There is no other CPU to compare with.
        }
        let this = &self.cpus[cpu.index()];
        let first = (this.next_time(), this.next_timer());
        self.firsts.set(cpu, first);
    }
}

impl Cpu {
    /// Starts a vCPU on this CPU. The vCPU needs the CPU time `takes` to complete its work.
    #[inline(always)]
    fn start(
        &mut self,
        (cpu, vcpu): (CpuId, VcpuId),
        (now, takes): (Time, Span),
        (moves, account): (&mut DispatchCosts, &mut Account),
    ) {
        let home = moves.homes[vcpu.slot()].replace(cpu);
        let before = self.last.filter(|_| !self.was_idle);
        self.unpaid.pay(now, (cpu, None), &mut account.records);
        let free = self.taken.until(now);
        if self.last != Some(vcpu) {
            self.unpaid.add(free, OverheadKind::Switch, moves.switch);
        }
        let mut own = std::mem::take(&mut moves.owing[vcpu.slot()]);
        if let Some(home) = home.filter(|&home| home != cpu) {
            own = VcpuOverhead { migration: moves.migrate(home, cpu), refill: Span::ZERO };
        }
        if !moves.cold.is_free() {
            own.refill = moves.cold.refill((vcpu, own.refill), (cpu, home));
            own.refill += moves.cold.dispatch(vcpu, before);
        }
        self.unpaid.add(free, OverheadKind::Migration, own.migration);
        self.unpaid.add(free, OverheadKind::Refill, own.refill);
        self.was_idle = false;
        self.occupant = Some(vcpu);
        self.last = Some(vcpu);
        self.began = now;
        self.measured = now;
        self.worked = self.unpaid.end(free);
        self.work_ends = self.worked.after(takes);
    }

    /// Stops the vCPU that runs on a CPU, if there is one.
    #[inline]
    fn stop(
        &mut self,
        cpu: CpuId,
        now: Time,
        guests: &mut Guests<'_>,
        (moves, account): (&mut DispatchCosts, &mut Account),
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

/// Hardware that carries out the orders of the host.
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

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Sets the current time.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time) {
        self.now = now;
    }

    /// Carries out an order without ordinary scheduling: the CPU runs the vCPU that the order
    /// names.
    #[inline(always)]
    pub(crate) fn carry_out_exactly(&mut self, order: Order) -> Outcome {
        let (Order::Idle { cpu } | Order::Run { cpu, .. }) = order;
        let Cpus { cpus, moves, timers, stop_lateness, refuse_ppm, account, .. } = &mut self.cpus;
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
                    let taken = this.taken.until(self.now) - self.now;
                    let until = until.map_or(Time::NEVER, |until| until.after(taken));
                    let own = stop_lateness.get(vcpu.slot()).and_then(Option::as_ref);
                    timers.arm_with(own, &mut this.limit, (until, self.now), &mut this.lateness);
                }
            }
        }
        self.cpus.refresh(cpu);
        if self.cpus.has_speeds() && was_busy != self.cpus.cpus[cpu.index()].occupant.is_some() {
            self.cpus.busy_changed(cpu, self.now, &mut self.guests);
        }
        outcome
    }
}

impl Hardware for VirtualHardware<'_> {
    #[inline(always)]
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse> {
        let this = &mut self.cpus.cpus[cpu.index()];
        let vcpu = this.occupant?;
        let (from, taken) = this.taken.within(std::mem::replace(&mut this.measured, now), now);
        let ran = now - from - taken;
        this.taken.drop_passed(cpu, now, &mut self.cpus.account.records);
        (!ran.is_zero()).then_some(CpuUse { vcpu, cpu, from, to: now, ran })
    }

    #[inline(always)]
    fn carry_out(&mut self, order: Order) -> Outcome {
        if self.cpus.fair.is_some() {
            self.carry_out_fairly(order)
        } else {
            self.carry_out_exactly(order)
        }
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

/// Returns the value of the field `stop_lateness` of [`Cpus`] for a scenario.
fn stop_lateness(scenario: &Scenario) -> Vec<Option<Draw>> {
    let of_vcpus = |domain: &Domain| vec![domain.stop_lateness; domain.vcpus.len()];
    let all: Vec<_> = scenario.domains.iter().flat_map(of_vcpus).collect();
    if all.iter().any(Option::is_some) { all } else { Vec::new() }
}

/// Returns a migration cost that is the same between any two CPUs.
fn everywhere(cost: Span) -> MigrationCost {
    MigrationCost { core: cost, cache: cost, node: cost, host: cost }
}

impl DispatchCosts {
    /// Returns the cost of a migration from CPU `from` to CPU `to`. The narrowest group of the
    /// topology that contains both CPUs decides the cost.
    #[inline]
    fn migrate(&self, from: CpuId, to: CpuId) -> Span {
        let MigrationCost { core, cache, node, host } = self.migrate;
        if !self.migrate_differs {
            return host;
        }
        let levels = [(Level::Core, core), (Level::Cache, cache), (Level::Node, node)];
        let shares = |level| self.topology.group_of(level, from).contains(to);
        levels.into_iter().find(|&(level, _)| shares(level)).map_or(host, |(_, cost)| cost)
    }
}
