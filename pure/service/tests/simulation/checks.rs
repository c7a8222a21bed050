//! Checks of invariants, which are made after each step of a simulation.

use std::collections::{BTreeMap, BTreeSet};

use slackline_service::{
    Amount, Answer, Binding, Budget, Budgets, Commit, Event, EventKind, Key, ListedReservation,
    Name, Principal, Reason, Request, Role, Row, Service, State, Terms, Verb, WantedMechanism,
};
use slackline_units::{CpuShare, DomId, Enforcement, Span};

use crate::scheduler::{Meter, PARTS, RESERVE};
use crate::world::Model;

/// A request that was sent to the service in the simulation.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) principal: Principal,
    pub(crate) role: Option<Role>,
    pub(crate) key: Option<Key>,
    pub(crate) request: Request,
}

/// All requests and replies of the run so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) sent: Vec<Sent>,
}

pub(crate) type Checked = Result<(), String>;

macro_rules! hold {
    ($holds:expr, $($says:tt)*) => {
        if !$holds {
            return Err(format!($($says)*));
        }
    };
}

/// Checks all invariants that can be checked in the present state.
pub(crate) fn all(service: &Service, model: &mut Model, history: &History) -> Checked {
    if let Some(wrong) = model.wrong.take() {
        return Err(wrong);
    }
    for commit in std::mem::take(&mut model.begun) {
        committed(&commit, model, history)?;
    }
    acknowledged(model)?;
    let listed: BTreeMap<DomId, ListedReservation> = service.listed().collect();
    in_force(&listed, service.health().ledger.is_some(), model)?;
    identities(&listed, model)?;
    owners(&listed, model)?;
    ends(&listed, model)?;
    within_budgets(&listed)?;
    capacity(model)?;
    given(model)?;
    // The first part of a list that waits for capacity is in force, and is not written.
    let is_partial = service.has_postponed_list();
    if model.disk.pending.is_none() && service.health().ledger.is_none() && !is_partial {
        written(service, model)?;
    }
    Ok(())
}

/// Checks that admission never overbooks the host: the sum of slice/period over the vCPUs of all
/// reservations is at most the number of CPUs × (1 - [`RESERVE`]). The sum is computed in whole
/// [`PARTS`], independently of the policy's own arithmetic.
fn capacity(model: &Model) -> Checked {
    let mut sum = 0;
    for domain in model.scheduler.domains.values() {
        let each = domain.terms.each();
        let period = u128::from(each.period().ns());
        hold!(
            PARTS.is_multiple_of(period),
            "a period of {period} ns does not divide the number of parts"
        );
        sum += u128::from(each.slice().ns()) * (PARTS / period) * domain.places.len() as u128;
    }
    let one = PARTS * u128::from(1_000_000 - RESERVE.ppm()) / 1_000_000;
    let most = one * model.scheduler.cpus() as u128;
    hold!(sum <= most, "{sum} parts are reserved, more than {most}");
    Ok(())
}

