//! What was published, as data: numbers as they were printed, and what a paper leaves to be
//! assumed. Read by the comparison and, of the calibration rows, by the calibration; never by
//! anything that runs.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use crate::error::{FileFault, PaperError};
use crate::numbers::{digits, with_unit};
use crate::source::Source;

/// All that one paper published.
#[derive(Clone, Debug)]
pub struct Published {
    /// The values, in the order of the file.
    pub values: Vec<Value>,
    /// What had to be chosen.
    pub assumed: Vec<Assumed>,
}

/// One published value.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its name in comparisons.
    pub id: String,
    /// What it is, in words.
    pub says: String,
    /// What it is, as a number, a range or a word.
    pub is: Is,
    /// Its unit; empty if it has none.
    pub unit: String,
    /// The table, figure or section, and the page.
    pub from: String,
    /// How it was read.
    pub read: Read,
    /// How exactly it can be read off.
    pub give: f64,
    /// What else is to be known about it.
    pub note: Option<String>,
    /// Whether costs may be taken from it.
    pub calibration: bool,
}

/// A value as it was printed.
#[derive(Clone, Debug, PartialEq)]
pub enum Is {
    /// A number.
    Number(f64),
    /// From one number to another.
    Range(f64, f64),
    /// Numbers of which only the order means anything.
    Series(Vec<f64>),
    /// A finding without a number.
    Word(String),
}

/// How a value was read.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Read {
    /// From a sentence.
    Text,
    /// From a table.
    Table,
    /// From a plot; of ours only the axes can be read.
    Plot,
}

/// Something that a paper does not say and that had to be chosen.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumed {
    /// Its name in the sensitivity experiment.
    pub id: String,
    /// What was chosen.
    pub what: String,
    /// As what.
    pub value: String,
    /// Why.
    pub why: String,
    /// What else it could be.
    pub vary: Vec<String>,
    /// Why no experiment tries that, if none does.
    pub not_varied: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    value: Vec<Entry>,
    #[serde(default)]
    assumed: Vec<Assumed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: Spanned<String>,
    says: String,
    value: Spanned<String>,
    #[serde(default)]
    unit: String,
    from: String,
    read: Read,
    give: Option<Spanned<String>>,
    note: Option<String>,
    #[serde(default)]
    calibration: bool,
}

impl Published {
    /// Reads `published.toml` of a paper.
    ///
    /// # Errors
    /// When the file cannot be read, or says something wrong.
    pub fn read(folder: &Path) -> Result<Published, PaperError> {
        Published::of(&Source::read(&folder.join("published.toml"))?)
    }

    /// Reads what `published.toml` of a paper says; `file` is what errors call it.
    ///
    /// # Errors
    /// When the text says something wrong.
    pub fn from_text(file: &Path, text: &str) -> Result<Published, PaperError> {
        Published::of(&Source { file: file.into(), text: text.to_owned() })
    }

    fn of(source: &Source) -> Result<Published, PaperError> {
        let file: File = source.parse()?;
        source.once("published value", file.value.iter().map(|entry| &entry.id))?;
        let values = file.value.into_iter().map(|entry| entry.check(source));
        Ok(Published { values: values.collect::<Result<_, _>>()?, assumed: file.assumed })
    }

    /// The value of this name.
    #[must_use]
    pub fn value(&self, id: &str) -> Option<&Value> {
        self.values.iter().find(|value| value.id == id)
    }
}

impl Value {
    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self.is {
            Is::Number(number) => Some(number),
            Is::Range(..) | Is::Series(_) | Is::Word(_) => None,
        }
    }

    /// From where to where, if it is a range.
    #[must_use]
    pub fn range(&self) -> Option<(f64, f64)> {
        match self.is {
            Is::Range(low, high) => Some((low, high)),
            Is::Number(_) | Is::Series(_) | Is::Word(_) => None,
        }
    }

    /// The value for people, with its unit.
    #[must_use]
    pub fn shown(&self) -> String {
        with_unit(&self.is.to_string(), &self.unit)
    }
}

impl fmt::Display for Is {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Is::Number(number) => out.write_str(&digits(*number)),
            Is::Range(low, high) => write!(out, "{} to {}", digits(*low), digits(*high)),
            Is::Series(numbers) => {
                let numbers: Vec<String> = numbers.iter().copied().map(digits).collect();
                out.write_str(&numbers.join(", "))
            }
            Is::Word(word) => out.write_str(word),
        }
    }
}

impl Entry {
    fn check(self, source: &Source) -> Result<Value, PaperError> {
        let is = Is::read(self.value.get_ref());
        let give = match (&self.give, &is) {
            (Some(give), _) => {
                let number = give.get_ref().parse().ok().filter(|&give: &f64| give >= 0.0);
                number.ok_or_else(|| not_a_number(source, give))?
            }
            (None, Is::Word(_) | Is::Series(_)) => 0.0,
            (None, _) => {
                let fault = FileFault::Missing {
                    place: "a number",
                    key: "give",
                    example: "give = \"0.5\", how exactly it can be read off",
                };
                return Err(source.fault(&self.value.span(), fault));
            }
        };
        Ok(Value {
            id: self.id.into_inner(),
            says: self.says,
            is,
            unit: self.unit,
            from: self.from,
            read: self.read,
            give,
            note: self.note,
            calibration: self.calibration,
        })
    }
}

fn not_a_number(source: &Source, text: &Spanned<String>) -> PaperError {
    let (written, what) = (text.get_ref().clone(), "number that is not negative");
    source.fault(&text.span(), FileFault::NotA { written, what, example: "\"0.5\"" })
}

impl Is {
    fn read(text: &str) -> Is {
        let range = text.split_once("..").and_then(|(low, high)| {
            let (low, high): (f64, f64) = (low.parse().ok()?, high.parse().ok()?);
            (low <= high).then_some(Is::Range(low, high))
        });
        let number = || text.parse().ok().filter(|number: &f64| number.is_finite());
        let series = || {
            let numbers = text.split(", ").map(|part| part.parse().ok());
            let numbers = numbers.collect::<Option<Vec<f64>>>()?;
            (numbers.len() > 2).then_some(Is::Series(numbers))
        };
        let found = range.or_else(|| number().map(Is::Number)).or_else(series);
        found.unwrap_or_else(|| Is::Word(text.to_owned()))
    }
}
