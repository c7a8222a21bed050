//! Mechanisms that enforce CPU time on a live host, behind one trait.
//!
//! [`Mechanism::check`] refuses a demand that the mechanism cannot express exactly.
//! [`KernelMechanism::apply`] lets the kernel enforce the demand. The fence records the state of
//! each thread before the thread's first change. Its keeper, a child process, has the same record.
//! So the state is restored however this process ends.
//!
//! Slackline's own dispatcher is a mechanism too. It needs a [session](crate::session), so it has
//! no `apply` here. Some kernels have two more mechanisms, which Slackline does not use: loadable
//! schedulers (`sched_ext`) and hierarchical real-time budgets (`cpu.rt.max`).

mod bandwidth;
mod choice;
pub(crate) mod deadline;
mod deadline_threads;
mod dispatcher;
mod error;
mod interference;
mod quota;
mod weight;

use std::path::PathBuf;

use slackline_fence::{Fence, GiveBackError};
use slackline_linux::cgroup::{TreePlace, Version};
use slackline_linux::sys::Tid;
use slackline_linux::thread::ThreadRef;
use slackline_units::{Enforcement, Reservation, Span};

pub use bandwidth::{DeadlineBandwidth, fair_server_share};
pub use choice::{Choice, ChoiceError, TrialResult, better, choose};
pub use deadline_threads::DeadlineThread;
pub use error::MechanismError;
pub use interference::{Interference, InterferenceCurve, check_interference};
pub use quota::usual_period as usual_quota_period;
pub use weight::CpuWeight;

/// Target of a mechanism: the threads for which it enforces CPU time.
#[derive(Clone, Debug)]
pub enum EnforceTarget {
    /// Threads of a VM's vCPUs. The demand applies to each thread separately.
    Vcpus(Vec<ThreadRef>),
    /// A process tree: a process, its descendants, and all processes that they start later.
    Tree(ThreadRef),
    /// A command that waits to be executed, and all processes that it will start.
    Command(ThreadRef),
    /// All threads in a cgroup that another program has made.
    Group(TreePlace),
}

impl EnforceTarget {
    /// Returns the number of vCPUs of the target. A target that is not a VM counts as one vCPU.
    #[must_use]
    pub fn parts(&self) -> usize {
        match self {
            EnforceTarget::Vcpus(threads) => threads.len(),
            _ => 1,
        }
    }

    /// Returns the threads of the vCPUs, or the first thread of a process tree. Returns an empty
    /// list if the target is a cgroup.
    #[must_use]
    pub fn threads(&self) -> &[ThreadRef] {
        match self {
            EnforceTarget::Vcpus(threads) => threads,
            EnforceTarget::Tree(root) | EnforceTarget::Command(root) => std::slice::from_ref(root),
            EnforceTarget::Group(_) => &[],
        }
    }
}

/// Meaning of the slice in a demand for CPU time: an exact amount, a minimum or a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The target receives the slice in every period, and no more.
    Exact,
    /// The target receives the slice in every period, and may receive slack.
    AtLeast,
    /// The target receives no more than the slice in every period. It may receive less.
    AtMost,
}

impl Bound {
    /// Returns true if the demand guarantees CPU time.
    #[must_use]
    pub const fn is_floor(self) -> bool {
        !matches!(self, Bound::AtMost)
    }
}

/// CPU time that a mechanism is to enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// A slice in every period.
    Time(Reservation, Bound),
    /// A weight: the target and its sibling cgroups share CPU time in proportion to their weights.
    Weight(CpuWeight),
}

/// Properties of a mechanism, for people and for the choice of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// True if the mechanism guarantees CPU time.
    pub guarantees: bool,
    /// True if the mechanism can enforce a hard limit.
    pub limits: bool,
    /// Shortest slice. `None` if the mechanism has no slices.
    pub least_slice: Option<Span>,
    /// Shortest and longest period. `None` if the mechanism has no periods.
    pub periods: Option<[Span; 2]>,
    /// True if Slackline can restrict the target to chosen CPUs.
    pub pins: bool,
    /// True if the mechanism acts on process trees, and on processes that start later.
    pub trees: bool,
    /// Description, for people, of the part of the enforcement that stays in force if all processes
    /// of Slackline die.
    pub survives: &'static str,
    /// Description, for people, of the way in which the mechanism is undone.
    pub undone_by: &'static str,
}

