//! The sum of slice over period of what has been promised on one CPU, exactly.
//!
//! Fractions of arbitrary 64-bit numbers have no common denominator that fits anywhere, and a float
//! would admit what does not fit. So the sum is kept twice: as a lower bound in 2^-64ths of a CPU,
//! which is off by less than one unit a reservation and decides almost every case; and by period,
//! from which the exact fraction is worked out with as many digits as it takes when the bounds are
//! not enough, as when a set fills a CPU to the last nanosecond.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Ordering;

use slackline_units::{CpuShare, Reservation, Span};

/// What has been promised on one CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    /// The sum of all slices of each period, in nanoseconds.
    slices: BTreeMap<Span, u128>,
    /// The sum of slice over period, each term rounded down, in 2^-64ths of a CPU.
    floor: u128,
    /// How many reservations: the exact sum is less than this many units above `floor`.
    count: u32,
}

impl Load {
    pub(crate) fn add(&mut self, reservation: Reservation) {
        *self.slices.entry(reservation.period()).or_default() += slice(reservation);
        self.floor += floor(reservation);
        self.count += 1;
    }

    pub(crate) fn add_all(&mut self, other: &Load) {
        for (period, slices) in &other.slices {
            *self.slices.entry(*period).or_default() += slices;
        }
        self.floor += other.floor;
        self.count += other.count;
    }

    pub(crate) fn remove(&mut self, reservation: Reservation) {
        let left = self.slices.get_mut(&reservation.period()).expect("what was added before");
        *left -= slice(reservation);
        if *left == 0 {
            self.slices.remove(&reservation.period());
        }
        self.floor -= floor(reservation);
        self.count -= 1;
    }

    /// Whether `more` can be promised as well without exceeding `capacity`.
    pub(crate) fn has_room(&self, more: Reservation, capacity: CpuShare) -> bool {
        let limit = u128::from(capacity.ppm()) << 64;
        let floor = (self.floor + floor(more)) * 1_000_000;
        let ceiling = floor + u128::from(self.count + 1) * 1_000_000;
        if ceiling <= limit {
            return true;
        }
        if floor > limit {
            return false;
        }
        let mut all = self.clone();
        all.add(more);
        all.compare_exactly(capacity) != Ordering::Greater
    }

    /// What has been promised, rounded up to a millionth: never shown as less than it is.
    pub(crate) fn share(&self) -> CpuShare {
        let ppm = |unit: u128| (unit * 1_000_000).div_ceil(1 << 64);
        let most = ppm(self.floor + u128::from(self.count));
        // The bound is a fraction of a millionth too high: one less where that is still enough.
        let most = CpuShare::from_ppm(u32::try_from(most).expect("at most one CPU a CPU"));
        let less = most.less(CpuShare::from_ppm(1));
        if self.compare_exactly(less) == Ordering::Greater { most } else { less }
    }

    /// What is left of `capacity` beside it, in 2^-64ths of a CPU: rounded down, by less than one
    /// of them for each reservation.
    pub(crate) fn left_of(&self, capacity: CpuShare) -> u128 {
        let capacity = (u128::from(capacity.ppm()) << 64) / 1_000_000;
        capacity.saturating_sub(self.floor + u128::from(self.count))
    }

    /// Less promised comes first; only a bound, good for choosing between CPUs.
    pub(crate) fn bound(&self) -> u128 {
        self.floor
    }

    fn compare_exactly(&self, capacity: CpuShare) -> Ordering {
        let mut sum = Fraction::from(0, 1);
        for (period, &slices) in &self.slices {
            sum = sum.plus(&Fraction::from(slices, u128::from(period.ns())));
        }
        sum.compare(&Fraction::from(u128::from(capacity.ppm()), 1_000_000))
    }
}

fn slice(reservation: Reservation) -> u128 {
    u128::from(reservation.slice().ns())
}

fn floor(reservation: Reservation) -> u128 {
    (slice(reservation) << 64) / u128::from(reservation.period().ns())
}

/// A fraction of numbers of any size.
struct Fraction {
    above: Number,
    below: Number,
}

impl Fraction {
    fn from(above: u128, below: u128) -> Fraction {
        let common = greatest_common_divisor(above, below);
        Fraction { above: Number::from(above / common), below: Number::from(below / common) }
    }

    fn plus(&self, other: &Fraction) -> Fraction {
        let above = self.above.times(&other.below).plus(&other.above.times(&self.below));
        Fraction { above, below: self.below.times(&other.below) }
    }

