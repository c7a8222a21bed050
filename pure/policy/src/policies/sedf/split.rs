//! Split vCPUs: in each period a split vCPU runs the subtasks of its slice one after another, each
//! on its own CPU (`split`).
//!
//! A split vCPU is in the queues of the CPU of its current subtask. Its key in the ready queue is
//! the deadline of that subtask, and its slack comes from that CPU as well. When the subtask is
//! complete or its deadline passes, the vCPU migrates to the next CPU with its remaining budget.
//! When the slice is exhausted it waits on the CPU of its first subtask. The CPUs to reschedule are
//! collected until the current event handler returns.
//!
//! On CPUs with subtasks a vCPU that wakes keeps only the budget left had it run while it was
//! blocked. vCPUs with a weight get all time that reservations leave on their CPU. So no CPU has
//! both subtasks and vCPUs with a weight.

use alloc::boxed::Box;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use super::Sedf;
use super::pass::{BudgetSource, ready, waiting};
use super::server::SedfServer;
use super::terms::SedfParameters;
use crate::Moment;
use crate::admission::demand::{Demand, Job, TaskDemand};
use crate::admission::split::{Splits, Subtask};
use crate::admission::subtasks::{PeriodState, SubtaskCursor};
use crate::balance::CALL;

/// Split reservations, and the CPUs to reschedule because a split vCPU migrated to them.
#[derive(Debug)]
pub(super) struct SplitState {
    pub(super) splits: Splits,
    /// CPUs to reschedule because a vCPU migrated to them.
    to_ask: CpuSet,
}

impl SplitState {
    pub(super) fn new(splits: Splits) -> Box<SplitState> {
        Box::new(SplitState { splits, to_ask: CpuSet::NONE })
    }
}

impl SedfServer {
    /// Sets the subtasks of a vCPU. An empty list binds the vCPU to one CPU.
    pub(super) fn set_parts(&mut self, parts: Vec<Subtask>) {
        self.in_parts = SubtaskCursor::new(parts).map(Box::new);
    }

    /// Returns the CPU whose tally counts the vCPU: the CPU to which it is bound, or the CPU of its
    /// first subtask.
    pub(super) fn home(&self) -> CpuId {
        let first = self.in_parts.as_ref().and_then(|in_parts| in_parts.iter().next());
        first.map_or(self.cpu, |part| part.cpu)
    }

    /// Returns the deadline of the current subtask, or of the period if the vCPU is not split.
    #[inline(always)]
    pub(super) fn due_by(&self) -> Time {
        match &self.in_parts {
            None => self.deadline,
            Some(in_parts) => self.begin().after(in_parts.now().ends),
        }
    }

    /// Returns the part of the remaining budget `left` that may be used on the current CPU.
    #[inline(always)]
    pub(super) fn left_here(&self, left: Span) -> Span {
        self.in_parts.as_ref().map_or(left, |in_parts| in_parts.left_of(left))
    }

    /// Goes back to the first subtask at the start of a period.
    #[inline(always)]
    pub(super) fn restart_parts(&mut self) {
        self.in_parts.iter_mut().for_each(|in_parts| in_parts.restart());
    }

    /// Advances the vCPU through its subtasks by `ran`: CPU time received, or budget that the vCPU
    /// forfeited while it was blocked.
    pub(super) fn go_on(&mut self, ran: Span) {
        self.in_parts.iter_mut().for_each(|in_parts| in_parts.go_on(ran));
    }

    /// Ends subtasks whose deadlines have passed, even if they are incomplete. After the deadline
    /// of the period the vCPU stays in its subtask until the next period begins.
    pub(super) fn catch_up(&mut self, now: Time) {
        let since_begin = now.since(self.begin());
        if now < self.deadline {
            self.in_parts.iter_mut().for_each(|in_parts| in_parts.catch_up(since_begin));
        }
    }

