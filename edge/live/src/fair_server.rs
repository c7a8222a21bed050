//! Debt of a CPU to ordinary threads. The kernel reserves CPU time for ordinary threads. Slackline
//! gives them this time early, so that the kernel does not interrupt a reservation to enforce it.
//!
//! Linux gives real-time threads at most 95 % of a CPU. If ordinary threads are runnable and have
//! received less than the remaining 5 % for a second, the kernel gives them 50 ms without a break.
//! Since Linux 6.12 the kernel's fair server does that. In older kernels the limit
//! `sched_rt_runtime_us` had the same effect. In those 50 ms no reservation on the CPU is
//! delivered. This can happen even if reservations take less than 95 %, because dispatchers are
//! real-time too. A hypervisor below the host can also take time from ordinary threads.
//!
//! So if ordinary threads have received too little, a vCPU that should be real-time becomes an
//! ordinary thread for a while. The vCPU then has the highest priority of the ordinary threads, so
//! it receives nearly all of the time. The kernel counts this time as CPU time of ordinary threads,
//! which pays the debt.

use slackline_units::{CpuShare, Span, Time};

/// Share of all time, in percent, that Slackline gives to ordinary threads in addition to the share
/// that the kernel reserves for them. The addition is a margin for time that the dispatcher does
/// not see.
const MARGIN_PERCENT: u64 = 2;

/// Debt (CPU time owed to ordinary threads) above which a vCPU runs as an ordinary thread to pay
/// the debt. If the debt stays below this amount for a second, ordinary threads have received what
/// the kernel reserves for them in this second.
const MOST: Span = Span::from_ms(5);
/// Maximum debt. CPU time owed to ordinary threads beyond this amount is forgotten.
const EVER: Span = Span::from_ms(50);

/// Debt to ordinary threads above which a vCPU pays the debt even if several vCPUs are entitled to
/// the CPU. While one vCPU pays, the others wait, so payment is deferred as long as the kernel
/// allows. With a debt of 15 ms, ordinary threads have received at least 7 % of the last second
/// less the debt: 70 ms - 15 ms = 55 ms. The kernel's 5 % are 50 ms.
const URGENT: Span = Span::from_ms(15);

/// CPU time that one CPU owes to ordinary threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FairServerDebt {
    /// Share of all time that is owed to ordinary threads, in percent. The default is 7: the
    /// kernel's 5 % plus a margin of 2 %.
    percent: u64,
    /// Debt to ordinary threads at present.
    owed: Span,
    /// Time of the run up to which the debt has been computed.
    known: Time,
    /// Part of the time since `known` in which real-time vCPUs occupied the CPU.
    raised: Span,
}

impl FairServerDebt {
    pub(crate) const fn new() -> FairServerDebt {
        let percent = 5 + MARGIN_PERCENT;
        FairServerDebt { percent, owed: Span::ZERO, known: Time::START, raised: Span::ZERO }
    }

    /// Sets the maximum share of the CPU that the kernel gives to real-time threads.
    pub(crate) fn limit(&mut self, real_time: CpuShare) {
        let ordinary = u64::from(CpuShare::ONE.less(real_time).ppm());
        self.percent = ordinary.div_ceil(10_000) + MARGIN_PERCENT;
    }

    /// Records that a real-time vCPU occupied the CPU for the time `raised`. This includes time
    /// that a hypervisor below the host stole meanwhile.
    pub(crate) fn had(&mut self, raised: Span) {
        self.raised += raised;
    }

    /// Updates the debt of the CPU for the time since the last call. `cost` is the CPU time that
    /// the dispatcher pass itself took.
    pub(crate) fn pass(&mut self, now: Time, cost: Span) {
        let passed = now.since(self.known);
        let ordinary = passed.left_after(std::mem::take(&mut self.raised) + cost);
        let wanted = Span::from_ns(passed.ns() * self.percent / 100);
        self.owed = EVER.min((self.owed + wanted).left_after(ordinary));
        self.known = now;
    }

    /// Returns the debt to ordinary threads. `None` if the debt is zero.
    pub(crate) fn owed(&self) -> Option<Span> {
        Some(self.owed).filter(|owed| !owed.is_zero())
    }

    /// Returns true if the debt is so large that it must be paid in the usual case, in which only
    /// one vCPU is entitled to the CPU.
    pub(crate) fn is_due(&self) -> bool {
        self.owed > MOST
    }

    /// Returns true if the debt is so large that it must be paid even if several vCPUs are entitled
    /// to the CPU.
    pub(crate) fn is_urgent(&self) -> bool {
        self.owed > URGENT
    }

    /// Returns true if an entitled vCPU must now pay the debt by running as an ordinary thread.
    /// `is_paying` is true if a vCPU is already paying. `beside` is true if several vCPUs are
    /// entitled to the CPU.
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

    /// Simulates a vCPU that runs for `slice` of every millisecond for ten seconds. Returns the
    /// least time that ordinary threads received in any second.
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
    fn ordinary_threads_receive_fair_server_time_in_every_second() {
        let us = Span::from_us;
        assert!(worst_second(us(900), us(50)) >= Span::from_ms(60));
        assert!(worst_second(us(1000), us(0)) >= Span::from_ms(60));
    }

    #[test]
    fn fair_server_adds_nothing_if_ordinary_threads_receive_7_percent() {
        let us = Span::from_us;
        let left = worst_second(us(900), us(29));
        assert_eq!(left, Span::from_ms(71));
    }

    #[test]
    fn ordinary_threads_are_owed_the_share_outside_real_time_limit() {
        for (limit, owed) in [(950_000, 7), (1_000_000, 2), (800_000, 22)] {
            let mut fair_server = FairServerDebt::new();
            fair_server.limit(CpuShare::from_ppm(limit));
            fair_server.had(Span::from_ms(100));
            fair_server.pass(Time::START.after(Span::from_ms(100)), Span::ZERO);
            assert_eq!(fair_server.owed(), Some(Span::from_ms(owed)));
        }
    }

    #[test]
    fn idle_time_earns_no_credit_against_later_fair_server_debt() {
        let mut fair_server = FairServerDebt::new();
        fair_server.pass(Time::START.after(Span::from_secs(100)), Span::ZERO);
        assert!(!fair_server.is_due());
        fair_server.had(Span::from_ms(100));
        fair_server.pass(Time::START.after(Span::from_ms(100_100)), Span::ZERO);
        assert!(fair_server.is_due());
        assert_eq!(fair_server.owed(), Some(Span::from_ms(7)));
    }
}
