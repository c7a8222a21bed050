//! Single steps by which a list of reservations is carried out.

use crate::answer::{Action, AppliedChange};
use crate::book::Entry;
use crate::name::Name;
use crate::raise::Raise;
use crate::row::Row;
use crate::terms::{Terms, TermsChange};

/// One change of a single reservation. All steps of a list together lead from the present to the
/// listed reservations.
#[derive(Debug)]
pub(super) enum Step {
    Create {
        row: Row,
    },
    /// A change of the terms. `change` contains the parameters that the request names. `None` if
    /// the request contains the complete terms.
    Change {
        before: Row,
        change: Option<TermsChange>,
        terms: Terms,
    },
    Release {
        before: Row,
    },
    Keep {
        row: Row,
    },
}

/// A step that was carried out, with the data to undo it.
#[derive(Debug)]
pub(super) enum Undo {
    Create(Name),
    /// The row of the reservation and its raises, as they were before the step.
    Change(Box<Row>, Vec<Raise>),
    Release(Box<Entry>),
}

impl Step {
    pub(super) const fn name(&self) -> &Name {
        &self.row().name
    }

    /// Returns the row of the reservation before the step. A new reservation has no earlier row, so
    /// the row after the step is returned.
    pub(super) const fn row(&self) -> &Row {
        match self {
            Step::Create { row } | Step::Keep { row } => row,
            Step::Change { before, .. } | Step::Release { before } => before,
        }
    }

    /// Returns the rank of a step. Steps with low ranks are carried out first: those that free
    /// capacity come before those that reserve capacity.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Step::Keep { .. } => 0,
            Step::Release { .. } => 1,
            Step::Change { before, terms, .. } if terms.is_within(before.terms) => 2,
            Step::Change { .. } => 3,
            Step::Create { .. } => 4,
        }
    }

    /// Returns true if the step frees capacity or changes nothing.
    pub(super) fn frees(&self) -> bool {
        self.rank() <= 2
    }

    pub(super) fn shown(&self) -> AppliedChange {
        let applied = |action, before: Option<&Row>, after: Option<Row>| AppliedChange {
            action,
            before: before.cloned(),
            after,
        };
        match self {
            Step::Create { row } => applied(Action::Create, None, Some(row.clone())),
            Step::Keep { row } => applied(Action::Keep, Some(row), Some(row.clone())),
            Step::Release { before } => applied(Action::Release, Some(before), None),
            Step::Change { before, terms, .. } => {
                let after = Row { terms: *terms, ..before.clone() };
                applied(Action::Change, Some(before), Some(after))
            }
        }
    }
}
