//! How far apart two numbers may be.

use std::fmt;

/// How far ours may be from what was published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// A percentage of it.
    Percent(f64),
    /// So much in its own unit: percentage points of a percentage.
    Points(f64),
    /// Between it divided by this and it times this.
    Factor(f64),
    /// What can be read off.
    Exact,
}

impl fmt::Display for Tolerance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tolerance::Percent(percent) => write!(out, "{percent} %"),
            Tolerance::Points(points) => write!(out, "{points} points"),
            Tolerance::Factor(factor) => write!(out, "a factor of {factor}"),
            Tolerance::Exact => out.write_str("what can be read off"),
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

    /// Whether a number is as near to another as this allows, or as that can be read off.
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

    /// How far off a number may be at most that still reproduces another, in percent of that: a
    /// tolerance beyond it says that the order of things is known, and not their sizes.
    pub(crate) const FURTHEST_PERCENT: f64 = 25.0;

    /// Whether a number is further off than one that reproduces another may be, whatever this
    /// allows, and further than can be read off. Points are of percentages, which may be near
    /// nothing: there it is for this to say.
    pub(crate) fn is_too_far(self, ours: f64, theirs: f64, give: f64) -> bool {
        let is_relative = matches!(self, Tolerance::Percent(_) | Tolerance::Factor(_));
        let furthest = theirs.abs() * Tolerance::FURTHEST_PERCENT / 100.0;
        is_relative && (ours - theirs).abs() > furthest.max(give)
    }

    /// How far apart numbers of about this size may be and still be alike.
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
    fn however_wide_a_tolerance_is_a_quarter_is_the_most_that_reproduces() {
        for tolerance in [Tolerance::Factor(1.75), Tolerance::Percent(60.0)] {
            assert!(tolerance.holds(150.0, 100.0, 0.0) && tolerance.is_too_far(150.0, 100.0, 0.0));
            assert!(!tolerance.is_too_far(124.0, 100.0, 0.0));
            assert!(!tolerance.is_too_far(150.0, 100.0, 60.0), "it can be read so");
        }
        assert!(!Tolerance::Points(3.0).is_too_far(2.0, 1.0, 0.0));
    }
}
