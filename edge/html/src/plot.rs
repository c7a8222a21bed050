//! Plots: two axes and the layers between them.

use crate::axis::Axis;
use crate::layer::Layer;

/// A plot: two axes and the layers between them.
#[derive(Clone, Debug)]
pub struct Plot {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) layers: Vec<Layer>,
}

/// Width of every figure in pixels. On a narrow page the figure is scaled down.
pub(crate) const WIDTH: f64 = 780.0;

impl Plot {
    /// Creates a plot without layers.
    #[must_use]
    pub fn new(x: Axis, y: Axis) -> Plot {
        Plot { title: String::new(), x, y, layers: Vec::new() }
    }

    /// Sets the title of the plot, for a plot that is one of several panels.
    #[must_use]
    pub fn titled(self, title: &str) -> Plot {
        Plot { title: title.into(), ..self }
    }

    /// Adds a layer, which is drawn over the previous layers.
    #[must_use]
    pub fn with(mut self, layer: Layer) -> Plot {
        self.layers.push(layer);
        self
    }
}
