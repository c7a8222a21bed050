//! Axes of plots: label, kind and range.

use crate::scale::{Kind, Range};

/// An axis of a plot: the quantity, its unit and its kind of scale.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(crate) label: String,
    pub(crate) kind: Kind,
    pub(crate) said: Option<Range>,
    /// Values that are always shown, whatever the range of the data.
    pub(crate) includes: Vec<f64>,
    /// Indices of the names after which the step to the next name changes.
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

    /// Creates an axis for values of different magnitudes on both sides of zero. It is logarithmic
    /// beyond `near`, a positive value in the axis's unit, and nearly linear within.
    #[must_use]
    pub fn symlog(what: &str, unit: &str, near: f64) -> Axis {
        Axis::new(label(what, unit), Kind::Symlog(near))
    }

    /// Creates an axis of names side by side. Values are the indices of the names from zero. Layers
    /// with different names share the place of each name.
    #[must_use]
    pub fn names<T: Into<String>>(what: &str, names: impl IntoIterator<Item = T>) -> Axis {
        let names = names.into_iter().map(Into::into).collect();
        Axis::new(what.to_string(), Kind::Names(names))
    }

    fn new(label: String, kind: Kind) -> Axis {
        Axis { label, kind, said: None, includes: Vec::new(), breaks: Vec::new() }
    }

    /// Sets the range of an axis, whatever the data are. Values outside the range are not drawn,
    /// and the figure should say so.
    #[must_use]
    pub fn range(self, (from, to): (f64, f64)) -> Axis {
        Axis { said: Some(Range { from, to }), ..self }
    }

    /// Extends the range to include this value.
    #[must_use]
    pub fn including(mut self, value: f64) -> Axis {
        self.includes.push(value);
        self
    }

    /// Adds a mark that breaks the axis after each of these names, by index: the step to the next
    /// name changes there.
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
