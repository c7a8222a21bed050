//! What the kernel keeps of each CPU for ordinary threads, paid before it is taken.
//!
//! Linux gives real-time threads 95 % of a CPU at most. Where ordinary ones want the rest and have
//! not had it for a second, they get 50 ms of it at once (the fair server, since 6.12; before that
//! the limit of `sched_rt_runtime_us`), and every promise of those 50 ms is broken. That happens
//! below 95 % too: dispatchers are real-time, and what a hypervisor below takes is nobody's.
//!
//! So when too little is left to ordinary threads, one that is due runs as the first of them for a
//! while: it gets nearly all of that time, and the kernel is content.

use slackline_units::{Span, Time};

/// What is paid, in percent: what the kernel wants, and something for what cannot be seen.
const PERCENT: u64 = 7;

/// How much may be owed before it is paid, and how much is remembered. A second in which no more
/// than this is owed has had what the kernel wants.
const MOST: Span = Span::from_ms(5);
const EVER: Span = Span::from_ms(50);

/// How much may be owed while several are due. They all wait while one of them pays, so that is put
/// off, but no further than the kernel allows: 7 % of a second less this is more than its 5 %.
const URGENT: Span = Span::from_ms(15);

/// What one CPU owes ordinary threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FairServerDebt {
    owed: Span,
    /// Up to when that is known.
    known: Time,
    /// How long real-time threads of ours have had the CPU since.
    raised: Span,
}

impl FairServerDebt {
    pub(crate) const fn new() -> FairServerDebt {
        FairServerDebt { owed: Span::ZERO, known: Time::START, raised: Span::ZERO }
    }

    /// A thread that we had made real-time has had the CPU for so long, whatever of it was used:
    /// what was stolen meanwhile was nobody's.
    pub(crate) fn had(&mut self, raised: Span) {
        self.raised += raised;
    }

    /// Time has passed, and looking itself has cost so much of it.
    pub(crate) fn pass(&mut self, now: Time, cost: Span) {
        let passed = now.since(self.known);
        let ordinary = passed.left_after(std::mem::take(&mut self.raised) + cost);
        let wanted = Span::from_ns(passed.ns() * PERCENT / 100);
        self.owed = EVER.min((self.owed + wanted).left_after(ordinary));
        self.known = now;
    }

    /// What is owed, if anything is.
    pub(crate) fn owed(&self) -> Option<Span> {
        Some(self.owed).filter(|owed| !owed.is_zero())
    }

    /// Whether so much is owed that it has to be paid.
    pub(crate) fn is_due(&self) -> bool {
        self.owed > MOST
    }

    /// Returns true if it has to be paid now, whoever else is due.
    pub(crate) fn is_urgent(&self) -> bool {
        self.owed > URGENT
    }

    /// Returns true if one that is due is to pay, alone or `beside` others that are due as well,
    /// given whether one pays already.
    pub(crate) fn is_to_be_paid(&self, is_paying: bool, beside: bool) -> bool {
        match (is_paying, beside) {
            (true, false) => self.owed().is_some(),
            (false, true) => self.is_urgent(),
            (true, true) | (false, false) => self.is_due(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs someone for `slice` of every millisecond for ten seconds, and tells how much time
    /// ordinary threads had in the worst second.
    fn worst_second(slice: Span, cost: Span) -> Span {
        let (mut fair_server, mut had) = (FairServerDebt::new(), Vec::new());
        let mut is_paying = false;
        for round in 1..=10_000 {
            if !is_paying {
                fair_server.had(slice);
            }
            fair_server.pass(Time::START.after(Span::from_ms(round)), cost);
            let left = Span::from_ms(1) - cost;
            had.push(if is_paying { left } else { left.left_after(slice) });
            is_paying = if is_paying { fair_server.owed().is_some() } else { fair_server.is_due() };
        }
        had.windows(1000).map(|second| second.iter().copied().sum()).min().unwrap()
    }

    #[test]
    fn ordinary_threads_always_have_what_the_kernel_wants() {
        let us = Span::from_us;
        assert!(worst_second(us(900), us(50)) >= Span::from_ms(60));
        assert!(worst_second(us(1000), us(0)) >= Span::from_ms(60));
    }

    #[test]
    fn nothing_is_paid_where_enough_is_left() {
        let us = Span::from_us;
        let left = worst_second(us(900), us(29));
        assert_eq!(left, Span::from_ms(71));
    }

    #[test]
    fn a_long_pause_pays_for_no_later_second() {
        let mut fair_server = FairServerDebt::new();
        fair_server.pass(Time::START.after(Span::from_secs(100)), Span::ZERO);
        assert!(!fair_server.is_due());
        fair_server.had(Span::from_ms(100));
        fair_server.pass(Time::START.after(Span::from_ms(100_100)), Span::ZERO);
        assert!(fair_server.is_due());
        assert_eq!(fair_server.owed(), Some(Span::from_ms(7)));
    }
}
