//! Tolerances of comparisons with published values.

use std::fmt;

/// Largest difference between our value and the published value with which the verdict is still
/// "reproduced".
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// A percentage of the published value.
    Percent(f64),
    /// An absolute amount in the unit of the value. If the value is a percentage, the amount is in
    /// percentage points.
    Points(f64),
    /// A factor: the measured value can lie between the published value divided by this factor and
    /// multiplied by this factor.
    Factor(f64),
    /// No tolerance beyond the precision to which the published value can be read.
    Exact,
}

impl fmt::Display for Tolerance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tolerance::Percent(percent) => write!(out, "{percent} %"),
            Tolerance::Points(points) => write!(out, "{points} points"),
            Tolerance::Factor(factor) => write!(out, "a factor of {factor}"),
            Tolerance::Exact => out.write_str("the precision of reading"),
        }
    }
}

impl Tolerance {
    pub(crate) fn read(text: &str) -> Option<Tolerance> {
        let number = |text: &str| text.trim().parse().ok().filter(|&number: &f64| number > 0.0);
        if let Some(percent) = text.strip_suffix('%') {
            return number(percent).map(Tolerance::Percent);
        }
        if let Some(factor) = text.strip_prefix("factor ") {
            return number(factor).filter(|&factor| factor > 1.0).map(Tolerance::Factor);
        }
        number(text.strip_suffix(" points").or_else(|| text.strip_suffix(" point"))?)
            .map(Tolerance::Points)
    }

    /// Returns true if `ours` is within the tolerance of `theirs`, or within `give`, the precision
    /// of reading.
    pub(crate) fn holds(self, ours: f64, theirs: f64, give: f64) -> bool {
        let off = (ours - theirs).abs();
        off <= give
            || match self {
                Tolerance::Percent(percent) => off <= theirs.abs() * percent / 100.0,
                Tolerance::Points(points) => off <= points,
                Tolerance::Factor(factor) => {
                    theirs / factor <= ours && ours <= theirs * factor && theirs > 0.0
                }
                Tolerance::Exact => false,
            }
    }

    /// Maximum relative error with which a value can count as reproduced, in percent. With a wider
    /// tolerance only the order of values is known, and not their sizes.
    pub(crate) const FURTHEST_PERCENT: f64 = 25.0;

    /// Returns true if `ours` is too far from `theirs` to count as reproduced, and further than
    /// `give`, the precision of reading. Always returns false for a tolerance in points. Such
    /// tolerances are for percentages near zero, for which a relative error has no meaning.
    pub(crate) fn is_too_far(self, ours: f64, theirs: f64, give: f64) -> bool {
        let is_relative = matches!(self, Tolerance::Percent(_) | Tolerance::Factor(_));
        let furthest = theirs.abs() * Tolerance::FURTHEST_PERCENT / 100.0;
        is_relative && (ours - theirs).abs() > furthest.max(give)
    }

    /// Returns the maximum difference at which numbers of about this size count as alike.
    pub(crate) fn width(self, size: f64) -> f64 {
        match self {
            Tolerance::Percent(percent) => size.abs() * percent / 100.0,
            Tolerance::Points(points) => points,
            Tolerance::Factor(factor) => size.abs() * (factor - 1.0),
            Tolerance::Exact => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_more_than_25_percent_off_is_not_called_reproduced() {
        for tolerance in [Tolerance::Factor(1.75), Tolerance::Percent(60.0)] {
            assert!(tolerance.holds(150.0, 100.0, 0.0) && tolerance.is_too_far(150.0, 100.0, 0.0));
            assert!(!tolerance.is_too_far(124.0, 100.0, 0.0));
            assert!(!tolerance.is_too_far(150.0, 100.0, 60.0), "it can be read so");
        }
        assert!(!Tolerance::Points(3.0).is_too_far(2.0, 1.0, 0.0));
    }
}
