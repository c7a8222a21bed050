//! Tables of a page.

use crate::text::{escaped, prose};

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A text, aligned to the left.
    Text(String),
    /// A formatted number, aligned to the right.
    Number(String),
    /// A good result, with a word for it.
    Good(String),
    /// A partly good result, with a word for it.
    Fair(String),
    /// A bad result, with a word for it.
    Bad(String),
    /// A value that is unknown or missing, shown as a dash.
    Dash,
}

/// A table with a caption, and notes below it.
#[derive(Clone, Debug)]
pub struct Table {
    caption: String,
    headings: Vec<String>,
    rows: Vec<Vec<Cell>>,
    notes: Vec<String>,
}

impl Table {
    /// Creates an empty table with these headings.
    pub fn new<T: Into<String>>(headings: impl IntoIterator<Item = T>) -> Table {
        let headings = headings.into_iter().map(Into::into).collect();
        Table { caption: String::new(), headings, rows: Vec::new(), notes: Vec::new() }
    }

    /// Sets the caption of the table.
    #[must_use]
    pub fn caption(self, text: &str) -> Table {
        Table { caption: text.into(), ..self }
    }

    /// Adds a row. If the row has fewer cells than the table has columns, the last cells are empty.
    #[must_use]
    pub fn row(mut self, cells: impl IntoIterator<Item = Cell>) -> Table {
        self.rows.push(cells.into_iter().collect());
        self
    }

    /// Adds a note below the table.
    #[must_use]
    pub fn note(mut self, text: &str) -> Table {
        self.notes.push(text.into());
        self
    }

    pub(crate) fn html(&self) -> String {
        let mut text = String::from("<div class=\"table\"><table>\n");
        if !self.caption.is_empty() {
            text += &format!("<caption>{}</caption>\n", prose(&self.caption));
        }
        let is_number = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.any(|cell| matches!(cell, Cell::Number(_)))
        };
        text += "<thead><tr>";
        for (column, heading) in self.headings.iter().enumerate() {
            let class = if is_number(column) { " class=\"number\"" } else { "" };
            text += &format!("<th scope=\"col\"{class}>{}</th>", prose(heading));
        }
        text += "</tr></thead>\n<tbody>\n";
        for row in &self.rows {
            text += "<tr>";
            for (column, cell) in row.iter().enumerate() {
                text += &html_cell(cell, is_number(column).then_some(" class=\"number\""));
            }
            text += "</tr>\n";
        }
        text += "</tbody></table>\n";
        for note in &self.notes {
            text += &format!("<p class=\"note\">{}</p>\n", prose(note));
        }
        text + "</div>\n"
    }
}

fn html_cell(cell: &Cell, number: Option<&str>) -> String {
    let verdict = |class: &str, sign: &str, text: &str| {
        let text = escaped(text);
        format!("<td><span class=\"verdict {class}\"><i>{sign}</i>{text}</span></td>")
    };
    match cell {
        Cell::Text(text) => format!("<td>{}</td>", prose(text)),
        Cell::Number(text) => format!("<td class=\"number\">{}</td>", escaped(text)),
        Cell::Good(text) => verdict("good", "\u{2713}", text),
        Cell::Fair(text) => verdict("fair", "\u{2248}", text),
        Cell::Bad(text) => verdict("bad", "\u{2717}", text),
        Cell::Dash => format!("<td{}>\u{2013}</td>", number.unwrap_or_default()),
    }
}
