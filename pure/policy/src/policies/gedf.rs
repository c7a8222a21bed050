//! Global earliest deadline first: a budget in every period, one queue for all CPUs. Source: the
//! rules of Xen's RTDS, which is such a scheduler with deferrable servers. The bound of tardiness
//! is Devi and Anderson's (Real-Time Systems 38, 2008), cited as [Devi].
//!
//! Each vCPU has a budget in each period, and its deadline is the end of the period. The CPUs run
//! the vCPUs with the earliest deadlines, wherever they ran last. A vCPU whose budget is exhausted
//! waits for the next period. With the extra-time flag its budget is filled up again and its
//! *level*, a number, rises by one. The lower number always has precedence, whatever the deadlines.
//! So slack is divided in units of budgets, and a vCPU on level zero precedes all slack.
//!
//! Holds after every call:
//! - A runnable vCPU runs, or waits if it has budget left (`order`). The end of its period is in
//!   one CPU's timer: the CPU where it runs or ran last, or the CPU rescheduled when it woke.
//! - Periods follow each other from admission or the last change of parameters, even while the vCPU
//!   is blocked.
//! - A deadline before the end of the current period means that the vCPU is tardy. It was runnable
//!   and did not receive the budget of an earlier period.
//!
//! Departs from RTDS by default. A budget that was not used by its deadline is kept with that
//! deadline until it is used, and overrun is debt. So every vCPU receives its share over many
//! periods. Budget tardier than the bound of [Devi] is dropped: only the host can have delayed it.
//! With `misses` and `overrun` as in RTDS, only departures that the help page lists remain.

mod order;
mod page;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::string::ToString;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, ReservationError, Span, Time, VcpuId};

use crate::admission::set_books::{AffinityOf, SetBooks};
use crate::admission::zero_lag::{Booking, Holds, ReservationBooks};
use crate::api::field::{distance, slice_of};
use crate::queues::ordered::Queues;
use crate::{
    Account, AdmitError, Entitlement, Field, Kind, Moment, Pick, Policy, Promise, Roster, Spec,
    TimesliceEnd, Topology, Values,
};

use order::{Rank, RankOrder};

const RESERVE: Field =
    Field::share("reserve", "0.05cpu", CpuShare::ONE, "part of each CPU that is never reserved");
const OVERRUN: Field = Field::choice(
    "overrun",
    &["carry", "forgive"],
    "CPU time used beyond the budget: deducted from the next budget, or forgiven (RTDS)",
);
const ASLEEP: Field = Field::choice(
    "asleep",
    &["kept", "trimmed"],
    "a vCPU that wakes keeps all its budget (RTDS), or only what cannot make other vCPUs late",
);
const MISSES: Field = Field::choice(
    "misses",
    &["carried", "forgotten"],
    "budget not used by its deadline: kept until it is used, or lost (RTDS)",
);

/// Shortest budget and period, as in RTDS.
const LEAST: Span = Span::from_us(10);

const BUDGET: Field = Field::span_within(
    "budget",
    "4ms",
    (LEAST, Span::MAX),
    "CPU time of each vCPU in every period",
);
const PERIOD: Field = Field::span_within(
    "period",
    "10ms",
    (LEAST, Span::MAX),
    "length of a period; the budget is due by its end",
);
const EXTRA: Field = Field {
    name: "extra",
    kind: Kind::Flag,
    default: Some("true"),
    help: "the vCPU may run at a lower level after its budget is exhausted; false: hard limit",
};

/// Description of the policy `gedf`.
pub(crate) const SPEC: Spec = Spec {
    name: "gedf",
    summary: "global EDF: a budget in every period, one queue for all CPUs (like RTDS)",
    page: page::PAGE,
    policy_fields: &[RESERVE, OVERRUN, MISSES, ASLEEP],
    share_fields: &[BUDGET, PERIOD, EXTRA],
    conflict: |_| None,
    promise,
    keeps: |values, topology| topology.cpus() == 1 && values.choice(&ASLEEP) == "trimmed",
    limit: Some(|share, period| {
        let mut terms = slice_of(share, period);
        terms[0].0 = BUDGET.name;
        terms.push((EXTRA.name, "false".into()));
        terms
    }),
    together: None,
    payer: None,
    build: |values, topology| Box::new(Gedf::new(values, topology)),
};

