//! Hardware that executes a script of the contract suite: CPUs with timers, which measure CPU time
//! and carry out orders.

use slackline_host::{CpuUse, Fact, Fault, Hardware, Host, Order, Outcome, Report, VcpuTerms};
use slackline_policy::{Pick, Spec, Value, Values};
use slackline_units::{CpuId, CpuSet, DomId, Entitlement, Span, Time, VcpuId};

use crate::books::{Breach, Row, Shared};
use crate::dice::Dice;
use crate::history::{History, Life};
use crate::script::{Kind, Manner, Script, Step};

/// Maximum number of vCPUs that are joined at one time.
const SLOTS: usize = 10;

/// Time after the last step within which each eligible vCPU must run. Timeslices, slices and
/// periods in scripts are at most 50 ms, and a timer is at most 0.2 ms late. So this time covers
/// ten round-robin timeslices, or eleven periods of any reservation.
const AFTERWARDS: Span = Span::from_ms(560);

/// Number of further intervals of `AFTERWARDS` in which a vCPU may wait after its cap was lifted.
/// Up to ten vCPUs may have debt to pay back. Each of them pays for at most 150 ms, one vCPU after
/// the other.
const CAPPED_PATIENCE: u32 = 4;

/// Maximum number of events at one instant. A correct policy causes far fewer events, even with all
/// CPUs, vCPUs and timers of a script.
const AT_ONCE: u32 = 1_000;

/// Timer of a CPU: the time for which it is set, and the time at which it expires.
#[derive(Clone, Copy, Debug)]
struct Armed {
    due: Time,
    rings: Time,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    occupant: Option<VcpuId>,
    /// True if the vCPU on the CPU runs on reserved time.
    is_due: bool,
    /// Time up to which the CPU time of the vCPU on the CPU has been measured.
    measured: Time,
    limit: Option<Armed>,
    alarm: Option<Armed>,
}

/// Order or timer setting that the host passed to the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Order(Order, Outcome),
    Alarm(CpuId, Option<Time>),
}

/// Part of the scripted hardware that the host uses: it measures CPU time and carries out orders.
struct Body {
    books: Shared,
    now: Time,
    cpus: Vec<Cpu>,
    manner: Manner,
    dice: Dice,
    /// Number of orders that will be refused next.
    refusals: u32,
    told: Vec<(Time, Told)>,
}

impl Body {
    fn arm(&mut self, due: Time) -> Armed {
        let late = match self.manner {
            Manner::Exact => Span::ZERO,
            Manner::Rough => Span::from_ns(self.dice.below(200_000)),
        };
        // A timer cannot expire in the past: if an earlier timer was late, this one may be overdue.
        Armed { due, rings: due.after(late).max(self.now) }
    }

    fn stop(&mut self, cpu: CpuId) {
        let this = &mut self.cpus[cpu.index()];
        this.limit = None;
        let Some(vcpu) = this.occupant.take() else { return };
        let mut books = self.books.open();
        if this.measured != self.now {
            books.note(Breach::Charged(vcpu, self.now));
        }
        if let Some(row) = books.rows.get_mut(&vcpu) {
            row.cpu = None;
        }
    }

    fn run(&mut self, cpu: CpuId, vcpu: VcpuId, until: Option<Time>) -> Outcome {
        let is_new = self.cpus[cpu.index()].occupant != Some(vcpu);
        self.books.open().check_runs(vcpu, cpu);
        if self.refusals > 0 {
            self.refusals -= 1;
            self.stop(cpu);
            self.books.open().row(vcpu).is_barred = true;
            return Outcome::Refused;
        }
        if is_new {
            self.stop(cpu);
            self.cpus[cpu.index()].measured = self.now;
        }
        self.books.open().row(vcpu).cpu = Some(cpu);
        let limit = until.map(|until| self.arm(until));
        let this = &mut self.cpus[cpu.index()];
        this.occupant = Some(vcpu);
        this.limit = limit;
        Outcome::Done
    }
}

