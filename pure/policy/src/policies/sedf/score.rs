//! Scores: slack received, divided by weight. The vCPU with the lowest score gets slack next.

use core::fmt;
use core::ops::{Add, Sub};

use slackline_units::Span;

/// Number of binary places of a score: ten as in Xen, and ten more for fractions of a quantum. A
/// century of the shortest quanta at the lowest weight fits in 128 bits with a wide margin. So
/// scores never wrap, and no common base needs to be subtracted from all of them.
const PLACES: u32 = 20;

const OVERFLOW: &str = "a score overflowed 128 bits";

/// A score (slack received / weight), or a difference of two scores. The value 1 is the cost of a
/// quantum for a vCPU with slice = period.
#[repr(C, packed(8))] // No padding between it and the 64-bit words of a row in tables and queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score(i128);

impl Score {
    pub(super) const ZERO: Score = Score(0);

    /// Returns `above / below`, rounded down to ten binary places.
    #[inline(never)] // Most passes do not call it.
    pub(super) fn in_tenths(above: u64, below: u64) -> Score {
        let tenths = match above.checked_mul(1 << 10) {
            // 128-bit division is slow.
            Some(short) => u128::from(short / below),
            None => (u128::from(above) << 10) / u128::from(below),
        };
        Score(i128::try_from(tenths << (PLACES - 10)).expect(OVERFLOW))
    }

    /// Returns `above / below`, rounded down.
    pub(super) fn fraction(above: u64, below: u64) -> Score {
        Score(match above.checked_mul(1 << PLACES) {
            // The division in 64 bits is faster.
            Some(short) => i128::from(short / below),
            None => {
                let quotient = (u128::from(above) << PLACES) / u128::from(below);
                i128::try_from(quotient).expect(OVERFLOW)
            }
        })
    }

    /// Returns `self × used / quantum`, rounded down.
    pub(super) fn times(self, used: Span, quantum: Span) -> Score {
        if used == quantum {
            return self; // The common case, and division is slow.
        }
        let product = self.0.checked_mul(i128::from(used.ns())).expect(OVERFLOW);
        Score(match u64::try_from(product) {
            // The division in 64 bits is faster.
            Ok(short) => i128::from(short / quantum.ns()),
            Err(_) => product / i128::from(quantum.ns()),
        })
    }
}

impl Add for Score {
    type Output = Score;
    fn add(self, other: Score) -> Score {
        Score(self.0.checked_add(other.0).expect(OVERFLOW))
    }
}

impl Sub for Score {
    type Output = Score;
    fn sub(self, other: Score) -> Score {
        Score(self.0.checked_sub(other.0).expect(OVERFLOW))
    }
}

impl fmt::Display for Score {
    /// Formats the score with ten binary places, as Xen shows it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0 >> (PLACES - 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values beyond 64 bits take another division path. Both paths round down.
    #[test]
    fn sedf_division_of_slack_scores_is_correct_above_64_bits() {
        let score = |quanta: i128| Score(quanta << PLACES);
        let (third, whole) = (Span::from_us(100), Span::from_us(300));
        for quanta in [3, 3 << 40] {
            assert_eq!(score(quanta).times(third, whole), score(quanta / 3), "{quanta}");
        }
        for above in [7, 7 << 55] {
            assert_eq!(Score::fraction(above, above / 7), score(7), "{above}");
            assert_eq!(Score::in_tenths(above, above / 7), score(7), "{above}");
        }
        assert_eq!(Score::in_tenths(1, 3).to_string(), "341", "1,024 thirds");
        assert_eq!(Score::fraction(1, 3), Score(349_525), "1,048,576 thirds");
    }
}
