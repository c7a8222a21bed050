//! What was done to a reservation, and what of it would remain if it could not be written down.

use crate::event::Event;
use crate::machine::Identity;
use crate::name::{Key, Name};
use crate::principal::Principal;
use crate::request::Ticket;
use crate::row::Row;
use crate::terms::TermsChange;

/// Something that was done and is not written down yet.
#[derive(Debug)]
pub(crate) struct Deed {
    /// To whom.
    pub(crate) name: Name,
    /// What.
    pub(crate) kind: Kind,
    /// The reservation as it was right after; as it was last, if it is over.
    pub(crate) row: Row,
    /// Who is to be answered.
    pub(crate) tickets: Vec<Ticket>,
    /// What it was asked for with.
    pub(crate) key: Option<Keyed>,
    /// What is told of it; nothing, if nothing changed.
    pub(crate) event: Option<Event>,
    /// What it would have changed, if it remains although it and what was before it cannot be
    /// written down.
    pub(crate) remains: Option<Change>,
}

/// A reservation before and after.
pub(crate) type Change = (Option<Row>, Option<Row>);

/// What a request was asked for with, to know it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keyed {
    pub(crate) principal: Principal,
    pub(crate) key: Key,
    /// The request in a line.
    pub(crate) asked: String,
}

/// What can be done to a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It was made.
    Reserved,
    /// It has other terms: as they were asked for, since those that were changed may themselves not
    /// remain.
    Terms(TermsChange),
    /// It is paused, or not.
    Paused(bool),
    /// Its gang is broken, and it goes on.
    Alone,
    /// This is its machine.
    Machine(Option<Identity>),
    /// It is over.
    Ended,
    /// It is so already.
    Same,
}

impl Kind {
    /// Does it to what would remain if nothing could be written down any more. Says whether it
    /// remains: what takes time from nobody does. What would need more room than there was at the
    /// last commit does not, since others may have been given it.
    pub(crate) fn remains_in(&self, slot: &mut Option<Row>, after: &Row) -> bool {
        if let Kind::Ended = self {
            *slot = None;
            return true;
        }
        let Some(row) = slot.as_mut().filter(|row| row.since == after.since) else { return false };
        let remains = match self {
            Kind::Reserved | Kind::Ended => false,
            Kind::Terms(change) => {
                let terms = change.of(row.terms).ok().filter(|terms| terms.is_within(row.terms));
                row.terms = terms.unwrap_or(row.terms);
                terms.is_some()
            }
            Kind::Paused(paused) => {
                row.paused = *paused;
                true
            }
            Kind::Machine(identity) => {
                row.identity = *identity;
                row.user = after.user;
                true
            }
            Kind::Alone => {
                row.gang = None;
                true
            }
            Kind::Same => row.terms == after.terms,
        };
        if remains && !matches!(self, Kind::Same) {
            row.revision = after.revision;
        }
        remains
    }
}
