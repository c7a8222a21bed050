//! Uses a given amount of CPU time, with an overshoot of a few microseconds.
//!
//! The thread's CPU clock is read by a system call, so it is read between bursts of arithmetic. The
//! speed of the arithmetic is learned from each burst. A burst is at most half of the remaining
//! time, so it stays short enough even if the CPU has become twice as slow. The last burst is at
//! most [`FINE`] long. The overshoot is at most that, unless an interrupt or a hypervisor adds to
//! the CPU time that the kernel counts for the thread.

use std::hint::black_box;

use slackline_units::{Span, Time};

use crate::clock::{monotonic, thread_time};

/// Maximum length of the last burst of arithmetic, and so of the overshoot.
const FINE: Span = Span::from_us(20);
/// Maximum length of any burst, and so the interval at which the end of the load is checked.
const LONGEST: Span = Span::from_us(100);
/// Minimum length of a burst from which the CPU's speed is learned. A shorter one mostly measures
/// the reading of the clock.
const TELLING: Span = Span::from_us(5);
/// Number of picoseconds in a nanosecond.
const PS: u64 = 1_000;

/// Uses CPU time, and learns how fast this CPU computes.
#[derive(Debug)]
pub(crate) struct Spinner {
    /// Time of one iteration of the arithmetic loop, in picoseconds. Never zero.
    turn_ps: u64,
}

/// Reason why a call of `spin` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinEnd {
    /// The thread has used all the CPU time that it was to use.
    Due,
    /// The load is over.
    End,
}

impl Spinner {
    pub(crate) fn new() -> Spinner {
        // Slower than any CPU, so that the first burst is short. That burst shows the real speed.
        Spinner { turn_ps: 100 * PS }
    }

    /// Spins until the calling thread's CPU clock reaches `due`, or until the time `end`.
    pub(crate) fn spin(&mut self, due: Span, end: Time) -> SpinEnd {
        let mut used = thread_time();
        while used < due {
            if monotonic() >= end {
                return SpinEnd::End;
            }
            let left = due - used;
            let burst = if left <= FINE { left } else { (left / 2).min(LONGEST) };
            let turns = (burst.ns() * PS / self.turn_ps).max(1);
            turn(turns);
            let after = thread_time();
            self.learn(turns, after - used);
            used = after;
        }
        SpinEnd::Due
    }

    fn learn(&mut self, turns: u64, took: Span) {
        if took >= TELLING && took.ns() < u64::MAX / PS {
            self.turn_ps = (took.ns() * PS / turns).max(1);
        }
    }
}

/// Runs `turns` iterations of arithmetic that the compiler cannot remove.
fn turn(turns: u64) {
    let mut word = black_box(turns);
    for turn in 0..turns {
        word = black_box(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ turn);
    }
    black_box(word);
}
