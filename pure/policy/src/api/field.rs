//! Declaration and parsing of parameters. One table of fields serves the scenario parser and its
//! errors, `slackline help POLICY`, and every user interface.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use slackline_units::{CpuShare, ParseShareError, ParseSpanError, Span, Time, Weight};

use crate::ShareText;
use crate::api::nearest::nearest;

/// Declaration of one parameter of a policy or of a vCPU.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// Name that users type.
    pub name: &'static str,
    /// Type and range of the parameter's value.
    pub kind: Kind,
    /// Default value as a user would write it. `None` if the parameter is required.
    pub default: Option<&'static str>,
    /// Help text of one line.
    pub help: &'static str,
}

/// Type and range of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Duration with a unit.
    Span {
        /// Shortest duration that is accepted.
        least: Span,
        /// Longest duration that is accepted.
        most: Span,
    },
    /// Duration, or `none`. The default is `none`.
    MaybeSpan,
    /// Amount of CPU, such as `0.25cpu`.
    Share {
        /// Largest amount that is accepted.
        most: CpuShare,
    },
    /// Upper limit of CPU, or `none`. The limit cannot be zero.
    Cap {
        /// Largest limit that is accepted.
        most: CpuShare,
    },
    /// Weight relative to other vCPUs or VMs.
    Weight,
    /// Whole number within bounds.
    Whole {
        /// Lowest number that is accepted.
        least: i64,
        /// Highest number that is accepted.
        most: i64,
    },
    /// Switch: `true` or `false`.
    Flag,
    /// One of the listed words.
    Choice(&'static [&'static str]),
}

/// A parameter as the user wrote it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RawValue<'a> {
    /// Text, without its quotes.
    Text(&'a str),
    /// Bare `true` or `false`.
    Flag(bool),
    /// Bare number, as written.
    Number(&'a str),
}

/// Value of a parameter, parsed and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Value of a [`Kind::Span`].
    Span(Span),
    /// Value of a [`Kind::MaybeSpan`].
    MaybeSpan(Option<Span>),
    /// Value of a [`Kind::Share`].
    Share(CpuShare),
    /// Value of a [`Kind::Cap`].
    Cap(Option<CpuShare>),
    /// Value of a [`Kind::Weight`].
    Weight(Weight),
    /// Value of a [`Kind::Whole`].
    Whole(i64),
    /// Value of a [`Kind::Flag`].
    Flag(bool),
    /// Value of a [`Kind::Choice`].
    Choice(&'static str),
}

/// Values of all fields of a table, parsed and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    fields: &'static [Field],
    values: Vec<Value>,
}

