//! Search for a placement of a reservation, whole or split, for all policies that may split.
//!
//! A CPU is *strict* if it has a split vCPU, or had one since it was last quiescent. On a strict
//! CPU the demand test decides whether a whole reservation fits. On other CPUs the policy decides.
//! A reservation that fits on no CPU as a whole is split. If a changed reservation does not fit at
//! once, the search tests whether the new slice fits from the vCPU's next period on.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Reservation, Span};

use crate::admission::demand::Demand;
use crate::admission::dispatch_overhead::longest_slice;
use crate::admission::split::{CandidateCpus, Splits, Subtask};

/// Chooses a CPU among the CPUs that satisfy a predicate. If no CPU satisfies the predicate, the
/// error is the best of all CPUs that may be chosen.
type Choose<'a> = dyn Fn(&dyn Fn(CpuId) -> bool) -> Result<CpuId, CpuId> + 'a;

/// Search for a placement of one reservation.
pub(crate) struct FitSearch<'a> {
    pub(crate) splits: &'a Splits,
    pub(crate) share: Reservation,
    pub(crate) allowed: CpuSet,
    /// Reservation and subtasks that the vCPU has now. `None` for a newcomer.
    pub(crate) before: Option<(Reservation, &'a [Subtask])>,
    /// True if the reservation must be whole, on a CPU that does not need the demand test.
    pub(crate) only_open: bool,
    /// Returns the demand of all other vCPUs from now on, one entry per CPU. If the entry of a CPU
    /// is `None`, no vCPU can be split on that CPU. Called only if the result can change the
    /// placement.
    pub(crate) demands: &'a dyn Fn() -> Vec<Option<Demand>>,
    /// Returns true if a CPU that does not need the demand test can take this reservation as a
    /// whole.
    pub(crate) fits: &'a dyn Fn(CpuId, Reservation) -> bool,
    /// Chooses the CPU for the whole reservation among the CPUs that can take it. If no CPU can
    /// take it, the error is the best of all CPUs that may be chosen.
    pub(crate) whole: &'a Choose<'a>,
}

/// Result of the search for a placement.
#[derive(Clone, Debug)]
pub(crate) struct FitPlacement {
    /// Subtasks. Empty if the reservation is whole.
    pub(crate) parts: Vec<Subtask>,
    /// CPU of the whole reservation, or of its first subtask.
    pub(crate) cpu: CpuId,
    /// True if the vCPU gets its slice only from its second period on, since otherwise other vCPUs
    /// would miss deadlines.
    pub(crate) waits: bool,
}

impl FitPlacement {
    /// Places the whole reservation on `cpu`.
    pub(crate) fn whole(cpu: CpuId) -> FitPlacement {
        FitPlacement { parts: Vec::new(), cpu, waits: false }
    }
}

impl FitSearch<'_> {
    /// Returns the placement. If the reservation does not fit, the error is the longest slice with
    /// this period that would fit.
    pub(crate) fn find(&self) -> Result<FitPlacement, Span> {
        let FitSearch { splits, share, .. } = *self;
        let strict = splits.strict();
        let is_open = |cpu| !strict.contains(cpu) && (self.fits)(cpu, share);
        // Fast path: without strict CPUs the usual test suffices.
        if strict.is_empty()
            && let Ok(cpu) = (self.whole)(&is_open)
        {
            return Ok(FitPlacement::whole(cpu));
        }
        let demands = (self.demands)();
        let starts: &[bool] = if self.before.is_some() { &[false, true] } else { &[false] };
        for &waits in starts {
            let among = self.among(&demands, waits);
            let takes = |cpu| strict.contains(cpu) && splits.takes_whole(cpu, share, among);
            if let Ok(cpu) = (self.whole)(&|cpu| is_open(cpu) || takes(cpu)) {
                return Ok(FitPlacement {
                    waits: waits && strict.contains(cpu),
                    ..FitPlacement::whole(cpu)
                });
            }
        }
        for &waits in starts {
            let among = self.among(&demands, waits);
            let kept = self.before.and_then(|before| splits.keep(before, share, among));
            if let Some(parts) = kept.or_else(|| splits.split(share, among)) {
                return Ok(FitPlacement { cpu: parts[0].cpu, parts, waits });
            }
        }
        Err(self.room_by(&demands))
    }

    /// Returns the longest slice with the requested period that fits, whole or split.
    pub(crate) fn room(&self) -> Span {
        self.room_by(&(self.demands)())
    }

    /// Returns the candidate CPUs for a reservation that starts at once, or one period later if
    /// `waits`.
    fn among<'b>(&self, demands: &'b [Option<Demand>], waits: bool) -> CandidateCpus<'b> {
        let wait = if waits { self.share.period() } else { Span::ZERO };
        let demands = if self.only_open { &[] } else { demands };
        CandidateCpus { demands, allowed: self.allowed, wait }
    }

    /// Returns the longest slice that fits, whole or split, given the demand on each CPU.
    fn room_by(&self, demands: &[Option<Demand>]) -> Span {
        let (period, splits) = (self.share.period(), self.splits);
        let whole = self.allowed.without(&splits.strict());
        let whole = whole.iter().map(|cpu| longest_slice(period, |asked| (self.fits)(cpu, asked)));
        let whole = whole.max().unwrap_or(Span::ZERO);
        let room = |waits| splits.room(period, self.among(demands, waits));
        let Some(before @ (share, _)) = self.before else { return whole.max(room(false)) };
        let keeps = |waits| splits.keep(before, share, self.among(demands, waits)).is_some();
        let keeps = share.period() == period && (keeps(false) || keeps(true));
        let kept = if keeps { share.slice() } else { Span::ZERO };
        whole.max(kept).max(room(false)).max(room(true))
    }
}
