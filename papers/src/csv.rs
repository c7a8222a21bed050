//! Tables in CSV files: a comment line, a line of headings, and quotes where needed.

use std::fmt::Write as _;

/// A table of texts, with headings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// Comment without the leading `#`.
    pub(crate) comment: String,
    pub(crate) headings: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(comment: &str, headings: &[&str]) -> Table {
        let headings = headings.iter().map(|heading| (*heading).to_owned()).collect();
        Table { comment: comment.to_owned(), headings, rows: Vec::new() }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("# {}\n", self.comment);
        for row in std::iter::once(&self.headings).chain(&self.rows) {
            let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }

    /// Parses a text that [`Table::text`] wrote. `None` if the text has another form.
    pub(crate) fn read(text: &str) -> Option<Table> {
        let (comment, rest) = text.split_once('\n')?;
        let comment = comment.strip_prefix("# ")?.to_owned();
        let mut rows: Vec<Vec<String>> = rest.lines().map(cells).collect();
        if rows.is_empty() {
            return None;
        }
        let headings = rows.remove(0);
        rows.iter().all(|row| row.len() == headings.len()).then_some(())?;
        Some(Table { comment, headings, rows })
    }

    /// Returns the cell of a row under a heading. Empty if there is none.
    pub(crate) fn cell<'a>(&self, row: &'a [String], heading: &str) -> &'a str {
        let column = self.headings.iter().position(|other| other == heading);
        column.and_then(|column| row.get(column)).map_or("", String::as_str)
    }
}

fn quoted(cell: &str) -> String {
    match cell.contains(['"', ',', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"").replace('\n', " ")),
        false => cell.to_owned(),
    }
}

fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let cell = cells.last_mut().expect("a line has at least one cell");
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            c => cell.push(c),
        }
    }
    cells
}
