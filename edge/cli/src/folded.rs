//! Sentences in lines that a terminal does not break in the middle of a word.

/// The same text with no line wider than `width`, unless a single word is: what is too long goes on
/// below, under the first word of what is said. Lines that fit are as they were. Escape sequences
/// take no room.
pub(crate) fn folded(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        // What overwrites a line is one.
        if columns(line) <= width || line.contains('\r') {
            out += line;
        } else {
            fold(&mut out, line, width);
        }
        out += end;
    }
    out
}

fn fold(out: &mut String, line: &str, width: usize) {
    let blank = line.len() - line.trim_start_matches(' ').len();
    // Where half of a line would be left blank, as below a column of names, it says nothing.
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

/// Words, each with how many blanks stand before it.
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

/// How far in a line goes on: where its second column begins, or behind what it begins with, as
/// `note:`, `hint:` or a mark; else a little further than it began.
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

/// How many columns a text takes.
fn columns(text: &str) -> usize {
    let mut pieces = text.split('\x1b');
    let first = pieces.next().map_or(0, |piece| piece.chars().count());
    // A sequence ends with its first letter.
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
    fn what_fits_is_as_it_was() {
        let text = "a  table\n  with   blanks\n\n";
        assert_eq!(folded(text, 20), text);
        assert_eq!(folded("a word or two", 13), "a word or two");
    }

    #[test]
    fn what_is_too_long_goes_on_below_what_is_said() {
        assert_eq!(
            folded("note:  a look takes 3us here; two are counted\nnext\n", 24),
            "note:  a look takes 3us\n       here; two are\n       counted\nnext\n"
        );
        assert_eq!(folded(" -¹ no deadline passed", 14), " -¹ no\n    deadline\n    passed");
        assert_eq!(folded("  one two three", 10), "  one two\n    three");
        assert_eq!(folded("  a  one two three", 12), "  a  one two\n     three");
    }

    #[test]
    fn a_word_that_is_too_long_has_a_line_of_its_own() {
        assert_eq!(folded("see /a/long/path/to/it now", 10), "see\n  /a/long/path/to/it\n  now");
    }

    #[test]
    fn colours_take_no_room_and_what_overwrites_a_line_is_left_alone() {
        let coloured = "\x1b[32mone\x1b[0m two";
        assert_eq!(folded(coloured, 7), coloured);
        assert_eq!(folded("\r\x1b[Kone two three", 7), "\r\x1b[Kone two three");
    }
}
