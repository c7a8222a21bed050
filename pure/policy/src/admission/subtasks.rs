//! Who is split over several CPUs: which part of its slice it is in, and what anybody who has a
//! slice in every period demands of its CPUs from now on.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Reservation, Span, Time};

use crate::admission::demand::{Demanded, Job};
use crate::admission::dispatch_overhead::Looks;
use crate::admission::split::Part;

/// Where somebody is in its slice.
#[derive(Clone, Debug)]
pub(crate) struct InParts {
    parts: Vec<Part>,
    /// Which part it is in.
    part: usize,
    /// What is left of that.
    left: Span,
}

impl InParts {
    /// None for who is not split.
    pub(crate) fn new(parts: Vec<Part>) -> Option<InParts> {
        let left = parts.first()?.slice;
        Some(InParts { parts, part: 0, left })
    }

    pub(crate) fn now(&self) -> &Part {
        &self.parts[self.part]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter()
    }

    pub(crate) fn cpus(&self) -> CpuSet {
        self.parts.iter().map(|part| part.cpu).collect()
    }

    /// For people: what is had where.
    pub(crate) fn shown(&self) -> alloc::string::String {
        let shown = self.iter().map(|part| alloc::format!("{} on {}", part.slice, part.cpu));
        shown.collect::<Vec<_>>().join(", then ")
    }

    fn is_last(&self) -> bool {
        self.part + 1 == self.parts.len()
    }

    /// What is left of the part that it is in, of so much in all.
    pub(crate) fn left_of(&self, remaining: Span) -> Span {
        if self.is_last() { remaining } else { remaining.min(self.left) }
    }

    /// A period begins.
    pub(crate) fn restart(&mut self) {
        (self.part, self.left) = (0, self.parts[0].slice);
    }

    /// It had so much, or slept so long while it might have had it.
    pub(crate) fn go_on(&mut self, mut ran: Span) {
        while ran >= self.left && !self.is_last() {
            ran -= self.left;
            self.part += 1;
            self.left = self.now().slice;
        }
        self.left = self.left.left_after(ran);
    }

    /// On to the part for which it is time: whatever it did not get before goes along.
    pub(crate) fn catch_up(&mut self, since_begin: Span) {
        while self.now().ends <= since_begin && !self.is_last() {
            self.part += 1;
            self.left += self.now().slice;
        }
    }
}

/// Where somebody is in one of its periods.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) share: Reservation,
    /// Where it is bound as a whole.
    pub(crate) cpu: CpuId,
    /// None where it is not split.
    pub(crate) in_parts: Option<InParts>,
    /// When the period began.
    pub(crate) begins: Time,
    pub(crate) deadline: Time,
    /// What is owed to it before that, had it not slept.
    pub(crate) left: Span,
    /// How long it has slept in this period by now.
    pub(crate) slept: Span,
}

impl Standing {
    /// What it demands from now on, by CPU.
    pub(crate) fn demands(self, at: Time, looks: Looks) -> Vec<(CpuId, Demanded)> {
        let Standing { share, cpu, in_parts, begins, deadline, left, slept } = self;
        let (period, left) = (share.period(), left.left_after(slept));
        let owed = |left: Span, due: Time| {
            let time = looks.with(left, Span::MAX);
            // Who is late already is not to keep everybody out.
            (!left.is_zero()).then(|| (time, due.since(at).max(time)))
        };
        let Some(mut there) = in_parts else {
            let job = Job { time: looks.with(share.slice(), period), within: period, period };
            let one = Demanded { owed: owed(left, deadline), next: deadline.since(at), job };
            return alloc::vec![(cpu, one)];
        };
        there.go_on(slept);
        let one = |(index, part): (usize, &Part)| {
            let comes = index > there.part && !left.is_zero();
            let begin = if comes { begins } else { deadline };
            let is_here = index == there.part;
            let owed =
                if is_here { owed(there.left_of(left), begins.after(part.ends)) } else { None };
            let next = begin.after(part.begins).since(at);
            (part.cpu, Demanded { owed, next, job: part.job(period, looks) })
        };
        there.parts.iter().enumerate().map(one).collect()
    }
}
