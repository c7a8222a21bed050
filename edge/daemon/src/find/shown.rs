//! Escaping of names from other programs, so that they are safe in terminals, logs and bindings.

use slackline_units::is_unseen;

/// Escapes a name. Control characters, invisible characters and bytes that are not text become
/// `\xNN`. A backslash becomes two backslashes. Different names have different escaped forms.
#[must_use]
pub fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter == '\\' {
                text.push_str("\\\\");
            } else if letter.is_control() || is_unseen(letter) {
                escape(letter.encode_utf8(&mut [0; 4]).as_bytes(), &mut text);
            } else {
                text.push(letter);
            }
        }
        escape(chunk.invalid(), &mut text);
    }
    text
}

/// Escapes a name for use in a binding. Slashes are escaped too, so the result is never a path.
pub(super) fn bound(name: &[u8]) -> String {
    shown(name).replace('/', "\\x2f")
}

fn escape(bytes: &[u8], into: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        into.push_str("\\x");
        for digit in [byte >> 4, byte & 15] {
            into.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Reverses the escaping of `shown`. The tests use this function to show that different names
    /// have different escaped forms.
    fn meant(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            if byte != b'\\' {
                bytes.push(byte);
            } else if let Some(after) = rest.strip_prefix(b"\\") {
                bytes.push(b'\\');
                rest = after;
            } else {
                let digits = std::str::from_utf8(&rest[1..3]).expect("two digits");
                bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
                rest = &rest[3..];
            }
        }
        bytes
    }

    #[test]
    fn plain_vm_name_is_unchanged_and_control_characters_are_escaped() {
        for name in ["ubuntu22.04", "my vm: the 2nd, largest", "web-1", "größe", ""] {
            assert_eq!(shown(name.as_bytes()), name);
        }
        assert_eq!(shown(b"a\x1b[2Jb\nc\xffd\\"), r"a\x1b[2Jb\x0ac\xffd\\");
        assert_eq!(bound(b"../a"), r"..\x2fa");
        assert_eq!(shown("a\u{202e}b".as_bytes()), r"a\xe2\x80\xaeb");
    }

    proptest! {
        #[test]
        fn escaped_vm_name_is_printable_and_unescapes_to_the_name(name in vec(any::<u8>(), 0..40)) {
            let text = shown(&name);
            prop_assert!(!text.chars().any(|letter| letter.is_control()));
            prop_assert_eq!(meant(&text), name);
        }

        #[test]
        fn escaped_vm_name_unescapes_to_the_original_for_any_text(name in any::<String>()) {
            prop_assert_eq!(meant(&shown(name.as_bytes())), name.into_bytes());
        }
    }
}
