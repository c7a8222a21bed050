//! The model disk: a commit is on it as a whole or not at all, and only once it is synced for sure.

use std::collections::BTreeMap;

use slackline_service::{Commit, Event, Kept, Loaded, Name, Row};
use slackline_units::Time;

/// What the ledger holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) rows: BTreeMap<Name, Row>,
    pub(crate) events: Vec<Event>,
    pub(crate) kept: Vec<(Kept, Time)>,
    /// The last commit that touched a name.
    pub(crate) written: BTreeMap<Name, u64>,
    last_seq: u64,
    /// What is being written, and when that is done.
    pub(crate) pending: Option<(Commit, Time)>,
    /// Whether nothing can be written: it is full, or fails.
    pub(crate) fails: bool,
}

impl Disk {
    /// The commit that is due is done; its number, and whether it is written.
    pub(crate) fn finish(&mut self, now: Time) -> Option<(u64, bool)> {
        let (commit, _) = self.pending.take_if(|(_, due)| *due <= now)?;
        if !self.fails {
            self.write(&commit, now);
        }
        Some((commit.seq, !self.fails))
    }

    /// We died, or the power went: what was not synced is there or it is not. What is torn is not.
    pub(crate) fn crash(&mut self, now: Time, is_there: bool) {
        if let Some((commit, _)) = self.pending.take()
            && is_there
            && !self.fails
        {
            self.write(&commit, now);
        }
    }

    fn write(&mut self, commit: &Commit, now: Time) {
        for (name, row) in &commit.rows {
            match row {
                Some(row) => self.rows.insert(name.clone(), row.clone()),
                None => self.rows.remove(name),
            };
            self.written.insert(name.clone(), commit.seq);
        }
        self.events.extend(commit.events.iter().cloned());
        self.kept.extend(commit.kept.iter().map(|kept| (kept.clone(), now)));
        self.last_seq = commit.seq;
    }

    /// What is read at a start.
    pub(crate) fn loaded(&self, now: Time) -> Loaded {
        let aged = |(kept, at): &(Kept, Time)| (kept.clone(), now.since(*at));
        Loaded {
            rows: self.rows.values().cloned().collect(),
            kept: self.kept.iter().map(aged).collect(),
            last_seq: self.last_seq,
        }
    }
}
