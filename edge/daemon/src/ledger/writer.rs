//! Writer thread of the ledger. It owns the database and carries out orders.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackline_linux::sys::{Scheduling, SchedulingOf, own_tid, set_scheduling};
use slackline_service::Commit;
use slackline_service::history::Hour;

use super::Reply;
use super::error::LedgerError;
use super::store::{OpeningContents, Store};
use super::words::{AccessChange, EventQuery, HoursQuery, Keep};

/// Order to the writer thread.
#[derive(Debug)]
pub(super) enum WriterOrder {
    /// Write this commit. The second field is the wall clock time of each of its events.
    Commit(Commit, Vec<SystemTime>),
    /// Query these events. The reply has the given ticket.
    Events(u64, EventQuery),
    /// Write these rows to the history of reservations.
    History(Vec<Hour>),
    /// Query this part of the history. The reply has the given ticket.
    Hours(u64, HoursQuery),
    /// Write this change to the grants of access. The reply has the given ticket.
    Access(u64, AccessChange),
    /// Give members of the operators' group without a grant the role of a tenant. The reply has the
    /// given ticket.
    MigrateAccess(u64),
}

/// State of the writer thread.
pub(super) struct Writer {
    pub(super) store: Store,
    pub(super) orders: Receiver<WriterOrder>,
    pub(super) ordered: OwnedFd,
    /// Channel of replies. It is dropped before the counter of replies (`answered`), whose drop
    /// wakes the receiver. The receiver then finds the channel closed.
    pub(super) answers: Sender<Reply>,
    pub(super) answered: ReplyCounter,
}

/// Counter of replies, an eventfd. Dropping it adds one to the count, so that the receiver notices
/// the end of the thread.
pub(super) struct ReplyCounter(pub(super) OwnedFd);

/// Time without orders after which the writer does work that is not urgent.
const QUIET: Duration = Duration::from_secs(10);

/// Time after which a failed backup or a failed deletion of old rows is retried.
const AGAIN: Duration = Duration::from_secs(3600);

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

    /// Carries out orders until all senders have been dropped, then closes the ledger.
    pub(super) fn work(mut self) -> Result<(), LedgerError> {
        let mut upkeep = Instant::now() + self.store.backup_due().max(QUIET);
        loop {
            match self.orders.try_recv() {
                Ok(order) => {
                    self.carry_out(order);
                    upkeep = upkeep.max(Instant::now() + QUIET);
                }
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    let left = upkeep.saturating_duration_since(Instant::now());
                    if !self.wait(left) && left.is_zero() {
                        upkeep = Instant::now() + self.keep_up();
                    }
                }
            }
        }
        self.store.close()
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
            WriterOrder::MigrateAccess(ticket) => {
                Reply::Access { ticket, done: self.store.migrate_access() }
            }
            WriterOrder::History(rows) => {
                let done = self.store.keep_history(&rows);
                Reply::History { rows, done }
            }
            WriterOrder::Hours(ticket, asked) => {
                Reply::Hours { ticket, hours: self.store.hours(&asked) }
            }
            WriterOrder::Events(ticket, asked) => {
                Reply::Events { ticket, events: self.store.events(&asked) }
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
    /// until such work is due again.
    fn keep_up(&mut self) -> Duration {
        match self.store.drop_old() {
            Ok(true) => {}
            Ok(false) => return Duration::ZERO,
            // Commits fail for the same reason, and their replies report it.
            Err(_) => return AGAIN,
        }
        if self.store.backup_due().is_zero()
            && let Err(error) = self.store.back_up()
        {
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
