//! Translation between the messages on the link to the front process and the requests and answers
//! of the service.

use std::time::SystemTime;

use slackline_control::link::{Answer, Ask, CallerIdentity, CoreMessage, Request};
use slackline_control::{self as control, Kind, Problem, WhatIf, convert};
use slackline_linux::sys::Tid;
use slackline_service::{
    ClientRequest, Event, Key, Name, Principal, Reason, Role, Terms, Ticket, Verb,
};
use slackline_units::{Reservation, Span, Time};

use super::access::{Access, Change, Rights};
use super::flight::Question;
use crate::find::Machine;
use crate::ledger::LoggedEvent;

/// A request of the front process after it was checked and translated.
pub(super) enum ValidRequest {
    /// A request that the service handles, with the details that only its answer needs.
    Service(ClientRequest, Rest),
    /// Show the properties of this host.
    Host(Ticket),
    /// Show the health of the daemon.
    Health(Ticket),
    /// Show metrics. The principal is given if the caller is a tenant. A tenant gets only the
    /// metrics of the tenant's own reservations.
    Numbers(Ticket, Option<Principal>),
    /// List grants of access.
    Access(Ticket),
    /// Give the role tenant to members of the operators' group that have no grant.
    MigrateAccess(Ticket, Principal),
    /// Add or revoke a grant.
    ChangeAccess(Ticket, Principal, Change),
    /// Show the role of the caller.
    Whoami(Ticket, Role),
    /// Ask the flight recorder. The last field is the caller's principal if the caller is a tenant,
    /// and otherwise `None`.
    Flight((Ticket, Principal), Question, Option<Principal>),
    /// Predict the effect of changes, for a principal with this role.
    Whatif((Ticket, Principal), Role, WhatIf),
    /// The caller of a request has disconnected.
    Cancel(Ticket),
}

/// Details of a request that are not passed to the service, because only the answer needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    /// List only reservations whose names come after this name.
    NamesAfter(String),
    /// Period for which the available capacity is requested.
    Period(Span),
}

impl Rest {
    fn of(request: &Request) -> Rest {
        match request {
            Request::List { after: Some(after), .. } => Rest::NamesAfter(after.clone()),
            Request::Room { period } => Rest::Period(period.0),
            _ => Rest::Nothing,
        }
    }
}