    /// Returns the state of the vCPU in its current period. If the current period has ended,
    /// returns the state in the period that contains `now`. `None` if the vCPU has no fixed slice.
    /// `more` is CPU time used but not charged yet.
    fn standing(&self, now: Time, more: Span, is_awake: bool) -> Option<PeriodState> {
        let share = self.terms.reservation().ok().flatten()?;
        let (slice, period) = (share.slice(), share.period());
        let mut in_parts = self.in_parts.as_deref().cloned();
        let left = slice.left_after(self.used + more);
        let (begins, deadline, left) = if now < self.begin() {
            // The budget of the previous period is exhausted.
            let before = self.begin().since(Time::START).left_after(period);
            (Time::START.after(before), self.begin(), Span::ZERO)
        } else if now < self.deadline {
            in_parts.iter_mut().for_each(|in_parts| in_parts.go_on(more));
            (self.begin(), self.deadline, left)
        } else {
            in_parts.iter_mut().for_each(SubtaskCursor::restart);
            let begins = self.deadline.after(period * (now.since(self.deadline) / period));
            (begins, begins.after(period), slice)
        };
        let since = self.blocked.map_or(begins, |blocked| blocked.max(begins));
        let slept = if is_awake { Span::ZERO } else { now.since(since) };
        Some(PeriodState { share, cpu: self.cpu, in_parts, begins, deadline, left, slept })
    }
}

/// Migration of split vCPUs between the CPUs of their subtasks.
impl Sedf {
    /// Charges CPU time to the slice of a split vCPU.
    #[inline(never)]
    pub(super) fn use_parts(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) {
        let server = &mut self.servers[vcpu];
        let due = ran.min(server.terms.slice.left_after(server.used));
        server.used += ran;
        if at.now() < server.deadline {
            server.go_on(due);
        }
        self.end_slice(vcpu);
        self.servers[vcpu].catch_up(at.now());
        self.follow(vcpu);
    }

    /// Moves a split vCPU to its next subtask if the deadline of the current subtask has passed
    /// within the period. Returns true if the vCPU was moved.
    pub(super) fn end_part(&mut self, now: Time, vcpu: VcpuId) -> bool {
        let server = &mut self.servers[vcpu];
        let is_over = server.in_parts.is_some() && server.due_by() <= now && now < server.deadline;
        if is_over {
            server.catch_up(now);
            self.follow(vcpu);
        }
        is_over
    }

    /// Migrates a split vCPU to the CPU of its current subtask.
    pub(super) fn follow(&mut self, vcpu: VcpuId) {
        let SedfServer { in_parts, cpu: from, .. } = &self.servers[vcpu];
        let (Some(in_parts), from) = (in_parts, *from) else { return };
        let to = in_parts.now().cpu;
        if to == from {
            return;
        }
        let queue = self.deadlines.queue_of(vcpu);
        self.leave_queues(vcpu);
        self.servers[vcpu].cpu = to;
        let Some(queue) = queue else { return }; // The vCPU is blocked.
        if queue == waiting(from) {
            self.wait(vcpu);
        } else {
            self.ready(vcpu);
        }
        self.join_slack(vcpu);
        self.ask(to);
    }

    /// Requests that a CPU is rescheduled and runs a scheduling pass then.
    pub(super) fn ask(&mut self, cpu: CpuId) {
        self.request(cpu);
        self.parting.iter_mut().for_each(|parting| parting.to_ask.insert(cpu));
    }

    /// Removes and returns the CPUs to reschedule because a vCPU migrated to them.
    #[inline(always)]
    pub(super) fn take_asked(&mut self) -> CpuSet {
        let parting = self.parting.as_mut();
        parting.map_or(CpuSet::NONE, |parting| core::mem::take(&mut parting.to_ask))
    }

    /// Handles the end of a scheduling pass. A vCPU that just ran on this CPU and continues on
    /// another CPU can be started there now. Returns the CPUs to reschedule.
    #[inline(never)]
    pub(super) fn parts_pass(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let home = at.occupant(cpu).map(|vcpu| self.servers[vcpu].cpu);
        home.filter(|&home| home != cpu).into_iter().for_each(|home| self.ask(home));
        self.take_asked()
    }

    /// Returns the time of the next scheduling pass that a subtask deadline on this CPU requires.
    /// `None` if the CPU has no subtasks or no vCPU in its ready queue.
    pub(super) fn part_is_over(&self, cpu: CpuId) -> Option<Time> {
        self.parting.as_ref().filter(|parting| parting.splits.strict().contains(cpu))?;
        self.deadlines.first(ready(cpu)).map(|((due_by, _), _)| due_by)
    }
}

/// Reservations of split vCPUs.
impl Sedf {
    /// Returns the strict CPUs: those that have a split vCPU, or had one since they were last
    /// quiescent.
    pub(super) fn strict(&self) -> CpuSet {
        self.parting.as_ref().map_or(CpuSet::NONE, |parting| parting.splits.strict())
    }

    /// Returns true if a vCPU that wakes on this CPU loses the budget that it would have used while
    /// blocked. That is so on a strict CPU: one that has a split vCPU, or that had one since it was
    /// last quiescent.
    #[inline(always)]
    pub(super) fn is_strict(&mut self, at: &Moment, cpu: CpuId) -> bool {
        self.parting.is_some() && self.may_be_strict(at, cpu)
    }

