//! Events to come, ordered by time, and at one instant by when they were asked for.
//!
//! Each event is a plain number. The next few stand in line, because what is asked for mostly comes
//! soon: all that comes later waits in a heap, four-ary for fewer levels and fewer cache lines than
//! a binary one has. An event that has become pointless is recognised when it is taken out, never
//! searched for.

use slackline_scenario::{LONGEST, MOST_VCPUS};
use slackline_units::Time;

/// Something that happens by itself; a number says to whom or what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The vCPU in this slot has slept long enough.
    Wake,
    /// It may be run again after an order was refused.
    Allow,
    /// The tick of this CPU comes, or those of all.
    Tick,
    /// This packet comes to the network card.
    Arrive,
    /// This packet comes to who is outside.
    Reach,
    /// Who is outside sends this packet.
    Emit,
    /// The network card has waited for more packets.
    Interrupt,
    /// The disk has done what it was asked to.
    Disk,
    /// It is time for this client to do something.
    Client,
    /// This client gives up on a connection.
    Expire,
    /// The timer of this task goes off.
    Task,
}

/// By number.
const EVENTS: [Event; 11] = {
    use Event::{Allow, Arrive, Client, Disk, Emit, Expire, Interrupt, Reach, Task, Tick, Wake};
    [Wake, Allow, Tick, Arrive, Reach, Emit, Interrupt, Disk, Client, Expire, Task]
};

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

/// How many words the line has room for, how many it keeps when they are too many, and how many
/// come into it from the heap at once.
const ROOM: usize = 64;
const KEEP: usize = 16;
const REFILL: usize = 4;

/// Events to come, first first.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The time above the number above event and what it is about, so that one comparison does: the
    /// next few in order, from `head` to before `end`.
    line: [u128; ROOM],
    head: usize,
    end: usize,
    /// They all come after those in line; if there are any, so there are in line.
    others: Heap,
    /// How many have been asked for.
    number: u64,
}

impl Queue {
    /// Nothing to come.
    pub(crate) fn new() -> Queue {
        Queue { line: [0; ROOM], head: 0, end: 0, others: Heap(Vec::new()), number: 0 }
    }

    /// When the first event is due; `NEVER` if there is none.
    #[inline(always)]
    pub(crate) fn first(&self) -> Time {
        if self.head < self.end { time(self.line[self.head]) } else { Time::NEVER }
    }

    #[inline]
    pub(crate) fn push(&mut self, at: Time, event: Event, about: usize) {
        if at.ns() >= LATEST {
            return; // Never.
        }
        assert!(self.number < MOST, "a run has fewer events than that");
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

    /// Puts a word, which comes before all in the heap, where it belongs in line, where there is
    /// room: what is asked for last mostly comes last.
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

    /// Puts a word in the heap, or in line where there was no room.
    #[inline(never)] // Who finds room need not pay for it.
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

    /// Forgets who has gone from the line, and sends all but the next few to the heap.
    fn make_room(&mut self) {
        self.line.copy_within(self.head.., 0);
        (self.head, self.end) = (0, ROOM - self.head);
        if self.end > ROOM / 2 {
            self.line[KEEP..self.end].iter().for_each(|&later| self.others.push(later));
            self.end = KEEP;
        }
    }

    /// Pushes an event if it is known when.
    pub(crate) fn extend(&mut self, at: Option<Time>, event: Event) {
        if let Some(at) = at {
            self.push(at, event, 0);
        }
    }

    /// Takes the first event out; there must be one.
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

/// A four-ary heap of words.
#[derive(Debug)]
struct Heap(Vec<u128>);

impl Heap {
    #[inline]
    fn least(&self) -> Option<u128> {
        self.0.first().copied()
    }

    /// Whether anything in it comes before this word.
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

    /// Puts a word in the place of the first: goes all the way down along the least, and up from
    /// there. What was last mostly belongs near the bottom, and is not compared on the way down.
    fn sink(&mut self, word: u128) {
        let heap = &mut self.0[..];
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

#[inline]
#[allow(clippy::cast_possible_truncation)] // 60 bits are left.
fn time(word: u128) -> Time {
    Time::from_ns((word >> TIME) as u64)
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // What is above is cut off on purpose.
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
        /// Against a sorted set: of one time they come as they were asked for.
        #[test]
        fn events_come_out_in_order(
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
    fn an_event_comes_out_as_it_went_in() {
        let mut queue = Queue::new();
        for (about, event) in EVENTS.into_iter().enumerate() {
            queue.push(Time::START, event, about);
        }
        for (about, event) in EVENTS.into_iter().enumerate() {
            assert_eq!(queue.pop(), (event, about));
        }
    }
}
