//! Changes by other programs to a process tree and its cgroup, and threads that have left the tree.

use std::collections::BTreeSet;
use std::path::PathBuf;

use slackline_units::CpuSet;

use super::{HeldTree, TreeAudit, TreeTarget};
use crate::give_back::{Original, is_ours, leaver_back};
use crate::held::HandoverState;
use slackline_linux::step::ActError;
use slackline_linux::sys::{SchedulingOf, Tid, get_affinity, get_scheduling, set_affinity};

impl HeldTree {
    /// Returns true if the thread has a class and priority that the fence gives to trees. Threads
    /// outside of trees rarely have them.
    #[must_use]
    pub fn is_as_ordered(&self, tid: Tid) -> bool {
        get_scheduling(tid).is_ok_and(|now| is_ours(now.class))
    }

    /// Returns the class and priority to which a thread of the tree will be restored.
    #[must_use]
    pub fn original_class(&self, tid: Tid) -> SchedulingOf {
        self.lock().originals.get(&tid).unwrap_or(&self.0.default).scheduling
    }

    /// Returns the path of the tree's cgroup, if another program has frozen or thawed the cgroup.
    /// Otherwise returns `None`.
    #[must_use]
    pub fn foreign_freeze(&self) -> Option<PathBuf> {
        let orders = self.lock();
        let is = std::fs::read_to_string(self.0.place.switch()).ok()?;
        let is_frozen = is.trim() == "1";
        (is_frozen != orders.is_frozen).then(|| self.0.place.group.clone())
    }

    /// Returns the path of the tree's cgroup, if another program has thawed the cgroup although the
    /// last order froze it. Otherwise returns `None`.
    #[must_use]
    pub fn foreign_thaw(&self) -> Option<PathBuf> {
        let is_ordered = self.lock().is_frozen;
        if is_ordered { self.foreign_freeze() } else { None }
    }

