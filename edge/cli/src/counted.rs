//! Counts of things in sentences.

use std::fmt::Display;

/// Returns a number with its noun, such as `1 CPU` or `2 CPUs`. `noun` is the singular, and its
/// plural ends in `s`.
pub(crate) fn counted(count: impl Display + Copy, noun: &str) -> String {
    let count = count.to_string();
    let plural = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noun_is_singular_only_after_the_number_one() {
        let counted = [0, 1, 2, 11].map(|count| counted(count, "CPU"));
        assert_eq!(counted, ["0 CPUs", "1 CPU", "2 CPUs", "11 CPUs"]);
    }
}
