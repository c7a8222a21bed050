//! Gives every thread back: on return, error, panic, signal and kill.
//!
//! Whoever holds threads is the *owner*. Before it touches a thread for the first time it tells its
//! *keeper*, a child process, how the thread was, and waits for the answer. If the owner ends in
//! whatever way, the kernel closes its end of their socket, and the keeper gives back what is still
//! on its list. The keeper also writes the list to a journal, so that a later program can give back
//! what is left when both were killed.
//!
//! ```text
//!          hold ──────> keeper knows ──────> orders ──────> release
//!                            │                  │              │
//!   owner dies here:      nothing to undo    keeper undoes   keeper undoes what is left, again
//!   keeper dies here:     owner goes on, revives it, and gives back by itself in any case
//!   both die here:        the journal names it, from before the first order
//! ```
//!
//! What holds after every call: a thread that may differ from how it was found is on the owner's
//! list, the keeper's list (unless the keeper is dead), and in the journal (unless there is none).
//!
//! What is not given back: the affinity of threads and processes that a *pinned* thread starts. The
//! kernel lets them inherit it, and nobody can tell it from one of their own choice.

mod at_work;
mod budget;
mod cpuset;
mod entry;
mod give_back;
mod held;
mod journal;
mod keeper;
mod link;
mod take;
mod tree;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use slackline_units::Reservation;
use thiserror::Error;

pub use at_work::keepers_have_ended;
pub use budget::{BudgetError, give_back_budgets};
pub use budget::{Room, room_of};
pub use give_back::Original;
pub use give_back::{GiveBackError, GivenBack};
pub use held::Held;
pub use held::{Drift, Leaving};
pub use journal::{
    JournalError, Leftover, LeftoverError, Leftovers, give_back, give_back_all, leftovers,
};
pub use keeper::keeper_main;
pub use link::{KeeperCommand, KeeperError};
pub use tree::HeldTree;
pub use tree::{TreeAudit, TreeUsage};

use budget::Budgets;
use entry::{Entry, Way, Who};
use held::Brake;
use link::{Keeper, Kept, journal_if};
use slackline_linux::cgroup::{CgroupError, Controller, Place, TreePlace, Version};
use slackline_linux::step::{ActError, Hold, freezer};
use slackline_linux::sys::{Tid, get_affinity, get_scheduling, process_of};
use slackline_linux::thread::{Stat, ThreadError, ThreadRef, means_gone};