/// Checks that exactly the listed reservations are in force: the scheduler has no other
/// reservation, and no thread occupies two places. The exception is a reservation that has lost its
/// capacity: it may wait while the ledger is failing, or if there are several CPUs. For example,
/// after a list was reverted, VMs must first repay the excess CPU time that they used.
fn in_force(
    listed: &BTreeMap<DomId, ListedReservation>,
    is_failing: bool,
    model: &Model,
) -> Checked {
    let mut held = BTreeSet::new();
    for (domain, one) in listed {
        let name = &one.row.name;
        if matches!(one.reason, Some(Reason::NoRoom(_))) {
            let is_there = model.scheduler.domains.contains_key(domain);
            hold!(!is_there, "{name} has no capacity, but is scheduled");
            let may_wait = is_failing || model.scheduler.cpus() > 1;
            hold!(may_wait, "{name} lost its capacity on the only CPU");
            continue;
        }
        let Some(has) = model.scheduler.domains.get(domain) else {
            return Err(format!("{name} is {}, but the scheduler does not have it", one.state));
        };
        // A change of the end time alone is not reported to the scheduler.
        let same = has.terms.with_end(None) == one.row.terms.with_end(None);
        hold!(same, "{name} is listed with {}, but scheduled with {}", one.row, has.terms);
        let places = usize::from(one.row.terms.vcpus());
        hold!(has.places.len() == places, "{name} has {} places", has.places.len());
        let sits = has.places.iter().filter_map(|place| place.sits);
        hold!(sits.clone().count() == usize::from(one.served), "{name}: {one:?}, is {has:?}");
        let knows = has.identity == one.row.identity;
        hold!(knows || has.identity.is_none(), "{name} holds {:?}: {one:?}", has.identity);
        let is_held = matches!(
            one.state,
            State::Active | State::Partial | State::Paused | State::Contested | State::Suspended
        );
        hold!(has.identity.is_some() == is_held, "{name} is {} and holds {has:?}", one.state);
        let is_paused = one.state == State::Paused;
        hold!(has.is_paused == is_paused, "{name} is {} and paused={}", one.state, has.is_paused);
        hold!(is_paused == (is_held && one.row.paused), "{name}: {one:?}");
        for thread in sits.map(|vcpu| (has.identity, vcpu)) {
            hold!(held.insert(thread), "{thread:?} occupies two places");
        }
    }
    for one in listed.values().filter(|one| one.state == State::Contested) {
        let name = &one.row.name;
        let is_told = matches!(one.reason, Some(Reason::Contested(_)));
        hold!(is_told, "{name} is contested, but its reason is {:?}", one.reason);
    }
    let orphan = model.scheduler.domains.keys().find(|domain| !listed.contains_key(domain));
    hold!(orphan.is_none(), "the scheduler has {orphan:?}, which is not listed");
    Ok(())
}

/// Checks that a `pid:` binding refers to the right process: the process that had the process id
/// when the reservation got this binding.
fn identities(listed: &BTreeMap<DomId, ListedReservation>, model: &Model) -> Checked {
    for one in listed.values().filter(|one| !one.row.binding.lasts()) {
        let Some(identity) = one.row.identity else { continue };
        let is_of_it = |event: &&Event| {
            event.seq >= one.row.since && event.name.as_ref() == Some(&one.row.name)
        };
        let is_bound = |row: &Row| row.binding == one.row.binding;
        let mut events = model.disk.events.iter().rev().filter(is_of_it);
        // A change of the binding is possibly not in the ledger yet.
        if !events.clone().next().is_some_and(|last| last.after.as_ref().is_some_and(is_bound)) {
            continue;
        }
        let binds = |event: &&Event| !event.before.as_ref().is_some_and(is_bound);
        let Some(after) = events.find(binds).and_then(|event| event.after.as_ref()) else {
            continue;
        };
        let meant = after.identity;
        hold!(
            meant == Some(identity),
            "{} meant {meant:?}, but {identity:?} is scheduled",
            one.row
        );
    }
    Ok(())
}

/// Budget of the principal "operator" in the simulation.
const BUDGET: Budget = Budget { cpu: Some(CpuShare::from_ppm(600_000)), machines: Some(3) };

pub(crate) fn budgets() -> Budgets {
    Budgets::from([(Principal::User(1), BUDGET)])
}

/// Checks that the operator does not exceed its budget. No other principal has a budget.
fn within_budgets(listed: &BTreeMap<DomId, ListedReservation>) -> Checked {
    let rows = listed.values().map(|one| &one.row);
    let rows: Vec<&Row> = rows.filter(|row| row.owner == Principal::User(1)).collect();
    let ppm = |row: &&Row| {
        let each = row.terms.each();
        let ns = each.slice().ns() * u64::from(row.terms.vcpus());
        ns * 1_000_000 / each.period().ns()
    };
    let sum: u64 = rows.iter().map(ppm).sum();
    hold!(sum <= 600_000 && rows.len() <= 3, "{sum} in {} is over the budget", rows.len());
    Ok(())
}

