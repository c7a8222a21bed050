//! Earliest deadline first over periodic reservations, partitioned over the CPUs. Source: Lin and
//! Dinda, SC 2005, cited as [VSched]. The admission test is Liu and Layland's.
//!
//! Each vCPU has a budget of `slice` in each `period`, and its deadline is the end of the period.
//! Of the runnable vCPUs with budget left, the one with the earliest deadline runs [VSched §3.1].
//! Decisions are made at period boundaries, when a budget is exhausted and when the set of runnable
//! vCPUs changes [VSched §3.3]. A vCPU is bound to one CPU at admission. So each CPU is a
//! single-CPU EDF queue, and the test `sum of slice/period <= 1 - reserve` is exact. Slack goes to
//! the work-conserving vCPUs of the CPU. The vCPU that has received the least slack comes first. An
//! `exact` vCPU gets slack only to make up for backlog.
//!
//! Holds after every call:
//! - A runnable vCPU is in one deadline queue of its CPU: in `owed` while it has budget left in
//!   this period, otherwise in `served`.
//! - CPU time beyond the budget, in a timeslice that ran on budget, is debt.
//! - Budget that a runnable vCPU did not receive by its deadline is backlog. Backlog has precedence
//!   in slack, but not over budgets. So the tardiness of one vCPU never causes a deadline miss of
//!   another.
//!
//! Debt. A vCPU is stopped a little after its budget is exhausted, and sometimes much later. The
//! least lateness of recent stops is deducted from the next slice. A stop with that lateness then
//! falls at the end of the slice, and over many periods the error is that of a single stop. Other
//! debt is paid from slack of the CPU: vCPUs that had to wait because of the debt receive slack
//! first. In a time t, this slack is counted as t × the unreserved share of the CPU. On a quiescent
//! CPU no vCPU has to wait.
//!
//! A vCPU with a hard limit (`exact`) has an allowance, up to which this other debt is forgiven.
//! The allowance grows in each period by a quarter of the slice, at least 50 us and at most 250 us.
//! At most 40 such amounts add up. Debt within the allowance makes no slice short. On average the
//! vCPU then exceeds its slice by the mean lateness of stops minus the least lateness. Debt beyond
//! the allowance is deducted from the next slices, which can be short. The debt is at most ten
//! slices or the vCPU's share of a second, whichever is more. With `repay` nothing is forgiven: the
//! share is exact over time.
//!
//! New parameters start a new period at once and yield no CPU time. CPU time used of the old slice
//! beyond `slice × elapsed / period` is excess over the fluid rate. The excess is deducted from the
//! first new slices. The same holds for a vCPU that leaves and rejoins.
//!
//! With a phase, periods begin at fixed times. The first period is shorter, and a period that is
//! cut short has a prorated budget. So for any phase a vCPU demands at most slice/period of the
//! time since the start of a period. Admission need not know phases, and a phase yields no CPU
//! time.
//!
//! With placement by splitting (`split`), a vCPU may fit on no CPU as a whole. It then runs the
//! subtasks of its slice one after the other, each on one CPU. A subtask has its own deadline,
//! which gives it precedence. If a late timer leaves a subtask incomplete, its remaining budget is
//! added to the next subtask. On CPUs with subtasks a vCPU that wakes keeps only the budget that it
//! would have left had it run while it was blocked.
//!
//! Budget that vCPUs of a VM leave unused can be lent to siblings (`borrowing`). A loan comes out
//! of the unreserved share of the borrower's CPU, as a larger slice of one period.
//!
//! Departs from [VSched]: a block within a period never causes a deadline miss of another vCPU. A
//! vCPU that woke with its whole slice late in the period would demand more than slice/period until
//! its deadline. Two amounts of budget are harmless: the budget that the vCPU would have left had
//! it run while it was blocked, and `slice/period` of the rest of the period. The vCPU keeps the
//! larger amount. So a short block costs no more than its length.

mod admission;
mod borrowing;
mod fields;
mod overrun;
mod page;
mod period;
mod split;

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, GridClock, Periods, Reservation};
use slackline_units::{Span, Time, VcpuId};

