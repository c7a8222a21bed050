//! Use of a shared CPU by programs other than vCPUs. This use is the time of the CPU that remains
//! after all known uses are subtracted.
//!
//! The kernel accounts idle and stolen time of a CPU with a resolution of a tick (10 ms) per
//! reading. The time of vCPUs is the sum of their run intervals. A run interval is recorded when it
//! ends. So while a vCPU runs, the computed use by other programs can be too high by one timeslice.

use slackline_units::{Span, Time};

use crate::SharedCpu;
use crate::split::{Stretch, ppm};

/// Kernel accounting of a CPU's time: idle and stolen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) idle: Span,
    pub(crate) stolen: Span,
    pub(crate) dispatching: Span,
}

impl Counts {
    /// Returns how a CPU was used in a time of `length`. `busy` is the part of `length` that vCPUs
    /// used. `None` if `length` is zero.
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

/// Kernel accounting of one CPU over the run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuAccounting {
    length: Span,
    counts: Counts,
    /// CPU time that vCPUs had used on this CPU when its kernel accounting began. `None` if kernel
    /// accounting has not begun.
    busy_before: Option<Span>,
    busy: Span,
}

impl CpuAccounting {
    /// Adds the kernel accounting of an interval. `busy` is the CPU time that vCPUs used from the
    /// end of the warm-up until now.
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

    /// Returns the use of the CPU by other programs. `None` if no time was accounted.
    pub(crate) fn shared(&self) -> Option<SharedCpu> {
        let busy = self.busy.left_after(self.busy_before.unwrap_or_default());
        self.counts.shared(self.length, busy)
    }
}
