//! Quoting of cells in CSV files.

/// Returns a text as a CSV cell, quoted if necessary. Line breaks become blanks.
pub(crate) fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"").replace('\n', " ")),
        false => text.to_owned(),
    }
}
