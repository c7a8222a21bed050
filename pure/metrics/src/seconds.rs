//! Minimum and maximum CPU time that a vCPU received in any whole second, and in any whole interval
//! of ten seconds. Intervals follow one another without gaps. The first interval starts at the end
//! of the warm-up, or at the vCPU's join if that is later. The last interval ends before the vCPU
//! leaves or the run ends.

use slackline_units::{Span, Time};

use crate::split::Stretch;

/// Minimum number of windows that a run interval must fill for them to be closed in one step.
const MANY: u64 = 1_000;

/// Minimum and maximum CPU time that a vCPU received in windows of one length.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    length: Span,
    /// Start of the current window. `None` while the vCPU is not joined.
    begins: Option<Time>,
    used: Span,
    least_and_most: Option<(Span, Span)>,
}

impl Spans {
    pub(crate) fn new(length: Span) -> Spans {
        Spans { length, begins: None, used: Span::ZERO, least_and_most: None }
    }

    /// Starts the first window at a join, or at the end of the warm-up.
    pub(crate) fn begin(&mut self, at: Time) {
        (self.begins, self.used) = (Some(at), Span::ZERO);
    }

    /// Returns the start of the current window. `None` while the vCPU is not joined.
    pub(crate) fn begins(&self) -> Option<Time> {
        self.begins
    }

    /// Adds a run interval of the vCPU.
    #[inline]
    pub(crate) fn ran(&mut self, stretch: Stretch) {
        let Some(begins) = self.begins else { return };
        let mut rest = if stretch.from < begins { stretch.split(begins).1 } else { stretch };
        while let Some(end) = self.end().filter(|&end| rest.to > end) {
            let (before, after) = rest.split(end);
            self.used += before.used;
            self.close(end);
            rest = self.jump(after);
        }
        self.used += rest.used;
    }

    /// Closes in one step all windows that a run interval fills, except the last one or two. These
    /// windows all have equal sums. This step is needed because a run interval in an untrusted
    /// trace can last centuries.
    fn jump(&mut self, rest: Stretch) -> Stretch {
        let whole = (rest.to - rest.from) / self.length;
        if whole < MANY {
            return rest;
        }
        let (before, after) = rest.split(rest.from.after(self.length * (whole - 1)));
        self.used = Span::from_ns(before.used.ns() / (whole - 1));
        self.close(before.to);
        after
    }

    /// Ends the count at `at`, because the vCPU left or the run ended. Windows that are complete at
    /// that time count. An incomplete window is discarded.
    pub(crate) fn over(&mut self, at: Time) {
        if let Some(end) = self.end().filter(|&end| end <= at) {
            self.close(end);
            // The vCPU received nothing in all later whole windows, so closing one of them
            // suffices.
            if at.since(end) >= self.length {
                self.close(end);
            }
        }
        self.begins = None;
    }

    /// Returns the minimum and maximum CPU time over all whole windows, in millionths of a CPU.
    /// `None` if there was no whole window.
    pub(crate) fn least_and_most(&self) -> Option<(u64, u64)> {
        let ppm = |used| crate::split::ppm(used, self.length);
        self.least_and_most.map(|(least, most)| (ppm(least), ppm(most)))
    }

    /// Returns the end of the current window. `None` if there is no window, or if the end of the
    /// window is beyond 584 years.
    fn end(&self) -> Option<Time> {
        let begins = self.begins?;
        begins.since(Time::START).checked_add(self.length).map(|end| Time::START.after(end))
    }

    fn close(&mut self, end: Time) {
        let used = std::mem::take(&mut self.used);
        let (least, most) = self.least_and_most.unwrap_or((used, used));
        self.least_and_most = Some((least.min(used), most.max(used)));
        self.begins = Some(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(from: u64, to: u64) -> Stretch {
        let at = |ms| Time::START + Span::from_ms(ms);
        Stretch { from: at(from), to: at(to), used: Span::from_ms(to - from) }
    }

    #[test]
    fn shares_per_second_cover_only_whole_seconds_from_measurement_start() {
        let mut seconds = Spans::new(Span::from_secs(1));
        seconds.begin(Time::START + Span::from_ms(500));
        // 300 ms are received in the first second, 600 ms in the second, none in the third, and 900
        // ms in an incomplete one.
        for (from, to) in [(0, 600), (1_300, 1_800), (2_200, 2_500), (3_500, 4_600)] {
            seconds.ran(stretch(from, to));
        }
        seconds.over(Time::START + Span::from_ms(5_400));
        assert_eq!(seconds.least_and_most(), Some((0, 1_000_000)));
        let mut ten = Spans::new(Span::from_secs(10));
        ten.begin(Time::START);
        ten.ran(stretch(0, 9_000));
        ten.over(Time::START + Span::from_ms(9_999));
        assert_eq!(ten.least_and_most(), None);
    }

    #[test]
    fn shares_per_second_are_computed_for_500_year_run_interval() {
        let mut seconds = Spans::new(Span::from_secs(1));
        seconds.begin(Time::START);
        let to = Time::START + Span::from_secs(500 * 365 * 24 * 3600);
        seconds.ran(Stretch { from: Time::START, to, used: to.since(Time::START) / 2 });
        assert_eq!(seconds.least_and_most(), Some((500_000, 500_000)));
        seconds.over(Time::START + Span::MAX);
        assert_eq!(seconds.least_and_most(), Some((0, 500_000)));
    }

    #[test]
    fn splitting_a_run_interval_does_not_change_shares_per_second() {
        let counted = |parts: u64| {
            let mut seconds = Spans::new(Span::from_secs(1));
            seconds.begin(Time::START + Span::from_ms(300));
            for part in 0..parts {
                let (from, to) = (part * 4_000_000 / parts, (part + 1) * 4_000_000 / parts);
                seconds.ran(stretch(from, to));
            }
            seconds.over(Time::START + Span::from_ms(4_000_800));
            (seconds.least_and_most(), seconds.begins())
        };
        assert_eq!(counted(1), counted(16));
    }

    #[test]
    fn cpu_time_before_measurement_start_counts_in_no_second() {
        for (from, used) in [(500, 400_000), (1_000, 400_000), (1_100, 300_000)] {
            let mut seconds = Spans::new(Span::from_secs(1));
            seconds.begin(Time::START + Span::from_secs(1));
            seconds.ran(stretch(from, 1_400));
            seconds.over(Time::START + Span::from_secs(2));
            assert_eq!(seconds.least_and_most(), Some((used, used)), "from {from} ms on");
        }
    }

    #[test]
    fn run_interval_across_several_seconds_is_split_by_second() {
        let mut seconds = Spans::new(Span::from_secs(1));
        seconds.begin(Time::START);
        seconds.ran(stretch(750, 3_500));
        seconds.over(Time::START + Span::from_secs(4));
        assert_eq!(seconds.least_and_most(), Some((250_000, 1_000_000)));
    }
}
