//! Held process trees, and the handle through which a scheduler gives orders to a whole tree.
//!
//! All processes of a tree are in one cgroup (see [`TreePlace`]). Processes that they start are in
//! the same cgroup. An order applies to the threads in the kernel's list of the cgroup. The list is
//! read for each order, since a stored list could be out of date. Threads that a real-time thread
//! of the tree starts inherit its class and its CPU, from their first instruction. So between a
//! fork and the next audit no thread of the tree runs on another CPU or in another class. The
//! threads take turns (`SCHED_RR`). [`HeldTree::put_first`] lets a chosen thread run before the
//! others. In a tree that uses several CPUs, [`HeldTree::put_ahead`] does this for several threads.

mod changed;
mod wide;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_units::{CpuId, CpuSet, Span};

use super::entry::Entry;
use super::give_back::{
    GiveBackError, GivenBack, Original, ROUNDS, give_back, ignore_gone, is_ours,
};
use super::held::Drift;
use super::quiet_record::QuietRecord;
use super::slow_freeze::{GuardedTree, guarded};
use super::timeslice::Timeslice;
use super::tree_usage::TreeUsage;
use slackline_linux::cgroup::{CgroupError, Step, TreePlace};
use slackline_linux::step::{Act, ActError, FifoPriority, ORDINARY, outranks_vcpus};
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, favour, get_affinity, get_scheduling, nice_of, set_affinity,
    set_scheduling,
};
use slackline_linux::thread::{ThreadRef, means_gone};

/// Handle of a held process tree. All orders to the tree go through the handle. Clones refer to the
/// same tree.
#[derive(Clone, Debug)]
pub struct HeldTree(Arc<TreeState>);

#[derive(Debug)]
struct TreeState {
    place: TreePlace,
    /// Threads that the tree had when the fence registered it. The first of them represents the
    /// tree in the journal.
    first: Vec<ThreadRef>,
    /// Original state for threads that were started after the fence registered the tree.
    default: Original,
    guarded: Arc<GuardedTree>,
    orders: Mutex<TreeOrders>,
}

#[derive(Debug)]
struct TreeOrders {
    /// Open file through which the tree is frozen and thawed.
    switch: File,
    wanted: TreeTarget,
    /// True if the class in `wanted` must still be applied, because the kernel has refused it to a
    /// thread.
    is_due: bool,
    /// CPUs to which all threads are restricted. `None` if each thread has its original affinity.
    cpus: Option<CpuSet>,
    /// CPUs that the tree may use at the same time. `None` if it uses only one CPU at a time.
    wide: Option<CpuSet>,
    is_frozen: bool,
    /// State to which each known thread of the tree will be restored.
    originals: BTreeMap<Tid, Original>,
    /// Threads that keep their original class, because the kernel refuses to give them the ordered
    /// CPUs or class. Examples are workers of `io_uring`, and threads in a cpuset without the
    /// ordered CPUs.
    unbound: BTreeSet<Tid>,
    /// Threads that were restored after they had left the tree. The dispatcher may have chosen such
    /// a thread before, and may still give orders to it.
    departed: BTreeSet<Tid>,
    /// Threads that run for a whole timeslice without taking turns.
    alone: Vec<Tid>,
    /// Threads with a priority that is one higher than that of the other threads of the tree.
    ahead: Vec<Tid>,
    given_back: bool,
    /// Record of the last audit that found all threads blocked and as ordered. `None` if there was
    /// none.
    rest: Option<QuietRecord>,
}

/// Scheduling that an order has given to all threads of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TreeTarget {
    Original,
    /// The highest priority among ordinary threads.
    First,
    Raised(FifoPriority),
}