fn promise(share: &Values) -> Result<Option<Promise>, ReservationError> {
    let reservation = Reservation::new(share.span(&BUDGET), share.span(&PERIOD))?;
    let exact = !share.flag(&EXTRA);
    Ok(Some(Promise { reservation, exact, bounded: exact, by_use: false, phase: None }))
}

struct Gedf {
    rules: GedfRules,
    books: SetBooks,
    holds: Holds<AffinityOf>,
    /// Runnable vCPUs: those that run, and those that wait with budget left.
    order: RankOrder,
    /// One queue per CPU: the ends of the periods of runnable vCPUs.
    periods: Queues<Time>,
    servers: Roster<GedfServer>,
}

/// Parameters of the policy, and values derived from them.
#[derive(Clone, Copy)]
struct GedfRules {
    carries: bool,
    carries_misses: bool,
    trims: bool,
    /// Bound of the tardiness, in halves of the largest budget: the number of CPUs plus one.
    half_budgets: u64,
    /// Largest budget admitted so far.
    largest: Span,
}

/// Budget and accounts of one vCPU.
struct GedfServer {
    reservation: Reservation,
    extra: bool,
    /// CPUs against whose capacity the vCPU's share counts: all CPUs of its affinity, or only one
    /// of them if [`SetBooks::keep`] cannot track the affinity.
    allowed: CpuSet,
    /// End of the vCPU's period that began last.
    period_end: Time,
    /// Deadline of the current budget: the end of the period to which the budget belongs.
    deadline: Time,
    /// Number of times that the budget of this period was exhausted.
    level: u64,
    /// Budget left on the current level. A new level begins each time the budget is filled up.
    remaining: Span,
    /// Overrun still to be deducted from the next budgets.
    debt: Span,
    /// Time at which the vCPU last blocked.
    asleep_since: Time,
    /// True if the vCPU was blocked in this period. Budget that it did not receive is then dropped.
    slept: bool,
}

