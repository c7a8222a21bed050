//! Raises: reservations that a principal increased or moved for another owner. They count against
//! the budget of that principal, also after a restart of the service.

use std::collections::BTreeMap;

use crate::name::Name;
use crate::principal::Principal;
use crate::row::Row;
use crate::terms::Terms;

/// Maximum number of recorded raises. Each raise is a row of the ledger.
pub(crate) const MOST_RAISES: usize = 10_000;

/// Increase of a reservation, or its move to another VM, by a principal that is neither the owner
/// of the reservation nor an administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raise {
    /// Principal that raised the reservation.
    pub by: Principal,
    /// Number of the event that made the reservation. A later reservation of the same name has
    /// another number.
    pub since: u64,
    /// Terms before the first raise by this principal. If `None`, the whole reservation counts: the
    /// principal bound it to another VM, made it last longer, or dropped its hard limit.
    pub from: Option<Terms>,
}

impl Raise {
    /// Returns true if `row` is the raised reservation, and either counts as a whole or still
    /// exceeds its terms before the raise.
    fn counts_for(&self, row: &Row) -> bool {
        self.since == row.since && self.from.is_none_or(|from| !row.terms.is_within(from))
    }
}

/// Returns true if a change from the terms `before` to `terms` is a raise, unless the owner or an
/// administrator makes the change.
pub(crate) fn is_raise(before: Terms, terms: Terms) -> bool {
    !terms.is_within(before) || terms.outlasts(before)
}

/// Returns the terms with which a raise from `before` to `terms` is compared. `None` if `terms`
/// outlast `before`: the whole reservation then counts, because its owner has not requested it
/// without the end or the hard limit.
pub(crate) fn raised_from(before: Terms, terms: Terms) -> Option<Terms> {
    (!terms.outlasts(before)).then_some(before)
}

/// All raises, by name of the reservation. A reservation has at most one raise of each principal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raises(BTreeMap<Name, Vec<Raise>>);

impl Raises {
    pub(crate) fn new(loaded: Vec<(Name, Raise)>) -> Raises {
        let mut raises = Raises::default();
        for (name, raise) in loaded {
            raises.0.entry(name).or_default().push(raise);
        }
        raises
    }

    /// Returns true if a raise of this reservation by the principal `by` still counts.
    pub(crate) fn has(&self, by: Principal, row: &Row) -> bool {
        self.of(row).iter().any(|raise| raise.by == by)
    }

    /// Returns the raises of a reservation that still count.
    pub(crate) fn of(&self, row: &Row) -> Vec<Raise> {
        let all = self.0.get(&row.name).into_iter().flatten();
        all.filter(|raise| raise.counts_for(row)).copied().collect()
    }

    /// Returns the number of raises.
    pub(crate) fn number(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Replaces the raises of a reservation.
    pub(crate) fn set(&mut self, name: &Name, raises: Vec<Raise>) {
        match raises.is_empty() {
            true => self.0.remove(name),
            false => self.0.insert(name.clone(), raises),
        };
    }

    /// Resets the raises of a reservation after its last changes were reverted. `row` is the
    /// reservation now, and `lasting` are the raises without those changes. A move to another VM is
    /// never reverted, so its raise stays.
    pub(crate) fn take_back(&mut self, row: &Row, lasting: &Raises) {
        let mut all = lasting.of(row);
        let moved = self.of(row).into_iter().filter(|raise| raise.from.is_none());
        for raise in moved {
            all.retain(|one| one.by != raise.by);
            all.push(raise);
        }
        self.put(row, all, row.terms);
    }

    /// Records that `by` changed the reservation `before` to the terms `terms`. `from` is as in
    /// [`Raise`].
    pub(crate) fn note(
        &mut self,
        by: Principal,
        before: &Row,
        (from, terms): (Option<Terms>, Terms),
    ) {
        let mut all = self.of(before);
        match all.iter_mut().find(|raise| raise.by == by) {
            Some(raise) => raise.from = raise.from.filter(|_| from.is_some()),
            None => all.push(Raise { by, since: before.since, from }),
        }
        self.put(before, all, terms);
    }

    /// Drops those raises of a reservation that no longer count once it has the terms `terms`. If
    /// `approved`, an administrator has raised the reservation further, and all its raises are
    /// dropped.
    pub(crate) fn drop_ended(&mut self, before: &Row, terms: Terms, approved: bool) {
        let all = if approved { Vec::new() } else { self.of(before) };
        self.put(before, all, terms);
    }

    /// Drops the raises by which a reservation was bound to another VM, because its owner or an
    /// administrator has bound it now.
    pub(crate) fn drop_moves(&mut self, row: &Row) {
        let mut all = self.of(row);
        all.retain(|raise| raise.from.is_some());
        self.put(row, all, row.terms);
    }

    fn put(&mut self, before: &Row, mut all: Vec<Raise>, terms: Terms) {
        let after = Row { terms, ..before.clone() };
        all.retain(|raise| raise.counts_for(&after));
        self.set(&before.name, all);
    }

    /// Drops the raises of reservations that no longer exist.
    pub(crate) fn retain(&mut self, exists: impl Fn(&Name) -> bool) {
        self.0.retain(|name, _| exists(name));
    }
}
