//! Layers: the data that are drawn on a plot.

/// Values of a plot that have one name and are drawn in one shape.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// True if the layer shows published values, such as values from a paper. Published values are
    /// drawn hollow, in the colour of the text.
    pub(crate) is_published: bool,
    /// On an axis of names: name of the layer over which this layer is drawn. `None` if the layer
    /// is drawn beside the other layers.
    pub(crate) over: Option<String>,
}

/// A value with the range around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) x: f64,
    pub(crate) low: f64,
    pub(crate) mid: f64,
    pub(crate) high: f64,
}

/// A point of a plot, in the units of its axes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coordinate {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A value at a position on two axes of names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tile {
    pub(crate) at: Coordinate,
    pub(crate) value: f64,
}

#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Points(Vec<Coordinate>),
    Line(Vec<Coordinate>, Vec<Spread>),
    /// Steps: each value holds until the next value.
    Steps(Vec<Coordinate>),
    Bars(Vec<Spread>),
    Ranges(Vec<Spread>),
    /// Steps that are stacked on top of the previous stacked layers.
    Stack(Vec<Coordinate>),
    RuleAt(Rule),
    Region(Region),
    /// Tiles of a map, and a threshold. Tiles with a value above the threshold are outlined.
    Tiles(Vec<Tile>, f64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    X(f64),
    Y(f64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Region {
    X(f64, f64),
    Y(f64, f64),
}

impl Layer {
    fn new(name: impl Into<String>, shape: Shape) -> Layer {
        Layer { name: name.into(), shape, is_published: false, over: None }
    }

    /// Creates a layer of single points. Equal points are drawn as one point, which is larger the
    /// more points it represents.
    pub fn points(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        Layer::new(name, Shape::Points(ats(values)))
    }

    /// Creates a layer of values that a line connects in their order. If there are few values, each
    /// value has a marker.
    pub fn line(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        Layer::new(name, Shape::Line(ats(values), Vec::new()))
    }

    /// Creates a layer of steps: each value holds until the next value.
    pub fn steps(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        Layer::new(name, Shape::Steps(ats(values)))
    }

    /// Creates the cumulative distribution of values: for each value, the percentage of all values
    /// that are at most this value.
    pub fn cdf(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Layer {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let all = values.len() as f64;
        let mut steps: Vec<Coordinate> =
            values.first().map(|&x| Coordinate { x, y: 0.0 }).into_iter().collect();
        let part = |(nth, x): (usize, f64)| Coordinate { x, y: (nth + 1) as f64 * 100.0 / all };
        steps.extend(values.into_iter().enumerate().map(part));
        // Of several equal values only the last one matters. An exception is the value at zero,
        // where the curve begins.
        let mut kept: Vec<Coordinate> = Vec::new();
        for step in steps {
            match kept.last_mut() {
                Some(last) if last.x == step.x && last.y > 0.0 => *last = step,
                _ => kept.push(step),
            }
        }
        Layer::new(name, Shape::Steps(kept))
    }

    /// Creates a layer of bars, each given as position and height. On an axis of names, the bars of
    /// several layers stand side by side.
    pub fn bars(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        let spread = |(x, y)| Spread { x, low: y, mid: y, high: y };
        Layer::new(name, Shape::Bars(values.into_iter().map(spread).collect()))
    }

    /// Creates a layer of bars with ranges. Each bar is given as position, smallest, middle and
    /// largest value.
    pub fn bars_with_range(
        name: impl Into<String>,
        values: impl IntoIterator<Item = (f64, f64, f64, f64)>,
    ) -> Layer {
        Layer::new(name, Shape::Bars(values.into_iter().map(spread).collect()))
    }

    /// Creates a layer of points with ranges. Each point is given as position, smallest, middle and
    /// largest value.
    pub fn ranges(
        name: impl Into<String>,
        values: impl IntoIterator<Item = (f64, f64, f64, f64)>,
    ) -> Layer {
        Layer::new(name, Shape::Ranges(values.into_iter().map(spread).collect()))
    }

    /// Creates a layer of shares over time, drawn as an area on top of the previous stacked layers.
    /// Each value holds until the next value. All layers of a stack must have equal positions.
    pub fn stack(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        Layer::new(name, Shape::Stack(ats(values)))
    }

    /// Creates a map of tiles on two axes of names. Each tile is given as its two positions and its
    /// value. Tiles with larger values are darker. Tiles with a value above `line` are outlined.
    pub fn tiles(
        name: impl Into<String>,
        values: impl IntoIterator<Item = (f64, f64, f64)>,
        line: f64,
    ) -> Layer {
        let tile = |(x, y, value)| Tile { at: Coordinate { x, y }, value };
        Layer::new(name, Shape::Tiles(values.into_iter().map(tile).collect(), line))
    }

    /// Creates a horizontal line at the value `y`, with a name that is written into the plot.
    pub fn rule_at_y(name: impl Into<String>, y: f64) -> Layer {
        Layer::new(name, Shape::RuleAt(Rule::Y(y)))
    }

    /// Creates a vertical line at the value `x`, with a name that is written into the plot.
    pub fn rule_at_x(name: impl Into<String>, x: f64) -> Layer {
        Layer::new(name, Shape::RuleAt(Rule::X(x)))
    }

    /// Creates a shaded range of the y axis, with a name that is written into the plot.
    pub fn region_y(name: impl Into<String>, (from, to): (f64, f64)) -> Layer {
        Layer::new(name, Shape::Region(Region::Y(from, to)))
    }

    /// Creates a shaded range of the x axis, with a name that is written into the plot.
    pub fn region_x(name: impl Into<String>, (from, to): (f64, f64)) -> Layer {
        Layer::new(name, Shape::Region(Region::X(from, to)))
    }

    /// Adds a band around a line. Each point of the band is given as position, smallest and largest
    /// value.
    ///
    /// # Panics
    /// If the layer is not a line.
    #[must_use]
    pub fn band(mut self, range: impl IntoIterator<Item = (f64, f64, f64)>) -> Layer {
        let Shape::Line(_, band) = &mut self.shape else { panic!("only a line has a band") };
        let spread = |(x, low, high)| Spread { x, low, mid: low, high };
        *band = range.into_iter().map(spread).collect();
        self
    }

    /// Marks the values as published. They are drawn hollow, in the colour of the text.
    #[must_use]
    pub fn published(self) -> Layer {
        Layer { is_published: true, ..self }
    }

    /// Draws this layer over the layer called `name`. Without this call, a plot whose axis shows
    /// names has the two layers side by side. If this layer has published values, they get the
    /// colour of the layer called `name`, except over bars.
    #[must_use]
    pub fn over(self, name: impl Into<String>) -> Layer {
        Layer { over: Some(name.into()), ..self }
    }

    /// Returns the name that decides where the layer is drawn on an axis of names. This is the name
    /// of the layer that this layer is drawn over, or else the layer's own name.
    pub(crate) fn slot(&self) -> &str {
        self.over.as_deref().unwrap_or(&self.name)
    }

    /// Returns true if the layer is drawn at its own position on an axis of names, and not over
    /// another layer.
    pub(crate) fn has_slot(&self) -> bool {
        matches!(self.shape, Shape::Points(_) | Shape::Bars(_) | Shape::Ranges(_))
    }
}

fn ats(values: impl IntoIterator<Item = (f64, f64)>) -> Vec<Coordinate> {
    let finite = |at: &Coordinate| at.x.is_finite() && at.y.is_finite();
    values.into_iter().map(|(x, y)| Coordinate { x, y }).filter(finite).collect()
}

fn spread((x, low, mid, high): (f64, f64, f64, f64)) -> Spread {
    Spread { x, low, mid, high }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdf_chart_starts_at_zero_and_ends_at_100_percent() {
        let Shape::Steps(steps) = Layer::cdf("a", [3.0, 1.0, 1.0, f64::NAN, 2.0]).shape else {
            panic!("a distribution is steps")
        };
        let steps: Vec<_> = steps.iter().map(|at| (at.x, at.y)).collect();
        assert_eq!(steps, [(1.0, 0.0), (1.0, 50.0), (2.0, 75.0), (3.0, 100.0)]);
    }
}