/// Checks the user of each reservation: the owner of the reservation may reserve for this user's
/// VMs, and the scheduled VM belongs to this user.
fn owners(listed: &BTreeMap<DomId, ListedReservation>, model: &Model) -> Checked {
    for (domain, one) in listed {
        let row = &one.row;
        let may = row.owner == Principal::User(0) || row.owner == Principal::User(row.user);
        hold!(may, "{} of {} is for a VM of uid {}", row.name, row.owner, row.user);
        let held = model.scheduler.domains.get(domain).and_then(|has| has.identity);
        let Some(process) = held.and_then(|identity| model.kernel.alive(identity)) else {
            continue;
        };
        let user = process.machine.user;
        hold!(
            user == row.user,
            "{} is for a VM of uid {}, but has a VM of uid {user}",
            row.name,
            row.user
        );
    }
    Ok(())
}

/// Checks that no listed reservation has an end time that has passed.
fn ends(listed: &BTreeMap<DomId, ListedReservation>, model: &Model) -> Checked {
    let wall = model.now.after(model.wall_ahead).ns();
    for one in listed.values().filter(|one| one.state != State::Held) {
        let is_over = one.row.terms.until().is_some_and(|until| until.ns() <= wall);
        hold!(!is_over, "{} is listed at {wall} ns, after its end time", one.row);
    }
    Ok(())
}

/// Checks that a VM with a hard limit never received too much CPU time at a place (reserved vCPU).
/// In total, the VM may receive the CPU time that was reserved at that place since the start, plus
/// one slice of the largest size. In any interval, the VM may exceed the reserved CPU time by at
/// most two slices, because unused budget is not carried over.
fn given(model: &Model) -> Checked {
    for (place, meter) in &model.scheduler.meters {
        let Meter { given, promised, ahead, slice, .. } = *meter;
        hold!(given <= promised + slice, "{place:?} received too much in total: {meter:?}");
        hold!(ahead <= 2 * slice, "{place:?} received too much in an interval: {meter:?}");
    }
    Ok(())
}

/// Checks that the ledger contains each change that a reply called durable.
fn acknowledged(model: &mut Model) -> Checked {
    for (ticket, reply) in &model.replies {
        let Ok(Answer::Done { reservation, warning: None, .. }) = reply else { continue };
        let row = &reservation.row;
        let written = model.disk.written.get(&row.name).copied().unwrap_or(0);
        hold!(
            written >= row.revision,
            "{ticket:?} was told of {} at revision {}, but the ledger has revision {written}",
            row.name,
            row.revision
        );
        if let Some(on_disk) = model.disk.rows.get(&row.name)
            && on_disk.revision == row.revision
        {
            hold!(on_disk == row, "{ticket:?} was told {row}, but the ledger has {on_disk}");
        }
    }
    Ok(())
}

/// Checks that the ledger contains exactly the listed reservations. Called when no commit is in
/// progress.
pub(crate) fn written(service: &Service, model: &Model) -> Checked {
    // A reservation that is held for a gang is not in the ledger.
    let rows = service.listed().map(|(_, one)| one.row).filter(|row| row.revision > 0);
    let listed: BTreeMap<Name, Row> = rows.map(|row| (row.name.clone(), row)).collect();
    hold!(listed == model.disk.rows, "{listed:?}\n differs from the ledger: {:?}", model.disk.rows);
    for row in listed.values() {
        let is_told = model.disk.events.iter().any(|event| event.seq == row.revision);
        hold!(
            is_told,
            "{} is at revision {}, but no event has this revision",
            row.name,
            row.revision
        );
    }
    Ok(())
}

