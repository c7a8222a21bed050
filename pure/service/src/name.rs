//! Names of reservations, names of remote clients, and idempotency keys of requests.

use std::fmt;
use std::str::FromStr;

/// Name of a reservation: `[a-z0-9][a-z0-9._-]{0,62}`. It needs no escaping in a path, a URL or a
/// metric label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Reason why a text is not a [`Name`], a [`Holder`] or a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("is empty")]
    Empty,
    /// The text is too long.
    #[error("has {is} characters; at most {most} are allowed")]
    TooLong {
        /// Length of the text in characters.
        is: usize,
        /// Maximum length in characters.
        most: usize,
    },
    /// A character is not allowed, or not allowed at the beginning.
    #[error("has {found:?} at character {place}, which is not allowed there")]
    Character {
        /// Character that was found.
        found: char,
        /// Position of the character in the text, counted from 1.
        place: usize,
    },
}

impl Name {
    /// Maximum length of the name of a reservation, in characters.
    pub const LONGEST: usize = 63;

    /// Ending of a reservation's name. Only administrators may give a new reservation a name with
    /// this ending.
    pub const OF_LIBVIRT: &str = ".libvirt";

    /// Returns the name of the reservation as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let fits = |place, letter: char| match letter {
            'a'..='z' | '0'..='9' => true,
            '.' | '_' | '-' => place > 0,
            _ => false,
        };
        checked(text, Name::LONGEST, fits).map(Name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Name of a client on another host: `[a-z][a-z0-9._-]{0,31}`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Name in ASCII, padded with zeros at the end.
    text: [u8; Holder::LONGEST],
}

impl Holder {
    /// Maximum length of the name of a client on another host, in characters.
    pub const LONGEST: usize = 32;

    /// Returns the name of the client as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let text = self.text.split(|&byte| byte == 0).next().unwrap_or_default();
        // The text was parsed from ASCII characters only.
        std::str::from_utf8(text).unwrap_or_default()
    }
}

impl FromStr for Holder {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Holder, NameError> {
        let fits = |place, letter: char| match letter {
            'a'..='z' => true,
            '0'..='9' | '.' | '_' | '-' => place > 0,
            _ => false,
        };
        let name = checked(text, Holder::LONGEST, fits)?;
        let mut text = [0; Holder::LONGEST];
        text.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        Ok(Holder { text })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), out)
    }
}

/// Idempotency key that a client chooses for a request, so that a repeated request has no second
/// effect. The key has 1 to 64 visible ASCII characters. Keys of different principals are
/// independent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// Maximum length of an idempotency key, in characters.
    pub const LONGEST: usize = 64;

    /// Returns the idempotency key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Key, NameError> {
        checked(text, Key::LONGEST, |_, letter| letter.is_ascii_graphic()).map(Key)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Returns the text if it has at most `most` characters, and each character is allowed at its
/// position.
fn checked(
    text: &str,
    most: usize,
    fits: impl Fn(usize, char) -> bool,
) -> Result<String, NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    let wrong = text.chars().enumerate().find(|&(place, letter)| !fits(place, letter));
    if let Some((place, found)) = wrong {
        return Err(NameError::Character { found, place: place + 1 });
    }
    let is = text.chars().count();
    if is > most { Err(NameError::TooLong { is, most }) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_name_unsafe_in_paths_or_urls_is_refused() {
        for good in ["web", "0", "web-1.example_b", &"a".repeat(63)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        let wrong = |text: &str| text.parse::<Name>().unwrap_err();
        assert_eq!(wrong(""), NameError::Empty);
        assert_eq!(wrong(&"a".repeat(64)), NameError::TooLong { is: 64, most: 63 });
        for (bad, found, place) in
            [("..", '.', 1), ("-a", '-', 1), ("a/b", '/', 2), ("Web", 'W', 1), ("wéb", 'é', 2)]
        {
            assert_eq!(wrong(bad), NameError::Character { found, place }, "{bad}");
        }
        let says = "has '\\n' at character 2, which is not allowed there";
        assert_eq!(wrong("a\n").to_string(), says);
    }

    #[test]
    fn idempotency_key_with_spaces_or_over_64_characters_is_refused() {
        assert!("0f9c-27{}".parse::<Key>().is_ok());
        assert_eq!("a b".parse::<Key>(), Err(NameError::Character { found: ' ', place: 2 }));
        assert!("a".repeat(65).parse::<Key>().is_err());
    }

    #[test]
    fn token_holder_name_must_begin_with_a_lowercase_letter() {
        let holder = |text: &str| text.parse::<Holder>();
        for text in ["a", "alice-2.x_y", &"a".repeat(32)] {
            assert_eq!(holder(text).unwrap().to_string(), text);
        }
        for text in ["", "1000", "-a", "Alice", "a b", "a\u{0}", &"a".repeat(33)] {
            assert!(holder(text).is_err(), "{text:?}");
        }
    }
}