/// Why a thread cannot be held, or there is no fence.
#[derive(Debug, Error)]
pub enum FenceError {
    /// Who we are could not be read.
    #[error("cannot read the start time of this process")]
    Unknown {
        /// What the kernel said.
        source: io::Error,
    },
    /// The keeper cannot be told.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The thread is held already.
    #[error("cannot hold thread {tid}: it is held already")]
    HeldAlready {
        /// The thread.
        tid: Tid,
    },
    /// Another owner's journal names the thread. What it is now may not be how it was found.
    #[error("cannot hold thread {tid}: process {owner} holds it, or was killed while it did")]
    HeldElsewhere {
        /// The thread.
        tid: Tid,
        /// The other owner.
        owner: Tid,
    },
    /// Only one thread of a process can be held by stopping the process.
    #[error("cannot hold two threads of process {pid} by signals, which stop the whole process")]
    ProcessHeldTwice {
        /// The process.
        pid: Tid,
    },
    /// Somebody has stopped the process, and would not want us to continue it.
    #[error("cannot hold process {pid}: it is stopped")]
    Stopped {
        /// The process.
        pid: Tid,
    },
    /// The thread has exited.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// How the thread is scheduled, and so how to give it back, could not be read.
    #[error("cannot read the scheduling of thread {tid}")]
    Unreadable {
        /// The thread.
        tid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its group has no real-time budget, and cannot have one.
    #[error("cannot make thread {tid} real-time: {source}")]
    Budget {
        /// The thread.
        tid: Tid,
        /// Why not.
        source: BudgetError,
    },
    /// There can be no group to freeze or limit it in.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// It cannot be let run.
    #[error(transparent)]
    Act(#[from] ActError),
}

/// The list of threads that are held, and the keeper that shares it.
///
/// Dropping it gives everything back.
#[derive(Debug)]
pub struct Fence {
    command: KeeperCommand,
    owner: Who,
    keeper: Keeper,
    journal: Option<PathBuf>,
    held: BTreeMap<Tid, (Entry, Held)>,
    /// Those of them that stand for a whole tree.
    trees: BTreeMap<Tid, HeldTree>,
    budgets: Budgets,
}

impl Fence {
    /// Starts the keeper.
    ///
    /// # Errors
    /// When it cannot be started or does not answer.
    pub fn start(command: KeeperCommand) -> Result<Fence, FenceError> {
        let owner = ourselves().map_err(|source| FenceError::Unknown { source })?;
        let (keeper, kept) = Keeper::start(&command, owner, &mut std::iter::empty())?;
        let journal = journal_if(kept, &command.state_directory, owner);
        let (held, trees) = (BTreeMap::new(), BTreeMap::new());
        let file = journal::path_for(&command.state_directory, owner);
        let budgets = Budgets::new(file.with_extension(budget::SUFFIX));
        Ok(Fence { command, owner, keeper, journal, held, trees, budgets })
    }

    /// The journal, or none if it could not be written: then threads stay held if owner and keeper
    /// are both killed.
    #[must_use]
    pub fn journal(&self) -> Option<&Path> {
        self.journal.as_deref()
    }

    /// A descriptor that polls readable when the keeper has died: time to
    /// [`revive`](Fence::revive).
    #[must_use]
    pub fn keeper_fd(&self) -> BorrowedFd<'_> {
        self.keeper.as_fd()
    }

    /// The keeper's process id.
    #[must_use]
    pub fn keeper_id(&self) -> u32 {
        self.keeper.id()
    }

    /// Replaces the keeper by a new one that knows the whole list. If the old one is not dead, it
    /// ends now without giving anything back.
    ///
    /// # Errors
    /// When it cannot be started or does not answer. Threads held so far stay held.
    pub fn revive(&mut self) -> Result<(), FenceError> {
        let mut entries = self.held.values().map(|(entry, _)| entry);
        let (keeper, kept) = Keeper::start(&self.command, self.owner, &mut entries)?;
        // Only now, so that there is one at any time.
        self.keeper.kill();
        self.keeper = keeper;
        self.note(kept);
        Ok(())
    }

    /// The threads that are held, in order of their ids.
    pub fn threads(&self) -> impl Iterator<Item = &Held> {
        self.held.values().map(|(_, held)| held)
    }

    /// One of them.
    #[must_use]
    pub fn thread(&self, tid: Tid) -> Option<&Held> {
        self.held.get(&tid).map(|(_, held)| held)
    }

    /// Notes how the thread is, tells the keeper, and only then prepares what `hold` needs. The
    /// thread runs on as before until the first order.
    ///
    /// # Errors
    /// When the thread has exited, is held already, cannot be held in this way, or the keeper
    /// cannot be told. The thread is as it was.
    pub fn hold(&mut self, thread: &ThreadRef, hold: Hold) -> Result<Held, FenceError> {
        self.refuse(thread, hold)?;
        first_that_works(ways(thread, hold)?, |way| self.hold_by(thread, way))
    }

    /// Prepares one that is held by [`Hold::Nothing`] to be kept from running, in this way, once
    /// the keeper knows that it may be. One that can be kept from running already stays as it is.
    ///
    /// # Errors
    /// When it cannot be held in this way, or the keeper cannot be told. It is held as it was.
    pub fn add_stop(&mut self, tid: Tid, hold: Hold) -> Result<(), FenceError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(()) };
        if entry.way != Way::Nothing {
            return Ok(());
        }
        let thread = held.thread().clone();
        self.refuse_stop(&thread, hold)?;
        first_that_works(ways(&thread, hold)?, |way| self.set_way(tid, way))
    }

    /// One that was prepared by [`Fence::add_stop`] is let run, and held by [`Hold::Nothing`]
    /// again: whoever stops it from now on is somebody else, and it stays stopped when it is given
    /// back.
    ///
    /// # Errors
    /// When it cannot be let run, its group cannot be dissolved, or the keeper cannot be told. It
    /// is held as it was.
    pub fn drop_stop(&mut self, tid: Tid) -> Result<(), FenceError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(()) };
        // What freezes a tree also says who belongs to it.
        if matches!(entry.way, Way::Tree(_)) {
            return Ok(());
        }
        let (entry, held) = (Entry { way: Way::Nothing, ..entry.clone() }, held.clone());
        // First of all: the keeper must not forget of one that may still be stopped.
        let brake = held.take_brake()?;
        match self.forget_stop(&entry) {
            Ok(()) => {
                self.held.insert(tid, (entry, held));
                Ok(())
            }
            Err(error) => {
                held.set_brake(brake);
                Err(error)
            }
        }
    }

    /// Undoes what `entry`, which is held by nothing from now on, was prepared by.
    fn forget_stop(&mut self, entry: &Entry) -> Result<(), FenceError> {
        let before = self.held.get(&entry.thread.id).map(|(before, _)| &before.way);
        if let Some(Way::Thread(place)) = before {
            freezer::clear(place)?;
        }
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        Ok(())
    }

    /// The keeper knows first; what cannot be prepared then it is told to forget.
    fn set_way(&mut self, tid: Tid, way: Way) -> Result<(), FenceError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(()) };
        let (before, held) = (entry.clone(), held.clone());
        let entry = Entry { way, ..before.clone() };
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        match Brake::for_entry(held.thread(), &entry) {
            Ok(brake) => {
                held.set_brake(brake);
                self.held.insert(tid, (entry, held));
                Ok(())
            }
            Err(error) => {
                // If this is not heard, the keeper gives back more than was done: harmless.
                if let Ok(kept) = self.keeper.tell(&before.to_line()) {
                    self.note(kept);
                }
                Err(error.into())
            }
        }
    }

    /// Takes a process and all that descend from it into a group of their own, as one, with
    /// whatever they start from then on. They run on as before until the first order.
    ///
    /// # Errors
    /// When there can be no such group, one of them cannot be held, or the keeper cannot be told.
    /// All are as they were.
    pub fn hold_tree(&mut self, pid: Tid) -> Result<HeldTree, FenceError> {
        let root = ThreadRef::open(pid, pid)?;
        // Asked before where it is: another owner may have moved it.
        self.refuse(&root, Hold::Nothing)?;
        let place = TreePlace::of_process(&root)?;
        self.hold_all(root, &place)
    }

    /// Holds all that is in a group, and whatever is started there from now on, as one.
    ///
    /// # Errors
    /// As for [`Fence::hold_tree`], and when the group is empty.
    pub fn hold_group(&mut self, place: &TreePlace) -> Result<HeldTree, FenceError> {
        for tid in place.threads()? {
            match process_of(tid)
                .map_or(Err(ThreadError::Gone { pid: tid, tid }), |pid| ThreadRef::open(pid, tid))
            {
                Err(ThreadError::Gone { .. }) => {}
                root => {
                    let root = root?;
                    self.refuse(&root, Hold::Nothing)?;
                    return self.hold_all(root, place);
                }
            }
        }
        Err(CgroupError::Empty { group: place.group.clone() }.into())
    }

    /// Notes that the process of a thread is about to be put into a group that limits it.
    ///
    /// # Errors
    /// As for [`Fence::hold`].
    pub fn hold_limited(&mut self, thread: &ThreadRef, place: &Place) -> Result<Held, FenceError> {
        self.refuse(thread, Hold::Nothing)?;
        self.hold_by(thread, Way::Limit(place.clone()))
    }

    /// Notes that a program of ours limits a thread that is held by its process: it is to be ended
    /// before the thread is given back.
    ///
    /// # Errors
    /// When the keeper cannot be told.
    pub fn add_helper(&mut self, tid: Tid, helper: Tid) -> Result<(), FenceError> {
        let unreadable = |source| FenceError::Unreadable { tid, source };
        let started = Stat::of(helper, helper).map_err(unreadable)?.started();
        let Some((entry, _)) = self.held.get_mut(&tid) else { return Ok(()) };
        entry.way = Way::Helper(Who { id: helper, started });
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        Ok(())
    }

    /// Sees to it that the kernel lets the threads of one vCPU be real-time for what it is
    /// promised, where cgroups have real-time budgets; without a promise, for all that can be had.
    /// What a group had it has again once everybody has been given back.
    ///
    /// # Errors
    /// When a group cannot have that much.
    pub fn grant(
        &mut self,
        threads: &[ThreadRef],
        promise: Option<Reservation>,
    ) -> Result<(), FenceError> {
        let Some(tid) = threads.first().map(ThreadRef::tid) else { return Ok(()) };
        self.budgets.grant(threads, promise).map_err(|source| FenceError::Budget { tid, source })
    }

    /// Threads of one vCPU that have such a budget are to have one that is enough for each of these
    /// promises.
    ///
    /// # Errors
    /// When the groups above do not have that much. Nothing has been changed.
    pub fn regrant(
        &mut self,
        threads: &[ThreadRef],
        promises: &[Option<Reservation>],
    ) -> Result<(), FenceError> {
        let tids: Vec<Tid> = threads.iter().map(ThreadRef::tid).collect();
        let Some(&tid) = tids.first() else { return Ok(()) };
        self.budgets.regrant(&tids, promises).map_err(|source| FenceError::Budget { tid, source })
    }

    /// A thread that is not held, or not any more, needs no budget.
    pub fn revoke(&mut self, tid: Tid) {
        self.budgets.revoke(tid);
    }

    /// Gives a thread back. All its [`Held`] refuse orders from now on.
    ///
    /// A thread that is not held is left alone. Does not need the keeper.
    ///
    /// # Errors
    /// When a step was refused. The thread stays on the list, to be tried again.
    pub fn release(&mut self, tid: Tid) -> Result<GivenBack, GiveBackError> {
        if !self.held.contains_key(&tid) {
            return Ok(GivenBack::Restored);
        }
        let what = self.let_go_of(tid);
        // A keeper that is dead learns it when it is revived, from the list it is given.
        if !self.held.contains_key(&tid)
            && let Ok(kept) = self.keeper.tell(&format!("free {tid}"))
        {
            self.note(kept);
        }
        what
    }

    /// The same, which the keeper is still to be told.
    fn let_go_of(&mut self, tid: Tid) -> Result<GivenBack, GiveBackError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(GivenBack::Restored) };
        let what = match self.trees.get(&tid) {
            Some(tree) => tree.give_back(entry),
            None => held.give_back(entry),
        };
        match &what {
            // Nothing of it is left that could be tried again.
            Err(_) if give_back::is_moot(entry) => {}
            Err(_) => return what,
            Ok(_) => {}
        }
        self.held.remove(&tid);
        self.trees.remove(&tid);
        what
    }

    /// Gives all threads back.
    ///
    /// # Errors
    /// Every thread that is not wholly as it was. It stays on the list.
    pub fn release_all(&mut self) -> Result<(), Vec<GiveBackError>> {
        let trees: Vec<Tid> = self.trees.keys().copied().collect();
        let others = self.held.keys().copied().filter(|tid| !self.trees.contains_key(tid));
        let tids: Vec<Tid> = trees.iter().copied().chain(others).collect();
        let (mut errors, mut free) = (Vec::new(), Vec::new());
        for tid in tids {
            errors.extend(self.let_go_of(tid).err());
            if !self.held.contains_key(&tid) {
                free.push(format!("free {tid}"));
            }
        }
        // All at once: what the keeper gives back again until then is as it was.
        if let Ok(kept) = self.keeper.tell_all(&free) {
            self.note(kept);
        }
        if errors.is_empty() {
            // What cannot be given back now the keeper tries again, and says so.
            let _ = self.budgets.give_back();
            Ok(())
        } else {
            Err(errors)
        }
    }

    fn refuse(&self, thread: &ThreadRef, hold: Hold) -> Result<(), FenceError> {
        let tid = thread.tid();
        if self.held.contains_key(&tid) {
            return Err(FenceError::HeldAlready { tid });
        }
        self.refuse_held_elsewhere(thread)?;
        self.refuse_stop(thread, hold)
    }

    /// Refuses a thread that the journal of another process names.
    ///
    /// # Errors
    /// [`FenceError::HeldElsewhere`].
    pub fn refuse_held_elsewhere(&self, thread: &ThreadRef) -> Result<(), FenceError> {
        let tid = thread.tid();
        let who = Who { id: tid, started: thread.started() };
        match journal::holder_of(&self.command.state_directory, self.owner, who) {
            Some(owner) => Err(FenceError::HeldElsewhere { tid, owner }),
            None => Ok(()),
        }
    }

    fn refuse_stop(&self, thread: &ThreadRef, hold: Hold) -> Result<(), FenceError> {
        let (pid, tid) = (thread.pid(), thread.tid());
        let stopping =
            |(entry, _): &(Entry, Held)| entry.process.id == pid && entry.way == Way::Process;
        if hold == Hold::Process && self.held.values().any(stopping) {
            return Err(FenceError::ProcessHeldTwice { pid });
        }
        let stat = Stat::of(pid, tid).map_err(|source| unreadable((pid, tid), source))?;
        if hold == Hold::Process && stat.stopped() {
            return Err(FenceError::Stopped { pid });
        }
        Ok(())
    }

    fn hold_by(&mut self, thread: &ThreadRef, way: Way) -> Result<Held, FenceError> {
        let (pid, tid) = (thread.pid(), thread.tid());
        let unreadable = |source| unreadable((pid, tid), source);
        let entry = Entry {
            process: Who { id: pid, started: thread.process_started() },
            thread: Who { id: tid, started: thread.started() },
            scheduling: get_scheduling(tid).map_err(unreadable)?,
            affinity: get_affinity(tid).map_err(unreadable)?,
            way,
            cpuset: None,
        };
        // What was read is this thread's only if it was there all the while.
        if thread.is_gone().map_err(unreadable)? {
            return Err(ThreadError::Gone { pid, tid }.into());
        }
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        match Brake::for_entry(thread, &entry) {
            Ok(brake) => {
                let held = Held::new(thread.clone(), &entry, brake);
                self.held.insert(tid, (entry, held.clone()));
                Ok(held)
            }
            Err(error) => {
                // If this is not heard, the keeper gives back what was never touched: harmless.
                if let Ok(kept) = self.keeper.tell(&format!("free {tid}")) {
                    self.note(kept);
                }
                Err(error.into())
            }
        }
    }

    fn note(&mut self, kept: Kept) {
        self.journal = journal_if(kept, &self.command.state_directory, self.owner);
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // What fails here stays on the keeper's list, which tries again and says what is wrong.
        let _ = self.release_all();
        self.keeper.end();
    }
}

