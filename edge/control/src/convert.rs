//! Conversion between the types of the wire format and the types of the service.

mod change;

use std::time::{SystemTime, UNIX_EPOCH};

use slackline_service::history::{HOUR_NS, Hour};
use slackline_service::{
    self as service, Amount, Binding, ListedReservation, Name, PlanStage, Refusal, VmPrediction,
    Warning,
};
use slackline_units::{self as units, Span};

pub use slackline_units::is_unseen;

use crate::link::Request;
use crate::plans::{AppliedPlan, Canary, PlannedChange};
use crate::predictions::Prediction;
use crate::problem::{Kind, NoRoom, OverBudget, Problem};
use crate::replies::{Account, AppliedChange, Delivery, Event, Reservation, Room, RoomOn, State};
use crate::requests::{Apply, GangWord, ReservationParameters, name_hint};
use crate::times::{Length, Moment};

impl Request {
    /// Converts a request to the request type of the service. Returns `None` if the daemon answers
    /// the request without the service.
    ///
    /// `each` is a function that returns the current slice and period of a reservation. They are
    /// needed for a change that contains only a slice or only a period. `wall_ahead` is the
    /// wall-clock time less the time of the service's clock.
    ///
    /// # Errors
    /// If a name, an amount, a binding or a time is invalid.
    pub fn in_service(
        self,
        each: impl FnOnce(&Name) -> Option<units::Reservation>,
        wall_ahead: Span,
    ) -> Result<Option<service::Request>, Problem> {
        Ok(Some(match self {
            Request::Host
            | Request::Health
            | Request::Numbers
            | Request::ListAccess
            | Request::Whoami
            | Request::Why { .. }
            | Request::WhyIncident { .. }
            | Request::Incidents
            | Request::Record { .. }
            | Request::Predict(_)
            | Request::Predictions
            | Request::Timeline { .. }
            | Request::Whatif(_)
            | Request::Cancel
            | Request::MigrateAccess
            | Request::Grant { .. }
            | Request::Revoke { .. } => return Ok(None),
            Request::Find { text } => service::Request::Find { text },
            Request::Gang { word } => gang_word(word, wall_ahead)?,
            Request::Reserve { name, wanted } => reserve(read_name(&name)?, &wanted)?,
            Request::Change { name, change, if_revision } => {
                change::changed_terms(&name, &change, if_revision, each)?
            }
            Request::Apply { list } => apply(list)?,
            Request::Undo => service::Request::Undo,
            Request::Plan => service::Request::Plan,
            Request::Pause { name, if_revision } => {
                service::Request::Pause { name: read_name(&name)?, if_revision }
            }
            Request::Resume { name, if_revision } => {
                service::Request::Resume { name: read_name(&name)?, if_revision }
            }
            Request::Release { name, if_revision } => {
                service::Request::Release { name: read_name(&name)?, if_revision }
            }
            // The service returns the whole list. The page that begins after the name in `after`
            // is taken from that list later.
            Request::List { name, after: _ } => {
                service::Request::List { name: name.as_deref().map(read_name).transpose()? }
            }
            Request::Room { period } => service::Request::Room { period: period.0 },
            Request::Log { name, before, limit } => service::Request::Log {
                name: name.as_deref().map(read_name).transpose()?,
                before,
                most: u16::try_from(limit).unwrap_or(u16::MAX),
            },
            Request::History { name, since_ns, by_day } => {
                service::Request::History { name: read_name(&name)?, since_ns, by_day }
            }
        }))
    }
}

fn apply(list: Apply) -> Result<service::Request, Problem> {
    let Apply { reservations, prune, dry_run, revision, canary } = list;
    let target =
        |(name, wanted): (String, ReservationParameters)| reserve(read_name(&name)?, &wanted);
    let targets = reservations.into_iter().map(target).collect::<Result<_, _>>()?;
    let Some(Canary { watch, revision: of_canary, predictions }) = canary else {
        return Ok(service::Request::Apply { targets, prune, dry_run, revision });
    };
    if dry_run {
        let detail = "`canary` and `dry_run` cannot be combined".to_owned();
        return Err(bad(detail, "leave one of them out"));
    }
    let predictions = vm_predictions(&predictions)?;
    let (watch, revision) = (watch.0, of_canary.or(revision));
    Ok(service::Request::Canary { targets, prune, watch, revision, predictions })
}

