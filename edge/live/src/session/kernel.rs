//! Threads for which the kernel enforces a demand. A session can have such threads in addition to
//! vCPUs that dispatchers schedule. The session's fence records these threads and restores them,
//! however the session ends.
//!
//! The threads do not belong to members (vCPUs of the session). The caller reserves capacity for
//! these threads by members without threads. The caller also checks the
//! [interference](crate::mechanism::check_interference) of these threads with the members.

use slackline_fence::{FenceError, GiveBackError};
use slackline_linux::cgroup::Hierarchies;
use slackline_linux::thread::ThreadRef;
use slackline_units::{Enforcement, Reservation};

use super::{EnforcedChange, EnforcedWatch, RequestError, Session};
use crate::mechanism::{
    Demand, EnforceTarget, KernelEnforcement, MechanismError, kernel_mechanism, mechanism,
};

impl Session {
    /// Makes the kernel enforce a demand. The enforcement lasts until [`Session::end_enforced`] is
    /// called or the session ends.
    ///
    /// # Errors
    /// If the mechanism cannot express the demand, or this host does not allow it. After an error
    /// all changes are undone.
    pub fn enforce(
        &mut self,
        by: Enforcement,
        target: &EnforceTarget,
        demand: Demand,
    ) -> Result<KernelEnforcement, MechanismError> {
        let Some(kernel) = kernel_mechanism(by) else {
            // The dispatcher enforces the shares of members only, so there is nothing to apply.
            mechanism(by).check(target, demand)?;
            return Ok(KernelEnforcement::default());
        };
        match kernel.apply(target, demand, &mut self.fence) {
            Err(MechanismError::Fence(FenceError::Keeper(_))) => {
                self.fence.revive()?;
                kernel.apply(target, demand, &mut self.fence)
            }
            result => result,
        }
    }

    /// Makes the enforcement continue for `KeeperCommand::keep_for` if this process dies without
    /// ending it. Without this call, the keeper would restore the threads immediately.
    ///
    /// # Errors
    /// If the keeper cannot record the change.
    pub fn keep_on_death(&mut self, enforced: &KernelEnforcement) -> Result<(), FenceError> {
        enforced.tids.iter().try_for_each(|&tid| self.fence.keep_on_death(tid))
    }

    /// Ends the enforcement of a demand by the kernel, and restores its threads.
    ///
    /// # Errors
    /// If threads cannot be restored completely: one error for each of these threads. The session
    /// tries again when it is closed.
    pub fn end_enforced(&mut self, enforced: &KernelEnforcement) -> Result<(), Vec<GiveBackError>> {
        enforced.end(&mut self.fence)
    }

    /// Starts watching a thread for which the kernel enforces `reserved` by `SCHED_DEADLINE`.
    #[must_use]
    pub fn watch_enforced(
        &mut self,
        target: &EnforceTarget,
        thread: &ThreadRef,
        reserved: Reservation,
    ) -> EnforcedWatch {
        let hierarchies = self.hierarchies();
        let since = (&self.fence, hierarchies.as_deref(), self.host.now());
        EnforcedWatch::new((target, thread), (Some(reserved), None), since)
    }

    /// Looks for changes to a thread for which the kernel enforces CPU time, and undoes or respects
    /// them. If `around` has the cgroup hierarchies, also checks the thread's cgroups.
    pub fn look_at_enforced(
        &mut self,
        watch: &mut EnforcedWatch,
        around: Option<&Hierarchies>,
    ) -> Vec<EnforcedChange> {
        watch.look_with(&mut self.fence, self.host.now(), around)
    }

    /// Changes the slice and period that the kernel enforces for a thread by `SCHED_DEADLINE`. The
    /// thread does not leave the class, so it loses no CPU time. The thread must not be
    /// [disturbed](EnforcedWatch::is_disturbed).
    ///
    /// # Errors
    /// If the mechanism cannot express the reservation, or the kernel refuses it. The thread keeps
    /// its slice and period.
    pub fn change_enforced(
        &mut self,
        watch: &mut EnforcedWatch,
        each: Reservation,
    ) -> Result<(), MechanismError> {
        watch.change(&self.fence, each)
    }

    /// Makes the kernel enforce the CPU time of a contested thread again.
    ///
    /// # Errors
    /// If a change of another program keeps the thread from running, or cannot be undone.
    pub fn resume_enforced(&mut self, watch: &mut EnforcedWatch) -> Result<(), RequestError> {
        let resumed = watch.resume(&mut self.fence);
        resumed.map_err(|finding| RequestError::Contested { finding: Box::new(finding) })
    }
}
