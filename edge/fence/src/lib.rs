//! The fence restores each thread that a process has changed, when the process ends or is killed.
//!
//! The process that holds threads is the *owner*. A thread that the owner may change is *held*.
//! Before the owner changes a thread for the first time, it reports the thread's original state to
//! its *keeper*, a child process. The owner then waits for the answer. When the owner ends in any
//! way, the kernel closes its end of their socket. The keeper then restores every thread still on
//! its list. The keeper also writes the list to a journal, so that a later program can restore the
//! threads if both were killed.
//!
//! - If the owner dies before it changes a thread, there is nothing to restore. If it dies later,
//!   the keeper restores each thread that the owner has not released. The keeper also repeats a
//!   restore that the owner had begun.
//! - If the keeper dies, the owner continues and starts a new keeper. The owner restores released
//!   threads itself, so a release needs no keeper.
//! - If both die, the journal still lists each thread. The keeper adds a thread to the journal
//!   before the owner changes it for the first time.
//!
//! Invariant after every call: a thread that may differ from its original state is on the owner's
//! list. It is also on the keeper's list (unless the keeper is dead) and in the journal (unless
//! there is none).
//!
//! Limit: threads and processes that a *pinned* thread starts inherit its affinity, and keep it
//! afterwards. The fence cannot tell an inherited affinity from one that they chose themselves.

mod at_work;
mod budget;
mod cell;
mod cpuset;
mod entry;
mod give_back;
mod held;
mod journal;
mod keeper;
mod link;
mod outside_limits;
mod quiet_record;
mod slow_freeze;
mod take;
mod timeslice;
mod tree;
mod tree_usage;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use slackline_units::Reservation;
use thiserror::Error;

pub use at_work::keepers_have_ended;
pub use budget::{BudgetError, BudgetLimit, give_back_budgets, room_of};
pub use give_back::Original;
pub use give_back::{GiveBackError, GivenBack};
pub use held::HeldThread;
pub use held::{Drift, HandoverState};
pub use journal::{
    JournalError, Leftover, LeftoverError, Leftovers, give_back, give_back_all, leftovers,
};
pub use keeper::keeper_main;
pub use link::{KeeperCommand, KeeperError};
pub use timeslice::Timeslice;
pub use tree::HeldTree;
pub use tree::TreeAudit;
pub use tree_usage::TreeUsage;

use budget::Budgets;
use entry::{Entry, HoldMethod, TaskIdentity};
use held::Brake;
use link::{JournalPlace, KeeperLink, journal_if};
use slackline_linux::cgroup::{CgroupError, Controller, Place, TreePlace, Version};
use slackline_linux::step::{ActError, Hold, freezer};
use slackline_linux::sys::{Tid, get_affinity, get_scheduling, process_of};
use slackline_linux::thread::{Stat, ThreadError, ThreadRef, means_gone};

