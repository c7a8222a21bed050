//! Raises. A raise is a change by which a principal increases or lengthens the reservation of
//! another owner, drops its hard limit, or binds it to another VM. A raise counts in the budget of
//! the principal that made it, even after a restart of the service.

use std::collections::BTreeMap;

use crate::name::Name;
use crate::principal::Principal;
use crate::row::Row;
use crate::terms::Terms;

/// Maximum number of recorded raises. Each raise is a row of the ledger.
pub(crate) const MOST_RAISES: usize = 10_000;

/// Record of a raise: a principal has increased or lengthened a reservation, dropped its hard
/// limit, or bound it to another VM. The principal is neither the owner of the reservation nor an
/// administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raise {
    /// Principal that raised the reservation.
    pub by: Principal,
    /// Number of the event that made the reservation. A later reservation of the same name has
    /// another number.
    pub since: u64,
    /// Terms from which the raise is counted. `None` if the principal has bound the reservation to
    /// another VM.
    ///
    /// They are the terms before the first raise by this principal. If the share was later reduced
    /// below theirs and then raised again, they have the reduced share. They have an end time only
    /// if the principal made the reservation last longer, and a hard limit only if the principal
    /// dropped it.
    pub from: Option<Terms>,
}

impl Raise {
    /// Returns true if the raise still counts: `row` is the raised reservation, and it exceeds the
    /// terms before the raise, or the principal bound it to another VM.
    fn counts_for(&self, row: &Row) -> bool {
        self.since == row.since && self.from.is_none_or(|from| is_raise(from, row.terms))
    }
}

/// Returns true if a change from the terms `before` to `terms` is a raise. It is not counted as a
/// raise if the owner or an administrator makes it.
pub(crate) fn is_raise(before: Terms, terms: Terms) -> bool {
    !terms.is_within(before) || terms.outlasts(before)
}

/// Record of all raises, by name of the reservation. For each reservation, there is at most one
/// raise of each principal.
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

    /// Returns true if a raise of the reservation `row` by the principal `by` still counts.
    pub(crate) fn has(&self, by: Principal, row: &Row) -> bool {
        self.of(row).iter().any(|raise| raise.by == by)
    }

    /// Returns the raises of a reservation that still count.
    pub(crate) fn of(&self, row: &Row) -> Vec<Raise> {
        let all = self.0.get(&row.name).into_iter().flatten();
        all.filter(|raise| raise.counts_for(row)).copied().collect()
    }

    /// Returns the number of all recorded raises.
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
    /// reservation after the reversal, and `lasting` are the raises without the reverted changes.
    ///
    /// A move to another VM is never reverted, so its raise stays. A raise also stays if `row`
    /// still ends later than `Raise::from`, or has no hard limit although `Raise::from` has one.
    pub(crate) fn take_back(&mut self, row: &Row, lasting: &Raises) {
        let mut all = lasting.of(row);
        let is_in_force = |raise: &Raise| raise.from.is_none_or(|from| row.terms.outlasts(from));
        for raise in self.of(row).into_iter().filter(is_in_force) {
            all.retain(|one| one.by != raise.by);
            all.push(raise);
        }
        self.put(row, all, row.terms);
    }

    /// Records that `by` raised the reservation `before` to the terms `terms`.
    pub(crate) fn note(&mut self, by: Principal, before: &Row, terms: Terms) {
        let from = before.terms.with_limits_dropped_by(terms);
        let mut all = self.of(before);
        match all.iter_mut().find(|raise| raise.by == by) {
            Some(raise) => {
                raise.from = raise.from.map(|first| {
                    // The reservation may have been reduced since the first raise.
                    let share = if before.terms.is_within(first) { from } else { first };
                    share.with_limits_of(first).with_limits_of(from)
                });
            }
            None => all.push(Raise { by, since: before.since, from: Some(from) }),
        }
        self.put(before, all, terms);
    }

    /// Records that `by` bound a reservation to another VM.
    pub(crate) fn note_move(&mut self, by: Principal, row: &Row) {
        let mut all = self.of(row);
        all.retain(|raise| raise.by != by);
        all.push(Raise { by, since: row.since, from: None });
        self.put(row, all, row.terms);
    }

    /// Drops the raises of a reservation that no longer count when it has the terms `terms`. If
    /// `approved` is true, an administrator has raised the reservation further, and all its raises
    /// are dropped.
    pub(crate) fn drop_ended(&mut self, before: &Row, terms: Terms, approved: bool) {
        let all = if approved { Vec::new() } else { self.of(before) };
        self.put(before, all, terms);
    }

    /// Drops the raises by which a reservation was bound to another VM. Called after its owner or
    /// an administrator has bound it.
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

#[cfg(test)]
mod tests {
    use slackline_units::{Reservation, Span, WallTime};

    use super::*;

    const BY: Principal = Principal::User(5001);

    fn terms(slice_ms: u64, hours: Option<u64>, exact: bool) -> Terms {
        let each = Reservation::new(Span::from_ms(slice_ms), Span::from_ms(100)).unwrap();
        let until = hours.map(|hours| WallTime::from_ns(hours * 3_600_000_000_000));
        Terms::new(each, exact, 1).unwrap().with_end(until)
    }

    fn row(terms: Terms) -> Row {
        let (name, binding) = ("web".parse().unwrap(), "qemu:web".parse().unwrap());
        Row::new(name, (Principal::User(0), 0), terms, binding)
    }

    #[test]
    fn reservation_increase_counts_until_all_increased_parameters_are_restored() {
        let mut raises = Raises::default();
        let mut before = terms(1, Some(2), true);
        for raised in [terms(5, Some(2), true), terms(5, None, true), terms(5, None, false)] {
            raises.note(BY, &row(before), raised);
            before = raised;
        }
        for more in [terms(2, Some(2), true), terms(1, Some(3), true), terms(1, Some(2), false)] {
            assert!(raises.has(BY, &row(more)), "{more}");
        }
        for less in [terms(1, Some(2), true), terms(1, Some(1), true)] {
            assert!(!raises.has(BY, &row(less)), "{less}");
        }
    }

    /// A principal removes the end time of a reservation with a share of 60 %. After the share was
    /// reduced to 10 %, the same principal raises it to 50 %.
    #[test]
    fn reservation_increase_after_reduction_is_measured_from_reduced_share() {
        let mut raises = Raises::default();
        raises.note(BY, &row(terms(60, Some(2), true)), terms(60, None, true));
        raises.drop_ended(&row(terms(60, None, true)), terms(10, None, true), false);
        raises.note(BY, &row(terms(10, None, true)), terms(50, None, true));
        assert!(raises.has(BY, &row(terms(50, Some(2), true))));
        assert!(!raises.has(BY, &row(terms(10, Some(2), true))));
    }

    /// One principal raises the share. Another principal removes the end time and the hard limit.
    #[test]
    fn restored_share_frees_user_budget_although_others_removed_end_time() {
        let mut raises = Raises::default();
        raises.note(BY, &row(terms(1, Some(2), true)), terms(5, Some(2), true));
        assert!(raises.has(BY, &row(terms(5, None, false))));
        assert!(!raises.has(BY, &row(terms(1, None, false))));
    }
}
