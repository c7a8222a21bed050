//! What an axis says.

use crate::scale::{Kind, Range};

/// One of the two axes of a plot: what is measured, in which unit, and how.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(crate) label: String,
    pub(crate) kind: Kind,
    pub(crate) said: Option<Range>,
    /// Values that must be shown whatever the range of the data.
    pub(crate) includes: Vec<f64>,
    /// The names after which the step to the next is another one than before.
    pub(crate) breaks: Vec<usize>,
}

impl Axis {
    /// An axis of equal steps for equal differences. An empty unit is none.
    #[must_use]
    pub fn linear(what: &str, unit: &str) -> Axis {
        Axis::new(label(what, unit), Kind::Linear)
    }

    /// An axis of equal steps for equal ratios. What is not above zero is left out.
    #[must_use]
    pub fn log(what: &str, unit: &str) -> Axis {
        Axis::new(label(what, unit), Kind::Log)
    }

    /// An axis for values orders of magnitude apart on either side of zero: of equal steps for
    /// equal ratios beyond `near`, which is above zero and in the axis' unit, nearly linear within.
    #[must_use]
    pub fn symlog(what: &str, unit: &str, near: f64) -> Axis {
        Axis::new(label(what, unit), Kind::Symlog(near))
    }

    /// An axis of names side by side; values are their numbers from zero. Layers of different names
    /// stand beside each other in the place of each.
    #[must_use]
    pub fn names<T: Into<String>>(what: &str, names: impl IntoIterator<Item = T>) -> Axis {
        let names = names.into_iter().map(Into::into).collect();
        Axis::new(what.to_string(), Kind::Names(names))
    }

    fn new(label: String, kind: Kind) -> Axis {
        Axis { label, kind, said: None, includes: Vec::new(), breaks: Vec::new() }
    }

    /// From here to there, whatever the data are. What lies outside is not drawn, and the figure
    /// should say so.
    #[must_use]
    pub fn range(self, (from, to): (f64, f64)) -> Axis {
        Axis { said: Some(Range { from, to }), ..self }
    }

    /// At least as far as this value.
    #[must_use]
    pub fn including(mut self, value: f64) -> Axis {
        self.includes.push(value);
        self
    }

    /// With a mark that breaks the axis after each of these names, by number: there the step to the
    /// next is another one.
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
