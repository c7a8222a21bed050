//! Times and amounts of CPU, written as texts with units.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use slackline_units::{CpuShare, Span, WallTime};

/// Length of time with a unit, such as `"250us"`, `"10ms"` or `"2s"`. A number without a unit is
/// refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, example = "10ms"))]
pub struct Length(pub Span);

/// Amount of CPU, such as `"0.25cpu"`, `"25%"` or `"1.5cpu"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, example = "1.5cpu"))]
pub struct Share(pub CpuShare);

/// Offset of periods on the wall clock. `"3ms"` starts each period 3 ms after a multiple of the
/// period. `"none"` means that periods are not aligned with the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, example = "3ms"))]
pub struct Phase(pub Option<Span>);

/// Point in time on the wall clock, such as `"2026-12-01T18:00:00Z"`. Without a time zone offset,
/// the time is in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, example = "2026-12-01T18:00:00Z"))]
pub struct Moment(pub WallTime);

/// End time of a reservation, such as `"2026-12-01T18:00:00Z"`. `"none"` means that the reservation
/// has no end time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, example = "2026-12-01T18:00:00Z"))]
pub struct End(pub Option<WallTime>);

/// Description of a valid end time, for error messages.
const MOMENT: &str = "a date and time in UTC such as `\"2026-12-01T18:00\"`";

fn read_moment(text: &str) -> Result<WallTime, String> {
    let wrong = |why| format!("`{}` {why}; write it as `2026-12-01T18:00`, in UTC", shown(text));
    text.parse().map_err(wrong)
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Moment, D::Error> {
        from.deserialize_str(TextVisitor(MOMENT, |text| read_moment(text).map(Moment)))
    }
}

impl Serialize for End {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(until) => out.collect_str(&until),
            None => out.serialize_str("none"),
        }
    }
}

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<End, D::Error> {
        from.deserialize_str(TextVisitor(MOMENT, |text| match text {
            "none" => Ok(End(None)),
            text => read_moment(text).map(|until| End(Some(until))),
        }))
    }
}

impl Serialize for Phase {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(phase) => out.collect_str(&phase),
            None => out.serialize_str("none"),
        }
    }
}

impl<'de> Deserialize<'de> for Phase {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Phase, D::Error> {
        from.deserialize_str(TextVisitor("a time such as `\"4ms\"`, or `\"none\"`", |text| {
            match text {
                "none" => Ok(Phase(None)),
                text => text.parse().map(|phase| Phase(Some(phase))).map_err(|why| {
                    format!("`{}` {why}; write it as `4ms`, `250us` or `none`", shown(text))
                }),
            }
        }))
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Length, D::Error> {
        from.deserialize_str(TextVisitor(
            "a time such as `\"4ms\"`, `\"250us\"` or `\"2s\"`",
            |text| {
                text.parse().map(Length).map_err(|why| {
                    format!("`{}` {why}; write it as `4ms`, `250us` or `2s`", shown(text))
                })
            },
        ))
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Share, D::Error> {
        from.deserialize_str(TextVisitor(
            "an amount of CPU such as `\"25%\"` or `\"1.5cpu\"`",
            |text| {
                text.parse().map(Share).map_err(|why| {
                    format!("`{}` {why}; write it as `25%` or `1.5cpu`", shown(text))
                })
            },
        ))
    }
}

/// Returns the first 40 characters of an untrusted text, escaped for an error message.
fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// Deserializer visitor that parses a text. The first field describes the expected text for error
/// messages. The second field is the parser.
struct TextVisitor<T>(&'static str, fn(&str) -> Result<T, String>);

impl<T> de::Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        self.1(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_duration_or_share_without_unit_is_refused_with_hint() {
        let length = |text: &str| serde_json::from_str::<Length>(text).map_err(|e| e.to_string());
        assert_eq!(length("\"2.5ms\""), Ok(Length(Span::from_us(2_500))));
        assert!(length("\"2\"").unwrap_err().contains("`2` has no unit; write it as `4ms`"));
        assert!(length("2").unwrap_err().contains("expected a time such as `\"4ms\"`"));
        assert!(length("\"\\u001b[31m2\"").unwrap_err().starts_with("`\\u{1b}[31m2` "));
        let phase = |text: &str| serde_json::from_str::<Phase>(text).map_err(|e| e.to_string());
        assert_eq!(phase("\"none\""), Ok(Phase(None)));
        assert_eq!(phase("\"0ms\""), Ok(Phase(Some(Span::ZERO))));
        assert!(phase("\"3\"").unwrap_err().contains("`3` has no unit; write it as `4ms`"));
        let end = |text: &str| serde_json::from_str::<End>(text).map_err(|e| e.to_string());
        assert_eq!(end("\"none\""), Ok(End(None)));
        let until = end("\"2026-12-01T18:00\"").unwrap();
        assert_eq!(serde_json::to_string(&until).unwrap(), "\"2026-12-01T18:00:00Z\"");
        let wrong = end("\"2026-02-30\"").unwrap_err();
        assert!(wrong.starts_with("`2026-02-30` does not exist in the calendar; write"), "{wrong}");
        let share = |text: &str| serde_json::from_str::<Share>(text).map_err(|e| e.to_string());
        assert_eq!(share("\"150%\""), Ok(Share(CpuShare::from_ppm(1_500_000))));
        assert!(share("\"1.5\"").unwrap_err().contains("has no unit"));
        let written = serde_json::to_string(&(Length(Span::from_ms(10)), Share(CpuShare::ONE)));
        assert_eq!(written.unwrap(), "[\"10ms\",\"1cpu\"]");
    }
}