/// Checks a commit. Its rows must follow from the previous rows and the events of the commit. Each
/// event must have a cause: a request that its sender may send, or a change of the VM.
fn committed(commit: &Commit, model: &Model, history: &History) -> Checked {
    for (name, row) in &commit.rows {
        let mut now = model.disk.rows.get(name).cloned();
        let of_row = commit.events.iter().filter(|event| event.name.as_ref() == Some(name));
        for event in of_row.filter(|event| !changes_no_row(event)) {
            hold!(
                event.before == now,
                "{name}: event {} begins with {:?}, not {now:?}",
                event.seq,
                event.before
            );
            now.clone_from(&event.after);
        }
        hold!(now == *row, "{name} is written as {row:?}, but its events lead to {now:?}");
    }
    for event in &commit.events {
        if let (Some(name), false) = (&event.name, changes_no_row(event)) {
            let is_written = commit.rows.iter().any(|(one, _)| one == name);
            hold!(is_written, "event {} is about {name}, but no row of it is written", event.seq);
        }
        let is_right = match event.what {
            EventKind::Explained(ref given) => history.sent.iter().any(|sent| {
                let is_given = matches!(&sent.request, Request::Change { why, .. }
                    if why.as_ref() == Some(given));
                is_given && asked_for(sent, Verb::Change, event)
            }),
            EventKind::Asked(Verb::Gang) => was_held(history, event),
            EventKind::GangBroken(_) => history.sent.iter().any(|sent| broken(sent, event)),
            EventKind::Asked(verb) => {
                history.sent.iter().any(|sent| asked_for(sent, verb, event))
                    || is_undone(history, event, (model, commit))
            }
            EventKind::Canary(_) => history.sent.iter().any(|sent| {
                let is_canary = matches!(sent.request, Request::Canary { .. });
                is_canary && sent.principal == event.principal
            }),
            EventKind::Chosen(_) => history
                .sent
                .iter()
                .any(|sent| leaves_choice(&sent.request) && sent.principal == event.principal),
            // The service gets no requests that change access, only reports of such changes.
            EventKind::Granted(_) | EventKind::Revoked(_) => event.principal != Principal::Service,
            _ => event.principal == Principal::Service && is_fact(event),
        };
        hold!(is_right, "no permitted request caused {event:?}");
    }
    Ok(())
}

/// Returns true if an event about a reservation leaves the row of the reservation unchanged.
fn changes_no_row(event: &Event) -> bool {
    matches!(event.what, EventKind::Chosen(_) | EventKind::Incident(_))
}

fn is_fact(event: &Event) -> bool {
    match (&event.before, &event.after) {
        (None, None) => true,
        (Some(before), Some(after)) => {
            let machine = Row {
                identity: after.identity,
                by_uuid: after.by_uuid.clone(),
                user: after.user,
                revision: after.revision,
                ..before.clone()
            };
            // The event of a renamed libvirt domain changes the binding.
            let binding = match event.what {
                EventKind::Renamed(_) => after.binding.clone(),
                _ => before.binding.clone(),
            };
            Row { binding, ..machine } == *after
        }
        (Some(before), None) if event.what == EventKind::Expired => before.terms.until().is_some(),
        (Some(before), None) => !before.binding.lasts(),
        (None, Some(_)) => false,
    }
}

/// Returns true if the event is explained by two requests: one that held the reservation for its
/// gang, and one that let the gang member begin.
fn was_held(history: &History, event: &Event) -> bool {
    let Some(after) = &event.after else { return false };
    let begins = history.sent.iter().any(|sent| {
        let Request::Begin { gang, name, .. } = &sent.request else { return false };
        let may = sent.role.is_some_and(|role| role.may(Verb::Gang));
        may && sent.principal == event.principal
            && *name == after.name
            && after.gang.as_ref() == Some(gang)
    });
    let holds = history.sent.iter().any(|sent| {
        let Request::Hold { gang, member } = &sent.request else { return false };
        let reserved = Sent { request: (**member).clone(), ..sent.clone() };
        let event = Event { principal: sent.principal, ..event.clone() };
        after.gang.as_ref().is_some_and(|known| known.name == *gang)
            && asked_for(&reserved, Verb::Reserve, &event)
    });
    begins && holds
}

