//! Writer thread of the ledger. The thread owns the database and carries out orders.

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
    /// Write this commit. The second field contains the wall-clock time of each event of the
    /// commit.
    Commit(Commit, Vec<SystemTime>),
    /// Write these rows to the history of reservations.
    History(Vec<Hour>),
    /// Write this change to the grants of access. The number is the ticket for the reply.
    Access(u64, AccessChange),
    /// Give members of the operators' group without a grant the role of a tenant. The number is the
    /// ticket for the reply.
    MigrateAccess(u64),
    /// Treat this principal as an administrator. This order has no reply.
    Administrator(Principal),
}

/// Query that the writer thread answers when no order is waiting.
#[derive(Debug)]
pub(super) struct LedgerQuery {
    pub(super) ticket: u64,
    pub(super) asked: QueryKind,
    /// True if the query is cancelled because its caller has disconnected.
    pub(super) is_dropped: Arc<AtomicBool>,
}

/// Kind of rows that a query asks for.
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
    /// Channel of replies. It must be dropped before `answered`, the counter of replies. The drop
    /// of the counter wakes the receiver, which then finds the channel closed.
    pub(super) answers: Sender<Reply>,
    pub(super) answered: ReplyCounter,
    /// Daily backup that another thread is making. `None` if no backup is being made.
    pub(super) backup: Option<RunningBackup>,
}

/// Eventfd that counts replies. Dropping it adds one to the count, so that the receiver notices the
/// end of the thread.
pub(super) struct ReplyCounter(pub(super) OwnedFd);

/// Time without orders after which the writer begins work that is not urgent.
const QUIET: Duration = Duration::from_secs(10);

/// Time after which the writer retries a backup or a deletion of old rows that has failed. Orders
/// can delay a backup or a deletion by at most this time.
const AGAIN: Duration = Duration::from_secs(3600);

/// Time from the start of a backup until the writer first checks if the backup is complete.
const BACKUP_CHECK: Duration = Duration::from_millis(100);

/// Time of the next work that is not urgent, such as a backup or a deletion of old rows.
#[derive(Debug)]
struct Upkeep {
    due: Instant,
    /// Time after which orders no longer delay the work.
    latest: Instant,
}

impl Upkeep {
    fn after(now: Instant, time: Duration) -> Upkeep {
        Upkeep { due: now + time, latest: now + time + AGAIN }
    }

    /// Delays the work until [`QUIET`] after an order that came at `now`, but not beyond `latest`.
    fn put_off(&mut self, now: Instant) {
        self.due = self.due.max((now + QUIET).min(self.latest));
    }
}

impl Writer {
    /// Gives the calling thread an ordinary scheduling class, even if a real-time thread started
    /// it, and opens the ledger. If permitted, the thread gets a nice value below zero, because it
    /// has little to do and every change waits for it.
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

    /// Carries out orders until all senders have been dropped. Then closes the ledger. A query is
    /// carried out only when no order is waiting.
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

    /// Does work that is not urgent, such as deleting old rows, when there are no orders. Returns
    /// the time until such work is due the next time. Another thread makes the daily backup, so
    /// orders do not wait for the backup.
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

    /// Waits for an order, at most for the time `at_most`. Returns true if there is an order.
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

/// Adds one to the counter of an eventfd, so that its descriptor becomes readable.
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
    fn frequent_ledger_requests_delay_upkeep_by_at_most_an_hour() {
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
