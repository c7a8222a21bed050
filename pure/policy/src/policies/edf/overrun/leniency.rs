//! Limit of the overrun that a vCPU with a hard limit is forgiven.
//!
//! Not in [VSched]. The overrun of an occasional late stop is forgiven, so that it does not shorten
//! the next slices. Recurring late stops would raise the share of the vCPU. So a token bucket
//! limits the amount that is forgiven.

use slackline_units::{Reservation, Span, Time};

/// Divisor of the slice. In each period a quarter of the slice is added to the bucket (the refill),
/// but at least [`LEAST_REFILL`] and at most [`MOST_REFILL`].
const REFILL_PER_SLICE: u64 = 4;

/// Lower bound of the refill. For a slice below 50 us, the refill is the slice. Timers of a busy
/// virtual host are 15 to 80 us late, which is on average 35 us more than their least lateness. The
/// lateness of timers does not depend on the slice.
const LEAST_REFILL: Span = Span::from_us(50);

/// Upper bound of the refill: 2.5 % of a CPU at a period of 10 ms.
const MOST_REFILL: Span = Span::from_us(250);

/// Capacity of the bucket in refills. With the largest refill the bucket forgives two stops that
/// are 4 ms late. Such stops occur when a hypervisor halts its guest for a timer tick.
const REFILLS: u64 = 40;

/// Token bucket of the overrun that may be forgiven. It fills with time only: wake-ups and changes
/// of parameters add nothing.
#[derive(Clone, Copy, Debug)]
pub(in crate::policies::edf) struct Leniency {
    /// Amount that accrues in each period, and the period.
    refill: Reservation,
    /// Overrun that may be forgiven now.
    left: Span,
    /// Overrun that was forgiven, minus the refills since then.
    spent: Span,
    /// Time up to which refills are counted.
    counted: Time,
}

impl Leniency {
    /// Returns a full bucket for a vCPU with this reservation.
    pub(in crate::policies::edf) fn full(share: Reservation, now: Time) -> Leniency {
        let refill = refill(share);
        Leniency { refill, left: refill.slice() * REFILLS, spent: Span::ZERO, counted: now }
    }

    /// Changes the reservation. Keeps the amount spent, and the amount left up to the new capacity.
    /// The amount spent cannot be computed from the amount left: a bucket that became larger is not
    /// full even if nothing was spent, and a bucket that became smaller can be full although some
    /// was spent.
    pub(in crate::policies::edf) fn change(&mut self, share: Reservation, now: Time) {
        self.accrue(now);
        self.refill = refill(share);
        self.left = self.left.min(self.capacity());
    }

    /// Takes up to `asked` from the bucket, and returns the amount taken.
    pub(in crate::policies::edf) fn take(&mut self, asked: Span, now: Time) -> Span {
        self.accrue(now);
        let taken = asked.min(self.left);
        self.left -= taken;
        self.spent += taken;
        taken
    }

    /// Returns the overrun that was forgiven, minus the refills since then.
    pub(in crate::policies::edf) fn spent(mut self, now: Time) -> Span {
        self.accrue(now);
        self.spent
    }

    /// Adds the amount that has accrued since the last update.
    fn accrue(&mut self, now: Time) {
        let since = core::mem::replace(&mut self.counted, now);
        let refilled = self.refill.over(now.since(since));
        self.left += refilled.min(self.capacity() - self.left);
        self.spent = self.spent.left_after(refilled);
    }

    /// Returns the amount that a full bucket forgives.
    fn capacity(&self) -> Span {
        self.refill.slice() * REFILLS
    }
}

/// Returns the amount that accrues in each period of `share`, with the period.
fn refill(share: Reservation) -> Reservation {
    let slice = share.slice();
    let quarter = Span::from_ns(slice.ns() / REFILL_PER_SLICE);
    let refill = quarter.clamp(slice.min(LEAST_REFILL), slice.max(LEAST_REFILL).min(MOST_REFILL));
    Reservation::new(refill, share.period()).expect("a refill is above zero and at most the slice")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(slice: Span, period: Span) -> Reservation {
        Reservation::new(slice, period).unwrap()
    }

    fn at_ms(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    #[test]
    fn edf_forgives_at_most_250_us_of_overrun_per_period() {
        let us = Span::from_us;
        let expected = [(40, 40), (80, 50), (200, 50), (300, 75), (1_000, 250), (8_000, 250)];
        for (slice, expected) in expected {
            assert_eq!(refill(share(us(slice), us(10_000))).slice(), us(expected), "{slice}");
        }
        let shortest = Span::from_ns(1);
        assert_eq!(refill(share(shortest, us(1))).slice(), shortest);
    }

    #[test]
    fn edf_overrun_forgiveness_accrues_with_time_up_to_forty_refills() {
        let mut leniency = Leniency::full(share(Span::from_ms(8), Span::from_ms(100)), at_ms(0));
        assert_eq!(leniency.take(Span::from_ms(7), at_ms(0)), Span::from_ms(7));
        assert_eq!(leniency.take(Span::from_ms(7), at_ms(0)), Span::from_ms(3));
        assert_eq!(leniency.take(Span::from_ms(7), at_ms(50)), Span::from_us(125));
        assert_eq!(leniency.take(Span::from_ms(7), at_ms(250)), Span::from_us(500));
        assert_eq!(leniency.spent(at_ms(350)), Span::from_us(9_750));
        assert_eq!(leniency.spent(at_ms(1_000_000)), Span::ZERO);
    }

    /// The vCPU changes to a slice with a smaller bucket and back at the same instant. The bucket
    /// gains nothing.
    #[test]
    fn edf_change_of_parameters_adds_no_overrun_forgiveness() {
        let (long, short) = (Span::from_ms(8), Span::from_us(40));
        let period = Span::from_ms(100);
        let mut leniency = Leniency::full(share(long, period), at_ms(0));
        leniency.change(share(short, period), at_ms(100));
        leniency.change(share(long, period), at_ms(100));
        assert_eq!(leniency.take(Span::MAX, at_ms(100)), short * REFILLS);
    }

    /// A change to a larger bucket does not raise the amount spent, and a change to a smaller
    /// bucket does not lower that amount.
    #[test]
    fn edf_change_of_parameters_keeps_amount_of_forgiveness_already_spent() {
        let [long, short] =
            [Span::from_ms(8), Span::from_us(40)].map(|slice| share(slice, Span::from_ms(100)));
        let mut leniency = Leniency::full(short, at_ms(0));
        leniency.change(long, at_ms(0));
        assert_eq!(leniency.spent(at_ms(0)), Span::ZERO);
        let mut leniency = Leniency::full(long, at_ms(0));
        leniency.take(Span::from_ms(9), at_ms(0));
        leniency.change(short, at_ms(0));
        assert_eq!(leniency.spent(at_ms(0)), Span::from_ms(9));
    }
}
