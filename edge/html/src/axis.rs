//! Axes of plots, with their labels, kinds and ranges.

use crate::scale::{Kind, Range};

/// An axis of a plot: the quantity, its unit and its kind of scale.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(crate) label: String,
    pub(crate) kind: Kind,
    pub(crate) said: Option<Range>,
    /// Values that the range of the axis always includes, even if no data are near them.
    pub(crate) includes: Vec<f64>,
    /// Indexes of the names after which the axis is broken, because the distance to the next value
    /// differs from the distances between earlier values.
    pub(crate) breaks: Vec<usize>,
}

impl Axis {
    /// Creates an axis with a linear scale. An empty unit is left out.
    #[must_use]
    pub fn linear(what: &str, unit: &str) -> Axis {
        Axis::new(label(what, unit), Kind::Linear)
    }

    /// Creates an axis with a logarithmic scale. Values that are not positive are left out.
    #[must_use]
    pub fn log(what: &str, unit: &str) -> Axis {
        Axis::new(label(what, unit), Kind::Log)
    }

    /// Creates an axis for values of different magnitudes on both sides of zero. Its scale is
    /// nearly linear between zero and `near`, and logarithmic beyond. `near` is positive, in the
    /// unit of the axis.
    #[must_use]
    pub fn symlog(what: &str, unit: &str, near: f64) -> Axis {
        Axis::new(label(what, unit), Kind::Symlog(near))
    }

    /// Creates an axis of names side by side. A value on the axis is the index of a name, counted
    /// from zero. If the plot has several layers, they share the width of each name.
    #[must_use]
    pub fn names<T: Into<String>>(what: &str, names: impl IntoIterator<Item = T>) -> Axis {
        let names = names.into_iter().map(Into::into).collect();
        Axis::new(what.to_string(), Kind::Names(names))
    }

    fn new(label: String, kind: Kind) -> Axis {
        Axis { label, kind, said: None, includes: Vec::new(), breaks: Vec::new() }
    }

    /// Sets the range of the axis independently of the data. Values outside the range are not
    /// drawn. The caption of the figure should say so.
    #[must_use]
    pub fn range(self, (from, to): (f64, f64)) -> Axis {
        Axis { said: Some(Range { from, to }), ..self }
    }

    /// Extends the range of the axis to include a value.
    #[must_use]
    pub fn including(mut self, value: f64) -> Axis {
        self.includes.push(value);
        self
    }

    /// Marks the axis as broken after each of these names, given by index. A break shows that the
    /// distance to the next value differs from the distances between earlier values.
    #[must_use]
    pub fn broken_after(self, breaks: impl IntoIterator<Item = usize>) -> Axis {
        Axis { breaks: breaks.into_iter().collect(), ..self }
    }

    pub(crate) fn is_names(&self) -> bool {
        matches!(self.kind, Kind::Names(_))
    }
}

fn label(what: &str, unit: &str) -> String {
    if unit.is_empty() { what.to_string() } else { format!("{what}, {unit}") }
}
