//! Positions of the names of rules (straight lines) and regions (shaded ranges), and of the values
//! on bars. Positions that no line or mark crosses are preferred.

use super::{Canvas, NOTE};
use crate::layer::{Coordinate, Layer, Region, Rule, Shape};
use crate::svg::{Anchor, Area, Font, Spot};
use crate::text::ems;

impl Canvas<'_> {
    /// Returns a position for the name of a region, which is `width` wide. `area` is the rectangle
    /// of the region.
    fn place_in(&self, region: Region, area: Area, width: f64) -> (Spot, Anchor) {
        let plot = self.area;
        let (top, bottom) = (area.top.max(plot.top), area.bottom().min(plot.bottom()));
        let (left, right) = (area.left.max(plot.left), area.right().min(plot.right()));
        let part = |left: f64, right: f64| {
            let (width, height) = ((right - left).max(0.0), (bottom - top).max(0.0));
            Area { left, top, width, height }
        };
        match region {
            Region::Y(..) => self.corner(part(left, right), width, Anchor::End),
            Region::X(..) => {
                // A name that is wider than its region extends beyond the region, but not beyond
                // the plot.
                let needed = width + 8.0;
                let left = left.min((plot.right() - needed).max(plot.left));
                self.corner(part(left, right.max(left + needed)), width, Anchor::Start)
            }
        }
    }

    /// Returns a position for the name of a region, so that no line crosses the text of the name.
    /// The corners of the region are tried first, beginning with the upper corner at the side
    /// `first`, and then all other positions in the region. If every position is crossed, returns
    /// the corner that was tried first.
    fn corner(&self, region: Area, width: f64, first: Anchor) -> (Spot, Anchor) {
        let Area { left, top, .. } = region;
        let (right, bottom) = (region.right(), region.bottom());
        let mut sides = [(right - 3.0, Anchor::End), (left + 5.0, Anchor::Start)];
        sides.sort_by_key(|(_, anchor)| *anchor != first);
        let corners = [top + 13.0, bottom - 5.0].into_iter().flat_map(|y| sides.map(|at| (at, y)));
        let corners = corners.map(|((x, anchor), y)| (Spot { x, y }, anchor));
        let steps = |from: f64, to: f64, step: f64| {
            (0..=((to - from).max(0.0) / step) as usize).map(move |nth| nth as f64 * step)
        };
        let rows = steps(top + 13.0, bottom - 5.0, 4.0).map(|down| top + 13.0 + down);
        let inside = rows.flat_map(|y| {
            let ends = steps(left + width + 5.0, right - 3.0, 8.0).map(|back| right - 3.0 - back);
            ends.map(move |x| (Spot { x, y }, Anchor::End))
        });
        let is_free = |(spot, anchor): &(Spot, Anchor)| {
            let left = if *anchor == Anchor::End { spot.x - width } else { spot.x };
            // A mark is several pixels wide and high.
            !self.is_crossed(Area {
                left: left - 4.0,
                top: spot.y - 14.0,
                width: width + 8.0,
                height: 20.0,
            })
        };
        let first = (Spot { x: sides[0].0, y: top + 13.0 }, sides[0].1);
        corners.chain(inside).find(is_free).unwrap_or(first)
    }

    /// Returns true if a line or mark of the plot crosses a rectangle.
    fn is_crossed(&self, part: Area) -> bool {
        let is_in = |spot: &Spot| {
            (part.left..=part.right()).contains(&spot.x)
                && (part.top..=part.bottom()).contains(&spot.y)
        };
        self.plot.layers.iter().any(|layer| {
            let spots = match layer.shape {
                Shape::RuleAt(rule) => self.ends(rule).map(Vec::from).unwrap_or_default(),
                _ => self.spots(layer),
            };
            let is_joined =
                matches!(layer.shape, Shape::Line(..) | Shape::Steps(_) | Shape::RuleAt(_));
            let crosses = |pair: &[Spot]| {
                let between = |nth: u32| {
                    let way = f64::from(nth) / 64.0;
                    let along = |from: f64, to: f64| from + (to - from) * way;
                    Spot { x: along(pair[0].x, pair[1].x), y: along(pair[0].y, pair[1].y) }
                };
                (0..=64).any(|nth| is_in(&between(nth)))
            };
            spots.iter().any(is_in) || is_joined && spots.windows(2).any(crosses)
        })
    }

    /// Returns the positions of a layer's marks, or the points of its line. For steps, the corners
    /// are included.
    fn spots(&self, layer: &Layer) -> Vec<Spot> {
        let (_, offset) = self.slot(layer);
        let moved = |spot: Spot, by: f64| Spot { x: spot.x + by, ..spot };
        match &layer.shape {
            Shape::Points(ats) => {
                ats.iter().filter_map(|at| Some(moved(self.spot(*at)?, offset))).collect()
            }
            Shape::Line(ats, _) => ats.iter().filter_map(|at| self.spot(*at)).collect(),
            Shape::Steps(ats) => {
                let mut corners: Vec<Spot> = Vec::new();
                for spot in ats.iter().filter_map(|at| self.spot(*at)) {
                    corners.extend(corners.last().map(|last| Spot { x: spot.x, ..*last }));
                    corners.push(spot);
                }
                corners
            }
            Shape::Ranges(spreads) => {
                let middles = spreads.iter().map(|of| Coordinate { x: of.x, y: of.mid });
                middles.filter_map(|at| Some(moved(self.spot(at)?, offset))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the vertical position of the value that is written on a bar. This position is above
    /// the bar and above published values drawn on the bar.
    pub(super) fn above_marks(&self, at: Spot) -> f64 {
        let published = self.plot.layers.iter().filter(|layer| layer.is_published);
        let mut marks: Vec<Spot> = published.flat_map(|layer| self.spots(layer)).collect();
        // The lowest mark comes first, because each mark may move the value up to the next mark.
        marks.sort_by(|a, b| b.y.total_cmp(&a.y));
        marks.iter().filter(|mark| (mark.x - at.x).abs() < 16.0).fold(at.y, |y, mark| {
            if (y - 14.0..y + 6.0).contains(&mark.y) { mark.y - 8.0 } else { y }
        })
    }

    /// Writes the name of a rule or region into the plot, over all other elements. The legend does
    /// not contain this name.
    pub(super) fn note(&mut self, layer: &Layer) {
        let Area { left, top, .. } = self.area;
        let right = self.area.right();
        let (at, anchor) = match layer.shape {
            Shape::RuleAt(Rule::Y(y)) => {
                let Some(y) = self.y_at(y) else { return };
                // The name is above the line, or below it if it does not fit above.
                let y = if y - top < 16.0 { y + 13.0 } else { y - 5.0 };
                (Spot { x: right - 3.0, y }, Anchor::End)
            }
            Shape::RuleAt(Rule::X(x)) => {
                let Some(x) = self.x_at(x) else { return };
                let is_late = x > left + self.area.width * 0.7;
                let at = |x| Spot { x, y: top + 11.0 };
                if is_late { (at(x - 5.0), Anchor::End) } else { (at(x + 5.0), Anchor::Start) }
            }
            Shape::Region(region) => {
                let Some(area) = self.area_of(region) else { return };
                self.place_in(region, area, ems(&layer.name) * NOTE.size)
            }
            _ => return,
        };
        self.svg.halo(at, Font { anchor, ..NOTE }, &layer.name);
    }
}
