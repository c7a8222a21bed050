//! Usual lateness with which a vCPU is stopped at the end of its budget.

use slackline_units::Span;

/// Measurement tolerance: a slice that is short by at most this time counts as whole. On a live
/// host CPU time and context switches come from two clocks that agree to about 5 us. Also, a stop
/// can be slightly less late than any before.
pub(in crate::policies::edf) const UNTOLD: Span = Span::from_us(3);

/// Lateness with which a vCPU was stopped at the end of its budget in past periods.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::policies::edf) struct OverrunHistory {
    /// Overrun in this period.
    pub(in crate::policies::edf) overran: Span,
    /// True if the vCPU's budget was exhausted while it was runnable, so it was stopped and did not
    /// block.
    pub(in crate::policies::edf) is_stopped: bool,
    /// True if deductions left nothing of the vCPU's slice, so there is no stop in this period.
    pub(in crate::policies::edf) is_paid_off: bool,
    /// Least overrun in the current block of periods and in the previous block. A block is `BLOCK`
    /// periods.
    least: [Span; 2],
    /// Number of periods counted. After the first block of periods it is `BLOCK` plus the number of
    /// periods in the current block.
    count: u8,
}

impl OverrunHistory {
    /// Number of periods per block. The usual lateness is unknown before the first block is
    /// complete. Assume that stops are late by 0 to 10 us at random. The probability that all of 64
    /// stops are late by 1 us or more is then one in a thousand.
    const BLOCK: u8 = 64;

    /// Records the overrun of a period in which the vCPU was stopped.
    pub(in crate::policies::edf) fn learn(&mut self) {
        if self.count.is_multiple_of(OverrunHistory::BLOCK) {
            let before = if self.count == 0 { self.overran } else { self.least[0] };
            self.least = [self.overran, before];
            self.count = if self.count == 0 { 0 } else { OverrunHistory::BLOCK };
        }
        self.least[0] = self.least[0].min(self.overran);
        self.count += 1;
    }

    /// Returns the least lateness of recent stops. Zero until `BLOCK` stops were recorded.
    pub(in crate::policies::edf) fn habit(&self) -> Span {
        let are_known = self.count >= OverrunHistory::BLOCK;
        if are_known { self.least[0].min(self.least[1]) } else { Span::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records `slices` overruns of `overran_us` each.
    fn learn(stops: &mut OverrunHistory, slices: u8, overran_us: u64) {
        for _ in 0..slices {
            stops.overran = Span::from_us(overran_us);
            stops.learn();
        }
    }

    /// The steady overrun is the least overrun in the current block of 64 overruns and in the
    /// previous block. It is zero before the first block is complete.
    #[test]
    fn edf_steady_overrun_is_minimum_of_64_to_128_overruns() {
        let mut stops = OverrunHistory::default();
        learn(&mut stops, 63, 7);
        assert_eq!(stops.habit(), Span::ZERO, "the first block is not complete");
        learn(&mut stops, 1, 9);
        assert_eq!(stops.habit(), Span::from_us(7));
        learn(&mut stops, 1, 5);
        assert_eq!(stops.habit(), Span::from_us(5));
        learn(&mut stops, 63 + 64, 8);
        assert_eq!(stops.habit(), Span::from_us(5), "the stop of 5 us is in the previous block");
        learn(&mut stops, 1, 8);
        assert_eq!(stops.habit(), Span::from_us(8), "the stop of 5 us is two blocks old");
    }
}
