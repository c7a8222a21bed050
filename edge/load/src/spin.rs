//! Using CPU time: as much as is due, and hardly more.
//!
//! The thread's CPU clock is read by a system call, so it is read between bursts of arithmetic. How
//! fast this CPU does the arithmetic is learned from each burst. While much is due a burst is half
//! of it or less, so that a CPU that has become up to twice as slow makes none too long; the last
//! one, of [`FINE`] at most, is too long by as much as that at worst, unless an interrupt or a
//! hypervisor adds to it what the kernel counts as the thread's time.

use std::hint::black_box;

use slackline_units::{Span, Time};

use crate::clock::{monotonic, thread_time};

/// The last burst is at most this long.
const FINE: Span = Span::from_us(20);
/// No burst is longer than this: it is how often the end is looked for.
const LONGEST: Span = Span::from_us(100);
/// A burst shorter than this says more about reading the clock than about the CPU.
const TELLING: Span = Span::from_us(5);
/// A picosecond is a thousandth of a nanosecond.
const PS: u64 = 1_000;

/// Uses CPU time, and knows how fast.
#[derive(Debug)]
pub(crate) struct Spinner {
    /// Picoseconds that a turn of the loop takes; never zero.
    turn_ps: u64,
}

/// Why spinning has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// All that was due has been used.
    Due,
    /// The time is up.
    End,
}

impl Spinner {
    pub(crate) fn new() -> Spinner {
        // Slower than any CPU is, so that the first burst is short. It says how fast this one is.
        Spinner { turn_ps: 100 * PS }
    }

    /// Spins until the calling thread has used `due` in its life, or until `end`.
    pub(crate) fn spin(&mut self, due: Span, end: Time) -> Until {
        let mut used = thread_time();
        while used < due {
            if monotonic() >= end {
                return Until::End;
            }
            let left = due - used;
            let burst = if left <= FINE { left } else { (left / 2).min(LONGEST) };
            let turns = (burst.ns() * PS / self.turn_ps).max(1);
            turn(turns);
            let after = thread_time();
            self.learn(turns, after - used);
            used = after;
        }
        Until::Due
    }

    fn learn(&mut self, turns: u64, took: Span) {
        if took >= TELLING && took.ns() < u64::MAX / PS {
            self.turn_ps = (took.ns() * PS / turns).max(1);
        }
    }
}

/// Arithmetic that takes time in proportion to `turns`, and that no compiler sees through.
fn turn(turns: u64) {
    let mut word = black_box(turns);
    for turn in 0..turns {
        word = black_box(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ turn);
    }
    black_box(word);
}
