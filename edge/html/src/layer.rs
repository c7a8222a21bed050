//! What is drawn on a plot.

/// What is drawn on a plot: values of one name.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// Drawn in the colour of the text, hollow: what others published.
    pub(crate) is_published: bool,
    /// In the place of that name, where names have places.
    pub(crate) over: Option<String>,
}

/// A value with what it ranges over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) x: f64,
    pub(crate) low: f64,
    pub(crate) mid: f64,
    pub(crate) high: f64,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct At {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A value of a place on both axes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tile {
    pub(crate) at: At,
    pub(crate) value: f64,
}

#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Points(Vec<At>),
    Line(Vec<At>, Vec<Spread>),
    /// A value lasts until the next one.
    Steps(Vec<At>),
    Bars(Vec<Spread>),
    Ranges(Vec<Spread>),
    /// Steps on top of the layers of this shape before.
    Stack(Vec<At>),
    RuleAt(Rule),
    Region(Region),
    /// And the value above which a line is drawn around.
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

    /// Single values. Those that fall on one place are drawn once, larger the more they are.
    pub fn points(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        Layer::new(name, Shape::Points(ats(values)))
    }

    /// Values joined by a line, in their order, with markers while they are few.
    pub fn line(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        Layer::new(name, Shape::Line(ats(values), Vec::new()))
    }

    /// Values each of which lasts until the next.
    pub fn steps(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        Layer::new(name, Shape::Steps(ats(values)))
    }

    /// The cumulative distribution of values: what part of all of them, in percent, is not larger.
    pub fn cdf(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Layer {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let all = values.len() as f64;
        let mut steps: Vec<At> = values.first().map(|&x| At { x, y: 0.0 }).into_iter().collect();
        let part = |(nth, x): (usize, f64)| At { x, y: (nth + 1) as f64 * 100.0 / all };
        steps.extend(values.into_iter().enumerate().map(part));
        // Of equal values only the last says anything, but the one at zero is where it begins.
        let mut kept: Vec<At> = Vec::new();
        for step in steps {
            match kept.last_mut() {
                Some(last) if last.x == step.x && last.y > 0.0 => *last = step,
                _ => kept.push(step),
            }
        }
        Layer::new(name, Shape::Steps(kept))
    }

    /// Bars: where, and how high. With names on the x axis, bars of different layers stand side by
    /// side.
    pub fn bars(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        let spread = |(x, y)| Spread { x, low: y, mid: y, high: y };
        Layer::new(name, Shape::Bars(values.into_iter().map(spread).collect()))
    }

    /// Bars with the range of what they stand for: where, least, middle, most.
    pub fn bars_with_range(
        name: impl Into<String>,
        values: impl IntoIterator<Item = (f64, f64, f64, f64)>,
    ) -> Layer {
        Layer::new(name, Shape::Bars(values.into_iter().map(spread).collect()))
    }

    /// A middle with its range: where, least, middle, most.
    pub fn ranges(
        name: impl Into<String>,
        values: impl IntoIterator<Item = (f64, f64, f64, f64)>,
    ) -> Layer {
        Layer::new(name, Shape::Ranges(values.into_iter().map(spread).collect()))
    }

    /// Shares over time: a surface on top of those of the layers before, each value of which lasts
    /// until the next. All layers of a stack must have the same places.
    pub fn stack(name: impl Into<String>, values: impl IntoIterator<Item = (f64, f64)>) -> Layer {
        Layer::new(name, Shape::Stack(ats(values)))
    }

    /// A map: where along both axes, which have names, and how much there; the more, the darker. A
    /// line parts what is above a value from what is not.
    pub fn tiles(
        name: impl Into<String>,
        values: impl IntoIterator<Item = (f64, f64, f64)>,
        line: f64,
    ) -> Layer {
        let tile = |(x, y, value)| Tile { at: At { x, y }, value };
        Layer::new(name, Shape::Tiles(values.into_iter().map(tile).collect(), line))
    }

    /// A line from left to right at a value, with its name.
    pub fn rule_at_y(name: impl Into<String>, y: f64) -> Layer {
        Layer::new(name, Shape::RuleAt(Rule::Y(y)))
    }

    /// A line from bottom to top at a value, with its name.
    pub fn rule_at_x(name: impl Into<String>, x: f64) -> Layer {
        Layer::new(name, Shape::RuleAt(Rule::X(x)))
    }

    /// A shaded stretch of the y axis, with its name.
    pub fn region_y(name: impl Into<String>, (from, to): (f64, f64)) -> Layer {
        Layer::new(name, Shape::Region(Region::Y(from, to)))
    }

    /// A shaded stretch of the x axis, with its name.
    pub fn region_x(name: impl Into<String>, (from, to): (f64, f64)) -> Layer {
        Layer::new(name, Shape::Region(Region::X(from, to)))
    }

    /// The range around a line: where, least, most.
    ///
    /// # Panics
    /// Only a line has a band.
    #[must_use]
    pub fn band(mut self, range: impl IntoIterator<Item = (f64, f64, f64)>) -> Layer {
        let Shape::Line(_, band) = &mut self.shape else { panic!("only a line has a band") };
        let spread = |(x, low, high)| Spread { x, low, mid: low, high };
        *band = range.into_iter().map(spread).collect();
        self
    }

    /// What others published: in the colour of the text, hollow.
    #[must_use]
    pub fn published(self) -> Layer {
        Layer { is_published: true, ..self }
    }

    /// In the place of that name where names have places of their own, not beside it; what was
    /// published in its colour.
    #[must_use]
    pub fn over(self, name: impl Into<String>) -> Layer {
        Layer { over: Some(name.into()), ..self }
    }

    /// The name in whose place it stands.
    pub(crate) fn slot(&self) -> &str {
        self.over.as_deref().unwrap_or(&self.name)
    }

    /// Whether it has a place of its own among names.
    pub(crate) fn has_slot(&self) -> bool {
        matches!(self.shape, Shape::Points(_) | Shape::Bars(_) | Shape::Ranges(_))
    }
}

fn ats(values: impl IntoIterator<Item = (f64, f64)>) -> Vec<At> {
    let finite = |at: &At| at.x.is_finite() && at.y.is_finite();
    values.into_iter().map(|(x, y)| At { x, y }).filter(finite).collect()
}

fn spread((x, low, mid, high): (f64, f64, f64, f64)) -> Spread {
    Spread { x, low, mid, high }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_begins_at_nothing_and_ends_at_all() {
        let Shape::Steps(steps) = Layer::cdf("a", [3.0, 1.0, 1.0, f64::NAN, 2.0]).shape else {
            panic!("a distribution is steps")
        };
        let steps: Vec<_> = steps.iter().map(|at| (at.x, at.y)).collect();
        assert_eq!(steps, [(1.0, 0.0), (1.0, 50.0), (2.0, 75.0), (3.0, 100.0)]);
    }
}