/// Checks and translates a message of the front process. The front process states who the caller
/// is. This function determines the caller's permissions. The function `each` returns the owner of
/// the reservation with a given name, and its current slice and period. `wall_ahead` is the
/// wall-clock time less the time of the service's clock.
pub(super) fn heard(
    ask: Ask,
    access: &Access,
    (each, wall_ahead): (impl FnOnce(&Name) -> Option<(Principal, Reservation)>, Span),
) -> Result<ValidRequest, (Ticket, Problem)> {
    let ticket = Ticket(ask.ticket);
    let fail = |problem| (ticket, problem);
    match (&ask.request, &ask.who) {
        (Request::Cancel, _) => return Ok(ValidRequest::Cancel(ticket)),
        (request, CallerIdentity::Loopback) => return scraped(ticket, request),
        _ => {}
    }
    let is_local = matches!(ask.who, CallerIdentity::User { .. });
    let kind = if is_local { Kind::NotAllowed } else { Kind::NotKnown };
    let stranger = || Problem::new(kind, "the caller may not use the daemon");
    let rights = access.rights(&ask.who, SystemTime::now());
    let Rights { principal, role, users } = rights.ok_or_else(|| fail(stranger()))?;
    if is_about_access(&ask.request) && !is_local {
        let problem = Problem::new(Kind::NotAllowed, "`access` is not permitted over the network");
        return Err(fail(problem.hinting("run the command on the host of the daemon")));
    }
    check_role(&ask.request, role).map_err(fail)?;
    let tenant = (role == Role::Tenant).then_some(principal);
    match ask.request {
        Request::ListAccess => return Ok(ValidRequest::Access(ticket)),
        Request::Whoami => return Ok(ValidRequest::Whoami(ticket, role)),
        Request::Grant { whom, grant } => {
            let wrong = |says| fail(Problem::new(Kind::Bad, says));
            let change = Access::grant(&whom, grant, SystemTime::now()).map_err(wrong)?;
            return Ok(ValidRequest::ChangeAccess(ticket, principal, change));
        }
        Request::Revoke { whom } => {
            let nothing = || {
                let detail = format!("there is no grant for {}", whom.escape_debug());
                let hint = "list grants with `slackline access list`";
                fail(Problem::new(Kind::NoSuchReservation, detail).hinting(hint))
            };
            let wrong = |says| fail(Problem::new(Kind::Bad, says));
            let change = access.revoke(&whom).map_err(wrong)?.ok_or_else(nothing)?;
            return Ok(ValidRequest::ChangeAccess(ticket, principal, change));
        }
        Request::Host => return Ok(ValidRequest::Host(ticket)),
        Request::Health => return Ok(ValidRequest::Health(ticket)),
        Request::Numbers => return Ok(ValidRequest::Numbers(ticket, tenant)),
        Request::MigrateAccess => return Ok(ValidRequest::MigrateAccess(ticket, principal)),
        Request::Whatif(asked) => {
            return Ok(ValidRequest::Whatif((ticket, principal), role, asked));
        }
        Request::Why { .. }
        | Request::WhyIncident { .. }
        | Request::Incidents
        | Request::Record { .. }
        | Request::Predict(_)
        | Request::Timeline { .. }
        | Request::Predictions => {
            let asker = (ticket, principal);
            return Ok(ValidRequest::Flight(asker, question(ask.request), tenant));
        }
        _ => {}
    }
    let (rest, each) = (Rest::of(&ask.request), |name: &Name| seen_by(tenant, each(name)));
    let request = ask.request.in_service(each, wall_ahead).map_err(fail)?;
    let bad = |says: String| fail(Problem::new(Kind::Bad, says));
    let request = request
        .ok_or_else(|| bad("this version of the daemon does not know the request".into()))?;
    let key = ask.key.map(|key| key.parse::<Key>()).transpose();
    let key = key.map_err(|error| bad(format!("the idempotency key {error}")))?;
    let role = Some(role);
    Ok(ValidRequest::Service(ClientRequest { ticket, principal, role, users, key, request }, rest))
}

/// Returns the slice and period of a reservation, given with its owner. `None` if the caller is the
/// tenant `tenant` and not the owner: for a tenant, reservations of other owners do not exist.
fn seen_by(tenant: Option<Principal>, of: Option<(Principal, Reservation)>) -> Option<Reservation> {
    let of = of.filter(|(owner, _)| tenant.is_none_or(|tenant| tenant == *owner));
    of.map(|(_, each)| each)
}

/// Checks that a caller's role permits a request, for the requests that the service itself does not
/// check.
fn check_role(request: &Request, role: Role) -> Result<(), Problem> {
    let administrators = "run the command as root, or as a member of the group slackline-admin";
    let (word, needed, hint) = match request {
        Request::Record { .. } => ("record", Verb::Access, administrators),
        Request::Predict(_) => {
            ("predictions", Verb::Change, "ask an administrator for another role")
        }
        request if is_about_access(request) => ("access", Verb::Access, administrators),
        _ => return Ok(()),
    };
    if role.may(needed) {
        return Ok(());
    }
    let detail = format!("`{word}` is not permitted for role {}", role.word());
    Err(Problem::new(Kind::NotAllowed, detail).hinting(hint))
}

/// Translates a request that arrived on the loopback address for metrics.
fn scraped(ticket: Ticket, request: &Request) -> Result<ValidRequest, (Ticket, Problem)> {
    match request {
        Request::Numbers => Ok(ValidRequest::Numbers(ticket, None)),
        _ => Err((ticket, Problem::new(Kind::NotAllowed, "this address serves only metrics"))),
    }
}

