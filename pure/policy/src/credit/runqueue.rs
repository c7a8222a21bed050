//! One list of vCPUs a CPU, by class: higher classes first, and in order of coming within a class.
//!
//! Inserting and taking out cost O(1): of each class the list knows the first below it. A class
//! that changes while its vCPU is in the list leaves it where it stands until the list is sorted,
//! as it was in Xen; what the list knows is then found anew, in O(length), before it is used again.
//!
//! Where Xen had its idle vCPU, a list has a mark: nobody behind it is ever run. While a CPU is
//! idle its mark is out of the list, as the idle vCPU was.

use alloc::vec::Vec;

use slackline_units::{CpuId, VcpuId};

/// How urgent a vCPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Held behind idle.
    Parked,
    /// Where idle stands; no vCPU is of this class.
    Idle,
    /// Has used up its credit.
    Over,
    /// Has credit left.
    Under,
    /// Has just woken with credit left.
    Boost,
}

const CLASSES: [Class; 5] = [Class::Parked, Class::Idle, Class::Over, Class::Under, Class::Boost];

/// No node.
const NONE: u32 = u32::MAX;

/// Two to a cache line, and its place is a shift away from its number.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Node {
    before: u32,
    after: u32,
    /// None for the mark.
    vcpu: Option<VcpuId>,
    /// In whose list it is.
    list: Option<CpuId>,
    class: Class,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    /// By class: the first node of a lower class.
    below: [u32; CLASSES.len()],
    /// Whether classes have changed since `below` was found.
    is_stale: bool,
    /// Whether classes have changed since the list was sorted.
    is_unsorted: bool,
}

/// The lists of all CPUs.
pub(super) struct RunQueues {
    lists: Vec<List>,
    /// First the marks by CPU, then the vCPUs by slot.
    nodes: Vec<Node>,
}

impl RunQueues {
    /// Empty lists, whose marks are out of them.
    pub(super) fn new(cpus: usize) -> RunQueues {
        let list = List {
            first: NONE,
            last: NONE,
            below: [NONE; CLASSES.len()],
            is_stale: false,
            is_unsorted: false,
        };
        let mark = Node { before: NONE, after: NONE, vcpu: None, list: None, class: Class::Idle };
        RunQueues { lists: alloc::vec![list; cpus], nodes: alloc::vec![mark; cpus] }
    }

    /// In whose list `vcpu` stands.
    #[inline]
    pub(super) fn list_of(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.nodes.get(self.lists.len() + vcpu.slot())?.list
    }

    /// Puts `vcpu`, which is in no list, behind all of its class.
    #[inline]
    pub(super) fn push(&mut self, cpu: CpuId, class: Class, vcpu: VcpuId) {
        let node = self.node(vcpu, class);
        self.insert(cpu, node, class as usize);
    }

    /// Puts `vcpu`, which is in no list, before all of its class.
    #[inline]
    pub(super) fn push_first(&mut self, cpu: CpuId, class: Class, vcpu: VcpuId) {
        let node = self.node(vcpu, class);
        self.insert(cpu, node, class as usize + 1);
    }

    /// Takes `vcpu` out of the list in which it is, if any.
    #[inline]
    pub(super) fn remove(&mut self, vcpu: VcpuId) {
        let node = self.lists.len() + vcpu.slot();
        if node < self.nodes.len() {
            self.take_out(node);
        }
    }

    /// Puts the mark of a CPU in, or leaves it where it is.
    #[inline]
    pub(super) fn put_mark(&mut self, cpu: CpuId) {
        if self.nodes[cpu.index()].list.is_none() {
            self.insert(cpu, cpu.index(), Class::Idle as usize);
        }
    }

    /// Takes the mark of a CPU out.
    #[inline]
    pub(super) fn take_mark(&mut self, cpu: CpuId) {
        self.take_out(cpu.index());
    }

    /// The class of a vCPU changes; if it is in a list it goes behind all of its class.
    pub(super) fn requeue(&mut self, vcpu: VcpuId, class: Class) {
        let node = self.lists.len() + vcpu.slot();
        if let Some(cpu) = self.nodes.get(node).and_then(|node| node.list) {
            self.take_out(node);
            self.nodes[node].class = class;
            self.insert(cpu, node, class as usize);
        }
    }

    /// The class of a vCPU changes; if it is in a list it stays where it is.
    pub(super) fn reclass(&mut self, vcpu: VcpuId, class: Class) {
        let node = self.lists.len() + vcpu.slot();
        let Some(cpu) = self.nodes.get(node).and_then(|node| node.list) else { return };
        self.nodes[node].class = class;
        let list = &mut self.lists[cpu.index()];
        (list.is_stale, list.is_unsorted) = (true, true);
    }

