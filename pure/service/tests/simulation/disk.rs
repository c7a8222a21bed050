//! Model of the ledger's disk. After a crash, the disk contains a commit completely or not at all.
//! A synced commit survives every crash.

use std::collections::BTreeMap;

use slackline_service::{
    Commit, Event, KeptAnswer, LedgerContents, Name, Plan, Principal, Raise, Row,
};
use slackline_units::Time;

/// Contents of the ledger, and the commit that is being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) rows: BTreeMap<Name, Row>,
    pub(crate) events: Vec<Event>,
    pub(crate) kept: Vec<(KeptAnswer, Time)>,
    pub(crate) plans: BTreeMap<Principal, Plan>,
    pub(crate) raises: BTreeMap<Name, Vec<Raise>>,
    /// Number of the last commit that wrote the row of each name.
    pub(crate) written: BTreeMap<Name, u64>,
    last_seq: u64,
    /// The commit that is being written, and the time at which the write will be complete.
    pub(crate) pending: Option<(Commit, Time)>,
    /// True if nothing can be written, for example because the disk is full.
    pub(crate) fails: bool,
}

impl Disk {
    /// Completes the pending commit if its time has come. Returns the number of the commit, and
    /// true if the commit was written. `None` if no commit is due.
    pub(crate) fn finish(&mut self, now: Time) -> Option<(u64, bool)> {
        let (commit, _) = self.pending.take_if(|(_, due)| *due <= now)?;
        if !self.fails {
            self.write(&commit, now);
        }
        Some((commit.seq, !self.fails))
    }

    /// Simulates a loss of power or a death of the service. If `is_there` is true, a commit that
    /// was not synced is on the disk completely. If `is_there` is false, nothing of the commit is
    /// on the disk.
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
        for (principal, plan) in &commit.plans {
            match plan {
                Some(plan) => self.plans.insert(*principal, plan.clone()),
                None => self.plans.remove(principal),
            };
        }
        self.raises.extend(commit.raises.iter().cloned());
        self.last_seq = commit.seq;
    }

    /// Returns the contents that the service reads when it starts.
    pub(crate) fn loaded(&self, now: Time) -> LedgerContents {
        let aged = |(kept, at): &(KeptAnswer, Time)| (kept.clone(), now.since(*at));
        LedgerContents {
            rows: self.rows.values().cloned().collect(),
            kept: self.kept.iter().map(aged).collect(),
            plans: self.plans.values().cloned().collect(),
            raises: (self.raises.iter())
                .flat_map(|(name, all)| all.iter().map(|raise| (name.clone(), *raise)))
                .collect(),
            last_seq: self.last_seq,
        }
    }
}
