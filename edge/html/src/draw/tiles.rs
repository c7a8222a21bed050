//! Maps: plots of tiles on two axes of names. Larger values have darker tiles.

use std::collections::BTreeMap;

use super::Canvas;
use crate::ink::Ink;
use crate::layer::{Layer, Tile};
use crate::scale::Kind;
use crate::svg::{Area, Paint, Spot, polyline};
use crate::text::brief;

/// Opacity of the tile with the smallest value. It is above zero, so that the tile is visible.
const LEAST: f64 = 0.06;

impl Canvas<'_> {
    /// Draws tiles that are darker for larger values. A line is drawn between tiles with values
    /// above `line` and all other tiles.
    pub(super) fn tiles(&mut self, layer: &Layer, tiles: &[Tile], line: f64) {
        let ink = self.legend.ink(layer);
        let most = tiles.iter().map(|tile| tile.value).fold(f64::MIN_POSITIVE, f64::max);
        let (Some(columns), Some(rows)) = (names(&self.x.kind), names(&self.y.kind)) else {
            return;
        };
        let width = self.area.width / columns.len().max(1) as f64;
        let height = self.area.height / rows.len().max(1) as f64;
        let mut above = BTreeMap::new();
        for tile in tiles {
            let Some(middle) = self.spot(tile.at) else { continue };
            let (left, top) = (middle.x - width / 2.0, middle.y - height / 2.0);
            // One pixel of background separates adjacent tiles.
            let area = Area { left, top, width: width - 1.0, height: height - 1.0 };
            let paint = Paint::fill(ink).faint(LEAST + (1.0 - LEAST) * tile.value / most);
            let place = (tile.at.x.round() as i64, tile.at.y.round() as i64);
            let name = |of: &[String], nth: i64| {
                usize::try_from(nth).ok().and_then(|nth| of.get(nth)).cloned().unwrap_or_default()
            };
            let (x, y) = (name(columns, place.0), name(rows, place.1));
            let told = format!("{}: {x}, {y}: {}", layer.name, brief(tile.value));
            self.svg.told_path(&outline(area), paint, &told);
            above.insert(place, (tile.value > line, Area { left, top, width, height }));
        }
        for (&(x, y), &(is_above, area)) in &above {
            let differs = |x, y| above.get(&(x, y)).is_some_and(|other| other.0 != is_above);
            let (right, top) = (area.right() - 0.5, area.top - 0.5);
            if differs(x + 1, y) {
                let (from, to) = (Spot { x: right, y: top }, Spot { x: right, y: area.bottom() });
                self.svg.line(from, to, Paint::stroke(Ink::Text, 2.0));
            }
            if differs(x, y + 1) {
                let (from, to) = (Spot { x: area.left, y: top }, Spot { x: right, y: top });
                self.svg.line(from, to, Paint::stroke(Ink::Text, 2.0));
            }
        }
    }
}

fn names(kind: &Kind) -> Option<&[String]> {
    match kind {
        Kind::Names(names) => Some(names),
        _ => None,
    }
}

fn outline(area: Area) -> String {
    let corners = [
        (area.left, area.top),
        (area.right(), area.top),
        (area.right(), area.bottom()),
        (area.left, area.bottom()),
    ];
    polyline(corners.map(|(x, y)| Spot { x, y })) + "z"
}