    /// Those ahead of the mark, or of where it would be put in, first first, with their classes.
    #[inline]
    pub(super) fn ahead(&self, cpu: CpuId) -> impl Iterator<Item = (VcpuId, Class)> {
        let mut at = self.lists[cpu.index()].first;
        let is_marked = self.nodes[cpu.index()].list.is_some();
        core::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.after;
            let is_ahead = is_marked || node.class > Class::Idle;
            Some((node.vcpu.filter(|_| is_ahead)?, node.class))
        })
    }

    /// Moves everybody with credit ahead of everybody without, and changes no other order.
    pub(super) fn sort(&mut self, cpu: CpuId) {
        let list = &mut self.lists[cpu.index()];
        if !core::mem::replace(&mut list.is_unsorted, false) {
            return;
        }
        let mut at = list.first;
        let mut behind = NONE;
        while at != NONE {
            let node = self.nodes[at as usize];
            if node.class < Class::Under {
                behind = if behind == NONE { at } else { behind };
            } else if behind != NONE {
                self.unlink(cpu, at);
                self.link(cpu, at, behind);
            }
            at = node.after;
        }
        self.lists[cpu.index()].is_stale = true;
    }

    #[inline]
    fn node(&mut self, vcpu: VcpuId, class: Class) -> usize {
        let index = self.lists.len() + vcpu.slot();
        if self.nodes.len() <= index {
            self.grow(index + 1);
        }
        let node = &mut self.nodes[index];
        debug_assert!(node.list.is_none(), "{vcpu} stands in a list already");
        (node.vcpu, node.class) = (Some(vcpu), class);
        index
    }

    #[cold]
    fn grow(&mut self, nodes: usize) {
        let node = Node { before: NONE, after: NONE, vcpu: None, list: None, class: Class::Parked };
        self.nodes.resize(nodes, node);
    }

    /// Inserts a node before the first below a class; above all classes is the front.
    #[allow(clippy::cast_possible_truncation)] // Slots are 32 bits wide, less the CPUs.
    fn insert(&mut self, cpu: CpuId, index: usize, above: usize) {
        self.refresh(cpu);
        let list = &mut self.lists[cpu.index()];
        let place = list.below.get(above).copied().unwrap_or(list.first);
        let class = self.nodes[index].class as usize;
        for above in 1..CLASSES.len() {
            if list.below[above] == place && class < above {
                list.below[above] = index as u32;
            }
        }
        self.link(cpu, index as u32, place);
    }

    #[allow(clippy::cast_possible_truncation)] // As above.
    fn take_out(&mut self, index: usize) {
        let Node { after, list, .. } = self.nodes[index];
        let Some(cpu) = list else { return };
        self.refresh(cpu);
        let list = &mut self.lists[cpu.index()];
        for above in 1..CLASSES.len() {
            if list.below[above] == index as u32 {
                let mut next = after;
                // Only where classes have changed since the list was sorted is it not the next.
                while let Some(node) = self.nodes.get(next as usize)
                    && node.class as usize >= above
                {
                    next = node.after;
                }
                list.below[above] = next;
            }
        }
        self.unlink(cpu, index as u32);
    }

    /// Finds the first of lower class anew where classes have changed.
    #[inline]
    fn refresh(&mut self, cpu: CpuId) {
        if self.lists[cpu.index()].is_stale {
            self.find_below(cpu);
        }
    }

    #[cold]
    fn find_below(&mut self, cpu: CpuId) {
        let mut below = [NONE; CLASSES.len()];
        let mut at = self.lists[cpu.index()].first;
        while at != NONE && below[1] == NONE {
            let node = &self.nodes[at as usize];
            for first in &mut below[node.class as usize + 1..] {
                if *first == NONE {
                    *first = at;
                }
            }
            at = node.after;
        }
        let list = &mut self.lists[cpu.index()];
        (list.below, list.is_stale) = (below, false);
    }

    #[inline]
    fn link(&mut self, cpu: CpuId, index: u32, place: u32) {
        let list = &mut self.lists[cpu.index()];
        let before = match self.nodes.get_mut(place as usize) {
            Some(node) => core::mem::replace(&mut node.before, index),
            None => core::mem::replace(&mut list.last, index),
        };
        match self.nodes.get_mut(before as usize) {
            Some(node) => node.after = index,
            None => list.first = index,
        }
        let node = &mut self.nodes[index as usize];
        (node.before, node.after, node.list) = (before, place, Some(cpu));
    }

    #[inline]
    fn unlink(&mut self, cpu: CpuId, index: u32) {
        let node = &mut self.nodes[index as usize];
        let (before, after) = (node.before, node.after);
        node.list = None;
        let list = &mut self.lists[cpu.index()];
        match self.nodes.get_mut(before as usize) {
            Some(node) => node.after = after,
            None => list.first = after,
        }
        match self.nodes.get_mut(after as usize) {
            Some(node) => node.before = before,
            None => list.last = before,
        }
    }
}
