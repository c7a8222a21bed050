//! Run intervals of one thread, from the context switches that events report.
//!
//! The events of one CPU are read in order of time, but the events of different CPUs are read at
//! different times. So the end of an interval can be read after the beginning of a later interval
//! on another CPU. Both ends of an interval happen on one CPU, so they are matched by CPU.

use slackline_units::{CpuId, Span, Time};

/// State of one thread: its run intervals whose ends have not been read yet.
#[derive(Clone, Debug, Default)]
pub(super) struct RunIntervals {
    /// CPU and start (on the monotonic clock) of each run interval whose end has not been read.
    open: Vec<(CpuId, Time)>,
    /// Time of the latest context switch, on the monotonic clock. `None` if no context switch has
    /// been read.
    latest: Option<Time>,
}

impl RunIntervals {
    /// Creates the state of a thread before its first context switch.
    pub(super) const fn new() -> RunIntervals {
        RunIntervals { open: Vec::new(), latest: None }
    }

    /// Adds a run interval that starts on `cpu` at time `at`. An earlier interval on this CPU whose
    /// end was lost is dropped.
    pub(super) fn begin(&mut self, cpu: CpuId, at: Time) {
        self.open.retain(|(other, _)| *other != cpu);
        self.open.push((cpu, at));
        self.latest = self.latest.max(Some(at));
    }

    /// Ends the run interval on `cpu` at time `at`, and returns its length. If the start of the
    /// interval is unknown, returns zero.
    pub(super) fn end(&mut self, cpu: CpuId, at: Time) -> Span {
        self.latest = self.latest.max(Some(at));
        let place = self.open.iter().position(|(other, _)| *other == cpu);
        place.map_or(Span::ZERO, |place| at.since(self.open.swap_remove(place).1))
    }

    /// Returns the length of the current run interval up to `now`, a time on the monotonic clock.
    /// If the latest context switch shows that the thread does not run, returns zero.
    pub(super) fn current(&self, now: Time) -> Span {
        let current = self.open.iter().find(|(_, since)| Some(*since) == self.latest);
        current.map_or(Span::ZERO, |(_, since)| now.since(*since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: [CpuId; 2] = [CpuId::new(0), CpuId::new(1)];

    fn ms(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    /// The thread runs on CPU 1 until 3 ms, and then on CPU 0 from 5 to 9 ms. The events of CPU 0
    /// are read before the events of CPU 1.
    #[test]
    fn run_interval_is_counted_if_its_end_is_read_late() {
        let mut intervals = RunIntervals::new();
        intervals.begin(CPUS[1], ms(1));
        assert_eq!(intervals.current(ms(2)), Span::from_ms(1));
        intervals.begin(CPUS[0], ms(5));
        assert_eq!(intervals.current(ms(6)), Span::from_ms(1));
        assert_eq!(intervals.end(CPUS[1], ms(3)), Span::from_ms(2));
        assert_eq!(intervals.end(CPUS[0], ms(9)), Span::from_ms(4));
        assert_eq!(intervals.current(ms(20)), Span::ZERO);
    }

    #[test]
    fn thread_counts_as_not_running_if_interval_end_is_lost() {
        let mut intervals = RunIntervals::new();
        intervals.begin(CPUS[1], ms(1));
        intervals.begin(CPUS[0], ms(5));
        assert_eq!(intervals.end(CPUS[0], ms(6)), Span::from_ms(1));
        assert_eq!(intervals.current(ms(20)), Span::ZERO);
        intervals.begin(CPUS[1], ms(21));
        assert_eq!(intervals.end(CPUS[1], ms(23)), Span::from_ms(2));
        assert_eq!(intervals.end(CPUS[1], ms(24)), Span::ZERO);
    }
}
