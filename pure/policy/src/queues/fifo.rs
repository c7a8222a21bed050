//! FIFO queue of vCPUs, with constant-time lookup and removal of any vCPU.

use alloc::vec::Vec;

use slackline_units::{DomId, VcpuId};

/// Index of the node that links the last vCPU to the first and closes the circle.
const ENDS: usize = 0;

/// FIFO queue of vCPUs. All operations cost O(1) except iteration.
#[derive(Clone, Debug)]
pub(crate) struct FifoQueue {
    /// Circular doubly linked list that starts at `ENDS`. The vCPU in slot `n` is node `n + 1`. The
    /// node of a vCPU that is not queued is linked to itself.
    nodes: Vec<FifoNode>,
}

/// Entry of a vCPU in the circular list, with the numbers of the neighbouring nodes.
#[derive(Clone, Copy, Debug)]
struct FifoNode {
    before: u32,
    after: u32,
    vcpu: VcpuId,
}

impl FifoQueue {
    /// Creates an empty queue.
    pub(crate) fn new() -> FifoQueue {
        // The vCPU in the node `ENDS` is never read.
        FifoQueue { nodes: alloc::vec![FifoNode::alone(ENDS, VcpuId::new(0, DomId::new(0), 0))] }
    }

    /// Returns the queued vCPUs, the first in first.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = VcpuId> {
        let mut at = ENDS;
        core::iter::from_fn(move || {
            at = self.nodes[at].after as usize;
            (at != ENDS).then(|| self.nodes[at].vcpu)
        })
    }

    /// Returns true if `vcpu` is queued.
    #[inline]
    pub(crate) fn contains(&self, vcpu: VcpuId) -> bool {
        let node = node(vcpu);
        self.nodes.get(node).is_some_and(|this| this.after as usize != node)
    }

    /// Appends `vcpu`, which must not be queued.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // Slots are below 2^24.
    pub(crate) fn push(&mut self, vcpu: VcpuId) {
        debug_assert!(!self.contains(vcpu), "{vcpu} is queued already");
        let new = node(vcpu);
        while self.nodes.len() <= new {
            self.nodes.push(FifoNode::alone(self.nodes.len(), vcpu));
        }
        let last = core::mem::replace(&mut self.nodes[ENDS].before, new as u32);
        self.nodes[last as usize].after = new as u32;
        self.nodes[new] = FifoNode { before: last, after: ENDS as u32, vcpu };
    }

    /// Removes `vcpu` if it is queued.
    #[inline]
    pub(crate) fn remove(&mut self, vcpu: VcpuId) {
        let node = node(vcpu);
        let Some(this) = self.nodes.get_mut(node) else { return };
        let FifoNode { before, after, .. } = core::mem::replace(this, FifoNode::alone(node, vcpu));
        self.nodes[before as usize].after = after;
        self.nodes[after as usize].before = before;
    }
}

impl FifoNode {
    /// Creates a node that is linked to itself.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // Nodes are numbered up to 2^24.
    fn alone(at: usize, vcpu: VcpuId) -> FifoNode {
        FifoNode { before: at as u32, after: at as u32, vcpu }
    }
}

/// Returns the number of the node of a vCPU.
#[inline]
fn node(vcpu: VcpuId) -> usize {
    vcpu.slot() + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the queue with a plain vector under random operations.
        #[test]
        fn fifo_queue_behaves_like_a_vector_under_random_operations(
            steps in prop::collection::vec((0u32..12, any::<bool>()), 1..200),
        ) {
            let mut line = FifoQueue::new();
            let mut plain: Vec<VcpuId> = Vec::new();
            for (slot, comes) in steps {
                let who = VcpuId::new(slot, DomId::new(slot), 0);
                if !comes {
                    line.remove(who);
                    plain.retain(|&other| other != who);
                } else if !line.contains(who) {
                    line.push(who);
                    plain.push(who);
                }
                prop_assert_eq!(line.iter().collect::<Vec<_>>(), plain.clone());
                prop_assert_eq!(line.contains(who), plain.contains(&who));
            }
        }
    }
}
