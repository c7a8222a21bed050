//! Future events in order of time. Events of one instant are in the order in which they were
//! requested.
//!
//! Each event is a plain number. The next few events are in a sorted array (the line), because most
//! new events are due soon. All later events are in a four-ary heap, which needs fewer levels and
//! cache lines than a binary heap. An event that has become pointless is recognised when it is
//! removed from the queue. The queue is never searched for such an event.

use slackline_scenario::{LONGEST, MOST_VCPUS};
use slackline_units::Time;

/// Event that does not belong to a CPU. A number identifies its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The sleep of the vCPU in this slot ends.
    Wake,
    /// The vCPU in this slot becomes eligible again, some time after an order to run it was
    /// refused.
    Allow,
    /// The timer tick of this CPU occurs, or the tick of all CPUs if their ticks coincide.
    Tick,
    /// The kernel's tick on this CPU, which checks if the vCPU that runs on slack has used its
    /// slice.
    FairTick,
    /// The next job of this interference (a program with precedence over all vCPUs) is ready.
    Interfere,
    /// This packet arrives at the network card.
    Arrive,
    /// This packet reaches a client or server outside the host.
    Reach,
    /// A client or server outside the host sends this packet.
    Emit,
    /// The network card stops waiting for more packets and interrupts.
    Interrupt,
    /// The disk completes a request.
    Disk,
    /// This client acts, for example sends a request.
    Client,
    /// This client gives up a connection that was not answered in time.
    Expire,
    /// The timer of this guest task expires.
    Task,
}

/// All events, by number.
const EVENTS: [Event; 13] = {
    use Event::{Allow, Arrive, Client, Disk, Emit, Expire, Interfere, Interrupt, Reach, Task};
    use Event::{FairTick, Tick, Wake};
    [
        Wake, Allow, Tick, FairTick, Interfere, Arrive, Reach, Emit, Interrupt, Disk, Client,
        Expire, Task,
    ]
};

const ARITY: usize = 4;

/// Bit offset of the kind in the number that encodes an event. From the lowest bit on, the fields
/// of that number are subject, kind, serial number (`NUMBER`) and time (`TIME`).
const KIND: u32 = 24;
const NUMBER: u32 = 28;
const TIME: u32 = 68;
/// Upper bound of the serial number of an event.
const MOST: u64 = 1 << (TIME - NUMBER);
/// Upper bound of the time of an event, in nanoseconds: 36 years.
const LATEST: u64 = 1 << (128 - TIME);

const _: () = assert!(MOST_VCPUS <= 1 << KIND && LONGEST.ns() < LATEST);

/// Maximum number of events in the sorted line. A full line keeps its first `KEEP` events. An empty
/// line takes `REFILL` events from the heap in one step.
const ROOM: usize = 64;
const KEEP: usize = 16;
const REFILL: usize = 4;

/// Queue of future events, earliest first.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The next few events in order, at the indices from `head` up to `end` (exclusive). Each word
    /// has the time above serial number, event and subject, so that a single comparison orders two
    /// events.
    line: [u128; ROOM],
    head: usize,
    end: usize,
    /// All events later than those in the sorted line. If the heap has events, the line is not
    /// empty.
    others: Heap,
    /// Number of events requested so far.
    number: u64,
}

impl Queue {
    /// Creates an empty queue.
    pub(crate) fn new() -> Queue {
        Queue { line: [0; ROOM], head: 0, end: 0, others: Heap(Vec::new()), number: 0 }
    }

    /// Returns the time of the first event. `NEVER` if there is no event.
    #[inline(always)]
    pub(crate) fn first(&self) -> Time {
        if self.head < self.end { time(self.line[self.head]) } else { Time::NEVER }
    }

    #[inline]
    pub(crate) fn push(&mut self, at: Time, event: Event, about: usize) {
        if at.ns() >= LATEST {
            return; // An event at `NEVER` does not occur.
        }
        assert!(self.number < MOST, "a run requests fewer than 2^40 events");
        debug_assert!(about < 1 << KIND);
        let number = u128::from(self.number) << NUMBER;
        self.number += 1;
        let what = (event as u64) << KIND | about as u64;
        let word = u128::from(at.ns()) << TIME | number | u128::from(what);
        if self.end == ROOM || self.others.is_before(word) {
            self.push_elsewhere(word);
        } else {
            self.stand_in_line(word);
        }
    }

    /// Inserts an event into the sorted line, which must have room. The event must precede all
    /// events in the heap. The search for its place begins at the end of the line, because most new
    /// events are the latest.
    #[inline(always)]
    fn stand_in_line(&mut self, word: u128) {
        let mut place = self.end;
        self.end += 1;
        while place > self.head && self.line[place - 1] > word {
            self.line[place] = self.line[place - 1];
            place -= 1;
        }
        self.line[place] = word;
    }

    /// Inserts an event into the sorted line, after making room in the line, or into the heap if a
    /// heap event precedes it.
    #[inline(never)] // Keeps the fast path short.
    fn push_elsewhere(&mut self, word: u128) {
        if self.end == ROOM {
            self.make_room();
        }
        if self.others.is_before(word) {
            self.others.push(word);
        } else {
            self.stand_in_line(word);
        }
    }

