//! Ordered queues of vCPUs, one or more a CPU, in which any vCPU can be found and moved.
//!
//! Who comes into a queue mostly belongs at its end: who has had its turn waits longest for the
//! next. So a queue is a run, which grows at its end in O(1), and a four-ary heap of those who
//! belong further ahead. A table of places finds everybody; what is not done in O(1) costs
//! O(log n). A vCPU stands in at most one of the queues of a `Queues`. Ties go to the lower id.

mod run;

use alloc::vec::Vec;

use slackline_units::VcpuId;

use run::{Links, Run};

/// Children a node: fewer levels than a binary heap, and siblings share a cache line.
const ARITY: usize = 4;

/// Some queues of vCPUs, each ordered by `K`, lowest first.
#[derive(Clone, Debug)]
pub(crate) struct Queues<K> {
    queues: Vec<Queue<K>>,
    links: Links<K>,
    /// By slot: which queue, and where in it.
    places: Vec<Place>,
}

/// One queue: everybody in it is in one of the two.
#[derive(Clone, Debug)]
struct Queue<K> {
    run: Run,
    heap: Vec<(K, VcpuId)>,
}

/// Where a vCPU stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    queue: u32,
    /// In the heap, or `IN_RUN`.
    at: u32,
}

/// In the run of a queue: no heap is that long.
const IN_RUN: u32 = u32::MAX;

/// In no queue: there are fewer than this.
const NOWHERE: Place = Place { queue: u32::MAX, at: 0 };

impl<K: Ord + Copy> Queues<K> {
    /// `count` empty queues.
    pub(crate) fn new(count: usize) -> Queues<K> {
        let queues = alloc::vec![Queue { run: Run::EMPTY, heap: Vec::new() }; count];
        Queues { queues, links: Links::new(), places: Vec::new() }
    }

    /// Whether nobody stands in a queue.
    #[inline]
    pub(crate) fn is_empty(&self, queue: usize) -> bool {
        let Queue { run, heap } = &self.queues[queue];
        run.is_empty() && heap.is_empty()
    }

    /// The lowest of a queue.
    #[inline]
    pub(crate) fn first(&self, queue: usize) -> Option<(K, VcpuId)> {
        let Queue { run, heap } = &self.queues[queue];
        lower(self.links.first(*run), heap.first())
    }

    /// The lowest of those of whom something holds. Looks only at those of whom it does not hold
    /// and who come before, and at those right below them in the heap.
    #[inline(always)]
    pub(crate) fn first_that(
        &self,
        queue: usize,
        holds: impl Fn(VcpuId) -> bool,
    ) -> Option<(K, VcpuId)> {
        let first = self.first(queue)?;
        if holds(first.1) { Some(first) } else { self.search(queue, &holds) }
    }

    /// The lowest of a queue but for one.
    #[inline(always)]
    pub(crate) fn first_but(&self, queue: usize, but: VcpuId) -> Option<(K, VcpuId)> {
        let first = self.first(queue)?;
        if first.1 != but {
            return Some(first);
        }
        let Queue { run, heap } = &self.queues[queue];
        let place =
            |first: &(K, VcpuId)| if first.1 == but { lowest_below(heap, 0) } else { Some(0) };
        let lowest = heap.first().and_then(place).map(|place| &heap[place]);
        lower(self.links.first_but(*run, but), lowest)
    }

    #[inline(never)] // Whom it mostly holds of is the first.
    fn search(&self, queue: usize, holds: &impl Fn(VcpuId) -> bool) -> Option<(K, VcpuId)> {
        let best = self.search_heap(queue, holds);
        let could_be = |entry: &(K, VcpuId)| best.is_none_or(|best| *entry < best);
        let mut run = self.links.iter(self.queues[queue].run).take_while(could_be);
        run.find(|&(_, vcpu)| holds(vcpu)).or(best)
    }

    fn search_heap(&self, queue: usize, holds: &impl Fn(VcpuId) -> bool) -> Option<(K, VcpuId)> {
        let heap = &self.queues[queue].heap[..];
        let first = *heap.first()?;
        if holds(first.1) {
            return Some(first);
        }
        // Mostly it is the first alone of whom it does not hold.
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
            // On to the next sibling, or to that of the nearest parent that has one.
            while at > 0 && (at % ARITY == 0 || at + 1 == heap.len()) {
                at = (at - 1) / ARITY;
            }
            if at == 0 {
                return best;
            }
            at += 1;
        }
    }

    /// Everybody in a queue, in no order.
    #[cfg(test)]
    pub(crate) fn iter(&self, queue: usize) -> impl Iterator<Item = (K, VcpuId)> {
        let Queue { run, heap } = &self.queues[queue];
        self.links.iter(*run).chain(heap.iter().copied())
    }

    /// The queue in which `vcpu` stands.
    #[inline]
    pub(crate) fn queue_of(&self, vcpu: VcpuId) -> Option<usize> {
        let place = self.places.get(vcpu.slot()).filter(|place| place.queue != NOWHERE.queue);
        place.map(|place| place.queue as usize)
    }

    /// Puts `vcpu` into a queue; it must stand in none.
    #[inline]
    pub(crate) fn insert(&mut self, queue: usize, key: K, vcpu: VcpuId) {
        if self.places.len() <= vcpu.slot() {
            self.places.resize(vcpu.slot() + 1, NOWHERE);
        }
        debug_assert!(self.queue_of(vcpu).is_none(), "{vcpu} stands in a queue already");
        let Queue { run, heap } = &mut self.queues[queue];
        if self.links.push(run, (key, vcpu)) {
            self.places[vcpu.slot()] = place(queue, IN_RUN as usize);
            return;
        }
        let end = heap.len();
        heap.push((key, vcpu));
        self.rise(queue, end, (key, vcpu));
    }

    /// Gives `vcpu`, which stands in a queue, another key there.
    #[inline]
    pub(crate) fn change(&mut self, key: K, vcpu: VcpuId) {
        let queue = self.queue_of(vcpu).expect("somebody who stands in a queue");
        self.remove(vcpu);
        self.insert(queue, key, vcpu);
    }

    /// Takes `vcpu` out of the queue in which it stands, if any.
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
    fn remove_from(&mut self, Place { queue, at }: Place, vcpu: VcpuId) {
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

    /// Puts `moved` at `at`, which is free, or above.
    #[inline(always)] // As an argument it would go through memory.
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

    /// Puts `moved` where it belongs, with `at` free: goes all the way down along the lowest, and
    /// up from there. What moves mostly belongs near the bottom, and need not be compared on the
    /// way down.
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

/// The lower of two, of whom there may be one or none.
#[inline]
fn lower<T: Ord + Copy>(this: Option<T>, that: Option<&T>) -> Option<T> {
    match (this, that) {
        (Some(this), Some(that)) if this < *that => Some(this),
        (this, None) => this,
        (_, that) => that.copied(),
    }
}

/// The lowest of those right below a place in a heap.
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
#[allow(clippy::cast_possible_truncation)] // Slots are 32 bits wide, so a queue is no longer.
fn place(queue: usize, at: usize) -> Place {
    Place { queue: queue as u32, at: at as u32 }
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
        /// Against the standard library's ordered set, under any sequence of puts and takes.
        #[test]
        fn the_first_is_always_the_lowest(
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
