//! Ledger: a SQLite database that stores reservations, events and access. Its contents survive the
//! end of the process, a loss of power, and most faults of a disk.
//!
//! The thread that uses a [`Ledger`] must never wait for the disk. So a second thread, of ordinary
//! priority, owns the database. It carries out orders ([`Ledger::append`], [`Ledger::look_up`]) one
//! after another. Queries wait in a queue of their own until no commit or other write waits. Each
//! order has one reply ([`Ledger::replies`]). A descriptor is readable when there are replies.
//!
//! The two threads share no lock. With a shared lock, the real-time thread could wait for an
//! ordinary thread that gets no CPU time.
//!
//! While SQLite has files open, no other code in this process may open them. See `place`.

mod answers;
mod backup;
mod begun;
mod doctor;
mod error;
mod hours;
mod place;
mod plans;
mod queries;
mod raises;
mod rows;
mod shares;
mod store;
mod stored;
mod tables;
mod words;
mod writer;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::SystemTime;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slackline_service::history::Hour;
use slackline_service::{Commit, LedgerContents, Principal, Row};
use slackline_units::Time;

use begun::BeginTimes;
pub use doctor::{LedgerCheck, Rebuilt, Source, Table, check, rebuild};
pub use error::LedgerError;
pub use place::Backup;
use queries::OpenQueries;
pub use queries::{MOST_QUERIES, QUERIES_OF_ONE};
use store::OpeningContents;
pub use words::{
    AccessChange, AccessGrant, Before, EventQuery, HoursQuery, Keep, LoggedEvent, MOST_EVENTS,
    MOST_HOURS, Proof,
};
use writer::{LedgerQuery, QueryKind, ReplyCounter, Writer, WriterOrder, signal};

/// Default folder of the ledger.
pub const FOLDER: &str = "/var/lib/slackline";

/// Maximum number of writes (commits and others) that have no reply yet. Queries have limits of
/// their own.
pub const MOST_UNDER_WAY: usize = 64;

/// Size of the writer thread's stack, in bytes. SQLite needs a tenth of the stack, and the whole
/// stack is locked into memory.
const STACK: usize = 1 << 19;

/// An open ledger. Dropping the value completes all orders and closes the ledger.
#[derive(Debug)]
pub struct Ledger {
    orders: Option<Sender<WriterOrder>>,
    queries: Option<Sender<LedgerQuery>>,
    open_queries: OpenQueries,
    /// Eventfd by which the writer learns of new orders.
    ordered: OwnedFd,
    answers: Receiver<Reply>,
    /// Eventfd whose counter is the number of complete replies.
    answered: OwnedFd,
    under_way: usize,
    /// Principals that the daemon has reported as administrators.
    administrators: BTreeSet<Principal>,
    begun: BeginTimes,
    has_writer: bool,
    writer: Option<JoinHandle<Result<(), LedgerError>>>,
}

/// A ledger that was just opened.
#[derive(Debug)]
pub struct OpenedLedger {
    /// Handle for orders and replies.
    pub ledger: Ledger,
    /// Contents of the ledger that the service needs at its start.
    pub loaded: LedgerContents,
    /// Grants of access to principals.
    pub access: Vec<AccessGrant>,
    /// Latest history row of each reservation that has history rows.
    pub history: Vec<Hour>,
    /// State in which the previous daemon left the ledger. `None` if no daemon has used the ledger.
    pub before: Option<Before>,
    /// True if members of the operators' group without a grant have the role of a tenant. In a
    /// ledger of an older version, such members are operators until [`Ledger::migrate_access`] is
    /// called.
    pub has_tenants: bool,
}

