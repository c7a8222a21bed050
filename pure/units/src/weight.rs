//! Weights: relative shares of CPU time.

use core::fmt;
use core::num::NonZeroU16;
use core::str::FromStr;

/// Weight from 1 to 65535: shares of CPU time are in proportion to the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU16);

impl Weight {
    /// Smallest weight, which is 1.
    pub const ONE: Weight = Weight(NonZeroU16::MIN);
    /// Largest weight, which is 65535.
    pub const MAX: Weight = Weight(NonZeroU16::MAX);

    /// Returns the weight, or `None` if the number is zero.
    #[must_use]
    #[inline]
    pub const fn new(weight: u16) -> Option<Weight> {
        match NonZeroU16::new(weight) {
            Some(weight) => Some(Weight(weight)),
            None => None,
        }
    }

    /// Returns the weight as a bare number.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Error: the text is not a whole number from 1 to 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseWeightError;

impl fmt::Display for ParseWeightError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("is not a whole number from 1 to 65535")
    }
}

impl core::error::Error for ParseWeightError {}

impl FromStr for Weight {
    type Err = ParseWeightError;

    fn from_str(text: &str) -> Result<Weight, ParseWeightError> {
        text.parse().map(Weight).map_err(|_| ParseWeightError)
    }
}
