//! What comes over the link and goes back, between the core's words and the front's.

use std::time::SystemTime;

use slackline_control::link::{Answer, Ask, Request as Wire, Said, Who};
use slackline_control::{self as control, Kind, Problem, convert};
use slackline_linux::sys::Tid;
use slackline_service::{ClientRequest, Event, Key, Name, Principal, Role, Ticket, Verb};
use slackline_units::{Reservation, Span, Time};

use super::access::{Access, Change, Rights};
use crate::find::Machine;
use crate::ledger::Logged;

/// What somebody asks of the core.
pub(super) enum Heard {
    /// What the service decides, and what its answer depends on besides.
    Service(ClientRequest, Rest),
    /// What this host is.
    Host(Ticket),
    /// How we are.
    Health(Ticket),
    /// What is counted: of a tenant's own reservations, if a tenant asks.
    Numbers(Ticket, Option<Principal>),
    /// Who may do what.
    Access(Ticket),
    /// Members of the group without a grant are to be tenants.
    MigrateAccess(Ticket, Principal),
    /// Somebody wants somebody to be let in, or not any more.
    ChangeAccess(Ticket, Principal, Change),
    /// Who it is that asks.
    Whoami(Ticket, Role),
    /// The caller of a request has gone.
    Cancel(Ticket),
}

/// What the service need not know of a question, but its answer depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    /// Only names after this.
    NamesAfter(String),
    /// For such a period.
    Period(Span),
}

impl Rest {
    fn of(request: &Wire) -> Rest {
        match request {
            Wire::List { after: Some(after), .. } => Rest::NamesAfter(after.clone()),
            Wire::Room { period } => Rest::Period(period.0),
            _ => Rest::Nothing,
        }
    }
}

/// Reads what came over the link. Who asks is believed; what that one may is looked up. `each` says
/// what a reservation has now, and `wall_ahead` by how much the clock on the wall is ahead
/// of the service's.
pub(super) fn heard(
    ask: Ask,
    access: &Access,
    (each, wall_ahead): (impl FnOnce(&Name) -> Option<Reservation>, Span),
) -> Result<Heard, (Ticket, Problem)> {
    let ticket = Ticket(ask.ticket);
    let fail = |problem| (ticket, problem);
    if matches!(ask.request, Wire::Cancel) {
        return Ok(Heard::Cancel(ticket));
    }
    let is_local = matches!(ask.who, Who::User { .. });
    let kind = if is_local { Kind::NotAllowed } else { Kind::NotKnown };
    let stranger = || Problem::new(kind, "the caller may not use the daemon");
    let rights = access.rights(&ask.who, SystemTime::now());
    let Rights { principal, role, users } = rights.ok_or_else(|| fail(stranger()))?;
    if is_about_access(&ask.request) && !is_local {
        let problem = Problem::new(Kind::NotAllowed, "`access` is not permitted over the network");
        return Err(fail(problem.hinting("run it on the host of the daemon")));
    }
    if is_about_access(&ask.request) && !role.may(Verb::Access) {
        let detail = format!("`access` is not permitted for role {}", role.word());
        let hint = "run it as root, or as a member of the group slackline-admin";
        return Err(fail(Problem::new(Kind::NotAllowed, detail).hinting(hint)));
    }
    match ask.request {
        Wire::ListAccess => return Ok(Heard::Access(ticket)),
        Wire::Whoami => return Ok(Heard::Whoami(ticket, role)),
        Wire::Grant { whom, grant } => {
            let wrong = |says| fail(Problem::new(Kind::Bad, says));
            let change = Access::grant(&whom, grant, SystemTime::now()).map_err(wrong)?;
            return Ok(Heard::ChangeAccess(ticket, principal, change));
        }
        Wire::Revoke { whom } => {
            let nothing = || {
                let detail = format!("there is no grant for {}", whom.escape_debug());
                let hint = "list grants with `slackline access list`";
                fail(Problem::new(Kind::NoSuchReservation, detail).hinting(hint))
            };
            let wrong = |says| fail(Problem::new(Kind::Bad, says));
            let change = access.revoke(&whom).map_err(wrong)?.ok_or_else(nothing)?;
            return Ok(Heard::ChangeAccess(ticket, principal, change));
        }
        Wire::Host => return Ok(Heard::Host(ticket)),
        Wire::Health => return Ok(Heard::Health(ticket)),
        Wire::Numbers => {
            let tenant = (role == Role::Tenant).then_some(principal);
            return Ok(Heard::Numbers(ticket, tenant));
        }
        Wire::MigrateAccess => return Ok(Heard::MigrateAccess(ticket, principal)),
        _ => {}
    }
    let rest = Rest::of(&ask.request);
    let request = ask.request.in_service(each, wall_ahead).map_err(fail)?;
    let bad = |says: String| fail(Problem::new(Kind::Bad, says));
    let request = request.ok_or_else(|| bad("the request is unknown".into()))?;
    let key = ask.key.map(|key| key.parse::<Key>()).transpose();
    let key = key.map_err(|error| bad(format!("the idempotency key {error}")))?;
    let role = Some(role);
    Ok(Heard::Service(ClientRequest { ticket, principal, role, users, key, request }, rest))
}

fn is_about_access(request: &Wire) -> bool {
    matches!(
        request,
        Wire::ListAccess | Wire::MigrateAccess | Wire::Grant { .. } | Wire::Revoke { .. }
    )
}

/// A machine, which reservation has it, and what it uses of a CPU, in millionths.
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
        vcpus: vcpus.collect(),
        reserved,
        why: machine.why.clone(),
        name: machine.name.clone(),
    }
}

/// What a tenant is shown in place of the names of others.
pub(super) const ANOTHER: &str = "another VM";

/// A VM as a tenant sees it that may not have it.
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

/// A reservation as a tenant sees it that does not own it: what it takes of the CPUs, no more.
pub(super) fn hidden_reservation(mut reservation: control::Reservation) -> control::Reservation {
    (reservation.gang, reservation.why, reservation.warning) = (None, None, None);
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

/// Something that was written down.
pub(super) fn logged(logged: Logged) -> control::Event {
    let Logged { seq, at, principal, what, name, before, after, was_late } = logged;
    let event = Event { seq, at: Time::START, principal, what, name, before, after, was_late };
    convert::event(&event, at)
}

/// An answer with a ticket.
pub(super) fn answered(ticket: Ticket, answer: Answer) -> Said {
    Said::Answer { ticket: ticket.0, answer }
}

/// A refusal with a ticket.
pub(super) fn refused(ticket: Ticket, problem: Problem) -> Said {
    Said::Refused { ticket: ticket.0, problem: Box::new(problem) }
}