/// Adds up the predictions for the vCPUs of each VM. The predictions can cover times of different
/// lengths. The sum then has the shortest of these lengths.
fn vm_predictions(all: &[Prediction]) -> Result<Vec<VmPrediction>, Problem> {
    let mut vms: Vec<VmPrediction> = Vec::new();
    for one in all {
        let vm = one.vcpu.rsplit_once('.').map_or(one.vcpu.as_str(), |(vm, _)| vm);
        let name = read_name(vm)?;
        let (length, missed) = (Span::from_ns(one.length_ns), one.missed.map(|(_, most)| most));
        let Some(sum) = vms.iter_mut().find(|sum| sum.name == name) else {
            vms.push(VmPrediction { name, share_ppm: one.share_ppm, missed, length });
            continue;
        };
        let (least, most) = sum.share_ppm;
        let (more_least, more_most) = one.share_ppm;
        sum.share_ppm = (least.saturating_add(more_least), most.saturating_add(more_most));
        sum.missed = sum.missed.zip(missed).map(|(one, other)| one.saturating_add(other));
        sum.length = sum.length.min(length);
    }
    Ok(vms)
}

/// Converts the applied plan of a user or client to the wire format.
#[must_use]
pub fn plan(plan: &service::Plan) -> AppliedPlan {
    let (why, first) = match &plan.stage {
        PlanStage::Watching { prediction, .. } => (None, Some(prediction.name.to_string())),
        PlanStage::Done => (None, None),
        PlanStage::Undone(why) | PlanStage::Stopped(why) => (Some(why.clone()), None),
    };
    let changes = plan.steps.iter().filter_map(|step| {
        Some(PlannedChange {
            name: step.name()?.to_string(),
            before: step.before.as_ref().map(ToString::to_string),
            after: step.after.as_ref().map(ToString::to_string),
            is_done: step.is_done,
            revision: step.after.as_ref().filter(|_| step.is_done).map(|row| row.revision),
        })
    });
    AppliedPlan { stage: plan.stage.word().into(), why, first, changes: changes.collect() }
}

/// Parses the binding in a request. A binding with invisible characters is refused.
fn read_binding(text: &str) -> Result<Binding, Problem> {
    let hint = "list VMs and their bindings with `slackline find`";
    let parsed = text.parse();
    let binding: Binding =
        parsed.map_err(|error: service::BindingError| bad(error.to_string(), hint))?;
    let text = binding.to_string();
    let shown = seen(&text);
    if shown != text {
        return Err(bad(format!("`{shown}` has invisible characters"), hint));
    }
    Ok(binding)
}

/// Converts the CPU time of a reservation in an hour or a day to the wire format.
#[must_use]
pub fn account(hour: &Hour) -> Account {
    let of = &hour.sums;
    Account {
        from_ns: hour.start.saturating_mul(HOUR_NS),
        length_ns: u64::from(hour.length).saturating_mul(HOUR_NS),
        existed_ns: of.existed.ns(),
        unknown_ns: of.unknown().ns(),
        contested_ns: of.contested.ns(),
        reserved_ns: of.reserved.ns(),
        due_ns: of.due.ns(),
        delivered_ns: of.delivered.ns(),
        late_ns: of.late.ns(),
        deadlines: of.deadlines,
        missed: of.missed,
    }
}

fn read_name(text: &str) -> Result<Name, Problem> {
    text.parse().map_err(|error| {
        let text: String = text.chars().take(80).flat_map(char::escape_debug).collect();
        bad(format!("the name `{text}` {error}"), &name_hint(&text))
    })
}

fn bad(detail: String, hint: &str) -> Problem {
    Problem::new(Kind::Bad, detail).hinting(hint)
}

/// Returns the slice and period of each vCPU of a reservation with `vcpus` vCPUs.
///
/// # Errors
/// If no amount of CPU time is given, or the parameters are invalid.
pub fn each(wanted: &ReservationParameters, vcpus: u16) -> Result<units::Reservation, Problem> {
    let terms = wanted_amount(wanted)?.terms(wanted.exact, vcpus);
    let terms = terms.map_err(|error| problem(&Refusal::Terms(error)))?;
    Ok(terms.each())
}