/// Reply to an order: its outcome.
#[derive(Debug)]
pub enum Reply {
    /// A commit was written to the disk and survives a loss of power.
    Committed {
        /// Number of the commit.
        seq: u64,
    },
    /// A commit failed. It may have been written although the write was not confirmed. If the
    /// commit is repeated, it is still written only once.
    Failed {
        /// Number of the commit.
        seq: u64,
        /// Reason for the failure.
        error: LedgerError,
    },
    /// Answer to a query for events.
    Events {
        /// Ticket that was given with the query.
        ticket: u64,
        /// Events found, newest first.
        events: Result<Vec<LoggedEvent>, LedgerError>,
    },
    /// Rows of the history were written, or the write failed.
    History {
        /// Rows that the order wanted to write.
        rows: Vec<Hour>,
        /// Error if the rows could not be written.
        done: Result<(), LedgerError>,
    },
    /// Answer to a query for the history of a reservation.
    Hours {
        /// Ticket that was given with the query.
        ticket: u64,
        /// History rows found, oldest first.
        hours: Result<Vec<Hour>, LedgerError>,
    },
    /// A change to the grants of access was written, or the write failed.
    Access {
        /// Ticket that was given with the change.
        ticket: u64,
        /// Error if the change could not be written.
        done: Result<(), LedgerError>,
    },
    /// The daily backup failed, and will be tried again in an hour. No order causes this reply.
    NoBackup(LedgerError),
}

/// Reason why an order to the ledger was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum NotHandedOver {
    /// Too many orders have no reply yet.
    #[error("the ledger already has {MOST_UNDER_WAY} writes pending, the maximum")]
    TooMany,
    /// Too many queries of this principal have no reply yet.
    #[error(
        "this principal already has {QUERIES_OF_ONE} queries of the log and history pending, the \
         maximum"
    )]
    TooManyOfOne,
    /// Too many queries of all principals have no reply yet.
    #[error("{MOST_QUERIES} queries of the log and history are already pending, the maximum")]
    TooManyQueries,
    /// The writer thread has ended.
    #[error("the thread that writes the ledger has ended")]
    NoWriter,
}

impl Ledger {
    /// Opens the ledger in `folder`, and locks the ledger for this process. Creates the folder and
    /// the ledger if they do not exist. Identities of VMs are loaded only if they were stored after
    /// the host was booted.
    ///
    /// Waits for the disk, and up to five seconds for other programs that have locked the ledger. A
    /// real-time thread can call this function, because another thread, of an ordinary class,
    /// accesses the disk.
    ///
    /// # Errors
    /// If the ledger cannot be opened. A damaged ledger is not changed.
    pub fn open(folder: &Path, boot_id: &str, keep: Keep) -> Result<OpenedLedger, LedgerError> {
        let failed = |errno: Errno| LedgerError::NoWriter(errno.into());
        let counter = |flags| eventfd(0, EventfdFlags::CLOEXEC | flags).map_err(failed);
        let (ordered, answered) =
            (counter(EventfdFlags::NONBLOCK)?, counter(EventfdFlags::NONBLOCK)?);
        let copied = |fd: &OwnedFd| fd.try_clone().map_err(LedgerError::NoWriter);
        let (ordered_there, answered_there) = (copied(&ordered)?, copied(&answered)?);
        let (orders, orders_there) = channel();
        let (queries, queries_there) = channel();
        let (answers_there, answers) = channel();
        let (opened_there, opened) = channel();
        let (folder, boot_id) = (folder.to_path_buf(), boot_id.to_owned());
        let body = move || {
            let begun = Writer::begin((&folder, &boot_id), keep);
            let store = match begun {
                Ok((store, begun)) => {
                    let _ = opened_there.send(Ok(begun));
                    store
                }
                Err(error) => {
                    let _ = opened_there.send(Err(error));
                    return Ok(());
                }
            };
            let (orders, queries, answers) = (orders_there, queries_there, answers_there);
            let (ordered, answered) = (ordered_there, ReplyCounter(answered_there));
            let backup = None;
            Writer { store, orders, queries, ordered, answers, answered, backup }.work()
        };
        let writer = Builder::new().name("slackline-ledger".to_owned()).stack_size(STACK);
        let writer = writer.spawn(body).map_err(LedgerError::NoWriter)?;
        let ended = |_| LedgerError::NoWriter(io::ErrorKind::BrokenPipe.into());
        let OpeningContents { loaded, begun, access, history, before, has_tenants } =
            opened.recv().map_err(ended)??;
        let ledger = Ledger {
            orders: Some(orders),
            queries: Some(queries),
            open_queries: OpenQueries::default(),
            ordered,
            answers,
            answered,
            under_way: 0,
            administrators: BTreeSet::new(),
            begun,
            has_writer: true,
            writer: Some(writer),
        };
        Ok(OpenedLedger { ledger, loaded, access, history, before, has_tenants })
    }

