//! Virtual time: real time divided by weight, in fixed point wide enough never to wrap.
//!
//! The virtual clock of a vCPU of weight `w` advances by `span / w` while the vCPU runs for `span`.
//! A clock with a pace of `u` units in `e` advances by `span * u / e`. Internally, a virtual unit
//! (a nanosecond at weight one) has 32 binary places in an `i128`. A century of real time at weight
//! one is 2^94 of the smallest steps, so clocks never wrap and need no rebase. Each conversion of a
//! run interval is rounded by less than 2^-32 of a unit.

use core::fmt;
use core::ops::{Add, AddAssign, Neg, Sub, SubAssign};

use crate::{Span, Weight};

/// Number of binary places with which a virtual nanosecond is stored.
const PLACES: u32 = 32;

const OVERFLOW: &str = "virtual time overflowed 128 bits";

/// Pace of a vCPU's virtual clock while the vCPU runs: `units` virtual units in `every` of real
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Virtual units by which the clock advances in `every`.
    units: u32,
    /// Real time in which the clock advances by `units`.
    every: Span,
}

impl Pace {
    /// Creates a pace of `units` virtual units in `every` of real time. `None` if either is zero.
    #[must_use]
    pub const fn new(units: u32, every: Span) -> Option<Pace> {
        if units == 0 || every.is_zero() { None } else { Some(Pace { units, every }) }
    }

    /// Returns the number of virtual units by which the clock advances in one `every`, the span of
    /// real time given to [`Pace::new`].
    #[must_use]
    #[inline]
    pub const fn units(self) -> u32 {
        self.units
    }
}

impl From<Weight> for Pace {
    /// Returns the pace of one unit in `weight` nanoseconds. The clock of a heavier vCPU is slower.
    fn from(weight: Weight) -> Pace {
        Pace { units: 1, every: Span::from_ns(u64::from(weight.get())) }
    }
}

/// A point in virtual time: real time divided by weight.
#[repr(C, packed(8))] // So that rows with 64-bit words in tables and queues need no padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualTime(i128);

/// A distance in virtual time, which may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualSpan(i128);

impl VirtualTime {
    /// Start of all virtual clocks.
    pub const START: VirtualTime = VirtualTime(0);
}

impl VirtualSpan {
    /// Distance of zero length.
    pub const ZERO: VirtualSpan = VirtualSpan(0);

    /// Returns a distance of `count` whole virtual nanoseconds. A policy may use whole virtual
    /// nanoseconds as units of its own.
    #[must_use]
    #[inline]
    pub const fn from_units(count: i64) -> VirtualSpan {
        VirtualSpan((count as i128) << PLACES)
    }

    /// Returns the number of whole virtual nanoseconds, rounded down.
    #[must_use]
    #[inline]
    pub const fn units(self) -> i128 {
        self.0 >> PLACES
    }

    /// Returns the real time in which a clock at `pace` advances by this distance, rounded up. Zero
    /// if the distance is zero or negative.
    #[must_use]
    #[inline]
    pub fn real(self, pace: Pace) -> Span {
        let Ok(distance @ 1..) = u128::try_from(self.0) else { return Span::ZERO };
        let every = u128::from(pace.every.ns());
        let real = match u64::try_from(distance) {
            // A distance of at most 4 s at weight one. A product of two 64-bit numbers cannot
            // overflow.
            Ok(short) => u128::from(short) * every,
            Err(_) => distance.checked_mul(every).expect(OVERFLOW),
        };
        let up = match pace.units {
            // Weights are the common case and need a shift only; division is slow.
            1 => (real >> PLACES) + u128::from(real & ((1 << PLACES) - 1) != 0),
            units => {
                let (whole, units) = (real >> PLACES, u128::from(units));
                let down = quotient(whole, units);
                down + u128::from((down * units) << PLACES != real)
            }
        };
        Span::from_ns(u64::try_from(up).unwrap_or(u64::MAX))
    }
}

/// Divides `above` by `below`, with 64-bit numbers if both fit, since 128-bit division is slow.
#[inline]
fn quotient(above: u128, below: u128) -> u128 {
    match (u64::try_from(above), u64::try_from(below)) {
        (Ok(above), Ok(below)) => u128::from(above / below),
        _ => above / below,
    }
}

