//! The live host as a machine: facts from the kernel go in, orders to the kernel come out.
//!
//! What is learnt late is told with the time at which it happened. Of the vCPUs that are due on a
//! CPU the chosen one has the highest priority, and those that would come after it stand ready
//! right below: when the chosen one goes to sleep, the kernel runs the next at once, and the host
//! hears of both when its dispatcher next looks.

mod decider;
mod enact;
mod pause;
mod recording;

use std::sync::{Mutex, MutexGuard, PoisonError};

use slackline_host::policy::{AdmitError, Spec, Values};
use slackline_host::{Broken, Fault, Terms};
use slackline_trace::{Entry, Named};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use crate::sys::Tid;
use crate::vcpu_threads::{Unreadable, VcpuThreads};
use crate::watch::perf::{PerfWatch, WatchError};
use crate::way::ActError;

use decider::Decider;

/// What can be seen of the threads.
pub(crate) enum EventSource {
    /// Every switch and wake.
    Perf(Box<PerfWatch>),
    /// Only what each has used, whenever we look; everybody counts as awake.
    Polled,
}

/// Why the machine cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The contract was broken: a bug.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The kernel refused something that is needed.
    #[error(transparent)]
    Act(#[from] ActError),
    /// What the threads do can no longer be seen.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// CPU time or state can no longer be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl MachineError {
    /// Whether this is a fault of ours, not of the machine.
    #[must_use]
    pub const fn is_bug(&self) -> bool {
        matches!(self, MachineError::Broken(_))
    }
}

/// The machine: shared by all who have something to report.
pub(crate) struct LiveHost {
    decider: Mutex<Decider>,
}

impl LiveHost {
    pub(crate) fn new(
        spec: &Spec,
        values: &Values,
        real: &[CpuId],
        source: EventSource,
    ) -> LiveHost {
        LiveHost { decider: Mutex::new(Decider::new(spec, values, real, source)) }
    }

    /// A panic elsewhere has already ended the run; what is left is to give everything back.
    fn decider(&self) -> MutexGuard<'_, Decider> {
        self.decider.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run begins.
    pub(crate) fn begin(&self, origin: Time) {
        self.decider().begin(origin);
    }

    /// The time of the run.
    pub(crate) fn now(&self) -> Time {
        self.decider().now()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.decider().is_over()
    }

    /// What passes between machine and host is kept from now on.
    pub(crate) fn keep_exchanges(&self) {
        self.decider().keep_exchanges();
    }

    /// Takes the records out that have come since the last time.
    pub(crate) fn take_records(&self, into: &mut Vec<Entry>) {
        self.decider().take_records(into);
    }

    /// What people call a vCPU that is about to join.
    pub(crate) fn named(&self, named: &Named) {
        self.decider().named(named);
    }

    /// Takes those out whose threads have ended.
    pub(crate) fn take_gone(&self) -> Vec<VcpuId> {
        self.decider().take_gone()
    }

    /// What a thread does is noted from now on.
    pub(crate) fn watch(&self, tid: Tid, is_exact: bool) -> Result<(), MachineError> {
        self.decider().watch(tid, is_exact)
    }

    /// What a thread does is of no more interest.
    pub(crate) fn unwatch(&self, tid: Tid) {
        self.decider().unwatch(tid);
    }

    /// What scheduling a CPU has cost.
    pub(crate) fn overhead(&self, cpu: CpuId, used: Span) {
        self.decider().overhead(cpu, used);
    }

    /// vCPUs join, all at this instant: of each group all or none. Says of each group which of its
    /// vCPUs kept it out, and why.
    pub(crate) fn join(&self, groups: Vec<Vec<Joining>>) -> Result<Vec<GroupJoined>, MachineError> {
        self.decider().join(groups)
    }

    /// The terms of a vCPU change; on failure the old ones stand.
    pub(crate) fn change(&self, vcpu: VcpuId, terms: Terms<'_>, due: Time) -> Result<(), NotDone> {
        self.decider().change(vcpu, terms, due)
    }

    /// Whether a vCPU, which can be kept from running, gets what it is promised and no more.
    pub(crate) fn set_exact(&self, vcpu: VcpuId, is_exact: bool) {
        self.decider().set_exact(vcpu, is_exact);
    }

    /// A vCPU, which can be kept from running, does not run until it is resumed.
    pub(crate) fn pause(&self, vcpu: VcpuId, due: Time) -> Result<(), NotDone> {
        self.decider().pause(vcpu, due)
    }

    /// A vCPU that is paused goes on.
    pub(crate) fn resume(&self, vcpu: VcpuId, due: Time) -> Result<(), NotDone> {
        self.decider().resume(vcpu, due)
    }

    /// A vCPU leaves. Its threads are no longer ours to order about.
    pub(crate) fn leave(&self, vcpu: VcpuId) -> Result<(), MachineError> {
        self.decider().leave(vcpu)
    }

    /// The run ends now.
    pub(crate) fn end(&self) -> Result<(), MachineError> {
        self.decider().end()
    }

    /// The contract was broken or the kernel refused: nothing more is done.
    pub(crate) fn abandon(&self) {
        self.decider().abandon();
    }

    /// A dispatcher looks after its CPU. Returns when it must look again at the latest.
    pub(crate) fn look(&self, cpu: CpuId) -> Result<Option<Time>, MachineError> {
        self.decider().look(cpu)
    }

    /// What a look has been found to cost.
    pub(crate) fn costs(&self, cpu: CpuId, look: Span) {
        self.decider().costs(cpu, look);
    }

    /// How far away a time of the run is.
    pub(crate) fn until(&self, at: Time) -> Span {
        self.decider().until(at)
    }
}

/// A vCPU that is to join.
#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) threads: VcpuThreads,
    pub(crate) share: Values,
    /// Where it may run; none is everywhere.
    pub(crate) cpus: Option<CpuSet>,
}

/// Whether a group of vCPUs has joined; if not, which of them kept it out, and why.
pub(crate) type GroupJoined = Result<(), (VcpuId, NotDone)>;

/// Why something that was asked for was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDone {
    /// There is no room for it.
    #[error("{0}")]
    Declined(AdmitError),
    /// The kernel refused. Everything is as it was.
    #[error(transparent)]
    Refused(ActError),
    /// The machine cannot go on.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

impl From<Unreadable> for NotDone {
    fn from(error: Unreadable) -> NotDone {
        NotDone::Machine(error.into())
    }
}

impl From<Box<Fault>> for NotDone {
    fn from(fault: Box<Fault>) -> NotDone {
        match *fault {
            Fault::Declined { error, .. } => NotDone::Declined(error),
            Fault::Broken(broken) => NotDone::Machine(broken.into()),
        }
    }
}