    /// Freezes or thaws the tree according to the last order, after another program has done the
    /// opposite.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn freeze_again(&self) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        let ordered = orders.is_frozen;
        orders.is_frozen = !ordered;
        self.freeze(&mut orders, ordered)
    }

    /// Compares all threads in the tree's cgroup with the orders, and applies the orders to threads
    /// that are new in the cgroup. Returns the threads that are present, the threads that differ
    /// from the orders, and the threads that have left. `known` contains additional threads that
    /// were in the tree before.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn audit(&self, known: &[Tid]) -> Result<TreeAudit, ActError> {
        let mut orders = self.orders()?;
        let there = self.list()?;
        let is_there: BTreeSet<Tid> = there.iter().copied().collect();
        let known: BTreeSet<Tid> = known.iter().chain(orders.originals.keys()).copied().collect();
        let left = known.difference(&is_there).copied().collect();
        orders.unbound.retain(|tid| is_there.contains(tid));
        let is_outside = |tid: &Tid| !is_there.contains(tid) && get_scheduling(*tid).is_ok();
        orders.departed.retain(is_outside);
        let mut changed = Vec::new();
        for &tid in &there {
            if !orders.originals.contains_key(&tid) {
                // After an error, the next audit finds that the thread differs from its orders.
                let _ = self.bring_one(&mut orders, tid);
            } else if let Some(drift) = orders.drift_of(tid) {
                changed.push((tid, drift));
            }
        }
        let unbound = orders.unbound.iter().copied().collect();
        Ok(TreeAudit { there, changed, left, unbound })
    }

    /// Applies the current orders to the threads `tids` again, because their class, priority or
    /// affinity was changed.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses. All threads are tried before the first
    /// error is returned.
    pub fn undo(&self, tids: &[Tid]) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        let undone = tids.iter().map(|&tid| self.bring_one(&mut orders, tid));
        undone.fold(Ok(()), Result::and)
    }

    /// Tries to apply the orders to each thread in `tids`. A thread for which the kernel refuses
    /// the orders becomes exempt: it gets its original class, and is frozen and counted with the
    /// tree. Returns false if the kernel refuses the orders for all threads of the tree. In that
    /// case, no thread becomes exempt.
    ///
    /// # Errors
    /// If the tree was restored, or its threads cannot be listed.
    pub fn exempt_refused(&self, tids: &[Tid]) -> Result<bool, ActError> {
        let mut orders = self.orders()?;
        let is_refused = |tid: &Tid| self.bring_one(&mut orders, *tid).is_err();
        let refused: BTreeSet<Tid> = tids.iter().copied().filter(is_refused).collect();
        if self.list()?.iter().all(|tid| refused.contains(tid)) {
            return Ok(false);
        }
        orders.unbound.extend(&refused);
        // After an error, the next audit finds that the class of the thread differs.
        refused.iter().for_each(|&tid| drop(self.bring_one(&mut orders, tid)));
        Ok(true)
    }

    /// Returns true if `tid` is a thread of the tree to which the kernel refuses the ordered CPUs
    /// or class.
    #[must_use]
    pub fn is_unbound(&self, tid: Tid) -> bool {
        self.lock().unbound.contains(&tid)
    }

    /// Tries to apply the orders to all threads for which the kernel has refused them before.
    ///
    /// # Errors
    /// If the tree was restored.
    pub fn bind_again(&self) -> Result<(), ActError> {
        let mut orders = self.orders()?;
        let unbound: Vec<Tid> = orders.unbound.iter().copied().collect();
        // A thread to which the kernel still refuses the orders stays as it is.
        unbound.into_iter().for_each(|tid| drop(self.bring_one(&mut orders, tid)));
        Ok(())
    }

    /// Returns the CPUs to which all threads are restricted. `None` if each thread has its original
    /// affinity.
    #[must_use]
    pub fn kept_on(&self) -> Option<CpuSet> {
        self.lock().cpus
    }

    /// Leaves the tree under the control of the program that has changed it, as
    /// [`HeldThread::leave`](crate::HeldThread::leave) does. Returns the threads that differed from
    /// their orders, with the state to which each will be restored.
    ///
    /// # Errors
    /// If the tree was restored, or the kernel refuses.
    pub fn leave(&self, how: HandoverState) -> Result<Vec<(Tid, Original)>, ActError> {
        let mut orders = self.orders()?;
        let mut changed = Vec::new();
        for tid in self.list()? {
            let Some(drift) = orders.drift_of(tid) else { continue };
            let Some(mut original) = self.original(&mut orders, tid)? else { continue };
            original.affinity = drift.cpus.filter(|_| !how.by_cpuset).unwrap_or(original.affinity);
            original.scheduling = drift.class.unwrap_or(original.scheduling);
            orders.originals.insert(tid, original);
            changed.push((tid, original));
        }
        (orders.wanted, orders.cpus) = (TreeTarget::Original, None);
        self.bring(&mut orders)?;
        if !how.stays_stopped {
            self.freeze(&mut orders, false)?;
        }
        Ok(changed)
    }

    /// Drops the original state of a thread that has ended.
    pub fn forget(&self, tid: Tid) {
        let mut orders = self.lock();
        orders.originals.remove(&tid);
        orders.drop_places(tid);
    }

    /// Restores a thread that has left the tree's cgroup, if it still has a class or the CPUs that
    /// the fence gives to trees. Errors are ignored.
    pub fn let_leave(&self, tid: Tid) {
        let mut orders = self.lock();
        let original = orders.originals.remove(&tid).unwrap_or(self.0.default);
        orders.drop_places(tid);
        orders.departed.insert(tid);
        let _ = leaver_back(tid, original);
        if orders.cpus.is_some() && get_affinity(tid).ok() == orders.cpus {
            let _ = set_affinity(tid, &original.affinity);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use slackline_units::CpuId;

    use super::*;
    use crate::timeslice::Timeslice;
    use slackline_linux::cgroup::TreePlace;
    use slackline_linux::step::FifoPriority;
    use slackline_linux::sys::online_cpus;
    use slackline_linux::thread::ThreadRef;

    /// Process tree of one sleeping process, for tests. It counts as a real-time tree, but the
    /// process itself has an ordinary class, because another class needs root. An ordinary folder
    /// stands for the cgroup.
    struct SleepingTree {
        tree: HeldTree,
        tid: Tid,
        process: Child,
        _folder: tempfile::TempDir,
    }

    impl SleepingTree {
        fn start() -> SleepingTree {
            let folder = tempfile::tempdir().unwrap();
            let process = Command::new("sleep").arg("1000").spawn().unwrap();
            let tid = Tid::new(i32::try_from(process.id()).unwrap()).unwrap();
            std::fs::write(folder.path().join("cgroup.freeze"), "0").unwrap();
            std::fs::write(folder.path().join("cgroup.threads"), format!("{tid}\n")).unwrap();
            let (scheduling, affinity) = (get_scheduling(tid), get_affinity(tid));
            let original =
                Original { scheduling: scheduling.unwrap(), affinity: affinity.unwrap() };
            let place = TreePlace { group: folder.path().to_path_buf(), origin: None };
            let first = vec![(ThreadRef::open(tid, tid).unwrap(), original)];
            let tree = HeldTree::new(place, first).unwrap();
            tree.lock().wanted = TreeTarget::Raised(FifoPriority::CHOSEN);
            SleepingTree { tree, tid, process, _folder: folder }
        }

        /// Makes the process exempt, by an order for CPUs that do not exist.
        fn exempt(&self) {
            let all = CpuSet::first_n(CpuId::LIMIT);
            self.tree.lock().cpus = Some(all.without(&online_cpus().unwrap()));
            self.tree.undo(&[self.tid]).unwrap();
            assert!(self.tree.is_unbound(self.tid));
        }

        fn is_real_time(&self) -> bool {
            is_ours(get_scheduling(self.tid).unwrap().class)
        }
    }

    impl Drop for SleepingTree {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    fn stop_of_process_tree_ignores_thread_that_has_left() {
        let held = SleepingTree::start();
        for leave in [HeldTree::let_leave, HeldTree::forget] {
            held.tree.lock().alone = vec![held.tid];
            leave(&held.tree, held.tid);
            assert!(held.tree.lock().alone.is_empty());
        }
        held.tree.hold_back().unwrap();
        assert!(!held.is_real_time());
    }

    /// A dispatcher may have chosen a thread before the thread left the tree and was restored.
    #[test]
    fn thread_that_left_process_tree_gets_no_real_time_priority() {
        let held = SleepingTree::start();
        held.tree.let_leave(held.tid);
        held.tree.put_first(held.tid, Timeslice::Whole).unwrap();
        held.tree.put_ahead(&[held.tid]).unwrap();
        held.tree.count([held.tid].into_iter());
        assert!(!held.is_real_time());
        assert!(held.tree.ahead().is_empty());
        // The thread is in the tree again.
        held.tree.audit(&[]).unwrap();
        assert!(held.tree.lock().departed.is_empty());
    }

    #[test]
    fn process_tree_keeps_its_affinity_if_an_affinity_change_fails() {
        let held = SleepingTree::start();
        let before = get_affinity(held.tid).unwrap();
        let one = before.first().map(CpuSet::one);
        if before.len() < 2 || held.tree.keep_on(one).is_ok() {
            println!("skipped: needs two CPUs, and a user without the right to real-time classes");
            return;
        }
        assert_eq!(held.tree.kept_on(), None);
        assert_eq!(get_affinity(held.tid).unwrap(), before);
    }

    #[test]
    fn thread_exempt_from_dispatch_gets_no_real_time_priority() {
        let held = SleepingTree::start();
        held.exempt();
        held.tree.put_first(held.tid, Timeslice::Whole).unwrap();
        assert!(!held.is_real_time());
        assert!(held.tree.lock().alone.is_empty());
    }

    #[test]
    fn thread_that_becomes_exempt_from_dispatch_keeps_its_ordinary_class() {
        let held = SleepingTree::start();
        held.tree.lock().ahead = vec![held.tid];
        held.exempt();
        held.tree.put_ahead(&[]).unwrap();
        assert!(!held.is_real_time());
    }
}
