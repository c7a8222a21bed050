//! What comes over the link and goes back, between the core's words and the front's.

use slackline_control::link::{Answer, Ask, Request as Wire, Said};
use slackline_control::{self as control, Kind, Problem, convert};
use slackline_live::sys::Tid;
use slackline_service::{Asked, Event, Key, Name, Principal, Ticket};
use slackline_units::{Reservation, Span, Time};

use crate::find::Machine;
use crate::ledger::Logged;
use crate::people::People;

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
/// what a reservation has now.
pub(super) fn heard(
    ask: Ask,
    people: &People,
    each: impl FnOnce(&Name) -> Option<Reservation>,
) -> Result<Heard, (Ticket, Problem)> {
    let ticket = Ticket(ask.ticket);
    let fail = |problem| (ticket, problem);
    let role = people.role(ask.uid, &ask.gids);
    if role.is_none() {
        return Err(fail(Problem::new(Kind::NotAllowed, "you may not ask this service anything")));
    }
    match ask.request {
        Wire::Host => return Ok(Heard::Host(ticket)),
        Wire::Health => return Ok(Heard::Health(ticket)),
        Wire::Numbers => return Ok(Heard::Numbers(ticket)),
        _ => {}
    }
    let rest = Rest::of(&ask.request);
    let request = ask.request.in_service(each).map_err(fail)?;
    let bad = |says: String| fail(Problem::new(Kind::Bad, says));
    let request = request.ok_or_else(|| bad("nobody knows that".into()))?;
    let key = ask.key.map(|key| key.parse::<Key>()).transpose();
    let key = key.map_err(|error| bad(format!("the key {error}")))?;
    let principal = Principal::User(ask.uid);
    Ok(Heard::Service(Asked { ticket, principal, role, key, request }, rest))
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
