//! A cell of CSV.

/// Text as a cell holds it, whatever is in it.
pub(crate) fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"").replace('\n', " ")),
        false => text.to_owned(),
    }
}
