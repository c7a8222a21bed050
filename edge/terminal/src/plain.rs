//! Tables of arbitrary columns.

use crate::layout::{Cell, Column, Sheet};
use crate::paint::Paint;

/// A column of an arbitrary table: its heading, and a cell for each row.
#[derive(Clone, Debug)]
pub struct Plain {
    /// Heading of the column.
    pub heading: &'static str,
    /// Cells from top to bottom.
    pub cells: Vec<Cell>,
    /// True if the user chose the column by name. A chosen column is shown even if it has no text.
    pub is_chosen: bool,
}

/// Returns a table with a row for each name. Groups of columns that do not fit side by side are
/// placed in tables below each other, with the names repeated. Columns that are empty in every row
/// are left out, except chosen columns. If all columns of a table are chosen, the table has all
/// rows.
#[must_use]
pub fn plain(names: Plain, groups: Vec<Vec<Plain>>, width: usize, paint: Paint) -> String {
    let column = |plain: Plain| {
        Column::new(plain.heading, &plain.cells, Cell::clone).chosen(plain.is_chosen)
    };
    let group = |group: Vec<Plain>| group.into_iter().map(column).collect();
    let groups = groups.into_iter().map(group).collect();
    Sheet { names: column(names), groups }.render(width, paint)
}
