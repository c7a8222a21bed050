//! Search for a word in the glossary of the book and in the help pages.

use std::fmt::Write as _;

use crate::entries;

/// Chapter of the book that has the glossary. In each row of its tables, the first cell is a term.
const CONCEPTS: &str = include_str!("../../../../docs/concepts.md");

/// Returns the glossary's entries for a word, and the names of the pages that contain the word.
/// `None` if the word has no entry and is on no page.
pub(super) fn word(word: &str, titled_pages: &[(String, String)]) -> Option<String> {
    let entries: Vec<(String, String)> = glossary().filter(|(term, _)| has(term, word)).collect();
    let mentioned = titled_pages.iter().filter(|(_, page)| has(page, word));
    let names: Vec<String> = mentioned.map(|(name, _)| format!("`{name}`")).collect();
    if entries.is_empty() && names.is_empty() {
        return None;
    }
    let mut text = format!("No help page is about `{word}`.\n");
    if !entries.is_empty() {
        text += "\nGlossary:\n";
        entries::entries(&mut text, entries.iter().map(|(term, says)| (&**term, &**says)));
    }
    if !names.is_empty() {
        let _ = writeln!(text, "\nPages with this word (`slackline help PAGE`):");
        entries::wrapped(&mut text, 2, &names.join(", "));
        text.push('\n');
    }
    Some(text)
}

/// Returns each term of the glossary with its meaning, without marks of Markdown.
fn glossary() -> impl Iterator<Item = (String, String)> {
    let tables = CONCEPTS.split("\n## ").filter(|section| section.starts_with("Glossary"));
    let rows = tables.flat_map(str::lines).filter_map(|line| line.strip_prefix("| "));
    let plain = |cell: &str| cell.trim().replace(['`', '*'], "");
    rows.filter_map(move |row| {
        let mut cells = row.split(" | ");
        let (term, says) = (plain(cells.next()?), plain(cells.next()?));
        (term != "Term").then_some((term, says))
    })
}

/// Returns true if a text contains this word, in lower or upper case.
fn has(text: &str, word: &str) -> bool {
    let is_part_of_word = |letter: char| letter.is_alphanumeric() || letter == '-';
    let mut words = text.split(|letter| !is_part_of_word(letter));
    words.any(|other| other.eq_ignore_ascii_case(word))
}
