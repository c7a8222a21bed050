//! Lists of waiting vCPUs by CPU and class: higher classes first, and first come, first served
//! within a class.
//!
//! A list is one *lane* for each class, so entering and leaving cost O(1). In Xen a vCPU kept its
//! place after a change of class until the list was sorted. Such a list is *mixed*. Its order is
//! still that of its lanes, one after the other. But the place of a vCPU that enters must be
//! searched, in O(length).
//!
//! A list may have a *mark* in place of Xen's idle vCPU. A vCPU behind the mark never runs. While a
//! CPU is idle its mark is out of the list, as the idle vCPU was. Only a mixed list needs a mark.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, VcpuId};

use super::order::{Claim, ClaimClass, ClaimOrder, ClaimScope, LaneEnd};
use super::rules::ClassChange;

/// Class of a vCPU, in increasing order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// The vCPU is parked: its place is behind Xen's idle vCPU, so it does not run.
    Parked,
    /// Class of the mark that stands for Xen's idle vCPU. No vCPU has this class.
    Idle,
    /// The vCPU has no credit left.
    Over,
    /// The vCPU has credit left.
    Under,
    /// The vCPU has just woken with credit left.
    Boost,
}

impl Class {
    /// Returns the class at which the urgency claim of a vCPU of this class counts. `None` if the
    /// claim does not count.
    #[inline]
    fn standing(self, among: ClaimScope) -> Option<ClaimClass> {
        match self {
            Class::Under => Some(ClaimClass::Under),
            Class::Over if among == ClaimScope::All => Some(ClaimClass::Over),
            _ => None,
        }
    }
}

/// Number of list nodes of a CPU, which precede the nodes of vCPUs. One node for each class closes
/// the ring of its lane. Then come the mark, and two unused nodes that round the number up to a
/// power of two.
const OF_CPU: usize = 8;

/// Number of classes that a vCPU or the mark can have.
pub(super) const CLASSES: usize = 5;

/// Index, among the list nodes of a CPU, of the mark that stands for Xen's idle vCPU.
const MARK: usize = 5;

/// Value of `lane` for a node that is in no list.
const NOWHERE: u32 = u32::MAX;

/// Node of a linked list: a vCPU, the end of a lane, or the mark that stands for Xen's idle vCPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneNode {
    /// vCPU of the node. `None` for the end of a lane and for the mark of Xen's idle vCPU.
    vcpu: Option<VcpuId>,
    before: u32,
    after: u32,
    /// Index of the head node of the lane that contains this node.
    lane: u32,
    pub(super) class: Class,
}

/// Lists of the waiting vCPUs of all CPUs.
pub(super) struct RunQueues {
    /// List nodes of the CPUs, then list nodes of the vCPUs by slot.
    pub(super) nodes: Vec<LaneNode>,
    /// Number of list nodes of CPUs: the index of the first node of a vCPU.
    vcpus_from: usize,
    /// For each class, the CPUs in whose lists a vCPU of that class can wait.
    taken: [CpuSet; CLASSES],
    /// CPUs whose list may have a vCPU in a lane (the list of one class) that is not the lane of
    /// its class.
    pub(super) mixed: CpuSet,
    /// CPUs with a vCPU whose class changed since the list of the CPU was last sorted.
    pub(super) unsorted: CpuSet,
    /// Order of the waiting vCPUs by urgency claims. `None` if claims are ignored.
    order: Option<ClaimOrder>,
}

impl RunQueues {
    /// Creates empty lists for `cpus` CPUs.
    pub(super) fn new(cpus: usize) -> RunQueues {
        let vcpus_from = cpus * OF_CPU;
        RunQueues {
            nodes: (0..vcpus_from).map(|index| LaneNode::alone(index, None)).collect(),
            vcpus_from,
            taken: [CpuSet::NONE; CLASSES],
            mixed: CpuSet::NONE,
            unsorted: CpuSet::NONE,
            order: None,
        }
    }

    /// Creates empty lists for `cpus` CPUs, in which vCPUs can have urgency claims.
    pub(super) fn with_order(cpus: usize, among: ClaimScope) -> RunQueues {
        RunQueues { order: Some(ClaimOrder::new(cpus, among)), ..RunQueues::new(cpus) }
    }