impl Span {
    /// Returns the virtual distance by which a clock at `pace` advances in this span of real time,
    /// rounded down.
    #[must_use]
    #[inline]
    pub fn aged(self, pace: Pace) -> VirtualSpan {
        // The product has up to 64 + 32 + 32 bits. All 128 are in use, so no bit is left for a
        // sign.
        let ran = (u128::from(self.ns()) << PLACES) * u128::from(pace.units);
        let every = u128::from(pace.every.ns());
        let aged = if every == 1 { ran } else { quotient(ran, every) };
        VirtualSpan(i128::try_from(aged).expect(OVERFLOW))
    }
}

impl Add<VirtualSpan> for VirtualTime {
    type Output = VirtualTime;
    #[inline]
    fn add(self, span: VirtualSpan) -> VirtualTime {
        VirtualTime(self.0.checked_add(span.0).expect(OVERFLOW))
    }
}

impl AddAssign<VirtualSpan> for VirtualTime {
    #[inline]
    fn add_assign(&mut self, span: VirtualSpan) {
        *self = *self + span;
    }
}

impl Sub<VirtualSpan> for VirtualTime {
    type Output = VirtualTime;
    #[inline]
    fn sub(self, span: VirtualSpan) -> VirtualTime {
        VirtualTime(self.0.checked_sub(span.0).expect(OVERFLOW))
    }
}

impl Sub for VirtualTime {
    type Output = VirtualSpan;
    #[inline]
    fn sub(self, other: VirtualTime) -> VirtualSpan {
        VirtualSpan(self.0.checked_sub(other.0).expect(OVERFLOW))
    }
}

impl Add for VirtualSpan {
    type Output = VirtualSpan;
    #[inline]
    fn add(self, other: VirtualSpan) -> VirtualSpan {
        VirtualSpan(self.0.checked_add(other.0).expect(OVERFLOW))
    }
}

impl Sub for VirtualSpan {
    type Output = VirtualSpan;
    #[inline]
    fn sub(self, other: VirtualSpan) -> VirtualSpan {
        VirtualSpan(self.0.checked_sub(other.0).expect(OVERFLOW))
    }
}

impl SubAssign for VirtualSpan {
    #[inline]
    fn sub_assign(&mut self, other: VirtualSpan) {
        *self = *self - other;
    }
}

impl Neg for VirtualSpan {
    type Output = VirtualSpan;
    #[inline]
    fn neg(self) -> VirtualSpan {
        VirtualSpan(self.0.checked_neg().expect(OVERFLOW))
    }
}

impl fmt::Display for VirtualTime {
    /// Writes whole virtual nanoseconds, as shown to users.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        (*self - VirtualTime::START).fmt(out)
    }
}

impl fmt::Display for VirtualSpan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.units())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn converting_time_to_virtual_time_and_back_loses_nothing(
            ns in 0..1u64 << 62,
            weight in 1u16..,
        ) {
            let pace = Weight::new(weight).expect("the weight is not zero").into();
            let span = Span::from_ns(ns);
            prop_assert_eq!(span.aged(pace).real(pace), span);
        }

        /// A clock with a pace of `units` in `every` is at `units * n` after `n * every`, and not
        /// earlier.
        #[test]
        fn virtual_clock_advances_exactly_at_its_configured_rate(
            units in 1u32..,
            every in 1..1u64 << 30,
            times in 0..1u64 << 31,
        ) {
            let every = Span::from_ns(every);
            let pace = Pace::new(units, every).expect("units and time are not zero");
            let aged = VirtualSpan::from_units(i64::from(units)).0 * i128::from(times);
            prop_assert_eq!((every * times).aged(pace), VirtualSpan(aged));
            prop_assert_eq!(VirtualSpan(aged).real(pace), every * times);
        }

        #[test]
        fn virtual_time_advances_half_as_fast_at_double_weight(
            ns in 0..1u64 << 62,
            weight in 1u16..1 << 15,
        ) {
            let (one, two) = (Weight::new(weight), Weight::new(2 * weight));
            let (one, two) = (one.expect("not zero").into(), two.expect("not zero").into());
            let (fast, slow) = (Span::from_ns(ns).aged(one), Span::from_ns(ns).aged(two));
            prop_assert!((fast - (slow + slow)).0.abs() <= 1);
        }
    }
}
