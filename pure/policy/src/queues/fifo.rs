//! A line of vCPUs: first come, first served, and anybody in it can be found and taken out.

use alloc::vec::Vec;

use slackline_units::{DomId, VcpuId};

/// Where the line begins and ends: before the first, and behind the last.
const ENDS: usize = 0;

/// A line; everything costs O(1) but walking it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// A ring that starts at the ends; who stands in slot `n` is node `n + 1`. Who is not in line
    /// is a ring alone.
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    before: u32,
    after: u32,
    vcpu: VcpuId,
}

impl Line {
    /// Nobody in line.
    pub(crate) fn new() -> Line {
        // Whoever stands for the ends is never read.
        Line { nodes: alloc::vec![Node::alone(ENDS, VcpuId::new(0, DomId::new(0), 0))] }
    }

    /// Everybody in line, first come first.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = VcpuId> {
        let mut at = ENDS;
        core::iter::from_fn(move || {
            at = self.nodes[at].after as usize;
            (at != ENDS).then(|| self.nodes[at].vcpu)
        })
    }

    /// Whether `vcpu` is in line.
    #[inline]
    pub(crate) fn contains(&self, vcpu: VcpuId) -> bool {
        let node = node(vcpu);
        self.nodes.get(node).is_some_and(|this| this.after as usize != node)
    }

    /// Puts `vcpu`, which must not be in line, behind all who are.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // Slots are 32 bits wide, and there are fewer.
    pub(crate) fn push(&mut self, vcpu: VcpuId) {
        debug_assert!(!self.contains(vcpu), "{vcpu} is in line already");
        let new = node(vcpu);
        while self.nodes.len() <= new {
            self.nodes.push(Node::alone(self.nodes.len(), vcpu));
        }
        let last = core::mem::replace(&mut self.nodes[ENDS].before, new as u32);
        self.nodes[last as usize].after = new as u32;
        self.nodes[new] = Node { before: last, after: ENDS as u32, vcpu };
    }

    /// Takes `vcpu` out of the line, if it is in it.
    #[inline]
    pub(crate) fn remove(&mut self, vcpu: VcpuId) {
        let node = node(vcpu);
        let Some(this) = self.nodes.get_mut(node) else { return };
        let Node { before, after, .. } = core::mem::replace(this, Node::alone(node, vcpu));
        self.nodes[before as usize].after = after;
        self.nodes[after as usize].before = before;
    }
}

impl Node {
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // As above.
    fn alone(at: usize, vcpu: VcpuId) -> Node {
        Node { before: at as u32, after: at as u32, vcpu }
    }
}

#[inline]
fn node(vcpu: VcpuId) -> usize {
    vcpu.slot() + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain vector, under any sequence of comings and goings.
        #[test]
        fn whoever_came_first_is_first(
            steps in prop::collection::vec((0u32..12, any::<bool>()), 1..200),
        ) {
            let mut line = Line::new();
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
