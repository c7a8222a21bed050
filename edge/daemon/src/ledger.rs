//! What is promised, written down: a SQLite database that outlives us, the host's power, and most
//! of what can go wrong with a disk.
//!
//! A [`Ledger`] belongs to a thread that must not wait. Another one, of ordinary priority, has the
//! database; what is handed over ([`Ledger::append`], [`Ledger::look_up`]) is done there in the
//! same order, and each is answered once ([`Ledger::replies`]) when its descriptor has become
//! readable. Neither thread ever holds a lock that the other one wants: a thread that runs in real
//! time would wait for one that does not get to run.
//!
//! What SQLite has open must not be opened by anybody else in this process; see `place`.

mod answers;
mod doctor;
mod error;
mod place;
mod rows;
mod store;
mod stored;
mod tables;
mod words;
mod writer;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::SystemTime;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slackline_service::{Commit, Loaded};
use slackline_units::Time;

pub use doctor::{Examined, Rebuilt, Source, Table, check, rebuild};
pub use error::LedgerError;
pub use place::Backup;
use store::Begun;
pub use words::{AccessChange, Asked, Before, Granted, Keep, Logged, MOST_EVENTS, Proof};
use writer::{Answered, Order, Writer, signal};

/// The ledger's folder, unless another one is named.
pub const FOLDER: &str = "/var/lib/slackline";

/// How much may be under way at once: commits and questions that are not answered yet.
pub const MOST_UNDER_WAY: usize = 64;

/// The stack of the thread that writes, in bytes: SQLite needs a tenth of it, and all of it is
/// locked into memory.
const STACK: usize = 1 << 19;

/// An open ledger. Dropping it writes down what was handed over, and closes it.
#[derive(Debug)]
pub struct Ledger {
    orders: Option<Sender<Order>>,
    /// Says that there is an order.
    ordered: OwnedFd,
    answers: Receiver<Reply>,
    /// Says how many answers are there, all of them whole.
    answered: OwnedFd,
    under_way: usize,
    has_writer: bool,
    writer: Option<JoinHandle<Result<(), LedgerError>>>,
}

/// A ledger that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The ledger.
    pub ledger: Ledger,
    /// What is in it.
    pub loaded: Loaded,
    /// Who may do what besides what his groups let him.
    pub access: Vec<Granted>,
    /// How the one who had it before ended; none for a new ledger.
    pub before: Option<Before>,
    /// True if members of the group without a grant are tenants. In a ledger of an older program
    /// they are operators until [`Ledger::migrate_access`].
    pub has_tenants: bool,
}

/// What came of something that was handed over.
#[derive(Debug)]
pub enum Reply {
    /// A commit is on the disk.
    Committed {
        /// Its number.
        seq: u64,
    },
    /// A commit is not, and has no effect.
    Failed {
        /// Its number.
        seq: u64,
        /// Why.
        error: LedgerError,
    },
    /// A question is answered.
    Events {
        /// Which question: what was given with it.
        ticket: u64,
        /// The answer, newest first.
        events: Result<Vec<Logged>, LedgerError>,
    },
    /// Who may do what is written down, or not.
    Access {
        /// Which change: what was given with it.
        ticket: u64,
        /// Why not.
        done: Result<(), LedgerError>,
    },
    /// The backup of the day could not be made; it is tried again in an hour. Nobody asked for it.
    NoBackup(LedgerError),
}

/// Why something was not even handed over.
#[derive(Debug, thiserror::Error)]
pub enum NotHandedOver {
    /// Too much is under way.
    #[error("the ledger has {MOST_UNDER_WAY} writes pending, which is the limit")]
    TooMany,
    /// The thread that writes is not there any more.
    #[error("the thread that writes the ledger has ended")]
    NoWriter,
}

