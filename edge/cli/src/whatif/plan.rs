//! Edited reservations as a plan, a file for `slackline apply`.
//!
//! For a recording of a daemon, the plan has the daemon's own reservations with the edited
//! parameters. The reservations are not taken from the model, because the model lacks some of their
//! parameters.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use slackline_control::{
    AddedVm, FieldValue, Length, Mechanism, Reservation, SetParameters, State, WhatIf,
};
use slackline_units::Span;
use slackline_whatif::{Edit, Forecast, Model, PlannedReservation, Row, Tolerance, WAIT_PERCENT};

use super::{Answer, table};
use crate::problem::Problem;
use crate::service::{self, HostReservations, key};

/// Policy under which the daemon schedules.
const POLICY: &str = "edf";

/// Parameters of vCPUs that reservations have too. A parameter with different names under different
/// policies is listed with all its names.
const FIELDS: [&str; 7] = ["slice", "budget", "period", "exact", "extra", "phase", "spread"];

/// Data from which a plan is made, except the prediction.
pub(super) struct PlanSource<'a> {
    pub(super) edits: &'a [Edit],
    /// Reservations of the recorded host. `None` if the recording is a file.
    pub(super) host: Option<&'a HostReservations>,
}

impl PlanSource<'_> {
    /// Checks that a plan can contain all edits. `model` is the edited model.
    ///
    /// # Errors
    /// If an edit changes more than reservations, if the model has another policy than the daemon,
    /// or if an edited VM has no reservation that is the same for all its vCPUs.
    pub(super) fn check(&self, model: &Model) -> Result<(), Problem> {
        let refused = |why: String, hint: &str| {
            let message = format!("cannot write --save: {why}");
            Err(Problem::BadOption { message, hint: Some(hint.to_owned()) })
        };
        let all: Vec<PlannedReservation> = model.reservations().flatten().collect();
        if let Some(option) = self.edits.iter().find_map(beyond_reservations) {
            let why = format!(
                "a plan contains only reservations, and `{option}` cannot be part of a reservation"
            );
            let hint = "drop --save, or use --set with slice, period, exact, phase or spread";
            return refused(why, hint);
        }
        let policy = model.policy();
        let policy = policy.split_whitespace().next().unwrap_or_default();
        if policy != POLICY {
            let why = format!(
                "the prediction is under the policy `{policy}`, and the daemon schedules by \
                 `{POLICY}`"
            );
            return refused(why, "add --policy edf, or drop --save");
        }
        for edit in self.edits {
            let (Edit::Set { name, .. } | Edit::Add { name, .. }) = edit else { continue };
            let names: Vec<&str> = model.names().collect();
            let vm = vm_of(name, &names).unwrap_or(name);
            if !all.iter().any(|it| it.name == vm) {
                let why = format!("the vCPUs of {vm} do not have one reservation in common");
                return refused(why, "set the same parameters for all vCPUs of the VM");
            }
            if !self.is_reserved(vm) {
                let why = format!("{vm} has no reservation now");
                return refused(why, "list reservations with `slackline list`");
            }
        }
        Ok(())
    }

    /// Returns true if a VM has a reservation that the plan can change, or if the plan adds the VM.
    fn is_reserved(&self, vm: &str) -> bool {
        let is_added = self.is_added(vm);
        self.host.is_none_or(|host| is_added || listed(host).any(|row| row.name == vm))
    }

    fn is_added(&self, vm: &str) -> bool {
        self.edits.iter().any(|edit| matches!(edit, Edit::Add { name, .. } if name == vm))
    }

    /// Formats the reservations with their predictions as comments. VMs without a reservation are
    /// left out.
    pub(super) fn plan(&self, answer: &Answer<'_>, forecast: &Forecast) -> Result<String, Problem> {
        let mut text = String::from("# Plan of `slackline whatif`, for `slackline apply FILE`.\n");
        let header = &answer.recording.header;
        let length = answer.recording.length();
        let _ =
            writeln!(text, "# Recorded: {}, {}, {length}.", plain(&header.title), header.machine);
        if let Some(host) = self.host {
            let _ = writeln!(text, "{} = {}", service::REVISION, host.revision);
        }
        let planned: Vec<PlannedReservation> = answer.model.reservations().flatten().collect();
        let tables = self.tables(&planned);
        for (name, table) in &tables {
            let is_of = |row: &&Row| row.name == *name || is_vcpu_of(&row.name, name);
            let rows = || forecast.rows.iter().filter(is_of);
            text.push('\n');
            for row in rows() {
                let _ = writeln!(text, "# {}: {}", row.name, table::in_brief(row));
            }
            text += table;
            // If the parameters changed, the prediction also covers the time before the change.
            if planned.iter().any(|it| it.name == *name && !it.has_changed) {
                rows().for_each(|row| {
                    text += &predicted(name, row, (length, row.tolerance(answer.model)));
                });
            }
        }
        for row in forecast.rows.iter().filter(|row| row.then.is_empty()) {
            let _ = writeln!(
                text,
                "\n# {}: removed. Release this reservation, or apply with --prune.",
                row.name
            );
        }
        for vm in answer.left_out {
            let _ = writeln!(text, "\n# {}: no prediction, because {}.", plain(&vm.name), vm.why);
            if !tables.iter().any(|(name, _)| *name == vm.name) {
                text += "# It is not in this plan, so do not apply the plan with --prune.\n";
            }
        }
        if tables.is_empty() {
            return Err(Problem::BadOption {
                message: "cannot write --save: no VM has one reservation for all of its vCPUs"
                    .into(),
                hint: Some("drop --save".into()),
            });
        }
        Ok(text)
    }

    /// Returns the name and the table of each reservation of the plan.
    fn tables(&self, planned: &[PlannedReservation]) -> Vec<(String, String)> {
        let Some(host) = self.host else {
            return planned.iter().map(|it| (it.name.clone(), one(it))).collect();
        };
        let is_removed = |row: &Reservation| {
            self.edits.iter().any(|edit| matches!(edit, Edit::Remove(name) if *name == row.name))
        };
        let names: Vec<&str> = planned.iter().map(|it| &*it.name).collect();
        let kept = listed(host).filter(|row| !is_removed(row));
        let kept = kept.map(|row| (row.name.clone(), service::as_table(&self.edited(row, &names))));
        let added = planned.iter().filter(|it| self.is_added(&it.name));
        kept.chain(added.map(|it| (it.name.clone(), self.added(it, host, &names)))).collect()
    }

    /// Returns a reservation of the host with its edits, in the values that the user gave. `names`
    /// has the names of all VMs with a reservation in the model. The values are not taken from the
    /// model, because the model has the shorter periods in which the daemon enforces a long period.
    fn edited(&self, row: &Reservation, names: &[&str]) -> Reservation {
        let mut row = row.clone();
        for edit in self.edits {
            let Edit::Set { name, field, value } = edit else { continue };
            if vm_of(name, names) != Some(&*row.name) {
                continue;
            }
            match (&**field, value.parse::<Span>().ok()) {
                ("slice", Some(slice)) => (row.slice, row.slice_ns) = (Length(slice), slice.ns()),
                ("period", Some(period)) => {
                    (row.period, row.period_ns) = (Length(period), period.ns());
                }
                ("phase", phase) => row.phase = phase.map(Length),
                ("exact", _) => row.exact = value == "true",
                ("spread", _) => row.by_use = value == "use" && row.vcpus > 1,
                _ => {}
            }
        }
        let within = |phase: Length| Length(Span::from_ns(phase.0.ns() % row.period_ns.max(1)));
        row.phase = row.phase.map(within);
        row
    }

    /// Formats the table of an added VM: the reservation of the VM that it copies, with the edits.
    fn added(&self, it: &PlannedReservation, host: &HostReservations, names: &[&str]) -> String {
        let copied = self.edits.iter().rev().fold(it.name.as_str(), |vm, edit| match edit {
            Edit::Add { name, like } if name == vm => like.as_str(),
            _ => vm,
        });
        let Some(row) = listed(host).find(|row| row.name == copied) else { return one(it) };
        let row = Reservation { name: it.name.clone(), until: None, ..row.clone() };
        service::as_table(&self.edited(&row, names))
    }
}

