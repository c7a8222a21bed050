//! Functions that restore threads: they undo every change that the fence has made to a thread.
//!
//! To restore a thread, only its journal entry is needed. So the owner, its keeper or a later
//! program can restore the thread. A step that has nothing to undo does nothing. So a thread can be
//! restored repeatedly, even by two processes at the same time. If one step fails, the other steps
//! are tried nevertheless.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;
use slackline_units::{CpuId, CpuSet};
use thiserror::Error;

use super::entry::{Entry, HoldMethod, TaskIdentity};
use slackline_linux::cgroup::{CgroupError, Place, TreePlace, descendants};
use slackline_linux::step::priority::Ladder;
use slackline_linux::step::{FifoPriority, freezer};
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_affinity, get_scheduling, nice_of, process_of, set_affinity,
    set_scheduling, signal_group,
};
use slackline_linux::thread::{TaskFd, is_running, means_gone, threads_of};

/// Outcome of an attempt to restore a thread, if no step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// The thread is in its original state.
    Restored,
    /// The thread had exited before. The cgroups and helpers that stopped it were removed.
    Exited,
}

/// Error when a thread is restored.
#[derive(Debug, Error)]
pub enum GiveBackError {
    /// The state of the thread could not be read, so it is unknown whether the thread still exists.
    #[error("cannot find out whether thread {tid} still exists")]
    Unknown {
        /// Id of the thread.
        tid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel refused the original affinity.
    #[error("cannot restore the affinity of thread {tid}")]
    Affinity {
        /// Id of the thread.
        tid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel refused the original scheduling. The thread now has the class `SCHED_OTHER`, if
    /// the kernel allowed that.
    #[error("cannot restore the scheduling of thread {tid}")]
    Scheduling {
        /// Id of the thread.
        tid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The process of the thread is stopped and could not be continued.
    #[error("cannot continue process {pid}")]
    Continue {
        /// Id of the process.
        pid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The cgroup that Slackline made for the thread could not be thawed or removed.
    #[error("cannot move thread {tid} back to its cgroup")]
    Group {
        /// Id of the thread.
        tid: Tid,
        /// Error of the step that failed.
        source: CgroupError,
    },
    /// The process tree could not be restored: its threads could not be listed, or its cgroup could
    /// not be frozen or dissolved.
    #[error("cannot restore a process tree: {source}")]
    Tree {
        /// Error of the step that failed.
        source: CgroupError,
    },
    /// The helper program that limits the process could not be ended.
    #[error("cannot end helper process {helper}, which still limits thread {tid}")]
    Helper {
        /// Process id of the helper.
        helper: Tid,
        /// Id of the thread whose process the helper limits.
        tid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Restores a thread. Its scheduling and affinity are restored before the thread is resumed. In the
/// reverse order, the thread could run as a real-time thread and keep this process from finishing.
///
/// # Errors
/// If a step failed. All steps have been tried, and the first error is returned.
pub(super) fn give_back(entry: &Entry) -> Result<GivenBack, GiveBackError> {
    let tid = entry.thread.id;
    // The cgroups of the entry show whether the thread has a new id, so this comes first.
    let renumbered = renumbered(entry);
    // The cpuset is removed before the affinity is restored. A thread that moves to another cpuset
    // may run on all CPUs of that cpuset, which would undo a restored affinity.
    let cpuset = entry.cpuset.as_ref().map_or(Ok(()), Place::dissolve);
    let cpuset = cpuset.map_err(|source| GiveBackError::Group { tid, source });
    // Processes in the cell return to the tree first, so that they are restored with it.
    let cell = entry.cell.as_ref().map_or(Ok(()), |cell| cell_back(cell, entry));
    let tree = match &entry.way {
        HoldMethod::Tree(place) => tree_back(place, entry),
        _ => Ok(()),
    };
    let exists = exists(entry.process.id, entry.thread);
    // If procfs cannot be read, the thread is restored anyway. That changes a wrong thread only if
    // the kernel has reused the id.
    let there = *exists.as_ref().unwrap_or(&true);
    let mut results = vec![cpuset, cell, tree];
    let original = Original { scheduling: entry.scheduling, affinity: entry.affinity };
    if there && entry.way == HoldMethod::Member {
        results.push(leaver_back(tid, original));
    } else if there {
        let first = affinity(tid, &entry.affinity);
        results.push(scheduling(tid, &entry.scheduling));
        // The kernel does not change the affinity of a thread in `SCHED_DEADLINE`. The thread has
        // left that class now, so a failed affinity is tried again.
        results.push(first.or_else(|_| affinity(tid, &entry.affinity)));
    } else if let Some(pid) = renumbered {
        results.push(scheduling(pid, &entry.scheduling));
        results.push(affinity(pid, &entry.affinity));
    }
    match &entry.way {
        HoldMethod::Nothing | HoldMethod::Member | HoldMethod::Tree(_) => {}
        // The stop signal stopped the whole process, which may outlive the thread.
        HoldMethod::Process => results.push(go(entry.process)),
        HoldMethod::Thread(place) => {
            let cleared = freezer::clear(place);
            results.push(cleared.map_err(|source| GiveBackError::Group { tid, source }));
        }
        HoldMethod::Limit(place) => {
            let cleared = place.dissolve();
            results.push(cleared.map_err(|source| GiveBackError::Group { tid, source }));
        }
        // The helper is ended first, so that it cannot stop the process again.
        HoldMethod::Helper(helper) => results.extend([end(*helper, tid), go(entry.process)]),
    }
    results.into_iter().collect::<Result<(), _>>()?;
    match exists {
        Ok(true) => Ok(GivenBack::Restored),
        Ok(false) => Ok(GivenBack::Exited),
        Err(source) => Err(GiveBackError::Unknown { tid, source }),
    }
}

/// Restores all threads of a process tree. The tree is frozen until all threads are restored, so
/// that its threads cannot start more real-time or pinned threads.
fn tree_back(place: &TreePlace, entry: &Entry) -> Result<(), GiveBackError> {
    if !place.is_made() {
        return Ok(());
    }
    let failed = |source| GiveBackError::Tree { source };
    let frozen = place.freeze(true).map_err(failed);
    let default = Original { scheduling: entry.scheduling, affinity: entry.affinity };
    let restored = restore(place, default);
    // Thaw the tree even after an error, since no other program would thaw it.
    let dissolved = place.dissolve().map_err(failed);
    // A thread that was not frozen yet may have started other threads until now. If another program
    // made the cgroup (no `origin`), those threads are still in it, so restore them too.
    let again = if place.origin.is_none() { restore(place, default) } else { Ok(()) };
    frozen.and(restored).and(dissolved).and(again)
}

/// Moves all processes from a cell back to their former cgroup. The threads of a process tree are
/// restored before the move, so that no real-time thread runs outside the tree.
fn cell_back(cell: &TreePlace, entry: &Entry) -> Result<(), GiveBackError> {
    if matches!(entry.way, HoldMethod::Tree(_)) {
        return tree_back(cell, entry);
    }
    cell.dissolve().map_err(|source| GiveBackError::Tree { source })
}

/// State of a thread before the fence held it, to which it will be restored.
#[derive(Clone, Copy, Debug)]
pub struct Original {
    /// Scheduling class, its parameters and the reset-on-fork flag.
    pub scheduling: SchedulingOf,
    /// CPUs on which the thread was allowed to run.
    pub affinity: CpuSet,
}

/// Maximum number of times that the list of a tree's threads is read. The list is read again if
/// threads have started since the previous reading.
pub(super) const ROUNDS: usize = 16;

/// Returns true if the fence gives this scheduling class to process trees: `SCHED_RR` or
/// `SCHED_FIFO` at a priority that Slackline uses, or `SCHED_OTHER` at nice -20. Other threads
/// rarely have one of these classes.
pub(super) fn is_ours(class: Scheduling) -> bool {
    let ladder = Ladder::LEAST.number()..=FifoPriority::CHOSEN.number() + 1;
    matches!(class, Scheduling::RoundRobin { priority } | Scheduling::Fifo { priority }
        if u8::try_from(priority).is_ok_and(|it| ladder.contains(&it)))
        || class == Scheduling::Other { nice: -20 }
}

/// Gives every thread of a tree the state `default`, including threads that start meanwhile. The
/// original state is known only for the tree's first thread, so all threads get the state of this
/// thread.
///
/// # Errors
/// If a thread could not be restored. All threads have been tried, and the first error is returned.
fn restore(place: &TreePlace, default: Original) -> Result<(), GiveBackError> {
    let mut result = Ok(());
    let mut done = BTreeSet::new();
    for _ in 0..ROUNDS {
        let there = match place.all_threads() {
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

/// Restores a thread that has left its process tree, and its descendants. A thread is restored only
/// if it still has a scheduling class that the fence gives to trees. The nice values stay
/// unchanged.
///
/// # Errors
/// If the kernel refused a step. All threads have been tried, and the first error is returned.
pub(super) fn leaver_back(tid: Tid, original: Original) -> Result<(), GiveBackError> {
    if !is_as_ours(tid) {
        return Ok(());
    }
    let mut result = restore_one(tid, original);
    // A thread that was started meanwhile may have inherited the class, so look again.
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

/// Returns the new id of a held thread that has executed another program. Such a thread becomes the
/// only thread of its process and gets the id of the first thread. Any one of three signs
/// identifies it: it is in a cgroup that the fence made for it, it has a scheduling class that the
/// fence sets, or it is pinned to a single CPU. `None` if the thread has not executed another
/// program.
fn renumbered(entry: &Entry) -> Option<Tid> {
    let pid = entry.process.id;
    let is_in_ours = || {
        let stop = match &entry.way {
            HoldMethod::Thread(place) => Some(place),
            _ => None,
        };
        stop.into_iter().chain(&entry.cpuset).any(|place| place.contains(pid))
    };
    // The program itself may have pinned its first thread.
    let is_pinned = || {
        let is_new = |now: &CpuSet| entry.first.as_ref().is_some_and(|first| first != now);
        get_affinity(pid).is_ok_and(|now| now.len() == 1 && now != entry.affinity && is_new(&now))
    };
    let is_it = entry.thread.id != pid
        && exists(pid, entry.process).unwrap_or(false)
        && threads_of(pid).is_ok_and(|threads| threads == [pid])
        && (is_in_ours() || is_pinned() || get_scheduling(pid).is_ok_and(is_of_held_thread));
    is_it.then_some(pid)
}

/// Returns true if this scheduling shows that a thread is held. A held thread can also have its
/// original scheduling at the moment. For such a thread, the result is false.
fn is_of_held_thread(now: SchedulingOf) -> bool {
    let ladder = Ladder::LEAST.number()..=FifoPriority::CHOSEN.number();
    let is_class = match now.class {
        Scheduling::Fifo { priority } => ladder.map(u32::from).any(|ours| ours == priority),
        Scheduling::Deadline { .. } => true,
        class => class == Scheduling::Other { nice: -20 } || class == Scheduling::Idle,
    };
    is_class && now.reset_on_fork
}

/// Returns true if nothing of an entry remains to be restored: the thread has exited, and its
/// cgroups are gone.
pub(super) fn is_moot(entry: &Entry) -> bool {
    // A thread whose state cannot be read counts as running.
    let there = |who| exists(entry.process.id, who).unwrap_or(true);
    let held = match &entry.way {
        HoldMethod::Nothing => false,
        HoldMethod::Member => return !there(entry.thread) || !is_as_ours(entry.thread.id),
        HoldMethod::Process => there(entry.process),
        HoldMethod::Thread(place) | HoldMethod::Limit(place) => place.is_made(),
        HoldMethod::Tree(place) => place.is_made(),
        HoldMethod::Helper(helper) => there(entry.process) || is_there(*helper),
    };
    let held = held || entry.cpuset.as_ref().is_some_and(Place::is_made);
    let held = held || entry.cell.as_ref().is_some_and(TreePlace::is_made);
    let held = held || renumbered(entry).is_some();
    !held && !there(entry.thread)
}

/// Returns true if a thread of process `pid` with this id and start time exists.
pub(super) fn exists(pid: Tid, thread: TaskIdentity) -> io::Result<bool> {
    is_running(pid, thread.id, thread.started)
}

fn affinity(tid: Tid, to: &CpuSet) -> Result<(), GiveBackError> {
    let first = set_affinity(tid, to);
    match first {
        // The kernel returns EINVAL if none of the original CPUs exists any more. Then the thread
        // may run on all CPUs, rather than stay pinned to one.
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
        // The original class may be `SCHED_DEADLINE`, whose bandwidth other threads may have taken.
        // The thread must not stay real-time because of that, so it gets the ordinary class. The
        // first error is returned in any case.
        let plain = SchedulingOf { class: Scheduling::Other { nice: 0 }, reset_on_fork: false };
        let _ = set_scheduling(tid, &plain);
        GiveBackError::Scheduling { tid, source }
    })
}

/// Continues a process, even if it does not seem to be stopped: a stop signal may have been sent
/// that has not taken effect yet.
fn go(process: TaskIdentity) -> Result<(), GiveBackError> {
    let pid = process.id;
    let sent = TaskFd::open(pid).and_then(|held| {
        // The start time is checked after the descriptor is open, so that the signal cannot reach
        // another process with the same id. A first thread that has exited (a zombie) still
        // identifies its process.
        match slackline_linux::thread::Stat::of(pid, pid) {
            Ok(stat) if stat.started() == process.started => held.signal_process(Signal::CONT),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    });
    ignore_gone(sent).map_err(|source| GiveBackError::Continue { pid, source })
}

/// Kills a helper program and all processes that it started, except those that have left its
/// process group.
fn end(helper: TaskIdentity, tid: Tid) -> Result<(), GiveBackError> {
    /// Longest wait for a killed process to end. Only on a very busy host does it take long to end.
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

fn is_there(process: TaskIdentity) -> bool {
    exists(process.id, process).unwrap_or(true)
}

/// Returns `Ok` if `result` is the error that the thread has exited. Otherwise returns `result`
/// unchanged.
pub(super) fn ignore_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if means_gone(&error) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use slackline_linux::sys::own_tid;
    use slackline_linux::thread::Stat;

    /// The thread is an ordinary thread when it executes another program, and the fence has made no
    /// cgroup for it. So only its affinity to a single CPU shows that the fence held it.
    #[test]
    fn thread_that_executed_program_while_pinned_gets_its_cpus_back() {
        let all = get_affinity(own_tid()).unwrap();
        if all.len() < 2 {
            println!("skipped: needs two CPUs");
            return;
        }
        let pid = |child: &std::process::Child| Tid::new(i32::try_from(child.id()).unwrap());
        // The id of an ended process stands for the former id of the thread.
        let mut ended = Command::new("true").spawn().unwrap();
        let former = pid(&ended).unwrap();
        ended.wait().unwrap();
        let mut program = Command::new("sleep").arg("1000").spawn().unwrap();
        let now = pid(&program).unwrap();
        let started = Stat::of(now, now).unwrap().started();
        let cpus: Vec<String> = all.iter().map(|cpu| cpu.index().to_string()).collect();
        let cpus = cpus.join(",");
        let line = format!(
            "hold {now} {started} {former} {started} other,0 keep {cpus} nothing first {cpus}"
        );
        let entry = Entry::from_line(&line).unwrap();
        set_affinity(now, &all.first().map(CpuSet::one).unwrap()).unwrap();
        let given_back = give_back(&entry);
        let affinity = get_affinity(now);
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(given_back.unwrap(), GivenBack::Exited);
        assert_eq!(affinity.unwrap(), all);
    }
}
