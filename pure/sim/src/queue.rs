//! Events to come, ordered by time, rank and vCPU.
//!
//! A four-ary heap of plain values: fewer levels and fewer cache lines than a binary one. An event
//! that has become pointless is recognised when it is taken out, never searched for.

use slackline_units::{Time, VcpuId};

/// Something that happens to a vCPU by itself. At one instant, wakes come before permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// It has slept long enough.
    Wake(VcpuId),
    /// It may be run again after an order was refused.
    Allow(VcpuId),
}

const ARITY: usize = 4;

/// Events to come, first first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: Vec<(Time, Event)>,
}

impl Queue {
    /// When the first event is due.
    pub(crate) fn first(&self) -> Option<Time> {
        self.heap.first().map(|&(at, _)| at)
    }

    pub(crate) fn push(&mut self, at: Time, event: Event) {
        let mut place = self.heap.len();
        self.heap.push((at, event));
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.heap[parent] <= (at, event) {
                break;
            }
            self.heap[place] = self.heap[parent];
            place = parent;
        }
        self.heap[place] = (at, event);
    }

    /// Takes the first event out; there must be one.
    pub(crate) fn pop(&mut self) -> Event {
        let (_, first) = self.heap[0];
        let last = self.heap.pop().expect("an event is due");
        if !self.heap.is_empty() {
            self.sink(last);
        }
        first
    }

    /// Puts an entry in the place of the first.
    fn sink(&mut self, entry: (Time, Event)) {
        let mut place = 0;
        loop {
            let children = place * ARITY + 1;
            let end = self.heap.len().min(children + ARITY);
            let Some(least) = (children..end).min_by_key(|&child| self.heap[child]) else { break };
            if entry <= self.heap[least] {
                break;
            }
            self.heap[place] = self.heap[least];
            place = least;
        }
        self.heap[place] = entry;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slackline_units::DomId;

    use super::*;

    proptest! {
        #[test]
        fn events_come_out_in_order(times in prop::collection::vec((0u64..100, 0u32..8), 0..300)) {
            let mut queue = Queue::default();
            let mut sorted = Vec::new();
            for (at, slot) in times {
                let entry = (Time::from_ns(at), Event::Wake(VcpuId::new(slot, DomId::new(0), 0)));
                queue.push(entry.0, entry.1);
                sorted.push(entry);
            }
            sorted.sort();
            for (at, event) in sorted {
                prop_assert_eq!(queue.first(), Some(at));
                prop_assert_eq!(queue.pop(), event);
            }
            prop_assert_eq!(queue.first(), None);
        }
    }
}
