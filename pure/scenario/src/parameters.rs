//! Parameters of policies and of vCPUs, as their policy declares them.

use slackline_policy::{Field, FieldError, RawValue, Spec, Values, find};
use slackline_units::{CpuShare, Span};
use toml::de::DeValue;

use crate::Shares;
use crate::error::{ErrorKind, Part};
use crate::table::{Item, Mistake, Table, shown};

/// Returns the policy with this name. `at` is the position of the name in the file, in bytes, for
/// errors.
pub(crate) fn policy(name: &str, at: usize) -> Result<&'static Spec, Mistake> {
    let unknown = || Mistake::new(at, ErrorKind::UnknownPolicy { name: shown(name) });
    find(name).ok_or_else(unknown)
}

/// Reads the parameters of a policy from a table. The key `name`, which selects the policy, is
/// skipped.
pub(crate) fn of_policy(spec: &'static Spec, table: &Table<'_>) -> Result<Values, Mistake> {
    let mut items = table.items();
    items.retain(|item| item.key != "name");
    values(spec, Part::Policy, &items, &[]).map_err(|fault| fault.or_at(table.at))
}

/// Returns the parameters of a policy: those in `set`, and for all others the values in `values`,
/// or the defaults if `values` is `None`. `set` has the form `rules=xen-3.0.3:tick=10ms`.
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
    let values = Values::read_written(spec.policy_fields, &text);
    let values = values.and_then(|values| without_conflict(spec, values));
    values.map_err(|error| ErrorKind::Field(printable(error)))
}

/// Returns the parameters of a policy if they do not conflict. Otherwise the error describes the
/// conflict.
fn without_conflict(spec: &Spec, values: Values) -> Result<Values, FieldError> {
    (spec.conflict)(&values).map_or(Ok(values), Err)
}

/// Field `cpu`: CPU time reserved for all vCPUs of a domain together.
const TOGETHER: &[Field] = &[Field::share(
    CPU,
    "1cpu",
    CpuShare::from_ppm(u32::MAX),
    "CPU for all vCPUs of the domain together",
)];
const CPU: &str = "cpu";

/// Receiver of the vCPU parameters in a table.
#[derive(Clone, Copy)]
pub(crate) enum ShareOwner {
    /// A vCPU. The number is the number of vCPUs of its domain.
    Vcpu(usize),
    /// All vCPUs of a domain. The number is the number of these vCPUs.
    Domain(usize),
}

/// Reads vCPU parameters from the table of a domain, a vCPU or a change, for each policy that the
/// table names.
pub(crate) fn shares(table: &Table<'_>, whose: ShareOwner) -> Result<Shares, Mistake> {
    let Some(item) = table.get("share") else { return Ok(Shares::new()) };
    let mut shares = Shares::new();
    for item in item.table("`share`")?.items() {
        let spec = policy(item.key, item.key_at)?;
        let table = item.table("a share")?;
        let items = table.items();
        let cpu = items.iter().find(|item| item.key == CPU);
        let values = match cpu.zip(spec.together) {
            Some((cpu, spread)) => together(spec, (cpu, spread), &items, whose),
            None => values(spec, Part::Share, &items, &[]),
        };
        let values = values.map_err(|fault| fault.or_at(table.at))?;
        (spec.promise)(&values).map_err(|why| item.fault(ErrorKind::Reservation(why)))?;
        shares.insert(spec.name, values);
    }
    Ok(shares)
}

/// A fault in the parameters of a vCPU. Its position is unknown if a required key is missing.
struct UnplacedMistake {
    at: Option<usize>,
    kind: ErrorKind,
}

impl UnplacedMistake {
    fn or_at(self, at: usize) -> Mistake {
        Mistake::new(self.at.unwrap_or(at), self.kind)
    }
}

