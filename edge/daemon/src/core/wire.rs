//! What comes over the link and goes back, between the core's words and the front's.

use std::time::SystemTime;

use slackline_control::link::{Answer, Ask, Request as Wire, Said, Who};
use slackline_control::{self as control, Kind, Problem, convert};
use slackline_live::sys::Tid;
use slackline_service::{Asked, Event, Key, Name, Principal, Role, Ticket, Verb};
use slackline_units::{Reservation, Span, Time};

use super::access::{Access, Change, Rights};
use crate::find::Machine;
use crate::ledger::Logged;

/// What somebody asks of the core.
pub(super) enum Heard {
    /// What the service decides, and what its answer depends on besides.
    Service(Asked, Rest),
    /// What this host is.
    Host(Ticket),
    /// How we are.
    Health(Ticket),
    /// What is counted.
    Numbers(Ticket),
    /// Who may do what.
    Access(Ticket),
    /// Somebody wants somebody to be let in, or not any more.
    ChangeAccess(Ticket, Principal, Change),
    /// Who it is that asks.
    Whoami(Ticket, Role),
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
    let is_local = matches!(ask.who, Who::User { .. });
    let kind = if is_local { Kind::NotAllowed } else { Kind::NotKnown };
    let stranger = || Problem::new(kind, "you may not ask this service anything");
    let rights = access.rights(&ask.who, SystemTime::now());
    let Rights { principal, role, users } = rights.ok_or_else(|| fail(stranger()))?;
    if is_about_access(&ask.request) && !is_local {
        let problem = Problem::new(Kind::NotAllowed, "`access` is not for other machines");
        return Err(fail(problem.hinting("ask on the machine itself, over its socket")));
    }
    if is_about_access(&ask.request) && !role.may(Verb::Access) {
        let detail = format!("`access` is not for {}s", role.word());
        let hint = "ask as root, or as one of the group slackline-admin";
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
                let detail = format!("nothing is said of {}", whom.escape_debug());
                let hint = "`slackline access list` shows of whom something is";
                fail(Problem::new(Kind::NoSuchReservation, detail).hinting(hint))
            };
            let wrong = |says| fail(Problem::new(Kind::Bad, says));
            let change = access.revoke(&whom).map_err(wrong)?.ok_or_else(nothing)?;
            return Ok(Heard::ChangeAccess(ticket, principal, change));
        }
        Wire::Host => return Ok(Heard::Host(ticket)),
        Wire::Health => return Ok(Heard::Health(ticket)),
        Wire::Numbers => return Ok(Heard::Numbers(ticket)),
        _ => {}
    }
    let rest = Rest::of(&ask.request);
    let request = ask.request.in_service(each, wall_ahead).map_err(fail)?;
    let bad = |says: String| fail(Problem::new(Kind::Bad, says));
    let request = request.ok_or_else(|| bad("nobody knows that".into()))?;
    let key = ask.key.map(|key| key.parse::<Key>()).transpose();
    let key = key.map_err(|error| bad(format!("the key {error}")))?;
    let role = Some(role);
    Ok(Heard::Service(Asked { ticket, principal, role, users, key, request }, rest))
}

fn is_about_access(request: &Wire) -> bool {
    matches!(request, Wire::ListAccess | Wire::Grant { .. } | Wire::Revoke { .. })
}

/// A machine, which reservation has it, and what it uses of a CPU, in millionths.
pub(super) fn machine(
    machine: Machine,
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
        why: machine.why,
        name: machine.name,
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