fn wanted_amount(wanted: &ReservationParameters) -> Result<Amount, Problem> {
    let period = wanted.period.map(|it| it.0);
    match (wanted.slice, wanted.cpu) {
        (Some(slice), None) => each_of(slice.0, period.unwrap_or(Amount::USUAL_PERIOD)),
        (None, Some(share)) => Ok(Amount::Together { share: share.0, period }),
        (Some(_), Some(_)) => Err(both()),
        (None, None) => {
            let detail = "no amount of CPU time is given".to_owned();
            Err(bad(detail, "give `slice` for each vCPU, or `cpu` for all vCPUs together"))
        }
    }
}

fn reserve(name: Name, wanted: &ReservationParameters) -> Result<service::Request, Problem> {
    let (exact, vcpus) = (wanted.exact, wanted.vcpus);
    let amount = wanted_amount(wanted)?;
    let binding = wanted.binding.as_deref().map(read_binding).transpose()?;
    let (phase, user) = (wanted.phase.map(|it| it.0), wanted.user);
    let until = wanted.until.map(|it| it.0);
    let enforce = wanted.enforce.unwrap_or_default().into();
    Ok(service::Request::Reserve {
        name,
        amount,
        exact,
        phase,
        vcpus,
        binding,
        user,
        until,
        enforce,
    })
}

/// Replaces each invisible character by the text of its code point. Ledgers of older versions can
/// contain names with invisible characters.
fn seen(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_unseen(letter) { shown.extend(letter.escape_unicode()) } else { shown.push(letter) }
    }
    shown
}

/// Maximum length, in bytes, of the reason why a VM is not fully scheduled. Other users choose
/// parts of this text, such as the path of a cgroup.
pub const LONGEST_WHY: usize = 512;

/// Maximum length, in bytes, of the text that says what an event did. Other users choose parts of
/// this text, such as the path of a cgroup.
const LONGEST_OUTCOME: usize = 1_024;

/// Returns `text` if it has at most `most` bytes. Otherwise returns the beginning of `text` and
/// `...`, together at most `most` bytes.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let is_end = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=most.saturating_sub(3)).rev().find(is_end).unwrap_or(0);
    format!("{}...", &text[..end])
}

/// Maximum length, in bytes, of the text that names a lost gang member and the reason for the loss.
const LONGEST_LOST: usize = 256;

fn gang_word(word: GangWord, wall_ahead: Span) -> Result<service::Request, Problem> {
    Ok(match word {
        GangWord::Hold { gang, name, wanted } => {
            let member = Box::new(reserve(read_name(&name)?, &wanted)?);
            service::Request::Hold { gang: read_name(&gang)?, member }
        }
        GangWord::Begin { gang, name, at_ns, strict } => {
            let gang = service::gang::Gang { name: read_name(&gang)?, is_strict: strict };
            let at = units::Time::START + Span::from_ns(at_ns).left_after(wall_ahead);
            service::Request::Begin { gang, name: read_name(&name)?, at }
        }
        GangWord::Break { gang, name, lost } => {
            let length = lost.len();
            if length > LONGEST_LOST || lost.chars().any(char::is_control) {
                let detail = format!(
                    "cannot use `lost` of {length} bytes: it must have at most {LONGEST_LOST} \
                     bytes and no control characters"
                );
                return Err(bad(detail, "write one line of at most 256 bytes"));
            }
            service::Request::Break { gang: read_name(&gang)?, name: read_name(&name)?, lost }
        }
    })
}

fn both() -> Problem {
    let detail = "`slice` and `cpu` cannot be combined".to_owned();
    bad(detail, "give `slice` for each vCPU, or `cpu` for all vCPUs together")
}

fn each_of(slice: Span, period: Span) -> Result<Amount, Problem> {
    let each = units::Reservation::new(slice, period);
    let hint = "give a slice of CPU time per period, such as 2ms every 10ms";
    each.map(Amount::Each).map_err(|error| bad(error.to_string(), hint))
}

