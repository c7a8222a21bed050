//! Reservations that end at a time of the wall clock.
//!
//! The end time is stored as a time of the wall clock. So if the wall clock is set, the reservation
//! ends earlier or later.

use slackline_units::{Time, WallTime};

use crate::book::Entry;
use crate::event::EventKind;
use crate::row::Row;
use crate::world::World;

use super::Service;

impl Service {
    /// Ends the reservations whose end time has come, oldest first. Returns the earliest end time
    /// of the remaining reservations. `None` if none of them has an end time.
    pub(super) fn end_expired(&mut self, now: Time, world: &mut impl World) -> Option<Time> {
        let next = self.book.iter().filter_map(end).min()?;
        let ahead = world.wall_ahead();
        let is_due = |until: WallTime| until.on(ahead) <= now;
        if !is_due(next) {
            return Some(next.on(ahead));
        }
        for name in self.book.oldest(|entry| end(entry).is_some_and(is_due)) {
            let Some(row) = self.book.row(&name).cloned() else { continue };
            self.let_go(now, &name, world);
            self.over(now, row, EventKind::Expired);
        }
        self.book.iter().filter_map(end).min().map(|next| next.on(ahead))
    }
}

/// Returns the end time of a reservation. `None` if the reservation has no end time or is held for
/// a gang. A held reservation is not in the ledger, and ends when its lease expires.
fn end(entry: &Entry) -> Option<WallTime> {
    entry.row.terms.until().filter(|_| !entry.is_lent())
}

/// Returns true if the end time of a stored reservation has passed.
pub(super) fn has_expired(row: &Row, now: Time, world: &mut impl World) -> bool {
    row.terms.until().is_some_and(|until| until.on(world.wall_ahead()) <= now)
}