/// Why a thread cannot be read: it is gone, or the kernel does not say.
fn unreadable((pid, tid): (Tid, Tid), source: io::Error) -> FenceError {
    if means_gone(&source) {
        ThreadError::Gone { pid, tid }.into()
    } else {
        FenceError::Unreadable { tid, source }
    }
}

/// How a thread can be held, best first.
fn ways(thread: &ThreadRef, hold: Hold) -> Result<Vec<Way>, CgroupError> {
    Ok(match hold {
        Hold::Nothing => vec![Way::Nothing],
        Hold::Process => vec![Way::Process],
        Hold::Thread => {
            let places = Place::find(thread, Controller::Freezer)?;
            places.into_iter().map(Way::Thread).collect()
        }
    })
}

/// Tries one way after the other where there can be no group.
fn first_that_works<T>(
    ways: Vec<Way>,
    mut hold: impl FnMut(Way) -> Result<T, FenceError>,
) -> Result<T, FenceError> {
    let mut result = Err(FenceError::Group(CgroupError::NotMounted {
        version: Version::V1,
        controller: Controller::Freezer,
    }));
    for way in ways {
        result = hold(way);
        if !matches!(result, Err(FenceError::Group(_))) {
            break;
        }
    }
    result
}

fn ourselves() -> io::Result<Who> {
    let id = i32::try_from(std::process::id()).ok().and_then(Tid::new);
    let id = id.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Who { id, started: Stat::of(id, id)?.started() })
}
