//! Drawing of one plot: its axes, then its layers.

mod names;
mod tiles;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::axis::Axis;
use crate::ink::Ink;
use crate::layer::{Coordinate, Layer, Region, Rule, Shape, Spread};
use crate::legend::{Legend, mark, mark_paint};
use crate::marks::{dash, marker};
use crate::plot::Plot;
use crate::scale::{Kind, Scale, Tick};
use crate::svg::{Anchor, Area, Font, Paint, Spot, Svg, polyline, r};
use crate::text::{brief, ems};

const TICK: Font = Font::of(11.5, Anchor::Middle, Ink::Muted);
const LABEL: Font = Font::of(12.0, Anchor::Start, Ink::Muted);
const HEAD: Font = Font::of(13.0, Anchor::Start, Ink::Text).bold();
const NOTE: Font = Font::of(11.0, Anchor::Start, Ink::Muted);

/// Fraction of the width of a name on the x axis that its bars may use. The rest is the gap to the
/// bars of the next name.
const SLOTS: f64 = 0.8;

/// Maximum number of points that are drawn as markers. More points are drawn as dots.
const FEW: usize = 60;

/// Maximum number of bars on which values are written.
const FEW_BARS: usize = 14;

/// Height of a plot relative to its highest bar.
const HEADROOM: f64 = 1.08;

/// A plot while it is being drawn.
struct Canvas<'a> {
    svg: &'a mut Svg,
    plot: &'a Plot,
    legend: &'a Legend<'a>,
    /// Rectangle between the axes of the plot.
    area: Area,
    x: Scale,
    y: Scale,
    /// Names of the layers that share the width of each name on the x axis.
    slots: Vec<&'a str>,
    /// Height of the stacked layers drawn so far, at each x position.
    stacked: Vec<f64>,
}

/// Returns the scales of the two axes of each panel. Axes with the same label, kind and range share
/// one scale.
pub(crate) fn scales_of(panels: &[Plot]) -> Vec<(Scale, Scale)> {
    let (xs, ys): (Vec<Values>, Vec<Values>) = panels.iter().map(values).unzip();
    let (of_x, of_y): (Vec<&Axis>, Vec<&Axis>) =
        panels.iter().map(|plot| (&plot.x, &plot.y)).unzip();
    let x = of_x.iter().map(|own| scale_of(own, &of_x, &xs));
    x.zip(of_y.iter().map(|own| scale_of(own, &of_y, &ys))).collect()
}

/// Returns the scale of the axis `own`. The scale includes the values of all axes that have the
/// same label, kind and range as `own`.
fn scale_of(own: &Axis, axes: &[&Axis], values: &[Values]) -> Scale {
    let alike =
        |axis: &Axis| axis.label == own.label && axis.kind == own.kind && axis.said == own.said;
    let same = axes.iter().zip(values).filter(|(axis, _)| alike(axis));
    let all: Vec<f64> = same.flat_map(|(_, values)| values.iter().copied()).collect();
    Scale::around(own.kind.clone(), &all, own.said)
}

/// Values that an axis must include.
type Values = Vec<f64>;

/// Draws a plot into an area of the picture. `id` is the id of the clip path that hides drawings
/// outside the plot.
pub(crate) fn draw_plot(
    svg: &mut Svg,
    (plot, (x, y)): (&Plot, (Scale, Scale)),
    legend: &Legend<'_>,
    outer: Area,
    id: &str,
) {
    let y_ticks = y.ticks(((outer.height - 90.0) / 30.0).max(2.0) as usize);
    let widest =
        y_ticks.iter().filter_map(|tick| tick.label.as_deref()).map(ems).fold(1.0, f64::max);
    let left = outer.left + widest * TICK.size + 14.0;
    let mut top = outer.top + 4.0;
    if !plot.title.is_empty() {
        top += 17.0;
        svg.text(Spot { x: outer.left, y: top - 3.0 }, HEAD, &plot.title);
    }
    if !plot.y.label.is_empty() {
        top += 17.0;
        svg.text(Spot { x: outer.left, y: top - 4.0 }, LABEL, &plot.y.label);
    }
    // The highest label of the axis extends above its grid line by half of the label's height.
    top += 4.0 + TICK.size;
    let bottom = outer.bottom() - if plot.x.label.is_empty() { 26.0 } else { 44.0 };
    let area = Area { left, top, width: outer.right() - left - 10.0, height: bottom - top };
    let slots = slots(plot);
    let mut canvas = Canvas { svg, plot, legend, area, x, y, slots, stacked: Vec::new() };
    canvas.axes(&y_ticks);
    let Area { left, top, width, height } = area;
    canvas.svg.raw(&format!(
        "<clipPath id=\"{id}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n\
         <g clip-path=\"url(#{id})\">\n",
        r(left - 4.0),
        r(top - 4.0),
        r(width + 8.0),
        r(height + 8.0),
    ));
    for layer in &plot.layers {
        canvas.layer(layer);
    }
    canvas.svg.raw("</g>\n");
    for layer in &plot.layers {
        canvas.note(layer);
    }
}

