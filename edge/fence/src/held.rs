//! A thread that the fence will give back, for whoever schedules it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_units::{CpuId, CpuSet, Span};

use super::entry::{Entry, Way};
use super::give_back::{GiveBackError, GivenBack, Original, give_back};
use slackline_linux::step::freezer::Freezer;
use slackline_linux::step::priority::{Pin, Priority};
use slackline_linux::step::stop::Stop;
use slackline_linux::step::{ActError, FifoPriority};
use slackline_linux::sys::SchedulingOf;
use slackline_linux::thread::ThreadRef;

/// A held thread: all that may be done to it, until it is given back.
///
/// Clones are the same thread. Once the fence has given it back, by whatever thread, every order is
/// refused. No order makes a call that would change nothing, so all may be given at any time.
#[derive(Clone, Debug)]
pub struct Held(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    thread: ThreadRef,
    /// Serialises orders with giving back: an order that comes late must not undo the undoing.
    orders: Mutex<Orders>,
}

#[derive(Debug)]
struct Orders {
    priority: Priority,
    pin: Pin,
    brake: Brake,
    given_back: bool,
}

#[derive(Debug)]
pub(super) enum Brake {
    Nothing,
    Process(Stop),
    Thread(Freezer),
}

impl Held {
    pub(super) fn new(thread: ThreadRef, entry: &Entry, brake: Brake) -> Held {
        let orders = Orders {
            priority: Priority::new(thread.clone(), entry.scheduling),
            pin: Pin::new(thread.clone(), entry.affinity),
            brake,
            given_back: false,
        };
        Held(Arc::new(Shared { thread, orders: Mutex::new(orders) }))
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> &ThreadRef {
        &self.0.thread
    }

    /// Makes it real-time at `priority`.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn raise(&self, priority: FifoPriority) -> Result<(), ActError> {
        self.orders()?.priority.raise(priority)
    }

