//! Layout of columns of text as tables of a given width, with footnotes.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, LineStyle, Table, Width};

use crate::paint::Paint;

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A number or a text.
    Text(String),
    /// A value within its target, such as zero deadline misses. It is shown in green.
    Met(String),
    /// A value that misses its target, such as a number of deadline misses. It is shown in red.
    Missed(String),
    /// A missing value, shown as a dash. The text is the reason, which a footnote below the table
    /// gives.
    Dash(&'static str),
    /// A cell without text.
    Blank,
}

/// A column of a table, from top to bottom.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Additional heading above `heading`, shared with neighbouring columns. Empty if the column
    /// has no additional heading.
    pub(crate) over: String,
    pub(crate) heading: String,
    pub(crate) cells: Vec<Cell>,
    /// Minimum width of the column, with which the shared heading fits.
    at_least: usize,
    keeps_dashes: bool,
    /// True if the column is shown even if it is empty in every row.
    is_chosen: bool,
}

/// Columns that stay together in one table, unless they are too wide for a table.
pub(crate) type Group = Vec<Column>;

/// Tables, one below the other, with footnotes that explain their dashes.
pub(crate) struct Sheet {
    /// Column of names, which is the first column of every table.
    pub(crate) names: Column,
    pub(crate) groups: Vec<Group>,
}

/// Character that marks green text. Colour marks have no width, so cells with marks are laid out
/// like plain text. Escape sequences would count as text, so they replace the marks only after the
/// layout.
const GREEN: char = '\u{2061}';
const RED: char = '\u{2062}';
const PLAIN: char = '\u{2063}';

/// Total number of blanks beside the text of a column: one blank on each side.
const PADDING: usize = 2;