    fn compare(&self, other: &Fraction) -> Ordering {
        self.above.times(&other.below).compare(&other.above.times(&self.below))
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// A natural number of any size: 32-bit digits, least first, no zeros at the end.
struct Number(Vec<u32>);

impl Number {
    fn from(mut value: u128) -> Number {
        let mut digits = Vec::new();
        while value != 0 {
            digits.push(low(value));
            value >>= 32;
        }
        Number(digits)
    }

    fn plus(&self, other: &Number) -> Number {
        let mut digits = Vec::new();
        let mut carry = 0;
        for place in 0..self.0.len().max(other.0.len()) {
            let sum = carry + self.digit(place) + other.digit(place);
            digits.push(low(sum));
            carry = sum >> 32;
        }
        if carry != 0 {
            digits.push(low(carry));
        }
        Number(digits)
    }

    fn times(&self, other: &Number) -> Number {
        let mut digits = alloc::vec![0; self.0.len() + other.0.len()];
        for (i, &a) in self.0.iter().enumerate() {
            let mut carry = 0;
            for (j, &b) in other.0.iter().enumerate() {
                let sum = u128::from(digits[i + j]) + u128::from(a) * u128::from(b) + carry;
                digits[i + j] = low(sum);
                carry = sum >> 32;
            }
            digits[i + other.0.len()] = low(carry);
        }
        while digits.last() == Some(&0) {
            digits.pop();
        }
        Number(digits)
    }

    fn compare(&self, other: &Number) -> Ordering {
        let longer = self.0.len().cmp(&other.0.len());
        longer.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn digit(&self, place: usize) -> u128 {
        u128::from(self.0.get(place).copied().unwrap_or(0))
    }
}

/// The lowest 32 bits.
fn low(value: u128) -> u32 {
    u32::try_from(value & u128::from(u32::MAX)).expect("32 bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reservation(slice: u64, period: u64) -> Reservation {
        Reservation::new(Span::from_ns(slice), Span::from_ns(period)).unwrap()
    }

    #[test]
    fn a_cpu_can_be_filled_to_the_last_nanosecond_and_no_further() {
        let mut load = Load::default();
        load.add(reservation(1, 3));
        load.add(reservation(1, 6));
        assert!(load.has_room(reservation(1, 2), CpuShare::ONE));
        assert!(!load.has_room(reservation(500_000_001, 1_000_000_000), CpuShare::ONE));
        load.add(reservation(1, 2));
        let least = reservation(1, u64::MAX);
        assert!(!load.has_room(least, CpuShare::ONE));
        load.remove(reservation(1, 6));
        assert!(load.has_room(reservation(166_666_666, 1_000_000_000), CpuShare::ONE));
        assert!(!load.has_room(reservation(166_666_667, 1_000_000_000), CpuShare::ONE));
    }

    #[test]
    fn what_two_have_promised_is_promised_by_both_together() {
        let mut load = Load::default();
        load.add(reservation(1, 3));
        let mut other = Load::default();
        other.add(reservation(1, 3));
        other.add(reservation(1, 6));
        load.add_all(&other);
        assert!(load.has_room(reservation(1, 6), CpuShare::ONE));
        load.add(reservation(1, 6));
        assert!(!load.has_room(reservation(1, u64::MAX), CpuShare::ONE));
    }

    #[test]
    fn the_longest_periods_do_not_overflow() {
        let mut load = Load::default();
        for _ in 0..1000 {
            load.add(reservation(u64::MAX / 1000, u64::MAX));
        }
        assert!(load.has_room(reservation(u64::MAX % 1000, u64::MAX), CpuShare::ONE));
        assert!(!load.has_room(reservation(u64::MAX % 1000 + 1, u64::MAX), CpuShare::ONE));
    }

    proptest! {
        /// Periods that divide 2^4 · 3^2 · 5 · 7 ns can be added up in plain integers. What was
        /// promised and is not any more counts for nothing.
        #[test]
        fn the_answer_is_that_of_plain_arithmetic(
            terms in prop::collection::vec((1u64..=100, 0usize..24), 1..12),
            gone in prop::collection::vec((1u64..=100, 0usize..24), 0..4),
            ppm in 1u32..=1_000_000,
        ) {
            const COMMON: u64 = 5040;
            let divisors: Vec<u64> = (1..=COMMON).filter(|n| COMMON.is_multiple_of(*n)).collect();
            let term = |(slice, index): (u64, usize)| {
                let period = divisors[index];
                reservation(slice.min(period), period)
            };
            let terms: Vec<Reservation> = terms.into_iter().map(term).collect();
            let gone: Vec<Reservation> = gone.into_iter().map(term).collect();
            let mut load = Load::default();
            let (last, before) = terms.split_last().unwrap();
            before.iter().chain(&gone).for_each(|term| load.add(*term));
            gone.iter().for_each(|term| load.remove(*term));
            let parts = |r: &Reservation| r.slice().ns() * (COMMON / r.period().ns());
            let sum: u64 = terms.iter().map(parts).sum();
            let fits = u128::from(sum) * 1_000_000 <= u128::from(ppm) * u128::from(COMMON);
            prop_assert_eq!(load.has_room(*last, CpuShare::from_ppm(ppm)), fits);
            let promised: u64 = before.iter().map(parts).sum();
            let share = (u128::from(promised) * 1_000_000).div_ceil(u128::from(COMMON));
            prop_assert_eq!(u128::from(load.share().ppm()), share);
        }
    }
}