impl HeldTree {
    /// Creates the handle of a tree.
    ///
    /// # Errors
    /// If the file that freezes the tree cannot be opened, or `first` contains no thread.
    pub(super) fn new(
        place: TreePlace,
        first: Vec<(ThreadRef, Original)>,
    ) -> Result<HeldTree, CgroupError> {
        let path = place.switch();
        let switch = OpenOptions::new().write(true).open(&path);
        let switch =
            switch.map_err(|source| CgroupError::refused(Step::OpenSwitch, &path, source))?;
        let Some(&(_, default)) = first.first() else {
            return Err(CgroupError::Empty { group: place.group });
        };
        let originals = first.iter().map(|(thread, original)| (thread.tid(), *original)).collect();
        let first = first.into_iter().map(|(thread, _)| thread).collect();
        let orders = TreeOrders {
            switch,
            wanted: TreeTarget::Original,
            is_due: false,
            cpus: None,
            wide: None,
            is_frozen: false,
            originals,
            unbound: BTreeSet::new(),
            departed: BTreeSet::new(),
            alone: Vec::new(),
            ahead: Vec::new(),
            given_back: false,
            rest: None,
        };
        let guarded = GuardedTree { place: place.clone(), ordinary: default.scheduling };
        let (guarded, orders) = (Arc::new(guarded), Mutex::new(orders));
        Ok(HeldTree(Arc::new(TreeState { place, first, default, guarded, orders })))
    }

    /// Returns the cgroup of the tree, and the cgroup to which its processes return.
    #[must_use]
    pub fn place(&self) -> &TreePlace {
        &self.0.place
    }

    /// Returns the threads that the process tree had when the fence registered it.
    #[must_use]
    pub fn first(&self) -> &[ThreadRef] {
        &self.0.first
    }

    /// Returns the current threads of the tree.
    ///
    /// # Errors
    /// If the list of the cgroup cannot be read.
    pub fn threads(&self) -> Result<Vec<Tid>, CgroupError> {
        self.0.place.all_threads()
    }