const MARKS: [char; 9] = ['¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];

/// Reasons for dashes, numbered in the order in which they are first used.
#[derive(Default)]
struct Footnotes(Vec<&'static str>);

impl Sheet {
    /// Renders the tables as text. Columns that are empty in every row are left out, except chosen
    /// columns. A column that was marked to keep its dashes stays if another column with the same
    /// shared heading has values.
    ///
    /// A group of columns that does not fit beside the previous groups is put into another table
    /// below. A group that is too wide for one table is divided among several tables. Long names
    /// are broken into several lines.
    pub(crate) fn render(mut self, width: usize, paint: Paint) -> String {
        self.names.fold(width * 2 / 5);
        for group in &mut self.groups {
            let said: Vec<String> =
                group.iter().filter(|column| column.says()).map(|it| it.over.clone()).collect();
            group.retain(|column| {
                let is_beside = column.keeps_dashes && said.contains(&column.over);
                column.is_chosen || column.says() || is_beside && column.has_dash()
            });
            let room = width.saturating_sub(self.names.width() + PADDING);
            group.iter_mut().for_each(|column| column.heading = broken(&column.heading, room));
            group.chunk_by_mut(|a, b| a.over == b.over).for_each(make_room);
        }
        let mut footnotes = Footnotes::default();
        let mut text = String::new();
        for columns in self.pack(width) {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&table(&self.names, &columns, &mut footnotes));
        }
        for (reason, mark) in footnotes.0.iter().zip(MARKS) {
            text.push_str(&format!(" -{mark} {reason}\n"));
        }
        painted(&text, paint)
    }

    /// Divides the columns into tables of at most `width` columns of text.
    fn pack(&self, width: usize) -> Vec<Vec<Column>> {
        if self.groups.is_empty() {
            // The table has only the column of names.
            return vec![Vec::new()];
        }
        let mut tables: Vec<Vec<Column>> = Vec::new();
        let whole = width.saturating_sub(self.names.width());
        let mut room = 0;
        let needed = |columns: &[Column]| columns.iter().map(Column::width).sum::<usize>();
        for group in self.groups.iter().filter(|group| !group.is_empty()) {
            let parts: Vec<Group> = match needed(group) <= whole {
                true => vec![group.clone()],
                // Each part may become a table of its own, below the shared heading.
                false => group.iter().cloned().map(alone).collect(),
            };
            for part in parts {
                let width = needed(&part);
                match tables.last_mut() {
                    Some(table) if width <= room => table.extend(part),
                    _ => {
                        tables.push(part);
                        room = whole;
                    }
                }
                room = room.saturating_sub(width);
            }
        }
        tables
    }
}

impl Column {
    /// Returns a column with one cell for each row.
    pub(crate) fn new<T>(
        heading: impl Into<String>,
        rows: &[T],
        cell: impl FnMut(&T) -> Cell,
    ) -> Column {
        let cells = rows.iter().map(cell).collect();
        let (over, heading) = (String::new(), heading.into());
        Column { over, heading, cells, at_least: 0, keeps_dashes: false, is_chosen: false }
    }

    /// Marks the column to be shown even if it has only dashes, as long as its neighbours have
    /// values.
    pub(crate) fn keeping_dashes(self) -> Column {
        Column { keeps_dashes: true, ..self }
    }

    /// Marks a column that the user chose. It is shown even if it is empty in every row.
    pub(crate) fn chosen(self, is_chosen: bool) -> Column {
        Column { is_chosen, ..self }
    }

    /// Puts the column under a heading that it shares with its neighbours.
    pub(crate) fn under(self, over: &str) -> Column {
        Column { over: over.to_string(), ..self }
    }

    /// Breaks texts that are longer than `room` into several lines.
    fn fold(&mut self, room: usize) {
        for cell in &mut self.cells {
            if let Cell::Text(text) = cell {
                *text = folded(text, room);
            }
        }
    }

    fn says(&self) -> bool {
        self.cells.iter().any(Cell::says_something)
    }

    fn has_dash(&self) -> bool {
        self.cells.iter().any(|cell| matches!(cell, Cell::Dash(_)))
    }

    fn width(&self) -> usize {
        // A cell without text shows a dash and a footnote mark, which take two columns.
        let width = |cell: &Cell| cell.text().map_or(2, widest_line);
        let widest = self.cells.iter().map(width).max().unwrap_or(0);
        widest.max(widest_line(&self.heading)).max(self.at_least) + PADDING
    }
}

impl Cell {
    /// Returns a cell with the text, or a dash with the reason if there is no text.
    pub(crate) fn or_dash(text: Option<String>, reason: &'static str) -> Cell {
        text.map_or(Cell::Dash(reason), Cell::Text)
    }

    fn text(&self) -> Option<&str> {
        match self {
            Cell::Text(text) | Cell::Met(text) | Cell::Missed(text) => Some(text),
            Cell::Dash(_) | Cell::Blank => None,
        }
    }

    fn says_something(&self) -> bool {
        self.text().is_some()
    }

    fn written(&self, footnotes: &mut Footnotes) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Met(text) => format!("{GREEN}{text}{PLAIN}"),
            Cell::Missed(text) => format!("{RED}{text}{PLAIN}"),
            Cell::Dash(reason) => format!("-{}", footnotes.mark(reason)),
            Cell::Blank => String::new(),
        }
    }
}

impl Footnotes {
    fn mark(&mut self, reason: &'static str) -> char {
        let known = self.0.iter().position(|&known| known == reason);
        let number = known.unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        });
        MARKS[number]
    }
}