/// Returns true if the event is explained by this request: the request reports that the gang of the
/// reservation is broken.
fn broken(sent: &Sent, event: &Event) -> bool {
    let Request::Break { gang, name, .. } = &sent.request else { return false };
    let Some(before) = &event.before else { return false };
    let is_member = before.gang.as_ref().is_some_and(|known| known.name == *gang);
    let goes_on = event.after.as_ref().is_none_or(|after| {
        after.gang.is_none()
            && Row { gang: None, revision: after.revision, ..before.clone() } == *after
    });
    sent.principal == event.principal && *name == before.name && is_member && goes_on
}

/// Returns true if the event undoes an earlier change, and its principal has sent a request that
/// can cause this: an `undo` or a canary.
fn is_undone(history: &History, event: &Event, (model, commit): (&Model, &Commit)) -> bool {
    let asks = |sent: &Sent| {
        let is_plan = matches!(sent.request, Request::Undo | Request::Canary { .. });
        is_plan && sent.principal == event.principal
    };
    let terms = |row: &Option<Row>| row.as_ref().map(|row| row.terms);
    let before = model.disk.events.iter().chain(&commit.events);
    let mut before = before.filter(|earlier| earlier.name == event.name && earlier.seq < event.seq);
    // If the undone change was never written, the event shows no change.
    let is_nothing = terms(&event.before) == terms(&event.after);
    history.sent.iter().any(asks)
        && (is_nothing || before.any(|earlier| terms(&earlier.before) == terms(&event.after)))
}

/// Returns true if the request caused the event.
fn asked_for(sent: &Sent, verb: Verb, event: &Event) -> bool {
    let may = sent.role.is_some_and(|role| role.may(verb));
    if let Request::Apply { targets, prune, dry_run: false, .. }
    | Request::Canary { targets, prune, .. } = &sent.request
    {
        let mut singles = targets.iter().filter_map(|target| single(target, verb));
        let is_single = |request| asked_for(&Sent { request, ..sent.clone() }, verb, event);
        let is_pruned = *prune && verb == Verb::Release && is_pruned(sent, targets, event);
        return may && (is_pruned || singles.any(is_single));
    }
    if sent.principal != event.principal || sent.request.verb() != verb || !may {
        return false;
    }
    match (&sent.request, &event.before, &event.after) {
        (
            Request::Reserve { name, amount, exact, phase, vcpus, binding, user, until, enforce },
            None,
            Some(after),
        ) => {
            let is_bound = binding.clone().unwrap_or_else(|| named(name)) == after.binding;
            let terms = amount.terms(*exact, vcpus.unwrap_or(after.terms.vcpus()));
            let by = wanted(*enforce, after);
            let terms = terms.and_then(|terms| terms.with_phase(*phase)?.enforced_by(by));
            *name == after.name
                && is_bound
                && terms.map(|terms| terms.with_end(*until)) == Ok(after.terms)
                && after.owner == sent.principal
                && user.is_none_or(|user| user == after.user)
                && !after.paused
        }
        (
            Request::Change { name, amount, exact, phase, vcpus, until, enforce, .. },
            Some(before),
            Some(after),
        ) => {
            let (exact, vcpus) =
                (exact.unwrap_or(before.terms.exact()), vcpus.unwrap_or(before.terms.vcpus()));
            let is_together = |amount| matches!(amount, Amount::Together { .. });
            let by_use = amount.map_or(before.terms.by_use(), is_together);
            let amount = amount.unwrap_or(Amount::Each(before.terms.each()));
            let phase = phase.unwrap_or(before.terms.phase());
            let terms = amount.terms(exact, vcpus).and_then(|terms| terms.with_phase(phase));
            let by = enforce.map_or(before.terms.enforcement(), |it| wanted(it, after));
            let terms = terms.and_then(|terms| terms.spread_by_use(by_use).enforced_by(by));
            let until = until.unwrap_or(before.terms.until());
            let is_like = |it: Terms| like(before, it.with_end(until), before.paused, after);
            *name == before.name && terms.is_ok_and(is_like)
        }
        (Request::Rebind { name, binding, .. }, Some(before), Some(after)) => {
            let row = Row {
                binding: binding.clone(),
                user: after.user,
                identity: after.identity,
                by_uuid: after.by_uuid.clone(),
                revision: after.revision,
                ..before.clone()
            };
            *name == before.name && row == *after
        }
        (Request::Pause { name, .. } | Request::Resume { name, .. }, Some(before), Some(after)) => {
            *name == before.name && like(before, before.terms, verb == Verb::Pause, after)
        }
        (Request::Release { name, .. }, before, None) => {
            before.as_ref().is_none_or(|before| before.name == *name)
        }
        _ => false,
    }
}

