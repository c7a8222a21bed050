//! Licence expressions, in the syntax of SPDX and in the syntax of older packages.

/// Returns true if the licences in `allowed` satisfy a licence expression. `None` if the expression
/// is malformed.
///
/// `AND` binds tighter than `OR`. A slash is an old form of `OR`. A licence with an exception must
/// be listed with that exception.
#[must_use]
pub fn is_met(expression: &str, allowed: &[String]) -> Option<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, at: 0, allowed };
    let met = parser.either()?;
    (parser.at == words.len()).then_some(met)
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    allowed: &'a [String],
}

impl Parser<'_> {
    fn next_is(&mut self, word: &str) -> bool {
        let is = self.words.get(self.at) == Some(&word);
        self.at += usize::from(is);
        is
    }

    fn either(&mut self) -> Option<bool> {
        let mut met = self.both()?;
        while self.next_is("OR") {
            met |= self.both()?;
        }
        Some(met)
    }

    fn both(&mut self) -> Option<bool> {
        let mut met = self.single()?;
        while self.next_is("AND") {
            met &= self.single()?;
        }
        Some(met)
    }

    fn single(&mut self) -> Option<bool> {
        if self.next_is("(") {
            let met = self.either()?;
            return self.next_is(")").then_some(met);
        }
        let mut licence = self.word()?.to_owned();
        if self.next_is("WITH") {
            licence = format!("{licence} WITH {}", self.word()?);
        }
        Some(self.allowed.contains(&licence))
    }

    fn word(&mut self) -> Option<&str> {
        let word = *self.words.get(self.at)?;
        self.at += 1;
        (!matches!(word, "AND" | "OR" | "WITH" | "(" | ")")).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn met(expression: &str, expected: Option<bool>) {
        let allowed = ["MIT".to_owned(), "Unicode-3.0".to_owned(), "X WITH Y".to_owned()];
        assert_eq!(is_met(expression, &allowed), expected, "{expression}");
    }

    #[test]
    fn licence_conjunction_needs_all_parts_allowed_but_disjunction_only_one() {
        met("MIT", Some(true));
        met("GPL-3.0", Some(false));
        met("GPL-3.0 OR MIT", Some(true));
        met("GPL-3.0 AND MIT", Some(false));
        met("Apache-2.0/MIT", Some(true));
    }

    #[test]
    fn conjunction_binds_tighter_than_disjunction_in_licence_expressions() {
        met("MIT OR A AND B", Some(true));
        met("(MIT OR A) AND B", Some(false));
        met("(MIT OR Apache-2.0) AND Unicode-3.0", Some(true));
    }

    #[test]
    fn licence_exception_is_allowed_only_with_its_licence() {
        met("X WITH Y", Some(true));
        met("X", Some(false));
        met("MIT WITH Y", Some(false));
        met("A WITH B OR MIT", Some(true));
    }

    #[test]
    fn licence_expression_that_is_malformed_is_rejected() {
        for wrong in ["", "MIT AND", "OR", "(MIT", "MIT)", "MIT MIT", "MIT WITH"] {
            met(wrong, None);
        }
    }
}