impl From<service::State> for State {
    fn from(state: service::State) -> State {
        match state {
            service::State::Waiting => State::Waiting,
            service::State::Active => State::Active,
            service::State::Paused => State::Paused,
            service::State::Partial => State::Partial,
            service::State::Contested => State::Contested,
            service::State::Suspended => State::Suspended,
            service::State::Held => State::Held,
            service::State::Ended => State::Ended,
        }
    }
}

/// Converts a reservation to the wire format. `recent` is the CPU time that its vCPUs received
/// recently, `total` the CPU time since the daemon started. A value that is `None` is left out.
#[must_use]
pub fn reservation(
    listed: &ListedReservation,
    recent: Option<Delivery>,
    total: Option<Delivery>,
) -> Reservation {
    let ListedReservation { row, state, reason, served, chosen } = listed;
    let (slice, period) = (row.terms.each().slice(), row.terms.each().period());
    Reservation {
        name: row.name.to_string(),
        owner: row.owner.to_string(),
        binding: seen(&row.binding.to_string()),
        user: row.user,
        slice: Length(slice),
        slice_ns: slice.ns(),
        period: Length(period),
        period_ns: period.ns(),
        exact: row.terms.exact(),
        by_use: row.terms.by_use(),
        phase: row.terms.phase().map(Length),
        phase_ns: row.terms.phase().map(Span::ns),
        until: row.terms.until().map(Moment),
        until_ns: row.terms.until().map(units::WallTime::ns),
        enforce: row.terms.enforcement().into(),
        chosen: chosen.clone(),
        gang: row.gang.as_ref().map(|gang| gang.name.to_string()),
        vcpus: row.terms.vcpus(),
        served: *served,
        state: (*state).into(),
        why: reason.as_ref().map(|reason| shortened(&reason.to_string(), LONGEST_WHY)),
        warning: None,
        revision: row.revision,
        recent,
        total,
        cost: None,
    }
}

/// Converts one change of an applied list to the wire format. If the change was not made, the
/// result has no revision.
#[must_use]
pub fn applied(change: &service::AppliedChange) -> AppliedChange {
    let text = |row: &Option<service::Row>| row.as_ref().map(|row| seen(&row.to_string()));
    let is_kept = change.action == service::Action::Keep;
    let revision = change.after.as_ref().filter(|_| !is_kept).map(|row| row.revision);
    let before = change.before.as_ref().map(|row| row.revision);
    AppliedChange {
        name: change.name().to_string(),
        action: change.action.word().into(),
        before: text(&change.before),
        after: text(&change.after),
        revision: revision.filter(|revision| *revision > 0 && Some(*revision) != before),
    }
}

/// Adds a warning to the reservation in an answer. If `warning` is `None`, the result has no
/// warning.
#[must_use]
pub fn warned(reservation: Reservation, warning: Option<&Warning>) -> Reservation {
    Reservation { warning: warning.map(ToString::to_string), ..reservation }
}

/// Converts an event to the wire format. `at` is the wall-clock time of the event.
#[must_use]
pub fn event(event: &service::Event, at: SystemTime) -> Event {
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = |row: &Option<service::Row>| row.as_ref().map(ToString::to_string);
    Event {
        seq: event.seq,
        at_ns: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
        principal: event.principal.to_string(),
        verb: event.what.word().into(),
        name: event.name.as_ref().map(ToString::to_string).unwrap_or_default(),
        before: text(&event.before),
        after: text(&event.after),
        outcome: shortened(&event.what.to_string(), LONGEST_OUTCOME),
        was_late: event.was_late,
    }
}

/// Converts the available capacity of each CPU, for reservations with the period `period`, to the
/// wire format.
#[must_use]
pub fn room(period: Span, cpus: &[service::CpuCapacity]) -> Room {
    let on = |room: &service::CpuCapacity| RoomOn {
        cpu: u32::try_from(room.cpu.index()).unwrap_or(u32::MAX),
        slice: Length(room.slice),
        slice_ns: room.slice.ns(),
    };
    Room { period: Length(period), period_ns: period.ns(), cpus: cpus.iter().map(on).collect() }
}

