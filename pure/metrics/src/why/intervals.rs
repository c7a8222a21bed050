//! Sets of intervals of time.

use slackline_units::Time;

/// A set of time intervals. Intervals are added in any order and can overlap. [`Intervals::settle`]
/// sorts the intervals and makes them disjoint. It must be called before [`Intervals::cut`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intervals(Vec<(Time, Time)>);

impl Intervals {
    pub(super) fn add(&mut self, from: Time, to: Time) {
        if to > from {
            self.0.push((from, to));
        }
    }

    /// Sorts the intervals and joins those that touch or overlap.
    pub(super) fn settle(&mut self) {
        self.0.sort_unstable();
        let mut settled: Vec<(Time, Time)> = Vec::with_capacity(self.0.len());
        for &(from, to) in &self.0 {
            match settled.last_mut() {
                Some((_, end)) if *end >= from => *end = (*end).max(to),
                _ => settled.push((from, to)),
            }
        }
        self.0 = settled;
    }

    /// Splits an interval at the borders of the set, and passes each part with a flag to `each`, in
    /// order of time. The flag is true if the part is inside the set. `settle` must have been
    /// called before.
    pub(super) fn cut(&self, (from, to): (Time, Time), mut each: impl FnMut(Time, Time, bool)) {
        let first = self.0.partition_point(|&(_, end)| end <= from);
        let mut at = from;
        for &(start, end) in self.0[first..].iter().take_while(|&&(start, _)| start < to) {
            let (start, end) = (start.max(at), end.min(to));
            if start > at {
                each(at, start, false);
            }
            if end > start {
                each(start, end, true);
            }
            at = end.max(at);
        }
        if to > at {
            each(at, to, false);
        }
    }

    /// Returns true if `at` is inside the set. `settle` must have been called before.
    pub(super) fn contains(&self, at: Time) -> bool {
        let first = self.0.partition_point(|&(_, end)| end <= at);
        self.0.get(first).is_some_and(|&(start, _)| start <= at)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Time, Time)> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    #[test]
    fn interval_cut_by_interval_set_yields_ordered_pieces_without_gaps() {
        let mut set = Intervals::default();
        for (from, to) in [(50, 60), (10, 20), (15, 30), (30, 31), (90, 95), (7, 7)] {
            set.add(at(from), at(to));
        }
        set.settle();
        assert_eq!(set.iter().count(), 3);
        let mut parts = Vec::new();
        set.cut((at(5), at(92)), |from, to, is_in| parts.push((from.ns(), to.ns(), is_in)));
        let expected = [
            (5, 10, false),
            (10, 31, true),
            (31, 50, false),
            (50, 60, true),
            (60, 90, false),
            (90, 92, true),
        ];
        assert_eq!(parts, expected);
        let mut parts = Vec::new();
        set.cut((at(12), at(14)), |from, to, is_in| parts.push((from.ns(), to.ns(), is_in)));
        assert_eq!(parts, [(12, 14, true)]);
        assert_eq!([9, 10, 30, 31].map(|ns| set.contains(at(ns))), [false, true, true, false]);
    }
}
