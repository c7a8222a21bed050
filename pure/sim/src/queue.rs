//! Events to come, ordered by time, and at one instant by when they were asked for.
//!
//! A four-ary heap of plain numbers: fewer levels and fewer cache lines than a binary one of
//! structures. An event that has become pointless is recognised when it is taken out, never
//! searched for.

use slackline_scenario::{LONGEST, MOST_VCPUS};
use slackline_units::Time;

/// Something that happens by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The vCPU in this slot has slept long enough.
    Wake(usize),
    /// It may be run again after an order was refused.
    Allow(usize),
    /// The ticks of all CPUs come.
    Tick,
    /// This packet comes to the network card.
    Arrive(usize),
    /// This packet comes to who is outside.
    Reach(usize),
    /// Who is outside sends this packet.
    Emit(usize),
    /// The network card has waited for more packets.
    Interrupt,
    /// The disk has done what it was asked to.
    Disk,
    /// It is time for this client to do something.
    Client(usize),
    /// This client gives up on a connection.
    Expire(usize),
    /// The timer of this task goes off.
    Task(usize),
}

const ARITY: usize = 4;

/// Where the parts of a word begin: what it is about, what kind of event it is, its number among
/// all events, and above that its time.
const KIND: u32 = 24;
const NUMBER: u32 = 28;
const TIME: u32 = 68;
const MOST: u64 = 1 << (TIME - NUMBER);
/// No run is as long as this many nanoseconds, 36 years.
const LATEST: u64 = 1 << (128 - TIME);

const _: () = assert!(MOST_VCPUS <= 1 << KIND && LONGEST.ns() < LATEST);

/// Events to come, first first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The time above the number above kind and slot, so that one comparison does.
    heap: Vec<u128>,
    /// How many have been asked for.
    number: u64,
}

impl Queue {
    /// When the first event is due.
    #[inline]
    pub(crate) fn first(&self) -> Option<Time> {
        self.heap.first().map(|&word| time(word))
    }

    #[inline]
    pub(crate) fn push(&mut self, at: Time, event: Event) {
        if at.ns() >= LATEST {
            return; // Never.
        }
        assert!(self.number < MOST, "a run has fewer events than that");
        let number = u128::from(self.number) << NUMBER;
        self.number += 1;
        let word = u128::from(at.ns()) << TIME | number | word(event);
        let end = self.heap.len();
        self.heap.push(word);
        self.rise(end, word);
    }

    /// Pushes an event if it is known when.
    pub(crate) fn extend(&mut self, at: Option<Time>, event: Event) {
        if let Some(at) = at {
            self.push(at, event);
        }
    }

    /// Takes the first event out; there must be one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Event {
        let first = self.heap[0];
        let last = self.heap.pop().expect("an event is due");
        if !self.heap.is_empty() {
            self.sink(last);
        }
        event(first)
    }

    /// Puts a word in the place of the first: goes all the way down along the least, and up from
    /// there. What was last mostly belongs near the bottom, and is not compared on the way down.
    fn sink(&mut self, word: u128) {
        let heap = &mut self.heap[..];
        let mut place = 0;
        while let Some(least) = least_below(heap, place) {
            heap[place] = heap[least];
            place = least;
        }
        self.rise(place, word);
    }

    /// Puts a word at a place, which is free, or above.
    #[inline]
    fn rise(&mut self, mut place: usize, word: u128) {
        let heap = &mut self.heap[..];
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

/// The least of the words right below a place.
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

fn time(word: u128) -> Time {
    Time::from_ns(u64::try_from(word >> TIME).expect("60 bits"))
}

/// The kind of an event and what it is about.
#[inline]
fn word(event: Event) -> u128 {
    let (kind, about) = match event {
        Event::Wake(slot) => (0, slot),
        Event::Allow(slot) => (1, slot),
        Event::Tick => (2, 0),
        Event::Arrive(packet) => (3, packet),
        Event::Reach(packet) => (4, packet),
        Event::Emit(packet) => (5, packet),
        Event::Interrupt => (6, 0),
        Event::Disk => (7, 0),
        Event::Client(client) => (8, client),
        Event::Expire(client) => (9, client),
        Event::Task(task) => (10, task),
    };
    debug_assert!(about < 1 << KIND);
    kind << KIND | about as u128
}

#[inline]
fn event(word: u128) -> Event {
    let about = (word & ((1 << KIND) - 1)) as usize;
    match (word >> KIND) & 15 {
        0 => Event::Wake(about),
        1 => Event::Allow(about),
        2 => Event::Tick,
        3 => Event::Arrive(about),
        4 => Event::Reach(about),
        5 => Event::Emit(about),
        6 => Event::Interrupt,
        7 => Event::Disk,
        8 => Event::Client(about),
        9 => Event::Expire(about),
        _ => Event::Task(about),
    }
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
            // It keeps those of one time as they came.
            sorted.sort_by_key(|&(at, _)| at);
            for (at, event) in sorted {
                prop_assert_eq!(queue.first(), Some(at));
                prop_assert_eq!(queue.pop(), event);
            }
            prop_assert_eq!(queue.first(), None);
        }
    }
}
