//! What happened, to be written down and told.

use std::fmt;

use slackline_units::Time;

use crate::name::Name;
use crate::principal::{Principal, Verb};
use crate::row::Row;

/// Something that happened, with what was before and what came of it. There is one for each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number: later ones have higher numbers, on this host for ever. Numbers may be left out.
    pub seq: u64,
    /// When, by the service's clock.
    pub at: Time,
    /// By whom.
    pub principal: Principal,
    /// What.
    pub what: Happened,
    /// To which reservation, if it was to one.
    pub name: Option<Name>,
    /// What was promised under that name before; none is nothing.
    pub before: Option<Row>,
    /// What is promised since then.
    pub after: Option<Row>,
    /// Whether it could not be written down at the time: nobody was told that it is durable.
    pub was_late: bool,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// Somebody asked for it, and it was done.
    Asked(Verb),
    /// Its machine appeared.
    Appeared,
    /// Its machine disappeared.
    Vanished,
    /// The vCPUs of its machine became more or fewer.
    Vcpus {
        /// How many there are.
        there: u16,
    },
    /// Its threads were changed, and that was undone. Says what the change was.
    Meddled(String),
    /// Another program has changed its threads and keeps them. Says what the change was.
    Contested(String),
    /// Such a change was undone. Its threads are scheduled again.
    Settled,
    /// After a restart its promise is in force again.
    Adopted,
    /// After a restart its promise is not in force, and why.
    NotAdopted(String),
    /// Who may do what from now on, in a line.
    Granted(String),
    /// Who may do nothing any more but what anybody may.
    Revoked(String),
    /// What did not fit fits again.
    Fits,
    /// Its gang is broken, and who is lost.
    GangBroken(String),
    /// The keeper died and was replaced.
    KeeperReplaced,
    /// The clock on the wall was set, by how much, and whose periods are stretched for it.
    ClockStepped(String),
    /// A CPU cannot deliver its reservations. Names the CPU, with reservations and overhead.
    Overloaded(String),
    /// A CPU can deliver its reservations again. Names the CPU, with reservations and overhead.
    OverloadEnded(String),
    /// The ledger cannot be written, and why.
    LedgerFailing(String),
    /// The ledger can be written again; so many events were not kept.
    LedgerWhole {
        /// How many.
        lost: u64,
    },
}

impl Happened {
    /// Words of the events that no request is, with the meaning of each.
    pub const WORDS: [(&str, &str); 16] = [
        ("appeared", "the VM is there again; its threads are scheduled"),
        ("vanished", "the VM has ended; its capacity stays reserved"),
        ("vcpus", "the number of vCPUs of the VM has changed"),
        ("meddled", "a change of held threads was undone; says which"),
        ("contested", "an administrator's or libvirt's change is respected; says which"),
        ("settled", "such a change was undone; the threads are scheduled again"),
        ("adopted", "a new daemon enforces the reservation again"),
        ("not-adopted", "a new daemon cannot enforce it; says why"),
        ("granted", "a user or client has a new role"),
        ("revoked", "a grant was removed"),
        ("fits", "a reservation that lost its capacity has it again"),
        ("keeper-replaced", "the keeper process died and was replaced"),
        ("gang-broken", "a member of the gang is lost; says which"),
        ("clock-stepped", "the wall clock was set; says which periods are longer or shorter"),
        ("ledger-failing", "the ledger cannot be written; says why"),
        ("ledger-whole", "the ledger is written again; says how many events were lost"),
    ];

    /// Returns the event in a word, such as `adopted`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Happened::Asked(verb) => verb.word(),
            Happened::Appeared => "appeared",
            Happened::Vanished => "vanished",
            Happened::Vcpus { .. } => "vcpus",
            Happened::Meddled(_) => "meddled",
            Happened::Contested(_) => "contested",
            Happened::Settled => "settled",
            Happened::Adopted => "adopted",
            Happened::NotAdopted(_) => "not-adopted",
            Happened::Granted(_) => "granted",
            Happened::Revoked(_) => "revoked",
            Happened::Fits => "fits",
            Happened::KeeperReplaced => "keeper-replaced",
            Happened::GangBroken(_) => "gang-broken",
            Happened::ClockStepped(_) => "clock-stepped",
            Happened::Overloaded(_) => "overloaded",
            Happened::OverloadEnded(_) => "overload-ended",
            Happened::LedgerFailing(_) => "ledger-failing",
            Happened::LedgerWhole { .. } => "ledger-whole",
        }
    }
}

impl fmt::Display for Happened {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word();
        match self {
            // Ledgers of older versions have no detail.
            Happened::Meddled(how) | Happened::Contested(how) if how.is_empty() => {
                out.write_str(word)
            }
            Happened::Vcpus { there } => write!(out, "{word}: the VM has {there}"),
            Happened::NotAdopted(why)
            | Happened::Meddled(why)
            | Happened::Contested(why)
            | Happened::LedgerFailing(why)
            | Happened::GangBroken(why)
            | Happened::ClockStepped(why)
            | Happened::Overloaded(why)
            | Happened::OverloadEnded(why)
            | Happened::Granted(why)
            | Happened::Revoked(why) => {
                write!(out, "{word}: {why}")
            }
            Happened::LedgerWhole { lost } if *lost > 0 => {
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
    fn every_event_word_is_explained() {
        let text = String::new;
        let all = [
            Happened::Appeared,
            Happened::Vanished,
            Happened::Vcpus { there: 1 },
            Happened::Meddled(text()),
            Happened::Contested(text()),
            Happened::Settled,
            Happened::Adopted,
            Happened::NotAdopted(text()),
            Happened::Granted(text()),
            Happened::Revoked(text()),
            Happened::Fits,
            Happened::KeeperReplaced,
            Happened::GangBroken(text()),
            Happened::ClockStepped(text()),
            Happened::LedgerFailing(text()),
            Happened::LedgerWhole { lost: 0 },
        ];
        let words: Vec<&str> = Happened::WORDS.iter().map(|(word, _)| *word).collect();
        assert_eq!(all.map(|event| event.word()).as_slice(), words);
    }
}