    /// Returns the CPU in whose list a vCPU is. `None` if it is in no list.
    #[inline]
    pub(super) fn list_of(&self, vcpu: VcpuId) -> Option<CpuId> {
        let lane = self.nodes[self.index(vcpu)].lane;
        (lane != NOWHERE).then(|| cpu_of(lane))
    }

    /// Prepares the node of a vCPU that joins.
    pub(super) fn join(&mut self, vcpu: VcpuId) {
        let index = self.index(vcpu);
        let node = LaneNode::alone(index, Some(vcpu));
        if self.nodes.len() <= index {
            // A node of a slot that no vCPU has used is never read.
            self.nodes.resize(index + 1, node);
        }
        self.nodes[index] = node;
        if let Some(order) = &mut self.order {
            order.join(vcpu);
        }
    }

    /// Puts a vCPU that is in no list behind all vCPUs of its class.
    #[inline(always)]
    pub(super) fn push(&mut self, cpu: CpuId, class: Class, vcpu: VcpuId) {
        let index = self.index(vcpu);
        self.insert(cpu, class, index);
    }

    /// Puts a vCPU that is in no list before all vCPUs of its class.
    pub(super) fn push_first(&mut self, cpu: CpuId, class: Class, vcpu: VcpuId) {
        let index = self.index(vcpu);
        self.nodes[index].class = class;
        if self.is_mixed_on(cpu) {
            self.insert_before(cpu, index, |other| other <= class);
        } else {
            let lane = lane_of(cpu, class);
            self.link(index, self.nodes[lane].after as usize, lane);
        }
    }

    /// Takes a vCPU out of its list, if the vCPU is in a list.
    #[inline(always)]
    pub(super) fn remove(&mut self, vcpu: VcpuId) {
        self.unlink(self.index(vcpu));
    }

    /// Changes the class of a vCPU. `counts` says whether the change takes effect now or at the
    /// next tick.
    #[inline]
    pub(super) fn change(&mut self, vcpu: VcpuId, class: Class, counts: ClassChange) {
        match counts {
            ClassChange::Now => self.requeue(vcpu, class),
            ClassChange::Tick => self.reclass(vcpu, class),
        }
    }

    /// Changes the class of a vCPU. If the vCPU is in a list, it goes behind all vCPUs of its new
    /// class.
    #[inline]
    fn requeue(&mut self, vcpu: VcpuId, class: Class) {
        let index = self.index(vcpu);
        let lane = self.unlink(index);
        if lane != NOWHERE {
            self.insert(cpu_of(lane), class, index);
        }
    }

    /// Returns the first vCPU in the list of a CPU, with its class. Leaves out vCPUs behind the
    /// mark that stands for Xen's idle vCPU.
    #[inline(always)]
    pub(super) fn first(&self, cpu: CpuId) -> Option<(VcpuId, Class)> {
        if self.is_mixed_on(cpu) {
            return self.first_of_mixed(cpu);
        }
        let first = |class| self.nodes[self.nodes[lane_of(cpu, class)].after as usize].vcpu;
        [Class::Boost, Class::Under, Class::Over]
            .into_iter()
            .find_map(|class| first(class).map(|vcpu| (vcpu, class)))
    }

    fn first_of_mixed(&self, cpu: CpuId) -> Option<(VcpuId, Class)> {
        self.ahead(cpu).next()
    }

    /// Returns the vCPUs in the list of a CPU in order, with their classes, up to the mark that
    /// stands for Xen's idle vCPU. Without a mark, leaves out parked vCPUs.
    #[inline]
    pub(super) fn ahead(&self, cpu: CpuId) -> impl Iterator<Item = (VcpuId, Class)> {
        let is_marked = self.is_marked(cpu);
        self.walk(cpu).map_while(move |index| {
            let node = &self.nodes[index];
            let is_ahead = is_marked || node.class > Class::Idle;
            Some((node.vcpu.filter(|_| is_ahead)?, node.class))
        })
    }

