//! Comparisons as the file of an experiment declares them: the points and measures to compare, and
//! the published values.

use serde::Deserialize;
use toml::Spanned;

use crate::error::{FileFault, PaperError};
use crate::source::Source;
use crate::tolerance::Tolerance;

/// Group of declared comparisons that has a common verdict.
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

/// A comparison as the file declares it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowSpec {
    /// Id of the published value.
    pub(crate) published: Spanned<String>,
    /// Points whose measured values are compared, as texts.
    pub(crate) at: Spanned<Names>,
    /// Points with which the points of `at` are compared, if the published value is about two
    /// groups of points. `None` otherwise.
    pub(crate) against: Option<Spanned<Names>>,
    /// Measure at the points of `against`. If `None`, the measure is the same as at the points of
    /// `at`.
    pub(crate) against_measure: Option<Spanned<String>>,
    /// Formula that makes the measured value from the numbers at the points of `at` and of
    /// `against`.
    #[serde(rename = "as")]
    pub(crate) by: Option<Formula>,
    /// Measures of the row. `None` if the row has the measure of its group.
    pub(crate) measure: Option<Spanned<Names>>,
    /// True if the values at all points that a text of `at` or `against` selects are averaged to
    /// one value. False if the points are compared one by one.
    #[serde(default)]
    pub(crate) averaged: bool,
    /// True if each text of `at` or `against` stands for one value: the largest value at the points
    /// that the text selects.
    #[serde(default)]
    pub(crate) largest: bool,
    /// Search for the limit along an axis up to which the measure stays small. The limit is the
    /// measured value.
    pub(crate) reach: Option<Reach>,
    /// Test of the comparison. If `None`, the kind of the published value decides the test.
    pub(crate) test: Option<Spanned<Test>>,
    tolerance: Option<Spanned<String>>,
    /// Reason for the tolerance of this row, if it differs from the reason of the group.
    pub(crate) because: Option<String>,
}

/// Limit up to which a measure stays small along an axis. The worst point at each position of the
/// axis counts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reach {
    /// Name of the axis. All its points have an `x`, and the limit is one of these `x`.
    pub(crate) axis: Spanned<String>,
    /// End of the axis towards which the limit is searched.
    pub(crate) towards: End,
    /// Absolute value up to which the measure counts as small.
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
    /// Percentage by which the first number exceeds the second.
    #[default]
    #[serde(rename = "percent above")]
    PercentAbove,
    /// Percentage by which the first number is below the second.
    #[serde(rename = "percent below")]
    PercentBelow,
    /// Ratio of the first number to the second.
    #[serde(rename = "ratio")]
    Ratio,
}

/// Kind of test in a comparison.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// The measured number is near the published number.
    Value,
    /// All measured numbers are within the published range.
    Inside,
    /// The measured numbers have the order of the published series.
    Ranked,
    /// Each measured number is compared with two numbers, and is nearer to the first number.
    First,
    /// Each measured number is compared with two numbers, and is nearer to the second number.
    Second,
    /// All measured numbers are equal within the tolerance.
    Alike,
    /// At least two measured numbers differ by more than the tolerance.
    Unlike,
    /// All measured numbers are zero.
    Zero,
    /// All measured numbers are negative.
    Negative,
    /// No measured number is negative.
    Kept,
    /// Each measured number equals, within the tolerance, the number with which it is compared.
    Same,
    /// Each measured number is higher than the number with which it is compared.
    Higher,
    /// Each measured number is lower than the number with which it is compared.
    Lower,
    /// Each measured number is higher than the previous number.
    Rising,
    /// Each measured number is lower than the previous number.
    Falling,
    /// Of several measures, the measure with the published name is the lowest.
    Lowest,
}

impl Formula {
    /// Applies the formula to two numbers.
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
    /// Returns the tolerance that is declared for this row. `None` if the row declares no
    /// tolerance.
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
