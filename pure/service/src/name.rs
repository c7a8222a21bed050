//! What people call a reservation, and what a client calls one of its requests.

use std::fmt;
use std::str::FromStr;

/// The name of a reservation: `[a-z0-9][a-z0-9._-]{0,62}`. It can stand in a path, a URL and a
/// label as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Why a text is not a [`Name`], or not a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is nothing.
    #[error("is empty")]
    Empty,
    /// There is too much.
    #[error("has {is} characters; at most {most} are allowed")]
    TooLong {
        /// How many there are.
        is: usize,
        /// The most there may be.
        most: usize,
    },
    /// A character that may not be in it, or not at the beginning.
    #[error("has an invalid {found:?} at character {place}")]
    Character {
        /// What is there.
        found: char,
        /// Where, counted from 1.
        place: usize,
    },
}

impl Name {
    /// The most characters there are in one.
    pub const LONGEST: usize = 63;

    /// The text.
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

/// What somebody who comes from another machine is called here: `[a-z][a-z0-9._-]{0,31}`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// With zeros after it.
    text: [u8; Holder::LONGEST],
}

impl Holder {
    /// The most characters there are in one.
    pub const LONGEST: usize = 32;

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let text = self.text.split(|&byte| byte == 0).next().unwrap_or_default();
        // It was made from a text of ASCII.
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

/// What a client calls one of its requests, so that the same one again has no second effect: 1 to
/// 64 visible ASCII characters. It is a principal's own: another one's means nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// The most characters there are in one.
    pub const LONGEST: usize = 64;

    /// The text.
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

/// The text, if each of its characters fits where it is.
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
    fn names_can_stand_in_a_path_and_a_url() {
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
        assert_eq!(wrong("a\n").to_string(), "has an invalid '\\n' at character 2");
    }

    #[test]
    fn keys_are_visible_and_short() {
        assert!("0f9c-27{}".parse::<Key>().is_ok());
        assert_eq!("a b".parse::<Key>(), Err(NameError::Character { found: ' ', place: 2 }));
        assert!("a".repeat(65).parse::<Key>().is_err());
    }

    #[test]
    fn who_comes_from_elsewhere_has_a_name_that_is_no_number() {
        let holder = |text: &str| text.parse::<Holder>();
        for text in ["a", "alice-2.x_y", &"a".repeat(32)] {
            assert_eq!(holder(text).unwrap().to_string(), text);
        }
        for text in ["", "1000", "-a", "Alice", "a b", "a\u{0}", &"a".repeat(33)] {
            assert!(holder(text).is_err(), "{text:?}");
        }
    }
}
