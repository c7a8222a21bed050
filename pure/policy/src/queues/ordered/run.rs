//! Runs: lines of vCPUs in order of a key. A run grows only at its end.

use alloc::vec::Vec;

use slackline_units::VcpuId;

/// The slots of who is first and last in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    first: u32,
    last: u32,
}

impl Run {
    /// Nobody.
    pub(super) const EMPTY: Run = Run { first: NOBODY, last: NOBODY };

    /// Whether nobody is in it.
    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.first == NOBODY
    }
}

/// No slot: there are fewer than this.
const NOBODY: u32 = u32::MAX;

/// What links runs, by slot: everybody is in one of them at most. What stands in the slot of
/// somebody who is in none is never read. Everything costs O(1) but walking a run.
#[derive(Clone, Debug)]
pub(super) struct Links<K> {
    nodes: Vec<Node<K>>,
}

/// Who stands in a run, and the slots of those next to it.
#[derive(Clone, Copy, Debug)]
struct Node<K> {
    entry: (K, VcpuId),
    before: u32,
    after: u32,
}

impl<K: Ord + Copy> Links<K> {
    /// For empty runs.
    pub(super) fn new() -> Links<K> {
        Links { nodes: Vec::new() }
    }

    /// The lowest of a run.
    #[inline]
    pub(super) fn first(&self, run: Run) -> Option<(K, VcpuId)> {
        self.nodes.get(run.first as usize).map(|node| node.entry)
    }

    /// The lowest of a run but for one.
    #[inline]
    pub(super) fn first_but(&self, run: Run, but: VcpuId) -> Option<(K, VcpuId)> {
        let first = self.nodes.get(run.first as usize)?;
        if first.entry.1 != but {
            return Some(first.entry);
        }
        self.nodes.get(first.after as usize).map(|node| node.entry)
    }

    /// Everybody in a run, lowest first.
    #[inline]
    pub(super) fn iter(&self, run: Run) -> impl Iterator<Item = (K, VcpuId)> {
        let mut at = run.first;
        core::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.after;
            Some(node.entry)
        })
    }

    /// Puts a vCPU, which must be in no run, at the end of one if it belongs there; says if so.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // Slots have 24 bits.
    pub(super) fn push(&mut self, run: &mut Run, entry: (K, VcpuId)) -> bool {
        let slot = entry.1.slot();
        match self.nodes.get_mut(run.last as usize) {
            Some(last) if entry < last.entry => return false,
            Some(last) => last.after = slot as u32,
            None => run.first = slot as u32,
        }
        let node = Node { entry, before: run.last, after: NOBODY };
        run.last = slot as u32;
        if self.nodes.len() <= slot {
            self.nodes.resize(slot + 1, node);
        }
        self.nodes[slot] = node;
        true
    }

    /// Takes a vCPU out of the run in which it is.
    #[inline]
    pub(super) fn remove(&mut self, run: &mut Run, vcpu: VcpuId) {
        let Node { before, after, .. } = self.nodes[vcpu.slot()];
        *self.nodes.get_mut(before as usize).map_or(&mut run.first, |node| &mut node.after) = after;
        *self.nodes.get_mut(after as usize).map_or(&mut run.last, |node| &mut node.before) = before;
    }
}
