//! Undoes everything that may have been done to a thread.
//!
//! Written for whoever knows only what stands in an entry: the owner, its keeper, and a program
//! started long after both. Every step does nothing where there is nothing to undo, so all of it
//! can be repeated, also by two at once. One step's failure does not keep the others from being
//! tried.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;
use slackline_units::{CpuId, CpuSet};
use thiserror::Error;

use super::entry::{Entry, Way, Who};
use slackline_linux::cgroup::{CgroupError, Place, TreePlace, descendants};
use slackline_linux::step::priority::Ladder;
use slackline_linux::step::{FifoPriority, freezer};
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_affinity, get_scheduling, nice_of, process_of, set_affinity,
    set_scheduling, signal_group,
};
use slackline_linux::thread::{TaskFd, is_running, means_gone, threads_of};

/// What came of giving a thread back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// It is as it was before it was held.
    Restored,
    /// It had exited. Whatever else of it was held has been undone.
    Exited,
}

/// Why a thread is not wholly as it was before it was held.
#[derive(Debug, Error)]
pub enum GiveBackError {
    /// Whether the thread still exists could not be found out.
    #[error("cannot find out whether thread {tid} still exists")]
    Unknown {
        /// The thread.
        tid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its affinity was refused. It may run on every CPU that the kernel allows it.
    #[error("cannot restore the affinity of thread {tid}")]
    Affinity {
        /// The thread.
        tid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its scheduling was refused. It is in `SCHED_OTHER` if the kernel allowed that.
    #[error("cannot restore the scheduling of thread {tid}")]
    Scheduling {
        /// The thread.
        tid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its process could not be continued.
    #[error("cannot continue process {pid}")]
    Continue {
        /// The process.
        pid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its group could not be thawed or removed.
    #[error("cannot move thread {tid} back to its cgroup")]
    Group {
        /// The thread.
        tid: Tid,
        /// The step that failed.
        source: CgroupError,
    },
    /// What a process tree is now could not be read, or not be undone.
    #[error("cannot restore a process tree: {source}")]
    Tree {
        /// The step that failed.
        source: CgroupError,
    },
    /// The program that limits it could not be ended.
    #[error("cannot end process {helper}, which limits thread {tid}")]
    Helper {
        /// The program.
        helper: Tid,
        /// The thread.
        tid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Gives a thread back. Scheduling and affinity come first, so that it does not start to run as a
/// real-time thread that keeps us from finishing.
///
/// # Errors
/// The first step that failed; all have been tried.
pub(super) fn give_back(entry: &Entry) -> Result<GivenBack, GiveBackError> {
    let tid = entry.thread.id;
    // First of all: whoever leaves a cpuset may run on all CPUs of the one before it.
    let cpuset = entry.cpuset.as_ref().map_or(Ok(()), Place::dissolve);
    let cpuset = cpuset.map_err(|source| GiveBackError::Group { tid, source });
    let tree = match &entry.way {
        Way::Tree(place) => tree_back(place, entry),
        _ => Ok(()),
    };
    let exists = exists(entry.process.id, entry.thread);
    // If procfs does not answer we try: a wrong thread would need the id to be used again.
    let there = *exists.as_ref().unwrap_or(&true);
    let mut results = vec![cpuset, tree];
    let original = Original { scheduling: entry.scheduling, affinity: entry.affinity };
    if there && entry.way == Way::Member {
        results.push(leaver_back(tid, original));
    } else if there {
        let first = affinity(tid, &entry.affinity);
        results.push(scheduling(tid, &entry.scheduling));
        // While it was limited by `SCHED_DEADLINE` it could not be pinned.
        results.push(first.or_else(|_| affinity(tid, &entry.affinity)));
    } else if let Some(pid) = renumbered(entry) {
        results.push(scheduling(pid, &entry.scheduling));
        results.push(affinity(pid, &entry.affinity));
    }
    match &entry.way {
        Way::Nothing | Way::Member | Way::Tree(_) => {}
        // The process may outlive the thread, and it is the process that was stopped.
        Way::Process => results.push(go(entry.process)),
        Way::Thread(place) => {
            let cleared = freezer::clear(place);
            results.push(cleared.map_err(|source| GiveBackError::Group { tid, source }));
        }
        Way::Limit(place) => {
            let cleared = place.dissolve();
            results.push(cleared.map_err(|source| GiveBackError::Group { tid, source }));
        }
        // It must not stop the process once more after that was continued.
        Way::Helper(helper) => results.extend([end(*helper, tid), go(entry.process)]),
    }
    results.into_iter().collect::<Result<(), _>>()?;
    match exists {
        Ok(true) => Ok(GivenBack::Restored),
        Ok(false) => Ok(GivenBack::Exited),
        Err(source) => Err(GiveBackError::Unknown { tid, source }),
    }
}

/// Gives everybody in a tree back. Frozen meanwhile, it can start no more threads that would be
/// real-time or pinned.
fn tree_back(place: &TreePlace, entry: &Entry) -> Result<(), GiveBackError> {
    if !place.is_made() {
        return Ok(());
    }
    let failed = |source| GiveBackError::Tree { source };
    let frozen = place.freeze(true).map_err(failed);
    let default = Original { scheduling: entry.scheduling, affinity: entry.affinity };
    let restored = restore(place, default);
    // Thawed in any case: nobody else would.
    let dissolved = place.dissolve().map_err(failed);
    // Whoever was not frozen yet may have started others until now; those are in no group of ours
    // any more, unless the group is not ours.
    let again = if place.origin.is_none() { restore(place, default) } else { Ok(()) };
    frozen.and(restored).and(dissolved).and(again)
}

/// How a thread was before it was ours.
#[derive(Clone, Copy, Debug)]
pub struct Original {
    /// Its class, priority and flags.
    pub scheduling: SchedulingOf,
    /// The CPUs that it could run on.
    pub affinity: CpuSet,
}

/// How often the list of threads is taken again while some are started.
pub(super) const ROUNDS: usize = 16;

/// Whether threads of trees are made so, and hardly any others.
pub(super) fn is_ours(class: Scheduling) -> bool {
    let ladder = Ladder::LEAST.number()..=FifoPriority::CHOSEN.number() + 1;
    matches!(class, Scheduling::RoundRobin { priority }
        if ladder.map(u32::from).any(|ours| ours == priority))
        || class == Scheduling::Other { nice: -20 }
}

/// What a tree's threads are now, of which one may start another while this goes on; for whoever
/// knows no more of it than where it is and what its first thread was.
///
/// # Errors
/// The first refusal; all have been tried.
fn restore(place: &TreePlace, default: Original) -> Result<(), GiveBackError> {
    let mut result = Ok(());
    let mut done = BTreeSet::new();
    for _ in 0..ROUNDS {
        let there = match place.threads() {
            Ok(there) => there,
            Err(source) => return Err(GiveBackError::Tree { source }),
        };
        let new: Vec<Tid> = there.into_iter().filter(|tid| done.insert(*tid)).collect();
        if new.is_empty() {
            break;
        }
        for tid in new {
            let restored = restore_one(tid, default);
            result = result.and(restored);
        }
    }
    result
}

/// A thread that has left its tree, and what it has started since: whatever is as we made it, with
/// the nice value that it has.
///
/// # Errors
/// The first refusal; all have been tried.
pub(super) fn leaver_back(tid: Tid, original: Original) -> Result<(), GiveBackError> {
    if !is_as_ours(tid) {
        return Ok(());
    }
    let mut result = restore_one(tid, original);
    // What one of them starts while this goes on may be as we made it as well.
    for _ in 0..ROUNDS {
        let Ok(pid) = process_of(tid) else { break };
        let descendants = descendants(pid).unwrap_or_default();
        let threads = descendants.into_iter().flat_map(|pid| threads_of(pid).unwrap_or_default());
        let left: Vec<Tid> = threads.filter(|&tid| is_as_ours(tid)).collect();
        if left.is_empty() {
            break;
        }
        for tid in left {
            let restored = restore_one(tid, original);
            result = result.and(restored);
        }
    }
    result
}

fn is_as_ours(tid: Tid) -> bool {
    get_scheduling(tid).is_ok_and(|now| is_ours(now.class))
}

fn restore_one(tid: Tid, default: Original) -> Result<(), GiveBackError> {
    let Ok(now) = get_scheduling(tid) else { return Ok(()) };
    let mut result = Ok(());
    if is_ours(now.class) {
        let mut to = default.scheduling;
        let nice = nice_of(tid).ok().filter(|&nice| nice != -20);
        if let (Scheduling::Other { .. }, Some(nice)) = (to.class, nice) {
            to.class = Scheduling::Other { nice };
        }
        let set = ignore_gone(set_scheduling(tid, &to));
        result = set.map_err(|source| GiveBackError::Scheduling { tid, source });
    }
    if get_affinity(tid).is_ok_and(|now| now != default.affinity) {
        let set = ignore_gone(set_affinity(tid, &default.affinity));
        result = result.and(set.map_err(|source| GiveBackError::Affinity { tid, source }));
    }
    result
}

/// The number that a held thread has by now, if it has started another program: then it is the only
/// thread of its process, under the number of the first one, and still as we made it.
fn renumbered(entry: &Entry) -> Option<Tid> {
    let pid = entry.process.id;
    let is_as_ours = |now: SchedulingOf| {
        let ladder = Ladder::LEAST.number()..=FifoPriority::CHOSEN.number();
        let mut ours = ladder.map(u32::from);
        matches!(now.class, Scheduling::Fifo { priority } if ours.any(|ours| ours == priority))
            && now.reset_on_fork
    };
    let is_it = entry.thread.id != pid
        && exists(pid, entry.process).unwrap_or(false)
        && threads_of(pid).is_ok_and(|threads| threads == [pid])
        && get_scheduling(pid).is_ok_and(is_as_ours);
    is_it.then_some(pid)
}

/// Whether there is nothing left of an entry that could be given back.
pub(super) fn is_moot(entry: &Entry) -> bool {
    // What cannot be found out is taken to be there.
    let there = |who| exists(entry.process.id, who).unwrap_or(true);
    let held = match &entry.way {
        Way::Nothing => false,
        Way::Member => return !there(entry.thread) || !is_as_ours(entry.thread.id),
        Way::Process => there(entry.process),
        Way::Thread(place) | Way::Limit(place) => place.is_made(),
        Way::Tree(place) => place.is_made(),
        Way::Helper(helper) => there(entry.process) || is_there(*helper),
    };
    let held = held || entry.cpuset.as_ref().is_some_and(Place::is_made);
    let held = held || renumbered(entry).is_some();
    !held && !there(entry.thread)
}

/// Whether a thread of process `pid` exists and is the one that was meant.
pub(super) fn exists(pid: Tid, thread: Who) -> io::Result<bool> {
    is_running(pid, thread.id, thread.started)
}

fn affinity(tid: Tid, to: &CpuSet) -> Result<(), GiveBackError> {
    let first = set_affinity(tid, to);
    match first {
        // None of its CPUs is there any more. Anything is better than the one it was pinned to.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            ignore_gone(set_affinity(tid, &CpuSet::first_n(CpuId::LIMIT)))
        }
        result => ignore_gone(result),
    }
    .map_err(|source| GiveBackError::Affinity { tid, source })
}

fn scheduling(tid: Tid, to: &SchedulingOf) -> Result<(), GiveBackError> {
    let first = ignore_gone(set_scheduling(tid, to));
    first.map_err(|source| {
        // Its bandwidth may be promised to others by now. It must not stay real-time for that;
        // what was refused is told in any case.
        let plain = SchedulingOf { class: Scheduling::Other { nice: 0 }, reset_on_fork: false };
        let _ = set_scheduling(tid, &plain);
        GiveBackError::Scheduling { tid, source }
    })
}

/// Continues a process, stopped or not: a stop may be under way that no state shows yet.
fn go(process: Who) -> Result<(), GiveBackError> {
    let pid = process.id;
    let sent = TaskFd::open(pid).and_then(|held| {
        // Looked at once the descriptor is there, so that it is this process which is signalled. A
        // first thread that has exited (a zombie) still stands for the process.
        match slackline_linux::thread::Stat::of(pid, pid) {
            Ok(stat) if stat.started() == process.started => held.signal_process(Signal::CONT),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    });
    ignore_gone(sent).map_err(|source| GiveBackError::Continue { pid, source })
}

/// Ends a program of ours, and all that it started and that stayed in its process group.
fn end(helper: Who, tid: Tid) -> Result<(), GiveBackError> {
    /// It is killed; only a host that is very busy needs longer to bury it.
    const PATIENCE: Duration = Duration::from_secs(2);
    let failed = |source| GiveBackError::Helper { helper: helper.id, tid, source };
    if !is_there(helper) {
        return Ok(());
    }
    ignore_gone(signal_group(helper.id, Signal::KILL)).map_err(failed)?;
    let deadline = Instant::now() + PATIENCE;
    while is_there(helper) {
        if Instant::now() > deadline {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn is_there(process: Who) -> bool {
    exists(process.id, process).unwrap_or(true)
}

/// A thread that has exited needs nothing.
pub(super) fn ignore_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if means_gone(&error) => Ok(()),
        result => result,
    }
}