/// Converts a refusal of the service to a problem, which has a kind, a hint and numbers.
#[must_use]
pub fn problem(refusal: &Refusal) -> Problem {
    if let Refusal::InList { why, .. } = refusal {
        let (detail, hint) = (refusal.to_string(), refusal.hint());
        return Problem { detail, hint, ..problem(why) };
    }
    let kind = match refusal {
        Refusal::NoRoom { .. } | Refusal::Full { .. } => Kind::NoRoom,
        Refusal::TooManyVcpus { owner: None, .. } => Kind::NoRoom,
        Refusal::TooManyVcpus { .. } | Refusal::TooManyRaises { .. } => Kind::OverBudget,
        Refusal::InList { why, .. } => problem(why).kind,
        Refusal::NoMachine { .. } | Refusal::Ambiguous { .. } => Kind::NoMachine,
        Refusal::Taken { .. }
        | Refusal::Exists { .. }
        | Refusal::NameTaken { .. }
        | Refusal::Held { .. } => Kind::Exists,
        Refusal::OverBudgetCpu { .. } | Refusal::OverBudgetMachines { .. } => Kind::OverBudget,
        Refusal::Stale { .. } => Kind::Stale,
        Refusal::Moved { .. } | Refusal::HostMoved { .. } => Kind::Moved,
        Refusal::NoSuchReservation { .. } | Refusal::NoMember { .. } | Refusal::NothingToUndo => {
            Kind::NoSuchReservation
        }
        Refusal::NotAllowed { .. }
        | Refusal::NotOwner { .. }
        | Refusal::NotYours { .. }
        | Refusal::LongRun { .. }
        | Refusal::KeptName { .. }
        | Refusal::Forbidden(_) => Kind::NotAllowed,
        Refusal::NotDurable { .. } => Kind::NotDurable,
        Refusal::NotNow { .. } => Kind::NotNow,
        Refusal::TooMany { .. } => Kind::TooMany,
        Refusal::TooManyTargets { .. } | Refusal::LargePlan { .. } => Kind::TooLarge,
        Refusal::Terms(_)
        | Refusal::Unkeepable(_)
        | Refusal::VcpusUnknown { .. }
        | Refusal::TooLate { .. }
        | Refusal::TooFar { .. }
        | Refusal::EndPassed { .. }
        | Refusal::KeyReused { .. } => Kind::Bad,
        Refusal::Host { .. } => Kind::HostCannot,
    };
    let mut problem = Problem::new(kind, refusal.to_string());
    problem.hint = refusal.hint();
    match *refusal {
        Refusal::NoRoom { asked, promised, capacity, largest, .. } => {
            problem.room = Some(Box::new(NoRoom {
                asked_slice: Length(asked.slice()),
                asked_slice_ns: asked.slice().ns(),
                asked_period: Length(asked.period()),
                asked_period_ns: asked.period().ns(),
                promised_ppm: promised.ppm(),
                capacity_ppm: capacity.ppm(),
                largest: Length(largest),
                largest_ns: largest.ns(),
            }));
        }
        Refusal::OverBudgetCpu { asked, most, .. } => {
            let (asked, most) = (asked.ppm(), most.ppm());
            problem.budget = Some(Box::new(OverBudget::CpuPpm { asked, most }));
        }
        Refusal::OverBudgetMachines { asked, most, .. } => {
            problem.budget = Some(Box::new(OverBudget::Machines { asked, most }));
        }
        Refusal::Stale { is, .. } | Refusal::HostMoved { is, .. } => problem.revision = Some(is),
        Refusal::Moved { is, .. } => problem.revision = is,
        _ => {}
    }
    problem
}

#[cfg(test)]
mod tests {
    use slackline_units::CpuShare;

    use super::*;

    #[test]
    fn long_text_is_truncated_at_a_character_boundary() {
        assert_eq!(shortened("größe", 7), "größe");
        assert_eq!(shortened("größe!", 7), "grö...");
        assert_eq!(shortened("größe!", 6), "gr...");
        let path = "\u{1b}".repeat(5_000);
        let (name, binding) = ("web".parse().unwrap(), "qemu:web".parse().unwrap());
        let terms = service::Terms::new(each(1, 10), true, 1).unwrap();
        let listed = ListedReservation {
            row: service::Row::new(name, (service::Principal::User(0), 0), terms, binding),
            state: service::State::Contested,
            reason: Some(service::Reason::Contested(path)),
            served: 1,
            chosen: None,
        };
        let why = reservation(&listed, None, None).why.expect("a reason");
        assert_eq!(why.len(), LONGEST_WHY);
        let logged = service::Event {
            seq: 1,
            at: units::Time::START,
            principal: service::Principal::Service,
            what: service::EventKind::Contested("\u{1b}".repeat(5_000)),
            name: None,
            before: None,
            after: None,
            was_late: false,
        };
        assert_eq!(event(&logged, UNIX_EPOCH).outcome.len(), LONGEST_OUTCOME);
    }

