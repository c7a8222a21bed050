//! Reader of one TOML table, key by key. Each value knows its position in the file.

use std::ops::{Range, RangeInclusive};

use slackline_units::{ParseSpanError, Span, is_unseen};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{ErrorKind, ScenarioError};
use crate::keys::KeyTable;
use crate::{Draw, LONGEST, ParseDrawError};

/// A fault of a scenario, with its position in the file in bytes.
#[derive(Debug)]
pub(crate) struct Mistake {
    pub(crate) at: usize,
    pub(crate) kind: Box<ErrorKind>,
}

impl Mistake {
    pub(crate) fn new(at: usize, kind: ErrorKind) -> Mistake {
        Mistake { at, kind: Box::new(kind) }
    }

    /// Returns the fault with the name of the domain that contains it.
    pub(crate) fn of_domain(self, domain: &str) -> Mistake {
        let domain = domain.to_owned();
        Mistake::new(self.at, ErrorKind::OfDomain { domain, error: self.kind })
    }
}

/// Text of the scenario file, and the starts of its lines.
pub(crate) struct Source<'a> {
    pub(crate) text: &'a str,
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(text: &'a str) -> Source<'a> {
        let after_newline = text.match_indices('\n').map(|(at, _)| at + 1);
        Source { text, lines: std::iter::once(0).chain(after_newline).collect() }
    }

    /// Returns line and column of the byte at position `at`. Both are counted from 1, and the
    /// column is counted in characters.
    pub(crate) fn position(&self, at: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|&start| start <= at);
        let before = self.text.get(self.lines[line - 1]..at).unwrap_or("");
        // A byte order mark is not counted as a column, as in editors.
        (line, before.trim_start_matches('\u{feff}').chars().count() + 1)
    }

    pub(crate) fn error(&self, fault: Mistake) -> ScenarioError {
        let (line, column) = self.position(fault.at);
        ScenarioError { line, column, kind: fault.kind }
    }

    /// Returns a piece of the file, shortened to fit in a message of one line.
    pub(crate) fn excerpt(&self, span: Range<usize>) -> String {
        shown(self.text.get(span).unwrap_or(""))
    }
}

/// Returns the text in a form that fits in a message of one line: its first line, shortened,
/// without control characters.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let line = text.lines().next().unwrap_or("");
    let end = line.char_indices().nth(MOST).map_or(line.len(), |(end, _)| end);
    let rest = if end < text.len() { "..." } else { "" };
    line[..end].chars().map(printable).chain(rest.chars()).collect()
}

/// Returns the character, or a substitute if it would move a terminal's cursor or reverse the text.
pub(crate) fn printable(c: char) -> char {
    if c.is_control() || is_unseen(c) { '\u{fffd}' } else { c }
}

/// A TOML table with its position in the file.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    source: &'a Source<'a>,
    entries: &'a DeTable<'a>,
    /// Position in the file, in bytes, at which the table begins.
    pub(crate) at: usize,
    /// Name of the table in messages.
    place: &'static str,
}

