//! Scheduling pass of a CPU, as in Xen [Xen 3.0, §6.4]. It charges the last run interval and
//! advances vCPUs whose periods begin or end. It then decides which vCPU runs next and until when.

use slackline_units::{CpuId, Span, Time, VcpuId};

use super::Sedf;
use super::rules::{Compensation, Slack};
use super::score::Score;
use crate::Moment;

/// Source of the CPU time for which a vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetSource {
    /// Budget of the vCPU's own slice.
    Guarantee,
    /// Slack, as compensation for lost or missed budget.
    Penalty,
    /// Slack that is divided by weight among the vCPUs that may use it.
    Extra,
}

/// Decision of a scheduling pass about one CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassDecision {
    pub(super) vcpu: VcpuId,
    pub(super) right: BudgetSource,
    /// Latest time of the next scheduling pass.
    pub(super) until: Time,
    /// CPU time charged so far in this timeslice.
    pub(super) ran: Span,
}

impl Sedf {
    /// Runs a scheduling pass of a CPU and sets its timer.
    pub(super) fn decide(&mut self, at: &Moment, cpu: CpuId) {
        if let Some(turn) = self.cpus[cpu.index()].turn.take() {
            self.settle(at, turn);
        }
        self.move_on(at, cpu);
        let turn = self.choose(at, cpu);
        let waits = self.waits(at.now(), cpu);
        let this = &mut self.cpus[cpu.index()];
        (this.turn, this.waits) = (turn, waits);
        let next = self.deadlines.first(waiting(cpu)).map(|((begin, _), _)| begin);
        let next = next.into_iter().chain(self.part_is_over(cpu)).min();
        self.cpus[cpu.index()].alarm = next.map(|next| self.after_now(next, at.now()));
    }

    /// Accounts for a timeslice that has ended. [Xen 3.0, §6.4 steps 1 to 3, §6.5]
    #[inline(always)] // Otherwise the decision is passed through memory.
    pub(super) fn settle(&mut self, at: &Moment, turn: PassDecision) {
        let PassDecision { vcpu, right, ran, .. } = turn;
        let awake = at.is_awake(vcpu);
        match right {
            BudgetSource::Guarantee => self.use_slice(at, vcpu, ran),
            BudgetSource::Penalty => {
                self.begin_extra(vcpu, ran);
                let rules = self.rules;
                self.servers[vcpu].make_up(ran, &rules);
                self.penalties.remove(vcpu);
                self.enter_penalties(vcpu);
            }
            BudgetSource::Extra => {
                self.begin_extra(vcpu, ran);
                let cost = self.cost(vcpu, ran);
                self.spend(vcpu, cost, awake);
            }
        }
        if !awake {
            self.sleep(at.now(), vcpu);
        }
    }

    /// Charges CPU time to the slice of a vCPU.
    #[inline(always)]
    pub(super) fn use_slice(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) {
        let server = &mut self.servers[vcpu];
        if server.in_parts.is_some() {
            return self.use_parts(at, vcpu, ran);
        }
        server.used += ran;
        self.end_slice(vcpu);
    }

    /// Counts slack that a vCPU received. If overruns are forgiven, the usage of its slice is
    /// cleared.
    fn begin_extra(&mut self, vcpu: VcpuId, ran: Span) {
        let forgives = !self.rules.carries_overrun;
        let server = &mut self.servers[vcpu];
        server.extra_time += ran;
        if forgives {
            server.used = Span::ZERO;
        }
    }

    /// Moves a vCPU on to its next period if its slice is exhausted.
    pub(super) fn end_slice(&mut self, vcpu: VcpuId) {
        let full = self.full_slice(vcpu);
        let rules = self.rules;
        let server = &mut self.servers[vcpu];
        server.see(full);
        if full.is_zero() || server.used < server.slice(full) {
            return;
        }
        server.end_period(full, &rules);
        if self.deadlines.queue_of(vcpu).is_some() {
            self.deadlines.remove(vcpu);
            self.wait(vcpu);
        }
    }

    /// Returns the cost, in slack score, of slack that a vCPU received for `ran`.
    pub(super) fn cost(&self, vcpu: VcpuId, ran: Span) -> Score {
        let planned = self.balancer.as_ref().and_then(|balancer| balancer.cost(vcpu));
        let cost = planned.unwrap_or_else(|| self.servers[vcpu].terms.cost(self.full_slice(vcpu)));
        match self.rules.slack {
            Slack::RoundRobin => Score::ZERO,
            _ if self.rules.charges_whole_quanta => cost.whole(),
            _ => cost.of(ran, self.rules.quantum),
        }
    }

