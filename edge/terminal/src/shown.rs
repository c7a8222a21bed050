//! Filter between texts of other programs and a terminal.

use std::borrow::Cow;

use slackline_units::is_unseen;

use crate::paint::Paint;

/// Replaces each control character and each invisible character by U+FFFD. Names in a text could
/// otherwise move the cursor, change the title of the terminal or reverse text. Line breaks and
/// tabs stay. With colours, the styles that this program writes stay too.
#[must_use]
pub fn shown(text: &str, paint: Paint) -> Cow<'_, str> {
    let is_hidden =
        |letter: char| letter.is_control() && !"\n\t".contains(letter) || is_unseen(letter);
    if !text.contains(is_hidden) {
        return text.into();
    }
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(letter) = rest.chars().next() {
        let style = if paint == Paint::Colour { style_length(rest) } else { 0 };
        let length = style.max(letter.len_utf8());
        if style == 0 && is_hidden(letter) {
            clean.push(char::REPLACEMENT_CHARACTER);
        } else {
            clean.push_str(&rest[..length]);
        }
        rest = &rest[length..];
    }
    clean.into()
}

/// Returns the length of the style at the start of a text, in bytes: bold, faint, a colour or the
/// end of a style. Zero if the text begins with anything else.
fn style_length(text: &str) -> usize {
    let code = text.strip_prefix("\x1b[").and_then(|rest| Some(rest.split_once('m')?.0));
    let is_own = |code: &str| match code.strip_prefix("1;").unwrap_or(code).strip_prefix("38;5;") {
        Some(colour) => colour.parse::<u8>().is_ok(),
        None => ["0", "1", "2", "31", "32", "33", "36"].contains(&code),
    };
    code.filter(|code| is_own(code)).map_or(0, |code| code.len() + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_direction_marks_are_replaced() {
        for text in ["a\x1b]0;x\x07", "\x1b[2Jb", "\r\x1b[K", "\u{9b}31m", "web\u{61c}\u{202e}"] {
            for paint in [Paint::Plain, Paint::Colour] {
                let shown = shown(text, paint);
                assert!(!shown.contains(|it: char| it.is_control() || is_unseen(it)), "{shown:?}");
                assert!(shown.contains('\u{fffd}'), "{shown:?}");
            }
        }
        let plain = "web-0 ü\tline\n";
        assert!(matches!(shown(plain, Paint::Plain), Cow::Borrowed(text) if text == plain));
    }

    #[test]
    fn escape_sequences_of_known_styles_stay_only_in_coloured_text() {
        let styled = "\x1b[32mone\x1b[0m \x1b[1;38;5;202mtwo\x1b[0m \x1b[38;5;32mthree\x1b[0m";
        assert_eq!(shown(styled, Paint::Colour), styled);
        assert_eq!(shown("\x1b[31mx", Paint::Plain), "\u{fffd}[31mx");
        for foreign in ["\x1b[8m", "\x1b[31;8m", "\x1b[38;5;300m", "\x1b[5m", "\x1b[", "\x1b[1"] {
            assert!(shown(foreign, Paint::Colour).starts_with('\u{fffd}'), "{foreign:?}");
        }
    }
}
