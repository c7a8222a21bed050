//! Many scenarios made of one: variation along axes, and the points where the axes cross.

mod vary;

use std::ops::Range;

use serde::Deserialize;
use slackline_scenario::ScenarioError;
use toml::{Spanned, Table};

pub use vary::{PathError, value_at, vary};

/// An axis of variation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Name in the file, with its position there.
    pub name: Spanned<String>,
    /// Label of the axis in plots.
    #[serde(default)]
    pub label: String,
    /// Points in order of the file.
    #[serde(rename = "point")]
    pub points: Vec<AxisPoint>,
}

/// One point of an axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisPoint {
    /// Name in the file, with its position there.
    pub name: Spanned<String>,
    /// Label in plots. The name if empty.
    #[serde(default)]
    pub label: String,
    /// Position along the axis in plots. The index if `None`.
    pub x: Option<f64>,
    /// Variables: texts that replace their names in braces in the values that are set.
    #[serde(default, rename = "let")]
    lets: Table,
    /// Values to set, by path.
    #[serde(default)]
    set: Table,
    /// Numbers and durations to scale, by path, with the percentage.
    #[serde(default)]
    scale: Table,
    /// Paths of values to remove.
    #[serde(default)]
    unset: Vec<String>,
}

/// Changes of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'a> {
    /// Variables: texts that replace their names in braces in the values that are set.
    pub lets: &'a Table,
    /// Values to set, by path.
    pub set: &'a Table,
    /// Numbers and durations to scale, by path, with the percentage.
    pub scale: &'a Table,
    /// Paths of values to remove.
    pub unset: &'a [String],
}

impl Axis {
    /// Returns the name in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }
}

impl AxisPoint {
    /// Returns the name in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }

    /// Returns the label in plots.
    #[must_use]
    pub fn label(&self) -> &str {
        if self.label.is_empty() { self.name() } else { &self.label }
    }

    fn edit(&self) -> Edit<'_> {
        let AxisPoint { lets, set, scale, unset, .. } = self;
        Edit { lets, set, scale, unset }
    }
}

/// Returns the points where the axes cross, each as an index on every axis. The last axis varies
/// fastest. Without axes there is one point.
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

/// Returns the title of a point: its names on all axes, such as `bvt-5ms/1`.
#[must_use]
pub fn title(axes: &[Axis], point: &[usize]) -> String {
    let names = axes.iter().zip(point).map(|(axis, &place)| axis.points[place].name());
    names.collect::<Vec<_>>().join("/")
}

/// Returns the changes at a point, axis by axis.
pub fn edits<'a>(axes: &'a [Axis], point: &'a [usize]) -> impl Iterator<Item = Edit<'a>> {
    axes.iter().zip(point).map(|(axis, &place)| axis.points[place].edit())
}

/// Returns the position of a point's name on the last axis in the file, in bytes.
#[must_use]
pub fn last_place(axes: &[Axis], point: &[usize]) -> Range<usize> {
    let place = axes.iter().zip(point).next_back();
    place.map_or(0..0, |(axis, &place)| axis.points[place].name.span())
}

/// Returns the message of an error in a varied scenario, followed by the faulty line. `text` is the
/// scenario after all changes, since a scenario is checked only then.
#[must_use]
pub fn as_it_became(text: &str, error: &ScenarioError) -> String {
    match text.lines().nth(error.line.saturating_sub(1)) {
        Some(line) if error.line > 0 => format!("{error}, in `{}`", line.trim()),
        _ => error.to_string(),
    }
}
