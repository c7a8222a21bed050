//! Variation of a scenario along axes. Each combination of points, one from each axis, gives one
//! scenario.

mod vary;

use std::ops::Range;

use serde::Deserialize;
use slackline_scenario::ScenarioError;
use toml::{Spanned, Table};

pub use vary::{PathError, value_at, vary};

/// An axis along which a scenario is varied.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Name of the axis, with its position in the file.
    pub name: Spanned<String>,
    /// Label of the axis in plots.
    #[serde(default)]
    pub label: String,
    /// Points of the axis, in the order of the file.
    #[serde(rename = "point")]
    pub points: Vec<AxisPoint>,
}

/// A point on an axis: changes to the scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisPoint {
    /// Name of the point, with its position in the file.
    pub name: Spanned<String>,
    /// Label of the point in plots. If empty, the name is the label.
    #[serde(default)]
    pub label: String,
    /// Position of the point along the axis in plots. If `None`, the index of the point is used.
    pub x: Option<f64>,
    /// Variables of this point. Wherever `set` contains the name of a variable in braces, that name
    /// is replaced by the text of the variable.
    #[serde(default, rename = "let")]
    lets: Table,
    /// New values in the scenario. The key is the path of the value.
    #[serde(default)]
    set: Table,
    /// Percentages to which numbers and durations are scaled: 50% halves a value. The key is the
    /// path of the value.
    #[serde(default)]
    scale: Table,
    /// Paths of the values that are removed from the scenario.
    #[serde(default)]
    unset: Vec<String>,
}

/// Changes to a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'a> {
    /// Variables of this edit. Wherever `set` contains the name of a variable in braces, that name
    /// is replaced by the text of the variable.
    pub lets: &'a Table,
    /// New values in the scenario. The key is the path of the value.
    pub set: &'a Table,
    /// Percentages to which numbers and durations are scaled: 50% halves a value. The key is the
    /// path of the value.
    pub scale: &'a Table,
    /// Paths of the values that are removed from the scenario.
    pub unset: &'a [String],
}

impl Axis {
    /// Returns the name of the axis in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }
}

impl AxisPoint {
    /// Returns the name of the point in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }

    /// Returns the label of the point in plots.
    #[must_use]
    pub fn label(&self) -> &str {
        if self.label.is_empty() { self.name() } else { &self.label }
    }

    fn edit(&self) -> Edit<'_> {
        let AxisPoint { lets, set, scale, unset, .. } = self;
        Edit { lets, set, scale, unset }
    }
}

/// Returns all combinations of points, each as an index on every axis. The index on the last axis
/// changes fastest. Without axes there is one combination.
#[must_use]
pub fn points(axes: &[Axis]) -> Vec<Vec<usize>> {
    axes.iter().fold(vec![Vec::new()], |points, axis| {
        let longer = |point: Vec<usize>| {
            (0..axis.points.len()).map(move |place| {
                let mut point = point.clone();
                point.push(place);
                point
            })
        };
        points.into_iter().flat_map(longer).collect()
    })
}

/// Returns the title of a combination of points: the names of its points on all axes, joined by
/// `/`, such as `bvt-5ms/1`.
#[must_use]
pub fn title(axes: &[Axis], point: &[usize]) -> String {
    let names = axes.iter().zip(point).map(|(axis, &place)| axis.points[place].name());
    names.collect::<Vec<_>>().join("/")
}

/// Returns the changes that lead to the scenario of a combination of points, axis by axis.
pub fn edits<'a>(axes: &'a [Axis], point: &'a [usize]) -> impl Iterator<Item = Edit<'a>> {
    axes.iter().zip(point).map(|(axis, &place)| axis.points[place].edit())
}

/// Returns the byte range in the file of the name of the combination's point on the last axis.
/// Empty if there are no axes.
#[must_use]
pub fn last_place(axes: &[Axis], point: &[usize]) -> Range<usize> {
    let place = axes.iter().zip(point).next_back();
    place.map_or(0..0, |(axis, &place)| axis.points[place].name.span())
}

/// Returns the text of an error in the varied scenario `text`. The error quotes the line as it is
/// after all changes, because a scenario is checked only then.
#[must_use]
pub fn as_it_became(text: &str, error: &ScenarioError) -> String {
    match text.lines().nth(error.line.saturating_sub(1)) {
        Some(line) if error.line > 0 => format!("{error}, in `{}`", line.trim()),
        _ => error.to_string(),
    }
}
