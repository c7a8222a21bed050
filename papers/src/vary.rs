//! From an experiment and one of its points to a scenario.

use std::path::Path;

use slackline_scenario::Scenario;
use slackline_units::Span;
use toml::{Table, Value};

use crate::error::{FileFault, PaperError};
use crate::experiment::{AxisPoint, Edit, Experiment};

impl Experiment {
    /// The scenario at a point.
    ///
    /// # Errors
    /// When what is varied does not fit the scenario, or what comes of it is none.
    pub fn scenario(&self, point: &[usize]) -> Result<Scenario, PaperError> {
        self.scaled(point, &Table::new())
    }

    /// The scenario at a point with some costs scaled.
    pub(crate) fn scaled(&self, point: &[usize], scale: &Table) -> Result<Scenario, PaperError> {
        let text = self.table(point, scale)?.to_string();
        let folder = self.base.file.parent().unwrap_or(Path::new("")).to_owned();
        let load = |named: &str| std::fs::read_to_string(folder.join(named)).ok();
        Scenario::with_files(&text, &load).map_err(|error| {
            // What was set is checked as a whole: the place is that of the scenario as it became.
            let kind = match text.lines().nth(error.line.saturating_sub(1)) {
                Some(line) if error.line > 0 => format!("{error}, in `{}`", line.trim()),
                _ => error.to_string(),
            };
            self.bad(point, kind, error.hint())
        })
    }

    /// Something wrong at a point: told where its last place is in the file.
    pub(crate) fn bad(&self, point: &[usize], message: String, hint: Option<String>) -> PaperError {
        let place = self.axes.iter().zip(point).next_back();
        let place = place.map_or(0..0, |(axis, &place)| axis.points[place].name.span());
        let point = self.title_of(point);
        self.source.fault(&place, FileFault::BadScenario { point, message, hint })
    }

    /// What stands at a path of the scenario at a point with some costs scaled.
    pub(crate) fn value_at(
        &self,
        point: &[usize],
        scale: &Table,
        path: &str,
    ) -> Result<String, PaperError> {
        let mut table = self.table(point, scale)?;
        let found = place(&mut table, path).map(|(place, key)| place.get(&key).map(plain));
        let found =
            found.map_err(|(path, why)| self.bad(point, format!("`{path}`: {why}"), hint()));
        Ok(found?.unwrap_or_default())
    }

    /// The file of the scenario at a point.
    fn table(&self, point: &[usize], scale: &Table) -> Result<Table, PaperError> {
        let mut table: Table = self.base.parse()?;
        let places = self.axes.iter().zip(point).map(|(axis, &place)| &axis.points[place]);
        let mut edits: Vec<Edit<'_>> = places.map(AxisPoint::edit).collect();
        let points = self.points();
        for other in &self.overrides {
            let meant = self.points_at(&other.at, other.at.get_ref())?;
            if meant.iter().any(|&index| points[index] == point) {
                edits.push(other.edit());
            }
        }
        let none = Table::new();
        edits.push(Edit { lets: &none, set: &none, scale, unset: &[] });
        let lets = edits.iter().flat_map(|edit| edit.lets);
        let lets: Vec<(String, String)> =
            lets.map(|(name, value)| (format!("{{{name}}}"), plain(value))).collect();
        for edit in edits {
            apply(&mut table, edit, &lets)
                .map_err(|(path, why)| self.bad(point, format!("`{path}`: {why}"), hint()))?;
        }
        Ok(table)
    }
}

fn hint() -> Option<String> {
    Some("write `domain.NAME.KEY`, `host.KEY`, or `policy` for all of a table".to_owned())
}

type Unfit = (String, String);

fn apply(table: &mut Table, edit: Edit<'_>, lets: &[(String, String)]) -> Result<(), Unfit> {
    for path in edit.unset {
        let (place, key) = place(table, path)?;
        place.remove(&key).ok_or_else(|| (path.clone(), "it is not there".to_owned()))?;
    }
    for (path, value) in edit.set {
        let value = filled(value, lets).map_err(|why| (path.clone(), why))?;
        let (place, key) = place(table, path)?;
        place.insert(key, value);
    }
    for (path, by) in edit.scale {
        let (place, key) = place(table, path)?;
        let value = place.get(&key).ok_or_else(|| (path.clone(), "it is not there".to_owned()))?;
        let scaled = scaled(value, by).map_err(|why| (path.clone(), why))?;
        place.insert(key, scaled);
    }
    Ok(())
}

/// The table that a path leads into, and the key there. Of an array of tables the one of that name,
/// or that is for somebody of that name.
fn place<'a>(table: &'a mut Table, path: &str) -> Result<(&'a mut Table, String), Unfit> {
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
                found.ok_or_else(|| (path.to_owned(), format!("no {part} is called `{name}`")))?
            }
            _ => return Err((path.to_owned(), format!("`{part}` is not a table"))),
        };
    }
    Ok((table, key))
}

/// A value with what stands in braces filled in, and parts of a length of time worked out.
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

/// `25` and `10ms` to `2500000ns`: some percent of a length of time.
fn part(percent: &str, whole: &str) -> Result<String, String> {
    let percent: f64 = percent.trim().parse().map_err(|_| format!("`{percent}` is no number"))?;
    let whole: Span = whole.trim().parse().map_err(|why| format!("`{whole}` {why}"))?;
    Ok(format!("{}ns", rounded(whole.ns() as f64 * percent / 100.0)))
}

fn scaled(value: &Value, by: &Value) -> Result<Value, String> {
    let percent = by.as_str().and_then(|text| text.strip_suffix('%'));
    let percent = percent.and_then(|text| text.trim().parse::<f64>().ok());
    let percent = percent.ok_or_else(|| format!("`{by}` is no percentage"))?;
    match value {
        // Every length in it: `4ms`, `uniform 1ms 3ms`.
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
        _ => Err(format!("`{value}` is neither a number nor a length of time")),
    }
}

/// The nearest whole number; both of its uses are lengths and counts, which are never negative.
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
    fn a_part_of_every_length_is_taken() {
        let half = |value: &str| scaled(&text(value), &text("50%"));
        assert_eq!(half("4ms"), Ok(text("2000000ns")));
        assert_eq!(half("uniform 1us 3us"), Ok(text("uniform 500ns 1500ns")));
        assert_eq!(scaled(&Value::Integer(950), &text("200%")), Ok(Value::Integer(1900)));
        assert!(scaled(&Value::Boolean(true), &text("50%")).is_err());
    }

    #[test]
    fn names_in_braces_are_filled_in_before_parts_are_taken() {
        let lets = [("{period}".to_owned(), "10ms".to_owned())];
        assert_eq!(filled(&text("25% of {period}"), &lets), Ok(text("2500000ns")));
        assert!(filled(&text("25% of {span}"), &lets).is_err());
    }
}