    /// Returns true if no process is left in the tree.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        !self.0.place.is_populated()
    }

    /// Opens the kernel's counter of the CPU time that the whole tree has used.
    ///
    /// # Errors
    /// If the counter cannot be opened.
    pub fn usage(&self) -> io::Result<TreeUsage> {
        File::open(self.0.place.usage()).map(TreeUsage)
    }

    /// Makes all threads real-time (`SCHED_RR`) at `priority`. Threads that they start inherit
    /// this.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn raise(&self, priority: FifoPriority) -> Result<(), ActError> {
        self.want(TreeTarget::Raised(priority))
    }

    /// Gives all threads the highest priority among ordinary threads.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn favour(&self) -> Result<(), ActError> {
        self.want(TreeTarget::First)
    }

    /// Restores the original scheduling of each thread.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn lower(&self) -> Result<(), ActError> {
        self.want(TreeTarget::Original)
    }

    /// Pins all threads to one CPU. If [`HeldTree::widen`] has set CPUs, restricts all threads to
    /// those CPUs instead.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn pin(&self, cpu: CpuId) -> Result<(), ActError> {
        let wide = self.orders()?.wide;
        self.keep_on(Some(wide.unwrap_or(CpuSet::one(cpu)))).map(drop)
    }

    /// Restricts all threads to the CPUs `cpus`. If `cpus` is `None`, each thread gets its original
    /// affinity. Returns the CPUs to which the threads were restricted before.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn keep_on(&self, cpus: Option<CpuSet>) -> Result<Option<CpuSet>, ActError> {
        let mut orders = self.orders()?;
        let before = orders.cpus;
        if before != cpus {
            orders.cpus = cpus;
            if let Err(error) = self.bring(&mut orders) {
                orders.cpus = before;
                // Some threads are on the new CPUs already. The first error is returned.
                let _ = self.bring(&mut orders);
                return Err(error);
            }
        }
        Ok(before)
    }

    /// Stops all threads of the tree, including threads that are started meanwhile.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn hold_back(&self) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        // A thread that waits in the kernel for a thread behind it in the queue spins there and
        // cannot be frozen. Setting its class again moves it to the end of the queue.
        let alone = std::mem::take(&mut orders.alone);
        if let TreeTarget::Raised(priority) = orders.wanted {
            for tid in alone {
                let _ = set_scheduling(tid, &round_robin(priority.number()));
            }
        }
        self.freeze(&mut orders, true)
    }

    /// Resumes the tree.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn let_go(&self) -> Result<(), ActError> {
        self.freeze(&mut *self.orders()?, false)
    }

    /// Lets one thread of the tree run before the other threads of the same priority. Does nothing
    /// if the tree is not real-time, or if the thread is exempt from the orders or has left the
    /// tree.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn put_first(&self, tid: Tid, timeslice: Timeslice) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        let TreeTarget::Raised(priority) = orders.wanted else { return Ok(()) };
        if orders.has_no_place(tid) {
            return Ok(());
        }
        let at_last = match timeslice {
            Timeslice::Whole => fifo(priority.number()),
            Timeslice::Shared => round_robin(priority.number()),
        };
        if timeslice == Timeslice::Whole {
            orders.alone.push(tid);
        }
        // When the kernel lowers the priority of a thread, it queues the thread before the threads
        // that already have the lower priority.
        for step in [round_robin(priority.number() + 1), at_last] {
            let done = set_scheduling(tid, &step);
            ignore_gone(done)
                .map_err(|source| refused(tid, Act::Raise(FifoPriority::CHOSEN), source))?;
        }
        Ok(())
    }

    /// Records that an audit found all threads blocked and as ordered. `used` is the CPU time that
    /// the tree had used at the time of the audit.
    pub fn has_rested(&self, used: Span) {
        self.lock().rest = Some(QuietRecord::since(used));
    }

    /// Returns true if the tree needs no audit now. An audit has found all its threads blocked, and
    /// the tree has used no CPU time since then. Meanwhile another program may have moved a blocked
    /// thread into the tree, or changed a blocked thread. Such a thread is found when it runs, or
    /// at the next regular audit.
    #[must_use]
    pub fn is_resting(&self, used: Span) -> bool {
        self.lock().rest.as_mut().is_some_and(|rest| rest.lasts(used))
    }

    /// Restores the tree: undoes all orders, and refuses further orders.
    ///
    /// # Errors
    /// If a step failed. The first error is returned. Further orders are refused even after an
    /// error.
    pub(super) fn give_back(&self, entry: &Entry) -> Result<GivenBack, GiveBackError> {
        let mut orders = self.lock();
        orders.given_back = true;
        give_back(entry)
    }

    fn want(&self, wanted: TreeTarget) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        if orders.wanted == wanted && !orders.is_due {
            return Ok(());
        }
        orders.alone.clear();
        orders.wanted = wanted;
        let brought = self.bring(&mut orders);
        orders.is_due = brought.is_err();
        if orders.is_due && wanted != TreeTarget::Original {
            // No thread keeps a class that the kernel refuses to another thread of the tree.
            orders.wanted = TreeTarget::Original;
            orders.is_due = self.bring(&mut orders).is_err();
        }
        brought
    }

    /// Applies the orders to all threads of the tree, including threads that are started meanwhile.
    /// Returns the first error. After an error, the remaining threads still get their orders. The
    /// one exception is an order that makes the threads real-time: it stops at the first error.
    fn bring(&self, orders: &mut TreeOrders) -> Result<(), ActError> {
        let (mut done, mut result) = (BTreeSet::new(), Ok(()));
        for _ in 0..ROUNDS {
            let there = self.list()?;
            let new: Vec<Tid> = there.iter().copied().filter(|tid| done.insert(*tid)).collect();
            // The audit drops the originals of threads that have left.
            if new.is_empty() {
                break;
            }
            for tid in new {
                let brought = self.bring_one(orders, tid);
                if brought.is_err() && matches!(orders.wanted, TreeTarget::Raised(_)) {
                    return brought;
                }
                result = result.and(brought);
            }
        }
        result
    }

    fn bring_one(&self, orders: &mut TreeOrders, tid: Tid) -> Result<(), ActError> {
        let Some(original) = self.original(orders, tid)? else { return Ok(()) };
        let is_bound = match orders.apply_to(tid, &original) {
            Err(error) if !orders.unbound.contains(&tid) => return Err(error),
            is_bound => is_bound.unwrap_or(false),
        };
        if is_bound {
            orders.unbound.remove(&tid);
            orders.ahead.retain(|ahead| *ahead != tid);
            return Ok(());
        }
        orders.unbound.insert(tid);
        orders.drop_places(tid);
        let set = ignore_gone(lower(tid, &original.scheduling));
        set.map_err(|source| refused(tid, Act::Lower, source))
    }

    /// Returns the state to which a thread of the tree will be restored. `None` if the thread has
    /// ended.
    ///
    /// A thread that joined the tree after the registration gets the default affinity. If it has a
    /// class that the fence gives to trees, or a class above all vCPUs, it gets the default class
    /// with its own nice value. Otherwise it keeps its current class.
    fn original(&self, orders: &mut TreeOrders, tid: Tid) -> Result<Option<Original>, ActError> {
        if let Some(&original) = orders.originals.get(&tid) {
            return Ok(Some(original));
        }
        let now = match get_scheduling(tid) {
            Err(error) if means_gone(&error) => return Ok(None),
            now => now.map_err(|source| refused(tid, Act::Lower, source))?,
        };
        let Original { mut scheduling, affinity } = self.0.default;
        if !is_ours(now.class) && !outranks_vcpus(now.class) {
            scheduling = now;
        } else if let (Scheduling::Other { .. }, Ok(nice)) = (scheduling.class, nice_of(tid)) {
            scheduling.class = Scheduling::Other { nice };
        }
        let original = Original { scheduling, affinity };
        orders.originals.insert(tid, original);
        Ok(Some(original))
    }

    fn list(&self) -> Result<Vec<Tid>, ActError> {
        let list = self.0.place.all_threads();
        list.map_err(|error| {
            let source = match error {
                CgroupError::Refused { source, .. } => source,
                error => io::Error::other(error),
            };
            refused(self.carrier(), Act::Confine, source)
        })
    }

    fn freeze(&self, orders: &mut TreeOrders, is_frozen: bool) -> Result<(), ActError> {
        if orders.is_frozen != is_frozen {
            let (text, act) = if is_frozen { ("1", Act::Freeze) } else { ("0", Act::Thaw) };
            let write = || orders.switch.write_all_at(text.as_bytes(), 0);
            let (written, is_lowered) =
                if is_frozen { guarded(&self.0.guarded, write) } else { (write(), false) };
            if is_lowered {
                orders.wanted = TreeTarget::Original;
                let _ = self.bring(orders);
            }
            written.map_err(|source| match source.raw_os_error() {
                // The cgroup was removed, so every thread has ended.
                Some(libc::ENODEV) => ActError::Gone { tid: self.carrier() },
                _ => refused(self.carrier(), act, source),
            })?;
            orders.is_frozen = is_frozen;
        }
        Ok(())
    }

    fn carrier(&self) -> Tid {
        self.0.first[0].tid()
    }

    fn orders(&self) -> Result<MutexGuard<'_, TreeOrders>, ActError> {
        let orders = self.lock();
        if orders.given_back {
            return Err(ActError::GivenBack { tid: self.carrier() });
        }
        Ok(orders)
    }

    /// Locks the orders, even if another thread has panicked while it held the lock. At worst, one
    /// superfluous system call is made.
    fn lock(&self) -> MutexGuard<'_, TreeOrders> {
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fifo(priority: u8) -> SchedulingOf {
    let class = Scheduling::Fifo { priority: priority.into() };
    SchedulingOf { class, reset_on_fork: false }
}

