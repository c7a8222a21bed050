//! Events: changes that are written to the ledger and then published to clients.

use std::fmt;

use slackline_units::Time;

use crate::name::Name;
use crate::principal::{Principal, Verb};
use crate::row::Row;

/// A change, with the reservation before and after the change. Each change is one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the event. It increases with each event on this host, even across restarts. The
    /// numbers can have gaps.
    pub seq: u64,
    /// Time of the change, by the service's clock.
    pub at: Time,
    /// Principal that caused the change.
    pub principal: Principal,
    /// Kind of the change.
    pub what: EventKind,
    /// Name of the reservation that the event concerns. `None` if it concerns no reservation.
    pub name: Option<Name>,
    /// The reservation before the change. `None` if the reservation did not exist before, and for
    /// most events that change no reservation.
    pub before: Option<Row>,
    /// The reservation after the change. `None` if the reservation has ended, and for most events
    /// that change no reservation.
    pub after: Option<Row>,
    /// True if the ledger could not be written when the event happened. At that time, no answer to
    /// a request could confirm that the change was durable.
    pub was_late: bool,
}

/// Kind of an event, with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A request of this kind was carried out.
    Asked(Verb),
    /// A request changed the parameters of a reservation and gave a reason. The text is the reason.
    Explained(String),
    /// The VM of a reservation has been found on the host.
    Appeared,
    /// The libvirt domain of a reservation was renamed, and the reservation follows it. The text
    /// names the old and the new binding.
    Renamed(String),
    /// The VM of a reservation has ended.
    Vanished,
    /// The number of vCPUs of a VM changed.
    Vcpus {
        /// Number of vCPUs that the VM has after the change.
        there: u16,
    },
    /// The VM itself or a user changed the scheduling of the VM's threads, and the daemon undid the
    /// change. The text describes the change.
    Meddled(String),
    /// Another program changed threads of the VM, and the daemon leaves those threads to that
    /// program. The text describes the change.
    Contested(String),
    /// The change that made the VM contested was undone, and the service schedules the threads
    /// again.
    Settled,
    /// The VM missed deadlines, and a recording of them was saved as an incident. The text contains
    /// the number of missed deadlines and the number of the incident. The fields `before` and
    /// `after` of the event are equal.
    Incident(String),
    /// After a restart of the service, the reservation is in force again.
    Adopted,
    /// After a restart of the service, the reservation is not in force. The text gives the reason.
    NotAdopted(String),
    /// A principal was granted access. The text describes the access in one line.
    Granted(String),
    /// The access of a principal was revoked. The text names the principal.
    Revoked(String),
    /// A reservation that had lost its capacity has enough capacity again.
    Fits,
    /// The end time of the reservation has come.
    Expired,
    /// The gang of the reservation is broken. The text names the lost member.
    GangBroken(String),
    /// A plan with a canary has reached another stage. The text describes the stage.
    Canary(String),
    /// The service chose the mechanism of a reservation with `auto`. The text names the mechanism
    /// and the reason. This event follows the event of the change. Its fields `before` and `after`
    /// are `None`.
    Chosen(String),
    /// The keeper process, which restores threads if the daemon dies, has died and was replaced.
    KeeperReplaced,
    /// The wall clock was set. The text contains the length of the step, the oldest reservation
    /// whose period became longer or shorter, and the number of further such reservations.
    ClockStepped(String),
    /// A CPU cannot deliver its reservations. The text names the CPU, the reserved share and the
    /// overhead.
    Overloaded(String),
    /// A CPU can deliver its reservations again. The text names the CPU, the reserved share and the
    /// overhead.
    OverloadEnded(String),
    /// The ledger cannot be written. The text gives the reason.
    LedgerFailing(String),
    /// The ledger can be written again.
    LedgerWhole {
        /// Number of events that were dropped while the ledger could not be written.
        lost: u64,
    },
}

