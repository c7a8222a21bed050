//! Threads on which the kernel enforces a demand, in addition to vCPUs that dispatchers schedule.
//! The session's fence records these threads and restores them in whatever way the session ends.
//!
//! The threads do not belong to members (vCPUs of the session). The caller reserves capacity for
//! them with members that have no threads. The caller also checks their
//! [interference](crate::mechanism::check_interference) with the members.

use slackline_fence::{FenceError, GiveBackError};
use slackline_linux::sys::Tid;
use slackline_units::Enforcement;

use super::Session;
use crate::mechanism::{
    Demand, EnforceTarget, KernelEnforcement, MechanismError, kernel_mechanism, mechanism,
};

impl Session {
    /// Lets the kernel enforce a demand, until [`Session::end_enforced`] or the end of the session.
    ///
    /// # Errors
    /// If the mechanism cannot express the demand, or this host does not allow it. All changes are
    /// undone then.
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

    /// Lets the enforcement continue for some time if this process dies without ending it.
    ///
    /// # Errors
    /// If the keeper cannot record the change. The keeper then restores the threads at once if this
    /// process dies.
    pub fn keep_on_death(&mut self, enforced: &KernelEnforcement) -> Result<(), FenceError> {
        enforced.tids.iter().try_for_each(|&tid| self.fence.keep_on_death(tid))
    }

    /// Ends the enforcement of a demand by the kernel, and restores its threads.
    ///
    /// # Errors
    /// One error for each thread that is not completely restored. The session tries again when it
    /// is closed.
    pub fn end_enforced(&mut self, enforced: &KernelEnforcement) -> Result<(), Vec<GiveBackError>> {
        enforced.end(&mut self.fence)
    }

    /// Applies the kernel's enforcement again to threads whose scheduling another program has
    /// changed. Returns the threads that had been changed.
    pub fn repair_enforced(&mut self, enforced: &KernelEnforcement) -> Vec<Tid> {
        let held = enforced.tids.iter().filter_map(|&tid| self.fence.thread(tid));
        // A thread that has exited is ignored here.
        let changed = held.filter(|held| matches!(held.differs(), Ok(Some(_))));
        changed.filter(|held| held.undo().is_ok()).map(|held| held.thread().tid()).collect()
    }
}
