//! What of ours is held against which published value, as an experiment's file says it.

use serde::Deserialize;
use toml::Spanned;

use crate::error::{FileFault, PaperError};
use crate::source::Source;
use crate::tolerance::Tolerance;

/// Comparisons that are judged together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What is compared.
    pub title: String,
    pub(crate) measure: Option<Spanned<String>>,
    tolerance: Option<Spanned<String>>,
    /// Where the tolerance comes from.
    pub because: Option<String>,
    /// The comparisons.
    #[serde(rename = "row")]
    pub(crate) rows: Vec<RowSpec>,
}

/// One comparison.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowSpec {
    /// The id of the published value.
    pub(crate) published: Spanned<String>,
    /// The points of ours.
    pub(crate) at: Spanned<Names>,
    /// The points that ours is held against, where the value is a comparison.
    pub(crate) against: Option<Spanned<Names>>,
    /// What is measured there, where that is something else.
    pub(crate) against_measure: Option<Spanned<String>>,
    /// How ours is made of the two.
    #[serde(rename = "as")]
    pub(crate) by: Option<By>,
    /// Measures of its own.
    pub(crate) measure: Option<Spanned<Names>>,
    /// Whether the points of each text of `at` and `against` stand for their mean.
    #[serde(default)]
    pub(crate) averaged: bool,
    /// Whether the points of each text of `at` and `against` stand for the largest of them.
    #[serde(default)]
    pub(crate) largest: bool,
    /// Ours is how far along an axis the measure stays small.
    pub(crate) reach: Option<Reach>,
    /// What is to be seen.
    pub(crate) test: Option<Spanned<Test>>,
    tolerance: Option<Spanned<String>>,
    /// Where its own tolerance comes from.
    pub(crate) because: Option<String>,
}

/// How far along an axis a measure stays small, at the worst of the points at each place of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reach {
    /// The axis, whose points have an `x` each: ours is one of these.
    pub(crate) axis: Spanned<String>,
    /// From the other end to this one.
    pub(crate) towards: End,
    /// What is small.
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

/// How one number is made of two.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) enum By {
    /// By how much it is above.
    #[default]
    #[serde(rename = "percent above")]
    PercentAbove,
    /// By how much it is below.
    #[serde(rename = "percent below")]
    PercentBelow,
    /// How many times it is.
    #[serde(rename = "ratio")]
    Ratio,
}

/// What is to be seen in ours.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// The number.
    Value,
    /// All within the range.
    Inside,
    /// In the order of the published series.
    Ranked,
    /// Each nearer to the first of the two that it is held against.
    First,
    /// Each nearer to the second of them.
    Second,
    /// All alike.
    Alike,
    /// Not all alike.
    Unlike,
    /// All nothing.
    Zero,
    /// All less than nothing.
    Negative,
    /// None less than nothing.
    Kept,
    /// Each like what it is held against.
    Same,
    /// Each higher than what it is held against.
    Higher,
    /// Each lower than what it is held against.
    Lower,
    /// Each higher than the one before.
    Rising,
    /// Each lower than the one before.
    Falling,
    /// Of several measures, the one that has the published name is the lowest.
    Lowest,
}

impl By {
    /// What is made of two.
    pub(crate) fn made(self, a: f64, b: f64) -> f64 {
        match self {
            By::PercentAbove => (a / b - 1.0) * 100.0,
            By::PercentBelow => (1.0 - a / b) * 100.0,
            By::Ratio => a / b,
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
    /// The tolerance of its comparisons.
    pub(crate) fn tolerance_in(&self, source: &Source) -> Result<Tolerance, PaperError> {
        tolerance(source, self.tolerance.as_ref(), self.because.as_ref())
    }
}

impl RowSpec {
    /// Its own tolerance, if it has one.
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
