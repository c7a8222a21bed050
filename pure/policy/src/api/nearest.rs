//! Suggestions for misspelt names.

use alloc::vec::Vec;

/// Returns the known name closest to `written`. `None` if every name is more than two edits away.
/// Also `None` if turning `written` into the closest name takes at least as many edits as the
/// closest name has letters.
#[must_use]
pub fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (slips(written, name), name))
        .filter(|&(slips, name)| slips <= 2 && slips < name.len())
        .min()
        .map(|(_, name)| name)
}

/// Returns the edit distance of two words: letters added, dropped, changed or swapped with a
/// neighbour.
fn slips(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows: Vec<Vec<usize>> = Vec::with_capacity(from.len() + 1);
    rows.push((0..=to.len()).collect());
    for i in 1..=from.len() {
        let mut row = alloc::vec![i; to.len() + 1];
        for j in 1..=to.len() {
            let change = usize::from(from[i - 1] != to[j - 1]);
            row[j] = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + change);
            let swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
            if swapped {
                row[j] = row[j].min(rows[i - 2][j - 2] + 1);
            }
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers each kind of edit at each position of a word, and combinations of edits.
    #[test]
    fn edit_distance_counts_insertions_deletions_and_substitutions() {
        for near in ["eriod", "peiod", "perio", "xperiod", "perxiod", "periodx", "xeriod"] {
            assert_eq!([slips(near, "period"), slips("period", near)], [1, 1], "{near}");
        }
        for near in ["perxod", "periox", "epriod", "peroid", "perido"] {
            assert_eq!([slips(near, "period"), slips("period", near)], [1, 1], "{near}");
        }
        for (from, to, count) in [
            ("", "", 0),
            ("", "slice", 5),
            ("slice", "slice", 0),
            ("slice", "lices", 2),
            ("slice", "sicle", 2),
            ("lsiec", "slice", 2),
            ("aaaa", "bbbb", 4),
            ("abc", "ca", 3),
            ("banana", "period", 6),
        ] {
            assert_eq!([slips(from, to), slips(to, from)], [count, count], "{from}, {to}");
        }
    }
}
