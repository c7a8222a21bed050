//! Changes to many reservations at once. Either a file lists the changes, and all or none of them
//! are made. Or a pattern of names selects the reservations to change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use slackline_control::client::Client;
use slackline_control::{
    AppliedChange, AppliedPlan, Canary, Length, Machine, OMITTED, PlannedChange, Prediction,
    Reservation, ReservationParameters,
};
use slackline_units::Span;
use toml::de::{DeTable, DeValue};

use super::args::{Apply, UndoArgs};
use super::{all, answer, connect, show};
use crate::grid::position;
use crate::input;
use crate::problem::Problem;
use crate::terminal;

/// Example of an `apply` file, shown in error messages.
const EXAMPLE: &str = "write a table for each reservation, e.g. [web] with cpu = \"30%\"";

/// Action that the daemon reports for a reservation that already has the parameters in the file.
const KEEP: &str = "keep";

pub(crate) fn apply(args: &Apply) -> Result<(), Problem> {
    let PlanFile { mut reservations, predictions, revision } = read(&args.file)?;
    let mut client = connect(&args.at)?;
    complete_new(&args.file, &mut client, &mut reservations)?;
    let watch_length = Length(args.watch);
    let canary = Canary { watch: watch_length, revision, predictions: predictions.clone() };
    let canary = args.canary.then_some(canary);
    let revision = revision.filter(|_| !args.canary);
    if args.canary && predictions.is_empty() {
        return Err(Problem::BadOption {
            message: format!("{}: the plan has no predictions for --canary", args.file.display()),
            hint: Some("save a plan with `slackline whatif --since 30s --save PLAN`".into()),
        });
    }
    let (prune, dry_run) = (args.prune, args.dry_run);
    let list = slackline_control::Apply { reservations, prune, dry_run, revision, canary };
    let (changes, text) = client.apply(&list)?;
    if args.canary {
        return follow(args, &mut client, predictions);
    }
    if !predictions.is_empty() && !args.dry_run {
        match changes.iter().all(|one| one.action == KEEP) {
            // The predictions of a plan that is applied again would count twice.
            true => terminal::tell(
                "note:  the plan changes nothing, so its predictions are not recorded\n",
            ),
            false => watch(&mut client, &predictions),
        }
    }
    answer(&args.at, &text, || shown(&changes, args.dry_run))
}

pub(crate) fn undo(args: &UndoArgs) -> Result<(), Problem> {
    let (changes, text) = connect(&args.at)?.undo()?;
    answer(&args.at, &text, || shown(&changes, false))
}

/// Interval at which the stage of a plan is read.
const STAGE_INTERVAL: Duration = Duration::from_millis(250);

/// Shows the stages of a plan until the plan ends, and asks the service to compare the predictions
/// with what happens. The service executes the plan even if this command is stopped.
fn follow(args: &Apply, client: &mut Client, rest: Vec<Prediction>) -> Result<(), Problem> {
    let (at, mut rest, mut is_told) = (&args.at, rest, false);
    loop {
        let (plan, text) = client.plan()?;
        let Some(plan) = plan else {
            return Err(Problem::PlanEnded { message: "undone by its user".into() });
        };
        if let (Some(first), false) = (&plan.first, is_told) {
            is_told = true;
            let is_first = |one: &mut Prediction| is_of(&one.vcpu, first);
            let now: Vec<Prediction> = rest.extract_if(.., is_first).collect();
            let now: Vec<Prediction> =
                now.into_iter().map(|one| within_watch(one, args.watch)).collect();
            watch(client, &now);
            if !at.json {
                let waiting = plan.changes.iter().filter(|change| !change.is_done).count();
                let time = args.watch;
                let text = format!(
                    "{first} is changed and watched for {time}; waiting changes: {waiting}\n"
                );
                terminal::say(&text)?;
            }
        }
        match plan.stage.as_str() {
            "watching" => std::thread::sleep(STAGE_INTERVAL),
            "done" => {
                if !rest.is_empty() {
                    watch(client, &rest);
                }
                return answer(at, &text, || planned(&plan));
            }
            stage => {
                let why = plan.why.as_deref().unwrap_or_default();
                return Err(Problem::PlanEnded { message: format!("{stage}: {why}") });
            }
        }
    }
}

/// Returns true if a vCPU with this name belongs to the VM.
fn is_of(vcpu: &str, vm: &str) -> bool {
    vcpu == vm || vcpu.strip_prefix(vm).is_some_and(|rest| rest.starts_with('.'))
}

/// Shortens a prediction to the time for which the first VM is watched, because the change may be
/// undone after that time.
fn within_watch(one: Prediction, watch: Span) -> Prediction {
    let length_ns = one.length_ns.min(watch.ns().saturating_sub(100_000_000));
    let part = |count: u64| {
        let scaled = u128::from(count) * u128::from(length_ns);
        let scaled = scaled.div_ceil(u128::from(one.length_ns.max(1)));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    };
    let missed = one.missed.map(|(least, most)| (least.min(part(least)), part(most)));
    Prediction { length_ns, missed, ..one }
}