impl Hardware for Body {
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse> {
        let this = &mut self.cpus[cpu.index()];
        let vcpu = this.occupant?;
        let from = std::mem::replace(&mut this.measured, now);
        if from == now {
            return None;
        }
        let stolen = match self.manner {
            Manner::Exact => 0,
            Manner::Rough => self.dice.below((now - from).ns() / 8 + 1),
        };
        let ran = (now - from) - Span::from_ns(stolen);
        self.books.open().row(vcpu).used += ran;
        Some(CpuUse { vcpu, cpu, from, to: now, ran })
    }

    fn carry_out(&mut self, order: Order) -> Outcome {
        let (Order::Run { cpu, .. } | Order::Idle { cpu }) = order;
        if cpu.index() >= self.cpus.len() {
            self.books.open().note(Breach::NoSuchCpu(cpu));
            return Outcome::Refused;
        }
        let outcome = match order {
            Order::Run { cpu, vcpu, until, entitlement } => {
                self.cpus[cpu.index()].is_due = entitlement == Entitlement::Due;
                self.run(cpu, vcpu, until)
            }
            Order::Idle { cpu } => {
                self.stop(cpu);
                Outcome::Done
            }
        };
        self.told.push((self.now, Told::Order(order, outcome)));
        outcome
    }

    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        self.books.open().alarms[cpu.index()] = alarm;
        let before = self.cpus[cpu.index()].alarm;
        if before.map(|before| before.due) != alarm {
            let armed = alarm.map(|alarm| self.arm(alarm));
            self.cpus[cpu.index()].alarm = armed;
            self.told.push((self.now, Told::Alarm(cpu, alarm)));
        }
    }
}

/// Scripted hardware, together with the host that it drives and the history of the run.
pub(crate) struct ScriptHardware<'a> {
    spec: &'a Spec,
    host: Host,
    body: Body,
    history: History,
    /// Vector indexed by slot: index in `History::lives` of the vCPU that holds the slot. `None` if
    /// the slot is free.
    living: Vec<Option<usize>>,
    /// Number of vCPUs that are put into each domain.
    of_a_domain: usize,
    at_once: u32,
    /// True if `in_line` is called for every CPU after every step, to test that the call changes
    /// nothing.
    looks_ahead: bool,
    /// First CPU whose state does not match the policy's pick at a settled instant. The CPU is idle
    /// although a vCPU is picked for it, or busy although no vCPU is picked. `None` if there is no
    /// such CPU.
    unasked: Option<Breach>,
}

/// Results of a run of a script.
pub(crate) struct Run {
    pub(crate) told: Vec<(Time, Told)>,
    pub(crate) history: History,
    /// vCPU that was eligible to run after the last step but did not run. `None` if every eligible
    /// vCPU ran.
    pub(crate) forgotten: Option<VcpuId>,
    /// CPU whose pick had changed and that was not rescheduled. `None` if there is no such CPU.
    pub(crate) unasked: Option<Breach>,
}