/// Returns the values that the scales of x and y must include.
fn values(plot: &Plot) -> (Values, Values) {
    let mut xs = plot.x.includes.clone();
    let mut ys = plot.y.includes.clone();
    let mut stacked: Vec<f64> = Vec::new();
    for layer in &plot.layers {
        match &layer.shape {
            Shape::Points(ats) | Shape::Steps(ats) => ats.iter().for_each(|at| {
                xs.push(at.x);
                ys.push(at.y);
            }),
            Shape::Line(ats, band) => {
                xs.extend(ats.iter().map(|at| at.x).chain(band.iter().map(|of| of.x)));
                ys.extend(ats.iter().map(|at| at.y));
                ys.extend(band.iter().flat_map(|of| [of.low, of.high]));
            }
            Shape::Bars(spreads) | Shape::Ranges(spreads) => {
                xs.extend(spreads.iter().map(|of| of.x));
                ys.extend(spreads.iter().flat_map(|of| [of.low, of.mid, of.high]));
                if matches!(layer.shape, Shape::Bars(_)) {
                    // Bars start at zero, and need space for the values above them.
                    ys.push(0.0);
                    ys.extend(spreads.iter().map(|of| of.high * HEADROOM));
                }
            }
            Shape::Stack(ats) => {
                stacked.resize(stacked.len().max(ats.len()), 0.0);
                stacked.iter_mut().zip(ats).for_each(|(sum, at)| *sum += at.y);
                xs.extend(ats.iter().map(|at| at.x));
                ys.push(0.0);
            }
            // The axes of a map of tiles have names, so their ranges need no values.
            Shape::Tiles(..) => {}
            Shape::RuleAt(Rule::X(x)) => xs.push(*x),
            Shape::RuleAt(Rule::Y(y)) => ys.push(*y),
            Shape::Region(Region::X(from, to)) => xs.extend([from, to]),
            Shape::Region(Region::Y(from, to)) => ys.extend([from, to]),
        }
    }
    ys.extend(stacked);
    (xs, ys)
}

fn slots(plot: &Plot) -> Vec<&str> {
    let mut slots: Vec<&str> = Vec::new();
    if plot.x.is_names() {
        for layer in plot.layers.iter().filter(|layer| layer.has_slot()) {
            if !slots.contains(&layer.slot()) {
                slots.push(layer.slot());
            }
        }
    }
    slots
}

