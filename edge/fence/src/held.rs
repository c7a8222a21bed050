//! Handles of held threads. Through these handles, a scheduler changes, stops and resumes the
//! threads.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_units::{CpuId, CpuSet, Span};

use super::entry::{Entry, HoldMethod};
use super::give_back::{GiveBackError, GivenBack, Original, give_back};
use slackline_linux::step::freezer::Freezer;
use slackline_linux::step::priority::{Pin, Priority};
use slackline_linux::step::stop::Stop;
use slackline_linux::step::{ActError, FifoPriority, outranks_vcpus};
use slackline_linux::sys::SchedulingOf;
use slackline_linux::thread::ThreadRef;

/// Handle of a held thread: a thread whose original state the fence has recorded. All orders to the
/// thread go through this handle until the thread is restored.
///
/// Clones refer to the same thread. After the fence has restored the thread, every order through
/// any clone is refused. An order that would change nothing makes no system call, so repeated
/// orders cost little.
#[derive(Clone, Debug)]
pub struct HeldThread(Arc<HeldState>);

#[derive(Debug)]
struct HeldState {
    thread: ThreadRef,
    /// Orders to the thread, behind a lock. Without the lock, an order could run while the thread
    /// is being restored, and undo a part of that.
    orders: Mutex<ThreadOrders>,
}

#[derive(Debug)]
struct ThreadOrders {
    priority: Priority,
    pin: Pin,
    brake: Brake,
    given_back: bool,
}

/// Means by which a held thread can be stopped and resumed.
#[derive(Debug)]
pub(super) enum Brake {
    Nothing,
    Process(Stop),
    Thread(Freezer),
}

impl HeldThread {
    pub(super) fn new(thread: ThreadRef, entry: &Entry, brake: Brake) -> HeldThread {
        let orders = ThreadOrders {
            priority: Priority::new(thread.clone(), entry.scheduling),
            pin: Pin::new(thread.clone(), entry.affinity),
            brake,
            given_back: false,
        };
        HeldThread(Arc::new(HeldState { thread, orders: Mutex::new(orders) }))
    }

    /// Returns the reference to the thread of this handle.
    #[must_use]
    pub fn thread(&self) -> &ThreadRef {
        &self.0.thread
    }