/// Converts the edits of a daemon's recording to the periods of the recording. The daemon enforces
/// a long period as shorter periods, and its recordings have the shorter periods. So an edited
/// slice, period or phase is converted to the value for the shorter periods.
pub(super) fn in_parts(edits: &[Edit], host: &HostReservations) -> Vec<Edit> {
    let mut asked = WhatIf::default();
    for edit in edits {
        match edit.clone() {
            Edit::Set { name, field, value } => {
                let fields = BTreeMap::from([(field, FieldValue::Text(value))]);
                asked.set.push(SetParameters { name, fields });
            }
            Edit::Add { name, like } => asked.add.push(AddedVm { name, like }),
            Edit::Policy(policy) => asked.policy = Some(policy),
            Edit::Remove(_) | Edit::Cpus(_) | Edit::Move { .. } => {}
        }
    }
    asked.set_enforced_parts(|name| host.all.iter().find(|row| row.name == name)?.terms());
    let sets = asked.set.into_iter().flat_map(|SetParameters { name, fields }| {
        let set = move |(field, value): (String, FieldValue)| Edit::Set {
            name: name.clone(),
            field,
            value: value.written(),
        };
        fields.into_iter().map(set)
    });
    sets.chain(edits.iter().filter(|edit| !matches!(edit, Edit::Set { .. })).cloned()).collect()
}

