//! Writer thread of the ledger. It owns the database and carries out orders.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackline_linux::sys::{Scheduling, SchedulingOf, own_tid, set_scheduling};
use slackline_service::history::Hour;
use slackline_service::{Commit, Principal};

use super::Reply;
use super::backup::RunningBackup;
use super::error::LedgerError;
use super::store::{OpeningContents, Store};
use super::words::{AccessChange, EventQuery, HoursQuery, Keep};

/// Order to the writer thread.
#[derive(Debug)]
pub(super) enum WriterOrder {
    /// Write this commit. The second field is the wall clock time of each of its events.
    Commit(Commit, Vec<SystemTime>),
    /// Write these rows to the history of reservations.
    History(Vec<Hour>),
    /// Write this change to the grants of access. The reply has the given ticket.
    Access(u64, AccessChange),
    /// Give members of the operators' group without a grant the role of a tenant. The reply has the
    /// given ticket.
    MigrateAccess(u64),
    /// Note that a principal is an administrator. This order has no reply.
    Administrator(Principal),
}

/// Query that the writer thread answers while no order waits.
#[derive(Debug)]
pub(super) struct LedgerQuery {
    pub(super) ticket: u64,
    pub(super) asked: QueryKind,
    /// True if the caller has disconnected.
    pub(super) is_dropped: Arc<AtomicBool>,
}

/// Rows that a query asks for.
#[derive(Debug)]
pub(super) enum QueryKind {
    Events(EventQuery),
    Hours(HoursQuery),
}

/// State of the writer thread.
pub(super) struct Writer {
    pub(super) store: Store,
    pub(super) orders: Receiver<WriterOrder>,
    pub(super) queries: Receiver<LedgerQuery>,
    pub(super) ordered: OwnedFd,
    /// Channel of replies. It is dropped before the counter of replies (`answered`), whose drop
    /// wakes the receiver. The receiver then finds the channel closed.
    pub(super) answers: Sender<Reply>,
    pub(super) answered: ReplyCounter,
    /// Daily backup that another thread makes. `None` if none is being made.
    pub(super) backup: Option<RunningBackup>,
}

/// Counter of replies, an eventfd. Dropping it adds one to the count, so that the receiver notices
/// the end of the thread.
pub(super) struct ReplyCounter(pub(super) OwnedFd);

/// Time without orders after which the writer does work that is not urgent.
const QUIET: Duration = Duration::from_secs(10);

/// Time after which a failed backup or a failed deletion of old rows is retried. Also the longest
/// time by which orders can delay a backup or a deletion.
const AGAIN: Duration = Duration::from_secs(3600);

/// Time from the start of a backup to the first check of whether it is complete.
const BACKUP_CHECK: Duration = Duration::from_millis(100);

/// Time of the next work that is not urgent, such as a backup or a deletion of old rows.
#[derive(Debug)]
struct Upkeep {
    due: Instant,
    /// Time from which orders no longer put the work off.
    latest: Instant,
}

impl Upkeep {
    fn after(now: Instant, time: Duration) -> Upkeep {
        Upkeep { due: now + time, latest: now + time + AGAIN }
    }

    /// Puts the work off until [`QUIET`] after an order, but not beyond `latest`.
    fn put_off(&mut self, now: Instant) {
        self.due = self.due.max((now + QUIET).min(self.latest));
    }
}

impl Writer {
    /// Sets the thread's scheduling to an ordinary class, even if a real-time thread started it,
    /// and opens the ledger. The thread gets a nice value below zero if permitted, because it has
    /// little to do and every change waits for it.
    pub(super) fn begin(
        at: (&Path, &str),
        keep: Keep,
    ) -> Result<(Store, OpeningContents), LedgerError> {
        let ordinary = |nice| {
            let class = Scheduling::Other { nice };
            set_scheduling(own_tid(), &SchedulingOf { class, reset_on_fork: false })
        };
        ordinary(-19).or_else(|_| ordinary(0)).map_err(LedgerError::NoWriter)?;
        let (folder, boot_id) = at;
        Store::open(folder, boot_id, keep)
    }