    /// Makes the thread real-time (`SCHED_FIFO`) at `priority`.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn raise(&self, priority: FifoPriority) -> Result<(), ActError> {
        self.orders()?.priority.raise(priority)
    }

    /// Gives the thread the highest priority among ordinary threads.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn favour(&self) -> Result<(), ActError> {
        self.orders()?.priority.favour()
    }

    /// Gives the thread a lower priority than all ordinary threads have.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn defer(&self) -> Result<(), ActError> {
        self.orders()?.priority.defer()
    }

    /// Restores the original scheduling of the thread.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn lower(&self) -> Result<(), ActError> {
        self.orders()?.priority.lower()
    }

    /// Reserves CPU time for the thread by `SCHED_DEADLINE`: `slice` in every `period`, as a hard
    /// limit. The kernel requires an affinity to all online CPUs. So from now on the thread may run
    /// on all CPUs in `online`.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn reserve(&self, slice: Span, period: Span, online: CpuSet) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        // The kernel refuses `SCHED_DEADLINE` for a thread whose affinity excludes an online CPU.
        orders.pin.spread(online)?;
        orders.priority.reserve(slice, period)
    }

    /// Pins the thread to a single CPU.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn pin(&self, cpu: CpuId) -> Result<(), ActError> {
        self.orders()?.pin.pin(cpu)
    }

    /// Restricts the thread to the CPUs `cpus`. Returns the CPUs to which the thread was restricted
    /// before.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn confine(&self, cpus: CpuSet) -> Result<CpuSet, ActError> {
        self.orders()?.pin.confine(cpus)
    }

    /// Sends the stop signal to this thread also, after its process was stopped through another
    /// held thread. Only that other thread's handle can resume the process.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn stop_as_well(&self) -> Result<(), ActError> {
        let _held = self.orders()?;
        Stop::as_well(&self.0.thread)
    }

    /// Restores the original affinity of the thread.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn unpin(&self) -> Result<(), ActError> {
        self.orders()?.pin.unpin()
    }

    /// Returns the difference between the state of the thread and its orders. The two differ if
    /// another program or the thread itself has changed its class, priority or affinity. `None` if
    /// nothing differs.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or its state cannot be read.
    pub fn differs(&self) -> Result<Option<Drift>, ActError> {
        let orders = self.orders()?;
        let (class, cpus) = (orders.priority.differs()?, orders.pin.differs()?);
        Ok(Drift::of(class, cpus))
    }

    /// Returns true if class, priority and affinity of the thread are as ordered. This check is
    /// faster than [`differs`](HeldThread::differs), because it does not check that the thread
    /// still exists. Returns false if only the slower check can decide.
    #[must_use]
    pub fn is_as_ordered(&self) -> bool {
        let is_it = |orders: MutexGuard<'_, ThreadOrders>| {
            orders.priority.is_as_ordered() && orders.pin.is_as_ordered()
        };
        self.orders().is_ok_and(is_it)
    }

    /// Applies the present orders again, after another program has changed the thread. If the
    /// affinity cannot be set, the thread gets its original scheduling and the error is returned.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn undo(&self) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        // The kernel refuses to pin a thread under `SCHED_DEADLINE`.
        orders.priority.leave_foreign_deadline()?;
        // The affinity is set first, so that the thread is never real-time on another CPU.
        if let Err(error) = orders.pin.undo() {
            let _ = orders.priority.lower_again();
            return Err(error);
        }
        orders.priority.undo()
    }

    /// Leaves the thread under the control of the program that has changed it. Class and priority
    /// are restored to their original values if they are as ordered. The same holds for the
    /// affinity. Values that differ from the orders stay as they are, and count as original from
    /// now on. Returns the state to which the thread will be restored in the end.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn leave(&self, how: HandoverState) -> Result<Original, ActError> {
        let mut orders = self.orders()?;
        let orders = &mut *orders;
        let scheduling = orders.priority.leave()?;
        if !how.stays_stopped {
            orders.brake.let_go()?;
        }
        let affinity = if how.by_cpuset {
            orders.pin.give_up()
        } else {
            if orders.pin.differs()?.is_none() {
                orders.pin.unpin()?;
            }
            orders.pin.accept()?
        };
        Ok(Original { scheduling, affinity })
    }

    /// Makes the current state of the thread its original state, to which it will be restored.
    /// Returns this state.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or its state cannot be read.
    pub fn accept(&self) -> Result<Original, ActError> {
        let mut orders = self.orders()?;
        let (scheduling, affinity) = (orders.priority.accept()?, orders.pin.accept()?);
        Ok(Original { scheduling, affinity })
    }

    /// Allows other programs to change the scheduling of the thread from now on. After such a
    /// change, orders have no effect until the change is accepted (see
    /// [`Priority::respect_changes`]).
    ///
    /// # Errors
    /// If the thread has exited or was restored.
    pub fn respect_changes(&self) -> Result<(), ActError> {
        self.orders()?.priority.respect_changes()
    }

    /// Makes the current class and priority the original ones, if another program has changed them
    /// while no order for class or priority was in effect. Returns the state to which the thread
    /// will be restored. `None` if there is no such change.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or its state cannot be read.
    pub fn accept_unordered_class(&self) -> Result<Option<Original>, ActError> {
        let mut orders = self.orders()?;
        if orders.priority.is_ordered() || orders.priority.differs()?.is_none() {
            return Ok(None);
        }
        let (scheduling, affinity) = (orders.priority.accept()?, orders.pin.original());
        Ok(Some(Original { scheduling, affinity }))
    }

    /// Returns the class and priority to which the thread will be restored.
    #[must_use]
    pub fn original_class(&self) -> SchedulingOf {
        self.lock().priority.original()
    }

    /// Returns true if the thread has a freezer cgroup, and another program has moved the thread
    /// out of it. Then the thread cannot be stopped.
    #[must_use]
    pub fn has_left_freezer(&self) -> bool {
        matches!(&self.lock().brake, Brake::Thread(freezer) if !freezer.contains_thread())
    }

    /// Returns the CPUs to which an order restricts the thread. `None` if no order restricts the
    /// thread.
    #[must_use]
    pub fn kept_on(&self) -> Option<CpuSet> {
        self.lock().pin.ordered()
    }

    /// Returns the path of the thread's freezer cgroup, if another program has frozen or thawed
    /// this cgroup since the last order. Otherwise returns `None`.
    #[must_use]
    pub fn foreign_freeze(&self) -> Option<PathBuf> {
        match &self.lock().brake {
            Brake::Thread(freezer) => freezer.foreign(),
            Brake::Nothing | Brake::Process(_) => None,
        }
    }

    /// Stops the thread by the means that were chosen when the fence recorded it.
    ///
    /// # Errors
    /// If the thread has exited or was restored, if the kernel refuses, or if no means were chosen:
    /// [`Hold::Nothing`](slackline_linux::step::Hold::Nothing).
    pub fn hold_back(&self) -> Result<(), ActError> {
        match &mut self.orders()?.brake {
            Brake::Nothing => Err(ActError::NeverHeldBack { tid: self.0.thread.tid() }),
            Brake::Process(stop) => stop.stop(),
            Brake::Thread(freezer) => freezer.freeze(),
        }
    }

    /// Resumes the thread.
    ///
    /// # Errors
    /// If the thread has exited or was restored, or the kernel refuses.
    pub fn let_go(&self) -> Result<(), ActError> {
        self.orders()?.brake.let_go()
    }

    /// Resumes the thread. Removes and returns its brake: the means by which the thread is stopped.
    ///
    /// # Errors
    /// If the kernel refuses. The thread stays stopped.
    pub(super) fn take_brake(&self) -> Result<Brake, ActError> {
        let mut orders = self.lock();
        match orders.brake.let_go() {
            Err(error) if !error.means_gone() => Err(error),
            _ => Ok(std::mem::replace(&mut orders.brake, Brake::Nothing)),
        }
    }

    /// Sets the brake of the thread: the means by which the thread is stopped. The call is allowed
    /// only while the thread is not stopped.
    pub(super) fn set_brake(&self, brake: Brake) {
        self.lock().brake = brake;
    }

    /// Replaces the brake of the thread: the means by which it can be stopped. If the former
    /// freezer cgroup is frozen, the new one is frozen too.
    ///
    /// # Errors
    /// If the thread was restored, or the kernel refuses. The thread then keeps its former brake.
    pub(super) fn exchange_brake(&self, mut brake: Brake) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        if let (Brake::Thread(former), Brake::Thread(new)) = (&orders.brake, &mut brake)
            && former.is_frozen()
        {
            new.freeze()?;
        }
        orders.brake = brake;
        Ok(())
    }

    fn orders(&self) -> Result<MutexGuard<'_, ThreadOrders>, ActError> {
        let orders = self.lock();
        if orders.given_back {
            return Err(ActError::GivenBack { tid: self.0.thread.tid() });
        }
        Ok(orders)
    }

    /// Restores the thread: undoes all orders, and refuses further orders.
    ///
    /// # Errors
    /// If a step failed. The first error is returned. Further orders are refused even after an
    /// error.
    pub(super) fn give_back(&self, entry: &Entry) -> Result<GivenBack, GiveBackError> {
        let mut orders = self.lock();
        orders.given_back = true;
        give_back(entry)
    }

    /// Locks the orders, even if another thread has panicked while it held the lock. At worst, one
    /// superfluous system call is made.
    fn lock(&self) -> MutexGuard<'_, ThreadOrders> {
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Conditions under which [`HeldThread::leave`] leaves a thread to the program that changed it.
#[derive(Clone, Copy, Debug)]
pub struct HandoverState {
    /// True if the thread stays stopped while the other program controls it.
    pub stays_stopped: bool,
    /// True if the other program changed the thread's cpuset and not the thread's own affinity.
    pub by_cpuset: bool,
}

