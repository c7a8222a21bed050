//! One scenario as many: what is varied along axes, and where these cross.

mod vary;

use std::ops::Range;

use serde::Deserialize;
use slackline_scenario::ScenarioError;
use toml::{Spanned, Table};

pub use vary::{Unfit, value_at, vary};

/// Something that is varied.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// What it is called in the file, and where.
    pub name: Spanned<String>,
    /// What stands along it in a plot.
    #[serde(default)]
    pub label: String,
    /// Its points, in order.
    #[serde(rename = "point")]
    pub points: Vec<AxisPoint>,
}

/// One value of what is varied.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisPoint {
    /// What it is called in the file, and where.
    pub name: Spanned<String>,
    /// What it is called in plots; its name if empty.
    #[serde(default)]
    pub label: String,
    /// Where it lies along its axis; its place in the file if none.
    pub x: Option<f64>,
    /// Texts that stand for themselves in braces in what is set.
    #[serde(default, rename = "let")]
    lets: Table,
    /// Values by their paths.
    #[serde(default)]
    set: Table,
    /// Paths of numbers and lengths of time, and by how many percent of them to replace them.
    #[serde(default)]
    scale: Table,
    /// Paths of what is taken out.
    #[serde(default)]
    unset: Vec<String>,
}

/// What is different in the scenario.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'a> {
    /// Texts that stand for themselves in braces in what is set.
    pub lets: &'a Table,
    /// Values by their paths.
    pub set: &'a Table,
    /// Paths of numbers and lengths of time, and by how many percent of them to replace them.
    pub scale: &'a Table,
    /// Paths of what is taken out.
    pub unset: &'a [String],
}

impl Axis {
    /// What it is called in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }
}

impl AxisPoint {
    /// What it is called in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }

    /// What it is called in plots.
    #[must_use]
    pub fn label(&self) -> &str {
        if self.label.is_empty() { self.name() } else { &self.label }
    }

    fn edit(&self) -> Edit<'_> {
        let AxisPoint { lets, set, scale, unset, .. } = self;
        Edit { lets, set, scale, unset }
    }
}

/// Where axes cross: for each point a place on every axis, the last varying fastest. Without axes
/// there is one.
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

/// What a point is called: the names of its places, `bvt-5ms/1`.
#[must_use]
pub fn title(axes: &[Axis], point: &[usize]) -> String {
    let names = axes.iter().zip(point).map(|(axis, &place)| axis.points[place].name());
    names.collect::<Vec<_>>().join("/")
}

/// What is different at a point, axis after axis.
pub fn edits<'a>(axes: &'a [Axis], point: &'a [usize]) -> impl Iterator<Item = Edit<'a>> {
    axes.iter().zip(point).map(|(axis, &place)| axis.points[place].edit())
}

/// Where in the file the last place of a point stands, in bytes.
#[must_use]
pub fn last_place(axes: &[Axis], point: &[usize]) -> Range<usize> {
    let place = axes.iter().zip(point).next_back();
    place.map_or(0..0, |(axis, &place)| axis.points[place].name.span())
}

/// What is wrong with a scenario that came of varying another, of which this is the text: what was
/// set is checked as a whole, and the place is that of the scenario as it became.
#[must_use]
pub fn as_it_became(text: &str, error: &ScenarioError) -> String {
    match text.lines().nth(error.line.saturating_sub(1)) {
        Some(line) if error.line > 0 => format!("{error}, in `{}`", line.trim()),
        _ => error.to_string(),
    }
}