impl Policy for Gedf {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let server = GedfServer::new(share, self.books.keep(at.allowed(vcpu)), at.now())?;
        let debt = self.promise(at, vcpu, None, &server)?;
        self.servers.insert(vcpu, GedfServer { debt, ..server });
        Ok(())
    }

    /// Changes the parameters. A new period starts at once, so the parameters take effect with the
    /// next scheduling decision.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let mut server = GedfServer::new(share, self.books.keep(at.allowed(vcpu)), at.now())?;
        let before = &self.servers[vcpu];
        let now = (before.booking(vcpu), before.advance(at.now()));
        server.asleep_since = before.asleep_since;
        server.debt = self.promise(at, vcpu, Some(now), &server)?;
        let is_awake = at.is_awake(vcpu);
        if is_awake {
            server.begin_job(server.period_end);
        }
        self.servers[vcpu] = server;
        let mut cpus: CpuSet = self.periods.queue_of(vcpu).map(CpuId::new).into_iter().collect();
        self.dequeue(vcpu);
        if !self.holds.is_empty() && self.rests(at) {
            self.holds.rest_all(&mut self.books);
        }
        if is_awake {
            self.requeue(at, vcpu);
            let here = at.cpu_of(vcpu).filter(|&cpu| at.is_allowed(vcpu, cpu));
            let cpu = here.unwrap_or_else(|| self.cpu_to_tell(at, vcpu));
            self.end_period_on(cpu, vcpu);
            cpus.add(&self.tell(at, cpu));
        }
        Ok(cpus)
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        let server = self.servers.remove(vcpu).expect("a joined vCPU has a server");
        self.holds.lapse(at.now(), &mut self.books);
        let lifted = self.holds.lift(vcpu, Some(server.booking(vcpu)), &mut self.books);
        let account = (at.now(), server.advance(at.now()));
        self.holds.settle(&lifted, None, account, &mut self.books);
        if !self.holds.is_empty() && self.rests(at) {
            self.holds.rest_all(&mut self.books);
        }
        CpuSet::NONE
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.servers[vcpu].wake(at.now(), self.rules);
        self.requeue(at, vcpu);
        let cpu = self.cpu_to_tell(at, vcpu);
        self.end_period_on(cpu, vcpu);
        self.tell(at, cpu)
    }

    /// Handles the start of a vCPU. Moves the end of its period to the timer of the CPU where it
    /// runs, since the occupant of a CPU is charged before that CPU's timer is handled.
    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpu = at.cpu_of(vcpu).expect("a vCPU that started occupies a CPU");
        if let Some(before) = self.order.runs_on(cpu).filter(|&before| before != vcpu) {
            self.requeue(at, before);
        }
        self.requeue(at, vcpu);
        if self.periods.queue_of(vcpu) != Some(cpu.index()) {
            // The timer of its previous CPU is overdue. The timer of this CPU must not be in the
            // past.
            let is_over = self.servers[vcpu].period_end <= at.now();
            if is_over {
                self.servers[vcpu].end_period(at.now(), self.rules);
                self.requeue(at, vcpu);
            }
            self.end_period_on(cpu, vcpu);
            if is_over {
                return CpuSet::one(cpu); // Another vCPU may have a better rank now.
            }
        }
        CpuSet::NONE
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let server = &mut self.servers[vcpu];
        let before = (server.rank(), server.remaining.is_zero());
        server.use_up(at.now(), ran, self.rules);
        if at.is_awake(vcpu) && before != (server.rank(), server.remaining.is_zero()) {
            self.requeue(at, vcpu);
        }
        CpuSet::NONE
    }

    /// Handles the end of a timeslice. A vCPU that the host barred has lost its CPU and waits.
    fn on_timeslice_end(&mut self, at: &Moment, vcpu: VcpuId, _: TimesliceEnd) -> CpuSet {
        if at.cpu_of(vcpu).is_none() {
            self.requeue(at, vcpu);
        }
        CpuSet::NONE
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.servers[vcpu].asleep_since = at.now();
        CpuSet::NONE
    }

    fn prepare_pick(&mut self, _: &Moment, cpu: CpuId) -> CpuSet {
        self.order.ask(cpu, |vcpu| rank_of(&self.servers, vcpu));
        CpuSet::NONE
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let eligible = |vcpu| at.is_eligible(vcpu, cpu);
        let here = self.order.runs_on(cpu).filter(|&vcpu| eligible(vcpu));
        let here = here.and_then(|vcpu| Some((rank_of(&self.servers, vcpu)?, vcpu)));
        let first = match (here, self.order.first_waiting(eligible)) {
            // A running vCPU is not preempted by one of equal rank.
            (Some(here), Some(first)) if here.0 == first.0 && at.occupant(cpu) == Some(here.1) => {
                Some(here)
            }
            (Some(here), Some(first)) => Some(here.min(first)),
            (here, first) => here.or(first),
        };
        let Some((_, vcpu)) = first else { return Pick::Idle };
        let server = &self.servers[vcpu];
        let entitlement = if server.level == 0 { Entitlement::Due } else { Entitlement::Spare };
        Pick::Run { vcpu, limit: Some(server.remaining), entitlement }
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        self.periods.first(cpu.index()).map(|(end, _)| end)
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let mut cpus = CpuSet::NONE;
        while let Some((end, vcpu)) = self.periods.first(cpu.index()) {
            if end > at.now() {
                break;
            }
            self.servers[vcpu].end_period(at.now(), self.rules);
            self.end_period_on(cpu, vcpu);
            self.requeue(at, vcpu);
            let waits = at.cpu_of(vcpu).is_none();
            if let Some(cpu) = waits.then(|| self.cpu_to_take(at, vcpu)).flatten() {
                cpus.add(&self.tell(at, cpu));
            }
        }
        cpus
    }

    fn available_slice(&self, at: &Moment, period: Span, allowed: CpuSet) -> Option<Span> {
        let (mut holds, mut books) = (self.holds.clone(), self.books.clone());
        let allowed = books.keep(allowed);
        holds.lapse(at.now(), &mut books);
        if !holds.is_empty() && self.rests(at) {
            holds.rest_all(&mut books);
        }
        Some(books.room(period, allowed)).map(|room| if room < LEAST { Span::ZERO } else { room })
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        let server = &self.servers[vcpu];
        alloc::vec![
            ("remaining", server.remaining.to_string()),
            ("deadline", distance(Time::START, server.deadline)),
            ("level", server.level.to_string()),
            ("debt", server.debt.to_string()),
        ]
    }
}

