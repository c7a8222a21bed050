//! Markers and dash patterns, which distinguish series without colour.

use crate::svg::{Spot, r};

/// Dash patterns by the number of a series. There are six patterns, which repeat from the seventh
/// series on.
const DASHES: [&str; 6] = ["", "7 3", "2.5 2.5", "9 3 2 3", "12 4", "5 2 1 2 1 2"];

/// Returns the dash pattern of a series' lines.
pub(crate) fn dash(series: usize) -> &'static str {
    DASHES[series % DASHES.len()]
}

/// Returns the outline of a series' marker at a position. `size` is approximately the radius of the
/// marker.
pub(crate) fn marker(series: usize, at: Spot, size: f64) -> String {
    let Spot { x, y } = at;
    let corners = |corners: &[(f64, f64)]| {
        let corner = |(dx, dy): &(f64, f64)| format!("{} {}", r(x + dx * size), r(y + dy * size));
        let corners: Vec<String> = corners.iter().map(corner).collect();
        format!("M{}z", corners.join("L"))
    };
    match series % 6 {
        0 => {
            let (left, size) = (r(x - size), r(size));
            let arc = |to: f64| format!("a{size} {size} 0 1 0 {} 0", r(to));
            let across: f64 = size.parse::<f64>().unwrap_or(1.0) * 2.0;
            format!("M{left} {}{}{}z", r(y), arc(across), arc(-across))
        }
        1 => corners(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => corners(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
        3 => corners(&[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)]),
        4 => corners(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
        _ => corners(&[
            (-0.35, -1.1),
            (0.35, -1.1),
            (0.35, -0.35),
            (1.1, -0.35),
            (1.1, 0.35),
            (0.35, 0.35),
            (0.35, 1.1),
            (-0.35, 1.1),
            (-0.35, 0.35),
            (-1.1, 0.35),
            (-1.1, -0.35),
            (-0.35, -0.35),
        ]),
    }
}