use self::borrowing::groups::{SiblingGroups, UnusedBudget};
use self::borrowing::loans::Loans;
use self::fields::{
    EXACT, OVERRUN, PERIOD, PHASE, PLACE, QUANTUM, RESERVE, SLICE, SPREAD, UNBLOCKING,
    begins_at_wake, conflict, is_by_use, periods, promise,
};
use self::overrun::history::OverrunHistory;
use self::overrun::leniency::Leniency;
use self::split::{demands, reserved};
use crate::admission::bookings::{AdmissionRequest, BookedPlacement, Bookings};
use crate::admission::placement::Packing;
use crate::admission::subtasks::SubtaskCursor;
use crate::api::field::{distance, slice_of};
use crate::queues::ordered::Queues;
use crate::{
    Account, AdmitError, Entitlement, Moment, Pick, Policy, Roster, Spec, Topology, Values,
};

/// Description of the policy `edf`.
pub(crate) const SPEC: Spec = Spec {
    name: "edf",
    summary: "a slice in every period, earliest deadline first (VSched)",
    page: page::PAGE,
    policy_fields: &[RESERVE, PLACE, QUANTUM, UNBLOCKING],
    share_fields: &[SLICE, PERIOD, EXACT, OVERRUN, PHASE, SPREAD],
    conflict,
    promise,
    keeps: |values, _| !begins_at_wake(values),
    limit: Some(|share, period| {
        let mut terms = slice_of(share, period);
        terms.push(("exact", "true".into()));
        terms.push(("overrun", "\"repay\"".into()));
        terms
    }),
    together: Some(("spread", "use")),
    payer: None,
    build: |values, topology| Box::new(Edf::new(values, topology)),
};

struct Edf {
    promised: Bookings,
    quantum: Span,
    /// Two queues per CPU, by deadline: `owed` with the vCPUs that have budget left, `served` with
    /// the other vCPUs.
    deadlines: Queues<Time>,
    /// One queue per CPU: the vCPUs in `served` that may use slack, in order of `SlackRank`.
    spare: Queues<SlackRank>,
    /// Least slack that any vCPU in `spare` has received, by CPU. A vCPU that wakes starts from
    /// this amount.
    spare_floor: Vec<Span>,
    spare_time: Vec<SpareTime>,
    servers: Roster<EdfServer>,
    /// vCPUs that share unused budget with their siblings, by VM.
    families: SiblingGroups,
    loans: Loans,
    /// Clock to which periods with a fixed phase are aligned.
    clock: GridClock,
    /// True if a new period begins when a vCPU wakes.
    begins_at_wake: bool,
}

/// Slack of one CPU, from which overruns are paid.
#[derive(Clone, Copy, Debug)]
struct SpareTime {
    /// Number of times that the CPU became quiescent.
    rests: u32,
    /// Unreserved share of the CPU, minus the share that is lent.
    share: CpuShare,
}

impl SpareTime {
    /// Returns the slack of the CPU in `time`: `share × time`.
    fn of(self, time: Span) -> Span {
        let ns = u128::from(time.ns()) * u128::from(self.share.ppm()) / 1_000_000;
        Span::from_ns(u64::try_from(ns).expect("a share is at most one CPU"))
    }
}

/// Rank of a vCPU in the order in which vCPUs get slack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SlackRank {
    /// The vCPU has backlog. Such vCPUs come first, in order of their current deadlines.
    Late(Time),
    /// The vCPU is work-conserving and has no backlog. Such vCPUs follow, in order of the slack
    /// that they have received, least first.
    Unclaimed(Span),
}

