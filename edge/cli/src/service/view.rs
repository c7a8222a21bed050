//! Format in which a daemon's answer is printed: the columns, and a table or CSV.

use std::fmt::Write as _;

use clap::Args;
use slackline_terminal::{Cell, Plain, plain};

use crate::problem::Problem;
use crate::terminal;

/// Width in characters at which no line of a table is wrapped.
const UNWRAPPED: usize = 100_000;

/// Options for the columns and the format of a table.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct View {
    /// Columns to show, in this order, separated by commas [default: all].
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// Print the table as CSV.
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

/// A table before it is laid out. It has a column of names, and then groups of columns that stay
/// side by side.
pub(crate) struct Table {
    pub(crate) names: Plain,
    pub(crate) groups: Vec<Vec<Plain>>,
}

impl Table {
    /// Returns the table as text. Lines are wrapped only if the output is a terminal.
    pub(crate) fn text(self) -> String {
        let width = terminal::columns().unwrap_or(UNWRAPPED);
        plain(self.names, self.groups, width, terminal::paint())
    }

    /// Returns the table without the column `heading` if all of that column's cells are blank.
    pub(crate) fn without_blank(mut self, heading: &str) -> Table {
        let is_blank = |cell: &Cell| matches!(cell, Cell::Blank);
        let is_it = |one: &Plain| one.heading == heading && one.cells.iter().all(is_blank);
        self.groups.iter_mut().for_each(|group| group.retain(|one| !is_it(one)));
        self
    }

    /// Returns the table as text, with the columns and in the format that `view` selects.
    ///
    /// # Errors
    /// If `view` names an unknown column.
    pub(crate) fn shown(self, view: &View) -> Result<String, Problem> {
        let chosen = self.choose(&view.columns)?;
        Ok(if view.csv { chosen.csv() } else { chosen.text() })
    }

    fn choose(self, columns: &[String]) -> Result<Table, Problem> {
        if columns.is_empty() {
            return Ok(self);
        }
        let mut all: Vec<Plain> = self.groups.into_iter().flatten().collect();
        all.insert(0, self.names);
        let mut chosen = Vec::new();
        for name in columns {
            let is_it = |column: &Plain| letters(column.heading) == letters(name);
            let Some(place) = all.iter().position(is_it) else {
                let headings: Vec<&str> = all.iter().map(|column| column.heading).collect();
                return Err(Problem::BadOption {
                    message: format!(
                        "cannot show column `{name}`: it does not exist, or is listed twice"
                    ),
                    hint: Some(format!("choose from {}", headings.join(", "))),
                });
            };
            chosen.push(Plain { is_chosen: true, ..all.remove(place) });
        }
        let names = chosen.remove(0);
        Ok(Table { names, groups: chosen.into_iter().map(|column| vec![column]).collect() })
    }

    fn csv(&self) -> String {
        let columns: Vec<&Plain> =
            std::iter::once(&self.names).chain(self.groups.iter().flatten()).collect();
        let headings: Vec<String> = columns.iter().map(|column| quoted(column.heading)).collect();
        let mut text = headings.join(",") + "\n";
        for row in 0..self.names.cells.len() {
            let cells: Vec<String> =
                columns.iter().map(|column| cell(&column.cells[row])).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

/// Returns the letters and digits of a column heading, as users type it: `used %` is `used`.
fn letters(heading: &str) -> String {
    heading.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) | Cell::Met(text) | Cell::Missed(text) => quoted(text),
        Cell::Dash(_) | Cell::Blank => String::new(),
    }
}

/// Quotes a CSV field as in [RFC 4180].
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let column = |heading, cells: &[&str]| Plain {
            heading,
            cells: cells.iter().map(|text| Cell::Text((*text).into())).collect(),
            is_chosen: false,
        };
        let cells = vec![Cell::Met("1.50".into()), Cell::Blank];
        let used = Plain { heading: "used %", cells, is_chosen: false };
        let groups = vec![vec![column("state", &["active", "paused"])], vec![used]];
        Table { names: column("name", &["web", "a, \"b\""]), groups }
    }

    #[test]
    fn csv_output_quotes_fields_that_contain_commas_or_quotes() {
        let view = View { csv: true, ..View::default() };
        let text = table().shown(&view).expect("no column is chosen");
        assert_eq!(text, "name,state,used %\nweb,active,1.50\n\"a, \"\"b\"\"\",paused,\n");
    }

    #[test]
    fn single_selected_column_can_be_shown_as_a_text_table() {
        let text = table().shown(&View { csv: false, columns: vec!["state".to_owned()] });
        let text = text.expect("the column exists");
        let words: Vec<&str> = text.split_whitespace().collect();
        for word in ["state", "active", "paused"] {
            assert!(words.contains(&word), "{text}");
        }
    }

    #[test]
    fn selected_column_is_shown_even_if_blank() {
        let with = |cell: Cell| {
            let cells = vec![cell.clone(), cell];
            let groups = vec![vec![Plain { heading: "missed %", cells, is_chosen: false }]];
            Table { groups, ..table() }
        };
        let view = View { csv: false, columns: vec!["name".to_owned(), "missed".to_owned()] };
        let blank = with(Cell::Blank).shown(&view).expect("the columns exist");
        for word in ["name", "missed %", "web", "a, \"b\""] {
            assert!(blank.contains(word), "{word} is missing:\n{blank}");
        }
        let dashes = with(Cell::Dash("no deadline passed")).shown(&view);
        let dashes = dashes.expect("the columns exist");
        assert_eq!(dashes.matches("-¹").count(), 3, "{dashes}");
        assert!(dashes.contains("no deadline passed"), "{dashes}");
        let all = with(Cell::Blank).shown(&View::default()).expect("no column is chosen");
        assert!(!all.contains("missed"), "{all}");
    }

    #[test]
    fn columns_option_shows_columns_in_the_given_sequence() {
        let columns = vec!["used".to_owned(), "Name".to_owned()];
        let text = table().shown(&View { csv: true, columns }).expect("the columns exist");
        assert_eq!(text, "used %,name\n1.50,web\n,\"a, \"\"b\"\"\"\n");
        let columns = vec!["revision".to_owned()];
        let refused = table().shown(&View { csv: true, columns }).expect_err("no such column");
        assert_eq!(refused.hint().as_deref(), Some("choose from name, state, used %"));
    }
}
