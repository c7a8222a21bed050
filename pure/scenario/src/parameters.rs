//! The parameters of policies and of shares, as their policy declares them.

use slackline_policy::{Field, FieldError, Given, Spec, Values, find};
use toml::de::DeValue;

use crate::Shares;
use crate::error::{ErrorKind, Part};
use crate::table::{Item, Mistake, Table, shown};

/// The policy of that name, which stands at byte `at`.
pub(crate) fn policy(name: &str, at: usize) -> Result<&'static Spec, Mistake> {
    let unknown = || Mistake::new(at, ErrorKind::UnknownPolicy { name: shown(name) });
    find(name).ok_or_else(unknown)
}

/// Reads parameters of a policy from a table; its `name`, if there is one, is none of them.
pub(crate) fn of_policy(spec: &'static Spec, table: &Table<'_>) -> Result<Values, Mistake> {
    let mut items = table.items();
    items.retain(|item| item.key != "name");
    values(spec, Part::Policy, &items).map_err(|fault| fault.or_at(table.at))
}

/// Parameters of a policy with others in the place of some, written `rules=xen-3.0.3:tick=10ms`.
pub(crate) fn overlaid(
    spec: &'static Spec,
    values: Option<Values>,
    set: &str,
) -> Result<Values, ErrorKind> {
    let mut text = values.map(|values| values.to_string()).unwrap_or_default();
    for setting in set.split(':').filter(|setting| !setting.is_empty()) {
        let name = setting.split_once('=').map(|(name, _)| name);
        let name = name.ok_or_else(|| ErrorKind::SetsNothing { written: shown(setting), spec })?;
        if setting.contains(char::is_whitespace)
            || !spec.policy_fields.iter().any(|field| field.name == name)
        {
            return Err(ErrorKind::UnknownField { name: shown(name), spec, part: Part::Policy });
        }
        text = format!("{text} {setting}");
    }
    Values::read_written(spec.policy_fields, &text)
        .map_err(|error| ErrorKind::Field(printable(error)))
}

/// Reads every share of a domain or of a change.
pub(crate) fn shares(table: &Table<'_>) -> Result<Shares, Mistake> {
    let Some(item) = table.get("share") else { return Ok(Shares::new()) };
    let mut shares = Shares::new();
    for item in item.table("`share`")?.items() {
        let spec = policy(item.key, item.key_at)?;
        let table = item.table("a share")?;
        let values = values(spec, Part::Share, &table.items());
        let values = values.map_err(|fault| fault.or_at(table.at))?;
        (spec.promise)(&values).map_err(|why| item.fault(ErrorKind::Reservation(why)))?;
        shares.insert(spec.name, values);
    }
    Ok(shares)
}

/// A fault that may not know where it stands, because what is wrong is that something is missing.
struct Unplaced {
    at: Option<usize>,
    kind: ErrorKind,
}

impl Unplaced {
    fn or_at(self, at: usize) -> Mistake {
        Mistake::new(self.at.unwrap_or(at), self.kind)
    }
}

fn values(spec: &'static Spec, part: Part, items: &[Item<'_>]) -> Result<Values, Unplaced> {
    let fields = match part {
        Part::Policy => spec.policy_fields,
        Part::Share => spec.share_fields,
    };
    let mut given = Vec::with_capacity(items.len());
    for item in items {
        let field = fields.iter().find(|field| field.name == item.key).ok_or_else(|| {
            let kind = ErrorKind::UnknownField { name: shown(item.key), spec, part };
            Unplaced { at: Some(item.key_at), kind }
        })?;
        given.push((item.key, parameter(item, field)?));
    }
    Values::read(fields, given.into_iter()).map_err(|error| {
        let wrong = items.iter().find(|item| Some(item.key) == field_name(&error));
        Unplaced { at: wrong.map(Item::at), kind: ErrorKind::Field(printable(error)) }
    })
}

/// One parameter as it was written.
fn parameter<'a>(item: &Item<'a>, field: &'static Field) -> Result<Given<'a>, Unplaced> {
    match item.value() {
        DeValue::String(text) => Ok(Given::Text(text)),
        DeValue::Boolean(flag) => Ok(Given::Flag(*flag)),
        DeValue::Integer(_) | DeValue::Float(_) => Ok(Given::Number(item.raw())),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            let kind = ErrorKind::Field(FieldError::WrongType(field, shown(item.raw())));
            Err(Unplaced { at: Some(item.at()), kind })
        }
    }
}

/// The same error, fit for a message of one line: it quotes what was written.
fn printable(error: FieldError) -> FieldError {
    match error {
        FieldError::Unknown { name, meant } => FieldError::Unknown { name: shown(&name), meant },
        FieldError::Missing(field) => FieldError::Missing(field),
        FieldError::WrongType(field, text) => FieldError::WrongType(field, shown(&text)),
        FieldError::NotASpan(field, text, why) => FieldError::NotASpan(field, shown(&text), why),
        FieldError::NotAShare(field, text, why) => FieldError::NotAShare(field, shown(&text), why),
        FieldError::NotAChoice(field, text) => FieldError::NotAChoice(field, shown(&text)),
        FieldError::OutOfRange(field, text) => FieldError::OutOfRange(field, shown(&text)),
    }
}

fn field_name(error: &FieldError) -> Option<&str> {
    match error {
        FieldError::Unknown { name, .. } => Some(name),
        // What is missing has no place of its own.
        FieldError::Missing(_) => None,
        FieldError::WrongType(field, _)
        | FieldError::NotASpan(field, ..)
        | FieldError::NotAShare(field, ..)
        | FieldError::NotAChoice(field, _)
        | FieldError::OutOfRange(field, _) => Some(field.name),
    }
}
