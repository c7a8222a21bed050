//! Changes to reservations that are in force but not in the ledger yet. Some of them stay in force
//! even if the ledger can never be written again.

use crate::binding::Binding;
use crate::event::Event;
use crate::name::{Key, Name};
use crate::principal::Principal;
use crate::request::Ticket;
use crate::row::Row;
use crate::terms::{Terms, TermsChange};

/// A change that was made and is not yet in the ledger.
#[derive(Debug)]
pub(crate) struct UncommittedChange {
    /// Name of the reservation.
    pub(crate) name: Name,
    /// Kind of the change.
    pub(crate) kind: Kind,
    /// The reservation immediately after the change. If the change ended the reservation, its last
    /// row.
    pub(crate) row: Row,
    /// Tickets of the requests that are answered after the commit of this change.
    pub(crate) tickets: Vec<Ticket>,
    /// Idempotency key and text of the request. `None` if the request had no key.
    pub(crate) key: Option<KeyedRequest>,
    /// Event that is published after the commit. `None` if nothing changed.
    pub(crate) event: Option<Event>,
    /// True if the change may be in force only together with the other changes of the same request.
    pub(crate) is_together: bool,
    /// Rows before and after the part of this change that would stay in force if the ledger could
    /// never be written again. `None` if this change would be reverted.
    pub(crate) remains: Option<Change>,
}

/// Rows of a reservation before and after a change. A row is `None` if the reservation did not
/// exist at that time.
pub(crate) type Change = (Option<Row>, Option<Row>);

/// Idempotency key and text of a request. By them, the service recognizes a request that is sent
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyedRequest {
    pub(crate) principal: Principal,
    pub(crate) key: Key,
    /// Text of the request in one line.
    pub(crate) asked: String,
}

/// Kind of a change to a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The reservation was made.
    Reserved,
    /// The terms were changed. The value is the requested change. It is not the resulting terms,
    /// because the terms to which the change was applied may be reverted.
    Terms(TermsChange),
    /// A plan, or the undoing of a plan, has set the terms.
    Put(Terms),
    /// The reservation was paused (true) or resumed (false).
    Paused(bool),
    /// The gang is broken, and the reservation continues without a gang.
    Alone,
    /// The reservation is now for another VM.
    Machine,
    /// The reservation now has this binding.
    Bound(Binding),
    /// The reservation has ended.
    Ended,
    /// The request changed nothing, because the reservation was already as requested.
    Same,
}

impl Kind {
    /// Applies the change to `slot`, the row that would stay in force if the ledger could never be
    /// written again.
    ///
    /// Returns true if the change would stay in force without the ledger. That is so if the change
    /// takes CPU time from no other reservation. A change that needs more capacity than the row in
    /// `slot` does not stay in force, because other reservations may have got the additional
    /// capacity.
    pub(crate) fn remains_in(&self, slot: &mut Option<Row>, after: &Row) -> bool {
        if let Kind::Ended = self {
            // A list may have released an earlier reservation of this name.
            slot.take_if(|row| row.since == after.since);
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
            Kind::Put(terms) => {
                let is_within = terms.is_within(row.terms);
                row.terms = if is_within { *terms } else { row.terms };
                is_within
            }
            Kind::Paused(paused) => {
                row.paused = *paused;
                true
            }
            Kind::Machine => {
                (row.identity, row.user) = (after.identity, after.user);
                row.by_uuid.clone_from(&after.by_uuid);
                true
            }
            Kind::Bound(binding) => {
                row.binding = binding.clone();
                (row.identity, row.user) = (after.identity, after.user);
                row.by_uuid.clone_from(&after.by_uuid);
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
