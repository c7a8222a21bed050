//! Registration of all threads of a process tree with the fence, including threads that start
//! meanwhile.

use std::collections::BTreeSet;

use super::entry::HoldMethod;
use super::give_back::Original;
use super::tree::HeldTree;
use super::{Fence, FenceError, Hold};
use slackline_linux::cgroup::{TreePlace, descendants};
use slackline_linux::sys::{Tid, process_of};
use slackline_linux::thread::{ThreadError, ThreadRef, threads_of};

impl Fence {
    /// Holds all threads in the cgroup `place`, including threads that start during the call. The
    /// thread `root` represents the tree in the journal. If a thread cannot be held, the threads
    /// that are already held are restored.
    pub(super) fn hold_all(
        &mut self,
        root: ThreadRef,
        place: &TreePlace,
    ) -> Result<HeldTree, FenceError> {
        place.check()?;
        let mut taken = Vec::new();
        let held = self.take_all(root, place, &mut taken);
        if held.is_err() {
            for thread in taken {
                // A thread that cannot be released stays on the list and is released at the end.
                let _ = self.release(thread);
            }
        }
        held
    }

    fn take_all(
        &mut self,
        root: ThreadRef,
        place: &TreePlace,
        taken: &mut Vec<Tid>,
    ) -> Result<HeldTree, FenceError> {
        let carrier = root.tid();
        let known = match place.origin {
            Some(_) => descendants(carrier)?.into_iter().flat_map(threads_of).flatten().collect(),
            None => place.threads()?,
        };
        // The threads and the cgroup are recorded before the cgroup is made. If this process is
        // killed, an unrecorded member of the cgroup is restored to the state of `root` instead of
        // its own. An unrecorded cgroup would never be removed. A thread that fails here is tried
        // again below, where its error is returned.
        let mut first = Vec::new();
        for tid in known {
            if tid != carrier && self.take(tid, &mut first).is_ok() {
                taken.push(tid);
            }
        }
        self.hold_by(&root, HoldMethod::Tree(place.clone()))?;
        // The first thread is released before the others, as `release_all` does.
        taken.insert(0, carrier);
        first.insert(0, root);
        place.make()?;
        place.gather(carrier)?;
        let mut listed: BTreeSet<Tid> = taken.iter().copied().collect();
        loop {
            let there = place.threads()?;
            let new: Vec<Tid> = there.into_iter().filter(|tid| listed.insert(*tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                taken.push(tid);
                self.take(tid, &mut first)?;
            }
        }
        let first = first.into_iter().filter_map(|thread| {
            let (entry, _) = self.held.get(&thread.tid())?;
            let (scheduling, affinity) = (entry.scheduling, entry.affinity);
            Some((thread, Original { scheduling, affinity }))
        });
        let tree = HeldTree::new(place.clone(), first.collect())?;
        self.trees.insert(carrier, tree.clone());
        Ok(tree)
    }

    /// Records a thread of a process tree. Does nothing if the thread has ended.
    fn take(&mut self, tid: Tid, first: &mut Vec<ThreadRef>) -> Result<(), FenceError> {
        let Ok(pid) = process_of(tid) else { return Ok(()) };
        let thread = ThreadRef::open(pid, tid).map_err(FenceError::from);
        match thread.and_then(|thread| self.hold(&thread, Hold::Nothing).map(|_| thread)) {
            Err(FenceError::Thread(ThreadError::Gone { .. })) => {}
            thread => first.push(thread?),
        }
        Ok(())
    }
}