    /// Orders a commit. `now` is the current time of the service's clock. It is used to convert the
    /// times of events to wall-clock times. Never waits.
    ///
    /// # Errors
    /// If the order was not accepted. Such an order gets no reply.
    pub fn append(&mut self, commit: Commit, now: Time) -> Result<(), NotHandedOver> {
        let wall = SystemTime::now();
        self.begun.note(&commit, wall);
        let when = |at: Time| {
            let age = if at < now { now - at } else { slackline_units::Span::ZERO };
            wall.checked_sub(std::time::Duration::from_nanos(age.ns())).unwrap_or(wall)
        };
        let wall = commit.events.iter().map(|event| when(event.at)).collect();
        self.hand_over(WriterOrder::Commit(commit, wall))
    }

    /// Returns the wall-clock time at which a reservation was made. If the event that made the
    /// reservation is no longer in the log, returns the time of a later event. `None` if the time
    /// is unknown.
    #[must_use]
    pub fn begun(&self, row: &Row) -> Option<SystemTime> {
        self.begun.of(row)
    }

    /// Orders a query for events, for the principal `by`. The reply contains `ticket`. Never waits.
    ///
    /// # Errors
    /// If the order was not accepted. Such an order gets no reply.
    pub fn look_up(
        &mut self,
        (ticket, by): (u64, Principal),
        asked: EventQuery,
    ) -> Result<(), NotHandedOver> {
        self.query((ticket, by), QueryKind::Events(asked))
    }

    /// Orders a write to the history of reservations. The reply is [`Reply::History`]. Never waits.
    ///
    /// # Errors
    /// If the order was not accepted. Such an order gets no reply. The error contains the rows,
    /// which are empty if the writer has ended.
    pub fn keep_history(&mut self, rows: Vec<Hour>) -> Result<(), (NotHandedOver, Vec<Hour>)> {
        if self.under_way >= MOST_UNDER_WAY {
            return Err((NotHandedOver::TooMany, rows));
        }
        self.hand_over(WriterOrder::History(rows)).map_err(|error| (error, Vec::new()))
    }

    /// Orders a query for the history of a reservation, for the principal `by`. The reply contains
    /// `ticket`. Never waits.
    ///
    /// # Errors
    /// If the order was not accepted. Such an order gets no reply.
    pub fn look_up_hours(
        &mut self,
        (ticket, by): (u64, Principal),
        asked: HoursQuery,
    ) -> Result<(), NotHandedOver> {
        self.query((ticket, by), QueryKind::Hours(asked))
    }

    /// Cancels a query whose caller has disconnected. If the writer has not begun the query, the
    /// reply is empty.
    pub fn cancel(&self, ticket: u64) {
        self.open_queries.cancel(ticket);
    }

    fn query(
        &mut self,
        (ticket, by): (u64, Principal),
        asked: QueryKind,
    ) -> Result<(), NotHandedOver> {
        let is_dropped = self.open_queries.begin(ticket, by)?;
        let queries = self.queries.as_ref().ok_or(NotHandedOver::NoWriter)?;
        let query = LedgerQuery { ticket, asked, is_dropped };
        queries.send(query).map_err(|_| NotHandedOver::NoWriter)?;
        signal(&self.ordered);
        Ok(())
    }

    /// Orders a change to the grants of access. The reply contains `ticket`. Never waits.
    ///
    /// # Errors
    /// If the order was not accepted. Such an order gets no reply.
    pub fn change_access(
        &mut self,
        ticket: u64,
        change: AccessChange,
    ) -> Result<(), NotHandedOver> {
        let (AccessChange::Add(AccessGrant { principal, .. }) | AccessChange::Revoke(principal)) =
            &change;
        // The writer forgets that the principal is an administrator. A principal that is an
        // administrator by a group is reported again at its next request.
        self.administrators.remove(principal);
        self.hand_over(WriterOrder::Access(ticket, change))
    }

