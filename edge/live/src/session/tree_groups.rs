//! Order in which the threads of a process tree are checked for changes, and the cgroups in which
//! the threads were found. Each round checks a few threads, so that a round stays short.

use std::collections::BTreeMap;

use slackline_units::{Span, Time};

use slackline_linux::cgroup::Surroundings;
use slackline_linux::sys::Tid;

/// Time in which each thread of a tree is checked once.
pub(super) const COVERED_WITHIN: Span = Span::from_secs(2);

/// Minimum interval between two readings of the limits of the same cgroups.
const READ_INTERVAL: Span = Span::from_secs(1);

/// Maximum number of different sets of cgroups that are remembered for a tree.
const MOST_KNOWN: usize = 64;

/// Order in which the threads of a tree are checked: from the lowest thread id to the highest, and
/// then from the lowest again.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    /// Time up to which the checks that are due have been made. `None` before the first check.
    until: Option<Time>,
    /// Thread that was checked last. `None` before the first check.
    last: Option<Tid>,
}

impl Rotation {
    /// Returns the threads to check now: as many as have become due since the last call. `there`
    /// has all threads in order of their ids. If `there` stays the same, each thread is returned
    /// once in every [`COVERED_WITHIN`].
    pub(super) fn due(&mut self, now: Time, there: &[Tid]) -> Vec<Tid> {
        let count = there.len() as u64;
        let until = *self.until.get_or_insert(now);
        let passed = now.since(until).min(COVERED_WITHIN);
        let due = passed.ns().saturating_mul(count) / COVERED_WITHIN.ns();
        if due == 0 {
            return Vec::new();
        }
        // The rest of the time counts for the next call.
        let rest = passed.left_after(COVERED_WITHIN * due / count);
        self.until = Some(Time::from_ns(now.ns() - rest.ns()));
        let begin = there.partition_point(|&tid| Some(tid) <= self.last);
        let due = usize::try_from(due).unwrap_or(usize::MAX).min(there.len());
        let due: Vec<Tid> =
            there[begin..].iter().chain(&there[..begin]).copied().take(due).collect();
        self.last = due.last().copied();
        due
    }
}

/// Record of the cgroups in which the threads of a process tree were found.
#[derive(Debug, Default)]
pub(super) struct TreeGroups {
    pub(super) rotation: Rotation,
    /// Sets of cgroups in which threads of the tree were found. The key is the text of the file
    /// `/proc/TID/cgroup` of a thread in these cgroups.
    known: BTreeMap<Vec<u8>, KnownGroups>,
    /// Text of `/proc/TID/cgroup` of each thread at its last check.
    threads: BTreeMap<Tid, Vec<u8>>,
}

#[derive(Debug)]
struct KnownGroups {
    /// Cgroups of this set, and their limits when they were first read.
    around: Surroundings,
    /// Time when the limits of these cgroups were last read.
    read: Time,
}

impl TreeGroups {
    /// Returns true if a thread is in the same cgroups as at its last check, and the limits of
    /// these cgroups were read recently.
    pub(super) fn is_fresh(&mut self, tid: Tid, text: &[u8], now: Time) -> bool {
        let is_same = self.threads.get(&tid).is_none_or(|before| before == text);
        let read = self.known.get(text).map(|known| known.read);
        let is_fresh = is_same && read.is_some_and(|read| now.since(read) < READ_INTERVAL);
        if is_fresh {
            self.threads.entry(tid).or_insert_with(|| text.to_vec());
        }
        is_fresh
    }

    /// Returns the cgroups in which a thread is expected. `None` if neither this thread nor another
    /// thread in the same cgroups was checked before.
    pub(super) fn expected(&self, tid: Tid, text: &[u8]) -> Option<&Surroundings> {
        let text = self.threads.get(&tid).map_or(text, Vec::as_slice);
        self.known.get(text).map(|known| &known.around)
    }

    /// Records that a thread is in these cgroups, and that no other program has moved the thread or
    /// changed the cgroups.
    pub(super) fn note(&mut self, tid: Tid, text: Vec<u8>, around: Surroundings, now: Time) {
        if self.known.len() >= MOST_KNOWN && !self.known.contains_key(&text) {
            self.known.clear();
            self.threads.clear();
        }
        let known = self.known.entry(text.clone());
        known.or_insert(KnownGroups { around, read: now }).read = now;
        self.threads.insert(tid, text);
    }

    /// Returns all sets of cgroups in which threads of the tree were found.
    pub(super) fn known(&self) -> impl Iterator<Item = &Surroundings> {
        self.known.values().map(|known| &known.around)
    }

    /// Drops the records of threads that are not in `there`, but only if there are too many
    /// records. `there` has the present threads in order of their ids.
    pub(super) fn keep(&mut self, there: &[Tid]) {
        if self.threads.len() > 2 * there.len() {
            self.threads.retain(|tid, _| there.binary_search(tid).is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tids(numbers: impl Iterator<Item = i32>) -> Vec<Tid> {
        numbers.map(|number| Tid::new(number).expect("thread ids are positive")).collect()
    }

    proptest! {
        /// The times between rounds vary, because other work of the session can delay a round.
        #[test]
        fn all_threads_of_process_tree_are_checked_within_three_seconds(
            count in 1_i32..3_000,
            rounds in prop::collection::vec(20_u64..500, 60..100),
        ) {
            let there = tids(1..=count);
            let mut rotation = Rotation::default();
            let mut now = Time::START;
            let mut checked = vec![now; there.len()];
            rotation.due(now, &there);
            for round in rounds {
                now += Span::from_ms(round);
                let due = rotation.due(now, &there);
                let most = there.len() as u64 * round / 2_000 + 1;
                prop_assert!(due.len() as u64 <= most, "{} of {} at once", due.len(), most);
                for tid in due {
                    let index = usize::try_from(tid.raw()).unwrap() - 1;
                    checked[index] = now;
                }
                let oldest = checked.iter().map(|&at| now.since(at)).max().unwrap();
                prop_assert!(oldest <= Span::from_secs(3), "a thread was not checked in {oldest}");
            }
        }
    }

    #[test]
    fn next_round_continues_after_last_checked_thread_even_if_ended() {
        let (mut rotation, second) = (Rotation::default(), Span::from_secs(1));
        let at = |times: u64| Time::START + second * times;
        assert_eq!(rotation.due(at(0), &tids(1..=4)), []);
        assert_eq!(rotation.due(at(1), &tids(1..=4)), tids(1..=2));
        assert_eq!(rotation.due(at(2), &tids([1, 3, 4, 5].into_iter())), tids(3..=4));
        assert_eq!(rotation.due(at(3), &tids([1, 3, 4, 5].into_iter())), tids([5, 1].into_iter()));
    }
}
