//! Ordered queues of vCPUs, one or more per CPU, in which any vCPU can be found and moved.
//!
//! A vCPU that enters a queue mostly belongs at the end of the queue, since a vCPU that has just
//! run waits longest for its next timeslice. So a queue has two parts: a sorted list (the *run*),
//! which grows at its end in O(1), and a four-ary heap of vCPUs that belong before the end of the
//! run. A table of positions finds each vCPU. Operations cost O(1) or O(log n). A vCPU is in at
//! most one of the queues of a `Queues`. Of equal keys the lower id is first.

mod run;

use alloc::vec::Vec;

use slackline_units::VcpuId;

use run::{Links, SortedRun};

/// Children per heap node. Four make fewer levels than two, and siblings share a cache line.
const ARITY: usize = 4;

/// Queues of vCPUs, each ordered by `K`, lowest first.
#[derive(Clone, Debug)]
pub(crate) struct Queues<K> {
    queues: Vec<OrderedQueue<K>>,
    links: Links<K>,
    /// Queue of each vCPU and its position there, indexed by slot.
    places: Vec<QueuePosition>,
}

/// One ordered queue. Each of its vCPUs is either in the sorted run or in the heap.
#[derive(Clone, Debug)]
struct OrderedQueue<K> {
    run: SortedRun,
    heap: Vec<(K, VcpuId)>,
}

/// Queue and position of a vCPU.
#[derive(Clone, Copy, Debug)]
struct QueuePosition {
    queue: u32,
    /// Index in the heap, or `IN_RUN` if the vCPU is in the sorted run.
    at: u32,
}

/// Value of `at` for a vCPU in a sorted run, and not in the heap. No heap has so many entries.
const IN_RUN: u32 = u32::MAX;

/// Position of a vCPU that is in no queue. Its queue number is higher than the number of any real
/// queue.
const NOWHERE: QueuePosition = QueuePosition { queue: u32::MAX, at: 0 };

impl<K: Ord + Copy> Queues<K> {
    /// Creates `count` empty queues.
    pub(crate) fn new(count: usize) -> Queues<K> {
        let queues = alloc::vec![OrderedQueue { run: SortedRun::EMPTY, heap: Vec::new() }; count];
        Queues { queues, links: Links::new(), places: Vec::new() }
    }

    /// Returns true if a queue is empty.
    #[inline]
    pub(crate) fn is_empty(&self, queue: usize) -> bool {
        let OrderedQueue { run, heap } = &self.queues[queue];
        run.is_empty() && heap.is_empty()
    }

    /// Returns the vCPU with the lowest key of a queue. `None` if the queue is empty.
    #[inline]
    pub(crate) fn first(&self, queue: usize) -> Option<(K, VcpuId)> {
        let OrderedQueue { run, heap } = &self.queues[queue];
        lower(self.links.first(*run), heap.first())
    }

    /// Returns the vCPU with the lowest key for which `holds` is true. Examines only vCPUs with
    /// lower keys and, in the heap, the children of these vCPUs.
    #[inline(always)]
    pub(crate) fn first_that(
        &self,
        queue: usize,
        holds: impl Fn(VcpuId) -> bool,
    ) -> Option<(K, VcpuId)> {
        let first = self.first(queue)?;
        if holds(first.1) { Some(first) } else { self.search(queue, &holds) }
    }

    /// Returns the vCPU with the lowest key of a queue, except `but`. `None` if there is no other
    /// vCPU.
    #[inline(always)]
    pub(crate) fn first_but(&self, queue: usize, but: VcpuId) -> Option<(K, VcpuId)> {
        let first = self.first(queue)?;
        if first.1 != but {
            return Some(first);
        }
        let OrderedQueue { run, heap } = &self.queues[queue];
        let place =
            |first: &(K, VcpuId)| if first.1 == but { lowest_below(heap, 0) } else { Some(0) };
        let lowest = heap.first().and_then(place).map(|place| &heap[place]);
        lower(self.links.first_but(*run, but), lowest)
    }

    /// Searches the run and the heap of a queue for the vCPU with the lowest key for which `holds`
    /// is true.
    #[inline(never)] // `holds` is true for the first vCPU in most cases.
    fn search(&self, queue: usize, holds: &impl Fn(VcpuId) -> bool) -> Option<(K, VcpuId)> {
        let best = self.search_heap(queue, holds);
        let could_be = |entry: &(K, VcpuId)| best.is_none_or(|best| *entry < best);
        let mut run = self.links.iter(self.queues[queue].run).take_while(could_be);
        run.find(|&(_, vcpu)| holds(vcpu)).or(best)
    }

