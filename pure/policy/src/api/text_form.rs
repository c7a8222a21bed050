//! Text form of parameters, such as `slice=6ms period=10ms exact=true`.
//!
//! A scenario may omit fields, but the text form names every field, so it keeps its meaning if
//! defaults change. The one exception: an optional duration that is `none` is left out, because
//! `none` is always its default.

use core::fmt;

use crate::api::field::{Field, FieldError, Kind, RawValue, Value, Values};

impl fmt::Display for Values {
    /// Writes every field with its value. [`Values::read_written`] reads the same values back.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = self.iter().filter(|(_, value)| *value != Value::MaybeSpan(None));
        for (index, (field, value)) in said.enumerate() {
            let gap = if index == 0 { "" } else { " " };
            write!(out, "{gap}{}={value}", field.name)?;
        }
        Ok(())
    }
}

impl Values {
    /// Reads values from their text form. A field that the text does not name takes its default.
    ///
    /// # Errors
    /// If a parameter is unknown, missing or invalid. The error names the first such parameter.
    pub fn read_written(fields: &'static [Field], text: &str) -> Result<Values, FieldError> {
        let kind = |name| fields.iter().find(|field| field.name == name).map(|field| field.kind);
        let given = text.split_whitespace().map(|word| {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let value = match (kind(name), value) {
                (Some(Kind::Flag), "true") => RawValue::Flag(true),
                (Some(Kind::Flag), "false") => RawValue::Flag(false),
                (Some(Kind::Weight | Kind::Whole { .. }), number) => RawValue::Number(number),
                (_, text) => RawValue::Text(text),
            };
            (name, value)
        });
        Values::read(fields, given)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::ALL;

    /// Returns a value that differs from the default, as text, for each kind of field.
    fn other(kind: Kind) -> alloc::string::String {
        match kind {
            Kind::Span { least, most } if least == most => least.to_string(),
            Kind::Span { least, .. } => {
                (least + slackline_units::Span::from_ns(1_234_567)).to_string()
            }
            Kind::MaybeSpan => "1.234ms".into(),
            Kind::Share { .. } | Kind::Cap { .. } => "0.012345cpu".into(),
            Kind::Weight => "77".into(),
            Kind::Whole { least, most } => (least + 1).min(most).to_string(),
            Kind::Flag => "true".into(),
            Kind::Choice(words) => words.last().copied().unwrap_or_default().into(),
        }
    }

    #[test]
    fn parameters_of_every_policy_are_unchanged_if_printed_and_parsed() {
        for spec in ALL {
            for fields in [spec.policy_fields, spec.share_fields] {
                let text = |field: &Field| alloc::format!("{}={}", field.name, other(field.kind));
                let text = fields.iter().map(text).collect::<alloc::vec::Vec<_>>().join(" ");
                let values = Values::read_written(fields, &text).unwrap();
                assert_eq!(values.to_string(), text, "{}", spec.name);
                assert_eq!(Values::read_written(fields, &values.to_string()), Ok(values));
            }
        }
    }

    #[test]
    fn error_about_an_unparsable_parameter_names_the_parameter() {
        let spec = crate::find("edf").unwrap();
        let read = |text| Values::read_written(spec.share_fields, text).unwrap_err().to_string();
        assert_eq!(read("slcie=4ms"), "unknown parameter `slcie`");
        assert_eq!(read("slice=4ms period"), "`period = \"\"` is not a duration");
        assert_eq!(
            read("slice=4ms period=9ms exact=yes"),
            "`exact = \"yes\"` is not true or false"
        );
    }
}