    /// Returns the CPUs in whose lists a vCPU of a higher class than `class` can wait. The result
    /// may contain CPUs without such a vCPU, but misses none.
    pub(super) fn with_any_above(&self, class: Class) -> CpuSet {
        let mut cpus = CpuSet::NONE;
        self.taken[class as usize + 1..].iter().for_each(|taken| cpus.add(taken));
        cpus.add(&self.mixed); // In a mixed list only a search finds the classes.
        cpus
    }

    /// Sets the urgency claim of a vCPU, in whatever list the vCPU is.
    pub(super) fn set_claim(&mut self, vcpu: VcpuId, claim: Claim) {
        let counts = self.counts(vcpu);
        if let Some(order) = self.order.as_mut().filter(|order| order.claim(vcpu) != claim) {
            order.change(vcpu, claim, counts);
        }
    }

    /// Returns the urgency claim of a vCPU.
    pub(super) fn claim(&self, vcpu: VcpuId) -> Claim {
        self.order.as_ref().map_or(Claim::NONE, |order| order.claim(vcpu))
    }

    /// Returns the vCPU with the most urgent claim in the list of a CPU. Candidates are vCPUs that
    /// may run, whose claims count and for which `holds` is true. Of several vCPUs with equal
    /// claims, returns the first in the list. `None` if no such vCPU has a claim.
    pub(super) fn most_urgent(
        &self,
        cpu: CpuId,
        holds: impl Fn(VcpuId) -> bool,
    ) -> Option<(Claim, VcpuId)> {
        let order = self.order.as_ref()?;
        if !self.is_mixed_on(cpu) {
            return order.first_that(cpu, holds);
        }
        let all = self.ahead(cpu).filter_map(|(vcpu, class)| {
            let standing = class.standing(order.among)?;
            Some(((order.claim(vcpu), standing), vcpu))
        });
        let claims = all.filter(|&((claim, _), vcpu)| claim != Claim::NONE && holds(vcpu));
        claims.min_by_key(|&(key, _)| key).map(|((claim, _), vcpu)| (claim, vcpu))
    }

    /// Updates the order by urgency claims after the class of a vCPU changed and its place did not.
    pub(super) fn reorder(&mut self, vcpu: VcpuId) {
        let counts = self.counts(vcpu);
        if let Some(order) = &mut self.order {
            order.change(vcpu, order.claim(vcpu), counts);
        }
    }

    /// Returns the CPU and class at which the urgency claim of a vCPU counts. `None` if the claim
    /// does not count.
    fn counts(&self, vcpu: VcpuId) -> Option<(CpuId, ClaimClass)> {
        let among = self.order.as_ref()?.among;
        let standing = self.nodes[self.index(vcpu)].class.standing(among)?;
        Some((self.list_of(vcpu)?, standing))
    }

    /// Returns true if other vCPUs may precede a vCPU of this class by their urgency claims.
    pub(super) fn is_reordered(&self, class: Class) -> bool {
        self.order.as_ref().is_some_and(|order| class.standing(order.among).is_some())
    }

    /// Returns the nodes in the list of a CPU in order.
    #[inline]
    pub(super) fn walk(&self, cpu: CpuId) -> impl Iterator<Item = usize> {
        let mut lane = lane_of(cpu, Class::Boost);
        let mut at = lane;
        core::iter::from_fn(move || {
            at = self.nodes[at].after as usize;
            while at == lane {
                lane = lane.checked_sub(1).filter(|&lane| lane >= lane_of(cpu, Class::Parked))?;
                at = self.nodes[lane].after as usize;
            }
            Some(at)
        })
    }

    /// Returns the index of the node of a vCPU.
    #[inline]
    pub(super) fn index(&self, vcpu: VcpuId) -> usize {
        self.vcpus_from + vcpu.slot()
    }

    /// Returns true if the list of a CPU contains the mark that stands for Xen's idle vCPU.
    #[inline]
    pub(super) fn is_marked(&self, cpu: CpuId) -> bool {
        self.nodes[mark_of(cpu)].lane != NOWHERE
    }

    /// Returns true if the list of a CPU is mixed: a vCPU may be in a lane of another class.
    #[inline]
    fn is_mixed_on(&self, cpu: CpuId) -> bool {
        self.mixed.contains(cpu)
    }