    /// Searches the heap of a queue. Skips subtrees whose keys are higher than the best key found.
    fn search_heap(&self, queue: usize, holds: &impl Fn(VcpuId) -> bool) -> Option<(K, VcpuId)> {
        let heap = &self.queues[queue].heap[..];
        let first = *heap.first()?;
        if holds(first.1) {
            return Some(first);
        }
        // In most other cases `holds` is false for the first vCPU only.
        let second = heap[lowest_below(heap, 0)?];
        if holds(second.1) {
            return Some(second);
        }
        let mut best: Option<(K, VcpuId)> = None;
        let mut at = 0;
        loop {
            let could_be = best.is_none_or(|best| heap[at] < best);
            let children = at * ARITY + 1;
            if could_be && !holds(heap[at].1) && children < heap.len() {
                at = children;
                continue;
            }
            if could_be && holds(heap[at].1) {
                best = Some(heap[at]);
            }
            // Go on to the next sibling, or to the next sibling of the nearest ancestor.
            while at > 0 && (at % ARITY == 0 || at + 1 == heap.len()) {
                at = (at - 1) / ARITY;
            }
            if at == 0 {
                return best;
            }
            at += 1;
        }
    }

    /// Returns the vCPUs of a queue in any order.
    #[cfg(test)]
    pub(crate) fn iter(&self, queue: usize) -> impl Iterator<Item = (K, VcpuId)> {
        let OrderedQueue { run, heap } = &self.queues[queue];
        self.links.iter(*run).chain(heap.iter().copied())
    }

    /// Returns the queue of `vcpu`. `None` if the vCPU is in no queue.
    #[inline]
    pub(crate) fn queue_of(&self, vcpu: VcpuId) -> Option<usize> {
        let place = self.places.get(vcpu.slot()).filter(|place| place.queue != NOWHERE.queue);
        place.map(|place| place.queue as usize)
    }

    /// Inserts `vcpu`, which must be in no queue.
    #[inline]
    pub(crate) fn insert(&mut self, queue: usize, key: K, vcpu: VcpuId) {
        if self.places.len() <= vcpu.slot() {
            self.places.resize(vcpu.slot() + 1, NOWHERE);
        }
        debug_assert!(self.queue_of(vcpu).is_none(), "{vcpu} is queued already");
        let OrderedQueue { run, heap } = &mut self.queues[queue];
        if self.links.push(run, (key, vcpu)) {
            self.places[vcpu.slot()] = place(queue, IN_RUN as usize);
            return;
        }
        let end = heap.len();
        heap.push((key, vcpu));
        self.rise(queue, end, (key, vcpu));
    }

    /// Changes the key of `vcpu`, which must be in a queue.
    #[inline]
    pub(crate) fn change(&mut self, key: K, vcpu: VcpuId) {
        let queue = self.queue_of(vcpu).expect("only a queued vCPU changes its key");
        self.remove(vcpu);
        self.insert(queue, key, vcpu);
    }

    /// Removes `vcpu` from its queue if the vCPU is in a queue.
    #[inline]
    pub(crate) fn remove(&mut self, vcpu: VcpuId) {
        match self.places.get_mut(vcpu.slot()) {
            Some(place) if place.queue != NOWHERE.queue => {
                let place = core::mem::replace(place, NOWHERE);
                self.remove_from(place, vcpu);
            }
            _ => {}
        }
    }

    #[inline(always)]
    fn remove_from(&mut self, QueuePosition { queue, at }: QueuePosition, vcpu: VcpuId) {
        if at == IN_RUN {
            self.links.remove(&mut self.queues[queue as usize].run, vcpu);
        } else {
            self.remove_from_heap(queue as usize, at as usize);
        }
    }

    #[inline(never)]
    fn remove_from_heap(&mut self, queue: usize, at: usize) {
        let heap = &mut self.queues[queue].heap;
        if let Some(last) = heap.pop().filter(|_| at < heap.len()) {
            self.settle(queue, at, last);
        }
    }