/// Budget and accounts of one vCPU.
struct EdfServer {
    periods: Periods,
    exact: bool,
    /// True if a new period of this vCPU begins when it wakes.
    begins_at_wake: bool,
    /// True if the vCPU's slices pay for all of its overrun (`overrun = "repay"`).
    repays: bool,
    /// CPU to which the vCPU is bound. For a split vCPU, the CPU of its current subtask.
    cpu: CpuId,
    /// Progress through the subtasks. `None` if the vCPU is not split.
    in_parts: Option<SubtaskCursor>,
    /// End of the current period.
    deadline: Time,
    /// Budget of the current period, before deductions.
    worth: Span,
    /// Budget left in this period, including borrowed budget.
    remaining: Span,
    /// Excess over the fluid rate from earlier parameters, to be deducted from the next slices.
    advance: Span,
    /// Overrun to be deducted from the next slices.
    debt: Span,
    /// Part of the debt that can still make other vCPUs of the same CPU wait.
    urgent: Span,
    /// Time at which `urgent` was last updated, and the value of the CPU's `rests` at that time.
    counted: (Time, u32),
    stops: OverrunHistory,
    /// Overrun that a vCPU with a hard limit may still be forgiven.
    leniency: Leniency,
    /// Budget that the vCPU did not receive by past deadlines although it was runnable.
    backlog: Span,
    /// Slack that the vCPU has received. Raised to `spare_floor` of its CPU when it wakes.
    spare_used: Span,
    /// Time at which the vCPU blocked. `NEVER` while it is runnable.
    asleep_since: Time,
    /// True if the vCPU was blocked in this period. Budget that it does not receive in the period
    /// is then no backlog.
    slept: bool,
    /// State of borrowing. `None` if the vCPU does not share unused budget with its siblings.
    by_use: Option<Box<UnusedBudget>>,
}