impl Gedf {
    fn new(values: &Values, topology: &Topology) -> Gedf {
        Gedf {
            rules: GedfRules {
                carries: values.choice(&OVERRUN) == "carry",
                carries_misses: values.choice(&MISSES) == "carried",
                trims: values.choice(&ASLEEP) == "trimmed",
                half_budgets: topology.cpus() as u64 + 1,
                largest: Span::ZERO,
            },
            books: SetBooks::new(topology, CpuShare::ONE.less(values.share(&RESERVE))),
            holds: Holds::new(),
            order: RankOrder::new(topology.cpus()),
            periods: Queues::new(topology.cpus()),
            servers: Roster::default(),
        }
    }

    /// Reserves a share for a vCPU, in place of its previous share. `before` is the previous share
    /// with its excess, the CPU time that the vCPU used beyond the fluid rate; `None` for a
    /// newcomer. Returns the excess to deduct from the new budgets.
    fn promise(
        &mut self,
        at: &Moment,
        vcpu: VcpuId,
        before: Option<(Booking<AffinityOf>, Span)>,
        asked: &GedfServer,
    ) -> Result<Span, AdmitError> {
        let (now, (place, share)) = (at.now(), asked.booking(vcpu));
        let rests = !self.holds.is_empty() && self.rests(at);
        let undone = (!self.holds.is_empty()).then(|| (self.holds.clone(), self.books.clone()));
        self.holds.lapse(now, &mut self.books);
        if rests {
            self.holds.rest_all(&mut self.books);
        }
        let booking = before.map(|(booking, _)| booking);
        let lifted = self.holds.lift(vcpu, booking, &mut self.books);
        let demand = |place, share| lifted.demand(place, share, &self.books);
        if let Some(error) = self.books.refuses(share, demand, place) {
            if let Some(undone) = undone {
                (self.holds, self.books) = undone;
            } else if let Some((place, share)) = booking {
                self.books.add(place, share);
            }
            return Err(error);
        }
        let advance = before.map_or_else(|| lifted.advance(now), |(_, advance)| advance);
        self.holds.settle(&lifted, Some((place, share)), (now, advance), &mut self.books);
        self.rules.largest = self.rules.largest.max(share.slice());
        Ok(advance)
    }

    /// Returns true if the host is quiescent: no vCPU has budget left or will have budget when it
    /// wakes.
    fn rests(&self, at: &Moment) -> bool {
        let sleeps = at.members().filter(|&vcpu| !at.is_awake(vcpu));
        let mut asleep = sleeps.filter_map(|vcpu| self.servers.get(vcpu));
        let is_due = |vcpu| rank_of(&self.servers, vcpu).is_some_and(|(level, _)| level == 0);
        let waits = self.order.first_waiting(|_| true).is_some_and(|(_, vcpu)| is_due(vcpu));
        !waits
            && !self.order.running().any(is_due)
            && !asleep.any(|server| server.claims_to_run(at.now(), self.rules))
    }

