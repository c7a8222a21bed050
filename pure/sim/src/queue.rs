//! Events to come, ordered by time, rank and vCPU.
//!
//! A four-ary heap of plain numbers: fewer levels and fewer cache lines than a binary one of
//! structures. An event that has become pointless is recognised when it is taken out, never
//! searched for.

use slackline_units::Time;

/// Something that happens to a vCPU by itself, known by its slot. At one instant, wakes come before
/// permissions, and lower slots before higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// It has slept long enough.
    Wake(usize),
    /// It may be run again after an order was refused.
    Allow(usize),
}

const ARITY: usize = 4;

/// Where the rank of an event stands in a word: above all slots.
const RANK: u32 = 32;

/// Events to come, first first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The time above the rank above the slot, so that one comparison does.
    heap: Vec<u128>,
}

impl Queue {
    /// When the first event is due.
    #[inline]
    pub(crate) fn first(&self) -> Option<Time> {
        self.heap.first().map(|&word| time(word))
    }

    #[inline]
    pub(crate) fn push(&mut self, at: Time, event: Event) {
        let (rank, slot) = match event {
            Event::Wake(slot) => (0, slot),
            Event::Allow(slot) => (1, slot),
        };
        let word = u128::from(at.ns()) << 64 | rank << RANK | slot as u128;
        let mut place = self.heap.len();
        self.heap.push(word);
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.heap[parent] <= word {
                break;
            }
            self.heap[place] = self.heap[parent];
            place = parent;
        }
        self.heap[place] = word;
    }

    /// Takes the first event out; there must be one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Event {
        let first = self.heap[0];
        let last = self.heap.pop().expect("an event is due");
        if !self.heap.is_empty() {
            self.sink(last);
        }
        let slot = (first & u128::from(u32::MAX)) as usize;
        if first & (1 << RANK) == 0 { Event::Wake(slot) } else { Event::Allow(slot) }
    }

    /// Puts a word in the place of the first.
    fn sink(&mut self, word: u128) {
        let heap = &mut self.heap[..];
        let mut place = 0;
        loop {
            let children = place * ARITY + 1;
            let end = heap.len().min(children + ARITY);
            if children >= end {
                break;
            }
            let mut least = children;
            for child in children + 1..end {
                if heap[child] < heap[least] {
                    least = child;
                }
            }
            if word <= heap[least] {
                break;
            }
            heap[place] = heap[least];
            place = least;
        }
        heap[place] = word;
    }
}

fn time(word: u128) -> Time {
    Time::from_ns(u64::try_from(word >> 64).expect("64 bits"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_come_out_in_order(
            times in prop::collection::vec((0u64..100, 0usize..8), 0..300),
        ) {
            let mut queue = Queue::default();
            let mut sorted = Vec::new();
            for (at, slot) in times {
                let event = if slot % 2 == 0 { Event::Wake(slot) } else { Event::Allow(slot) };
                queue.push(Time::from_ns(at), event);
                sorted.push((Time::from_ns(at), event));
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
