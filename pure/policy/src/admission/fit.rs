//! Where a reservation fits, as a whole or in parts: for all policies that may split them.
//!
//! Where nobody is split a policy says itself whether a CPU takes one as a whole. Where somebody
//! is, everything is admitted by what must be done by when (`split`). Who fits nowhere as a whole
//! is split; whose terms change may have to wait for its second period.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Reservation, Span};

use crate::admission::demand::Demand;
use crate::admission::dispatch_overhead::longest_slice;
use crate::admission::split::{Among, Part, Splits};

/// Chooses among the CPUs of which something holds.
type Choose<'a> = dyn Fn(&dyn Fn(CpuId) -> bool) -> Result<CpuId, CpuId> + 'a;

/// A question where a reservation should go.
pub(crate) struct Fitting<'a> {
    pub(crate) splits: &'a Splits,
    pub(crate) share: Reservation,
    pub(crate) allowed: CpuSet,
    /// What it has, and its parts if it is split.
    pub(crate) before: Option<(Reservation, &'a [Part])>,
    /// Whether it is as a whole on a CPU where nobody is split, or nowhere.
    pub(crate) only_open: bool,
    /// What all others demand of each CPU from now on; none where nobody can be split. Asked only
    /// where that matters.
    pub(crate) demands: &'a dyn Fn() -> Vec<Option<Demand>>,
    /// Whether a CPU where nobody is split takes this as a whole.
    pub(crate) fits: &'a dyn Fn(CpuId, Reservation) -> bool,
    /// The CPU that takes it as a whole, of those that can; the error is the best one that cannot.
    pub(crate) whole: &'a Choose<'a>,
}

/// Where somebody goes.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// None where it is as a whole.
    pub(crate) parts: Vec<Part>,
    /// Where it is as a whole, or its first part.
    pub(crate) cpu: CpuId,
    /// Whether it must do without the slice of its first period, so that nobody is late for it.
    pub(crate) waits: bool,
}

impl Found {
    /// On this CPU, as a whole.
    pub(crate) fn whole(cpu: CpuId) -> Found {
        Found { parts: Vec::new(), cpu, waits: false }
    }
}

impl Fitting<'_> {
    /// Where it goes. The error is the longest slice of its period that there is room for.
    pub(crate) fn find(&self) -> Result<Found, Span> {
        let Fitting { splits, share, .. } = *self;
        let strict = splits.strict();
        let is_open = |cpu| !strict.contains(cpu) && (self.fits)(cpu, share);
        // Mostly that is all there is to it.
        if strict.is_empty()
            && let Ok(cpu) = (self.whole)(&is_open)
        {
            return Ok(Found::whole(cpu));
        }
        let demands = (self.demands)();
        let starts: &[bool] = if self.before.is_some() { &[false, true] } else { &[false] };
        for &waits in starts {
            let among = self.among(&demands, waits);
            let takes = |cpu| strict.contains(cpu) && splits.takes_whole(cpu, share, among);
            if let Ok(cpu) = (self.whole)(&|cpu| is_open(cpu) || takes(cpu)) {
                return Ok(Found { waits: waits && strict.contains(cpu), ..Found::whole(cpu) });
            }
        }
        for &waits in starts {
            let among = self.among(&demands, waits);
            let kept = self.before.and_then(|before| splits.keep(before, share, among));
            if let Some(parts) = kept.or_else(|| splits.split(share, among)) {
                return Ok(Found { cpu: parts[0].cpu, parts, waits });
            }
        }
        Err(self.room_by(&demands))
    }

    /// The longest slice of its period that has room, as a whole or in parts.
    pub(crate) fn room(&self) -> Span {
        self.room_by(&(self.demands)())
    }

    /// At once, or a period on.
    fn among<'b>(&self, demands: &'b [Option<Demand>], waits: bool) -> Among<'b> {
        let wait = if waits { self.share.period() } else { Span::ZERO };
        let demands = if self.only_open { &[] } else { demands };
        Among { demands, allowed: self.allowed, wait }
    }

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
