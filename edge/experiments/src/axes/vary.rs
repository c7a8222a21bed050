//! Changes to the text of a scenario: setting, scaling and removing of values by their paths.

use slackline_units::Span;
use thiserror::Error;
use toml::{Table, Value};

use super::Edit;

/// Path of the seed. All points of a scenario are run with the same seeds, so no point has a seed
/// of its own.
const SEED: &str = "seed";

/// A path or value that cannot be used in the scenario.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{path}`: {why}")]
pub struct PathError {
    /// Path as the user wrote it.
    pub path: String,
    /// Reason why the path or value cannot be used.
    pub why: String,
}

impl PathError {
    fn new(path: &str, why: impl Into<String>) -> PathError {
        PathError { path: path.into(), why: why.into() }
    }

    /// Returns one line of advice on how to correct the error.
    #[must_use]
    pub fn hint(&self) -> String {
        match self.path.as_str() {
            SEED => "drop it, and choose the seeds for all points, e.g. with --seed or --seeds",
            _ => "write `domain.NAME.KEY`, `host.KEY`, or `policy` for the whole table",
        }
        .into()
    }
}

/// Applies all edits in order. A variable that one edit defines is available in all edits.
///
/// # Errors
/// If a path or a value cannot be used in the scenario.
pub fn vary(table: &mut Table, edits: &[Edit<'_>]) -> Result<(), PathError> {
    let lets = edits.iter().flat_map(|edit| edit.lets);
    let lets: Vec<(String, String)> =
        lets.map(|(name, value)| (format!("{{{name}}}"), plain(value))).collect();
    edits.iter().try_for_each(|&edit| apply(table, edit, &lets))
}

/// Returns the value at a path as text. Empty if there is no value at the path.
///
/// # Errors
/// If the path is not valid in the scenario.
pub fn value_at(table: &mut Table, path: &str) -> Result<String, PathError> {
    let (place, key) = place(table, path)?;
    Ok(place.get(&key).map(plain).unwrap_or_default())
}

fn apply(table: &mut Table, edit: Edit<'_>, lets: &[(String, String)]) -> Result<(), PathError> {
    let paths = edit.unset.iter().chain(edit.set.keys()).chain(edit.scale.keys());
    if paths.into_iter().any(|path| path == SEED) {
        return Err(PathError::new(SEED, "cannot change the seed: all points have the same seeds"));
    }
    for path in edit.unset {
        let (place, key) = place(table, path)?;
        place.remove(&key).ok_or_else(|| PathError::new(path, "the scenario has no such key"))?;
    }
    for (path, value) in edit.set {
        let value = filled(value, lets).map_err(|why| PathError::new(path, why))?;
        let (place, key) = place(table, path)?;
        place.insert(key, value);
    }
    for (path, by) in edit.scale {
        let (place, key) = place(table, path)?;
        let value =
            place.get(&key).ok_or_else(|| PathError::new(path, "the scenario has no such key"))?;
        let scaled = scaled(value, by).map_err(|why| PathError::new(path, why))?;
        place.insert(key, scaled);
    }
    Ok(())
}

/// Returns the table that a path leads to, and the last key of the path. In an array of tables, a
/// table is found by its name or by the name of its domain.
fn place<'a>(table: &'a mut Table, path: &str) -> Result<(&'a mut Table, String), PathError> {
    let mut parts: Vec<&str> = path.split('.').collect();
    let key = parts.pop().unwrap_or_default().to_owned();
    let mut table = table;
    let mut parts = parts.into_iter();
    while let Some(part) = parts.next() {
        let entry = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        table = match entry {
            Value::Table(inner) => inner,
            Value::Array(elements) => {
                let name = parts.next().unwrap_or(&key);
                let is_it = |element: &&mut Table| {
                    let of = element.get("name").or_else(|| element.get("to"));
                    of.and_then(Value::as_str) == Some(name)
                };
                let mut tables = elements.iter_mut().filter_map(Value::as_table_mut);
                let found = tables.find(|element| is_it(element));
                found.ok_or_else(|| PathError::new(path, format!("there is no {part} `{name}`")))?
            }
            _ => return Err(PathError::new(path, format!("`{part}` is not a table"))),
        };
    }
    Ok((table, key))
}