fn round_robin(priority: u8) -> SchedulingOf {
    let class = Scheduling::RoundRobin { priority: priority.into() };
    SchedulingOf { class, reset_on_fork: false }
}

/// Restores the original class of a thread. If the kernel refuses that class, the thread gets the
/// ordinary class, so that it does not stay real-time.
fn lower(tid: Tid, original: &SchedulingOf) -> io::Result<()> {
    match set_scheduling(tid, original) {
        Err(error) if !means_gone(&error) => set_scheduling(tid, &ORDINARY),
        lowered => lowered,
    }
}

impl TreeOrders {
    /// Removes a thread from the lists of threads that run before other threads of the tree.
    fn drop_places(&mut self, tid: Tid) {
        self.alone.retain(|alone| *alone != tid);
        self.ahead.retain(|ahead| *ahead != tid);
    }

    /// Returns true if the thread must not run before other threads of the tree, because it is
    /// exempt from the orders or has left the tree.
    fn has_no_place(&self, tid: Tid) -> bool {
        self.unbound.contains(&tid) || self.departed.contains(&tid)
    }

    /// Applies the orders to a thread. Returns false if the kernel allows the thread none of the
    /// ordered CPUs. In that case, the thread does not get the ordered class.
    fn apply_to(&self, tid: Tid, original: &Original) -> Result<bool, ActError> {
        let cpus = self.cpus.unwrap_or(original.affinity);
        // The affinity is set first, so that the thread is never real-time on another CPU.
        let pinned = set_affinity(tid, &cpus).or_else(|error| {
            if !is_busy(&error) || outranks_vcpus(original.scheduling.class) {
                return Err(error);
            }
            // The kernel refuses to pin a thread under `SCHED_DEADLINE`.
            lower(tid, &original.scheduling)?;
            set_affinity(tid, &cpus)
        });
        match pinned {
            // The original affinity can be outside of a cpuset that Slackline made.
            Err(error) if is_invalid(&error) && self.cpus.is_none() => {}
            Err(error) if is_invalid(&error) => return Ok(false),
            set => ignore_gone(set).map_err(|source| refused(tid, Act::Confine, source))?,
        }
        let (act, set) = match self.wanted {
            TreeTarget::Original => (Act::Lower, lower(tid, &original.scheduling)),
            TreeTarget::First => (Act::Favour, favour(tid)),
            TreeTarget::Raised(priority) => {
                (Act::Raise(priority), set_scheduling(tid, &round_robin(priority.number())))
            }
        };
        ignore_gone(set).map_err(|source| refused(tid, act, source))?;
        Ok(true)
    }