    /// Carries out orders until all senders have been dropped, then closes the ledger. A query is
    /// carried out only if no order waits.
    pub(super) fn work(mut self) -> Result<(), LedgerError> {
        let mut upkeep = Upkeep::after(Instant::now(), self.store.backup_due().max(QUIET));
        loop {
            match self.orders.try_recv() {
                Ok(order) => {
                    self.carry_out(order);
                    upkeep.put_off(Instant::now());
                }
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    if let Ok(query) = self.queries.try_recv() {
                        self.answer(query);
                        continue;
                    }
                    let left = upkeep.due.saturating_duration_since(Instant::now());
                    if !self.wait(left) && left.is_zero() {
                        let next = self.keep_up();
                        upkeep = Upkeep::after(Instant::now(), next);
                    }
                }
            }
        }
        // The connection that closes last copies the log into the ledger. That must be the writer's
        // connection, so the backup's connection is closed first.
        drop(self.backup.take());
        self.queries.try_iter().for_each(|query| self.answer(query));
        self.store.close()
    }

    fn answer(&self, LedgerQuery { ticket, asked, is_dropped }: LedgerQuery) {
        let is_dropped = is_dropped.load(Ordering::Relaxed);
        self.reply(match asked {
            QueryKind::Events(_) if is_dropped => Reply::Events { ticket, events: Ok(Vec::new()) },
            QueryKind::Hours(_) if is_dropped => Reply::Hours { ticket, hours: Ok(Vec::new()) },
            QueryKind::Events(asked) => Reply::Events { ticket, events: self.store.events(&asked) },
            QueryKind::Hours(asked) => Reply::Hours { ticket, hours: self.store.hours(&asked) },
        });
    }

    fn carry_out(&mut self, order: WriterOrder) {
        let reply = match order {
            WriterOrder::Commit(commit, wall) => match self.store.commit(&commit, &wall) {
                Ok(()) => Reply::Committed { seq: commit.seq },
                Err(error) => Reply::Failed { seq: commit.seq, error },
            },
            WriterOrder::Access(ticket, change) => {
                Reply::Access { ticket, done: self.store.change_access(&change) }
            }
            WriterOrder::Administrator(principal) => {
                return self.store.note_administrator(principal);
            }
            WriterOrder::MigrateAccess(ticket) => {
                Reply::Access { ticket, done: self.store.migrate_access() }
            }
            WriterOrder::History(rows) => {
                let done = self.store.keep_history(&rows);
                Reply::History { rows, done }
            }
        };
        self.reply(reply);
    }

    fn reply(&self, reply: Reply) {
        // While the ledger is being closed, the receiver may no longer exist.
        let _ = self.answers.send(reply);
        signal(&self.answered.0);
    }

    /// Does periodic work, such as deleting old rows, while there are no orders. Returns the time
    /// until such work is due again. Another thread makes the daily backup, so no order waits for
    /// it.
    fn keep_up(&mut self) -> Duration {
        match self.store.drop_old() {
            Ok(true) => {}
            Ok(false) => return Duration::ZERO,
            // Commits fail for the same reason, and their replies report it.
            Err(_) => return AGAIN,
        }
        let done = match self.backup.take() {
            Some(backup) if !backup.is_finished() => {
                self.backup = Some(backup);
                return QUIET;
            }
            Some(backup) => backup.finish(),
            None if !self.store.backup_due().is_zero() => Ok(()),
            None => match RunningBackup::start(self.store.place()) {
                Ok(backup) => {
                    self.backup = Some(backup);
                    return BACKUP_CHECK;
                }
                Err(error) => Err(error),
            },
        };
        if let Err(error) = done {
            self.reply(Reply::NoBackup(error));
            return AGAIN;
        }
        self.store.backup_due().max(QUIET)
    }

    /// Waits for an order, for at most `at_most`. Returns true if there is one.
    fn wait(&self, at_most: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&self.ordered, PollFlags::IN)];
        // After an interrupting signal, the caller simply checks for orders.
        let is_there = poll(&mut fds, Some(&timeout)).is_ok_and(|count| count > 0);
        if is_there {
            let _ = rustix::io::read(&self.ordered, &mut [0; 8]);
        }
        is_there
    }
}

/// Adds one to an event counter, so that its descriptor becomes readable.
pub(super) fn signal(counter: &OwnedFd) {
    // Writing fails only at 2^64.
    let _ = rustix::io::write(counter, &1_u64.to_ne_bytes());
}

impl Drop for ReplyCounter {
    fn drop(&mut self) {
        signal(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_ledger_orders_delay_upkeep_by_at_most_an_hour() {
        let begun = Instant::now();
        let mut upkeep = Upkeep::after(begun, QUIET);
        let order = |number: u32| begun + Duration::from_secs(9) * number;
        let is_done = |upkeep: &Upkeep, number: u32| upkeep.due <= order(number);
        for number in 0..400 {
            upkeep.put_off(order(number));
            assert!(!is_done(&upkeep, number), "the ledger is not quiet");
        }
        (400..403).for_each(|number| upkeep.put_off(order(number)));
        assert!(is_done(&upkeep, 403), "it is an hour late");
    }
}