    /// Returns the CPU that should run the waiting `vcpu` now: an idle CPU, preferably the CPU on
    /// which the vCPU ran last. If no CPU is idle, returns the CPU of the running vCPU with the
    /// worst rank, if `vcpu` has a better rank. CPUs that will be rescheduled anyway are left out.
    fn cpu_to_take(&self, at: &Moment, vcpu: VcpuId) -> Option<CpuId> {
        if !self.order.waits(vcpu) {
            return None;
        }
        let may = self.order.untold(&at.allowed(vcpu));
        let idle = at.idle().and(&may);
        let last = at.last_cpu_of(vcpu).filter(|&cpu| idle.contains(cpu));
        if let Some(cpu) = last.or_else(|| idle.first()) {
            return Some(cpu);
        }
        let (last, cpu) = self.order.last_running(at, &may)?;
        (self.servers[vcpu].rank() < last).then_some(cpu)
    }

    /// Marks `cpu` for rescheduling. Returns `cpu` and, if there is one, an idle CPU that its
    /// occupant may use. (The vCPU that takes over `cpu` may not be allowed on that idle CPU.)
    fn tell(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let idle = at.idle();
        let occupant = at.occupant(cpu).filter(|_| !idle.is_empty());
        let refuge = occupant.and_then(|vcpu| idle.and(&at.allowed(vcpu)).first());
        self.order.tell(cpu);
        [cpu].into_iter().chain(refuge).collect()
    }

    /// Returns the CPU to reschedule for a runnable vCPU that occupies no CPU. The timer of that
    /// CPU also covers the end of the vCPU's period.
    fn cpu_to_tell(&self, at: &Moment, vcpu: VcpuId) -> CpuId {
        let allowed = at.allowed(vcpu);
        let last = || at.last_cpu_of(vcpu).filter(|&cpu| allowed.contains(cpu));
        let taken = self.cpu_to_take(at, vcpu).or_else(last);
        taken.or_else(|| allowed.first()).expect("affinity contains at least one CPU")
    }

    /// Makes the timer of `cpu` cover the end of the period of `vcpu`.
    fn end_period_on(&mut self, cpu: CpuId, vcpu: VcpuId) {
        self.periods.remove(vcpu);
        self.periods.insert(cpu.index(), self.servers[vcpu].period_end, vcpu);
    }

    /// Enters a runnable vCPU among the running or the waiting vCPUs, by its current rank.
    fn requeue(&mut self, at: &Moment, vcpu: VcpuId) {
        self.order.put(at, vcpu, rank_of(&self.servers, vcpu));
    }

    fn dequeue(&mut self, vcpu: VcpuId) {
        self.order.take_out(vcpu);
        self.periods.remove(vcpu);
    }
}

/// Returns the rank of a vCPU. `None` if its budget is exhausted.
fn rank_of(servers: &Roster<GedfServer>, vcpu: VcpuId) -> Option<Rank> {
    let server = &servers[vcpu];
    (!server.remaining.is_zero()).then(|| server.rank())
}

impl GedfServer {
    /// Creates the account of a blocked vCPU whose period begins now.
    fn new(share: &Values, allowed: CpuSet, now: Time) -> Result<GedfServer, ReservationError> {
        let reservation = Reservation::new(share.span(&BUDGET), share.span(&PERIOD))?;
        Ok(GedfServer {
            reservation,
            extra: share.flag(&EXTRA),
            allowed,
            period_end: now.after(reservation.period()),
            deadline: now,
            level: 0,
            remaining: Span::ZERO,
            debt: Span::ZERO,
            asleep_since: now,
            slept: false,
        })
    }

    fn booking(&self, vcpu: VcpuId) -> Booking<AffinityOf> {
        (AffinityOf::new(vcpu, self.allowed), self.reservation)
    }

    fn rank(&self) -> Rank {
        (self.level, self.deadline)
    }

    /// Replenishes the budget, minus debt, and sets its deadline.
    fn begin_job(&mut self, deadline: Time) {
        let budget = self.reservation.slice();
        let paid = self.debt.min(budget);
        self.debt -= paid;
        self.deadline = deadline;
        self.level = 0;
        self.remaining = budget - paid;
        self.slept = false;
        self.fill_up();
    }

    /// Adds one to the level and refills the budget, if it is exhausted and slack is allowed.
    fn fill_up(&mut self) {
        if self.remaining.is_zero() && self.extra {
            self.level += 1;
            self.remaining = self.reservation.slice();
        }
    }