    /// Makes it the first of the ordinary threads.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn favour(&self) -> Result<(), ActError> {
        self.orders()?.priority.favour()
    }

    /// Puts it behind all ordinary threads.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn defer(&self) -> Result<(), ActError> {
        self.orders()?.priority.defer()
    }

    /// Schedules it as it was originally.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn lower(&self) -> Result<(), ActError> {
        self.orders()?.priority.lower()
    }

    /// Reserves CPU time for it by `SCHED_DEADLINE`: so much in every period, and no more. It may
    /// then run on all CPUs in `online`.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn reserve(&self, slice: Span, period: Span, online: CpuSet) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        // The kernel refuses it to a thread that may not run everywhere.
        orders.pin.spread(online)?;
        orders.priority.reserve(slice, period)
    }

    /// Keeps it on one CPU.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn pin(&self, cpu: CpuId) -> Result<(), ActError> {
        self.orders()?.pin.pin(cpu)
    }

    /// Keeps it on these CPUs; says which it was kept on before.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn confine(&self, cpus: CpuSet) -> Result<CpuSet, ActError> {
        self.orders()?.pin.confine(cpus)
    }

    /// Stops its process, which another thread of the process is held by and lets go again.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn stop_as_well(&self) -> Result<(), ActError> {
        let _held = self.orders()?;
        Stop::as_well(&self.0.thread)
    }

    /// Lets it run on its original CPUs.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn unpin(&self) -> Result<(), ActError> {
        self.orders()?.pin.unpin()
    }

    /// How it differs from what was ordered, if another program, or the thread itself, has changed
    /// its class, its priority or its CPUs.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel does not say.
    pub fn differs(&self) -> Result<Option<Drift>, ActError> {
        let orders = self.orders()?;
        let (class, cpus) = (orders.priority.differs()?, orders.pin.differs()?);
        Ok(Drift::of(class, cpus))
    }

    /// Makes it as it was ordered to be. Where it cannot be kept on its CPUs it is made ordinary.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn undo(&self) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        // First, so that it is never real-time elsewhere because of us.
        if let Err(error) = orders.pin.undo() {
            let _ = orders.priority.lower_again();
            return Err(error);
        }
        orders.priority.undo()
    }

    /// Leaves it to whoever has changed it: what is as it was ordered is as it was originally
    /// again, and what is not stays as it was found, also when it is given back. Returns what it is
    /// given back as.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn leave(&self, how: Leaving) -> Result<Original, ActError> {
        let mut orders = self.orders()?;
        let orders = &mut *orders;
        if orders.priority.differs()?.is_none() {
            orders.priority.lower()?;
        }
        let scheduling = orders.priority.accept()?;
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

    /// It is given back as it is now. Returns that.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel does not say.
    pub fn accept(&self) -> Result<Original, ActError> {
        let mut orders = self.orders()?;
        let (scheduling, affinity) = (orders.priority.accept()?, orders.pin.accept()?);
        Ok(Original { scheduling, affinity })
    }

    /// The CPUs that it is kept on, if it is kept anywhere.
    #[must_use]
    pub fn kept_on(&self) -> Option<CpuSet> {
        self.lock().pin.ordered()
    }

    /// The group of ours that others have frozen, or thawed, although it should not be.
    #[must_use]
    pub fn foreign_freeze(&self) -> Option<PathBuf> {
        match &self.lock().brake {
            Brake::Thread(freezer) => freezer.foreign(),
            Brake::Nothing | Brake::Process(_) => None,
        }
    }

    /// Keeps it from running, in the way that was chosen when it was held.
    ///
    /// # Errors
    /// When it has exited or was given back, the kernel refuses, or the way chosen was
    /// [`Hold::Nothing`](slackline_linux::step::Hold::Nothing).
    pub fn hold_back(&self) -> Result<(), ActError> {
        match &mut self.orders()?.brake {
            Brake::Nothing => Err(ActError::NeverHeldBack { tid: self.0.thread.tid() }),
            Brake::Process(stop) => stop.stop(),
            Brake::Thread(freezer) => freezer.freeze(),
        }
    }

    /// Lets it run again.
    ///
    /// # Errors
    /// When it has exited or was given back, or the kernel refuses.
    pub fn let_go(&self) -> Result<(), ActError> {
        self.orders()?.brake.let_go()
    }

    /// Lets it run: from now on nothing keeps it from that. Returns what did.
    ///
    /// # Errors
    /// When the kernel refuses. It is kept from running as before.
    pub(super) fn take_brake(&self) -> Result<Brake, ActError> {
        let mut orders = self.lock();
        match orders.brake.let_go() {
            Err(error) if !error.means_gone() => Err(error),
            _ => Ok(std::mem::replace(&mut orders.brake, Brake::Nothing)),
        }
    }

    /// From now on this is how it is kept from running. It must not be kept from it now.
    pub(super) fn set_brake(&self, brake: Brake) {
        self.lock().brake = brake;
    }

    fn orders(&self) -> Result<MutexGuard<'_, Orders>, ActError> {
        let orders = self.lock();
        if orders.given_back {
            return Err(ActError::GivenBack { tid: self.0.thread.tid() });
        }
        Ok(orders)
    }

    /// Refuses all further orders and undoes those given.
    ///
    /// # Errors
    /// The first step that failed. Orders are refused all the same.
    pub(super) fn give_back(&self, entry: &Entry) -> Result<GivenBack, GiveBackError> {
        let mut orders = self.lock();
        orders.given_back = true;
        give_back(entry)
    }

    /// A panic in the middle of an order leaves at worst a call that is made once too often.
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How threads are left to whoever has changed them.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    /// True if they are kept from running all the same.
    pub stays_stopped: bool,
    /// True if a cpuset keeps them where they are, and not their own affinity.
    pub by_cpuset: bool,
}

/// How a thread differs from what was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// Its class and priority, if they differ.
    pub class: Option<SchedulingOf>,
    /// Its CPUs, if they differ.
    pub cpus: Option<CpuSet>,
}

impl Drift {
    /// `None` if nothing differs.
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
            Way::Nothing | Way::Member | Way::Limit(_) | Way::Tree(_) | Way::Helper(_) => {
                Brake::Nothing
            }
            Way::Process => Brake::Process(Stop::new(thread.clone())),
            Way::Thread(place) => Brake::Thread(Freezer::make(thread.clone(), place)?),
        })
    }
}
