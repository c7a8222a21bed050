//! CPU time of dispatches, added to each reservation in admission.
//!
//! If the host states the CPU time of one dispatch, a reservation demands two dispatches per period
//! besides its slice. One is at the start of the period, the other when the budget is exhausted. A
//! split reservation demands two dispatches per period on each of its CPUs.

use slackline_units::{CpuShare, Reservation, Span};

use crate::{DispatchCost, Topology};

/// CPU time of the dispatches of one reservation in one period. Zero if the host states no cost of
/// a dispatch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DispatchOverhead(Span);

impl DispatchOverhead {
    /// Number of dispatches that a reservation demands per period.
    const A_PERIOD: u64 = 2;

    /// Returns the dispatch overhead per period on a host with this topology.
    pub(crate) fn on(topology: &Topology) -> DispatchOverhead {
        DispatchOverhead(topology.dispatch() * DispatchOverhead::A_PERIOD)
    }

    /// Returns `slice` plus the dispatch overhead, but at most `within`.
    pub(crate) fn with(self, slice: Span, within: Span) -> Span {
        if self.fits(slice, within) { slice + self.0 } else { within }
    }

    /// Returns the CPU time of one dispatch: the overhead of one more timeslice in a period.
    pub(crate) fn of_a_turn(self) -> Span {
        self.0 / DispatchOverhead::A_PERIOD
    }

    /// Returns true if `slice` plus the dispatch overhead fits into `within`.
    pub(crate) fn fits(self, slice: Span, within: Span) -> bool {
        slice <= within && self.0 <= within - slice
    }

    /// Returns the reservation with the dispatch overhead added to its slice, at most a whole CPU.
    pub(crate) fn demand(self, asked: Reservation) -> Reservation {
        let (slice, period) = (asked.slice(), asked.period());
        let whole = if self.0 < period - slice { slice + self.0 } else { period };
        Reservation::new(whole, period).unwrap_or(asked)
    }

    /// Returns the dispatch overhead of a reservation for error messages. `None` if the host states
    /// no cost of a dispatch.
    pub(crate) fn dispatching(self, asked: Reservation) -> Option<DispatchCost> {
        let (looks, period) = (u128::from(self.0.ns()), u128::from(asked.period().ns()));
        let ppm = (looks * 1_000_000).div_ceil(period).min(1_000_000);
        let share = CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(1_000_000));
        let a_second = DispatchOverhead::A_PERIOD * (Span::from_secs(1) / asked.period());
        (!self.0.is_zero()).then_some(DispatchCost { share, a_second })
    }
}

/// Returns the longest slice per `period` for which `fits` is true, by bisection. If `fits` is true
/// for a slice, it must be true for all shorter slices. Zero if `fits` is true for no slice.
pub(crate) fn longest_slice(period: Span, fits: impl Fn(Reservation) -> bool) -> Span {
    let (mut most, mut beyond) = (0, u128::from(period.ns()) + 1);
    while beyond - most > 1 {
        let middle = Span::from_ns(u64::try_from((most + beyond) / 2).expect("at most a period"));
        if Reservation::new(middle, period).is_ok_and(&fits) {
            most = u128::from(middle.ns());
        } else {
            beyond = u128::from(middle.ns());
        }
    }
    Span::from_ns(u64::try_from(most).expect("at most a period"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each period has two dispatches of 1 us each.
    #[test]
    fn slice_and_overhead_of_two_dispatches_must_fit_into_period() {
        let looks = DispatchOverhead::on(&Topology::flat(1).with_dispatch(Span::from_us(1)));
        for (slice, fits, all) in [(2, true, 4), (3, true, 5), (4, false, 5), (5, false, 5)] {
            let (slice, within) = (Span::from_us(slice), Span::from_us(5));
            assert_eq!(looks.fits(slice, within), fits, "{slice}");
            assert_eq!(looks.with(slice, within), Span::from_us(all), "{slice}");
        }
        assert!(!looks.fits(Span::from_us(6), Span::from_us(5)));
    }
}
