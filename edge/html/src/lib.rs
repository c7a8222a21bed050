//! Figures and tables in one self-contained page: HTML with SVG pictures, in light and dark. Only a
//! timeline has a script, and nothing is loaded from the network.
//!
//! ```
//! use slackline_html::{Axis, Figure, Layer, FigureOrigin, Page, Plot};
//!
//! let line = Layer::line("edf", [(1.0, 0.4), (10.0, 0.1)]);
//! let line = line.band([(1.0, 0.2, 0.9), (10.0, 0.0, 0.2)]);
//! let plot = Plot::new(Axis::log("period", "ms"), Axis::linear("error", "%")).with(line);
//! let figure = Figure::new("Longer periods err less", plot)
//!     .caption("Median of ten seeds; the band is their range.");
//! let html = Page::new("A report", FigureOrigin::by("slackline alert"))
//!     .text("Numbers are simulated.")
//!     .figure(figure)
//!     .html();
//! assert!(html.starts_with("<!doctype html>"));
//! ```
//!
//! A [`Figure`] is one [`Plot`] or several panels side by side. A plot has two axes and layers:
//! points, lines with bands around them, cumulative distributions, bars, ranges, stacked shares
//! over time, and rules, which are straight lines at one value. A name has the same colour and
//! marker in all panels of a figure.
//!
//! Colours are those of Okabe and Ito, which colour-blind people can distinguish. Series also
//! differ in markers and dashes, for prints without colour. Published values are drawn hollow, in
//! the colour of the text.
//!
//! Equal input gives equal bytes. A value that is not a finite number is not drawn.

#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions in a picture: numbers that are converted here are small and rounded"
)]

mod axis;
mod draw;
mod figure;
mod ink;
mod layer;
mod legend;
mod made;
mod marks;
mod page;
mod plot;
mod scale;
mod svg;
mod table;
mod text;

pub use axis::Axis;
pub use figure::Figure;
pub use layer::Layer;
pub use made::FigureOrigin;
pub use page::Page;
pub use plot::Plot;
pub use table::{Cell, Table};