/// Returns the request for one reservation that has the same effect as this entry of a list.
fn single(target: &Request, verb: Verb) -> Option<Request> {
    let Request::Reserve { name, amount, exact, phase, vcpus, until, enforce, .. } = target else {
        return None;
    };
    match verb {
        Verb::Reserve => Some(target.clone()),
        Verb::Change => Some(Request::Change {
            name: name.clone(),
            amount: Some(*amount),
            exact: Some(*exact),
            phase: Some(*phase),
            vcpus: *vcpus,
            until: Some(*until),
            enforce: Some(*enforce),
            why: None,
            if_revision: None,
        }),
        _ => None,
    }
}

/// Returns true if the list in a request caused the event: the list releases a reservation that it
/// does not name.
fn is_pruned(sent: &Sent, targets: &[Request], event: &Event) -> bool {
    let Some(before) = &event.before else { return false };
    let is_listed = targets.iter().any(|target| target.name() == Some(&before.name));
    let is_own = before.owner == sent.principal;
    let may = is_own || sent.role == Some(Role::Administrator);
    sent.principal == event.principal && event.after.is_none() && !is_listed && may
}

/// Returns true if a request has `auto` for at least one of its reservations.
fn leaves_choice(request: &Request) -> bool {
    match request {
        Request::Reserve { enforce, .. } | Request::Change { enforce: Some(enforce), .. } => {
            enforce.is_auto()
        }
        Request::Hold { member, .. } => leaves_choice(member),
        Request::Apply { targets, .. } | Request::Canary { targets, .. } => {
            targets.iter().any(leaves_choice)
        }
        _ => false,
    }
}

/// Returns the mechanism that a reservation must have after a request. With `auto`, every mechanism
/// is allowed, so the reservation's actual mechanism in `after` is returned.
fn wanted(enforce: WantedMechanism, after: &Row) -> Enforcement {
    if enforce.is_auto() { after.terms.enforcement() } else { enforce.by() }
}

fn like(before: &Row, terms: Terms, paused: bool, after: &Row) -> bool {
    Row { terms, paused, revision: after.revision, ..before.clone() } == *after
}

fn named(name: &Name) -> Binding {
    format!("qemu:{name}").parse().expect("a name")
}

/// Checks at the end of a run that each request with a key had at most one effect.
pub(crate) fn once(history: &History, model: &Model) -> Checked {
    let mut effects: BTreeMap<Span, Vec<u64>> = BTreeMap::new();
    for event in &model.disk.events {
        let slice = |row: &Option<Row>| row.as_ref().map(|row| row.terms.each().slice());
        let (before, after) = (slice(&event.before), slice(&event.after));
        if let Some(after) = after.filter(|_| before != after) {
            effects.entry(after).or_default().push(event.seq);
        }
    }
    for sent in history.sent.iter().filter(|sent| sent.key.is_some()) {
        let amount = match &sent.request {
            Request::Reserve { amount, .. } | Request::Change { amount: Some(amount), .. } => {
                amount
            }
            _ => continue,
        };
        let Amount::Each(each) = amount else { continue };
        let effects = effects.get(&each.slice());
        let is_once = effects.is_none_or(|events| events.len() <= 1);
        hold!(is_once, "{} had several effects: {effects:?}", sent.request);
    }
    Ok(())
}