impl Policy for Edf {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let periods = periods(share)?;
        let BookedPlacement { cpu, parts, advance, .. } = self.promise(at, vcpu, None, periods)?;
        let cpus: CpuSet = parts.iter().map(|part| part.cpu).chain([cpu]).collect();
        cpus.iter().for_each(|cpu| self.note_promises(at, cpu));
        let deadline = periods.first_end(at.now(), &self.clock);
        let slice = periods.worth(at.now(), deadline);
        let in_advance = advance.min(slice);
        let server = EdfServer {
            periods,
            exact: share.flag(&EXACT),
            begins_at_wake: self.begins_at_wake(share),
            repays: share.choice(&OVERRUN) == "repay",
            cpu,
            in_parts: SubtaskCursor::new(parts),
            deadline,
            worth: slice,
            remaining: slice - in_advance,
            advance: advance - in_advance,
            debt: Span::ZERO,
            urgent: Span::ZERO,
            counted: (at.now(), 0),
            stops: OverrunHistory::default(),
            leniency: Leniency::full(periods.reservation, at.now()),
            backlog: Span::ZERO,
            spare_used: Span::ZERO,
            asleep_since: at.now(),
            slept: true,
            by_use: None,
        };
        self.servers.insert(vcpu, server);
        self.spread(at.now(), vcpu, is_by_use(share));
        let cut = self.cut_loans(at, cpus);
        self.loans.ask_about(at.now(), cut);
        Ok(())
    }

    /// Changes the parameters. A new period starts at once, so the parameters take effect with the
    /// next scheduling decision.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let periods = periods(share)?;
        let tenant = self.servers[vcpu].tenant(vcpu, at.now());
        let home = tenant.cpu;
        let mut cpus = self.servers[vcpu].cpus();
        let BookedPlacement { cpu, parts, waits, .. } =
            self.promise(at, vcpu, Some(tenant), periods)?;
        self.dequeue(vcpu);
        cpus.extend(parts.iter().map(|part| part.cpu).chain([cpu]));
        cpus.iter().for_each(|cpu| self.note_promises(at, cpu));
        self.end_loan(at.now(), vcpu);
        self.cut_loans(at, cpus);
        let begins_at_wake = self.begins_at_wake(share);
        let server = &mut self.servers[vcpu];
        server.advance = tenant.advance;
        server.leniency.change(periods.reservation, at.now());
        server.periods = periods;
        server.exact = share.flag(&EXACT);
        server.begins_at_wake = begins_at_wake;
        server.repays = share.choice(&OVERRUN) == "repay";
        server.cpu = cpu;
        server.in_parts = SubtaskCursor::new(parts);
        let deadline = periods.first_end(at.now(), &self.clock);
        let slice = periods.worth(at.now(), deadline);
        server.begin((slice, deadline), at.now(), self.spare_time[home.index()]);
        if waits {
            (server.worth, server.remaining) = (Span::ZERO, Span::ZERO);
        }
        server.backlog = Span::ZERO;
        self.spread(at.now(), vcpu, is_by_use(share));
        if at.is_awake(vcpu) {
            self.enqueue(vcpu);
        }
        Ok(cpus)
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.end_loan(at.now(), vcpu);
        self.families.remove(vcpu);
        let server = self.servers.remove(vcpu).expect("a joined vCPU has a server");
        let owed = server.owed_on_leave(at.now());
        self.promised.remove(at.now(), server.tenant(vcpu, at.now()), owed);
        server.cpus().iter().for_each(|cpu| self.note_promises(at, cpu));
        server.elsewhere()
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpu = self.servers[vcpu].cpu;
        let is_strict = !self.promised.strict().is_empty() && self.is_strict(at, cpu);
        let server = &mut self.servers[vcpu];
        let before = server.deadline;
        let spare_time = self.spare_time[cpu.index()];
        if server.begins_at_wake {
            server.wake_anew(at.now(), spare_time, &self.clock);
        } else {
            server.wake(at.now(), spare_time, &self.clock, is_strict);
        }
        let cpu = server.cpu;
        server.spare_used = server.spare_used.max(self.spare_floor[cpu.index()]);
        if server.deadline != before && server.ran_out_before() {
            self.lend(at, vcpu);
        }
        self.insert(vcpu);
        CpuSet::one(cpu)
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let server = &mut self.servers[vcpu];
        let due = ran.min(server.remaining);
        let mut beyond = ran - due;
        if !due.is_zero() {
            server.remaining -= due;
            if server.by_use.is_some() {
                beyond = self.charge_by_use(at, vcpu, beyond);
            }
            let server = &mut self.servers[vcpu];
            server.stops.is_stopped = server.remaining.is_zero() && at.is_awake(vcpu);
            // Overrun of a timeslice on budget is debt. Time received in slack is not.
            if server.exact || at.cpu_of(vcpu).is_some() {
                server.overrun(beyond, at.now(), self.spare_time[server.cpu.index()]);
            } else {
                server.spare_used += beyond;
            }
            if server.in_parts.is_some() {
                return self.charge_part(at, vcpu, due);
            }
            if server.remaining.is_zero() && at.is_awake(vcpu) {
                self.enqueue(vcpu);
            }
        } else if !beyond.is_zero() {
            server.stops.is_stopped &= !server.exact || at.is_awake(vcpu);
            self.charge_beyond(at.now(), vcpu, beyond);
        }
        CpuSet::NONE
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.note_rest(self.servers[vcpu].cpu);
        let server = &mut self.servers[vcpu];
        server.asleep_since = at.now();
        server.slept = true;
        server.backlog = Span::ZERO;
        server.elsewhere()
    }

    /// Prepares a pick. A split vCPU that still occupies this CPU can start on its next CPU only
    /// after it left this CPU. So the next CPU is rescheduled too.
    fn prepare_pick(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        if self.promised.strict().is_empty() {
            return CpuSet::NONE;
        }
        let home = at.occupant(cpu).map(|vcpu| self.servers[vcpu].cpu);
        home.filter(|&home| home != cpu).into_iter().collect()
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        match self.deadlines.first(owed(cpu)) {
            Some((_, vcpu)) if at.is_eligible(vcpu, cpu) => self.due(vcpu),
            None if self.spare.is_empty(cpu.index()) => Pick::Idle,
            _ => self.pick_other(at, cpu),
        }
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        if let Some(at) = self.loans.asks(cpu) {
            return Some(at);
        }
        let first = |queue| self.deadlines.first(queue).map(|(deadline, _)| deadline);
        match (first(owed(cpu)), first(served(cpu))) {
            (Some(owed), Some(served)) => Some(owed.min(served)),
            (owed, served) => owed.or(served),
        }
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let mut cpus = CpuSet::one(cpu);
        self.loans.asked(cpu);
        if self.loans.are_on(cpu) {
            self.loans.lapse(cpu, at.now());
            self.note_spare_time(at.now(), cpu);
        }
        for queue in [owed(cpu), served(cpu)] {
            while let Some((due_by, vcpu)) = self.deadlines.first(queue) {
                if due_by > at.now() {
                    break;
                }
                let server = &mut self.servers[vcpu];
                if server.deadline > at.now() {
                    server.catch_up(at.now());
                } else {
                    let spare_time = self.spare_time[cpu.index()];
                    server.begin_period(at.now(), spare_time, &self.clock);
                    server.catch_up(at.now());
                }
                cpus.insert(server.cpu);
                if server.ran_out_before() {
                    self.lend(at, vcpu);
                }
                self.enqueue(vcpu);
            }
        }
        cpus
    }

    fn set_clock(&mut self, at: &Moment, ahead: Span) {
        self.clock.set(at.now(), ahead);
    }

    fn available_slice(&self, at: &Moment, period: Span, allowed: CpuSet) -> Option<Span> {
        let least = Reservation::new(Span::from_ns(1), period).ok()?;
        let asked = self.promised.asked(at, least, allowed, |cpu| self.rests(at.now(), cpu));
        let how = (&self.clock, self.promised.looks());
        let demands = || demands(&self.servers, None, (at, allowed), how);
        let lent = self.lent(at, allowed);
        self.promised.room(&AdmissionRequest { lent: &lent, demands: &demands, ..asked })
    }

    fn reserved(&self, cpu: CpuId) -> Option<CpuShare> {
        Some(reserved(&self.servers, cpu))
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        let server = &self.servers[vcpu];
        let parts = server.in_parts.as_ref().map(|in_parts| ("split", in_parts.shown()));
        let rows = alloc::vec![
            ("cpu", server.cpu.to_string()),
            ("remaining", server.remaining.to_string()),
            ("deadline", distance(Time::START, server.deadline)),
            ("debt", server.debt.to_string()),
            ("spare used", server.spare_used.to_string()),
        ];
        let lent = server.by_use.is_some().then(|| ("lent", server.loan().to_string()));
        rows.into_iter().chain(parts).chain(lent).collect()
    }
}