    /// Puts a node behind all nodes of its class.
    #[inline(always)]
    pub(super) fn insert(&mut self, cpu: CpuId, class: Class, index: usize) {
        self.nodes[index].class = class;
        if self.is_mixed_on(cpu) {
            self.insert_before(cpu, index, |other| other < class);
        } else {
            self.link_last(index, lane_of(cpu, class));
        }
    }

    /// Puts a node before the first node for whose class `is_behind` is true, or at the end of the
    /// list.
    fn insert_before(&mut self, cpu: CpuId, index: usize, is_behind: impl Fn(Class) -> bool) {
        let next = self.walk(cpu).find(|&other| is_behind(self.nodes[other].class));
        match next {
            Some(next) => self.link(index, next, self.nodes[next].lane as usize),
            None => self.link_last(index, lane_of(cpu, Class::Parked)),
        }
    }

    /// Puts a node that is in no list at the end of a lane.
    #[inline(always)]
    pub(super) fn link_last(&mut self, index: usize, lane: usize) {
        self.link(index, lane, lane);
    }

    /// Puts a node that is in no list before the node `next` in a lane.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // Slots are 24 bits wide, CPUs 8.
    fn link(&mut self, index: usize, next: usize, lane: usize) {
        let before = core::mem::replace(&mut self.nodes[next].before, index as u32);
        self.nodes[before as usize].after = index as u32;
        let node = &mut self.nodes[index];
        debug_assert!(node.lane == NOWHERE, "a node is in one list at most");
        (node.before, node.after, node.lane) = (before, next as u32, lane as u32);
        if before as usize == lane {
            self.taken[class_of(lane)].insert(cpu_of(lane as u32));
        }
        if let (Some(order), Some(vcpu)) = (&mut self.order, node.vcpu) {
            let is_first = before as usize == lane && next != lane;
            let end = if is_first { LaneEnd::First } else { LaneEnd::Last };
            let standing = node.class.standing(order.among);
            order.enter(vcpu, end, standing.map(|standing| (cpu_of(lane as u32), standing)));
        }
    }

    /// Takes a node out of its lane, if the node is in a lane. Returns the lane, or `NOWHERE`.
    #[inline(always)]
    pub(super) fn unlink(&mut self, index: usize) -> u32 {
        let node = &mut self.nodes[index];
        let (before, after) = (node.before, node.after);
        let lane = core::mem::replace(&mut node.lane, NOWHERE);
        if lane != NOWHERE {
            self.nodes[before as usize].after = after;
            self.nodes[after as usize].before = before;
            if before == after && before == lane {
                self.taken[class_of(lane as usize)].remove(cpu_of(lane));
            }
            if let (Some(order), Some(vcpu)) = (&mut self.order, self.nodes[index].vcpu) {
                order.leave(vcpu);
            }
        }
        lane
    }
}

impl LaneNode {
    /// Creates a node that is in no list.
    #[allow(clippy::cast_possible_truncation)] // Slots are 24 bits wide, CPUs 8.
    fn alone(index: usize, vcpu: Option<VcpuId>) -> LaneNode {
        let index = index as u32;
        LaneNode { vcpu, before: index, after: index, lane: NOWHERE, class: Class::Idle }
    }
}

/// Returns the index of the node that closes the lane of a class on a CPU.
#[inline]
pub(super) fn lane_of(cpu: CpuId, class: Class) -> usize {
    cpu.index() * OF_CPU + class as usize
}

/// Returns the index of the node of a CPU's mark.
#[inline]
pub(super) fn mark_of(cpu: CpuId) -> usize {
    cpu.index() * OF_CPU + MARK
}

/// Returns the number of the class to which a lane belongs.
#[inline]
fn class_of(lane: usize) -> usize {
    lane % OF_CPU
}