    /// Moves a vCPU back in the queue for slack by `cost`. The other vCPUs keep their scores. The
    /// base of the queue is the score of the last vCPU that received slack, and vCPUs that wake
    /// start from it. Xen instead subtracts that score from the scores of all other vCPUs, except
    /// if the vCPU blocked.
    pub(super) fn spend(&mut self, vcpu: VcpuId, cost: Score, stays: bool) {
        if self.extras.queue_of(vcpu).is_none() {
            self.servers[vcpu].score = cost;
            return;
        }
        let server = &mut self.servers[vcpu];
        let before = server.score;
        if stays || !self.rules.charges_whole_quanta {
            self.cpus[server.cpu.index()].base = before;
        }
        if stays {
            server.score = before + cost;
            let key = (server.score, self.tickets);
            self.tickets += 1;
            self.extras.change(key, vcpu);
        } else {
            self.extras.remove(vcpu);
            server.score = cost;
        }
    }

    /// Removes a vCPU from all queues, because it blocks.
    pub(super) fn sleep(&mut self, now: Time, vcpu: VcpuId) {
        self.leave_queues(vcpu);
        let server = &mut self.servers[vcpu];
        server.blocked = Some(now);
        server.slept = true;
        server.missed = Span::ZERO;
    }

    /// Removes a vCPU from all queues.
    pub(super) fn leave_queues(&mut self, vcpu: VcpuId) {
        self.deadlines.remove(vcpu);
        self.penalties.remove(vcpu);
        if self.extras.queue_of(vcpu).is_some() {
            let server = &mut self.servers[vcpu];
            server.score = server.score - self.cpus[server.cpu.index()].base;
            self.extras.remove(vcpu);
        }
    }

    /// Adds a runnable vCPU to its deadline queue and to its queues for slack.
    pub(super) fn join_queues(&mut self, now: Time, vcpu: VcpuId) {
        if self.has_periods(vcpu) {
            if self.servers[vcpu].begin() > now { self.wait(vcpu) } else { self.ready(vcpu) }
        }
        self.join_slack(vcpu);
    }

    /// Adds a runnable vCPU to the queues for slack that it is entitled to.
    pub(super) fn join_slack(&mut self, vcpu: VcpuId) {
        self.enter_penalties(vcpu);
        let server = &mut self.servers[vcpu];
        if server.terms.extra && self.rules.has_extra_queue() {
            server.score = server.score + self.cpus[server.cpu.index()].base;
            let key = (server.score, self.tickets);
            self.tickets += 1;
            self.extras.insert(server.cpu.index(), key, vcpu);
        }
    }

    /// Adds a vCPU whose period has begun to the ready queue, by the deadline of its period or its
    /// subtask.
    pub(super) fn ready(&mut self, vcpu: VcpuId) {
        let server = &self.servers[vcpu];
        self.deadlines.insert(ready(server.cpu), (server.due_by(), self.tickets), vcpu);
        self.tickets += 1;
    }

    /// Adds a vCPU whose slice is exhausted to the waiting queue, by the start of its next period.
    pub(super) fn wait(&mut self, vcpu: VcpuId) {
        let server = &self.servers[vcpu];
        self.deadlines.insert(waiting(server.cpu), (server.begin(), self.tickets), vcpu);
        self.tickets += 1;
    }

    /// Adds a vCPU to the penalty queue if it has lost or missed budget. The queue is ordered by
    /// `period / (lost + missed budget)`, the lowest value first. [Diestelhorst, equation 3.5]
    fn enter_penalties(&mut self, vcpu: VcpuId) {
        let server = &self.servers[vcpu];
        let due = server.due_from_slack();
        if due.is_zero() || !self.rules.has_penalty_queue() {
            return;
        }
        let score = Score::in_tenths(server.period.ns(), due.ns());
        self.penalties.insert(server.cpu.index(), (score, self.tickets), vcpu);
        self.tickets += 1;
    }

    /// Updates the place of a vCPU in the penalty queue, if it is in that queue. A vCPU without
    /// lost or missed budget leaves the queue.
    fn leave_penalties_if_paid(&mut self, vcpu: VcpuId) {
        if self.penalties.queue_of(vcpu).is_some() {
            self.penalties.remove(vcpu);
            self.enter_penalties(vcpu);
        }
    }