fn widest_line(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// Breaks the heading of a policy into lines of at most `room` characters if possible. Lines are
/// broken between parameters.
fn broken(heading: &str, room: usize) -> String {
    in_lines(heading.split_inclusive([':', '/', ',']), room)
}

/// Breaks a name into lines of at most `room` characters: after a dash or a dot, or anywhere if the
/// parts are too long.
fn folded(name: &str, room: usize) -> String {
    let mut pieces: Vec<String> = Vec::new();
    for part in name.split_inclusive(['-', '_', '.', '/', ':', ' ']) {
        let letters: Vec<char> = part.chars().collect();
        pieces.extend(letters.chunks(room.max(1)).map(|piece| piece.iter().collect::<String>()));
    }
    in_lines(pieces.iter().map(String::as_str), room)
}

/// Joins pieces of text into lines of at most `room` characters, with at least one piece per line.
fn in_lines<'a>(pieces: impl Iterator<Item = &'a str>, room: usize) -> String {
    let mut lines: Vec<String> = vec![String::new()];
    for piece in pieces {
        match lines.last_mut() {
            Some(line)
                if line.is_empty() || line.chars().count() + piece.chars().count() <= room =>
            {
                line.push_str(piece);
            }
            _ => lines.push(piece.to_owned()),
        }
    }
    lines.join("\n")
}

/// Returns a group with a single column, which is wide enough for its shared heading.
fn alone(column: Column) -> Group {
    let mut column = [column];
    make_room(&mut column);
    column.into()
}

/// Widens columns until their shared heading fits.
fn make_room(columns: &mut [Column]) {
    if columns[0].over.is_empty() {
        return;
    }
    // The heading has a blank and a line on either side, and the outermost columns have blanks.
    let needed = columns[0].over.chars().count() + 4 + PADDING;
    let width: usize = columns.iter().map(Column::width).sum();
    let (missing, count) = (needed.saturating_sub(width), columns.len());
    for (nth, column) in columns.iter_mut().enumerate() {
        let more = (missing + count - 1 - nth) / count;
        column.at_least = column.width() - PADDING + more;
    }
}

fn table(names: &Column, columns: &[Column], footnotes: &mut Footnotes) -> String {
    let mut table = Table::new();
    let line = LineStyle::none().fill('─');
    table.load_style(NOTHING.header_separator(line));
    let all = || core::iter::once(names).chain(columns);
    table.set_header(all().map(|column| &column.heading));
    let has_all_rows = columns.iter().all(|column| column.is_chosen);
    for row in 0..names.cells.len() {
        // A row whose cells beside the name are all blank is left out.
        let mut beside = columns.iter().map(|column| &column.cells[row]);
        if has_all_rows || beside.any(|cell| *cell != Cell::Blank) {
            table.add_row(all().map(|column| column.cells[row].written(footnotes)));
        }
    }
    for (column, of) in table.column_iter_mut().zip(all()).skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
        let width = u16::try_from(of.width()).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
    }
    let contents = table.column_max_content_widths();
    let widths: Vec<usize> = contents
        .iter()
        .zip(all())
        .map(|(&width, of)| usize::from(width).max(of.at_least))
        .collect();
    let over: Vec<&str> = all().map(|column| column.over.as_str()).collect();
    let headings = (over.iter().any(|over| !over.is_empty())).then(|| shared(&over, &widths));
    let mut text = String::new();
    for line in headings.into_iter().chain(table.lines()) {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns the line with the shared headings, each centred over its columns.
fn shared(over: &[&str], widths: &[usize]) -> String {
    let mut line = String::new();
    let mut first = 0;
    for same in over.chunk_by(|a, b| a == b) {
        let width: usize =
            widths[first..first + same.len()].iter().map(|width| width + PADDING).sum();
        first += same.len();
        if same[0].is_empty() {
            line += &" ".repeat(width);
        } else {
            let inner = width.saturating_sub(PADDING);
            line += &format!(" {:─^inner$} ", format!(" {} ", same[0]));
        }
    }
    line
}

/// Replaces colour marks by escape sequences, or removes them.
fn painted(text: &str, paint: Paint) -> String {
    let escape = |mark, code| (mark, if paint == Paint::Colour { code } else { "" });
    let codes = [escape(GREEN, "\x1b[32m"), escape(RED, "\x1b[31m"), escape(PLAIN, "\x1b[0m")];
    codes.iter().fold(text.to_string(), |text, &(mark, code)| text.replace(mark, code))
}