/// Translates a request into a query for the flight recorder.
fn question(request: Request) -> Question {
    match request {
        Request::Why { name } => Question::Why(name),
        Request::WhyIncident { id } => Question::Incident(id),
        Request::Record { since } => Question::Record(since.0),
        Request::Predict(predictions) => Question::Predict(predictions),
        Request::Predictions => Question::Predictions,
        Request::Timeline { from } => Question::Timeline(from),
        _ => Question::Incidents,
    }
}

fn is_about_access(request: &Request) -> bool {
    matches!(
        request,
        Request::ListAccess
            | Request::MigrateAccess
            | Request::Grant { .. }
            | Request::Revoke { .. }
    )
}

/// Returns a VM as clients see it. The result contains the VM's reservation, and the amount of CPU
/// that the VM uses in millionths of one CPU.
pub(super) fn machine(
    machine: &Machine,
    reserved: Option<String>,
    uses: Option<u32>,
) -> control::Machine {
    let pid = machine.pid().map_or(0, Tid::raw);
    let vcpus = machine.vcpus.iter().filter_map(|vcpu| {
        let number = u16::try_from(vcpu.number).ok()?;
        Some(control::Thread { vcpu: number, tid: vcpu.tid.raw() })
    });
    control::Machine {
        kind: machine.kind.word().into(),
        binding: machine.binding.to_string(),
        uid: machine.owner,
        pid,
        cpu_ppm: uses,
        vcpus: vcpus.take(MOST_VCPUS).collect(),
        reserved,
        why: machine.why.as_deref().map(|why| convert::shortened(why, convert::LONGEST_WHY)),
        name: convert::shortened(&machine.name, LONGEST_NAME),
    }
}

/// Maximum length of a VM's name in the list of VMs, in bytes. Users can give a VM a longer name.
pub(super) const LONGEST_NAME: usize = 255;

/// Maximum number of vCPUs of a VM in the list of VMs. A VM with more vCPUs cannot have a
/// reservation.
pub(super) const MOST_VCPUS: usize = Terms::MOST_VCPUS as usize;

/// Text that a tenant sees in place of the name of another user's VM.
pub(super) const ANOTHER: &str = control::ANOTHER_VM;

/// Returns a VM as it is shown to a tenant who may not reserve CPU time for that VM.
pub(super) fn hidden_machine(machine: control::Machine) -> control::Machine {
    control::Machine {
        name: ANOTHER.into(),
        binding: ANOTHER.into(),
        uid: u32::MAX,
        pid: 0,
        cpu_ppm: None,
        vcpus: Vec::new(),
        why: None,
        reserved: machine.reserved.map(|_| ANOTHER.into()),
        ..machine
    }
}

/// Returns a reservation as it is shown to tenants who do not own it. They see its share of the
/// CPUs, but neither names nor measured values.
pub(super) fn hidden_reservation(mut reservation: control::Reservation) -> control::Reservation {
    (reservation.gang, reservation.why, reservation.warning) = (None, None, None);
    reservation.chosen = None;
    (reservation.recent, reservation.total, reservation.cost) = (None, None, None);
    control::Reservation {
        name: ANOTHER.into(),
        owner: "another user".into(),
        binding: ANOTHER.into(),
        user: u32::MAX,
        revision: 0,
        ..reservation
    }
}

/// Returns a tenant's reservation as the tenant sees it. If another reservation already has the VM,
/// the result does not name that reservation, since it can belong to another owner. If the
/// reservation waits for its VM, the result does not show if another user has such a VM.
pub(super) fn without_others(
    reservation: control::Reservation,
    reason: Option<&Reason>,
) -> control::Reservation {
    let why = match reason {
        Some(Reason::Taken(_)) => "the VM has another reservation".to_owned(),
        Some(Reason::Absent(binding) | Reason::Foreign { binding, .. }) => {
            format!("{binding} is not on this host, or belongs to another user")
        }
        _ => return reservation,
    };
    control::Reservation { why: Some(why), ..reservation }
}

/// Returns an event of the log as it is sent to clients.
pub(super) fn logged(logged: LoggedEvent) -> control::Event {
    let LoggedEvent { seq, at, principal, what, name, before, after, was_late } = logged;
    let event = Event { seq, at: Time::START, principal, what, name, before, after, was_late };
    convert::event(&event, at)
}

