//! SVG elements that are coloured with inks. Positions are rounded to a tenth of a pixel.

use std::fmt::Write as _;

use crate::ink::Ink;
use crate::text::escaped;

/// A position in a picture, in pixels from its top left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spot {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A rectangle in a picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Area {
    pub(crate) fn right(self) -> f64 {
        self.left + self.width
    }

    pub(crate) fn bottom(self) -> f64 {
        self.top + self.height
    }
}

/// Fill and stroke of an element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    pub(crate) fill: Option<Ink>,
    pub(crate) stroke: Option<Ink>,
    pub(crate) width: f64,
    /// Opacity from 0 (transparent) to 1.
    pub(crate) opacity: f64,
    pub(crate) dash: &'static str,
}

impl Paint {
    pub(crate) const fn fill(ink: Ink) -> Paint {
        Paint { fill: Some(ink), stroke: None, width: 0.0, opacity: 1.0, dash: "" }
    }

    pub(crate) const fn stroke(ink: Ink, width: f64) -> Paint {
        Paint { fill: None, stroke: Some(ink), width, opacity: 1.0, dash: "" }
    }

    pub(crate) const fn faint(self, opacity: f64) -> Paint {
        Paint { opacity, ..self }
    }

    pub(crate) const fn dashed(self, dash: &'static str) -> Paint {
        Paint { dash, ..self }
    }

    pub(crate) const fn filled(self, ink: Ink) -> Paint {
        Paint { fill: Some(ink), ..self }
    }

    fn attributes(self) -> String {
        let mut classes = Vec::new();
        let mut text = String::new();
        match self.fill {
            Some(ink) => {
                classes.push(format!("f-{}", ink.name()));
                let _ = write!(text, " fill=\"{}\"", ink.light());
            }
            None => text.push_str(" fill=\"none\""),
        }
        if let Some(ink) = self.stroke {
            classes.push(format!("k-{}", ink.name()));
            let _ = write!(text, " stroke=\"{}\" stroke-width=\"{}\"", ink.light(), r(self.width));
        }
        if self.opacity < 1.0 {
            let _ = write!(text, " opacity=\"{}\"", self.opacity);
        }
        if !self.dash.is_empty() {
            let _ = write!(text, " stroke-dasharray=\"{}\"", self.dash);
        }
        if classes.is_empty() {
            return text;
        }
        format!(" class=\"{}\"{text}", classes.join(" "))
    }
}

/// Alignment of a text at its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// Size, alignment and colour of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Font {
    pub(crate) size: f64,
    pub(crate) anchor: Anchor,
    pub(crate) ink: Ink,
    pub(crate) weight: u32,
}

impl Font {
    pub(crate) const fn of(size: f64, anchor: Anchor, ink: Ink) -> Font {
        Font { size, anchor, ink, weight: 400 }
    }

    pub(crate) const fn bold(self) -> Font {
        Font { weight: 600, ..self }
    }
}

/// Contents of a picture while it is drawn.
#[derive(Debug, Default)]
pub(crate) struct Svg {
    pub(crate) text: String,
}

impl Svg {
    pub(crate) fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(crate) fn line(&mut self, from: Spot, to: Spot, paint: Paint) {
        let (x1, y1, x2, y2) = (r(from.x), r(from.y), r(to.x), r(to.y));
        let paint = paint.attributes();
        let line = format!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"{paint}/>\n");
        self.raw(&line);
    }

    pub(crate) fn path(&mut self, path: &str, paint: Paint) {
        if !path.is_empty() {
            let paint = paint.attributes();
            self.raw(&format!("<path d=\"{path}\"{paint} stroke-linejoin=\"round\"/>\n"));
        }
    }

    /// Draws points as a single path, in which each point is a stroke of zero length with round
    /// ends.
    pub(crate) fn dots(&mut self, path: &str, paint: Paint) {
        if !path.is_empty() {
            let paint = paint.attributes();
            self.raw(&format!("<path d=\"{path}\"{paint} stroke-linecap=\"round\"/>\n"));
        }
    }

    /// Draws a path with the tooltip `told`.
    pub(crate) fn told_path(&mut self, path: &str, paint: Paint, told: &str) {
        let (paint, told) = (paint.attributes(), escaped(told));
        self.raw(&format!("<path d=\"{path}\"{paint}><title>{told}</title></path>\n"));
    }

    pub(crate) fn rect(&mut self, area: Area, paint: Paint) {
        let (x, y, w, h) = (r(area.left), r(area.top), r(area.width), r(area.height));
        let paint = paint.attributes();
        self.raw(&format!("<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"{paint}/>\n"));
    }

    /// Writes a text with an outline in the background colour, so that it is readable over other
    /// elements.
    pub(crate) fn halo(&mut self, at: Spot, font: Font, text: &str) {
        let (paper, name) = (Ink::Paper.light(), Ink::Paper.name());
        self.raw(&format!(
            "<g class=\"k-{name}\" stroke=\"{paper}\" stroke-width=\"3\" \
             stroke-linejoin=\"round\" paint-order=\"stroke\">"
        ));
        self.text(at, font, text);
        self.raw("</g>\n");
    }

    pub(crate) fn text(&mut self, at: Spot, font: Font, text: &str) {
        let anchor = match font.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let weight = if font.weight == 400 {
            String::new()
        } else {
            format!(" font-weight=\"{}\"", font.weight)
        };
        let (x, y, size, text) = (r(at.x), r(at.y), r(font.size), escaped(text));
        let paint = Paint::fill(font.ink).attributes();
        self.raw(&format!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}{weight}{paint}>{text}</text>\n"
        ));
    }
}

/// Formats a length in pixels with at most one decimal.
pub(crate) fn r(value: f64) -> String {
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".into() } else { text.into() }
}

/// Returns a path of straight lines between these points.
pub(crate) fn polyline(spots: impl IntoIterator<Item = Spot>) -> String {
    let mut path = String::new();
    for spot in spots {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{} {}", r(spot.x), r(spot.y));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_in_svg_figures_have_at_most_one_decimal() {
        assert_eq!(
            (r(1.04), r(2.0), r(-0.04), r(-3.25)),
            ("1".into(), "2".into(), "0".into(), "-3.2".into())
        );
        let spots = [Spot { x: 0.0, y: 1.5 }, Spot { x: 2.0, y: 3.0 }];
        assert_eq!(polyline(spots), "M0 1.5L2 3");
    }
}