impl EventKind {
    /// Words for all kinds of events that no request causes, each with its meaning for users.
    pub const WORDS: [(&str, &str); 23] = [
        ("appeared", "the VM has started again; its threads are scheduled"),
        ("renamed", "libvirt has renamed the VM; the reservation stays; the event has both names"),
        ("vanished", "the VM has ended; its capacity stays reserved"),
        ("vcpus", "the number of vCPUs of the VM has changed"),
        ("meddled", "a change by a VM to its own threads was undone; the event names the change"),
        (
            "contested",
            "an administrator or libvirt changed the VM's threads; the event names the change, \
             which stays",
        ),
        (
            "settled",
            "the change that led to `contested` was undone; the VM's threads are scheduled again",
        ),
        ("incident", "the VM missed deadlines; the event has the number of the saved incident"),
        ("adopted", "a new daemon enforces the reservation again"),
        ("not-adopted", "a new daemon cannot enforce the reservation; the event has the reason"),
        ("granted", "a user or remote client received a role"),
        ("revoked", "a grant of a user or remote client was revoked"),
        ("fits", "a reservation that had lost its capacity has the capacity again"),
        ("expired", "the reservation has ended, as its end time has come; its VM runs on"),
        (
            "canary",
            "a plan changes and watches one VM, then changes the other VMs or undoes the change",
        ),
        ("chosen", "`--enforce auto` has chosen a mechanism; the event has the reason"),
        ("keeper-replaced", "the keeper process died and was replaced"),
        ("gang-broken", "the gang of the reservation lost a member; the event names the member"),
        (
            "clock-stepped",
            "the wall clock was set; the event names a reservation whose period became longer or \
             shorter, and has the number of others",
        ),
        ("overloaded", "a CPU cannot deliver what is reserved on it; the event has the amounts"),
        ("overload-ended", "a CPU can deliver what is reserved on it again"),
        ("ledger-failing", "the ledger cannot be written; the event has the reason"),
        (
            "ledger-whole",
            "the ledger can be written again; the event has the number of events that were lost",
        ),
    ];

    /// Returns the word for the event, such as `adopted`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            EventKind::Asked(verb) => verb.word(),
            EventKind::Explained(_) => Verb::Change.word(),
            EventKind::Appeared => "appeared",
            EventKind::Renamed(_) => "renamed",
            EventKind::Vanished => "vanished",
            EventKind::Vcpus { .. } => "vcpus",
            EventKind::Meddled(_) => "meddled",
            EventKind::Contested(_) => "contested",
            EventKind::Settled => "settled",
            EventKind::Incident(_) => "incident",
            EventKind::Adopted => "adopted",
            EventKind::NotAdopted(_) => "not-adopted",
            EventKind::Granted(_) => "granted",
            EventKind::Revoked(_) => "revoked",
            EventKind::Fits => "fits",
            EventKind::Expired => "expired",
            EventKind::Canary(_) => "canary",
            EventKind::Chosen(_) => "chosen",
            EventKind::KeeperReplaced => "keeper-replaced",
            EventKind::GangBroken(_) => "gang-broken",
            EventKind::ClockStepped(_) => "clock-stepped",
            EventKind::Overloaded(_) => "overloaded",
            EventKind::OverloadEnded(_) => "overload-ended",
            EventKind::LedgerFailing(_) => "ledger-failing",
            EventKind::LedgerWhole { .. } => "ledger-whole",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word();
        match self {
            // Ledgers that older versions wrote have no details.
            EventKind::Meddled(how) | EventKind::Contested(how) if how.is_empty() => {
                out.write_str(word)
            }
            EventKind::Vcpus { there } => write!(out, "{word}: the VM has {there} vCPUs"),
            EventKind::Explained(why)
            | EventKind::NotAdopted(why)
            | EventKind::Renamed(why)
            | EventKind::Meddled(why)
            | EventKind::Contested(why)
            | EventKind::Incident(why)
            | EventKind::LedgerFailing(why)
            | EventKind::GangBroken(why)
            | EventKind::ClockStepped(why)
            | EventKind::Canary(why)
            | EventKind::Chosen(why)
            | EventKind::Overloaded(why)
            | EventKind::OverloadEnded(why)
            | EventKind::Granted(why)
            | EventKind::Revoked(why) => {
                write!(out, "{word}: {why}")
            }
            EventKind::LedgerWhole { lost } if *lost > 0 => {
                write!(out, "{word}: {lost} events were lost")
            }
            _ => out.write_str(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_kind_has_a_help_text() {
        let text = String::new;
        let all = [
            EventKind::Appeared,
            EventKind::Renamed(text()),
            EventKind::Vanished,
            EventKind::Vcpus { there: 1 },
            EventKind::Meddled(text()),
            EventKind::Contested(text()),
            EventKind::Settled,
            EventKind::Incident(text()),
            EventKind::Adopted,
            EventKind::NotAdopted(text()),
            EventKind::Granted(text()),
            EventKind::Revoked(text()),
            EventKind::Fits,
            EventKind::Expired,
            EventKind::Canary(text()),
            EventKind::Chosen(text()),
            EventKind::KeeperReplaced,
            EventKind::GangBroken(text()),
            EventKind::ClockStepped(text()),
            EventKind::Overloaded(text()),
            EventKind::OverloadEnded(text()),
            EventKind::LedgerFailing(text()),
            EventKind::LedgerWhole { lost: 0 },
        ];
        // A change with a stated reason is shown under the word of its request.
        assert_eq!(EventKind::Explained("more misses".into()).to_string(), "change: more misses");
        let words: Vec<&str> = EventKind::WORDS.iter().map(|(word, _)| *word).collect();
        assert_eq!(all.map(|event| event.word()).as_slice(), words);
    }
}