impl Abilities {
    /// Checks that slice and period are within the limits of the mechanism.
    ///
    /// # Errors
    /// If the slice or the period is outside of the mechanism's limits. The error has the value and
    /// the limits.
    fn check(&self, each: Reservation) -> Result<(), MechanismError> {
        let (slice, period, share) = (each.slice(), each.period(), each.share());
        if let Some([shortest, longest]) = self.periods
            && !(shortest..=longest).contains(&period)
        {
            return Err(MechanismError::BadPeriod { period, shortest, longest });
        }
        match self.least_slice {
            Some(least) if slice < least => {
                Err(MechanismError::TooFine { share, period, slice, least })
            }
            _ => Ok(()),
        }
    }
}

/// Mechanism that enforces CPU time.
pub trait Mechanism: Sync {
    /// Returns the name of the mechanism.
    fn enforcement(&self) -> Enforcement;

    /// Returns the properties of the mechanism.
    fn abilities(&self) -> Abilities;

    /// Checks that the mechanism can express the demand for this target. Changes nothing.
    ///
    /// # Errors
    /// If the mechanism cannot express the demand. The error has the reason.
    fn check(&self, target: &EnforceTarget, demand: Demand) -> Result<(), MechanismError>;
}

/// Mechanism that the kernel enforces by itself.
pub trait KernelMechanism: Mechanism {
    /// Checks the demand, and lets the kernel enforce it.
    ///
    /// # Errors
    /// If the mechanism cannot express the demand, or this host does not allow it. In that case all
    /// changes are undone.
    fn apply(
        &self,
        target: &EnforceTarget,
        demand: Demand,
        fence: &mut Fence,
    ) -> Result<KernelEnforcement, MechanismError>;
}

/// Enforcement of a demand by the kernel: the threads and cgroups to which it applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelEnforcement {
    /// Threads that the fence has recorded for this enforcement. When the fence restores them, the
    /// enforcement ends.
    pub tids: Vec<Tid>,
    /// Folders of the cgroups that were made, one for each vCPU or one for a process tree. The list
    /// is empty if the mechanism needs no cgroups.
    pub groups: Vec<PathBuf>,
}

impl KernelEnforcement {
    /// Ends the enforcement and restores all threads.
    ///
    /// # Errors
    /// One error for each thread that is not completely restored. Such a thread stays on the
    /// fence's list.
    pub fn end(&self, fence: &mut Fence) -> Result<(), Vec<GiveBackError>> {
        let errors = self.tids.iter().filter_map(|&tid| fence.release(tid).err());
        let errors: Vec<GiveBackError> = errors.collect();
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

/// Returns the mechanism with this name.
#[must_use]
pub fn mechanism(name: Enforcement) -> &'static dyn Mechanism {
    match name {
        Enforcement::Dispatcher => &dispatcher::DispatcherMechanism,
        Enforcement::Deadline => &deadline::Deadline,
        Enforcement::Quota => &quota::ANY,
        Enforcement::Weight => &weight::CgroupWeight,
    }
}

/// Returns the mechanism with this name if the kernel enforces it. `None` for the dispatcher, which
/// is part of Slackline.
#[must_use]
pub fn kernel_mechanism(name: Enforcement) -> Option<&'static dyn KernelMechanism> {
    match name {
        Enforcement::Dispatcher => None,
        Enforcement::Deadline => Some(&deadline::Deadline),
        Enforcement::Quota => Some(&quota::ANY),
        Enforcement::Weight => Some(&weight::CgroupWeight),
    }
}

/// Returns the quota mechanism of one cgroup version.
#[must_use]
pub fn quota_of(version: Version) -> &'static dyn KernelMechanism {
    match version {
        Version::V1 => &quota::V1,
        Version::V2 => &quota::V2,
    }
}
