//! Changes by other programs to a process tree and its cgroup, and threads that have left the tree.

use std::path::PathBuf;

use super::HeldTree;
use crate::give_back::{is_ours, leaver_back};
use slackline_linux::step::ActError;
use slackline_linux::sys::{SchedulingOf, Tid, get_affinity, get_scheduling, set_affinity};

impl HeldTree {
    /// Returns true if the thread has a class and priority that the fence gives to trees. Other
    /// threads rarely have them.
    #[must_use]
    pub fn is_as_ordered(&self, tid: Tid) -> bool {
        get_scheduling(tid).is_ok_and(|now| is_ours(now.class))
    }

    /// Returns the class and priority to which a thread of the tree will be restored.
    #[must_use]
    pub fn original_class(&self, tid: Tid) -> SchedulingOf {
        self.lock().originals.get(&tid).unwrap_or(&self.0.default).scheduling
    }

    /// Returns the path of the tree's cgroup if another program has frozen or thawed it. `None`
    /// otherwise.
    #[must_use]
    pub fn foreign_freeze(&self) -> Option<PathBuf> {
        let orders = self.lock();
        let is = std::fs::read_to_string(self.0.place.switch()).ok()?;
        let is_frozen = is.trim() == "1";
        (is_frozen != orders.is_frozen).then(|| self.0.place.group.clone())
    }

    /// Returns the path of the tree's cgroup if another program has thawed it although the last
    /// order froze it. `None` otherwise.
    #[must_use]
    pub fn foreign_thaw(&self) -> Option<PathBuf> {
        let is_ordered = self.lock().is_frozen;
        if is_ordered { self.foreign_freeze() } else { None }
    }

    /// Freezes or thaws the tree as last ordered, after another program has done the opposite.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn freeze_again(&self) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        let ordered = orders.is_frozen;
        orders.is_frozen = !ordered;
        self.freeze(&mut orders, ordered)
    }

    /// Drops the original state of a thread that has ended.
    pub fn forget(&self, tid: Tid) {
        let mut orders = self.lock();
        orders.originals.remove(&tid);
        orders.ahead.retain(|ahead| *ahead != tid);
    }

    /// Restores a thread that has left the tree's cgroup, if it still has a class or the CPUs that
    /// the fence gives to trees. Ignores errors.
    pub fn let_leave(&self, tid: Tid) {
        let mut orders = self.lock();
        let original = orders.originals.remove(&tid).unwrap_or(self.0.default);
        orders.ahead.retain(|ahead| *ahead != tid);
        let _ = leaver_back(tid, original);
        if orders.cpus.is_some() && get_affinity(tid).ok() == orders.cpus {
            let _ = set_affinity(tid, &original.affinity);
        }
    }
}
