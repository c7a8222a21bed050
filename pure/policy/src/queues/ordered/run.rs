//! Runs: lists of vCPUs in order of a key, which grow only at the end.

use alloc::vec::Vec;

use slackline_units::VcpuId;

/// Slots of the first and the last vCPU of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct SortedRun {
    first: u32,
    last: u32,
}

impl SortedRun {
    /// Sorted run that contains no vCPU.
    pub(super) const EMPTY: SortedRun = SortedRun { first: NOBODY, last: NOBODY };

    /// Returns true if the sorted run contains no vCPU.
    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.first == NOBODY
    }
}

/// Slot that marks the end of a run. Slots of vCPUs are lower.
const NOBODY: u32 = u32::MAX;

/// Links of all runs, indexed by slot. A vCPU is in at most one run. The node of a vCPU that is in
/// no run is never read. All operations cost O(1) except iteration.
#[derive(Clone, Debug)]
pub(super) struct Links<K> {
    nodes: Vec<RunNode<K>>,
}

/// Entry of a vCPU in a run, and the slots of its neighbours.
#[derive(Clone, Copy, Debug)]
struct RunNode<K> {
    /// Key of the vCPU, and the vCPU.
    entry: (K, VcpuId),
    before: u32,
    after: u32,
}

impl<K: Ord + Copy> Links<K> {
    /// Creates links in which no vCPU is in a run.
    pub(super) fn new() -> Links<K> {
        Links { nodes: Vec::new() }
    }

    /// Returns the entry with the lowest key of a run. `None` if the run is empty.
    #[inline]
    pub(super) fn first(&self, run: SortedRun) -> Option<(K, VcpuId)> {
        self.nodes.get(run.first as usize).map(|node| node.entry)
    }

    /// Returns the entry with the lowest key of a sorted run, except the entry of `but`. `None` if
    /// there is no other entry.
    #[inline]
    pub(super) fn first_but(&self, run: SortedRun, but: VcpuId) -> Option<(K, VcpuId)> {
        let first = self.nodes.get(run.first as usize)?;
        if first.entry.1 != but {
            return Some(first.entry);
        }
        self.nodes.get(first.after as usize).map(|node| node.entry)
    }

    /// Returns the entries of a sorted run, lowest key first.
    #[inline]
    pub(super) fn iter(&self, run: SortedRun) -> impl Iterator<Item = (K, VcpuId)> {
        let mut at = run.first;
        core::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.after;
            Some(node.entry)
        })
    }

    /// Appends a vCPU, which must be in no run, and returns true. Returns false if its key belongs
    /// before the end of the run.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // Slots have 24 bits.
    pub(super) fn push(&mut self, run: &mut SortedRun, entry: (K, VcpuId)) -> bool {
        let slot = entry.1.slot();
        match self.nodes.get_mut(run.last as usize) {
            Some(last) if entry < last.entry => return false,
            Some(last) => last.after = slot as u32,
            None => run.first = slot as u32,
        }
        let node = RunNode { entry, before: run.last, after: NOBODY };
        run.last = slot as u32;
        if self.nodes.len() <= slot {
            self.nodes.resize(slot + 1, node);
        }
        self.nodes[slot] = node;
        true
    }

    /// Removes a vCPU from its sorted run.
    #[inline]
    pub(super) fn remove(&mut self, run: &mut SortedRun, vcpu: VcpuId) {
        let RunNode { before, after, .. } = self.nodes[vcpu.slot()];
        *self.nodes.get_mut(before as usize).map_or(&mut run.first, |node| &mut node.after) = after;
        *self.nodes.get_mut(after as usize).map_or(&mut run.last, |node| &mut node.before) = before;
    }
}
