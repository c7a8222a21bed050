//! Uses a given amount of CPU time, with an overshoot of a few microseconds.
//!
//! Reading the thread's CPU clock needs a system call, so the clock is read only between bursts of
//! arithmetic. Each burst shows the speed of the arithmetic. A burst lasts at most half of the
//! remaining time, so it ends in time even if the CPU has become twice as slow. The last burst
//! lasts at most [`FINE`]. The overshoot is at most this value, unless an interrupt or a hypervisor
//! adds to the CPU time that the kernel counts for the thread.

use std::hint::black_box;

use slackline_units::{Span, Time};

use crate::clock::{monotonic, thread_time};

/// Maximum length of the last burst of arithmetic, and so of the overshoot.
const FINE: Span = Span::from_us(20);
/// Maximum length of any burst. The end of the load is checked at this interval.
const LONGEST: Span = Span::from_us(100);
/// Minimum length of a burst from which the speed of the CPU is measured. In a shorter burst,
/// reading the clock takes most of the measured time.
const TELLING: Span = Span::from_us(5);
/// Number of picoseconds in a nanosecond.
const PS: u64 = 1_000;

/// Consumer of CPU time, which measures the speed of the CPU while it computes.
#[derive(Debug)]
pub(crate) struct Spinner {
    /// Time of one iteration of the arithmetic loop, in picoseconds. Never zero.
    turn_ps: u64,
}

/// Reason why a call of `spin` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinEnd {
    /// The thread has used the requested CPU time.
    Due,
    /// The load is over.
    End,
}

impl Spinner {
    pub(crate) fn new() -> Spinner {
        // This is slower than any CPU, so the first burst is short. The first burst then shows the
        // real speed.
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

/// Runs `turns` iterations of arithmetic that the compiler cannot optimize away.
fn turn(turns: u64) {
    let mut word = black_box(turns);
    for turn in 0..turns {
        word = black_box(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ turn);
    }
    black_box(word);
}