/// Reason why a parameter is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldError {
    /// The table has no parameter of this name.
    Unknown {
        /// Name as the user wrote it.
        name: String,
        /// Known name that is closest to the name that the user wrote. `None` if no known name is
        /// similar.
        meant: Option<&'static str>,
    },
    /// A required parameter was not given.
    Missing(&'static Field),
    /// The value has the wrong type, for example a number in place of a text.
    WrongType(&'static Field, String),
    /// The value is not a duration.
    NotASpan(&'static Field, String, ParseSpanError),
    /// The value is not an amount of CPU.
    NotAShare(&'static Field, String, ParseShareError),
    /// The value is not one of the words that the field accepts.
    NotAChoice(&'static Field, String),
    /// The value is below the minimum or above the maximum.
    OutOfRange(&'static Field, String),
    /// The value of one field is accepted only with certain values of other fields, which the user
    /// did not give: the field, its value, and the other fields with the values that are needed.
    Alone(&'static Field, &'static str, Vec<(&'static Field, &'static str)>),
}

impl FieldError {
    /// Returns a hint for the user, such as a similar name or an example of a valid value. `None`
    /// if the parameter is unknown and no known name is similar.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            FieldError::Unknown { meant, .. } => {
                meant.map(|name| alloc::format!("did you mean `{name}`?"))
            }
            FieldError::Missing(field)
            | FieldError::WrongType(field, _)
            | FieldError::NotASpan(field, ..)
            | FieldError::NotAShare(field, ..)
            | FieldError::NotAChoice(field, _)
            | FieldError::OutOfRange(field, _) => {
                Some(alloc::format!("write {} = {}", field.name, field.kind.example()))
            }
            FieldError::Alone(field, _, needs) => {
                let needs = written(needs);
                let default = field.default.unwrap_or_default();
                Some(alloc::format!("add {needs}, or write {} = {default:?}", field.name))
            }
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldError::Unknown { name, .. } => write!(out, "unknown parameter `{name}`"),
            FieldError::Missing(field) => {
                write!(out, "`{}` is missing: {}", field.name, field.help)
            }
            FieldError::WrongType(field, given) => {
                write!(out, "`{} = {given}` is not {}", field.name, field.kind)
            }
            FieldError::NotASpan(field, given, why) => {
                write!(out, "`{} = {given}` {why}", field.name)
            }
            FieldError::NotAShare(field, given, why) => {
                write!(out, "`{} = {given}` {why}", field.name)
            }
            FieldError::NotAChoice(field, given) | FieldError::OutOfRange(field, given) => {
                write!(out, "`{} = {given}` is not {}", field.name, field.kind)
            }
            FieldError::Alone(field, given, needs) => {
                write!(out, "`{} = {given:?}` needs {}", field.name, written(needs))
            }
        }
    }
}

/// Formats fields and their values as a user would write them.
fn written(fields: &[(&Field, &str)]) -> String {
    let each = fields.iter().map(|(field, word)| alloc::format!("{} = {word:?}", field.name));
    each.collect::<Vec<_>>().join(", ")
}

impl core::error::Error for FieldError {}

impl Kind {
    /// Returns an example of a valid value, as a user would write it.
    #[must_use]
    pub fn example(&self) -> String {
        match self {
            Kind::Span { .. } => "\"10ms\"".into(),
            Kind::MaybeSpan => "\"2ms\" or \"none\"".into(),
            Kind::Share { .. } => "\"0.25cpu\"".into(),
            Kind::Cap { .. } => "\"0.25cpu\" or \"none\"".into(),
            Kind::Weight => "256".into(),
            Kind::Whole { least, most } => 1.clamp(*least, *most).to_string(),
            Kind::Flag => "true".into(),
            Kind::Choice(words) => alloc::format!("{:?}", words.first().copied().unwrap_or("")),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Span { least, most } if *most == Span::MAX => {
                write!(out, "a duration of at least {least}")
            }
            Kind::Span { least, most } => write!(out, "a duration from {least} to {most}"),
            Kind::MaybeSpan => write!(out, "a duration, or none"),
            Kind::Share { most } => write!(out, "an amount of CPU up to {most}"),
            Kind::Cap { most } => write!(out, "an amount of CPU up to {most}, or none"),
            Kind::Weight => write!(out, "a whole number from 1 to {}", Weight::MAX),
            Kind::Whole { least, most } => write!(out, "a whole number from {least} to {most}"),
            Kind::Flag => out.write_str("true or false"),
            Kind::Choice(words) => write!(out, "one of {}", words.join(", ")),
        }
    }
}

impl Field {
    /// Declares a required duration of at least one nanosecond.
    #[must_use]
    pub const fn required_span(name: &'static str, help: &'static str) -> Field {
        let kind = Kind::Span { least: Span::from_ns(1), most: Span::MAX };
        Field { name, kind, default: None, help }
    }

    /// Declares a duration of at least one nanosecond.
    #[must_use]
    pub const fn positive_span(
        name: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> Field {
        let kind = Kind::Span { least: Span::from_ns(1), most: Span::MAX };
        Field { name, kind, default: Some(default), help }
    }

    /// Declares an amount of CPU of at most `most`.
    #[must_use]
    pub const fn share(
        name: &'static str,
        default: &'static str,
        most: CpuShare,
        help: &'static str,
    ) -> Field {
        Field { name, kind: Kind::Share { most }, default: Some(default), help }
    }

    /// Declares a duration that may be zero.
    #[must_use]
    pub const fn span(name: &'static str, default: &'static str, help: &'static str) -> Field {
        let kind = Kind::Span { least: Span::ZERO, most: Span::MAX };
        Field { name, kind, default: Some(default), help }
    }

    /// Declares an optional duration. The default is none.
    #[must_use]
    pub const fn maybe_span(name: &'static str, help: &'static str) -> Field {
        Field { name, kind: Kind::MaybeSpan, default: Some("none"), help }
    }

    /// Declares a duration within inclusive bounds, as real schedulers have in their parameter
    /// tables.
    #[must_use]
    pub const fn span_within(
        name: &'static str,
        default: &'static str,
        (least, most): (Span, Span),
        help: &'static str,
    ) -> Field {
        Field { name, kind: Kind::Span { least, most }, default: Some(default), help }
    }

    /// Declares an upper limit of CPU. The default is none.
    #[must_use]
    pub const fn cap(name: &'static str, most: CpuShare, help: &'static str) -> Field {
        Field { name, kind: Kind::Cap { most }, default: Some("none"), help }
    }

    /// Declares a weight relative to other vCPUs or VMs.
    #[must_use]
    pub const fn weight(name: &'static str, default: &'static str, help: &'static str) -> Field {
        Field { name, kind: Kind::Weight, default: Some(default), help }
    }

    /// Declares a whole number within inclusive bounds.
    #[must_use]
    pub const fn whole(
        name: &'static str,
        default: &'static str,
        (least, most): (i64, i64),
        help: &'static str,
    ) -> Field {
        Field { name, kind: Kind::Whole { least, most }, default: Some(default), help }
    }

    /// Declares a flag. The default is false.
    #[must_use]
    pub const fn flag(name: &'static str, help: &'static str) -> Field {
        Field { name, kind: Kind::Flag, default: Some("false"), help }
    }

    /// Declares a choice of words. The first word is the default.
    #[must_use]
    pub const fn choice(
        name: &'static str,
        words: &'static [&'static str],
        help: &'static str,
    ) -> Field {
        Field { name, kind: Kind::Choice(words), default: Some(words[0]), help }
    }

    fn read(&'static self, given: RawValue<'_>) -> Result<Value, FieldError> {
        let quoted = |text: &str| alloc::format!("\"{text}\"");
        match (self.kind, given) {
            (Kind::Flag, RawValue::Flag(flag)) => Ok(Value::Flag(flag)),
            (Kind::Span { least, most }, RawValue::Text(text)) => {
                let span: Span =
                    text.parse().map_err(|why| FieldError::NotASpan(self, quoted(text), why))?;
                let fits = least <= span && span <= most;
                fits.then_some(Value::Span(span))
                    .ok_or_else(|| FieldError::OutOfRange(self, quoted(text)))
            }
            (Kind::MaybeSpan, RawValue::Text("none")) => Ok(Value::MaybeSpan(None)),
            (Kind::MaybeSpan, RawValue::Text(text)) => text
                .parse()
                .map(|span| Value::MaybeSpan(Some(span)))
                .map_err(|why| FieldError::NotASpan(self, quoted(text), why)),
            (Kind::Span { .. } | Kind::MaybeSpan, RawValue::Number(text))
                if text.starts_with('-') =>
            {
                Err(FieldError::NotASpan(self, text.to_string(), ParseSpanError::Negative))
            }
            (Kind::Span { .. } | Kind::MaybeSpan, RawValue::Number(text)) => {
                Err(FieldError::NotASpan(self, text.to_string(), ParseSpanError::NoUnit))
            }
            (Kind::Share { most }, RawValue::Text(text)) => {
                let share: CpuShare =
                    text.parse().map_err(|why| FieldError::NotAShare(self, quoted(text), why))?;
                (share <= most)
                    .then_some(Value::Share(share))
                    .ok_or_else(|| FieldError::OutOfRange(self, quoted(text)))
            }
            (Kind::Share { .. }, RawValue::Number(text)) => {
                Err(FieldError::NotAShare(self, text.to_string(), ParseShareError::NoUnit))
            }
            (Kind::Cap { .. }, RawValue::Text("none")) => Ok(Value::Cap(None)),
            (Kind::Cap { most }, RawValue::Text(text)) => {
                let cap: CpuShare =
                    text.parse().map_err(|why| FieldError::NotAShare(self, quoted(text), why))?;
                (cap != CpuShare::NONE && cap <= most)
                    .then_some(Value::Cap(Some(cap)))
                    .ok_or_else(|| FieldError::OutOfRange(self, quoted(text)))
            }
            (Kind::Cap { .. }, RawValue::Number(text)) => {
                Err(FieldError::NotAShare(self, text.to_string(), ParseShareError::NoUnit))
            }
            (Kind::Weight, RawValue::Number(text)) => text
                .parse()
                .map(Value::Weight)
                .map_err(|_| FieldError::OutOfRange(self, text.to_string())),
            (Kind::Whole { least, most }, RawValue::Number(text)) => {
                let number = text.parse().ok().filter(|number| (least..=most).contains(number));
                number
                    .map(Value::Whole)
                    .ok_or_else(|| FieldError::OutOfRange(self, text.to_string()))
            }
            (Kind::Choice(words), RawValue::Text(text)) => words
                .iter()
                .find(|word| **word == text)
                .map(|word| Value::Choice(word))
                .ok_or_else(|| FieldError::NotAChoice(self, quoted(text))),
            (_, RawValue::Text(text)) => Err(FieldError::WrongType(self, quoted(text))),
            (_, RawValue::Number(text)) => Err(FieldError::WrongType(self, text.to_string())),
            (_, RawValue::Flag(flag)) => Err(FieldError::WrongType(self, flag.to_string())),
        }
    }

    fn read_default(&'static self) -> Result<Value, FieldError> {
        match (self.kind, self.default) {
            (_, None) => Err(FieldError::Missing(self)),
            (Kind::Flag, Some(text)) => Ok(Value::Flag(text == "true")),
            (Kind::Weight | Kind::Whole { .. }, Some(text)) => self.read(RawValue::Number(text)),
            (_, Some(text)) => self.read(RawValue::Text(text)),
        }
    }
}

/// Returns the parameters `slice` and `period` that give a share of a CPU, as a user would write
/// them.
pub(crate) fn slice_of(share: CpuShare, period: Span) -> ShareText {
    let slice = u128::from(share.ppm()) * u128::from(period.ns()) / 1_000_000;
    let slice = Span::from_ns(u64::try_from(slice).unwrap_or(u64::MAX));
    let text = |span| alloc::format!("\"{span}\"");
    alloc::vec![("slice", text(slice)), ("period", text(period))]
}

impl Values {
    /// Reads the given values for a table of fields. A field that is not given takes its default.
    /// The error names the field, so that the caller can find its position.
    ///
    /// # Errors
    /// If a parameter is unknown, missing or invalid. Names the first such parameter.
    pub fn read<'a>(
        fields: &'static [Field],
        given: impl Iterator<Item = (&'a str, RawValue<'a>)>,
    ) -> Result<Values, FieldError> {
        let mut read = alloc::vec![None; fields.len()];
        for (name, text) in given {
            let Some(index) = fields.iter().position(|field| field.name == name) else {
                let meant = nearest(name, fields.iter().map(|field| field.name));
                return Err(FieldError::Unknown { name: name.to_string(), meant });
            };
            read[index] = Some(fields[index].read(text)?);
        }
        let values = fields.iter().zip(read);
        let values = values.map(|(field, value)| value.map_or_else(|| field.read_default(), Ok));
        Ok(Values { fields, values: values.collect::<Result<_, _>>()? })
    }

    /// Returns the default values of a table.
    ///
    /// # Errors
    /// If a field has no default. The error names the first such field.
    pub fn defaults(fields: &'static [Field]) -> Result<Values, FieldError> {
        Values::read(fields, core::iter::empty())
    }

    /// Returns the duration in `field`.
    ///
    /// # Panics
    /// If the table has no such field or the field is of another kind. That is a mistake in a
    /// policy.
    #[must_use]
    pub fn span(&self, field: &Field) -> Span {
        match self.value(field) {
            Value::Span(span) => span,
            other => panic!("`{}` is {other:?}, not a duration", field.name),
        }
    }

    /// Returns the duration in `field`. `None` if the value is `none`.
    ///
    /// # Panics
    /// If the table has no such field, or the field is of another kind.
    #[must_use]
    pub fn maybe_span(&self, field: &Field) -> Option<Span> {
        match self.value(field) {
            Value::MaybeSpan(span) => span,
            other => panic!("`{}` is {other:?}, not a duration or none", field.name),
        }
    }

    /// Returns the amount of CPU in `field`.
    ///
    /// # Panics
    /// If the table has no such field, or the field is of another kind.
    #[must_use]
    pub fn share(&self, field: &Field) -> CpuShare {
        match self.value(field) {
            Value::Share(share) => share,
            other => panic!("`{}` is {other:?}, not an amount of CPU", field.name),
        }
    }

    /// Returns the upper limit of CPU in `field`. `None` if there is no limit.
    ///
    /// # Panics
    /// If the table has no such field, or the field is of another kind.
    #[must_use]
    pub fn cap(&self, field: &Field) -> Option<CpuShare> {
        match self.value(field) {
            Value::Cap(cap) => cap,
            other => panic!("`{}` is {other:?}, not a cap", field.name),
        }
    }

    /// Returns the weight in `field`.
    ///
    /// # Panics
    /// If the table has no such field, or the field is of another kind.
    #[must_use]
    pub fn weight(&self, field: &Field) -> Weight {
        match self.value(field) {
            Value::Weight(weight) => weight,
            other => panic!("`{}` is {other:?}, not a weight", field.name),
        }
    }

    /// Returns the whole number in `field`.
    ///
    /// # Panics
    /// If the table has no such field, or the field is of another kind.
    #[must_use]
    pub fn whole(&self, field: &Field) -> i64 {
        match self.value(field) {
            Value::Whole(number) => number,
            other => panic!("`{}` is {other:?}, not a whole number", field.name),
        }
    }

    /// Returns the flag in `field`.
    ///
    /// # Panics
    /// If the table has no such field, or the field is of another kind.
    #[must_use]
    pub fn flag(&self, field: &Field) -> bool {
        match self.value(field) {
            Value::Flag(flag) => flag,
            other => panic!("`{}` is {other:?}, not a flag", field.name),
        }
    }

    /// Returns the word in `field`.
    ///
    /// # Panics
    /// If the table has no such field, or the field is of another kind.
    #[must_use]
    pub fn choice(&self, field: &Field) -> &'static str {
        match self.value(field) {
            Value::Choice(word) => word,
            other => panic!("`{}` is {other:?}, not a choice", field.name),
        }
    }

    /// Returns all fields with their values, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Field, Value)> {
        self.fields.iter().zip(self.values.iter().copied())
    }

    fn value(&self, field: &Field) -> Value {
        let index = self.fields.iter().position(|known| known.name == field.name);
        self.values[index.unwrap_or_else(|| panic!("`{}` is not in this table", field.name))]
    }
}

impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Span(span) | Value::MaybeSpan(Some(span)) => span.fmt(out),
            Value::Cap(None) | Value::MaybeSpan(None) => out.write_str("none"),
            Value::Share(share) => share.fmt(out),
            Value::Cap(Some(cap)) => cap.fmt(out),
            Value::Weight(weight) => weight.fmt(out),
            Value::Whole(number) => number.fmt(out),
            Value::Flag(flag) => flag.fmt(out),
            Value::Choice(word) => word.fmt(out),
        }
    }
}

/// Formats the difference of `now` and `then` as text that is shown to users: "in 2ms" or "2ms
/// ago".
pub(crate) fn distance(now: Time, then: Time) -> String {
    if then >= now {
        alloc::format!("in {}", then - now)
    } else {
        alloc::format!("{} ago", now - then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &[Field] = &[
        Field::required_span("period", "how often"),
        Field::flag("exact", "no more than that"),
        Field::choice("place", &["spread", "pack"], "where"),
        Field::share("reserve", "0.05cpu", CpuShare::ONE, "kept free"),
        Field::weight("weight", "256", "how much, beside others"),
        Field::cap("cap", CpuShare::ONE, "never more"),
        Field::whole("advance", "10", (1, 1000), "how fast a clock ages"),
    ];

    fn read(given: &[(&str, RawValue<'_>)]) -> Result<Values, FieldError> {
        Values::read(FIELDS, given.iter().copied())
    }

    #[test]
    fn omitted_policy_parameter_takes_its_default() {
        let values = read(&[("period", RawValue::Text("10ms"))]).unwrap();
        assert_eq!(values.span(&FIELDS[0]), Span::from_ms(10));
        assert!(!values.flag(&FIELDS[1]));
        assert_eq!(values.choice(&FIELDS[2]), "spread");
        assert_eq!(values.share(&FIELDS[3]), CpuShare::from_ppm(50_000));
        assert_eq!(values.weight(&FIELDS[4]), Weight::new(256).unwrap());
        assert_eq!(values.cap(&FIELDS[5]), None);
        assert_eq!(values.whole(&FIELDS[6]), 10);
    }

    #[test]
    fn slice_for_a_vcpu_limit_is_share_times_period() {
        let terms = slice_of(CpuShare::from_ppm(10_000), Span::from_ms(10));
        assert_eq!(terms, [("slice", "\"100us\"".to_string()), ("period", "\"10ms\"".into())]);
    }

    #[test]
    fn every_policy_declares_the_parameters_that_set_a_vm_limit() {
        for spec in crate::ALL {
            let Some(limit) = spec.limit else { continue };
            for (name, _) in limit(CpuShare::from_ppm(60_000), Span::from_ms(10)) {
                let has = spec.share_fields.iter().any(|field| field.name == name);
                assert!(has, "{} has no `{name}`", spec.name);
            }
        }
    }

    #[test]
    #[allow(clippy::type_complexity)] // A table of input, message, hint.
    fn invalid_parameter_error_names_the_parameter_and_gives_a_hint() {
        let cases: &[(&[(&str, RawValue<'_>)], &str, &str)] = &[
            (&[], "`period` is missing: how often", "write period = \"10ms\""),
            (
                &[("peroid", RawValue::Text("1ms"))],
                "unknown parameter `peroid`",
                "did you mean `period`?",
            ),
            (
                &[("period", RawValue::Number("4"))],
                "`period = 4` has no unit",
                "write period = \"10ms\"",
            ),
            (
                &[("period", RawValue::Number("-4"))],
                "`period = -4` is negative",
                "write period = \"10ms\"",
            ),
            (
                &[("period", RawValue::Text("0ms"))],
                "`period = \"0ms\"` is not a duration of at least 1ns",
                "write period = \"10ms\"",
            ),
            (
                &[("place", RawValue::Text("here"))],
                "`place = \"here\"` is not one of spread, pack",
                "write place = \"spread\"",
            ),
            (
                &[("exact", RawValue::Text("yes"))],
                "`exact = \"yes\"` is not true or false",
                "write exact = true",
            ),
            (
                &[("reserve", RawValue::Text("2cpu"))],
                "`reserve = \"2cpu\"` is not an amount of CPU up to 1cpu",
                "write reserve = \"0.25cpu\"",
            ),
            (
                &[("weight", RawValue::Number("0"))],
                "`weight = 0` is not a whole number from 1 to 65535",
                "write weight = 256",
            ),
            (
                &[("cap", RawValue::Text("0cpu"))],
                "`cap = \"0cpu\"` is not an amount of CPU up to 1cpu, or none",
                "write cap = \"0.25cpu\" or \"none\"",
            ),
            (
                &[("advance", RawValue::Number("1001"))],
                "`advance = 1001` is not a whole number from 1 to 1000",
                "write advance = 1",
            ),
        ];
        for (given, says, hint) in cases {
            let error = read(given).unwrap_err();
            assert_eq!(error.to_string(), *says);
            assert_eq!(error.hint().as_deref(), Some(*hint));
        }
    }

    #[test]
    fn unknown_name_without_similar_known_name_gets_no_suggestion() {
        assert_eq!(nearest("banana", ["period", "slice"].into_iter()), None);
        assert_eq!(nearest("slcie", ["period", "slice"].into_iter()), Some("slice"));
    }
}