/// A TOML value with its key.
#[derive(Clone, Copy)]
pub(crate) struct Item<'a> {
    source: &'a Source<'a>,
    /// Key of the value. Empty for an element of an array.
    pub(crate) key: &'a str,
    /// Position in the file, in bytes, at which the key begins. If there is no key, the position at
    /// which the value begins.
    pub(crate) key_at: usize,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Table<'a> {
    /// Creates the table of the whole file.
    pub(crate) fn root(source: &'a Source<'a>, root: &'a DeTable<'a>) -> Table<'a> {
        Table { source, entries: root, at: 0, place: "a scenario" }
    }

    /// Returns all items of the table, in the order of the file.
    pub(crate) fn items(&self) -> Vec<Item<'a>> {
        let source = self.source;
        let item = |(key, value): (&'a Spanned<_>, _)| {
            let name: &std::borrow::Cow<'a, str> = key.get_ref();
            Item { source, key: name.as_ref(), key_at: key.span().start, value }
        };
        let mut items: Vec<Item<'a>> = self.entries.iter().map(item).collect();
        items.sort_by_key(|item| item.key_at);
        items
    }

    /// Returns the table if all its keys are in `keys`. Otherwise the error names the first unknown
    /// key.
    pub(crate) fn allow(self, keys: &'static [&'static str]) -> Result<Table<'a>, Mistake> {
        match self.items().iter().find(|item| !keys.contains(&item.key)) {
            None => Ok(self),
            Some(item) => {
                let (key, place, keys) = (shown(item.key), self.place, keys.to_vec());
                Err(Mistake::new(item.key_at, ErrorKind::UnknownKey { key, place, keys }))
            }
        }
    }

    /// Returns the table if each of its keys is in the list `table`. Otherwise the error names the
    /// first unknown key.
    pub(crate) fn taught(self, table: &'static KeyTable) -> Result<Table<'a>, Mistake> {
        let knows = |key: &str| table.keys.iter().any(|known| known.name == key);
        match self.items().iter().find(|item| !knows(item.key)) {
            None => Ok(self),
            Some(item) => {
                let (key, place) = (shown(item.key), self.place);
                let keys = table.keys.iter().map(|known| known.name).collect();
                Err(Mistake::new(item.key_at, ErrorKind::UnknownKey { key, place, keys }))
            }
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Item<'a>> {
        let (key, value) = self.entries.get_key_value(key)?;
        let (source, key_at) = (self.source, key.span().start);
        Some(Item { source, key: key.get_ref(), key_at, value })
    }

    /// Returns the value of a required key. The error shows `example`, which is the key as users
    /// write it.
    pub(crate) fn need(
        &self,
        key: &'static str,
        example: &'static str,
    ) -> Result<Item<'a>, Mistake> {
        let missing = || Mistake::new(self.at, ErrorKind::MissingKey { key, example });
        self.get(key).ok_or_else(missing)
    }

    /// Reads the value of a key with `read`. `None` if the key is missing.
    pub(crate) fn maybe<T>(
        &self,
        key: &str,
        read: impl FnOnce(Item<'a>) -> Result<T, Mistake>,
    ) -> Result<Option<T>, Mistake> {
        self.get(key).map(read).transpose()
    }

    /// Returns the value of the key that is present: `one` or `other`.
    ///
    /// # Errors
    /// Unless exactly one of the two keys is present.
    pub(crate) fn either(
        &self,
        one: &'static str,
        other: &'static str,
    ) -> Result<Item<'a>, Mistake> {
        match (self.get(one), self.get(other)) {
            (Some(item), None) | (None, Some(item)) => Ok(item),
            _ => Err(Mistake::new(self.at, ErrorKind::OneOfTwo { place: self.place, one, other })),
        }
    }

    /// Returns the value of the only key in `all` that is present. `keys` lists these keys for the
    /// error message.
    ///
    /// # Errors
    /// Unless exactly one of the keys is present.
    pub(crate) fn one_of(
        &self,
        all: &[&'static str],
        keys: &'static str,
    ) -> Result<Item<'a>, Mistake> {
        let mut there = all.iter().filter_map(|key| self.get(key));
        match (there.next(), there.next()) {
            (Some(item), None) => Ok(item),
            _ => {
                let place = self.place;
                Err(Mistake::new(self.at, ErrorKind::OneOfSeveral { place, keys }))
            }
        }
    }

    /// Returns every table of `[[key]]`, in the order of the file.
    pub(crate) fn each(&self, key: &str, place: &'static str) -> Result<Vec<Table<'a>>, Mistake> {
        let Some(item) = self.get(key) else { return Ok(Vec::new()) };
        item.elements("an array of tables")?.iter().map(|item| item.table(place)).collect()
    }
}

impl<'a> Item<'a> {
    /// Returns the position in the file, in bytes, at which the value begins.
    pub(crate) fn at(&self) -> usize {
        self.value.span().start
    }

    /// Returns the line at which the value begins, counted from 1.
    pub(crate) fn line(&self) -> usize {
        self.source.position(self.at()).0
    }

    /// Returns `key = value` as written in the file.
    pub(crate) fn written(&self) -> String {
        let value = self.source.excerpt(self.value.span());
        if self.key.is_empty() { value } else { format!("{} = {value}", shown(self.key)) }
    }

    /// Returns the value as written in the file, of any type.
    pub(crate) fn raw(&self) -> &'a str {
        self.source.text.get(self.value.span()).unwrap_or("")
    }

    pub(crate) fn value(&self) -> &'a DeValue<'a> {
        self.value.get_ref()
    }

    pub(crate) fn fault(&self, kind: ErrorKind) -> Mistake {
        Mistake::new(self.at(), kind)
    }

    pub(crate) fn wrong_type(&self, wants: &'static str) -> Mistake {
        self.fault(ErrorKind::WrongType { written: self.written(), wants })
    }

    pub(crate) fn table(&self, place: &'static str) -> Result<Table<'a>, Mistake> {
        let DeValue::Table(entries) = self.value() else {
            return Err(self.wrong_type("a table"));
        };
        Ok(Table { source: self.source, entries, at: self.at(), place })
    }

    /// Returns the elements of an array as items without keys.
    pub(crate) fn elements(&self, wants: &'static str) -> Result<Vec<Item<'a>>, Mistake> {
        let DeValue::Array(values) = self.value() else {
            return Err(self.wrong_type(wants));
        };
        let source = self.source;
        let element = |value: &'a Spanned<DeValue<'a>>| Item {
            source,
            key: "",
            key_at: value.span().start,
            value,
        };
        Ok(values.iter().map(element).collect())
    }

    pub(crate) fn text(&self) -> Result<&'a str, Mistake> {
        self.value().as_str().ok_or_else(|| self.wrong_type("a string"))
    }

    pub(crate) fn is_table(&self) -> bool {
        self.value().as_table().is_some()
    }

    pub(crate) fn is_list(&self) -> bool {
        matches!(self.value(), DeValue::Array(_))
    }

    pub(crate) fn flag(&self) -> Result<bool, Mistake> {
        self.value().as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    /// Reads a value that is one of `words`. Returns the index of the word.
    pub(crate) fn word(&self, words: &'static [&'static str]) -> Result<usize, Mistake> {
        let word = self.text()?;
        words.iter().position(|known| *known == word).ok_or_else(|| {
            let (written, word) = (self.written(), word.to_owned());
            self.fault(ErrorKind::NotAWord { written, word, words })
        })
    }

    /// Reads a whole number within `range`.
    pub(crate) fn number(&self, range: RangeInclusive<u64>) -> Result<u64, Mistake> {
        let DeValue::Integer(number) = self.value() else {
            return Err(self.wrong_type("a whole number"));
        };
        let number = u64::from_str_radix(number.as_str(), number.radix()).ok();
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let (least, most) = (*range.start(), *range.end());
            self.fault(ErrorKind::OutOfRange { written: self.written(), least, most })
        })
    }

    /// Reads a whole number within `range`, as a `usize`.
    pub(crate) fn count(&self, range: RangeInclusive<usize>) -> Result<usize, Mistake> {
        let number = self.number(*range.start() as u64..=*range.end() as u64)?;
        Ok(usize::try_from(number).expect("a number within a range of usize"))
    }

    /// Reads a percentage up to 100%, in millionths.
    pub(crate) fn percentage(&self) -> Result<u32, Mistake> {
        let ppm =
            self.value().as_str().and_then(percentage).and_then(|ppm| u32::try_from(ppm).ok());
        let not = || self.fault(ErrorKind::NotAPercentage { written: self.written() });
        ppm.filter(|&ppm| ppm <= 1_000_000).ok_or_else(not)
    }

    /// Reads a duration, which may be zero.
    pub(crate) fn span(&self) -> Result<Span, Mistake> {
        let span = self.timely()?.parse().map_err(|why| self.not_a_span(why))?;
        if span > LONGEST {
            return Err(self.fault(ErrorKind::TooLong { written: self.written() }));
        }
        Ok(span)
    }

    /// Reads a duration that is not zero.
    pub(crate) fn some_span(&self) -> Result<Span, Mistake> {
        let span = self.span()?;
        if span.is_zero() {
            return Err(self.fault(ErrorKind::Zero { written: self.written() }));
        }
        Ok(span)
    }

    /// Reads a random duration, which may be zero.
    pub(crate) fn draw(&self) -> Result<Draw, Mistake> {
        let text = self.timely()?;
        let draw: Draw = text.parse().map_err(|why| match why {
            ParseDrawError::NotASpan { text: part, why } if part == text.trim() => {
                self.not_a_span(why)
            }
            ParseDrawError::NotASpan { text, why } => {
                self.not_a_draw(ParseDrawError::NotASpan { text: shown(&text), why })
            }
            ParseDrawError::UnknownWay { word, meant } => {
                self.not_a_draw(ParseDrawError::UnknownWay { word: shown(&word), meant })
            }
            why => self.not_a_draw(why),
        })?;
        if draw.scale() > LONGEST {
            return Err(self.fault(ErrorKind::TooLong { written: self.written() }));
        }
        Ok(draw)
    }

    /// Reads a random duration that is not always zero.
    pub(crate) fn some_draw(&self) -> Result<Draw, Mistake> {
        let draw = self.draw()?;
        if draw.scale().is_zero() {
            return Err(self.fault(ErrorKind::Zero { written: self.written() }));
        }
        Ok(draw)
    }

    /// Returns the text of a duration. A number without a unit has its own error, because it is the
    /// most frequent mistake.
    fn timely(&self) -> Result<&'a str, Mistake> {
        match self.value() {
            DeValue::String(text) => Ok(text),
            DeValue::Integer(_) | DeValue::Float(_) if self.raw().starts_with('-') => {
                Err(self.not_a_span(ParseSpanError::Negative))
            }
            DeValue::Integer(_) | DeValue::Float(_) => Err(self.not_a_span(ParseSpanError::NoUnit)),
            _ => Err(self.wrong_type("a duration")),
        }
    }

    fn not_a_draw(&self, why: ParseDrawError) -> Mistake {
        self.fault(ErrorKind::NotADraw { written: self.written(), why })
    }

    fn not_a_span(&self, why: ParseSpanError) -> Mistake {
        self.fault(ErrorKind::NotASpan { written: self.written(), why })
    }
}

/// Reads a percentage such as `12.5%` as millionths (125,000). `None` if the text is not a
/// percentage, or has more than four decimal places.
pub(crate) fn percentage(text: &str) -> Option<u64> {
    decimal(text.trim().strip_suffix('%')?)
}

/// Reads a decimal number such as `12.5` in ten-thousandths (125,000). If the number is a
/// percentage, the result is in millionths. `None` if the text is not such a number, or has more
/// than four decimal places.
pub(crate) fn decimal(number: &str) -> Option<u64> {
    const PLACES: usize = 4;
    const SCALE: u64 = 10_000;
    let (whole, part) = number.trim().split_once('.').unwrap_or((number.trim(), "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > PLACES {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = format!("{part:0<PLACES$}").parse().ok()?;
    whole.checked_mul(SCALE)?.checked_add(part)
}