impl Edf {
    fn new(values: &Values, topology: &Topology) -> Edf {
        let capacity = CpuShare::ONE.less(values.share(&RESERVE));
        let packing = match values.choice(&PLACE) {
            "pack" => Packing::Pack,
            "split" => Packing::Split,
            _ => Packing::Spread,
        };
        Edf {
            promised: Bookings::new(topology, Some(capacity), packing),
            quantum: values.span(&QUANTUM),
            deadlines: Queues::new(2 * topology.cpus()),
            spare: Queues::new(topology.cpus()),
            spare_floor: alloc::vec![Span::ZERO; topology.cpus()],
            spare_time: alloc::vec![
                SpareTime { rests: 0, share: CpuShare::ONE };
                topology.cpus()
            ],
            servers: Roster::default(),
            families: SiblingGroups::default(),
            loans: Loans::new(topology.cpus()),
            clock: GridClock::default(),
            begins_at_wake: begins_at_wake(values) && packing != Packing::Split,
        }
    }

    /// Returns true if a new period of a vCPU with these parameters begins when it wakes. Returns
    /// false if the vCPU has a phase, since its periods then stay at fixed times, or if it borrows
    /// from siblings.
    fn begins_at_wake(&self, share: &Values) -> bool {
        self.begins_at_wake && share.maybe_span(&PHASE).is_none() && !is_by_use(share)
    }

    /// Charges CPU time that a vCPU used without budget.
    #[inline(never)]
    fn charge_beyond(&mut self, now: Time, vcpu: VcpuId, beyond: Span) {
        let server = &mut self.servers[vcpu];
        let made_up = beyond.min(server.backlog);
        server.backlog -= made_up;
        let more = beyond - made_up;
        let cpu = server.cpu.index();
        if server.exact {
            server.overrun(more, now, self.spare_time[cpu]);
        } else {
            server.spare_used += more;
        }
        if self.spare.queue_of(vcpu).is_some() {
            self.enqueue(vcpu);
            if let Some((SlackRank::Unclaimed(least), _)) = self.spare.first(cpu) {
                self.spare_floor[cpu] = self.spare_floor[cpu].max(least);
            }
        } else {
            // If no vCPU on this CPU has budget left, no vCPU has to wait because of this time.
            self.note_rest(self.servers[vcpu].cpu);
        }
    }

