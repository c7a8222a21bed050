//! Cpusets that Slackline makes to restrict held threads. This module also handles threads that
//! another program has changed or moved: it replaces their recorded original state, or their
//! freezer cgroup.

use std::collections::BTreeSet;

use slackline_units::CpuSet;

use super::entry::{Entry, HoldMethod};
use super::give_back::{Original, ROUNDS};
use super::{Fence, FenceError, first_that_works, ways};
use slackline_linux::cgroup::{Place, Version, keep_group_on};
use slackline_linux::step::{Hold, freezer};
use slackline_linux::sys::Tid;

impl Fence {
    /// Restricts a held thread to `cpus` with a cpuset that Slackline makes. The thread cannot
    /// leave the cpuset by changing its affinity. If the thread belongs to a process tree, the
    /// cpuset applies to all threads of the tree, including later ones. If no such cpuset can be
    /// made, does nothing.
    ///
    /// # Errors
    /// If the keeper cannot record the cpuset.
    pub fn keep_within(&mut self, tid: Tid, cpus: CpuSet) -> Result<(), FenceError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(()) };
        match &entry.way {
            HoldMethod::Thread(place) if place.version == Version::V2 => {
                keep_group_on(&place.group, &cpus, true);
            }
            HoldMethod::Tree(place) if place.origin.is_some() => {
                keep_group_on(&place.group, &cpus, false);
            }
            _ => {}
        }
        let Ok(Some(place)) = Place::find_cpuset(held.thread()) else { return Ok(()) };
        let tree = self.trees.get(&tid).cloned();
        let (before, held) = (entry.clone(), held.clone());
        let entry = Entry { cpuset: Some(place.clone()), ..before.clone() };
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        if place.make_cpuset(cpus).is_err() {
            let kept = self.keeper.tell(&before.to_line())?;
            self.note(kept);
            return Ok(());
        }
        self.held.insert(tid, (entry, held));
        let Some(tree) = tree else {
            place.take_in_from_origin(&[tid]);
            return Ok(());
        };
        let mut taken = BTreeSet::new();
        for _ in 0..ROUNDS {
            let there = tree.threads().unwrap_or_default();
            let new: Vec<Tid> = there.into_iter().filter(|tid| taken.insert(*tid)).collect();
            if new.is_empty() {
                break;
            }
            place.take_in_from_origin(&new);
        }
        Ok(())
    }

    /// Makes a new freezer cgroup for a held thread. It is needed if another program has moved the
    /// thread out of its freezer cgroup, or has removed that cgroup. The new cgroup is below the
    /// thread's present cgroup. It is frozen if the old freezer cgroup is frozen. If the thread has
    /// no freezer cgroup, does nothing.
    ///
    /// # Errors
    /// If no such cgroup can be made, or the keeper cannot record it.
    pub fn renew_stop(&mut self, tid: Tid) -> Result<(), FenceError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(()) };
        let HoldMethod::Thread(old) = entry.way.clone() else { return Ok(()) };
        let ways = ways(held.thread(), Hold::Thread)?;
        first_that_works(ways, |way| match &way {
            HoldMethod::Thread(place) if place.group == old.group && old.is_made() => {
                Ok(old.take_in(tid)?)
            }
            HoldMethod::Thread(place) => {
                let is_same = place.group == old.group;
                self.set_way(tid, way)?;
                if !is_same {
                    // If the kernel refuses, an empty cgroup remains.
                    let _ = freezer::clear(&old);
                }
                Ok(())
            }
            _ => Ok(()),
        })
    }

    /// Returns the state to which a held thread will be restored. `None` if this fence does not
    /// hold the thread.
    #[must_use]
    pub fn original(&self, tid: Tid) -> Option<Original> {
        let (entry, _) = self.held.get(&tid)?;
        Some(Original { scheduling: entry.scheduling, affinity: entry.affinity })
    }

    /// Replaces the state to which a held thread will be restored, because another program has
    /// changed the thread.
    ///
    /// # Errors
    /// If the keeper cannot record the new state.
    pub fn amend(&mut self, tid: Tid, original: Original) -> Result<(), FenceError> {
        let Some((entry, _)) = self.held.get_mut(&tid) else { return Ok(()) };
        (entry.scheduling, entry.affinity) = (original.scheduling, original.affinity);
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        Ok(())
    }
}
