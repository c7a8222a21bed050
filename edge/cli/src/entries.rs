//! Layout of names and their meanings in two columns, for help pages.

use std::fmt::Write as _;

use crate::terminal;

/// Maximum width of a help page in columns. On a narrower terminal the page is narrower.
const WIDTH: usize = 80;
/// Maximum width of the column of names, in characters. The text after a longer name starts on the
/// next line.
const NAMES: usize = 26;

/// Appends entries in two columns: a name, and the text that explains it.
pub(crate) fn entries<'a>(
    text: &mut String,
    entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) {
    let longest = entries.clone().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let column = longest.min(NAMES) + 4;
    for (name, says) in entries {
        let gap = match name.chars().count() + 4 <= column {
            true => " ".repeat(column - 2 - name.chars().count()),
            false => format!("\n{}", " ".repeat(column)),
        };
        let mut lines = String::new();
        wrapped(&mut lines, column, says);
        let _ = write!(text, "  {name}{gap}{}", lines.trim_start());
    }
}

/// Appends words, wrapped into lines that are indented by `indent`.
pub(crate) fn wrapped(text: &mut String, indent: usize, words: &str) {
    let widest = terminal::columns().map_or(WIDTH, |columns| columns.min(WIDTH));
    let mut column = 0;
    for word in words.split_whitespace() {
        let width = word.chars().count();
        if column == 0 || column + 1 + width > widest {
            let new_line = if column == 0 { "" } else { "\n" };
            let _ = write!(text, "{new_line}{}{word}", " ".repeat(indent));
            column = indent + width;
        } else {
            let _ = write!(text, " {word}");
            column += 1 + width;
        }
    }
    text.push('\n');
}