/// Error when the fence is started, or when a thread is registered with it.
#[derive(Debug, Error)]
pub enum FenceError {
    /// The start time of this process could not be read. It is needed to identify the owner.
    #[error("cannot read the start time of this process")]
    Unknown {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The keeper could not record the thread, so the thread is not held.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// This fence already holds the thread, so its original state is recorded already.
    #[error("cannot schedule thread {tid}: this process schedules it already")]
    HeldAlready {
        /// Id of the thread.
        tid: Tid,
    },
    /// The journal of another fence lists the thread. So the thread's current state may not be its
    /// original state.
    #[error("cannot schedule thread {tid}: process {owner} schedules it, or was killed doing so")]
    HeldElsewhere {
        /// Id of the thread.
        tid: Tid,
        /// Id of the Slackline process that already schedules the thread.
        owner: Tid,
    },
    /// The fence already stops this process by signals, which stop all its threads. So it cannot
    /// stop another thread of the process separately.
    #[error(
        "cannot schedule two threads of process {pid} by signals: a signal stops the whole process"
    )]
    ProcessHeldTwice {
        /// Id of the process.
        pid: Tid,
    },
    /// Another program has stopped the process. The fence cannot hold its threads, because
    /// restoring them would continue the process.
    #[error("cannot schedule process {pid}: a signal has stopped it")]
    Stopped {
        /// Id of the process.
        pid: Tid,
    },
    /// The thread has exited, or Slackline must not schedule it.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The scheduling or affinity of the thread could not be read. Both are needed to restore it.
    #[error("cannot read the scheduling of thread {tid}")]
    Unreadable {
        /// Id of the thread.
        tid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The cgroup of the thread has no real-time budget, and cannot get one.
    #[error("cannot make thread {tid} real-time: {source}")]
    Budget {
        /// Id of the thread.
        tid: Tid,
        /// Reason why the cgroup cannot have the budget.
        source: BudgetError,
    },
    /// A cgroup in which the thread could be frozen or limited cannot be found or made.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// The thread could not be stopped or resumed.
    #[error(transparent)]
    Act(#[from] ActError),
}

/// List of the threads that this process holds. The keeper process has a copy of the list.
///
/// Dropping the fence restores every thread.
#[derive(Debug)]
pub struct Fence {
    command: KeeperCommand,
    owner: TaskIdentity,
    keeper: KeeperLink,
    journal: Option<PathBuf>,
    held: BTreeMap<Tid, (Entry, HeldThread)>,
    /// Held process trees, by the id of each tree's first thread. Each of these threads is also in
    /// `held`.
    trees: BTreeMap<Tid, HeldTree>,
    budgets: Budgets,
}

impl Fence {
    /// Starts the keeper and returns a fence that holds no threads.
    ///
    /// # Errors
    /// If the keeper cannot be started or does not answer.
    pub fn start(command: KeeperCommand) -> Result<Fence, FenceError> {
        let owner = ourselves().map_err(|source| FenceError::Unknown { source })?;
        let (keeper, kept) = KeeperLink::start(&command, owner, &mut std::iter::empty())?;
        let journal = journal_if(kept, &command.state_directory, owner);
        let (held, trees) = (BTreeMap::new(), BTreeMap::new());
        let file = journal::path_for(&command.state_directory, owner);
        let budgets = Budgets::new(file.with_extension(budget::SUFFIX));
        Ok(Fence { command, owner, keeper, journal, held, trees, budgets })
    }

    /// Returns the path of the journal. `None` if the journal could not be written. In that case,
    /// threads stay changed if both the owner and the keeper are killed.
    #[must_use]
    pub fn journal(&self) -> Option<&Path> {
        self.journal.as_deref()
    }

    /// Returns a descriptor that becomes readable when the keeper has died. The caller must then
    /// call [`revive`](Fence::revive).
    #[must_use]
    pub fn keeper_fd(&self) -> BorrowedFd<'_> {
        self.keeper.as_fd()
    }

    /// Returns the process id of the keeper.
    #[must_use]
    pub fn keeper_id(&self) -> u32 {
        self.keeper.id()
    }

    /// Starts a new keeper with the list of all held threads. If the old keeper is still alive, it
    /// is killed after the new keeper has the list.
    ///
    /// # Errors
    /// If the new keeper cannot be started or does not answer. The threads stay held.
    pub fn revive(&mut self) -> Result<(), FenceError> {
        let mut entries = self.held.values().map(|(entry, _)| entry);
        let (keeper, kept) = KeeperLink::start(&self.command, self.owner, &mut entries)?;
        // The old keeper is killed only now, so that a keeper exists at any time.
        self.keeper.kill();
        self.keeper = keeper;
        self.note(kept);
        Ok(())
    }

    /// Returns the held threads in order of their ids.
    pub fn threads(&self) -> impl Iterator<Item = &HeldThread> {
        self.held.values().map(|(_, held)| held)
    }

    /// Returns a held thread by its id. `None` if this fence does not hold the thread.
    #[must_use]
    pub fn thread(&self, tid: Tid) -> Option<&HeldThread> {
        self.held.get(&tid).map(|(_, held)| held)
    }

    /// Registers a thread: records its state, reports the state to the keeper, and then prepares
    /// the stop method `hold`. The thread runs as before until the first order.
    ///
    /// # Errors
    /// If the thread has exited, is held already or cannot be held in this way, or the keeper
    /// cannot record it. The thread is unchanged.
    pub fn hold(&mut self, thread: &ThreadRef, hold: Hold) -> Result<HeldThread, FenceError> {
        self.refuse(thread, hold)?;
        first_that_works(ways(thread, hold)?, |way| self.hold_by(thread, way))
    }

    /// Prepares the stop method `hold` for a thread that is held with [`Hold::Nothing`]. The keeper
    /// records the method first. Does nothing if the thread can already be stopped.
    ///
    /// # Errors
    /// If the thread cannot be stopped by this method, or the keeper cannot record the method. The
    /// thread stays held with [`Hold::Nothing`].
    pub fn add_stop(&mut self, tid: Tid, hold: Hold) -> Result<(), FenceError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(()) };
        if entry.way != HoldMethod::Nothing {
            return Ok(());
        }
        let thread = held.thread().clone();
        self.refuse_stop(&thread, hold)?;
        first_that_works(ways(&thread, hold)?, |way| self.set_way(tid, way))
    }

    /// Undoes [`Fence::add_stop`]: resumes the thread, which is then held with [`Hold::Nothing`]
    /// again. If another program later stops the process by a signal, restoring the thread does not
    /// continue the process.
    ///
    /// # Errors
    /// If the thread cannot be resumed, its cgroup cannot be dissolved, or the keeper cannot record
    /// the change. The thread is then held as before.
    pub fn drop_stop(&mut self, tid: Tid) -> Result<(), FenceError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(()) };
        // The cgroup that freezes a tree also determines the tree's members, so it stays.
        if matches!(entry.way, HoldMethod::Tree(_)) {
            return Ok(());
        }
        let (entry, held) = (Entry { way: HoldMethod::Nothing, ..entry.clone() }, held.clone());
        // Resume the thread first, because the keeper must never forget a stopped thread.
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

    /// Dissolves the cgroup in which the thread of `entry` was frozen, if there is one. Reports
    /// `entry`, which no longer has a stop method, to the keeper.
    fn forget_stop(&mut self, entry: &Entry) -> Result<(), FenceError> {
        let before = self.held.get(&entry.thread.id).map(|(before, _)| &before.way);
        if let Some(HoldMethod::Thread(place)) = before {
            freezer::clear(place)?;
        }
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        Ok(())
    }

    /// Changes the stop method of a held thread. The keeper records the new method first. If the
    /// new method cannot be prepared after that, the keeper gets the former entry again.
    fn set_way(&mut self, tid: Tid, way: HoldMethod) -> Result<(), FenceError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(()) };
        let (before, held) = (entry.clone(), held.clone());
        let entry = Entry { way, ..before.clone() };
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        match Brake::for_entry(held.thread(), &entry) {
            Ok(brake) => {
                self.held.insert(tid, (entry, held.clone()));
                Ok(held.exchange_brake(brake)?)
            }
            Err(error) => {
                // If this report is lost, the keeper will also undo the method that was not
                // prepared. That has no effect.
                if let Ok(kept) = self.keeper.tell(&before.to_line()) {
                    self.note(kept);
                }
                Err(error.into())
            }
        }
    }

    /// Moves a process and all its descendants into a new cgroup and holds them as one tree.
    /// Processes that they start later belong to the tree. All run as before until the first order.
    ///
    /// # Errors
    /// If the cgroup cannot be made, a thread cannot be held, or the keeper cannot record the tree.
    /// After an error, all threads have been restored.
    pub fn hold_tree(&mut self, pid: Tid) -> Result<HeldTree, FenceError> {
        let root = ThreadRef::open(pid, pid)?;
        // Check before the cgroup is read, since another owner may have moved the process.
        self.refuse(&root, Hold::Nothing)?;
        let place = TreePlace::of_process(&root)?;
        self.hold_all(root, &place)
    }

    /// Holds all threads in a cgroup as one tree. The tree includes all threads that are started in
    /// the cgroup later.
    ///
    /// # Errors
    /// The same errors as [`Fence::hold_tree`], and an error if the cgroup is empty.
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

    /// Raises the real-time budgets of the cgroups of one vCPU's threads, so that the budgets
    /// suffice for the reservation `promise`. If it is `None`, each cgroup gets the largest budget
    /// that one CPU allows. Does nothing if cgroups have no real-time budgets on this host. The
    /// original budgets are restored when all threads are restored.
    ///
    /// # Errors
    /// If the cgroups above one of these cgroups have too little budget.
    pub fn grant(
        &mut self,
        threads: &[ThreadRef],
        promise: Option<Reservation>,
    ) -> Result<(), FenceError> {
        let Some(tid) = threads.first().map(ThreadRef::tid) else { return Ok(()) };
        self.budgets.grant(threads, promise).map_err(|source| FenceError::Budget { tid, source })
    }

    /// Changes the budgets that [`Fence::grant`] raised for threads of one vCPU, so that they
    /// suffice for each reservation in `promises`.
    ///
    /// # Errors
    /// If cgroups above a thread's cgroup have too little budget. The thread's cgroup is unchanged.
    pub fn regrant(
        &mut self,
        threads: &[ThreadRef],
        promises: &[Option<Reservation>],
    ) -> Result<(), FenceError> {
        let tids: Vec<Tid> = threads.iter().map(ThreadRef::tid).collect();
        let Some(&tid) = tids.first() else { return Ok(()) };
        self.budgets.regrant(&tids, promises).map_err(|source| FenceError::Budget { tid, source })
    }

    /// Lowers the real-time budgets that were raised for a thread, after the thread was restored.
    pub fn revoke(&mut self, tid: Tid) {
        self.budgets.revoke(tid);
    }

    /// Restores a thread. Every [`HeldThread`] for it refuses orders from now on.
    ///
    /// Does nothing if the thread is not held. Works even if the keeper is dead.
    ///
    /// # Errors
    /// If the kernel refused a step. The thread stays on the list, so that the caller can try
    /// again.
    pub fn release(&mut self, tid: Tid) -> Result<GivenBack, GiveBackError> {
        if !self.held.contains_key(&tid) {
            return Ok(GivenBack::Restored);
        }
        let what = self.let_go_of(tid);
        // A dead keeper needs no report, because the next keeper gets the whole list.
        if !self.held.contains_key(&tid)
            && let Ok(kept) = self.keeper.tell(&format!("free {tid}"))
        {
            self.note(kept);
        }
        what
    }

    /// Restores a thread as [`Fence::release`] does, without reporting it to the keeper.
    fn let_go_of(&mut self, tid: Tid) -> Result<GivenBack, GiveBackError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(GivenBack::Restored) };
        let what = match self.trees.get(&tid) {
            Some(tree) => tree.give_back(entry),
            None => held.give_back(entry),
        };
        match &what {
            // The thread has exited and its cgroup is gone, so there is nothing to try again.
            Err(_) if give_back::is_moot(entry) => {}
            Err(_) => return what,
            Ok(_) => {}
        }
        self.held.remove(&tid);
        self.trees.remove(&tid);
        what
    }

    /// Restores all held threads, beginning with the threads of process trees.
    ///
    /// # Errors
    /// If threads are not completely restored. There is one error for each such thread, and these
    /// threads stay on the list.
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
        // All threads are reported together. If the keeper restores a thread again before it reads
        // the report, nothing changes.
        if let Ok(kept) = self.keeper.tell_all(&free) {
            self.note(kept);
        }
        if errors.is_empty() {
            // If a budget cannot be restored here, the keeper tries again and reports the error.
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

    /// Checks that no other process's journal lists the thread.
    ///
    /// # Errors
    /// [`FenceError::HeldElsewhere`] if another owner's journal lists the thread.
    pub fn refuse_held_elsewhere(&self, thread: &ThreadRef) -> Result<(), FenceError> {
        let tid = thread.tid();
        let who = TaskIdentity { id: tid, started: thread.started() };
        match journal::holder_of(&self.command.state_directory, self.owner, who) {
            Some(owner) => Err(FenceError::HeldElsewhere { tid, owner }),
            None => Ok(()),
        }
    }

    fn refuse_stop(&self, thread: &ThreadRef, hold: Hold) -> Result<(), FenceError> {
        let (pid, tid) = (thread.pid(), thread.tid());
        let stopping = |(entry, _): &(Entry, HeldThread)| {
            entry.process.id == pid && entry.way == HoldMethod::Process
        };
        if hold == Hold::Process && self.held.values().any(stopping) {
            return Err(FenceError::ProcessHeldTwice { pid });
        }
        let stat = Stat::of(pid, tid).map_err(|source| unreadable((pid, tid), source))?;
        if hold == Hold::Process && stat.stopped() {
            return Err(FenceError::Stopped { pid });
        }
        Ok(())
    }

    fn hold_by(&mut self, thread: &ThreadRef, way: HoldMethod) -> Result<HeldThread, FenceError> {
        let (pid, tid) = (thread.pid(), thread.tid());
        let unreadable = |source| unreadable((pid, tid), source);
        let entry = Entry {
            process: TaskIdentity { id: pid, started: thread.process_started() },
            thread: TaskIdentity { id: tid, started: thread.started() },
            scheduling: get_scheduling(tid).map_err(unreadable)?,
            affinity: get_affinity(tid).map_err(unreadable)?,
            way,
            cpuset: None,
            cell: None,
            first: (pid != tid).then(|| get_affinity(pid).ok()).flatten(),
            kept: None,
        };
        // If a dead owner left this thread as kept, the owner's journal has its original state.
        let former = journal::kept_by_dead(&self.command.state_directory, entry.thread);
        let entry = match &former {
            Some((_, former)) => {
                Entry { scheduling: former.scheduling, affinity: former.affinity, ..entry }
            }
            None => entry,
        };
        // The values above belong to this thread only if it still exists. Otherwise its id may have
        // been reused meanwhile.
        if thread.is_gone().map_err(unreadable)? {
            return Err(ThreadError::Gone { pid, tid }.into());
        }
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        match Brake::for_entry(thread, &entry) {
            Ok(brake) => {
                let held = HeldThread::new(thread.clone(), &entry, brake);
                self.held.insert(tid, (entry, held.clone()));
                if let Some((path, former)) = former {
                    // If the former entry cannot be removed, the thread is restored twice, to the
                    // same state.
                    let _ = journal::take_out(&path, &[&former]);
                }
                Ok(held)
            }
            Err(error) => {
                // If this report is lost, the keeper restores a thread that was never touched,
                // which is harmless.
                if let Ok(kept) = self.keeper.tell(&format!("free {tid}")) {
                    self.note(kept);
                }
                Err(error.into())
            }
        }
    }

    fn note(&mut self, kept: JournalPlace) {
        self.journal = journal_if(kept, &self.command.state_directory, self.owner);
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // A thread that cannot be released stays on the list of the keeper. The keeper tries again
        // and reports the error.
        let _ = self.release_all();
        self.keeper.end();
    }
}