impl<'a> ScriptHardware<'a> {
    pub(crate) fn new(
        spec: &'a Spec,
        host: Host,
        script: &Script,
        books: Shared,
        looks_ahead: bool,
    ) -> ScriptHardware<'a> {
        let body = Body {
            books,
            now: script.start,
            cpus: vec![Cpu::default(); script.cpus],
            manner: script.manner,
            dice: Dice(script.seed),
            refusals: 0,
            told: Vec::new(),
        };
        let (history, living) = (History::default(), vec![None; SLOTS]);
        let (at_once, unasked, of_a_domain) = (0, None, script.of_a_domain);
        ScriptHardware {
            spec,
            host,
            body,
            history,
            living,
            of_a_domain,
            at_once,
            looks_ahead,
            unasked,
        }
    }

    /// Executes all steps, then lets time pass to find eligible vCPUs that never run.
    pub(crate) fn play(mut self, steps: &[Step]) -> Result<Run, Breach> {
        for step in steps {
            self.take(*step)?;
            // In half of the cases, the next step happens at the same instant.
            if step.draw % 2 == 0 {
                self.settle()?;
            }
        }
        // From here on the hardware is exact, so that it cannot cause a wait.
        (self.body.manner, self.body.refusals) = (Manner::Exact, 0);
        let forgotten = self.find_forgotten()?;
        self.step(Fact::Ended)?;
        self.history.end = self.body.now;
        Ok(Run { told: self.body.told, history: self.history, forgotten, unasked: self.unasked })
    }

    /// Returns true if the vCPU can have excess over the fluid rate from earlier parameters. A vCPU
    /// with a small reservation can need more time to pay the excess back than any script lasts.
    fn may_owe(&self, who: VcpuId) -> bool {
        let of_it = self.history.lives.iter().filter(|life| life.vcpu == who);
        of_it.flat_map(|life| &life.promises).filter(|(_, promise)| promise.is_some()).count() > 1
    }

    /// Returns a runnable vCPU that never runs, or `None` if every runnable vCPU runs. Lets time
    /// pass and blocks each vCPU that has run, until no vCPU waits or every vCPU that is left
    /// waits. A vCPU with a small share can wait longer than any script lasts, as long as vCPUs
    /// with larger shares run. A vCPU that had a cap may wait longer, because its debt must be paid
    /// back after the cap is lifted.
    fn find_forgotten(&mut self) -> Result<Option<VcpuId>, Breach> {
        let mut patience = CAPPED_PATIENCE;
        loop {
            let before = self.body.now;
            self.pass(AFTERWARDS)?;
            let can = |(_, row): &(&VcpuId, &Row)| row.is_awake && !row.is_barred;
            let those: Vec<VcpuId> =
                self.body.books.open().rows.iter().filter(can).map(|(&vcpu, _)| vcpu).collect();
            let has_run = |vcpu: &VcpuId| {
                let index = self.living[vcpu.slot()].expect("a vCPU in the books is joined");
                self.history.lives[index].runs.last().is_some_and(|run| run.1 > before)
            };
            let (ran, mut waiting): (Vec<_>, Vec<_>) = those.into_iter().partition(has_run);
            waiting.retain(|who| !self.may_owe(*who));
            if waiting.is_empty() {
                return Ok(None);
            }
            if ran.is_empty() {
                // All other vCPUs are blocked: only a cap, or debt from a cap, justifies a wait.
                let was_capped = |who: &VcpuId| {
                    let index = self.living[who.slot()].expect("a vCPU in the books is joined");
                    self.history.lives[index].was_capped
                };
                let forgotten = waiting.iter().find(|who| patience == 0 || !was_capped(who));
                if let Some(&forgotten) = forgotten {
                    return Ok(Some(forgotten));
                }
                patience -= 1;
                let share = Values::defaults(self.spec.share_fields)
                    .expect("a policy with caps requires no parameter");
                for who in waiting {
                    self.ask_for(Fact::TermsChanged(who, (&share).into()))?;
                }
            }
            for who in ran {
                self.put_to_sleep(who)?;
            }
        }
    }

    fn take(&mut self, step: Step) -> Result<(), Breach> {
        let mut dice = Dice(step.draw);
        match step.kind {
            Kind::Join => self.join(step, &mut dice),
            Kind::Change => self.change(step, &mut dice),
            Kind::Leave => self.leave(step),
            Kind::Wake => {
                let Some(who) = self.one(step, |row| !row.is_awake) else { return Ok(()) };
                self.body.books.open().row(who).is_awake = true;
                let now = self.body.now;
                self.life(who).awake.push((now, None));
                self.step(Fact::Woke(who))
            }
            Kind::Block => {
                let Some(who) = self.one(step, |row| row.is_awake) else { return Ok(()) };
                self.put_to_sleep(who)
            }
            Kind::Yield => {
                let Some(who) = self.one(step, |row| row.cpu.is_some()) else { return Ok(()) };
                let cpu =
                    self.body.books.open().row(who).cpu.expect("a vCPU was chosen that has a CPU");
                // The vCPU has had its timeslice, even if it used nothing of it. Its wait for the
                // next timeslice begins now.
                let now = self.body.now;
                self.life(who).ran(now, now, false);
                self.step(Fact::Yielded(cpu))
            }
            Kind::Refuse if self.body.manner == Manner::Rough => {
                self.body.refusals = u32::from(step.who % 4);
                Ok(())
            }
            Kind::Allow => {
                let Some(who) = self.one(step, |row| row.is_barred) else { return Ok(()) };
                self.body.books.open().row(who).is_barred = false;
                self.step(Fact::Allowed(who))
            }
            Kind::Tell => {
                let Some(who) = self.one(step, |_| true) else { return Ok(()) };
                let told = dice.told();
                self.step(Fact::Told(who, &told))?;
                let heard = std::mem::take(&mut self.body.books.open().heard);
                if heard == [(who, told)] {
                    Ok(())
                } else {
                    Err(Breach::Misheard(who, self.body.now))
                }
            }
            Kind::SetClock => {
                // A little further ahead, or any offset.
                let before = self.history.clocks.last().map_or(Span::ZERO, |&(_, ahead)| ahead);
                let little = before + Span::from_ns(dice.below(1_000_000));
                let any = Span::from_ns(dice.below(3_600_000_000_000));
                let ahead = dice.pick(&[little, any]);
                self.history.clocks.push((self.body.now, ahead));
                self.step(Fact::ClockSet(ahead))
            }
            Kind::Pass | Kind::Refuse => {
                let span = dice.span(Span::from_ns(1), Span::from_ms(20));
                self.pass(span)
            }
        }
    }

    fn vcpu(&self, slot: usize) -> VcpuId {
        let number = |number: usize| u32::try_from(number).expect("slots fit `u32`");
        let (domain, vcpu) = (slot / self.of_a_domain, slot % self.of_a_domain);
        let vcpu = u16::try_from(vcpu).expect("slots fit `u16`");
        VcpuId::new(number(slot), DomId::new(number(domain)), vcpu)
    }

    /// Returns one of the vCPUs for which `holds` is true, chosen by a number in the step. `None`
    /// if there is no such vCPU.
    fn one(&self, step: Step, holds: impl Fn(&Row) -> bool) -> Option<VcpuId> {
        let books = self.body.books.open();
        let those = books.rows.iter().filter(|(_, row)| holds(row));
        let those: Vec<VcpuId> = those.map(|(&vcpu, _)| vcpu).collect();
        (!those.is_empty()).then(|| those[usize::from(step.who) % those.len()])
    }

    fn life(&mut self, vcpu: VcpuId) -> &mut Life {
        let index = self.living[vcpu.slot()].expect("a vCPU of a step is joined");
        &mut self.history.lives[index]
    }

    fn put_to_sleep(&mut self, who: VcpuId) -> Result<(), Breach> {
        // A refusal does not outlast a block: the vCPU may be tried again when it wakes.
        let books = &self.body.books;
        (books.open().row(who).is_awake, books.open().row(who).is_barred) = (false, false);
        self.sleep(who);
        self.step(Fact::Blocked(who))
    }

    fn sleep(&mut self, who: VcpuId) {
        let now = self.body.now;
        if let Some((_, until)) = self.life(who).awake.last_mut() {
            until.get_or_insert(now);
        }
    }

    /// Draws the affinity of a vCPU that joins. If domains have several vCPUs, half of the vCPUs
    /// are confined to some of the CPUs. `None` means all CPUs.
    fn affinity(&self, step: Step) -> Option<CpuSet> {
        // A separate seed, so that the affinity does not change what else is drawn.
        let mut dice = Dice(!step.draw);
        if self.of_a_domain == 1 || dice.below(2) == 0 {
            return None;
        }
        let cpus = self.body.cpus.len();
        let any = (0..cpus).filter(|_| dice.below(2) == 0).map(CpuId::new).collect::<CpuSet>();
        let one = CpuId::new(usize::from(step.who) % cpus);
        Some(if any.is_empty() { CpuSet::one(one) } else { any })
    }

    /// Lets a new vCPU join. Tries up to six sets of parameters until one is admitted.
    fn join(&mut self, step: Step, dice: &mut Dice) -> Result<(), Breach> {
        let free: Vec<usize> = (0..SLOTS).filter(|&slot| self.living[slot].is_none()).collect();
        if free.is_empty() {
            return Ok(());
        }
        let (slot, now) = (free[usize::from(step.who) % free.len()], self.body.now);
        let who = self.vcpu(slot);
        let cpus = self.affinity(step);
        for _ in 0..6 {
            let share = dice.values(self.spec.share_fields);
            self.body.books.open().rows.insert(who, Row::default());
            if self.ask_for(Fact::Joined(who, VcpuTerms { share: &share, cpus }))? {
                let promises = vec![(now, (self.spec.promise)(&share).ok().flatten())];
                let (awake, runs, due) = (Vec::new(), Vec::new(), Vec::new());
                self.living[slot] = Some(self.history.lives.len());
                let (was_capped, was_by_use) = (has_cap(&share), is_by_use(&share));
                self.history.lives.push(Life {
                    vcpu: who,
                    promises,
                    was_capped,
                    was_by_use,
                    awake,
                    runs,
                    due,
                    left: None,
                });
                return Ok(());
            }
            self.body.books.open().rows.remove(&who);
        }
        Ok(())
    }

    fn change(&mut self, step: Step, dice: &mut Dice) -> Result<(), Breach> {
        let Some(who) = self.one(step, |_| true) else { return Ok(()) };
        let (share, now) = (dice.values(self.spec.share_fields), self.body.now);
        if self.ask_for(Fact::TermsChanged(who, (&share).into()))? {
            let promise = (self.spec.promise)(&share).ok().flatten();
            let life = self.life(who);
            life.promises.push((now, promise));
            life.was_capped |= has_cap(&share);
            life.was_by_use |= is_by_use(&share);
        }
        Ok(())
    }

    fn leave(&mut self, step: Step) -> Result<(), Breach> {
        let Some(who) = self.one(step, |_| true) else { return Ok(()) };
        let now = self.body.now;
        self.sleep(who);
        self.life(who).left = Some(now);
        self.living[who.slot()] = None;
        // The vCPU runs until the hardware gets another order for its CPU, and is charged until
        // then.
        let report = Report { now, used: &[], fact: Fact::Left(who) };
        let stepped = self.host.step(report, &mut self.body, &mut ());
        let row = self.body.books.open().rows.remove(&who).expect("a leaving vCPU is in the books");
        if row.used != row.charged {
            self.body.books.open().note(Breach::Charged(who, now));
        }
        self.conclude(stepped.map(|()| true)).map(|_| ())
    }

    /// Lets time pass and expires the timers that are due.
    fn pass(&mut self, span: Span) -> Result<(), Breach> {
        let end = self.body.now + span;
        loop {
            let timers = self.body.cpus.iter().enumerate().flat_map(|(index, cpu)| {
                let limit = cpu.limit.map(|limit| (limit.rings, 0, index));
                limit.into_iter().chain(cpu.alarm.map(|alarm| (alarm.rings, 1, index)))
            });
            let next = timers.min().filter(|&(rings, ..)| rings <= end);
            if next.is_none_or(|(rings, ..)| rings > self.body.now) && !self.host.is_settled() {
                self.settle()?;
                continue;
            }
            self.move_to(next.map_or(end, |(rings, ..)| rings))?;
            let Some((_, kind, index)) = next else { return Ok(()) };
            let (cpu, id) = (&mut self.body.cpus[index], CpuId::new(index));
            if kind == 0 {
                cpu.limit = None;
                self.step(Fact::LimitReached(id))?;
            } else {
                cpu.alarm = None;
                self.body.books.open().rings = Some(id);
                self.step(Fact::AlarmRang(id))?;
            }
        }
    }

    /// Advances the clock and records run intervals of the vCPUs that occupy CPUs.
    fn move_to(&mut self, now: Time) -> Result<(), Breach> {
        let before = self.body.now;
        self.at_once = if now > before { 0 } else { self.at_once + 1 };
        if self.at_once > AT_ONCE {
            return Err(Breach::Stuck(now));
        }
        if now > before {
            for index in 0..self.body.cpus.len() {
                let Cpu { occupant, is_due, .. } = self.body.cpus[index];
                if let Some(vcpu) = occupant {
                    self.life(vcpu).ran(before, now, is_due);
                }
            }
        }
        self.body.now = now;
        self.body.books.open().now = now;
        Ok(())
    }

    /// Ends the instant, and checks that the policy returned enough CPUs for rescheduling. A CPU
    /// must be busy if a repeated `pick` returns a vCPU for it, and idle if not.
    fn settle(&mut self) -> Result<(), Breach> {
        self.at_once += 1;
        if self.at_once > AT_ONCE {
            return Err(Breach::Stuck(self.body.now));
        }
        self.step(Fact::Settled)?;
        for (index, cpu) in self.body.cpus.iter().enumerate() {
            let is_busy = self.host.answer(CpuId::new(index)) != Pick::Idle;
            let is_right = is_busy == cpu.occupant.is_some();
            // With a late timer, or one that is due and has not expired yet, an occupant may have
            // overrun.
            let timers = cpu.limit.into_iter().chain(cpu.alarm);
            let is_late =
                timers.map(|timer| timer.due).min().is_some_and(|due| due <= self.body.now);
            if !is_right && !is_late && self.body.manner == Manner::Exact {
                let unasked = Breach::Unasked(CpuId::new(index), self.body.now);
                self.unasked.get_or_insert(unasked);
            }
        }
        self.conclude(Ok(true)).map(|_| ())
    }

    fn step(&mut self, fact: Fact<'_>) -> Result<(), Breach> {
        self.ask_for(fact).map(|_| ())
    }

    /// Reports an event. Returns false if the policy rejected the parameters of the event.
    fn ask_for(&mut self, fact: Fact<'_>) -> Result<bool, Breach> {
        let report = Report { now: self.body.now, used: &[], fact };
        let stepped = match self.host.step(report, &mut self.body, &mut ()) {
            Ok(()) => Ok(true),
            Err(fault) if matches!(*fault, Fault::Declined { .. }) => Ok(false),
            Err(fault) => Err(fault),
        };
        self.conclude(stepped)
    }

    /// Checks the records after a step and returns the first violation as an error.
    fn conclude(&mut self, stepped: Result<bool, Box<Fault>>) -> Result<bool, Breach> {
        if self.looks_ahead {
            let mut in_line = Vec::new();
            (0..self.body.cpus.len())
                .for_each(|cpu| self.host.in_line(CpuId::new(cpu), usize::MAX, &mut in_line));
        }
        let mut books = self.body.books.open();
        books.rings = None;
        for (index, cpu) in self.body.cpus.iter().enumerate() {
            if let Some(vcpu) = cpu.occupant {
                books.check_runs(vcpu, CpuId::new(index));
            }
        }
        let differ = books.rows.iter().find(|(_, row)| row.used != row.charged);
        if let Some(vcpu) = differ.map(|(&vcpu, _)| vcpu) {
            let now = books.now;
            books.note(Breach::Charged(vcpu, now));
        }
        match books.breach.clone() {
            Some(breach) => Err(breach),
            None => stepped.map_err(|fault| Breach::Host(fault.to_string())),
        }
    }
}

/// Returns true if these parameters allow the vCPU to borrow unused budget of its siblings.
fn is_by_use(share: &Values) -> bool {
    share.iter().any(|(_, value)| value == Value::Choice("use"))
}

fn has_cap(share: &Values) -> bool {
    share.iter().any(|(_, value)| matches!(value, Value::Cap(Some(_))))
}
