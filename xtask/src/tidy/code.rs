//! Rust source whose comments and strings are replaced by blanks.

use std::ops::Range;

/// Rust source in which comments and the contents of strings are replaced by blanks. All other
/// characters stay on their lines.
#[derive(Debug)]
pub struct Code {
    text: String,
}

/// Lexical state of the scanner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Code,
    LineComment,
    /// A block comment, with its depth of nesting.
    BlockComment(usize),
    Text,
    /// A raw string that ends with a quote and this number of `#`.
    RawText(usize),
    Character,
}

impl Code {
    /// Creates the code from a source by blanking comments and strings.
    #[must_use]
    pub fn of(source: &str) -> Self {
        let characters: Vec<char> = source.chars().collect();
        let mut text = String::with_capacity(source.len());
        let mut inside = Inside::Code;
        let mut at = 0;
        while at < characters.len() {
            let (next, length) = advance(inside, &characters, at);
            for &character in &characters[at..at + length] {
                let shown = character == '\n' || (inside == Inside::Code && next == Inside::Code);
                text.push(if shown { character } else { ' ' });
            }
            inside = next;
            at += length;
        }
        Self { text }
    }

    /// Returns the lines with their numbers, counted from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// Returns the line ranges of modules that contain tests.
    #[must_use]
    pub fn test_lines(&self) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut since = None;
        for (number, line) in self.lines() {
            // The end of the module is found by its indentation: rustfmt indents the last line of
            // an item like the first line.
            if line.starts_with("#[cfg(test)]") {
                since = Some(number);
            } else if let Some(start) = since
                && (line.starts_with('}') || (line.starts_with("mod ") && line.ends_with(';')))
            {
                found.push(start..number + 1);
                since = None;
            }
        }
        found
    }

    /// Returns the numbers of lines that contain `word` as a whole word.
    pub fn lines_with<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.lines().filter(move |(_, line)| has_word(line, word)).map(|(number, _)| number)
    }
}

/// Returns true if a line contains `word` as a whole word, and not only inside a longer word.
#[must_use]
pub fn has_word(line: &str, word: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// Returns the next state of the scanner, and the number of characters that the token at `at`
/// takes.
fn advance(inside: Inside, all: &[char], at: usize) -> (Inside, usize) {
    let this = all[at];
    let next = all.get(at + 1).copied().unwrap_or('\0');
    match inside {
        Inside::Code => enter(all, at),
        Inside::LineComment if this == '\n' => (Inside::Code, 1),
        Inside::BlockComment(depth) => match (this, next) {
            ('*', '/') if depth == 1 => (Inside::Code, 2),
            ('*', '/') => (Inside::BlockComment(depth - 1), 2),
            ('/', '*') => (Inside::BlockComment(depth + 1), 2),
            _ => (inside, 1),
        },
        Inside::Text if this == '"' => (Inside::Code, 1),
        Inside::Character if this == '\'' => (Inside::Code, 1),
        Inside::Text | Inside::Character if this == '\\' && next != '\0' => (inside, 2),
        Inside::RawText(hashes) => {
            let ends = this == '"' && count_hashes(all, at + 1) >= hashes;
            if ends { (Inside::Code, 1 + hashes) } else { (inside, 1) }
        }
        _ => (inside, 1),
    }
}

/// Returns the state that the token at `at` starts, and the length of the token's opening.
fn enter(all: &[char], at: usize) -> (Inside, usize) {
    let this = all[at];
    let next = all.get(at + 1).copied().unwrap_or('\0');
    let in_word = at > 0 && (all[at - 1].is_alphanumeric() || all[at - 1] == '_');
    match (this, next) {
        ('/', '/') => (Inside::LineComment, 2),
        ('/', '*') => (Inside::BlockComment(1), 2),
        ('"', _) => (Inside::Text, 1),
        // The `r` of a raw string stands alone, or follows the `b` or `c` of a byte or C string.
        ('r', '"' | '#') if !in_word || matches!(all[at - 1], 'b' | 'c') => {
            let hashes = count_hashes(all, at + 1);
            let quoted = all.get(at + 1 + hashes) == Some(&'"');
            if quoted { (Inside::RawText(hashes), 2 + hashes) } else { (Inside::Code, 1) }
        }
        // A single quote starts a lifetime, unless another single quote follows after one
        // character.
        ('\'', '\\') => (Inside::Character, 1),
        ('\'', _) if all.get(at + 2) == Some(&'\'') => (Inside::Character, 1),
        _ => (Inside::Code, 1),
    }
}

fn count_hashes(all: &[char], from: usize) -> usize {
    all.iter().skip(from).take_while(|&&character| character == '#').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn left_of(source: &str, expected: &str) {
        assert_eq!(Code::of(source).text.split_whitespace().collect::<String>(), expected);
    }

    #[test]
    fn code_scanner_removes_the_content_of_comments_and_strings() {
        left_of("a // } b\nc", "ac");
        left_of("a /* { /* } */ { */ b", "ab");
        left_of(r#"f("a \" { b", x)"#, "f(,x)");
        left_of(r###"f(r#"a " { b"#, br"{")"###, "f(,b)");
        left_of(r"f('{', '\'', '\u{7b}')", "f(,,)");
    }

    #[test]
    fn code_scanner_distinguishes_a_lifetime_from_a_character_literal() {
        left_of("fn f<'a>(x: &'a str, y: &'a u8) {", "fnf<'a>(x:&'astr,y:&'au8){");
    }

    #[test]
    fn code_scanner_keeps_line_numbers_after_strings_of_several_lines() {
        let code = Code::of("let a = \"\n{\n\";\nunsafe {}");
        assert_eq!(code.lines_with("unsafe").collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn code_scanner_finds_only_whole_words() {
        assert!(has_word("let x: f64 = 1", "f64"));
        assert!(!has_word("to_f64(x)", "f64"));
        assert!(!has_word("unsafe_code", "unsafe"));
    }

    #[test]
    fn code_scanner_finds_the_lines_of_test_modules() {
        let code = Code::of("fn a() {\n}\n#[cfg(test)]\nmod tests {\n    x\n}\nfn b() {}\n");
        assert_eq!(code.test_lines(), vec![3..7]);
        let code = Code::of("#[cfg(test)]\nmod picture;\nfn b() {\n}\n");
        assert_eq!(code.test_lines(), vec![1..3]);
    }
}