/// Returns an answer to the request with this ticket.
pub(super) fn answered(ticket: Ticket, answer: Answer) -> CoreMessage {
    CoreMessage::Answer { ticket: ticket.0, answer }
}

/// Returns a refusal of the request with this ticket.
pub(super) fn refused(ticket: Ticket, problem: Problem) -> CoreMessage {
    CoreMessage::Refused { ticket: ticket.0, problem: Box::new(problem) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a reservation whose text fields all contain the name `web`.
    fn web(why: &str) -> control::Reservation {
        serde_json::from_value(serde_json::json!({
            "name": "web", "owner": "web, uid 5001", "for": "qemu:web", "user": 5001,
            "slice": "2ms", "slice_ns": 2_000_000, "period": "10ms", "period_ns": 10_000_000,
            "exact": true, "chosen": "dispatcher: web", "gang": "web", "vcpus": 1, "served": 1,
            "state": "active", "why": why, "warning": "web", "revision": 5001
        }))
        .unwrap()
    }

    #[test]
    fn vm_and_reservation_of_another_user_are_shown_without_names() {
        let vm = serde_json::json!({
            "kind": "qemu", "binding": "qemu:web", "name": "web", "uid": 5001, "pid": 4711,
            "cpu_ppm": 1, "vcpus": [{ "vcpu": 0, "tid": 4712 }], "reserved": "web", "why": "web"
        });
        let vm = hidden_machine(serde_json::from_value(vm).unwrap());
        let reservation = hidden_reservation(web("web"));
        for shown in [serde_json::to_string(&vm), serde_json::to_string(&reservation)] {
            let shown = shown.unwrap();
            for hidden in ["web", "5001", "4711", "4712"] {
                assert!(!shown.contains(hidden), "{hidden} is in {shown}");
            }
            assert!(shown.contains(ANOTHER), "{shown}");
        }
        assert_eq!(reservation.slice_ns, 2_000_000);
    }

    #[test]
    fn reason_shown_to_tenant_omits_name_of_foreign_reservation() {
        let shown =
            |reason: Reason| without_others(web(&reason.to_string()), Some(&reason)).why.unwrap();
        assert_eq!(shown(Reason::Taken("db".parse().unwrap())), "the VM has another reservation");
        assert_eq!(shown(Reason::NoRoom("full".into())), "not enough capacity: full");
    }

    #[test]
    fn tenant_sees_same_reason_for_absent_and_foreign_vm() {
        let binding = || "qemu:db".parse().unwrap();
        let foreign = Reason::Foreign { binding: binding(), user: 5001, meant: 5002 };
        for reason in [Reason::Absent(binding()), foreign] {
            let shown = without_others(web(&reason.to_string()), Some(&reason)).why.unwrap();
            assert_eq!(shown, "qemu:db is not on this host, or belongs to another user");
        }
    }

    /// The requests set only the slice, so the present period of the reservation is needed. The
    /// slice does not fit into that period.
    #[test]
    fn change_request_does_not_reveal_period_of_foreign_reservation() {
        let people = crate::people::People { operators: Some(990), administrators: None };
        let access = Access::new(people, Vec::new(), true);
        let refused = |owner: Option<Principal>| {
            let change = serde_json::from_str(r#"{"slice":"30ms"}"#).unwrap();
            let request = Request::Change { name: "db".into(), change, if_revision: None };
            let who = CallerIdentity::User { uid: 1000, gids: vec![990] };
            let period = Reservation::new(Span::from_ms(2), Span::from_ms(10)).unwrap();
            let each = |_: &Name| owner.map(|owner| (owner, period));
            let ask = Ask { ticket: 1, who, key: None, request };
            heard(ask, &access, (each, Span::ZERO)).err().unwrap().1
        };
        assert_eq!(refused(Some(Principal::User(1000))).kind, Kind::Bad);
        let unknown = refused(None);
        assert_eq!(unknown.kind, Kind::NoSuchReservation);
        assert_eq!(refused(Some(Principal::User(0))), unknown);
    }
}