/// Returns a table of a plan's changes, and a line that counts them.
fn planned(plan: &AppliedPlan) -> String {
    let action = |change: &PlannedChange| match (&change.before, &change.after) {
        (None, _) => "create",
        (_, None) => "release",
        _ => "change",
    };
    let changes = plan.changes.iter().map(|change| AppliedChange {
        name: change.name.clone(),
        action: action(change).into(),
        before: change.before.clone(),
        after: change.after.clone(),
        revision: change.revision,
    });
    shown(&changes.collect::<Vec<AppliedChange>>(), false)
}

/// Asks the service to compare predictions with what happens. Prints a note if the service refuses,
/// for example because it has no flight recorder.
fn watch(client: &mut Client, predictions: &[Prediction]) {
    if let Err(error) = client.predict(predictions) {
        terminal::tell(&format!(
            "note:  the predictions of this plan will not be compared with what happens: {error}\n"
        ));
    }
}

/// Key of the predictions in a reservation's table of a plan file.
const PREDICTED: &str = "predicted";

/// Predictions in a reservation's table of a plan file. The other keys of the table are the
/// reservation's parameters.
#[derive(Deserialize)]
struct ReservationPredictions {
    #[serde(default)]
    predicted: Vec<Prediction>,
}

/// Key, in a plan file, of the revision of the host for which the plan was made. No reservation has
/// this name.
pub(crate) const REVISION: &str = "_revision";

/// Contents of a file of reservations.
struct PlanFile {
    reservations: BTreeMap<String, ReservationParameters>,
    predictions: Vec<Prediction>,
    revision: Option<u64>,
}

/// Reads the reservations in a file, by name, and the predictions for all their vCPUs.
fn read(file: &Path) -> Result<PlanFile, Problem> {
    let text = input::text(file)?;
    let at = |start: usize, message: String| {
        let ((line, column), hint) = (position(&text, start), Some(EXAMPLE.to_owned()));
        Problem::BadAxis { file: file.into(), line, column, message, hint }
    };
    let bad = |error: toml::de::Error| {
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        at(error.span().map_or(0, |span| span.start), message)
    };
    let mut tables = DeTable::parse(&text).map_err(bad)?;
    tables.get_mut().remove(REVISION);
    for (_, table) in tables.get_mut().iter_mut() {
        if let DeValue::Table(table) = table.get_mut() {
            table.remove(PREDICTED);
        }
    }
    let reservations = BTreeMap::deserialize(toml::Deserializer::from(tables)).map_err(bad)?;
    let mut all = DeTable::parse(&text).map_err(bad)?;
    let revision = all.get_mut().remove(REVISION).map(|value| {
        let number: Option<u64> = match value.get_ref() {
            DeValue::Integer(number) => number.as_str().parse().ok(),
            _ => None,
        };
        let message = format!("`{REVISION}` is not a whole number of at least 0");
        number.ok_or_else(|| at(value.span().start, message))
    });
    let revision = revision.transpose()?;
    let predicted: BTreeMap<String, ReservationPredictions> =
        BTreeMap::deserialize(toml::Deserializer::from(all)).map_err(bad)?;
    let predictions = predicted.into_values().flat_map(|one| one.predicted).collect();
    Ok(PlanFile { reservations, predictions, revision })
}

/// Adds the binding and the number of vCPUs of the VM to new reservations that do not state them.
fn complete_new(
    file: &Path,
    client: &mut Client,
    reservations: &mut BTreeMap<String, ReservationParameters>,
) -> Result<(), Problem> {
    let known = all(client)?;
    let is_known = |name: &str| known.iter().any(|one| one.name == name);
    let is_whole =
        |wanted: &ReservationParameters| wanted.binding.is_some() && wanted.vcpus.is_some();
    let incomplete = reservations.iter_mut();
    let incomplete: Vec<(&String, &mut ReservationParameters)> =
        incomplete.filter(|(name, wanted)| !is_known(name) && !is_whole(wanted)).collect();
    if incomplete.is_empty() {
        return Ok(());
    }
    let (machines, _) = client.find(None)?;
    let is_cut = machines.iter().any(|machine| machine.kind == OMITTED);
    for (name, wanted) in incomplete {
        let sought = wanted.binding.as_deref().unwrap_or(name);
        let more = if is_cut { client.find(Some(sought))?.0 } else { Vec::new() };
        let machines = if is_cut { &more } else { &machines };
        let machine = vm_of(file, name, wanted, machines)?;
        wanted.binding.get_or_insert_with(|| machine.binding.clone());
        let vcpus = u16::try_from(machine.vcpus.len().max(1)).unwrap_or(u16::MAX);
        wanted.vcpus.get_or_insert(vcpus);
    }
    Ok(())
}

