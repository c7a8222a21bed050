//! Choices of the user (sort key, filter, selected row and so on), and the keys that change them.

use crate::{Snapshot, SortKey, VmRow};

/// Key that the user has pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Character key, pressed without Control or Alt.
    Char(char),
    /// Arrow up, which selects the row above.
    Up,
    /// Arrow down, which selects the row below.
    Down,
    /// Enter, which shows details or ends the typing of a filter.
    Enter,
    /// Escape, which hides details or clears the filter.
    Escape,
    /// Backspace, which removes a character of the filter.
    Backspace,
    /// Ctrl-C, which ends the program in any state.
    Interrupt,
}

/// Choices of the user about what the screen shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Order of the rows.
    pub sort: SortKey,
    /// Filter: only rows whose names contain this text are shown.
    pub filter: String,
    /// True while the user types the filter text.
    pub is_typing: bool,
    /// Name of the selected row. `None` until a key selects a row.
    pub selected: Option<String>,
    /// True if the details of the selected row are shown.
    pub has_details: bool,
    /// True while the screen is paused, so that numbers do not change.
    pub is_paused: bool,
    /// Speed at which a recording is played, as a power of two. Zero is the original speed.
    pub speed: i8,
    /// True if the user has quit.
    pub is_over: bool,
}

/// Minimum and maximum speed at which a recording is played, as powers of two.
const SPEEDS: (i8, i8) = (-4, 10);

impl View {
    /// Returns the rows that match the filter, in the chosen order.
    #[must_use]
    pub fn rows(&self, snapshot: &Snapshot) -> Vec<VmRow> {
        let has_filter = |row: &&VmRow| row.name.contains(&self.filter);
        let mut rows: Vec<VmRow> = snapshot.rows.iter().filter(has_filter).cloned().collect();
        self.sort.sort(&mut rows);
        rows
    }

    /// Handles a key. Returns true if the screen must be drawn again.
    pub fn press(&mut self, key: Key, snapshot: &Snapshot) -> bool {
        let before = self.clone();
        match key {
            Key::Interrupt => self.is_over = true,
            _ if self.is_typing => self.type_filter(key),
            Key::Char('q') => self.is_over = true,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('/') => self.is_typing = true,
            Key::Char(' ') => self.is_paused = !self.is_paused,
            Key::Char('+') => self.speed = (self.speed + 1).min(SPEEDS.1),
            Key::Char('-') => self.speed = (self.speed - 1).max(SPEEDS.0),
            Key::Up | Key::Char('k') => self.select(snapshot, -1),
            Key::Down | Key::Char('j') => self.select(snapshot, 1),
            Key::Enter => {
                if self.selected.is_none() {
                    self.select(snapshot, 1);
                }
                self.has_details = self.selected.is_some() && !self.has_details;
            }
            Key::Escape if self.has_details => self.has_details = false,
            Key::Escape => self.filter.clear(),
            Key::Char(_) | Key::Backspace => {}
        }
        *self != before
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(character) => self.filter.push(character),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.filter.clear();
                self.is_typing = false;
            }
            Key::Up | Key::Down | Key::Interrupt => {}
        }
    }

    /// Selects the row that is `step` rows below the selected row. The selection never moves above
    /// the first row or below the last row.
    fn select(&mut self, snapshot: &Snapshot, step: isize) {
        let rows = self.rows(snapshot);
        let selected = self.selected.as_deref();
        let at = rows.iter().position(|row| Some(&*row.name) == selected);
        let at = at.map_or(0, |at| at.saturating_add_signed(step));
        self.selected = rows.get(at.min(rows.len().saturating_sub(1))).map(|row| row.name.clone());
    }
}