    /// Moves the end of the period beyond `now`. Returns the number of whole periods skipped.
    fn pass_periods(&mut self, now: Time) -> u64 {
        if now < self.period_end {
            return 0;
        }
        let period = self.reservation.period();
        let passed = now.since(self.period_end) / period;
        self.period_end = self.period_end.after(period * passed).after(period);
        passed
    }

    /// Handles the end of the period of a runnable vCPU. A vCPU that was runnable throughout and
    /// did not receive its budget is tardy. It keeps the budget if misses are carried over.
    fn end_period(&mut self, now: Time, rules: GedfRules) {
        self.pass_periods(now);
        let has_ended = self.slept || self.level > 0 || self.remaining.is_zero();
        if has_ended || !rules.carries_misses {
            self.begin_job(self.period_end);
        }
    }

    fn wake(&mut self, now: Time, rules: GedfRules) {
        let mut since = self.asleep_since;
        if now >= self.deadline {
            let is_late = now < self.period_end && !self.remaining.is_zero();
            if now == since && is_late && rules.carries_misses {
                return; // The vCPU is tardy, and was not blocked.
            }
            let passed = self.pass_periods(now);
            // Unused budgets of skipped periods pay off debt.
            let unused = self.reservation.slice().ns().saturating_mul(passed);
            self.debt = self.debt.left_after(Span::from_ns(unused));
            self.begin_job(self.period_end);
            since = since.max(self.period_end - self.reservation.period());
        }
        if now == since {
            return;
        }
        self.slept = true;
        if rules.trims && self.level == 0 {
            let as_if_it_ran = self.remaining.left_after(now.since(since));
            let in_proportion = self.reservation.over(self.deadline.since(now));
            let in_proportion = self.remaining.min(in_proportion);
            self.remaining = as_if_it_ran.max(in_proportion);
            self.fill_up();
        }
    }

    /// Returns true if this blocked vCPU would still have budget had it stayed runnable. It may
    /// wake and claim that budget.
    fn claims_to_run(&self, now: Time, rules: GedfRules) -> bool {
        let (budget, period) = (self.reservation.slice(), self.reservation.period());
        let left = if self.level == 0 { self.remaining } else { Span::ZERO };
        if now < self.deadline {
            return if rules.trims { now.since(self.asleep_since) < left } else { !left.is_zero() };
        }
        !rules.trims || now.since(self.period_end) % period < budget
    }

    /// Returns the CPU time used in excess of budget × elapsed / period, plus debt. For a tardy
    /// vCPU, or one without a budget in this period, returns only the debt.
    fn advance(&self, now: Time) -> Span {
        if self.deadline <= now {
            return self.debt;
        }
        let left = if self.level == 0 { self.remaining } else { Span::ZERO };
        let rest = self.reservation.over_rounded_up(self.deadline.since(now));
        rest.left_after(left) + self.debt
    }

    fn use_up(&mut self, now: Time, ran: Span, rules: GedfRules) {
        let mut beyond = ran;
        loop {
            let due = beyond.min(self.remaining);
            self.remaining -= due;
            beyond -= due;
            if !self.remaining.is_zero() {
                return;
            }
            if !rules.carries {
                beyond = Span::ZERO;
            }
            if self.deadline < self.period_end {
                self.next_job(now, rules);
            } else if self.extra {
                let budget = self.reservation.slice();
                self.level += 1 + beyond / budget;
                self.remaining = budget - beyond % budget;
                return;
            } else {
                self.debt += beyond;
                return;
            }
        }
    }

    /// Begins the next budget of a tardy vCPU. If that budget would be tardier than the bound of
    /// global EDF, begins the budget of the current period instead.
    fn next_job(&mut self, now: Time, rules: GedfRules) {
        let next = self.deadline.after(self.reservation.period()).min(self.period_end);
        let most = Span::from_ns(rules.largest.ns().saturating_mul(rules.half_budgets) / 2);
        self.begin_job(if now.since(next) > most { self.period_end } else { next });
    }
}
