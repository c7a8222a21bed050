//! A plot: two axes and what is drawn between them.

use crate::axis::Axis;
use crate::layer::Layer;

/// Two axes and what is drawn between them.
#[derive(Clone, Debug)]
pub struct Plot {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) layers: Vec<Layer>,
}

/// The width of every figure, in pixels; it shrinks with the page.
pub(crate) const WIDTH: f64 = 780.0;

impl Plot {
    /// An empty plot.
    #[must_use]
    pub fn new(x: Axis, y: Axis) -> Plot {
        Plot { title: String::new(), x, y, layers: Vec::new() }
    }

    /// The title of a panel among others.
    #[must_use]
    pub fn titled(self, title: &str) -> Plot {
        Plot { title: title.into(), ..self }
    }

    /// With one more layer, drawn over those before.
    #[must_use]
    pub fn with(mut self, layer: Layer) -> Plot {
        self.layers.push(layer);
        self
    }
}
