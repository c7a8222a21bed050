//! Progress of split vCPUs through their subtasks, and the demand of a vCPU, whole or split, on its
//! CPUs from now on.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Reservation, Span, Time};

use crate::admission::demand::{Job, TaskDemand};
use crate::admission::dispatch_overhead::DispatchOverhead;
use crate::admission::split::Subtask;

/// Position of a split vCPU in the list of its subtasks.
#[derive(Clone, Debug)]
pub(crate) struct SubtaskCursor {
    parts: Vec<Subtask>,
    /// Index of the current subtask.
    part: usize,
    /// Budget left of the current subtask.
    left: Span,
}

impl SubtaskCursor {
    /// Creates a cursor at the first subtask. `None` if `parts` is empty, which means that the vCPU
    /// is not split.
    pub(crate) fn new(parts: Vec<Subtask>) -> Option<SubtaskCursor> {
        let left = parts.first()?.slice;
        Some(SubtaskCursor { parts, part: 0, left })
    }

    /// Returns the current subtask.
    pub(crate) fn now(&self) -> &Subtask {
        &self.parts[self.part]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Subtask> {
        self.parts.iter()
    }

    pub(crate) fn cpus(&self) -> CpuSet {
        self.parts.iter().map(|part| part.cpu).collect()
    }

    /// Returns the subtasks as text that is shown to users, such as "3ms on cpu0, then 2ms on
    /// cpu1".
    pub(crate) fn shown(&self) -> alloc::string::String {
        let shown = self.iter().map(|part| alloc::format!("{} on {}", part.slice, part.cpu));
        shown.collect::<Vec<_>>().join(", then ")
    }

    fn is_last(&self) -> bool {
        self.part + 1 == self.parts.len()
    }

    /// Returns the budget left of the current subtask, given the budget left of the whole slice.
    pub(crate) fn left_of(&self, remaining: Span) -> Span {
        if self.is_last() { remaining } else { remaining.min(self.left) }
    }

    /// Goes back to the first subtask, with its full budget, at the start of a period.
    pub(crate) fn restart(&mut self) {
        (self.part, self.left) = (0, self.parts[0].slice);
    }

    /// Moves on through the subtasks by `ran`, an amount of CPU time received or of budget
    /// forfeited while blocked.
    pub(crate) fn go_on(&mut self, mut ran: Span) {
        while ran >= self.left && !self.is_last() {
            ran -= self.left;
            self.part += 1;
            self.left = self.now().slice;
        }
        self.left = self.left.left_after(ran);
    }

    /// Moves on to the subtask that may run at `since_begin`, the time since the start of the
    /// period. Adds the unused budget of earlier subtasks to the budget of that subtask.
    pub(crate) fn catch_up(&mut self, since_begin: Span) {
        while self.now().ends <= since_begin && !self.is_last() {
            self.part += 1;
            self.left += self.now().slice;
        }
    }
}

/// State of a vCPU within a period.
#[derive(Debug)]
pub(crate) struct PeriodState {
    pub(crate) share: Reservation,
    /// CPU to which the vCPU is bound if it is not split.
    pub(crate) cpu: CpuId,
    /// Progress through the subtasks. `None` if the vCPU is not split.
    pub(crate) in_parts: Option<SubtaskCursor>,
    /// Start of the period.
    pub(crate) begins: Time,
    /// End of the period.
    pub(crate) deadline: Time,
    /// Budget left in the period, before `slept` is deducted.
    pub(crate) left: Span,
    /// Time for which the vCPU has been blocked in this period.
    pub(crate) slept: Span,
}

impl PeriodState {
    /// Returns the demand of the vCPU from now on, with the CPU of each subtask.
    pub(crate) fn demands(self, at: Time, looks: DispatchOverhead) -> Vec<(CpuId, TaskDemand)> {
        let PeriodState { share, cpu, in_parts, begins, deadline, left, slept } = self;
        let (period, left) = (share.period(), left.left_after(slept));
        let owed = |left: Span, due: Time| {
            let time = looks.with(left, Span::MAX);
            // A vCPU that is tardy already must not block all admissions.
            (!left.is_zero()).then(|| (time, due.since(at).max(time)))
        };
        let Some(mut there) = in_parts else {
            let job = Job { time: looks.with(share.slice(), period), within: period, period };
            let one = TaskDemand { owed: owed(left, deadline), next: deadline.since(at), job };
            return alloc::vec![(cpu, one)];
        };
        there.go_on(slept);
        let one = |(index, part): (usize, &Subtask)| {
            let comes = index > there.part && !left.is_zero();
            let begin = if comes { begins } else { deadline };
            let is_here = index == there.part;
            let owed =
                if is_here { owed(there.left_of(left), begins.after(part.ends)) } else { None };
            let next = begin.after(part.begins).since(at);
            (part.cpu, TaskDemand { owed, next, job: part.job(period, looks) })
        };
        there.parts.iter().enumerate().map(one).collect()
    }
}
