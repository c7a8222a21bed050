//! Comparisons as the file of an experiment declares them: our points and measures, and the
//! published values.

use serde::Deserialize;
use toml::Spanned;

use crate::error::{FileFault, PaperError};
use crate::source::Source;
use crate::tolerance::Tolerance;

/// Comparisons with a common verdict.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Subject of the comparisons.
    pub title: String,
    pub(crate) measure: Option<Spanned<String>>,
    tolerance: Option<Spanned<String>>,
    /// Reason for the tolerance. Required if there is a tolerance.
    pub because: Option<String>,
    /// Comparisons of the group.
    #[serde(rename = "row")]
    pub(crate) rows: Vec<RowSpec>,
}

/// One comparison, as declared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowSpec {
    /// Id of the published value.
    pub(crate) published: Spanned<String>,
    /// Our points, as texts.
    pub(crate) at: Spanned<Names>,
    /// Points with which ours are compared, if the published value compares two groups of points.
    /// `None` otherwise.
    pub(crate) against: Option<Spanned<Names>>,
    /// Measure at the points of `against`. `None` for the measure at our points.
    pub(crate) against_measure: Option<Spanned<String>>,
    /// Calculation of our value from the numbers at our points and at those of `against`.
    #[serde(rename = "as")]
    pub(crate) by: Option<Formula>,
    /// Measures of the row. `None` for the measure of its group.
    pub(crate) measure: Option<Spanned<Names>>,
    /// True if the points of each text of `at` and `against` stand for their mean.
    #[serde(default)]
    pub(crate) averaged: bool,
    /// True if the points of each text of `at` and `against` stand for the largest of them.
    #[serde(default)]
    pub(crate) largest: bool,
    /// Limit up to which the measure stays small along an axis. Our value is that limit.
    pub(crate) reach: Option<Reach>,
    /// Test of the comparison. `None` for the natural one of the published value.
    pub(crate) test: Option<Spanned<Test>>,
    tolerance: Option<Spanned<String>>,
    /// Reason for the row's own tolerance.
    pub(crate) because: Option<String>,
}

/// Limit up to which a measure stays small along an axis, by the worst point at each place.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reach {
    /// Axis whose points have an `x` each. Our value is one of these.
    pub(crate) axis: Spanned<String>,
    /// End of the axis towards which the places are searched.
    pub(crate) towards: End,
    /// Largest size that counts as small.
    pub(crate) at_most: f64,
}

/// An end of an axis.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum End {
    Highest,
    Lowest,
}

/// One name or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Names {
    One(String),
    Several(Vec<String>),
}

/// Calculation of one number from two.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) enum Formula {
    /// Percentage by which the first exceeds the second.
    #[default]
    #[serde(rename = "percent above")]
    PercentAbove,
    /// Percentage by which the first is below the second.
    #[serde(rename = "percent below")]
    PercentBelow,
    /// Ratio of the first to the second.
    #[serde(rename = "ratio")]
    Ratio,
}

/// Test of a comparison.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// Our number is near the published one.
    Value,
    /// All of our numbers are within the published range.
    Inside,
    /// Our numbers have the order of the published series.
    Ranked,
    /// Each number is nearer to the first than to the second of the two numbers that it is compared
    /// with.
    First,
    /// Each number is nearer to the second than to the first of the two numbers that it is compared
    /// with.
    Second,
    /// All numbers are alike.
    Alike,
    /// Not all numbers are alike.
    Unlike,
    /// All numbers are zero.
    Zero,
    /// All numbers are negative.
    Negative,
    /// No number is negative.
    Kept,
    /// Each number is like the one that it is compared with.
    Same,
    /// Each number is higher than the one that it is compared with.
    Higher,
    /// Each number is lower than the one that it is compared with.
    Lower,
    /// Each number is higher than the previous one.
    Rising,
    /// Each number is lower than the previous one.
    Falling,
    /// Of several measures, the one with the published name is the lowest.
    Lowest,
}

impl Formula {
    /// Returns the number that is calculated from two.
    pub(crate) fn made(self, a: f64, b: f64) -> f64 {
        match self {
            Formula::PercentAbove => (a / b - 1.0) * 100.0,
            Formula::PercentBelow => (1.0 - a / b) * 100.0,
            Formula::Ratio => a / b,
        }
    }
}

impl Names {
    pub(crate) fn all(&self) -> Vec<&str> {
        match self {
            Names::One(name) => vec![name],
            Names::Several(names) => names.iter().map(String::as_str).collect(),
        }
    }
}

impl Group {
    /// Returns the tolerance of the group's comparisons.
    pub(crate) fn tolerance_in(&self, source: &Source) -> Result<Tolerance, PaperError> {
        tolerance(source, self.tolerance.as_ref(), self.because.as_ref())
    }
}

impl RowSpec {
    /// Returns the row's own tolerance. `None` if it has none.
    pub(crate) fn tolerance_in(&self, source: &Source) -> Result<Option<Tolerance>, PaperError> {
        let own = self.tolerance.as_ref();
        own.map(|own| tolerance(source, Some(own), self.because.as_ref())).transpose()
    }
}

fn tolerance(
    source: &Source,
    text: Option<&Spanned<String>>,
    because: Option<&String>,
) -> Result<Tolerance, PaperError> {
    let Some(text) = text else { return Ok(Tolerance::Exact) };
    if because.is_none() {
        let (place, key) = ("a tolerance", "because");
        let example = "because = \"...\": where the tolerance comes from";
        let fault = FileFault::Missing { place, key, example };
        return Err(source.fault(&text.span(), fault));
    }
    Tolerance::read(text.get_ref()).ok_or_else(|| {
        let (written, what) = (text.get_ref().clone(), "tolerance");
        let example = "`10%`, `3 points` or `factor 1.75`";
        source.fault(&text.span(), FileFault::NotA { written, what, example })
    })
}