    #[inline]
    fn due(&self, vcpu: VcpuId) -> Pick {
        Pick::Run { vcpu, limit: Some(self.servers[vcpu].limit()), entitlement: Entitlement::Due }
    }

    /// Picks a vCPU if the first vCPU with budget is not eligible, or no vCPU has budget left.
    #[inline(never)]
    fn pick_other(&self, at: &Moment, cpu: CpuId) -> Pick {
        let is_eligible = |vcpu| at.is_eligible(vcpu, cpu);
        if let Some((_, vcpu)) = self.deadlines.first_that(owed(cpu), is_eligible) {
            return self.due(vcpu);
        }
        let Some((_, vcpu)) = self.spare.first_that(cpu.index(), is_eligible) else {
            return Pick::Idle;
        };
        let backlog = self.servers[vcpu].backlog;
        if backlog.is_zero() {
            Pick::Run { vcpu, limit: Some(self.quantum), entitlement: Entitlement::Spare }
        } else {
            Pick::Run {
                vcpu,
                limit: Some(backlog.min(self.quantum)),
                entitlement: Entitlement::Arrears,
            }
        }
    }

    /// Moves a runnable vCPU to the queues that match its budget and backlog.
    #[inline(never)] // Most charges move no vCPU.
    fn enqueue(&mut self, vcpu: VcpuId) {
        self.dequeue(vcpu);
        self.insert(vcpu);
    }

    #[inline(always)]
    fn insert(&mut self, vcpu: VcpuId) {
        let server = &self.servers[vcpu];
        let is_served = server.remaining.is_zero();
        let queue = if is_served { served(server.cpu) } else { owed(server.cpu) };
        let due_by = if is_served { server.deadline } else { server.due_by() };
        self.deadlines.insert(queue, due_by, vcpu);
        if !is_served {
            return;
        }
        self.note_rest(server.cpu);
        let server = &self.servers[vcpu];
        if !server.backlog.is_zero() {
            self.spare.insert(server.cpu.index(), SlackRank::Late(server.deadline), vcpu);
        } else if !server.exact {
            self.spare.insert(server.cpu.index(), SlackRank::Unclaimed(server.spare_used), vcpu);
        }
    }

    /// Charges a split vCPU for CPU time of its slice.
    #[inline(never)]
    fn charge_part(&mut self, at: &Moment, vcpu: VcpuId, due: Span) -> CpuSet {
        let (server, is_awake) = (&mut self.servers[vcpu], at.is_awake(vcpu));
        let before = server.cpu;
        // If the period has ended, the vCPU stays on its CPU until the timer expires.
        if server.deadline > at.now() {
            server.go_on(due);
            server.catch_up(at.now());
        }
        if server.remaining.is_zero() && server.cpu == before && is_awake {
            self.enqueue(vcpu);
        }
        self.follow(vcpu, before, is_awake)
    }

    /// Counts the CPU as quiescent if no vCPU on it has budget left. Earlier overruns cannot cause
    /// deadline misses from then on.
    #[inline(always)]
    fn note_rest(&mut self, cpu: CpuId) {
        if self.deadlines.is_empty(owed(cpu)) {
            let spare_time = &mut self.spare_time[cpu.index()];
            spare_time.rests = spare_time.rests.wrapping_add(1);
        }
    }

    #[inline(always)]
    fn dequeue(&mut self, vcpu: VcpuId) {
        self.deadlines.remove(vcpu);
        self.spare.remove(vcpu);
    }
}

/// Index of the queue of runnable vCPUs with budget left.
fn owed(cpu: CpuId) -> usize {
    2 * cpu.index()
}

/// Index of the queue of runnable vCPUs that wait for their next period.
fn served(cpu: CpuId) -> usize {
    2 * cpu.index() + 1
}