    fn each(slice: u64, period: u64) -> units::Reservation {
        units::Reservation::new(Span::from_ms(slice), Span::from_ms(period)).unwrap()
    }

    #[test]
    fn reservation_request_without_cpu_amount_or_valid_name_is_refused() {
        let reserve = |name: &str, text: &str| {
            let wanted = serde_json::from_str(text).unwrap();
            Request::Reserve { name: name.into(), wanted }.in_service(|_| None, Span::ZERO)
        };
        let Some(service::Request::Reserve { amount, binding, phase, .. }) =
            reserve("web", r#"{"slice":"2ms","phase":"0ms","for":"pid:7"}"#).unwrap()
        else {
            panic!("nothing is reserved")
        };
        assert_eq!(amount, Amount::Each(each(2, 10)));
        assert_eq!(binding.unwrap().to_string(), "pid:7");
        assert_eq!(phase, Some(Span::ZERO));
        for (name, text, says) in [
            ("web", "{}", "no amount of CPU time is given"),
            ("web", r#"{"slice":"2ms","for":"pid"}"#, "does not begin with libvirt:"),
            ("../web", r#"{"slice":"2ms"}"#, "the name `../web` has '.' at character 1"),
            ("web", r#"{"slice":"2ms","cpu":"1cpu"}"#, "`slice` and `cpu` cannot be combined"),
        ] {
            let problem = reserve(name, text).unwrap_err();
            assert!(problem.detail.contains(says), "{}", problem.detail);
            assert!(problem.hint.is_some(), "{}", problem.detail);
        }
    }

    #[test]
    fn vm_binding_with_invisible_characters_is_refused_and_shown_escaped() {
        let wanted = |binding: &str| {
            let text = format!(r#"{{"slice":"1ms","for":"{binding}"}}"#);
            reserve("web".parse().unwrap(), &serde_json::from_str(&text).unwrap())
        };
        assert!(wanted("qemu:b\u{fc}ro").is_ok());
        for binding in ["qemu:\u{202e}gnp.exe", "libvirt:a\u{200b}", "cgroup:/a\u{feff}"] {
            let refused = wanted(binding).unwrap_err();
            assert_eq!(refused.kind, Kind::Bad);
            assert!(seen(&refused.detail) == refused.detail, "{}", refused.detail);
            let change = serde_json::json!({ "for": binding }).to_string();
            let change = serde_json::from_str(&change).unwrap();
            let request = Request::Change { name: "web".into(), change, if_revision: None };
            let changed = request.in_service(|_| None, Span::ZERO).unwrap_err();
            assert_eq!((changed.kind, changed.detail), (refused.kind, refused.detail));
        }
        assert_eq!(seen("qemu:\u{202e}a"), "qemu:\\u{202e}a");
    }

    #[test]
    fn refusal_for_lack_of_capacity_includes_shares_and_largest_slice() {
        let refusal = Refusal::NoRoom {
            asked: each(5, 10),
            promised: CpuShare::from_ppm(600_000),
            capacity: CpuShare::from_ppm(900_000),
            largest: Span::from_ms(3),
            free_after: None,
            says: "too much".into(),
        };
        let problem = problem(&refusal);
        assert_eq!((problem.status, problem.kind.about().3), (409, 4));
        let text = serde_json::to_string(&problem).unwrap();
        let numbers = r#""promised_ppm":600000,"capacity_ppm":900000,"largest":"3ms""#;
        assert!(text.contains(numbers), "{text}");
        assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem);
        let hint = problem.hint.unwrap();
        assert_eq!(hint, "use a slice of at most 3ms every 10ms");
    }
}