/// Reads vCPU parameters that have `cpu` in place of `slice`. Each vCPU gets an equal part of
/// `cpu`. Its unused budget is lent to the other vCPUs of the domain (`spread = "use"`).
fn together(
    spec: &'static Spec,
    (cpu, (spread, word)): (&Item<'_>, (&'static str, &'static str)),
    items: &[Item<'_>],
    whose: ShareOwner,
) -> Result<Values, UnplacedMistake> {
    let wrong = |item: &Item<'_>, kind| UnplacedMistake { at: Some(item.at()), kind };
    if let Some(item) = items.iter().find(|item| item.key == "slice") {
        let kind = ErrorKind::SaidTwice { one: CPU, other: "slice" };
        return Err(UnplacedMistake { at: Some(item.key_at), kind });
    }
    let vcpus = match whose {
        ShareOwner::Domain(vcpus) => vcpus,
        ShareOwner::Vcpu(vcpus) => return Err(wrong(cpu, ErrorKind::CpuOfOne { vcpus })),
    };
    let given = parameter(cpu, &TOGETHER[0])?;
    let share = Values::read(TOGETHER, [(CPU, given)].into_iter());
    let share = share.map_err(|error| wrong(cpu, ErrorKind::Field(printable(error))))?;
    let share = share.share(&TOGETHER[0]);
    let others: Vec<Item<'_>> = items.iter().filter(|item| item.key != CPU).copied().collect();
    let is_said = others.iter().any(|item| item.key == spread);
    let read = |slice: &str| {
        let (slice, spread) = (("slice", RawValue::Text(slice)), (spread, RawValue::Text(word)));
        let more = if is_said || vcpus == 1 { vec![slice] } else { vec![slice, spread] };
        values(spec, Part::Share, &others, &more)
    };
    // The period is taken from the policy's defaults if the file does not set it.
    let period = spec.share_fields.iter().find(|field| field.name == "period");
    let period = read("1ns")?.span(period.expect("a policy with slices has a period"));
    let written = cpu.written();
    match even(share, period, vcpus) {
        slice if slice > period => Err(wrong(cpu, ErrorKind::MoreThanVcpus { written, vcpus })),
        Span::ZERO => Err(wrong(cpu, ErrorKind::NothingEach { written, vcpus, period })),
        slice => read(&slice.to_string()),
    }
}

/// Returns the slice of each vCPU in a period: an equal part of `share`, rounded down.
fn even(share: CpuShare, period: Span, vcpus: usize) -> Span {
    let ns = u128::from(share.ppm()) * u128::from(period.ns()) / (1_000_000 * vcpus as u128);
    Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Reads parameters from the file, and adds the parameters in `more`.
fn values(
    spec: &'static Spec,
    part: Part,
    items: &[Item<'_>],
    more: &[(&str, RawValue<'_>)],
) -> Result<Values, UnplacedMistake> {
    let fields = match part {
        Part::Policy => spec.policy_fields,
        Part::Share => spec.share_fields,
    };
    let mut given = Vec::with_capacity(items.len());
    for item in items {
        let field = fields.iter().find(|field| field.name == item.key).ok_or_else(|| {
            let kind = ErrorKind::UnknownField { name: shown(item.key), spec, part };
            UnplacedMistake { at: Some(item.key_at), kind }
        })?;
        given.push((item.key, parameter(item, field)?));
    }
    let values = Values::read(fields, given.into_iter().chain(more.iter().copied()));
    let values = values.and_then(|values| match part {
        Part::Policy => without_conflict(spec, values),
        Part::Share => Ok(values),
    });
    values.map_err(|error| {
        let wrong = items.iter().find(|item| Some(item.key) == field_name(&error));
        UnplacedMistake { at: wrong.map(Item::at), kind: ErrorKind::Field(printable(error)) }
    })
}

/// Reads one parameter as written in the file.
fn parameter<'a>(item: &Item<'a>, field: &'static Field) -> Result<RawValue<'a>, UnplacedMistake> {
    match item.value() {
        DeValue::String(text) => Ok(RawValue::Text(text)),
        DeValue::Boolean(flag) => Ok(RawValue::Flag(*flag)),
        DeValue::Integer(_) | DeValue::Float(_) => Ok(RawValue::Number(item.raw())),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            let kind = ErrorKind::Field(FieldError::WrongType(field, shown(item.raw())));
            Err(UnplacedMistake { at: Some(item.at()), kind })
        }
    }
}

/// Returns the error with all quoted text made fit for a message of one line.
fn printable(error: FieldError) -> FieldError {
    match error {
        FieldError::Unknown { name, meant } => FieldError::Unknown { name: shown(&name), meant },
        FieldError::Missing(field) => FieldError::Missing(field),
        FieldError::WrongType(field, text) => FieldError::WrongType(field, shown(&text)),
        FieldError::NotASpan(field, text, why) => FieldError::NotASpan(field, shown(&text), why),
        FieldError::NotAShare(field, text, why) => FieldError::NotAShare(field, shown(&text), why),
        FieldError::NotAChoice(field, text) => FieldError::NotAChoice(field, shown(&text)),
        FieldError::OutOfRange(field, text) => FieldError::OutOfRange(field, shown(&text)),
        FieldError::Alone(field, word, needs) => FieldError::Alone(field, word, needs),
    }
}

fn field_name(error: &FieldError) -> Option<&str> {
    match error {
        FieldError::Unknown { name, .. } => Some(name),
        // A missing parameter has no position in the file.
        FieldError::Missing(_) => None,
        FieldError::WrongType(field, _)
        | FieldError::NotASpan(field, ..)
        | FieldError::NotAShare(field, ..)
        | FieldError::NotAChoice(field, _)
        | FieldError::OutOfRange(field, _)
        | FieldError::Alone(field, ..) => Some(field.name),
    }
}