/// Returns a value in which variables are replaced and percentages of durations are computed.
fn filled(value: &Value, lets: &[(String, String)]) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => {
            let fill = |text: String, (name, value): &(String, String)| text.replace(name, value);
            let text = lets.iter().fold(text.clone(), fill);
            match text.split_once("% of ") {
                Some((percent, whole)) => Value::String(part(percent, whole)?),
                None => Value::String(text),
            }
        }
        Value::Array(values) => {
            Value::Array(values.iter().map(|value| filled(value, lets)).collect::<Result<_, _>>()?)
        }
        Value::Table(table) => {
            let entry = |(key, value): (&String, &Value)| Ok((key.clone(), filled(value, lets)?));
            Value::Table(table.iter().map(entry).collect::<Result<_, String>>()?)
        }
        other => other.clone(),
    })
}

/// Returns a percentage of a duration: for `25` and `10ms` it is `2500000ns`. The duration can also
/// be a percentage of another duration.
fn part(percent: &str, whole: &str) -> Result<String, String> {
    let percent: f64 =
        percent.trim().parse().map_err(|_| format!("`{percent}` is not a number"))?;
    let whole = match whole.split_once("% of ") {
        Some((percent, whole)) => part(percent, whole)?,
        None => whole.to_owned(),
    };
    let whole: Span = whole.trim().parse().map_err(|why| format!("`{whole}` {why}"))?;
    Ok(format!("{}ns", rounded(whole.ns() as f64 * percent / 100.0)))
}

fn scaled(value: &Value, by: &Value) -> Result<Value, String> {
    let percent = by.as_str().and_then(|text| text.strip_suffix('%'));
    let percent = percent.and_then(|text| text.trim().parse::<f64>().ok());
    let percent = percent.ok_or_else(|| format!("`{by}` is not a percentage"))?;
    match value {
        // All durations in the text are scaled, as in `uniform 1ms 3ms`.
        Value::String(text) => {
            let percent = percent.to_string();
            let word = |word: &str| match word.parse::<Span>() {
                Ok(_) => part(&percent, word),
                Err(_) => Ok(word.to_owned()),
            };
            let words = text.split_whitespace().map(word).collect::<Result<Vec<_>, _>>()?;
            Ok(Value::String(words.join(" ")))
        }
        Value::Integer(number) => {
            let scaled = rounded(*number as f64 * percent / 100.0);
            Ok(Value::Integer(i64::try_from(scaled).unwrap_or(i64::MAX)))
        }
        Value::Float(number) => Ok(Value::Float(number * percent / 100.0)),
        _ => Err(format!("`{value}` is neither a number nor a time")),
    }
}

/// Rounds a non-negative number to the nearest integer.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn rounded(number: f64) -> u64 {
    number.max(0.0).round() as u64
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Value {
        Value::String(value.to_owned())
    }

    #[test]
    fn percentage_in_scenario_axis_scales_every_duration_in_the_value() {
        let half = |value: &str| scaled(&text(value), &text("50%"));
        assert_eq!(half("4ms"), Ok(text("2000000ns")));
        assert_eq!(half("uniform 1us 3us"), Ok(text("uniform 500ns 1500ns")));
        assert_eq!(scaled(&Value::Integer(950), &text("200%")), Ok(Value::Integer(1900)));
        assert!(scaled(&Value::Boolean(true), &text("50%")).is_err());
    }

    /// Runs at all points have the same seeds, so a seed at a point would have no effect.
    #[test]
    fn scenario_axis_point_that_changes_the_seed_is_refused() {
        let seed: Table = [("seed".to_owned(), Value::Integer(7))].into_iter().collect();
        let scaled: Table = [("seed".to_owned(), text("200%"))].into_iter().collect();
        let none = Table::new();
        let paths = ["seed".to_owned()];
        let edit = |set, scale, unset| Edit { lets: &none, set, scale, unset };
        for edit in [edit(&seed, &none, &[]), edit(&none, &scaled, &[]), edit(&none, &none, &paths)]
        {
            let mut scenario = seed.clone();
            let refused = vary(&mut scenario, &[edit]).unwrap_err();
            assert!(refused.to_string().starts_with("`seed`: cannot change"), "{refused}");
            assert!(refused.hint().contains("--seeds"), "{}", refused.hint());
        }
    }

    #[test]
    fn scenario_axis_variables_are_replaced_before_percentages_apply() {
        let lets = [("{period}".to_owned(), "10ms".to_owned())];
        assert_eq!(filled(&text("25% of {period}"), &lets), Ok(text("2500000ns")));
        let nested = filled(&text("50% of 25% of {period}"), &lets);
        assert_eq!(nested, Ok(text("1250000ns")));
        assert!(filled(&text("25% of {span}"), &lets).is_err());
    }
}