    /// Returns true if a CPU is strict: it has a split vCPU, or had one since it was last
    /// quiescent. If the CPU is quiescent and has no subtasks any more, the CPU first stops being
    /// strict.
    #[inline(never)]
    fn may_be_strict(&mut self, at: &Moment, cpu: CpuId) -> bool {
        let is_left_over = |parting: &SplitState| parting.splits.is_left_over(cpu);
        if self.parting.as_deref().is_some_and(is_left_over) && self.rests(at, cpu) {
            self.rest_parts(cpu);
        }
        self.strict().contains(cpu)
    }

    /// Ends admission by the demand test on a quiescent CPU that has no subtasks any more.
    pub(super) fn rest_parts(&mut self, cpu: CpuId) {
        self.parting.iter_mut().for_each(|parting| parting.splits.rest(cpu));
    }

    /// Frees the shares that vCPUs gave up on CPUs with subtasks and that are still reserved. On
    /// these CPUs admission computes the exact demand, so it does not need such shares.
    pub(super) fn rest_strict(&mut self) {
        for cpu in self.strict().iter() {
            self.holds.rest(cpu, &mut self.cpus);
        }
    }

    /// Removes the subtasks of a vCPU and returns them. Empty if the vCPU is not split.
    pub(super) fn take_parts(&mut self, vcpu: VcpuId) -> Vec<Subtask> {
        let Some(parting) = &mut self.parting else { return Vec::new() };
        let cpus = &mut self.cpus;
        parting.splits.remove(vcpu, |cpu, rate| cpus[cpu.index()].tally.unbook_part(rate))
    }

    /// Books the subtasks of a vCPU. Does nothing if `parts` is empty.
    pub(super) fn put_parts(&mut self, vcpu: VcpuId, period: Span, parts: &[Subtask]) {
        let parting = self.parting.as_mut().filter(|_| !parts.is_empty());
        let Some(parting) = parting else { return };
        let cpus = &mut self.cpus;
        let book = |cpu: CpuId, rate| cpus[cpu.index()].tally.book_part(rate);
        parting.splits.insert((vcpu, period, parts), book);
        parts.iter().for_each(|part| self.holds.rest(part.cpu, &mut self.cpus));
    }

    /// Returns the demand of all vCPUs except `but` on each CPU. The share kept for balancing is
    /// included, unless `terms` are those of a service vCPU that is charged for balancing. The
    /// entry of a CPU is `None` if the CPU is not in `cpus`, or if it has a vCPU whose slice its
    /// weight determines.
    pub(super) fn demands(
        &self,
        at: &Moment,
        (but, terms): (Option<VcpuId>, &SedfParameters),
        cpus: CpuSet,
    ) -> Vec<Option<Demand>> {
        let demand = |cpu: CpuId| {
            let takes_parts = cpus.contains(cpu) && !self.cpus[cpu.index()].tally.has_weights();
            takes_parts.then(Demand::default)
        };
        let mut demands: Vec<_> = (0..at.cpus()).map(CpuId::new).map(demand).collect();
        for cpu in cpus.iter().filter(|_| !terms.balances) {
            let ppm = u64::from(self.kept(cpu).ppm());
            let time = Span::from_ns((CALL.ns() * ppm).div_ceil(1_000_000));
            let job = Job { time, within: CALL, period: CALL };
            let kept = TaskDemand { owed: None, next: Span::ZERO, job };
            demands[cpu.index()].iter_mut().for_each(|demand| demand.add(kept));
        }
        for vcpu in at.members().filter(|vcpu| Some(*vcpu) != but) {
            let Some(server) = self.servers.get(vcpu) else { continue };
            let Some(standing) = self.standing(at, vcpu, server) else { continue };
            for (cpu, one) in standing.demands(at.now(), self.looks) {
                demands[cpu.index()].iter_mut().for_each(|demand| demand.add(one));
            }
        }
        demands
    }

    fn standing(&self, at: &Moment, vcpu: VcpuId, server: &SedfServer) -> Option<PeriodState> {
        let turn = self.cpus[server.cpu.index()].turn;
        let own = turn.filter(|turn| turn.vcpu == vcpu && turn.right == BudgetSource::Guarantee);
        let more = own.map_or(Span::ZERO, |turn| turn.ran);
        server.standing(at.now(), more, at.is_awake(vcpu))
    }
}