/// Difference between the current state of a thread and its orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// Current class and priority, if they differ from the orders. `None` if they are as ordered.
    pub class: Option<SchedulingOf>,
    /// Current affinity if it differs from the orders. `None` if it is as ordered.
    pub cpus: Option<CpuSet>,
}

impl Drift {
    /// Returns true if the thread has left its CPUs, or has taken so high a priority that the
    /// dispatcher of its CPU may be unable to preempt it.
    #[must_use]
    pub fn is_escape(&self) -> bool {
        self.cpus.is_some() || self.class.is_some_and(|class| outranks_vcpus(class.class))
    }

    /// Returns the difference with the parts `class` and `cpus`. `None` if both parts are `None`.
    pub(super) fn of(class: Option<SchedulingOf>, cpus: Option<CpuSet>) -> Option<Drift> {
        (class.is_some() || cpus.is_some()).then_some(Drift { class, cpus })
    }
}

impl Brake {
    fn let_go(&mut self) -> Result<(), ActError> {
        match self {
            Brake::Nothing => Ok(()),
            Brake::Process(stop) => stop.go(),
            Brake::Thread(freezer) => freezer.thaw(),
        }
    }

    pub(super) fn for_entry(
        thread: &ThreadRef,
        entry: &Entry,
    ) -> Result<Brake, slackline_linux::cgroup::CgroupError> {
        Ok(match &entry.way {
            HoldMethod::Nothing
            | HoldMethod::Member
            | HoldMethod::Limit(_)
            | HoldMethod::Tree(_)
            | HoldMethod::Helper(_) => Brake::Nothing,
            HoldMethod::Process => Brake::Process(Stop::new(thread.clone())),
            HoldMethod::Thread(place) => Brake::Thread(Freezer::make(thread.clone(), place)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use slackline_linux::sys::Scheduling;

    use super::*;

    #[test]
    fn thread_with_top_priority_or_changed_affinity_counts_as_escaped() {
        let drift = |class| {
            let class = SchedulingOf { class, reset_on_fork: false };
            Drift { class: Some(class), cpus: None }.is_escape()
        };
        assert!(drift(Scheduling::Fifo { priority: 99 }));
        assert!(drift(Scheduling::RoundRobin { priority: 99 }));
        assert!(!drift(Scheduling::RoundRobin { priority: 97 }));
        assert!(!drift(Scheduling::Idle));
        assert!(Drift { class: None, cpus: Some(CpuSet::first_n(2)) }.is_escape());
    }
}
