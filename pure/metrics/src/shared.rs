//! What others had of a CPU that is not the run's alone: what is left of its time once everything
//! that is known of has been taken off.
//!
//! The kernel's books say how long a CPU was idle and stolen, to a tick of its clock (10 ms) in
//! each reading; what vCPUs had is the sum of their stretches. A stretch is recorded as it is over:
//! while a run goes on, what others had may be a turn too much.

use slackline_units::{Span, Time};

use crate::SharedCpu;
use crate::split::{Stretch, ppm};

/// What the kernel counted of a CPU's time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) idle: Span,
    pub(crate) stolen: Span,
    pub(crate) dispatching: Span,
}

impl Counts {
    /// What it amounts to in so much time, of which vCPUs had so much; nothing of no time.
    pub(crate) fn shared(self, length: Span, busy: Span) -> Option<SharedCpu> {
        if length.is_zero() {
            return None;
        }
        let known = [self.idle, self.stolen, self.dispatching, busy];
        let others = known.iter().fold(length, |left, &span| left.left_after(span));
        let part = |span: Span| ppm(span.min(length), length);
        Some(SharedCpu {
            others_ppm: part(others),
            stolen_ppm: part(self.stolen),
            unused_ppm: part(self.idle),
        })
    }
}

/// The books of one CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Books {
    length: Span,
    counts: Counts,
    /// What vCPUs had had when the books were opened, and when they were last written.
    busy_before: Option<Span>,
    busy: Span,
}

impl Books {
    /// Takes in what was counted between two times; `busy` is what vCPUs have had behind the
    /// warm-up so far.
    pub(crate) fn add(
        &mut self,
        (from, to): (Time, Time),
        counts: Counts,
        warmup: Time,
        busy: Span,
    ) {
        let counted = |used| Stretch { from, to, used }.used_from(warmup);
        self.length += counted(to - from);
        self.counts.idle += counted(counts.idle);
        self.counts.stolen += counted(counts.stolen);
        self.counts.dispatching += counted(counts.dispatching);
        self.busy_before.get_or_insert(busy);
        self.busy = busy;
    }

    /// What it amounts to, if any time has been counted.
    pub(crate) fn shared(&self) -> Option<SharedCpu> {
        let busy = self.busy.left_after(self.busy_before.unwrap_or_default());
        self.counts.shared(self.length, busy)
    }
}
