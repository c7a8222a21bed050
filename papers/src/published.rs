//! Published values as data: numbers as printed, and assumptions for what a paper does not state.
//! Comparisons read all published values, and calibration reads the calibration rows. Runs read no
//! published values.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use crate::error::{FileFault, PaperError};
use crate::numbers::{digits, with_unit};
use crate::source::Source;

/// Published values and assumptions of one paper.
#[derive(Clone, Debug)]
pub struct PublishedValues {
    /// Published values, in the order of the file.
    pub values: Vec<Value>,
    /// Assumptions about what the paper does not state.
    pub assumed: Vec<Assumption>,
}

/// A published value of a paper.
#[derive(Clone, Debug)]
pub struct Value {
    /// Id with which comparisons refer to the value.
    pub id: String,
    /// Description of the value in words.
    pub says: String,
    /// Number, range, series or word, as it was printed.
    pub is: PrintedValue,
    /// Unit of the value. Empty if the value has no unit.
    pub unit: String,
    /// Table, figure or section, and page.
    pub from: String,
    /// Source in the paper from which the value was read.
    pub read: ValueSource,
    /// Maximum error in reading the value, in the value's unit.
    pub give: f64,
    /// Further remarks. `None` if there are none.
    pub note: Option<String>,
    /// True if costs are allowed to be calibrated with the value.
    pub calibration: bool,
}

/// A published value as it was printed.
#[derive(Clone, Debug, PartialEq)]
pub enum PrintedValue {
    /// A number, such as 934.
    Number(f64),
    /// A range from one number to another.
    Range(f64, f64),
    /// Series of numbers of which only the order has a meaning.
    Series(Vec<f64>),
    /// A finding without a number.
    Word(String),
}

/// Source in a paper from which a value was read.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ValueSource {
    /// A sentence in the text.
    Text,
    /// A table with numbers.
    Table,
    /// A plot. If its values are not printed, only the range of its axis can be read.
    Plot,
}

/// An assumption about something that a paper does not state.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumption {
    /// Id of the assumption in the sensitivity experiment.
    pub id: String,
    /// Subject of the assumption.
    pub what: String,
    /// Value that was assumed.
    pub value: String,
    /// Reason for the value.
    pub why: String,
    /// Other values that would be possible.
    pub vary: Vec<String>,
    /// Reason why no experiment tries other values. `None` if an experiment does.
    pub not_varied: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedFile {
    #[serde(default)]
    value: Vec<Entry>,
    #[serde(default)]
    assumed: Vec<Assumption>,
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
    read: ValueSource,
    give: Option<Spanned<String>>,
    note: Option<String>,
    #[serde(default)]
    calibration: bool,
}

impl PublishedValues {
    /// Reads `published.toml` of a paper.
    ///
    /// # Errors
    /// If the file cannot be read or is faulty.
    pub fn read(folder: &Path) -> Result<PublishedValues, PaperError> {
        PublishedValues::of(&Source::read(&folder.join("published.toml"))?)
    }

    /// Parses the text of `published.toml`. In errors, `file` is its path.
    ///
    /// # Errors
    /// If the text is faulty.
    pub fn from_text(file: &Path, text: &str) -> Result<PublishedValues, PaperError> {
        PublishedValues::of(&Source { file: file.into(), text: text.to_owned() })
    }

    fn of(source: &Source) -> Result<PublishedValues, PaperError> {
        let file: PublishedFile = source.parse()?;
        source.once("published value", file.value.iter().map(|entry| &entry.id))?;
        let values = file.value.into_iter().map(|entry| entry.check(source));
        Ok(PublishedValues { values: values.collect::<Result<_, _>>()?, assumed: file.assumed })
    }

    /// Returns the value with this id. `None` if no value has this id.
    #[must_use]
    pub fn value(&self, id: &str) -> Option<&Value> {
        self.values.iter().find(|value| value.id == id)
    }
}

impl Value {
    /// Returns the number. `None` if the value is not a number.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self.is {
            PrintedValue::Number(number) => Some(number),
            PrintedValue::Range(..) | PrintedValue::Series(_) | PrintedValue::Word(_) => None,
        }
    }

    /// Returns the ends of the range. `None` if the value is not a range.
    #[must_use]
    pub fn range(&self) -> Option<(f64, f64)> {
        match self.is {
            PrintedValue::Range(low, high) => Some((low, high)),
            PrintedValue::Number(_) | PrintedValue::Series(_) | PrintedValue::Word(_) => None,
        }
    }

    /// Returns the value with its unit, for readers.
    #[must_use]
    pub fn shown(&self) -> String {
        with_unit(&self.is.to_string(), &self.unit)
    }
}

impl fmt::Display for PrintedValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrintedValue::Number(number) => out.write_str(&digits(*number)),
            PrintedValue::Range(low, high) => write!(out, "{} to {}", digits(*low), digits(*high)),
            PrintedValue::Series(numbers) => {
                let numbers: Vec<String> = numbers.iter().copied().map(digits).collect();
                out.write_str(&numbers.join(", "))
            }
            PrintedValue::Word(word) => out.write_str(word),
        }
    }
}

impl Entry {
    fn check(self, source: &Source) -> Result<Value, PaperError> {
        let is = PrintedValue::read(self.value.get_ref());
        let give = match (&self.give, &is) {
            (Some(give), _) => {
                let number = give.get_ref().parse().ok().filter(|&give: &f64| give >= 0.0);
                number.ok_or_else(|| not_a_number(source, give))?
            }
            (None, PrintedValue::Word(_) | PrintedValue::Series(_)) => 0.0,
            (None, _) => {
                let fault = FileFault::Missing {
                    place: "a number",
                    key: "give",
                    example: "give = \"0.5\": how exactly the number can be read",
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

impl PrintedValue {
    fn read(text: &str) -> PrintedValue {
        let range = text.split_once("..").and_then(|(low, high)| {
            let (low, high): (f64, f64) = (low.parse().ok()?, high.parse().ok()?);
            (low <= high).then_some(PrintedValue::Range(low, high))
        });
        let number = || text.parse().ok().filter(|number: &f64| number.is_finite());
        let series = || {
            let numbers = text.split(", ").map(|part| part.parse().ok());
            let numbers = numbers.collect::<Option<Vec<f64>>>()?;
            (numbers.len() > 2).then_some(PrintedValue::Series(numbers))
        };
        let found = range.or_else(|| number().map(PrintedValue::Number)).or_else(series);
        found.unwrap_or_else(|| PrintedValue::Word(text.to_owned()))
    }
}