/// Returns the VM for a new reservation. Fails unless exactly one VM matches.
fn vm_of<'a>(
    file: &Path,
    name: &str,
    wanted: &ReservationParameters,
    machines: &'a [Machine],
) -> Result<&'a Machine, Problem> {
    let is_it = |machine: &&Machine| match &wanted.binding {
        Some(binding) => machine.binding == *binding,
        None => machine.name == name,
    };
    let found: Vec<&Machine> = machines.iter().filter(is_it).collect();
    let sought = wanted.binding.as_deref().unwrap_or(name);
    let refused = |why: String, hint: &str| Problem::BadOption {
        message: format!("{}: {name}: {why}", file.display()),
        hint: Some(hint.to_owned()),
    };
    match found[..] {
        [one] => Ok(one),
        [] => Err(refused(
            format!("cannot find {sought} on this host"),
            "start the VM first, or give `for` and `vcpus`; `slackline find` lists VMs",
        )),
        _ => Err(refused(
            format!("{} VMs are called {sought}", found.len()),
            "choose one with `for`; `slackline find` lists their bindings",
        )),
    }
}

/// Returns a table of the changes, and a line with their number.
fn shown(changes: &[AppliedChange], is_dry_run: bool) -> String {
    let changed: Vec<&AppliedChange> = changes.iter().filter(|one| one.action != KEEP).collect();
    let table = if changed.is_empty() { String::new() } else { show::changes(&changed) };
    let count = |action: &str| changes.iter().filter(|one| one.action == action).count();
    let note = if is_dry_run { "; dry run: nothing was changed" } else { "" };
    format!(
        "{table}create {}, change {}, release {}, keep {}{note}\n",
        count("create"),
        count("change"),
        count("release"),
        count(KEEP),
    )
}

/// Formats reservations as a file for `slackline apply`. Reservations that the caller may not see
/// are left out, because the caller cannot change them.
pub(super) fn as_file(all: &[Reservation]) -> String {
    let mut text = String::from("# Reservations, for `slackline apply FILE`.\n");
    let (hidden, shown): (Vec<&Reservation>, Vec<&Reservation>) =
        all.iter().partition(|one| one.is_hidden());
    if !hidden.is_empty() {
        let _ = writeln!(text, "# Reservations of other owners, left out: {}.", hidden.len());
    }
    for one in shown {
        let binding = toml::Value::from(one.binding.as_str());
        let _ = write!(text, "\n{}for = {binding}\nuser = {}\n", as_table(one), one.user);
    }
    text
}

/// Formats the parameters of a reservation as a table for `slackline apply`. The table names the
/// mechanism, so that the default mechanism of the daemon does not replace it.
pub(crate) fn as_table(one: &Reservation) -> String {
    let (slice, period) = (one.slice.0, one.period.0);
    let mut text = format!("[{}]\n", key(&one.name));
    if one.by_use {
        let ppm = u128::from(one.slice_ns) * u128::from(one.vcpus) * 1_000_000
            / u128::from(one.period_ns.max(1));
        let (whole, millionths) = (ppm / 1_000_000, ppm % 1_000_000);
        let _ = writeln!(text, "cpu = \"{whole}.{millionths:06}cpu\"\nperiod = \"{period}\"");
    } else {
        let _ = writeln!(text, "slice = \"{slice}\"\nperiod = \"{period}\"");
    }
    if one.exact {
        text.push_str("exact = true\n");
    }
    if let Some(phase) = one.phase {
        let _ = writeln!(text, "phase = \"{}\"", phase.0);
    }
    let _ = writeln!(text, "enforce = \"{}\"", one.enforce.word());
    if let Some(until) = one.until {
        let _ = writeln!(text, "until = \"{}\"", until.0);
    }
    let _ = writeln!(text, "vcpus = {}", one.vcpus);
    text
}

/// Formats a name as a TOML key. The key is quoted if the name has dots.
pub(crate) fn key(name: &str) -> String {
    if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() }
}

/// Returns true if a text is a pattern for several reservations. The name of a reservation never
/// contains the characters of patterns.
pub(super) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Returns the names of the reservations that a pattern matches, sorted.
pub(super) fn matching(client: &mut Client, pattern: &str) -> Result<Vec<String>, Problem> {
    let all = all(client)?;
    let seen = all.into_iter().filter(|one| !one.is_hidden());
    let (pattern_bytes, names) = (pattern.as_bytes(), seen.map(|one| one.name));
    let found: Vec<String> = names.filter(|name| matches(pattern_bytes, name.as_bytes())).collect();
    if found.is_empty() {
        return Err(Problem::BadOption {
            message: format!("no reservation matches `{pattern}`"),
            hint: Some("run `slackline list` to see all reservations".into()),
        });
    }
    Ok(found)
}

/// Returns true if a pattern matches a name: `*` stands for any characters, `?` for one character.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches(rest, name)
                || name.split_first().is_some_and(|(_, name)| matches(pattern, name))
        }
        (Some((b'?', rest)), Some((_, name))) => matches(rest, name),
        (Some((wanted, rest)), Some((is, name))) => wanted == is && matches(rest, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_and_question_mark_are_wildcards_in_name_patterns() {
        let is = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes());
        assert!(is("web-*", "web-1") && is("web-*", "web-") && !is("web-*", "web"));
        assert!(is("*", "db") && is("*-a-*", "x-a-b-a-c") && !is("*a", "ab"));
        assert!(is("vm?", "vm1") && !is("vm?", "vm") && !is("vm?", "vm12"));
        assert!(!is_pattern("web-1") && is_pattern("w*") && is_pattern("w?"));
    }
}
