//! Choice of the threads that one round of cgroup checks includes. The kernel enforces the CPU time
//! of these threads. Requests to the daemon wait during a round, so a round checks only a few
//! threads.

use slackline_units::Time;

use super::outside_changes::{AROUND_AT_ONCE, AROUND_INTERVAL};

/// Threads that one round of cgroup checks includes.
#[derive(Clone, Debug)]
pub struct DueChecks {
    /// Indexes of the threads, with the longest unchecked thread first.
    indexes: Vec<usize>,
}

impl DueChecks {
    /// Chooses the threads whose next check is due, longest unchecked first, but at most
    /// 16 threads. `looked` has the time of the last check of each thread, or `None` if the
    /// thread was never checked.
    #[must_use]
    pub fn new(looked: impl Iterator<Item = Option<Time>>, now: Time) -> DueChecks {
        let is_due = |looked: Time| now.since(looked) >= AROUND_INTERVAL;
        let due = looked.enumerate().filter(|(_, looked)| looked.is_none_or(is_due));
        let mut due: Vec<(usize, Option<Time>)> = due.collect();
        let order = |&(index, looked): &(usize, Option<Time>)| (looked, index);
        if due.len() > AROUND_AT_ONCE {
            // Only the few chosen threads are sorted, because there can be hundreds of others.
            due.select_nth_unstable_by_key(AROUND_AT_ONCE, order);
            due.truncate(AROUND_AT_ONCE);
        }
        due.sort_unstable_by_key(order);
        let indexes = due.into_iter().map(|(index, _)| index).collect();
        DueChecks { indexes }
    }

    /// Returns true if no thread is to be checked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }

    /// Returns the indexes of the threads, with the longest unchecked thread first.
    pub fn indexes(&self) -> impl Iterator<Item = usize> {
        self.indexes.iter().copied()
    }

    /// Returns true if the round of checks includes the thread with this index. `has_time` is false
    /// if the round has used all its time for such checks. Even then the longest unchecked thread
    /// is checked, so that every thread is checked at some time.
    #[must_use]
    pub fn includes(&self, index: usize, has_time: bool) -> bool {
        match has_time {
            true => self.indexes.contains(&index),
            false => self.indexes.first() == Some(&index),
        }
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::Span;

    use super::super::outside_changes::LOOK_INTERVAL;
    use super::*;

    #[test]
    fn each_round_checks_at_most_16_threads_unchecked_for_longest() {
        let at = |ms| Time::START.after(Span::from_ms(ms));
        let mut looked = vec![None; 100];
        let mut rounds = 0;
        while looked.contains(&None) {
            let now = at(5_000 + rounds * 50);
            let due = DueChecks::new(looked.iter().copied(), now).indexes;
            assert_eq!(
                due.len(),
                AROUND_AT_ONCE.min(looked.iter().filter(|it| it.is_none()).count())
            );
            due.into_iter().for_each(|index| looked[index] = Some(now));
            rounds += 1;
        }
        assert_eq!(rounds, 7);
        // No check is due again before the interval has passed since the first round.
        assert!(DueChecks::new(looked.iter().copied(), at(5_999)).is_empty());
        let due = DueChecks::new(looked.iter().copied(), at(6_000)).indexes;
        assert!(due.into_iter().eq(0..AROUND_AT_ONCE));
    }

    /// A round has time for three checks, and checks the threads in the order of their indexes.
    #[test]
    fn every_thread_is_checked_although_rounds_have_little_time() {
        let mut looked = vec![None; 500];
        for round in 1..=1_200 {
            let now = Time::START.after(LOOK_INTERVAL * round);
            let due = DueChecks::new(looked.iter().copied(), now);
            let mut checks = 0;
            for (index, looked) in looked.iter_mut().enumerate() {
                if due.includes(index, checks < 3) {
                    *looked = Some(now);
                    checks += 1;
                }
            }
            let longest = looked.iter().map(|at| now.since(at.unwrap_or(Time::START))).max();
            assert!(longest <= Some(Span::from_secs(30)), "round {round}: {longest:?}");
        }
    }
}
