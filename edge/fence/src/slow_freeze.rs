//! Guard against a freeze of a process tree that cannot finish because the tree itself is running.
//!
//! To freeze a cgroup, the kernel takes a lock that covers all cgroups. An ordinary thread that
//! creates a cgroup may hold that lock while it is on a CPU that real-time threads of the tree
//! occupy. Then the freeze waits for the lock, and the lock's holder waits for the CPU. So if a
//! freeze lasts too long, a guard thread takes the real-time class from the tree. The lock's holder
//! can then run, and the freeze ends.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::give_back::ROUNDS;
use slackline_linux::cgroup::TreePlace;
use slackline_linux::sys::{SchedulingOf, Tid, set_scheduling};
use slackline_units::Span;

/// Length of time from which a freeze counts as slow. Most freezes take some microseconds.
const SLOW_FREEZE: Span = Span::from_ms(5);

thread_local! {
    /// Guard for the freezes that the present thread makes. `None` before the first freeze, and if
    /// the guard cannot be started.
    static GUARD: RefCell<Option<FreezeGuard>> = const { RefCell::new(None) };
}

/// Tree whose freezes a guard watches.
#[derive(Clone, Debug)]
pub(super) struct GuardedTree {
    pub(super) place: TreePlace,
    /// Ordinary class that the guard gives to the threads of the tree.
    pub(super) ordinary: SchedulingOf,
}

/// Guard thread that gives a tree the ordinary class when its timer expires. The value consists of
/// the timer, and of the state that the guard shares with the thread that freezes trees.
struct FreezeGuard {
    timer: Arc<OwnedFd>,
    shared: Arc<Mutex<FreezeState>>,
}

#[derive(Default)]
struct FreezeState {
    /// Tree that is being frozen. `None` between two freezes.
    current: Option<Arc<GuardedTree>>,
    /// True if the guard has given the ordinary class to the tree of the current freeze.
    has_lowered: bool,
    /// True if the guard thread must end.
    is_over: bool,
}

/// Freezes a tree by calling `write`, while a guard watches. Returns the result of `write`, and
/// true if the guard has given the ordinary class to the tree because the freeze was slow.
pub(super) fn guarded<T>(tree: &Arc<GuardedTree>, write: impl FnOnce() -> T) -> (T, bool) {
    GUARD.with_borrow_mut(|guard| {
        if guard.is_none() {
            // If no guard can be started, a slow freeze takes as long as the kernel needs.
            *guard = FreezeGuard::start().ok();
        }
        match guard {
            Some(guard) => guard.watch(tree, write),
            None => (write(), false),
        }
    })
}

impl FreezeGuard {
    /// Starts the guard's thread. The thread inherits class, priority and CPUs of the calling
    /// thread. So the guard has precedence over the trees that the calling thread freezes.
    fn start() -> io::Result<FreezeGuard> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        let guard = FreezeGuard { timer: Arc::new(timer), shared: Arc::default() };
        let (timer, shared) = (Arc::clone(&guard.timer), Arc::clone(&guard.shared));
        let named = std::thread::Builder::new().name("freeze guard".into());
        named.spawn(move || guard_freezes(&timer, &shared))?;
        Ok(guard)
    }

    fn watch<T>(&self, tree: &Arc<GuardedTree>, write: impl FnOnce() -> T) -> (T, bool) {
        locked(&self.shared).current = Some(Arc::clone(tree));
        self.set(SLOW_FREEZE);
        let written = write();
        self.set(Span::ZERO);
        let mut shared = locked(&self.shared);
        shared.current = None;
        (written, std::mem::take(&mut shared.has_lowered))
    }

    /// Sets the timer to expire after the time `after`. If `after` is zero, stops the timer.
    fn set(&self, after: Span) {
        let nanoseconds = i64::try_from(after.ns()).unwrap_or(i64::MAX);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec {
            it_interval: none,
            it_value: Timespec { tv_sec: 0, tv_nsec: nanoseconds },
        };
        // If the timer cannot be set, a slow freeze takes as long as the kernel needs.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        locked(&self.shared).is_over = true;
        self.set(Span::from_ns(1));
    }
}

fn guard_freezes(timer: &OwnedFd, shared: &Mutex<FreezeState>) {
    let mut expired = [0; 8];
    loop {
        match rustix::io::read(timer, &mut expired) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let mut shared = locked(shared);
        if shared.is_over {
            return;
        }
        if let Some(tree) = shared.current.clone() {
            tree.lower();
            shared.has_lowered = true;
        }
    }
}

impl GuardedTree {
    /// Gives all threads of the tree the ordinary class, including threads that start during the
    /// call. Ignores errors: a thread may have exited.
    fn lower(&self) {
        let mut done: Vec<Tid> = Vec::new();
        for _ in 0..ROUNDS {
            let mut there = self.place.all_threads().unwrap_or_default();
            there.sort_unstable();
            let is_new = |tid: &&Tid| done.binary_search(tid).is_err();
            let new: Vec<Tid> = there.iter().filter(is_new).copied().collect();
            if new.is_empty() {
                return;
            }
            for tid in new {
                let _ = set_scheduling(tid, &self.ordinary);
            }
            done = there;
        }
    }
}

fn locked(shared: &Mutex<FreezeState>) -> std::sync::MutexGuard<'_, FreezeState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use slackline_linux::sys::{Scheduling, get_scheduling, own_tid};

    /// An ordinary file stands for the kernel's list of the tree's threads, and names only the
    /// test's own thread. `SCHED_BATCH` stands for the real-time class, because a real-time class
    /// would need root.
    #[test]
    fn process_tree_gets_ordinary_scheduling_class_if_freeze_takes_seconds() {
        let folder = tempfile::TempDir::new().unwrap();
        let thread = own_tid();
        std::fs::write(folder.path().join("cgroup.threads"), format!("{thread}\n")).unwrap();
        let place = TreePlace { group: folder.path().to_path_buf(), origin: None };
        let ordinary = get_scheduling(thread).unwrap();
        let Scheduling::Other { nice } = ordinary.class else { panic!("{ordinary:?}") };
        let tree = Arc::new(GuardedTree { place, ordinary });
        let other = SchedulingOf { class: Scheduling::Batch { nice }, ..ordinary };
        assert_eq!(guarded(&tree, || 7).0, 7);
        set_scheduling(thread, &other).unwrap();
        let slow = guarded(&tree, || std::thread::sleep(Duration::from_secs(3)));
        assert_eq!(slow, ((), true));
        assert_eq!(get_scheduling(thread).unwrap(), ordinary);
    }
}