    /// Drops the events already taken from the sorted line, and moves all but the next few events
    /// to the heap.
    fn make_room(&mut self) {
        self.line.copy_within(self.head.., 0);
        (self.head, self.end) = (0, ROOM - self.head);
        if self.end > ROOM / 2 {
            self.line[KEEP..self.end].iter().for_each(|&later| self.others.push(later));
            self.end = KEEP;
        }
    }

    /// Inserts an event at the time `at`. Does nothing if `at` is `None`.
    pub(crate) fn extend(&mut self, at: Option<Time>, event: Event) {
        if let Some(at) = at {
            self.push(at, event, 0);
        }
    }

    /// Removes and returns the first event. The queue must not be empty.
    #[inline]
    pub(crate) fn pop(&mut self) -> (Event, usize) {
        let first = self.line[self.head];
        self.head += 1;
        if self.head == self.end {
            self.refill();
        }
        event(first)
    }

    #[inline(never)]
    fn refill(&mut self) {
        (self.head, self.end) = (0, 0);
        while self.end < REFILL
            && let Some(next) = self.others.pop()
        {
            self.line[self.end] = next;
            self.end += 1;
        }
    }
}

/// Four-ary heap of events, each encoded in a number.
#[derive(Debug)]
struct Heap(Vec<u128>);

impl Heap {
    #[inline]
    fn least(&self) -> Option<u128> {
        self.0.first().copied()
    }

    /// Returns true if any event in the heap precedes this event.
    #[inline]
    fn is_before(&self, word: u128) -> bool {
        self.least().is_some_and(|least| least < word)
    }

    fn push(&mut self, word: u128) {
        let end = self.0.len();
        self.0.push(word);
        self.rise(end, word);
    }

    fn pop(&mut self) -> Option<u128> {
        let least = self.least()?;
        let last = self.0.pop()?;
        if !self.0.is_empty() {
            self.sink(last);
        }
        Some(least)
    }

    /// Replaces the first event of the heap. The gap moves down along the least children to a leaf,
    /// and the new event rises from there. An event from the end of the heap mostly belongs near
    /// the leaves, so this saves comparisons.
    fn sink(&mut self, word: u128) {
        let heap = &mut self.0[..];
        let mut place = 0;
        while let Some(least) = least_below(heap, place) {
            heap[place] = heap[least];
            place = least;
        }
        self.rise(place, word);
    }

    /// Moves an event up from a free index to its place in the heap.
    #[inline]
    fn rise(&mut self, mut place: usize, word: u128) {
        let heap = &mut self.0[..];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if heap[parent] <= word {
                break;
            }
            heap[place] = heap[parent];
            place = parent;
        }
        heap[place] = word;
    }
}

/// Returns the index of the least child of an event in the heap. `None` if the event has no
/// children.
#[inline]
fn least_below(heap: &[u128], place: usize) -> Option<usize> {
    let first = place * ARITY + 1;
    let children = heap.get(first..heap.len().min(first + ARITY))?;
    if let [a, b, c, d] = *children {
        let (left, low) = if a <= b { (0, a) } else { (1, b) };
        let (right, other) = if c <= d { (2, c) } else { (3, d) };
        return Some(first + if low <= other { left } else { right });
    }
    (0..children.len()).min_by_key(|&child| children[child]).map(|least| first + least)
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // 60 bits remain.
fn time(word: u128) -> Time {
    Time::from_ns((word >> TIME) as u64)
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // Higher bits are cut off on purpose.
fn event(word: u128) -> (Event, usize) {
    let what = word as usize;
    (EVENTS[(what >> KIND) & 15], what & ((1 << KIND) - 1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the queue with a sorted set. Events of the same time are returned in the order
        /// in which the events were requested.
        #[test]
        fn event_queue_returns_simultaneous_events_in_insertion_order(
            steps in prop::collection::vec((0u64..1_000, 0usize..8, 0usize..2), 0..400),
        ) {
            let mut queue = Queue::new();
            let mut sorted = BTreeSet::new();
            for (number, (at, slot, takes)) in steps.into_iter().enumerate() {
                queue.push(Time::from_ns(at), Event::Task, slot);
                sorted.insert((at, number, slot));
                for _ in 0..takes {
                    let next = sorted.pop_first();
                    prop_assert_eq!(queue.first().ns(), next.map_or(u64::MAX, |(at, ..)| at));
                    let Some((_, _, slot)) = next else { break };
                    prop_assert_eq!(queue.pop(), (Event::Task, slot));
                }
            }
            for (at, _, slot) in sorted {
                prop_assert_eq!(queue.first(), Time::from_ns(at));
                prop_assert_eq!(queue.pop(), (Event::Task, slot));
            }
            prop_assert_eq!(queue.first(), Time::NEVER);
        }
    }

    #[test]
    fn event_queue_returns_each_event_with_its_kind_and_subject() {
        let mut queue = Queue::new();
        for (about, event) in EVENTS.into_iter().enumerate() {
            queue.push(Time::START, event, about);
        }
        for (about, event) in EVENTS.into_iter().enumerate() {
            assert_eq!(queue.pop(), (event, about));
        }
    }
}
