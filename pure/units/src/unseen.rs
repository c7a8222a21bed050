//! Characters that a reader does not see.

use core::ops::RangeInclusive;

/// Invisible characters, most of which change how other characters are shown: direction marks,
/// zero-width spaces and joiners, fillers, variation selectors, tags and the byte order mark.
/// Control characters are not in the list.
pub const UNSEEN: [RangeInclusive<char>; 15] = [
    '\u{00ad}'..='\u{00ad}',
    '\u{034f}'..='\u{034f}',
    '\u{061c}'..='\u{061c}',
    '\u{115f}'..='\u{1160}',
    '\u{180b}'..='\u{180e}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff9}'..='\u{fffb}',
    '\u{e0000}'..='\u{e007f}',
    '\u{e0100}'..='\u{e01ef}',
];

/// Returns true if the character is invisible, or changes how other characters are displayed, as a
/// direction mark does. Returns false for control characters.
#[must_use]
pub fn is_unseen(letter: char) -> bool {
    UNSEEN.iter().any(|range| range.contains(&letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unicode_fillers_tags_and_direction_marks_count_as_unseen_characters() {
        let unseen = "\u{ad}\u{34f}\u{61c}\u{115f}\u{180e}\u{200b}\u{202e}\u{2066}\u{3164}\u{fe0f}";
        assert!(unseen.chars().chain("\u{feff}\u{ffa0}\u{e0001}\u{e0041}".chars()).all(is_unseen));
        assert!(!"web-0 ü é 日本 עב \u{1b}\n".chars().any(is_unseen));
    }
}
