//! Legend of a figure. Each layer name in the figure has a number, which decides the colour, the
//! marker and the dashes of the layers with this name.

use crate::ink::Ink;
use crate::layer::{Layer, Shape};
use crate::marks::{dash, marker};
use crate::plot::{Plot, WIDTH};
use crate::svg::{Anchor, Area, Font, Paint, Spot, Svg};
use crate::text::{ems, escaped};

/// Names of the layers in a figure, in the order of their first use.
#[derive(Debug)]
pub(crate) struct Legend<'a> {
    series: Vec<&'a Layer>,
    published: Vec<&'a Layer>,
}

const FONT: Font = Font::of(12.5, Anchor::Start, Ink::Text);
const SWATCH: f64 = 26.0;
const LINE: f64 = 21.0;

impl<'a> Legend<'a> {
    pub(crate) fn of(panels: &'a [Plot]) -> Legend<'a> {
        let mut legend = Legend { series: Vec::new(), published: Vec::new() };
        let named = |layer: &&Layer| !matches!(layer.shape, Shape::RuleAt(_) | Shape::Region(_));
        for layer in panels.iter().flat_map(|plot| &plot.layers).filter(named) {
            let names = if layer.is_published { &mut legend.published } else { &mut legend.series };
            if names.iter().all(|known| known.name != layer.name) {
                names.push(layer);
            }
        }
        legend
    }

    /// Returns the number of a layer's name in the figure.
    pub(crate) fn number(&self, layer: &Layer) -> usize {
        let names = if layer.is_published { &self.published } else { &self.series };
        names.iter().position(|known| known.name == layer.name).unwrap_or(0)
    }

    /// Returns the colour of a layer. Published values have the colour of the layer over which they
    /// are drawn. The one exception is a layer of bars: there the values would be invisible, so
    /// they have the colour of the text.
    pub(crate) fn ink(&self, layer: &Layer) -> Ink {
        if !layer.is_published {
            return Ink::Series(self.number(layer));
        }
        let is_under = |ours: &&Layer| {
            Some(&ours.name) == layer.over.as_ref() && !matches!(ours.shape, Shape::Bars(_))
        };
        self.series.iter().position(is_under).map_or(Ink::Text, Ink::Series)
    }

    /// Draws the legend and returns its height. If there are fewer than two names, there is no
    /// legend.
    pub(crate) fn draw(&self, svg: &mut Svg, at: Spot) -> f64 {
        let all = || self.series.iter().chain(&self.published);
        if all().count() < 2 {
            return 0.0;
        }
        let mut spot = Spot { x: at.x, y: at.y + LINE / 2.0 };
        for layer in all() {
            let width = SWATCH + 6.0 + ems(&layer.name) * FONT.size + 22.0;
            if spot.x > at.x && spot.x + width > WIDTH {
                spot = Spot { x: at.x, y: spot.y + LINE };
            }
            self.swatch(svg, layer, spot);
            let text = Spot { x: spot.x + SWATCH + 6.0, y: spot.y + 4.3 };
            svg.text(text, FONT, &layer.name);
            spot.x += width;
        }
        spot.y + LINE / 2.0 - at.y + 4.0
    }

    /// Returns the legend as HTML for a page. It wraps to the width of the screen.
    pub(crate) fn html(&self) -> String {
        let all = || self.series.iter().chain(&self.published);
        if all().count() < 2 {
            return String::new();
        }
        let mut text = String::from("<p class=\"legend\">\n");
        for layer in all() {
            let mut svg = Svg::default();
            self.swatch(&mut svg, layer, Spot { x: 0.0, y: 8.0 });
            let (swatch, name) = (svg.text, escaped(&layer.name));
            text += &format!(
                "<span><svg viewBox=\"0 0 {SWATCH} 16\" width=\"{SWATCH}\" height=\"16\" \
                 aria-hidden=\"true\">\n{swatch}</svg> {name}</span>\n"
            );
        }
        text + "</p>\n"
    }

    fn swatch(&self, svg: &mut Svg, layer: &Layer, at: Spot) {
        let ink = if layer.is_published { Ink::Text } else { self.ink(layer) };
        let number = self.number(layer);
        let middle = Spot { x: at.x + SWATCH / 2.0, y: at.y };
        let end = Spot { x: at.x + SWATCH, y: at.y };
        let dash = if layer.is_published { "" } else { dash(number) };
        match layer.shape {
            Shape::Bars(_) if !layer.is_published => {
                let area = Area { left: at.x + 6.0, top: at.y - 6.0, width: 14.0, height: 12.0 };
                svg.rect(area, Paint::fill(ink).faint(0.88));
            }
            Shape::Stack(_) | Shape::Tiles(..) => {
                let area = Area { left: at.x + 6.0, top: at.y - 6.0, width: 14.0, height: 12.0 };
                svg.rect(area, Paint::fill(ink).faint(0.8));
            }
            Shape::Steps(_) => svg.line(at, end, Paint::stroke(ink, 2.2).dashed(dash)),
            Shape::Line(..) => {
                svg.line(at, end, Paint::stroke(ink, 2.2).dashed(dash));
                mark(svg, layer, middle, (ink, number));
            }
            _ => mark(svg, layer, middle, (ink, number)),
        }
    }
}

/// Draws the marker of a layer: filled, or hollow for published values.
pub(crate) fn mark(svg: &mut Svg, layer: &Layer, at: Spot, (ink, number): (Ink, usize)) {
    let path = marker(if layer.is_published { number + 3 } else { number }, at, 4.0);
    svg.path(&path, mark_paint(layer, ink));
}

pub(crate) fn mark_paint(layer: &Layer, ink: Ink) -> Paint {
    if layer.is_published {
        Paint::stroke(ink, 1.6).filled(Ink::Paper)
    } else {
        Paint::stroke(Ink::Paper, 0.8).filled(ink)
    }
}
