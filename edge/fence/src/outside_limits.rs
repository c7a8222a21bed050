//! Threads whose CPU time is limited by the kernel or by a helper program, and not by stops that
//! the owner orders. For each thread, the fence records the cgroup or the helper, so that the limit
//! can be undone. It also records whether the limit outlives the owner.

use super::entry::{HoldMethod, TaskIdentity};
use super::held::HeldThread;
use super::{Fence, FenceError, Hold};
use slackline_linux::cgroup::Place;
use slackline_linux::sys::Tid;
use slackline_linux::thread::{Stat, ThreadRef};

impl Fence {
    /// Registers a thread whose process the caller will then move into a cgroup that limits its CPU
    /// time.
    ///
    /// # Errors
    /// The same errors as [`Fence::hold`].
    pub fn hold_limited(
        &mut self,
        thread: &ThreadRef,
        place: &Place,
    ) -> Result<HeldThread, FenceError> {
        self.refuse(thread, Hold::Nothing)?;
        self.hold_by(thread, HoldMethod::Limit(place.clone()))
    }

    /// Records that a helper program of Slackline limits the process of a held thread. When the
    /// thread is restored, the helper is ended too. Does nothing if the thread is not held.
    ///
    /// # Errors
    /// If the state of the helper cannot be read, or the keeper cannot record the helper.
    pub fn add_helper(&mut self, tid: Tid, helper: Tid) -> Result<(), FenceError> {
        let unreadable = |source| FenceError::Unreadable { tid, source };
        let started = Stat::of(helper, helper).map_err(unreadable)?.started();
        let Some((entry, _)) = self.held.get_mut(&tid) else { return Ok(()) };
        entry.way = HoldMethod::Helper(TaskIdentity { id: helper, started });
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        Ok(())
    }

    /// Records that a held thread stays as it is for some time after this process has died.
    /// [`KeeperCommand::keep_for`](super::KeeperCommand::keep_for) is that time. The call is only
    /// for a thread whose limit the kernel enforces without this process. Does nothing if the
    /// thread is not held.
    ///
    /// # Errors
    /// If the keeper cannot record the change.
    pub fn keep_on_death(&mut self, tid: Tid) -> Result<(), FenceError> {
        let Some((entry, _)) = self.held.get_mut(&tid) else { return Ok(()) };
        entry.kept = self.command.keep_for;
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        Ok(())
    }
}
