//! Time that programs with precedence over all vCPUs take from a CPU. No vCPU works in that time,
//! and no vCPU is charged for it.

use std::collections::VecDeque;

use slackline_trace::{OverheadKind, Record};
use slackline_units::{CpuId, Span, Time};

/// Intervals in which a CPU is taken, disjoint and in order. Past intervals are recorded and then
/// dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct TakenTime {
    intervals: VecDeque<(Time, Time)>,
}

impl TakenTime {
    /// Returns the time from which the CPU is free: `now` or later.
    #[inline]
    pub(crate) fn until(&self, now: Time) -> Time {
        self.intervals.back().map_or(now, |&(_, to)| to.max(now))
    }

    /// Takes the CPU for another `length`: from now on, or from the end of the time for which the
    /// CPU is taken already.
    pub(crate) fn take(&mut self, now: Time, length: Span) {
        let from = self.until(now);
        let to = from.after(length);
        match self.intervals.back_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => self.intervals.push_back((from, to)),
        }
    }

    /// Returns the first instant, not before `from`, at which the CPU was free. Also returns the
    /// time between that instant and `now` in which the CPU was taken.
    #[inline]
    pub(crate) fn within(&self, from: Time, now: Time) -> (Time, Span) {
        let (mut first, mut taken) = (from, Span::ZERO);
        for &(begins, ends) in &self.intervals {
            let (begins, ends) = (begins.max(from).min(now), ends.max(from).min(now));
            if begins == first && taken.is_zero() {
                first = ends;
            } else {
                taken += ends - begins;
            }
        }
        (first, taken)
    }

    /// Drops and records the intervals that ended at or before `now`.
    #[inline]
    pub(crate) fn drop_passed(&mut self, cpu: CpuId, now: Time, records: &mut Vec<Record>) {
        while let Some(&(from, to)) = self.intervals.front().filter(|&&(_, to)| to <= now) {
            let (vcpu, kind) = (None, OverheadKind::Interrupt);
            records.push(Record::Spent { cpu, vcpu, kind, from, to });
            self.intervals.pop_front();
        }
    }

    /// Cuts the intervals off at the end of the run, and records them.
    pub(crate) fn end(&mut self, cpu: CpuId, now: Time, records: &mut Vec<Record>) {
        self.intervals.retain(|&(from, _)| from < now);
        self.intervals.iter_mut().for_each(|(_, to)| *to = (*to).min(now));
        self.drop_passed(cpu, now, records);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::START + Span::from_us(us)
    }

    #[test]
    fn cpu_time_taken_by_other_programs_is_counted_exactly_once() {
        let mut taken = TakenTime::default();
        taken.take(at(10), Span::from_us(5));
        taken.take(at(12), Span::from_us(5));
        taken.take(at(30), Span::from_us(2));
        assert_eq!(taken.until(at(13)), at(32));
        assert_eq!(taken.within(at(0), at(40)), (at(0), Span::from_us(12)));
        assert_eq!(taken.within(at(10), at(31)), (at(20), Span::from_us(1)));
        assert_eq!(taken.within(at(12), at(15)), (at(15), Span::ZERO));
        let mut records = Vec::new();
        taken.drop_passed(CpuId::new(0), at(25), &mut records);
        taken.end(CpuId::new(0), at(31), &mut records);
        let times: Vec<_> = records.iter().map(Record::when).collect();
        assert_eq!(times, [(at(10), at(20)), (at(30), at(31))]);
    }
}