/// Converts an error of reading a thread's state: the thread has exited, or the kernel refused.
fn unreadable((pid, tid): (Tid, Tid), source: io::Error) -> FenceError {
    if means_gone(&source) {
        ThreadError::Gone { pid, tid }.into()
    } else {
        FenceError::Unreadable { tid, source }
    }
}

/// Returns the possible ways of stopping a thread by the method `hold`, best first.
fn ways(thread: &ThreadRef, hold: Hold) -> Result<Vec<HoldMethod>, CgroupError> {
    Ok(match hold {
        Hold::Nothing => vec![HoldMethod::Nothing],
        Hold::Process => vec![HoldMethod::Process],
        Hold::Thread => {
            let places = Place::find(thread, Controller::Freezer)?;
            places.into_iter().map(HoldMethod::Thread).collect()
        }
    })
}

/// Calls `hold` with each way of stopping a thread, in order. Returns the first result that is not
/// [`FenceError::Group`]. If all ways fail with this error, returns the last error.
fn first_that_works<T>(
    ways: Vec<HoldMethod>,
    mut hold: impl FnMut(HoldMethod) -> Result<T, FenceError>,
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

fn ourselves() -> io::Result<TaskIdentity> {
    let id = i32::try_from(std::process::id()).ok().and_then(Tid::new);
    let id = id.ok_or(io::ErrorKind::InvalidData)?;
    Ok(TaskIdentity { id, started: Stat::of(id, id)?.started() })
}
