//! Figures: one or more panels with a common title, legend and caption.

use std::fmt::Write as _;

use crate::draw::{draw_plot, scales_of};
use crate::ink::{Ink, style};
use crate::legend::Legend;
use crate::made::FigureOrigin;
use crate::plot::{Plot, WIDTH};
use crate::svg::{Anchor, Area, Font, Paint, Spot, Svg};
use crate::text::{ems, escaped};

/// A figure: one plot or several panels, with a title, a legend and a caption.
#[derive(Clone, Debug)]
pub struct Figure {
    title: String,
    caption: String,
    panels: Vec<Plot>,
    columns: usize,
    height: f64,
}

/// CSS font list of a figure, in order of preference.
const FONTS: &str = "Inter,system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif";

const GAP: f64 = 22.0;
const TITLE: Font = Font::of(16.0, Anchor::Start, Ink::Text).bold();
const FOOT: Font = Font::of(10.0, Anchor::Start, Ink::Muted);

impl Figure {
    /// Creates a figure with one plot.
    #[must_use]
    pub fn new(title: &str, plot: Plot) -> Figure {
        Figure::of_panels(title, [plot])
    }

    /// Creates a figure with several plots, two in each row. Axes with the same label, kind and
    /// range share one scale in all plots.
    pub fn of_panels(title: &str, panels: impl IntoIterator<Item = Plot>) -> Figure {
        let panels: Vec<Plot> = panels.into_iter().collect();
        let columns = panels.len().clamp(1, 2);
        Figure { title: title.into(), caption: String::new(), panels, columns, height: 300.0 }
    }

    /// Adds a caption. It should state what was measured, how many times, and what the bands show.
    #[must_use]
    pub fn caption(self, text: &str) -> Figure {
        Figure { caption: text.into(), ..self }
    }

    /// Sets the number of panels in each row.
    #[must_use]
    pub fn columns(self, columns: usize) -> Figure {
        Figure { columns: columns.max(1), ..self }
    }

    /// Sets the height of a panel in pixels, for a figure that is 780 pixels wide.
    #[must_use]
    pub fn height(self, height: u16) -> Figure {
        Figure { height: f64::from(height).max(80.0), ..self }
    }

    /// Returns the figure as a separate SVG file, with the provenance of the figure at the bottom.
    #[must_use]
    pub fn svg(&self, made: &FigureOrigin) -> String {
        let (inside, height) = self.inside(made);
        let head = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             width=\"{WIDTH}\" height=\"{height:.0}\" font-family=\"{FONTS}\" role=\"img\">\n"
        );
        let mut svg = Svg::default();
        svg.raw(&head);
        svg.raw(&self.words());
        svg.raw(&format!("<style>{}</style>\n", style()));
        let whole = Area { left: 0.0, top: 0.0, width: WIDTH, height };
        svg.rect(whole, Paint::fill(Ink::Paper));
        svg.raw(&inside);
        svg.raw("</svg>\n");
        svg.text
    }

    /// Returns the figure as HTML for a page. `number` is the number of the figure on the page,
    /// counted from one.
    pub(crate) fn html(&self, made: &FigureOrigin, number: usize) -> String {
        let mut text = String::from("<figure>\n");
        let _ = writeln!(text, "<p class=\"title\">{}</p>", escaped(&self.title));
        let legend = Legend::of(&self.panels);
        text += &legend.html();
        let width = self.panel_width();
        // On a narrow screen, letters would be too small to read. So the panels are stacked, and a
        // panel that is still too wide can be scrolled sideways.
        let least = (width * 0.88).floor();
        let _ = writeln!(text, "<div class=\"panels\" style=\"--least:{least}px\">");
        let scales = scales_of(&self.panels);
        for (nth, plot) in self.panels.iter().enumerate() {
            let mut svg = Svg::default();
            let area = Area { left: 0.0, top: 0.0, width, height: self.height };
            let scaled = (plot, scales[nth].clone());
            draw_plot(&mut svg, scaled, &legend, area, &format!("clip-{number}-{nth}"));
            let _ = writeln!(
                text,
                "<div class=\"plot\" tabindex=\"0\">\n<svg viewBox=\"0 0 {width:.0} {:.0}\" \
                 font-family=\"{FONTS}\" role=\"img\">\n{}{}</svg>\n</div>",
                self.height,
                self.words(),
                svg.text
            );
        }
        text += "</div>\n";
        let _ = writeln!(text, "<p class=\"foot\">{}</p>", escaped(&made.line()));
        if !self.caption.is_empty() {
            let caption = crate::text::prose(&self.caption);
            let _ = writeln!(text, "<figcaption><b>Figure {number}.</b> {caption}</figcaption>");
        }
        text += "</figure>\n";
        text
    }

    /// Returns a description of the figure for screen readers.
    fn words(&self) -> String {
        let (title, caption) = (escaped(&self.title), escaped(&self.caption));
        format!("<title>{title}</title>\n<desc>{caption}</desc>\n")
    }

    fn column_count(&self) -> usize {
        self.columns.min(self.panels.len().max(1))
    }

    fn panel_width(&self) -> f64 {
        let columns = self.column_count() as f64;
        (WIDTH - GAP * (columns - 1.0)) / columns
    }

    fn inside(&self, made: &FigureOrigin) -> (String, f64) {
        let mut svg = Svg::default();
        let mut top = 8.0;
        for line in lines(&self.title, TITLE.size) {
            top += 19.0;
            svg.text(Spot { x: 0.0, y: top }, TITLE, &line);
        }
        top += 10.0;
        let legend = Legend::of(&self.panels);
        top += legend.draw(&mut svg, Spot { x: 0.0, y: top });
        let (columns, width) = (self.column_count(), self.panel_width());
        let scales = scales_of(&self.panels);
        for (nth, plot) in self.panels.iter().enumerate() {
            let (column, row) = ((nth % columns) as f64, (nth / columns) as f64);
            let left = column * (width + GAP);
            let area = Area { left, top: top + row * self.height, width, height: self.height };
            let scaled = (plot, scales[nth].clone());
            draw_plot(&mut svg, scaled, &legend, area, &format!("clip-0-{nth}"));
        }
        top += self.panels.len().div_ceil(columns) as f64 * self.height;
        for line in lines(&made.line(), FOOT.size) {
            top += 13.0;
            svg.text(Spot { x: 0.0, y: top }, FOOT, &line);
        }
        (svg.text, (top + 8.0).ceil())
    }
}

/// Splits a text into lines that fit into the width of a figure.
fn lines(text: &str, size: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if (ems(line) + ems(word) + 0.4) * size < WIDTH - 8.0 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}