    /// Advances the vCPUs of a CPU if their periods have begun or ended. Examines the head of each
    /// queue until the head needs no change. [Xen 3.0, §6.4 step 4]
    fn move_on(&mut self, at: &Moment, cpu: CpuId) {
        let (now, rules) = (at.now(), self.rules);
        while let Some(((begin, _), vcpu)) = self.deadlines.first(waiting(cpu)) {
            if begin > now {
                break;
            }
            self.deadlines.remove(vcpu);
            self.servers[vcpu].begin_period(now, &rules);
            self.set_slice(at, vcpu);
            self.leave_penalties_if_paid(vcpu);
            self.ready(vcpu);
        }
        while let Some(((deadline, _), vcpu)) = self.deadlines.first(ready(cpu)) {
            if self.end_part(now, vcpu) {
                continue;
            }
            let full = self.full_slice(vcpu);
            let server = &mut self.servers[vcpu];
            server.see(full);
            let slice = server.slice(full);
            let over = if rules.repays_misses { deadline <= now } else { deadline < now };
            if full.is_zero() {
                server.skip_period(now, &rules);
                self.deadlines.remove(vcpu);
                self.wait(vcpu);
                continue;
            } else if server.used >= slice && (rules.carries_overrun || server.used == slice) {
                server.end_period(full, &rules);
            } else if over || server.used > slice {
                server.miss(now, full, &rules);
            } else {
                break;
            }
            self.deadlines.remove(vcpu);
            self.leave_penalties_if_paid(vcpu);
            if self.servers[vcpu].begin() > now {
                self.wait(vcpu);
            } else {
                self.set_slice(at, vcpu);
                self.ready(vcpu);
            }
            self.follow(vcpu);
        }
    }

    /// Repeats the choice of a pass because the vCPU that it chose cannot run.
    #[inline(never)]
    pub(super) fn choose_again(&self, at: &Moment, cpu: CpuId) -> Option<PassDecision> {
        self.choose(at, cpu)
    }

    /// Returns the next vCPU to run, with the end of its timeslice. [Xen 3.0, §6.4 step 5, §6.5]
    #[inline(always)] // Otherwise the decision is returned through memory.
    fn choose(&self, at: &Moment, cpu: CpuId) -> Option<PassDecision> {
        let now = at.now();
        let next = self.deadlines.first(waiting(cpu)).map(|((begin, _), _)| begin);
        let turn = |vcpu, right, length: Span| {
            let next = next.map_or(Time::NEVER, |begin| self.after_now(begin, now));
            let end = now.after(length);
            PassDecision { vcpu, right, until: end.min(next), ran: Span::ZERO }
        };
        let is_eligible = |vcpu| at.is_eligible(vcpu, cpu);
        let has_slice = |vcpu| !self.full_slice(vcpu).is_zero();
        if let Some((_, vcpu)) =
            self.deadlines.first_that(ready(cpu), |vcpu| is_eligible(vcpu) && has_slice(vcpu))
        {
            let server = &self.servers[vcpu];
            let left = server.slice(self.full_slice(vcpu)).left_after(server.used);
            let left = server.left_here(left);
            return Some(turn(vcpu, BudgetSource::Guarantee, left));
        }
        if self.waits(now, cpu) {
            return None;
        }
        let quantum = self.rules.quantum;
        if let Some((_, vcpu)) = self.penalties.first_that(cpu.index(), is_eligible) {
            let due = self.servers[vcpu].due_from_slack();
            let to_the_end = self.rules.compensation == Compensation::InPeriod;
            let length = if to_the_end { quantum.min(due) } else { quantum };
            return Some(turn(vcpu, BudgetSource::Penalty, length));
        }
        let (_, vcpu) = self.extras.first_that(cpu.index(), is_eligible)?;
        Some(turn(vcpu, BudgetSource::Extra, quantum))
    }

    /// Returns true if slack of a CPU stays unused because a period begins before a quantum would
    /// end.
    fn waits(&self, now: Time, cpu: CpuId) -> bool {
        let next = self.deadlines.first(waiting(cpu)).map(|((begin, _), _)| begin);
        let is_short = |begin: Time| begin.since(now) < self.rules.quantum;
        !self.rules.fills_gaps && next.is_some_and(is_short)
    }

    /// Returns `time`. If `time` has passed already, returns a quantum from now, as in Xen. [Xen
    /// 3.0, §6.4 step 6]
    fn after_now(&self, time: Time, now: Time) -> Time {
        if time > now { time } else { now.after(self.rules.quantum) }
    }
}

/// Returns the index of a CPU's ready queue, which has the vCPUs with budget left in their current
/// period.
pub(super) fn ready(cpu: CpuId) -> usize {
    2 * cpu.index()
}

/// Returns the index of a CPU's waiting queue, which has the vCPUs that wait for their next period.
pub(super) fn waiting(cpu: CpuId) -> usize {
    2 * cpu.index() + 1
}
