//! Ordered queues of vCPUs, one or more a CPU, in which any vCPU can be found and moved.
//!
//! A four-ary heap with a table of places: the first is found at once, and inserting, moving and
//! taking out cost O(log n). A vCPU stands in at most one of the queues of a `Queues`. Ties go to
//! the lower id.

use alloc::vec::Vec;

use slackline_units::VcpuId;

/// Children a node: fewer levels than a binary heap, and siblings share a cache line.
const ARITY: usize = 4;

/// Some queues of vCPUs, each ordered by `K`, lowest first.
#[derive(Clone, Debug)]
pub(crate) struct Queues<K> {
    heaps: Vec<Vec<(K, VcpuId)>>,
    /// By slot: which queue, and where in it.
    places: Vec<Place>,
}

/// Where a vCPU stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    queue: u32,
    at: u32,
}

/// In no queue: there are fewer than this.
const NOWHERE: Place = Place { queue: u32::MAX, at: 0 };

impl<K: Ord + Copy> Queues<K> {
    /// `count` empty queues.
    pub(crate) fn new(count: usize) -> Queues<K> {
        Queues { heaps: alloc::vec![Vec::new(); count], places: Vec::new() }
    }

    /// The lowest of a queue.
    #[inline]
    pub(crate) fn first(&self, queue: usize) -> Option<(K, VcpuId)> {
        self.heaps[queue].first().copied()
    }

    /// Everybody in a queue, in no order.
    pub(crate) fn iter(&self, queue: usize) -> impl Iterator<Item = (K, VcpuId)> {
        self.heaps[queue].iter().copied()
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
        let end = self.heaps[queue].len();
        self.heaps[queue].push((key, vcpu));
        self.rise(queue, end);
    }

    /// Takes `vcpu` out of the queue in which it stands, if any.
    #[inline]
    pub(crate) fn remove(&mut self, vcpu: VcpuId) {
        let Some(queue) = self.queue_of(vcpu) else { return };
        let place = core::mem::replace(&mut self.places[vcpu.slot()], NOWHERE);
        let at = place.at as usize;
        let heap = &mut self.heaps[queue];
        heap.swap_remove(at);
        if at < heap.len() {
            let at = self.sink(queue, at);
            self.rise(queue, at);
        }
    }

    #[inline]
    fn rise(&mut self, queue: usize, mut at: usize) {
        let (heap, places) = (&mut self.heaps[queue][..], &mut self.places[..]);
        let moved = heap[at];
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

    /// Returns where it came to rest.
    fn sink(&mut self, queue: usize, mut at: usize) -> usize {
        let (heap, places) = (&mut self.heaps[queue][..], &mut self.places[..]);
        let moved = heap[at];
        loop {
            let children = at * ARITY + 1;
            let last = heap.len().min(children + ARITY);
            if children >= last {
                break;
            }
            let mut least = children;
            for child in children + 1..last {
                if heap[child] < heap[least] {
                    least = child;
                }
            }
            if moved <= heap[least] {
                break;
            }
            heap[at] = heap[least];
            places[heap[at].1.slot()] = place(queue, at);
            at = least;
        }
        heap[at] = moved;
        places[moved.1.slot()] = place(queue, at);
        at
    }
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
        ) {
            let mut queues = Queues::new(2);
            let mut sets = [BTreeSet::new(), BTreeSet::new()];
            for (key, slot) in steps {
                let who = vcpu(slot);
                if let Some(queue) = queues.queue_of(who) {
                    queues.remove(who);
                    sets[queue].retain(|&(_, member)| member != who);
                } else {
                    let queue = (key % 2) as usize;
                    queues.insert(queue, key, who);
                    sets[queue].insert((key, who));
                }
                for (queue, set) in sets.iter().enumerate() {
                    prop_assert_eq!(queues.first(queue), set.first().copied());
                    prop_assert_eq!(queues.iter(queue).collect::<BTreeSet<_>>(), set.clone());
                }
            }
        }
    }
}