impl Canvas<'_> {
    fn axes(&mut self, y_ticks: &[Tick]) {
        let Area { left, top, .. } = self.area;
        let (right, bottom) = (self.area.right(), self.area.bottom());
        for tick in y_ticks {
            let Some(y) = self.y_at(tick.at) else { continue };
            let (from, to) = (Spot { x: left, y }, Spot { x: right, y });
            let Some(label) = &tick.label else {
                self.svg.line(Spot { x: left - 3.0, y }, from, Paint::stroke(Ink::Grid, 1.0));
                continue;
            };
            let is_zero = tick.at == 0.0 && self.y.range.from < 0.0;
            let ink = if is_zero { Ink::Muted } else { Ink::Grid };
            if !self.plot.y.is_names() {
                self.svg.line(from, to, Paint::stroke(ink, 1.0));
            }
            let font = Font { anchor: Anchor::End, ..TICK };
            self.svg.text(Spot { x: left - 7.0, y: y + 4.0 }, font, label);
        }
        self.svg.line(
            Spot { x: left, y: bottom },
            Spot { x: right, y: bottom },
            Paint::stroke(Ink::Muted, 1.0),
        );
        self.x_ticks();
        self.breaks();
        if !self.plot.x.label.is_empty() {
            let at = Spot { x: left + self.area.width / 2.0, y: bottom + 36.0 };
            let font = Font { anchor: Anchor::Middle, ..LABEL };
            self.svg.text(at, font, &self.plot.x.label);
        }
        debug_assert!(top < bottom, "a panel has room for its plot");
    }

    fn x_ticks(&mut self) {
        let bottom = self.area.bottom();
        let ticks = self.x.ticks((self.area.width / 70.0).max(2.0) as usize);
        let mut free = f64::NEG_INFINITY;
        for tick in ticks {
            let Some(x) = self.x_at(tick.at) else { continue };
            let size = if tick.label.is_some() { 5.0 } else { 3.0 };
            let end = Spot { x, y: bottom + size };
            if !self.plot.x.is_names() {
                self.svg.line(Spot { x, y: bottom }, end, Paint::stroke(Ink::Muted, 1.0));
            }
            let Some(label) = tick.label else { continue };
            let half = ems(&label) * TICK.size / 2.0;
            if x - half < free {
                continue; // The label would overlap the previous label.
            }
            free = x + half + 3.0;
            self.svg.text(Spot { x, y: bottom + 18.0 }, TICK, &label);
        }
    }

    /// Draws two strokes through the axis at each of its breaks.
    fn breaks(&mut self) {
        let bottom = self.area.bottom();
        for &after in &self.plot.x.breaks {
            let Some(x) = self.x_at(after as f64 + 0.5) else { continue };
            let stroke = |x: f64| {
                format!("M{} {}L{} {}", r(x - 2.5), r(bottom + 5.0), r(x + 2.5), r(bottom - 5.0))
            };
            let gap = Area { left: x - 2.0, top: bottom - 2.0, width: 4.0, height: 4.0 };
            self.svg.rect(gap, Paint::fill(Ink::Paper));
            let path = stroke(x - 2.0) + &stroke(x + 2.0);
            self.svg.path(&path, Paint::stroke(Ink::Muted, 1.0));
        }
    }

    fn x_at(&self, value: f64) -> Option<f64> {
        Some(self.area.left + self.x.place(value)? * self.area.width)
    }

    fn y_at(&self, value: f64) -> Option<f64> {
        Some(self.area.bottom() - self.y.place(value)? * self.area.height)
    }

    fn spot(&self, at: Coordinate) -> Option<Spot> {
        Some(Spot { x: self.x_at(at.x)?, y: self.y_at(at.y)? })
    }

    /// Returns the width of a layer at each name on the x axis, and the offset of the layer from
    /// the middle of the name.
    fn slot(&self, layer: &Layer) -> (f64, f64) {
        let Kind::Names(names) = &self.x.kind else { return (self.area.width / 40.0, 0.0) };
        let all = self.area.width / names.len().max(1) as f64 * SLOTS;
        let width = all / self.slots.len().max(1) as f64;
        let nth = self.slots.iter().position(|slot| *slot == layer.slot()).unwrap_or(0) as f64;
        (width, (nth + 0.5) * width - all / 2.0)
    }

    fn layer(&mut self, layer: &Layer) {
        match &layer.shape {
            Shape::Points(ats) => self.points(layer, ats),
            Shape::Line(ats, band) => self.line(layer, ats, band),
            Shape::Steps(ats) => self.steps(layer, ats),
            Shape::Bars(spreads) => self.bars(layer, spreads),
            Shape::Ranges(spreads) => self.ranges(layer, spreads),
            Shape::Stack(ats) => self.stack(layer, ats),
            Shape::Tiles(tiles, line) => self.tiles(layer, tiles, *line),
            Shape::RuleAt(rule) => self.rule(*rule),
            Shape::Region(region) => self.region(*region),
        }
    }

    fn told(&self, layer: &Layer, at: Coordinate) -> String {
        let x = match &self.x.kind {
            Kind::Names(names) => names
                .iter()
                .enumerate()
                .find(|(nth, _)| *nth as f64 == at.x.round())
                .map(|of| of.1.clone()),
            _ => None,
        };
        format!("{}: {}, {}", layer.name, x.unwrap_or_else(|| brief(at.x)), brief(at.y))
    }

    /// Draws points. Points within a tenth of a pixel of each other share one mark. The mark is
    /// larger if it represents more points.
    fn points(&mut self, layer: &Layer, ats: &[Coordinate]) {
        let (_, offset) = self.slot(layer);
        let shown = ats.iter().filter(|at| self.x.shows(at.x) && self.y.shows(at.y));
        let spots = shown.filter_map(|at| self.spot(*at).map(|spot| (spot, *at)));
        let mut places: BTreeMap<(String, String), (Spot, Coordinate, u32)> = BTreeMap::new();
        for (spot, at) in spots {
            let spot = Spot { x: spot.x + offset, ..spot };
            let place = places.entry((r(spot.x), r(spot.y))).or_insert((spot, at, 0));
            place.2 += 1;
        }
        let (ink, number) = (self.legend.ink(layer), self.legend.number(layer));
        if places.len() <= FEW {
            let shape = if layer.is_published { number + 3 } else { number };
            for (spot, at, count) in places.values() {
                let path = marker(shape, *spot, 3.4 + 0.7 * f64::from(*count).log10());
                let told = self.told(layer, *at);
                self.svg.told_path(&path, mark_paint(layer, ink), &told);
            }
            return;
        }
        for (least, most, size) in [(1, 1, 2.2), (2, 4, 3.0), (5, 19, 4.0), (20, u32::MAX, 5.2)] {
            let mut path = String::new();
            for ((x, y), place) in &places {
                if (least..=most).contains(&place.2) {
                    let _ = write!(path, "M{x} {y}h0");
                }
            }
            self.svg.dots(&path, Paint::stroke(ink, size).faint(0.7));
        }
    }

    fn line(&mut self, layer: &Layer, ats: &[Coordinate], band: &[Spread]) {
        let (ink, number) = (self.legend.ink(layer), self.legend.number(layer));
        let edge = |pick: fn(&Spread) -> f64| {
            band.iter().map(move |of| Coordinate { x: of.x, y: pick(of) })
        };
        let around =
            edge(|of| of.high).chain(edge(|of| of.low).collect::<Vec<_>>().into_iter().rev());
        let outline = polyline(around.filter_map(|at| self.spot(at)));
        self.svg.path(&outline, Paint::fill(ink).faint(0.16));
        let dash = if layer.is_published { "" } else { dash(number) };
        let path = polyline(ats.iter().filter_map(|at| self.spot(*at)));
        self.svg.path(&path, Paint::stroke(ink, 2.0).dashed(dash));
        if ats.len() <= FEW {
            for at in ats {
                if let Some(spot) = self.spot(*at) {
                    mark(self.svg, layer, spot, (ink, number));
                }
            }
        }
    }

    fn steps(&mut self, layer: &Layer, ats: &[Coordinate]) {
        let (ink, number) = (self.legend.ink(layer), self.legend.number(layer));
        let mut path = String::new();
        for at in ats {
            let Some(spot) = self.spot(*at) else { continue };
            // A step first goes to the right at the previous height, and then up or down.
            let piece = if path.is_empty() {
                format!("M{} {}", r(spot.x), r(spot.y))
            } else {
                format!("H{}V{}", r(spot.x), r(spot.y))
            };
            path.push_str(&piece);
        }
        let dash = if layer.is_published { "" } else { dash(number) };
        self.svg.path(&path, Paint::stroke(ink, 2.0).dashed(dash));
    }

    fn bars(&mut self, layer: &Layer, spreads: &[Spread]) {
        let ink = self.legend.ink(layer);
        let (width, offset) = self.slot(layer);
        let all = spreads.len() * self.slots.len().max(1);
        let floor = if self.y.kind == Kind::Log { self.y.range.from } else { 0.0 };
        for of in spreads {
            let at = Coordinate { x: of.x, y: of.mid };
            let (Some(spot), Some(base)) = (self.spot(at), self.y_at(floor)) else { continue };
            let (left, right) = (spot.x + offset - width * 0.46, spot.x + offset + width * 0.46);
            let corners = [(left, base), (left, spot.y), (right, spot.y), (right, base)];
            let path = polyline(corners.map(|(x, y)| Spot { x, y })) + "z";
            let paint = if layer.is_published {
                Paint::stroke(Ink::Text, 1.4).dashed("3 2")
            } else {
                Paint::fill(ink).faint(0.88)
            };
            let told = self.told(layer, at);
            self.svg.told_path(&path, paint, &told);
            let middle = spot.x + offset;
            self.whisker(middle, *of, Paint::stroke(Ink::Text, 1.2));
            if all <= FEW_BARS && ems(&brief(of.mid)) * NOTE.size < width + 8.0 {
                let top = self.y_at(of.high.max(of.mid)).unwrap_or(spot.y);
                let font = Font { anchor: Anchor::Middle, ink: Ink::Text, ..NOTE };
                let y = self.above_marks(Spot { x: middle, y: top - 5.0 });
                self.svg.text(Spot { x: middle, y }, font, &brief(of.mid));
            }
        }
    }

    /// Draws a whisker: a line from the smallest to the largest value, with a short stroke across
    /// each end.
    fn whisker(&mut self, x: f64, of: Spread, paint: Paint) {
        let (Some(low), Some(high)) = (self.y_at(of.low), self.y_at(of.high)) else { return };
        if (low - high).abs() < 0.5 {
            return;
        }
        let end = |y: f64| format!("M{} {}h6", r(x - 3.0), r(y));
        let path = format!("M{} {}V{}{}{}", r(x), r(low), r(high), end(low), end(high));
        self.svg.path(&path, paint);
    }

    fn ranges(&mut self, layer: &Layer, spreads: &[Spread]) {
        let (ink, number) = (self.legend.ink(layer), self.legend.number(layer));
        let (_, offset) = self.slot(layer);
        for of in spreads {
            let Some(spot) = self.spot(Coordinate { x: of.x, y: of.mid }) else { continue };
            let spot = Spot { x: spot.x + offset, ..spot };
            self.whisker(spot.x, *of, Paint::stroke(ink, 1.6));
            mark(self.svg, layer, spot, (ink, number));
        }
    }

    fn stack(&mut self, layer: &Layer, ats: &[Coordinate]) {
        let ink = self.legend.ink(layer);
        let mut below = std::mem::take(&mut self.stacked);
        below.resize(ats.len(), 0.0);
        let above: Vec<f64> = below.iter().zip(ats).map(|(low, at)| low + at.y).collect();
        let edge = |heights: &[f64]| -> Vec<Spot> {
            let mut spots: Vec<Spot> = Vec::new();
            for (at, height) in ats.iter().zip(heights) {
                let Some(spot) = self.spot(Coordinate { x: at.x, y: *height }) else { continue };
                if let Some(last) = spots.last() {
                    spots.push(Spot { x: spot.x, y: last.y });
                }
                spots.push(spot);
            }
            spots
        };
        let mut outline = edge(&above);
        outline.extend(edge(&below).into_iter().rev());
        let path = polyline(outline) + "z";
        self.svg.path(&path, Paint::stroke(Ink::Paper, 0.6).filled(ink).faint(0.8));
        self.stacked = above;
    }

    fn rule(&mut self, rule: Rule) {
        let paint = Paint::stroke(Ink::Text, 1.2).dashed("5 4");
        let Some([from, to]) = self.ends(rule) else { return };
        self.svg.line(from, to, paint);
    }

    /// Returns both ends of the straight line of a rule. `None` if its value has no position on the
    /// axis.
    fn ends(&self, rule: Rule) -> Option<[Spot; 2]> {
        let Area { left, top, .. } = self.area;
        let (right, bottom) = (self.area.right(), self.area.bottom());
        Some(match rule {
            Rule::Y(y) => {
                let y = self.y_at(y)?;
                [left, right].map(|x| Spot { x, y })
            }
            Rule::X(x) => {
                let x = self.x_at(x)?;
                [top, bottom].map(|y| Spot { x, y })
            }
        })
    }

    fn region(&mut self, region: Region) {
        if let Some(area) = self.area_of(region) {
            self.svg.rect(area, Paint::fill(Ink::Text).faint(0.08));
        }
    }

    /// Returns the rectangle of a region. `None` if a bound of the region has no position on the
    /// axis.
    fn area_of(&self, region: Region) -> Option<Area> {
        let Area { left, top, width, height } = self.area;
        Some(match region {
            Region::Y(from, to) => {
                let (from, to) = (self.y_at(from)?, self.y_at(to)?);
                Area { top: from.min(to), height: (from - to).abs(), left, width }
            }
            Region::X(from, to) => {
                let (from, to) = (self.x_at(from)?, self.x_at(to)?);
                Area { left: from.min(to), width: (from - to).abs(), top, height }
            }
        })
    }
}
