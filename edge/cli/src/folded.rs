//! Line wrapping of sentences, so that a terminal does not break words.

/// Wraps lines that are wider than `width` columns. Continuation lines get the indent that
/// `hanging` returns, at most half of `width`. A wrapped line is wider than `width` only if a
/// single word is too long. Lines of at most `width` columns stay unchanged. Escape sequences count
/// as zero columns.
pub(crate) fn folded(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        // A line with a carriage return overwrites itself, so it is not wrapped.
        if columns(line) <= width || line.contains('\r') {
            out += line;
        } else {
            fold(&mut out, line, width);
        }
        out += end;
    }
    out
}

/// Appends one line, wrapped to `width` columns.
fn fold(out: &mut String, line: &str, width: usize) {
    let blank = line.len() - line.trim_start_matches(' ').len();
    // An indent of more than half the width, as after a column of names, would waste space.
    let indent = hanging(line).min(width / 2);
    out.extend(std::iter::repeat_n(' ', blank));
    let mut taken = blank;
    let mut is_first = true;
    for (gap, word) in words(&line[blank..]) {
        let needed = columns(word);
        if !is_first && taken + gap + needed > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            taken = indent;
        } else {
            out.extend(std::iter::repeat_n(' ', gap));
            taken += gap;
        }
        out.push_str(word);
        taken += needed;
        is_first = false;
    }
}

/// Returns the words of a text, each with the number of blanks before it.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut gap = 0;
    text.split(' ').filter_map(move |word| {
        if word.is_empty() {
            gap += 1;
            return None;
        }
        Some((std::mem::replace(&mut gap, 1), word))
    })
}

/// Returns the indent of a line's continuation lines. In a list, the indent is the start of the
/// second column. After a mark such as `note:` or `hint:`, the indent is the start of the text.
/// Other lines add two columns to their own indent.
fn hanging(line: &str) -> usize {
    let said = line.trim_start_matches(' ');
    let blank = line.len() - said.len();
    if let Some(at) = said.find("  ") {
        let rest = said[at..].trim_start_matches(' ');
        return blank + columns(&said[..said.len() - rest.len()]);
    }
    let head = said.split(' ').next().unwrap_or_default();
    let is_mark = columns(head) <= 2 && !head.starts_with(char::is_alphanumeric);
    let is_head = head.ends_with(':') || is_mark;
    blank + if is_head { columns(head) + 1 } else { 2 }
}

/// Returns the width of a text in columns.
fn columns(text: &str) -> usize {
    let mut pieces = text.split('\x1b');
    let first = pieces.next().map_or(0, |piece| piece.chars().count());
    // An escape sequence ends with its first letter.
    let rest = pieces.map(|piece| {
        let end = piece.find(|letter: char| letter.is_ascii_alphabetic());
        end.map_or(0, |end| piece[end + 1..].chars().count())
    });
    first + rest.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_fits_the_terminal_width_is_not_wrapped() {
        let text = "a  table\n  with   blanks\n\n";
        assert_eq!(folded(text, 20), text);
        assert_eq!(folded("a word or two", 13), "a word or two");
    }

    #[test]
    fn continuation_line_is_indented_to_start_of_wrapped_sentence() {
        assert_eq!(
            folded("note:  a look takes 3us here; two are counted\nnext\n", 24),
            "note:  a look takes 3us\n       here; two are\n       counted\nnext\n"
        );
        assert_eq!(folded(" -¹ no deadline passed", 14), " -¹ no\n    deadline\n    passed");
        assert_eq!(folded("  one two three", 10), "  one two\n    three");
        assert_eq!(folded("  a  one two three", 12), "  a  one two\n     three");
    }

    #[test]
    fn word_longer_than_terminal_width_gets_own_line() {
        assert_eq!(folded("see /a/long/path/to/it now", 10), "see\n  /a/long/path/to/it\n  now");
    }

    #[test]
    fn line_wrapping_ignores_escape_sequences_and_overwritten_lines() {
        let coloured = "\x1b[32mone\x1b[0m two";
        assert_eq!(folded(coloured, 7), coloured);
        assert_eq!(folded("\r\x1b[Kone two three", 7), "\r\x1b[Kone two three");
    }
}