/// Returns the CPU to which a lane belongs.
#[inline]
fn cpu_of(lane: u32) -> CpuId {
    CpuId::new(lane as usize / OF_CPU)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slackline_units::DomId;

    use super::*;

    const CLASSES: [Class; 4] = [Class::Parked, Class::Over, Class::Under, Class::Boost];

    /// Plain list of one CPU in order, with which lists are compared. `None` stands for Xen's idle
    /// vCPU.
    #[derive(Default)]
    struct Plain(Vec<(Option<VcpuId>, Class)>);

    impl Plain {
        fn insert(&mut self, who: Option<VcpuId>, class: Class, is_behind: impl Fn(Class) -> bool) {
            let place = self.0.iter().position(|&(_, other)| is_behind(other));
            self.0.insert(place.unwrap_or(self.0.len()), (who, class));
        }

        fn remove(&mut self, who: Option<VcpuId>) -> bool {
            let before = self.0.len();
            self.0.retain(|&(other, _)| other != who);
            self.0.len() < before
        }

        fn sort(&mut self) {
            self.0.sort_by_key(|&(_, class)| class < Class::Under);
        }

        fn ahead(&self) -> Vec<(VcpuId, Class)> {
            let is_marked = self.0.iter().any(|(who, _)| who.is_none());
            let ahead = self.0.iter().take_while(|(_, class)| is_marked || *class > Class::Idle);
            ahead.map_while(|&(who, class)| Some((who?, class))).collect()
        }
    }

    proptest! {
        /// After any sequence of entries, removals and changes on two CPUs, lists have the order of
        /// the plain list.
        #[test]
        fn credit_run_queues_behave_like_plain_lists_under_random_operations(
            steps in prop::collection::vec((0..10, 0..2_usize, 0..8_u32, 0..4_usize), 1..200),
        ) {
            let mut queues = RunQueues::new(2);
            let mut plain = [Plain::default(), Plain::default()];
            let vcpus = [0, 1, 2, 3, 4, 5, 6, 7].map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
            vcpus.iter().for_each(|&vcpu| queues.join(vcpu));
            for (step, cpu, slot, class) in steps {
                let (id, who, class) = (CpuId::new(cpu), vcpus[slot as usize], CLASSES[class]);
                let list = queues.list_of(who).map(CpuId::index);
                match (step, list) {
                    (0..3, None) => {
                        queues.push(id, class, who);
                        plain[cpu].insert(Some(who), class, |other| other < class);
                    }
                    (3, None) => {
                        queues.push_first(id, class, who);
                        plain[cpu].insert(Some(who), class, |other| other <= class);
                    }
                    (4, _) => {
                        queues.remove(who);
                        plain.iter_mut().for_each(|list| { list.remove(Some(who)); });
                    }
                    (5, Some(cpu)) => {
                        queues.change(who, class, ClassChange::Now);
                        plain[cpu].remove(Some(who));
                        plain[cpu].insert(Some(who), class, |other| other < class);
                    }
                    (6, Some(cpu)) => {
                        queues.change(who, class, ClassChange::Tick);
                        let entry = plain[cpu].0.iter_mut().find(|(other, _)| *other == Some(who));
                        entry.unwrap().1 = class;
                    }
                    (7, _) => {
                        queues.put_mark(id);
                        if !plain[cpu].0.iter().any(|(who, _)| who.is_none()) {
                            plain[cpu].insert(None, Class::Idle, |other| other < Class::Idle);
                        }
                    }
                    (8, _) => {
                        queues.take_mark(id);
                        plain[cpu].remove(None);
                    }
                    (9, _) => {
                        queues.sort(id);
                        plain[cpu].sort();
                    }
                    _ => {}
                }
                for (cpu, list) in plain.iter().enumerate() {
                    let id = CpuId::new(cpu);
                    let ahead: Vec<_> = queues.ahead(id).collect();
                    prop_assert_eq!(queues.first(id), ahead.first().copied());
                    for class in CLASSES {
                        if ahead.iter().any(|&(_, other)| other > class) {
                            prop_assert!(queues.with_any_above(class).contains(id));
                        }
                        let stands = list.0.iter().any(|&(_, other)| other > class);
                        if !stands && !queues.mixed.contains(id) {
                            let is_marked = class == Class::Parked;
                            prop_assert!(is_marked || !queues.with_any_above(class).contains(id));
                        }
                    }
                    prop_assert_eq!(ahead, list.ahead());
                }
            }
        }
    }
}