    /// Puts `moved` at the free heap position `at` or nearer to the root.
    #[inline(always)] // Otherwise `moved` is passed through memory.
    fn rise(&mut self, queue: usize, mut at: usize, moved: (K, VcpuId)) {
        let (heap, places) = (&mut self.queues[queue].heap[..], &mut self.places[..]);
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if heap[parent] <= moved {
                break;
            }
            heap[at] = heap[parent];
            places[heap[at].1.slot()] = place(queue, at);
            at = parent;
        }
        heap[at] = moved;
        places[moved.1.slot()] = place(queue, at);
    }

    /// Puts `moved` into the heap's subtree at the free position `at`, or nearer to the root. The
    /// free position moves down along the lowest children to the bottom, and `moved` rises from
    /// there. Most entries belong near the bottom, so `moved` is not compared on the way down.
    fn settle(&mut self, queue: usize, mut at: usize, moved: (K, VcpuId)) {
        let (heap, places) = (&mut self.queues[queue].heap[..], &mut self.places[..]);
        while let Some(least) = lowest_below(heap, at) {
            heap[at] = heap[least];
            places[heap[at].1.slot()] = place(queue, at);
            at = least;
        }
        self.rise(queue, at, moved);
    }
}

/// Returns the lesser value of two options. An absent value counts as greater than all others.
#[inline]
fn lower<T: Ord + Copy>(this: Option<T>, that: Option<&T>) -> Option<T> {
    match (this, that) {
        (Some(this), Some(that)) if this < *that => Some(this),
        (this, None) => this,
        (_, that) => that.copied(),
    }
}

/// Returns the index of the lowest child of the heap node `at`. `None` if the node has no children.
#[inline]
fn lowest_below<T: Ord>(heap: &[T], at: usize) -> Option<usize> {
    let first = at * ARITY + 1;
    let children = heap.get(first..heap.len().min(first + ARITY))?;
    let least = match children {
        [a, b, c, d] => {
            let (left, low) = if a <= b { (0, a) } else { (1, b) };
            let (right, other) = if c <= d { (2, c) } else { (3, d) };
            if low <= other { left } else { right }
        }
        _ => (0..children.len()).min_by_key(|&child| &children[child])?,
    };
    Some(first + least)
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // Slots are below 2^24, so a heap has fewer entries.
fn place(queue: usize, at: usize) -> QueuePosition {
    QueuePosition { queue: queue as u32, at: at as u32 }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;
    use slackline_units::DomId;

    use super::*;

    fn vcpu(slot: u32) -> VcpuId {
        VcpuId::new(slot, DomId::new(slot), 0)
    }

    proptest! {
        /// Compares the queues with the ordered set of the standard library under random
        /// operations.
        #[test]
        fn ordered_queue_behaves_like_an_ordered_set_under_random_operations(
            steps in prop::collection::vec((0u64..50, 0u32..20), 1..200),
            mask: u32,
        ) {
            let mut queues = Queues::new(2);
            let mut sets = [BTreeSet::new(), BTreeSet::new()];
            for (key, slot) in steps {
                let who = vcpu(slot);
                if let Some(queue) = queues.queue_of(who) {
                    sets[queue].retain(|&(_, member)| member != who);
                    if key < 20 {
                        queues.change(key, who);
                        sets[queue].insert((key, who));
                    } else {
                        queues.remove(who);
                    }
                } else {
                    let queue = (key % 2) as usize;
                    queues.insert(queue, key, who);
                    sets[queue].insert((key, who));
                }
                for (queue, set) in sets.iter().enumerate() {
                    prop_assert_eq!(queues.is_empty(queue), set.is_empty());
                    prop_assert_eq!(queues.first(queue), set.first().copied());
                    prop_assert_eq!(queues.iter(queue).collect::<BTreeSet<_>>(), set.clone());
                    let holds = |who: VcpuId| (mask >> who.slot()) & 1 == 1;
                    let first = set.iter().copied().find(|&(_, who)| holds(who));
                    prop_assert_eq!(queues.first_that(queue, holds), first);
                    let others = set.iter().copied().find(|&(_, other)| other != who);
                    prop_assert_eq!(queues.first_but(queue, who), others);
                    let second = set.iter().nth(1).copied();
                    if let Some(&(_, first)) = set.first() {
                        prop_assert_eq!(queues.first_but(queue, first), second);
                    }
                }
            }
        }
    }
}
