//! Process trees that use several CPUs at the same time.
//!
//! The threads that should run first, the *first threads*, have a priority that is one higher than
//! the priority of the other threads. If a first thread waits on a CPU that runs another first
//! thread, the kernel moves the waiting thread to a CPU that runs a thread of lower priority. The
//! kernel never moves a thread to a CPU that runs a thread of equal priority. So all first threads
//! run at the same time only if there are at most as many of them as CPUs. Each further first
//! thread waits until another first thread blocks.

use slackline_units::CpuSet;

use super::{HeldTree, TreeTarget, fifo, refused, round_robin};
use crate::give_back::ignore_gone;
use slackline_linux::step::{Act, ActError, FifoPriority};
use slackline_linux::sys::{Scheduling, SchedulingOf, Tid, favour, set_scheduling};

impl HeldTree {
    /// Sets the CPUs that the tree may use at the same time. From now on, an order that pins the
    /// tree to one CPU restricts the tree to these CPUs instead.
    pub fn widen(&self, cpus: CpuSet) {
        self.lock().wide = Some(cpus);
    }

    /// Returns the CPUs that the tree may use at the same time. `None` if it uses only one CPU at a
    /// time.
    #[must_use]
    pub fn wide(&self) -> Option<CpuSet> {
        self.lock().wide
    }

    /// Returns the number of CPUs that the tree may use at the same time, at least 1.
    #[must_use]
    pub fn width(&self) -> usize {
        self.lock().wide.map_or(1, |wide| wide.iter().count())
    }

    /// Makes the kernel account the CPU time that these threads have used up to now. Otherwise the
    /// kernel accounts a running thread only at the next tick, up to milliseconds later. A change
    /// of class forces the accounting. So each thread gets another class for a moment, and then its
    /// own class. If that fails for a thread, the kernel accounts the thread at the next tick.
    ///
    /// The priority of a real-time thread stays the same, so the thread keeps its place in the
    /// queue of its CPU.
    pub fn count(&self, tids: impl Iterator<Item = Tid>) {
        let orders = self.lock();
        if orders.given_back {
            return;
        }
        for tid in tids.filter(|tid| !orders.has_no_place(*tid)) {
            match orders.wanted {
                TreeTarget::Raised(priority) => {
                    let number = priority.number() + u8::from(orders.ahead.contains(&tid));
                    let _ = set_scheduling(tid, &fifo(number));
                    let _ = set_scheduling(tid, &round_robin(number));
                }
                TreeTarget::First => {
                    let class = Scheduling::Other { nice: -19 };
                    let _ = set_scheduling(tid, &SchedulingOf { class, reset_on_fork: false });
                    let _ = favour(tid);
                }
                TreeTarget::Original => return,
            }
        }
    }

    /// Returns the threads to which the last call of [`HeldTree::put_ahead`] gave precedence over
    /// the other threads of the tree.
    #[must_use]
    pub fn ahead(&self) -> Vec<Tid> {
        self.lock().ahead.clone()
    }

    /// Lets the threads `tids`, and no others, run before the other threads of the tree. Does
    /// nothing unless the tree is real-time with the priority [`FifoPriority::CHOSEN`].
    ///
    /// A thread that gets the higher priority is queued behind the threads that already have it. So
    /// if `tids` has more threads than the tree has CPUs, the threads start in the order of `tids`.
    /// The one exception is a stopped tree: when it is thawed, its threads wake in the order in
    /// which they were started.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses. If the kernel refuses for some threads, all
    /// other threads have the ordered priorities.
    pub fn put_ahead(&self, tids: &[Tid]) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        let TreeTarget::Raised(priority) = orders.wanted else { return Ok(()) };
        if priority != FifoPriority::CHOSEN {
            return Ok(());
        }
        let set = |tid: Tid, number: u8| {
            let done = ignore_gone(set_scheduling(tid, &round_robin(number)));
            done.map_err(|source| refused(tid, Act::Raise(priority), source))
        };
        let before = std::mem::take(&mut orders.ahead);
        let after = tids.iter().copied().filter(|tid| !orders.has_no_place(*tid));
        let after: Vec<_> = after.collect();
        let mut result = Ok(());
        for &tid in before.iter().filter(|tid| !after.contains(tid)) {
            result = result.and(set(tid, priority.number()));
        }
        for &tid in after.iter().filter(|tid| !before.contains(tid)) {
            result = result.and(set(tid, priority.number() + 1));
        }
        orders.ahead = after;
        result
    }
}
