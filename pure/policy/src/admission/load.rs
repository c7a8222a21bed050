//! Exact sum of slice/period of the reservations on one CPU.
//!
//! The sum of fractions of 64-bit numbers needs a denominator of any size, and a float would admit
//! sets that do not fit. So the sum is stored twice:
//! - As a lower bound in 2^-64ths of a CPU. The error is less than one unit per reservation, so the
//!   bound decides almost every case.
//! - As a sum of slices for each period. The bound can leave a case open, for example a set that
//!   fills a CPU to the last nanosecond. Then the exact fraction is computed from these sums in
//!   arbitrary precision.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Ordering;

use slackline_units::{CpuShare, Reservation, Span};

/// Reserved load of one CPU: the exact sum of slice/period of its reservations.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReservedLoad {
    /// Sum of the slices of each period, in nanoseconds.
    slices: BTreeMap<Span, u128>,
    /// Sum of slice/period in 2^-64ths of a CPU, each term rounded down.
    floor: u128,
    /// Number of reservations. In `floor` each of them is rounded down by less than 2^-64 of a CPU,
    /// so the exact sum is at most `floor` + `count`.
    count: u32,
}

impl ReservedLoad {
    pub(crate) fn add(&mut self, reservation: Reservation) {
        *self.slices.entry(reservation.period()).or_default() += slice(reservation);
        self.floor += floor(reservation);
        self.count += 1;
    }

    pub(crate) fn remove(&mut self, reservation: Reservation) {
        let left = self.slices.get_mut(&reservation.period()).expect("a booked period has a sum");
        *left -= slice(reservation);
        if *left == 0 {
            self.slices.remove(&reservation.period());
        }
        self.floor -= floor(reservation);
        self.count -= 1;
    }

    /// Returns true if the load with `more` added does not exceed `capacity`.
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

    /// Returns the reserved share of the CPU, rounded up to a millionth so that it is never shown
    /// too small.
    pub(crate) fn share(&self) -> CpuShare {
        let ppm = |unit: u128| (unit * 1_000_000).div_ceil(1 << 64);
        let most = ppm(self.floor + u128::from(self.count));
        // This bound can be too high by a fraction of a millionth, so one millionth less may
        // suffice.
        let most =
            CpuShare::from_ppm(u32::try_from(most).expect("the load of a CPU is at most one CPU"));
        let less = most.less(CpuShare::from_ppm(1));
        if self.compare_exactly(less) == Ordering::Greater { most } else { less }
    }

    /// Returns the part of `capacity` that is not reserved, in 2^-64ths of a CPU. It is rounded
    /// down by less than one unit per reservation.
    pub(crate) fn left_of(&self, capacity: CpuShare) -> u128 {
        let capacity = (u128::from(capacity.ppm()) << 64) / 1_000_000;
        capacity.saturating_sub(self.floor + u128::from(self.count))
    }

    /// Returns a lower bound of the load in 2^-64ths of a CPU, for comparing CPUs.
    pub(crate) fn bound(&self) -> u128 {
        self.floor
    }

    /// Compares the exact load with a capacity.
    fn compare_exactly(&self, capacity: CpuShare) -> Ordering {
        let mut sum = Fraction::from(0, 1);
        for (period, &slices) in &self.slices {
            sum = sum.plus(&Fraction::from(slices, u128::from(period.ns())));
        }
        sum.compare(&Fraction::from(u128::from(capacity.ppm()), 1_000_000))
    }
}

/// Returns the slice of a reservation in nanoseconds.
fn slice(reservation: Reservation) -> u128 {
    u128::from(reservation.slice().ns())
}

/// Returns slice/period in 2^-64ths, rounded down.
fn floor(reservation: Reservation) -> u128 {
    (slice(reservation) << 64) / u128::from(reservation.period().ns())
}

/// Fraction in arbitrary precision.
struct Fraction {
    above: BigUint,
    below: BigUint,
}

impl Fraction {
    fn from(above: u128, below: u128) -> Fraction {
        let common = greatest_common_divisor(above, below);
        Fraction { above: BigUint::from(above / common), below: BigUint::from(below / common) }
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

/// Natural number of any size: 32-bit digits, least significant first, without zeros at the end.
struct BigUint(Vec<u32>);

impl BigUint {
    fn from(mut value: u128) -> BigUint {
        let mut digits = Vec::new();
        while value != 0 {
            digits.push(low(value));
            value >>= 32;
        }
        BigUint(digits)
    }

    fn plus(&self, other: &BigUint) -> BigUint {
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
        BigUint(digits)
    }

    fn times(&self, other: &BigUint) -> BigUint {
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
        BigUint(digits)
    }

    fn compare(&self, other: &BigUint) -> Ordering {
        let longer = self.0.len().cmp(&other.0.len());
        longer.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Returns the digit at `place`. Zero beyond the last digit.
    fn digit(&self, place: usize) -> u128 {
        u128::from(self.0.get(place).copied().unwrap_or(0))
    }
}

/// Returns the lowest 32 bits.
fn low(value: u128) -> u32 {
    u32::try_from(value & u128::from(u32::MAX)).expect("masked to 32 bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reservation(slice: u64, period: u64) -> Reservation {
        Reservation::new(Span::from_ns(slice), Span::from_ns(period)).unwrap()
    }

    #[test]
    fn cpu_can_be_reserved_exactly_to_the_last_nanosecond() {
        let mut load = ReservedLoad::default();
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
    fn reserved_load_does_not_overflow_with_longest_possible_periods() {
        let mut load = ReservedLoad::default();
        for _ in 0..1000 {
            load.add(reservation(u64::MAX / 1000, u64::MAX));
        }
        assert!(load.has_room(reservation(u64::MAX % 1000, u64::MAX), CpuShare::ONE));
        assert!(!load.has_room(reservation(u64::MAX % 1000 + 1, u64::MAX), CpuShare::ONE));
    }

    proptest! {
        /// Shares whose periods divide 2^4 · 3^2 · 5 · 7 ns can be added in plain integers.
        /// Reservations that were removed must no longer count.
        #[test]
        fn available_capacity_check_agrees_with_integer_arithmetic(
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
            let mut load = ReservedLoad::default();
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