impl Ledger {
    /// Opens the ledger in a folder, and takes it for this process; makes both if they are not
    /// there. Identities of machines are loaded if they are of this boot.
    ///
    /// This waits for the disk, and up to five seconds for others. The caller may be real-time.
    ///
    /// # Errors
    /// Why there is no ledger to be had. Nothing of a damaged one was changed.
    pub fn open(folder: &Path, boot_id: &str, keep: Keep) -> Result<Opened, LedgerError> {
        let failed = |errno: Errno| LedgerError::NoWriter(errno.into());
        let counter = |flags| eventfd(0, EventfdFlags::CLOEXEC | flags).map_err(failed);
        let (ordered, answered) =
            (counter(EventfdFlags::NONBLOCK)?, counter(EventfdFlags::NONBLOCK)?);
        let copied = |fd: &OwnedFd| fd.try_clone().map_err(LedgerError::NoWriter);
        let (ordered_there, answered_there) = (copied(&ordered)?, copied(&answered)?);
        let (orders, orders_there) = channel();
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
            let (orders, answers) = (orders_there, answers_there);
            let (ordered, answered) = (ordered_there, Answered(answered_there));
            Writer { store, orders, ordered, answers, answered }.work()
        };
        let writer = Builder::new().name("slackline-ledger".to_owned()).stack_size(STACK);
        let writer = writer.spawn(body).map_err(LedgerError::NoWriter)?;
        let ended = |_| LedgerError::NoWriter(io::ErrorKind::BrokenPipe.into());
        let Begun { loaded, access, before, has_tenants } = opened.recv().map_err(ended)??;
        let (orders, writer) = (Some(orders), Some(writer));
        let (under_way, has_writer) = (0, true);
        let ledger = Ledger { orders, ordered, answers, answered, under_way, has_writer, writer };
        Ok(Opened { ledger, loaded, access, before, has_tenants })
    }

    /// Hands a commit over to be written. `now` is the time by the clock of its events, which are
    /// written down by the clock on the wall. Never waits.
    ///
    /// # Errors
    /// When it was not handed over: there will be no reply.
    pub fn append(&mut self, commit: Commit, now: Time) -> Result<(), NotHandedOver> {
        let wall = SystemTime::now();
        let when = |at: Time| {
            let age = if at < now { now - at } else { slackline_units::Span::ZERO };
            wall.checked_sub(std::time::Duration::from_nanos(age.ns())).unwrap_or(wall)
        };
        let wall = commit.events.iter().map(|event| when(event.at)).collect();
        self.hand_over(Order::Commit(commit, wall))
    }

    /// Asks for events; `ticket` comes back with them. Never waits.
    ///
    /// # Errors
    /// When the question was not handed over: there will be no reply.
    pub fn look_up(&mut self, ticket: u64, asked: Asked) -> Result<(), NotHandedOver> {
        self.hand_over(Order::Events(ticket, asked))
    }

    /// Has it written down who may do what; `ticket` comes back with what came of it. Never waits.
    ///
    /// # Errors
    /// When the change was not handed over: there will be no reply.
    pub fn change_access(
        &mut self,
        ticket: u64,
        change: AccessChange,
    ) -> Result<(), NotHandedOver> {
        self.hand_over(Order::Access(ticket, change))
    }

    /// Has members of the group without a grant be tenants; `ticket` comes back with what came of
    /// it, as [`Reply::Access`]. Never waits.
    ///
    /// # Errors
    /// If it was not handed over: there will be no reply.
    pub fn migrate_access(&mut self, ticket: u64) -> Result<(), NotHandedOver> {
        self.hand_over(Order::MigrateAccess(ticket))
    }

    fn hand_over(&mut self, order: Order) -> Result<(), NotHandedOver> {
        if self.under_way >= MOST_UNDER_WAY {
            return Err(NotHandedOver::TooMany);
        }
        let orders = self.orders.as_ref().ok_or(NotHandedOver::NoWriter)?;
        orders.send(order).map_err(|_| NotHandedOver::NoWriter)?;
        signal(&self.ordered);
        self.under_way += 1;
        Ok(())
    }

    /// How much is under way: handed over, and its reply not taken yet.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether there is still a thread that writes, as far as [`Ledger::replies`] has seen. Where
    /// there is none, what is under way will have no reply; that is a bug of ours.
    #[must_use]
    pub fn has_writer(&self) -> bool {
        self.has_writer
    }

    /// The replies that are there, in the order of what they reply to. Never waits.
    pub fn replies(&mut self) -> Vec<Reply> {
        let mut count = [0; 8];
        let count = match rustix::io::read(&self.answered, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        };
        // Not one more than were counted: another one may be in the middle of being put there.
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
        let of_orders = there.iter().filter(|reply| !matches!(reply, Reply::NoBackup(_)));
        self.under_way -= of_orders.count().min(self.under_way);
        there
    }

    /// Writes down what was handed over, and closes the ledger: the next to open it knows that it
    /// was. Waits for the disk. The replies that were not taken yet come with it.
    ///
    /// # Errors
    /// When it could not be closed as it should be; what was committed is there all the same.
    pub fn close(mut self) -> (Vec<Reply>, Result<(), LedgerError>) {
        let closed = self.end();
        (self.answers.try_iter().collect(), closed)
    }

    fn end(&mut self) -> Result<(), LedgerError> {
        self.orders = None;
        signal(&self.ordered);
        let ended = |_| Err(LedgerError::NoWriter(io::ErrorKind::BrokenPipe.into()));
        self.writer.take().map_or(Ok(()), |writer| writer.join().unwrap_or_else(ended))
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // What is committed is there; that it was not closed will be known.
        let _ = self.end();
    }
}

impl AsFd for Ledger {
    /// Readable when there are replies.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.answered.as_fd()
    }
}

/// What the kernel calls the time since it was started; another one after each boot.
///
/// # Errors
/// When there is no procfs.
pub fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim_end().to_owned())
}
