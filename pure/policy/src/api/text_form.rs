//! Parameters written down and read back: `slice=6ms period=10ms exact=true`.
//!
//! Unlike a scenario this says every field, so that it means the same where defaults have changed.
//! Only what need not be, and is not, is not said: that it is none cannot change.

use core::fmt;

use crate::api::field::{Field, FieldError, Given, Kind, Value, Values};

impl fmt::Display for Values {
    /// Every field that there is and its value; what [`Values::read_written`] reads back as the
    /// same values.
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
    /// Reads values as they are displayed. What is not said takes its default.
    ///
    /// # Errors
    /// The first parameter that is unknown, missing, or not what it should be.
    pub fn read_written(fields: &'static [Field], text: &str) -> Result<Values, FieldError> {
        let kind = |name| fields.iter().find(|field| field.name == name).map(|field| field.kind);
        let given = text.split_whitespace().map(|word| {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let value = match (kind(name), value) {
                (Some(Kind::Flag), "true") => Given::Flag(true),
                (Some(Kind::Flag), "false") => Given::Flag(false),
                (Some(Kind::Weight | Kind::Whole { .. }), number) => Given::Number(number),
                (_, text) => Given::Text(text),
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

    /// Something else than the default, for each kind of field.
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
    fn whatever_a_policy_is_given_reads_back_as_it_was_written() {
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
    fn what_cannot_be_read_is_named() {
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