    /// Returns the difference between the state of a thread and its orders. `None` if the state
    /// does not differ, or if the thread has ended.
    fn drift_of(&self, tid: Tid) -> Option<Drift> {
        let (class, cpus) = (get_scheduling(tid).ok()?, get_affinity(tid).ok()?);
        let is_bound = !self.unbound.contains(&tid);
        let wanted = if is_bound { self.wanted } else { TreeTarget::Original };
        let is_as_ordered = match wanted {
            TreeTarget::Original => {
                let is_its_own = |it: &Original| it.scheduling.class == class.class;
                let is_plain = !is_ours(class.class) && !outranks_vcpus(class.class);
                is_plain || self.originals.get(&tid).is_some_and(is_its_own)
            }
            TreeTarget::First => class.class == Scheduling::Other { nice: -20 },
            TreeTarget::Raised(priority) => {
                let number = priority.number();
                // In a wide tree, the threads that run first have a higher priority.
                let is_first = self.wide.is_some() && class == round_robin(number + 1);
                is_first || [round_robin(number), fifo(number)].contains(&class)
            }
        };
        let ordered = self.cpus.filter(|_| is_bound).unwrap_or(cpus);
        Drift::of((!is_as_ordered).then_some(class), (cpus != ordered).then_some(cpus))
    }
}

/// Result of an audit of all threads of a tree.
#[derive(Debug, Default)]
pub struct TreeAudit {
    /// Threads that are in the tree's cgroup now.
    pub there: Vec<Tid>,
    /// Threads whose state differs from their orders, each with the difference.
    pub changed: Vec<(Tid, Drift)>,
    /// Threads that were in the tree's cgroup before and are no longer there. They have ended, or
    /// are in another cgroup.
    pub left: Vec<Tid>,
    /// Threads in the tree's cgroup to which the kernel refuses the ordered CPUs or class.
    pub unbound: Vec<Tid>,
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

fn refused(tid: Tid, act: Act, source: io::Error) -> ActError {
    // `ActError::new` would turn the end of one thread into `Gone`, which means the end of the
    // tree.
    ActError::Refused { tid, act, source }
}
