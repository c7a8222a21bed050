//! What looking after a reservation takes.
//!
//! Where the host says what a look at a CPU takes, a reservation demands two of them in each period
//! besides its slice: one when the period begins, one when the slice has been used. One that is
//! split demands as many on each of its CPUs.

use slackline_units::{CpuShare, Reservation, Span};

use crate::{Dispatching, Topology};

/// What a reservation demands in each of its periods besides the slice: that a CPU is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks(Span);

impl Looks {
    /// How often a CPU is looked at for a reservation in each of its periods.
    const A_PERIOD: u64 = 2;

    /// On this host.
    pub(crate) fn on(topology: &Topology) -> Looks {
        Looks(topology.dispatch() * Looks::A_PERIOD)
    }

    /// What looking after so much in so long takes with it; at most all of the time.
    pub(crate) fn with(self, slice: Span, within: Span) -> Span {
        if self.fits(slice, within) { slice + self.0 } else { within }
    }

    /// What looking after one more turn takes.
    pub(crate) fn of_a_turn(self) -> Span {
        self.0 / Looks::A_PERIOD
    }

    /// Whether there is time enough for it.
    pub(crate) fn fits(self, slice: Span, within: Span) -> bool {
        slice <= within && self.0 <= within - slice
    }

    /// What a reservation takes in all; at most all of a CPU.
    pub(crate) fn demand(self, asked: Reservation) -> Reservation {
        let (slice, period) = (asked.slice(), asked.period());
        let whole = if self.0 < period - slice { slice + self.0 } else { period };
        Reservation::new(whole, period).unwrap_or(asked)
    }

    /// The part of the demand that is not the slice, where that is counted.
    pub(crate) fn dispatching(self, asked: Reservation) -> Option<Dispatching> {
        let (looks, period) = (u128::from(self.0.ns()), u128::from(asked.period().ns()));
        let ppm = (looks * 1_000_000).div_ceil(period).min(1_000_000);
        let share = CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(1_000_000));
        let a_second = Looks::A_PERIOD * (Span::from_secs(1) / asked.period());
        (!self.0.is_zero()).then_some(Dispatching { share, a_second })
    }
}

/// The longest slice of a period with which something holds that holds of all shorter ones, if of
/// any.
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

    /// Two of a microsecond each.
    #[test]
    fn what_looks_take_is_added_as_far_as_there_is_time() {
        let looks = Looks::on(&Topology::flat(1).with_dispatch(Span::from_us(1)));
        for (slice, fits, all) in [(2, true, 4), (3, true, 5), (4, false, 5), (5, false, 5)] {
            let (slice, within) = (Span::from_us(slice), Span::from_us(5));
            assert_eq!(looks.fits(slice, within), fits, "{slice}");
            assert_eq!(looks.with(slice, within), Span::from_us(all), "{slice}");
        }
        assert!(!looks.fits(Span::from_us(6), Span::from_us(5)));
    }
}
