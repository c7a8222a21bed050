//! Columns of the table of VMs, and the order of its rows.

use std::cmp::Reverse;

use slackline_units::{Span, is_unseen};

use crate::VmRow;

/// A column of the table of VMs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// Width of the column in characters.
    pub(crate) width: u16,
    /// True if cells are aligned to the left. Otherwise they are aligned to the right.
    pub(crate) is_text: bool,
    /// Rank of the column. On a narrow terminal, columns with larger ranks are left out first.
    rank: u8,
    cell: fn(&VmRow) -> String,
}

impl Column {
    /// Returns the cell of a row in this column. The cell is a dash if the source does not have the
    /// number.
    pub(crate) fn cell(&self, row: &VmRow) -> String {
        (self.cell)(row)
    }
}

/// All columns, from left to right.
const COLUMNS: [Column; 13] = [
    text("name", 14, 0, |row| row.name.replace(is_unseen, "?")),
    text("state", 9, 4, |row| row.state.clone()),
    number("reserved", 8, 2, |row| percent(row.reserved_ppm)),
    number("used", 7, 0, |row| percent(row.used_ppm)),
    number("used/res", 8, 6, |row| percent(row.efficiency_ppm())),
    number("ready", 7, 3, |row| percent(row.ready_ppm)),
    number("missed", 9, 1, missed),
    number("blocked", 7, 7, |row| percent(row.blocked_ppm)),
    number("runs/s", 8, 8, |row| thousandths(row.dispatches_milli)),
    number("slice", 8, 9, |row| span(row.slice)),
    number("period", 8, 9, |row| span(row.period)),
    text("limit", 5, 10, |row| if row.is_exact { "exact" } else { "" }.into()),
    text("largest culprit", 16, 5, |row| row.culprit.clone().unwrap_or_default()),
];

const fn text(heading: &'static str, width: u16, rank: u8, cell: fn(&VmRow) -> String) -> Column {
    Column { heading, width, is_text: true, rank, cell }
}

const fn number(heading: &'static str, width: u16, rank: u8, cell: fn(&VmRow) -> String) -> Column {
    Column { heading, width, is_text: false, rank, cell }
}

/// Returns the columns that fit into a width. The least important columns are left out, and so are
/// columns in which no row has a value. The user chose the column of the sort key, so this column
/// is as important as the name and stays even without values. The remaining width goes to the last
/// column if it has text. If the last column has no text, the first column gets the remaining
/// width, but at most 26 characters of it.
pub(crate) fn fitting(width: u16, rows: &[VmRow], sort: SortKey) -> Vec<Column> {
    let has_value = |column: &Column| {
        column.rank <= 1 || rows.iter().any(|row| !matches!(&*column.cell(row), "" | "-"))
    };
    let ranked = |column: Column| match column.heading == sort.word() {
        true => Column { rank: 0, ..column },
        false => column,
    };
    let mut columns: Vec<Column> = COLUMNS.into_iter().map(ranked).filter(has_value).collect();
    let needed = |columns: &[Column]| -> u16 {
        columns.iter().map(|column| column.width + 1).sum::<u16>().saturating_sub(1)
    };
    while needed(&columns) > width && columns.len() > 1 {
        let least = columns.iter().enumerate().max_by_key(|(at, column)| (column.rank, *at));
        let at = least.map_or(0, |(at, _)| at);
        columns.remove(at);
    }
    let left = width.saturating_sub(needed(&columns));
    if let Some(last) = columns.last_mut().filter(|last| last.is_text) {
        last.width += left;
    } else if let Some(first) = columns.first_mut() {
        first.width += left.min(26);
    }
    columns
}

/// Property by which rows are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortKey {
    /// By missed deadlines, the most first.
    #[default]
    Missed,
    /// By name, in alphabetical order.
    Name,
    /// By reserved CPU time, the most first.
    Reserved,
    /// By used CPU time, the most first.
    Used,
    /// By the time runnable but not running (CPU ready), the longest first.
    Ready,
}

impl SortKey {
    /// All sort keys, in the order in which the user steps through them with the key `s`.
    pub const ALL: [SortKey; 5] =
        [SortKey::Missed, SortKey::Name, SortKey::Reserved, SortKey::Used, SortKey::Ready];

    /// Returns the word for the sort key on the command line and on the screen.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            SortKey::Missed => "missed",
            SortKey::Name => "name",
            SortKey::Reserved => "reserved",
            SortKey::Used => "used",
            SortKey::Ready => "ready",
        }
    }

    /// Returns the next sort key in [`SortKey::ALL`]. After the last comes the first.
    #[must_use]
    pub fn next(self) -> SortKey {
        let at = SortKey::ALL.iter().position(|key| *key == self).unwrap_or(0);
        SortKey::ALL[(at + 1) % SortKey::ALL.len()]
    }

    /// Sorts rows by this key. Rows with equal values are sorted by name.
    pub(crate) fn sort(self, rows: &mut [VmRow]) {
        let number = |row: &VmRow| match self {
            SortKey::Missed => row.missed,
            SortKey::Name => None,
            SortKey::Reserved => row.reserved_ppm,
            SortKey::Used => row.used_ppm,
            SortKey::Ready => row.ready_ppm,
        };
        rows.sort_by(|a, b| (Reverse(number(a)), &a.name).cmp(&(Reverse(number(b)), &b.name)));
    }
}

/// Formats millionths as a percentage with one decimal.
pub(crate) fn percent(ppm: Option<u64>) -> String {
    ppm.map_or("-".into(), |ppm| {
        let tenths = (ppm + 500) / 1_000;
        format!("{}.{} %", tenths / 10, tenths % 10)
    })
}

fn thousandths(milli: Option<u64>) -> String {
    milli.map_or("-".into(), |milli| {
        let tenths = (milli + 50) / 100;
        format!("{}.{}", tenths / 10, tenths % 10)
    })
}

fn span(span: Option<Span>) -> String {
    span.map_or("-".into(), |span| span.to_string())
}

fn missed(row: &VmRow) -> String {
    match (row.missed, row.deadlines) {
        (None, _) => "-".into(),
        (Some(0), _) => "0".into(),
        (Some(missed), None | Some(0)) => missed.to_string(),
        (Some(missed), Some(deadlines)) => {
            percent(Some(missed.saturating_mul(1_000_000) / deadlines))
        }
    }
}