/// Returns the option of an edit that changes more than reservations. `None` if a plan can contain
/// the edit.
fn beyond_reservations(edit: &Edit) -> Option<String> {
    match edit {
        Edit::Policy(policy) => (policy != POLICY).then(|| format!("--policy {policy}")),
        Edit::Cpus(_) => Some("--cpus".into()),
        Edit::Move { name, .. } => Some(format!("--move {name}")),
        Edit::Set { name, field, .. } => {
            (!FIELDS.contains(&&**field)).then(|| format!("--set {name}.{field}"))
        }
        Edit::Add { .. } | Edit::Remove(_) => None,
    }
}

/// Returns the VM to which a name in an edit refers: the VM of that name, or the VM of the vCPU of
/// that name.
fn vm_of<'a>(name: &str, vms: &[&'a str]) -> Option<&'a str> {
    let whole = vms.iter().find(|vm| **vm == name);
    whole.or_else(|| vms.iter().find(|vm| is_vcpu_of(name, vm))).copied()
}

/// Returns the reservations of a host that a file for `apply` may contain. A reservation that is
/// held for a gang cannot be changed.
fn listed(host: &HostReservations) -> impl Iterator<Item = &Reservation> {
    host.all.iter().filter(|row| row.state != State::Held)
}

/// Replaces those characters in a text that would end a comment in TOML.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns true if `name` is the name of one of the VM's vCPUs.
fn is_vcpu_of(name: &str, vm: &str) -> bool {
    let number = name.strip_prefix(vm).and_then(|rest| rest.strip_prefix('.'));
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Usual error of a predicted share, in millionths of a CPU. After 24 of 25 measured changes of a
/// live host, no share differed more from its prediction.
const USUAL_ERROR_PPM: u64 = 5_000;

/// Formats the prediction for one vCPU, which the service will compare with what happens. The
/// interval of a share is widened on both sides by the usual error of a prediction, or by the
/// tolerance of the gate if that is larger. The interval of a wait is widened by the tolerance of
/// the gate, the check that a simulation agrees with the recording.
fn predicted(vm: &str, row: &Row, (length, tolerance): (Span, Tolerance)) -> String {
    let Some((least, most)) = row.interval(|it| Some(it.share_ppm)) else { return String::new() };
    // The model names the only vCPU of an added VM after the VM. The service numbers all vCPUs.
    let vcpu = if row.name == vm { format!("{vm}.0") } else { row.name.clone() };
    let mut text = format!("\n[[{}.predicted]]\nvcpu = \"{vcpu}\"\n", key(vm));
    let error = tolerance.share_ppm().max(USUAL_ERROR_PPM);
    let (least, most) = (least.saturating_sub(error), most.saturating_add(error));
    let _ = writeln!(text, "length_ns = {}\nshare_ppm = [{least}, {most}]", length.ns());
    if let Some((least, most)) = row.misses() {
        let _ = writeln!(text, "missed = [{least}, {most}]");
    }
    if let Some((least, most)) = row.interval(|it| it.wait_p99) {
        let (least, most) =
            (least.ns() / 100 * (100 - WAIT_PERCENT), most.ns() / 100 * (100 + WAIT_PERCENT));
        let _ = writeln!(text, "wait_p99_ns = [{least}, {most}]");
    }
    text
}

/// Formats a reservation of the model as a table. The table names the dispatcher as the mechanism,
/// because only the dispatcher is simulated.
fn one(reserved: &PlannedReservation) -> String {
    let PlannedReservation { name, vcpus, reservation, exact, is_shared, phase, .. } = reserved;
    let key = key(name);
    let (slice, period) = (reservation.slice(), reservation.period());
    let mut text = format!("[{key}]\n");
    if *is_shared {
        let total = u128::from(slice.ns()) * *vcpus as u128 * 1_000_000;
        let ppm = total / u128::from(period.ns().max(1));
        let (whole, millionths) = (ppm / 1_000_000, ppm % 1_000_000);
        let _ = writeln!(text, "cpu = \"{whole}.{millionths:06}cpu\"");
    } else {
        let _ = writeln!(text, "slice = \"{slice}\"");
    }
    let _ = writeln!(text, "period = \"{period}\"");
    if *exact {
        text += "exact = true\n";
    }
    if let Some(phase) = phase {
        let _ = writeln!(text, "phase = \"{phase}\"");
    }
    let _ = writeln!(text, "enforce = \"{}\"\nvcpus = {vcpus}", Mechanism::Dispatcher.word());
    text
}