    /// Orders the migration that gives members of the operators' group without a grant the role of
    /// a tenant. The reply is [`Reply::Access`] with `ticket`. Never waits.
    ///
    /// # Errors
    /// If the order was not accepted. Such an order gets no reply.
    pub fn migrate_access(&mut self, ticket: u64) -> Result<(), NotHandedOver> {
        self.hand_over(WriterOrder::MigrateAccess(ticket))
    }

    /// Reports to the ledger that a principal is an administrator. The principal's events and
    /// history then belong to the half of each table that is kept for administrators. Never waits.
    pub fn note_administrator(&mut self, principal: Principal) {
        if self.administrators.insert(principal)
            && let Some(orders) = &self.orders
        {
            // Without a writer, nothing is displaced.
            let _ = orders.send(WriterOrder::Administrator(principal));
        }
    }

    fn hand_over(&mut self, order: WriterOrder) -> Result<(), NotHandedOver> {
        if self.under_way >= MOST_UNDER_WAY {
            return Err(NotHandedOver::TooMany);
        }
        let orders = self.orders.as_ref().ok_or(NotHandedOver::NoWriter)?;
        orders.send(order).map_err(|_| NotHandedOver::NoWriter)?;
        signal(&self.ordered);
        self.under_way += 1;
        Ok(())
    }

    /// Returns the number of writes whose reply [`Ledger::replies`] has not returned yet. Queries
    /// are not counted.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Returns true if the writer thread was alive at the last call of [`Ledger::replies`]. If the
    /// thread has ended, there is a bug, and orders without a reply never get one.
    #[must_use]
    pub fn has_writer(&self) -> bool {
        self.has_writer
    }

    /// Returns the replies that have arrived since the last call. Replies to queries are in the
    /// order of the queries, and replies to writes in the order of the writes. Never waits.
    pub fn replies(&mut self) -> Vec<Reply> {
        let mut count = [0; 8];
        let count = match rustix::io::read(&self.answered, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        };
        // Take exactly the counted replies. A further reply may have been sent already, but its
        // count comes with the next call.
        let mut there = Vec::new();
        for _ in 0..count {
            match self.answers.try_recv() {
                Ok(reply) => there.push(reply),
                Err(error) => {
                    self.has_writer &= error != TryRecvError::Disconnected;
                    break;
                }
            }
        }
        for reply in &there {
            match reply {
                Reply::Events { ticket, .. } | Reply::Hours { ticket, .. } => {
                    self.open_queries.end(*ticket);
                }
                Reply::NoBackup(_) => {}
                _ => self.under_way = self.under_way.saturating_sub(1),
            }
        }
        there
    }

    /// Completes all orders and closes the ledger cleanly. Waits for the disk. Returns the
    /// remaining replies. Queries that have not begun get empty replies.
    ///
    /// # Errors
    /// If the ledger could not be closed cleanly. Even then, all commits are on the disk.
    pub fn close(mut self) -> (Vec<Reply>, Result<(), LedgerError>) {
        let closed = self.end();
        (self.answers.try_iter().collect(), closed)
    }

    fn end(&mut self) -> Result<(), LedgerError> {
        (self.orders, self.queries) = (None, None);
        self.open_queries.cancel_all();
        signal(&self.ordered);
        let ended = |_| Err(LedgerError::NoWriter(io::ErrorKind::BrokenPipe.into()));
        self.writer.take().map_or(Ok(()), |writer| writer.join().unwrap_or_else(ended))
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // Even if closing fails, all commits are on the disk. The next daemon sees that the ledger
        // was not closed cleanly.
        let _ = self.end();
    }
}

impl AsFd for Ledger {
    /// Returns a descriptor that is readable when there are replies.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.answered.as_fd()
    }
}

/// Returns the identifier that the kernel gave to this boot of the host.
///
/// # Errors
/// If procfs cannot be read.
pub fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim_end().to_owned())
}
