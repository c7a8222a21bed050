//! Choice of the threads of a process tree that run before the other threads of the tree. The
//! functions here depend only on their arguments.
//!
//! The threads that have received the least CPU time run first, one on each CPU of the tree. If all
//! these threads receive the same time in each timeslice, the CPU times of two busy threads never
//! differ by more than the longest timeslice.

use slackline_linux::sys::Tid;
use slackline_units::Span;

/// Maximum number of threads of a tree that may run first although they have not run since they
/// woke. Each such thread costs two system calls.
const MOST_WOKEN: usize = 8;

/// A runnable thread of a process tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunnableThread {
    pub(super) tid: Tid,
    /// CPU time that the thread has received.
    pub(super) received: Span,
    /// True if the thread has run since it woke.
    pub(super) has_run: bool,
}

/// Returns the threads of a tree that should run first, in order. `width` is the number of CPUs
/// that the tree may use simultaneously. The list is empty if fewer than two threads are runnable.
///
/// The threads are ordered by the CPU time that they have received, least first. In this order, the
/// first `width` threads that have run since they woke are chosen. Up to [`MOST_WOKEN`] (8) threads
/// that have not run since they woke are listed too, if they come before the last chosen thread or
/// if fewer than `width` threads are chosen.
///
/// Threads that have not run since they woke are a special case. Thawing a cgroup wakes every
/// thread in it, and a thread that was blocked before blocks again immediately. If only one such
/// thread were returned, an arbitrary thread would receive the rest of the timeslice. If none were
/// returned, a thread that has really become runnable would have to wait.
pub(super) fn first_threads(mut runnable: Vec<RunnableThread>, width: usize) -> Vec<Tid> {
    if runnable.len() < 2 {
        return Vec::new();
    }
    runnable.sort_unstable_by_key(|thread| (thread.received, thread.tid));
    let (mut front, mut woken, mut left) = (Vec::new(), MOST_WOKEN, width);
    for thread in runnable {
        let places = if thread.has_run { &mut left } else { &mut woken };
        if *places > 0 {
            *places -= 1;
            front.push(thread.tid);
        }
        if left == 0 {
            break;
        }
    }
    front
}

/// Returns the threads that should run first from now on, in the middle of a timeslice. At present
/// the threads in `ahead` run first. A thread in `ahead` that is still runnable is replaced only by
/// a thread that has received less CPU time by more than `lead`.
///
/// Without this lead, threads would alternate at each dispatcher pass. The disadvantage is that a
/// thread that wakes while others are busy may have to wait for the time `lead`.
pub(super) fn next_threads(
    mut runnable: Vec<RunnableThread>,
    width: usize,
    (ahead, lead): (&[Tid], Span),
) -> Vec<Tid> {
    for thread in runnable.iter_mut().filter(|thread| !ahead.contains(&thread.tid)) {
        thread.received += lead;
    }
    first_threads(runnable, width)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tid(number: usize) -> Tid {
        Tid::new(i32::try_from(number).unwrap()).unwrap()
    }

    fn ms(ms: u64) -> Span {
        Span::from_ms(ms)
    }

    /// Returns one runnable thread for each item of `received`, the CPU time of the thread. The ids
    /// are 1, 2 and so on. Each thread has run since it woke.
    fn busy(received: &[Span]) -> Vec<RunnableThread> {
        let thread = |(at, &received)| RunnableThread { tid: tid(at + 1), received, has_run: true };
        received.iter().enumerate().map(thread).collect()
    }

    proptest! {
        #[test]
        fn cpu_times_of_busy_threads_differ_within_one_timeslice(
            width in 1_usize..6,
            members in 2_usize..20,
            lengths in prop::collection::vec(1_u64..100, 1..100),
        ) {
            let mut received = vec![Span::ZERO; members];
            let longest = ms(*lengths.iter().max().unwrap());
            for length in lengths {
                let front = first_threads(busy(&received), width);
                prop_assert_eq!(front.len(), width.min(members));
                for tid in front {
                    received[usize::try_from(tid.raw()).unwrap() - 1] += ms(length);
                }
                let least = *received.iter().min().unwrap();
                let most = *received.iter().max().unwrap();
                prop_assert!(most - least <= longest, "{received:?}");
            }
        }
    }

    /// Five busy threads share two CPUs for twenty periods. In each period two of the threads run
    /// for 1 ms. In any ten successive periods each thread runs for 4 ms.
    #[test]
    fn five_busy_threads_share_two_cpus_equally_in_ten_periods() {
        let mut received = [Span::ZERO; 5];
        let mut seen = vec![received];
        for _ in 0..20 {
            for tid in first_threads(busy(&received), 2) {
                received[usize::try_from(tid.raw()).unwrap() - 1] += ms(1);
            }
            seen.push(received);
        }
        for (before, after) in seen.iter().zip(&seen[10..]) {
            let more: Vec<Span> =
                after.iter().zip(before).map(|(now, then)| *now - *then).collect();
            assert_eq!(more, [ms(4); 5]);
        }
    }

    #[test]
    fn newly_woken_threads_with_little_cpu_time_are_dispatched_first() {
        let mut runnable = busy(&[ms(3), ms(1), ms(2), ms(4), ms(1)]);
        runnable[1].has_run = false;
        runnable[3].has_run = false;
        // Thread 4 has received more than the threads that are chosen for the two CPUs.
        assert_eq!(first_threads(runnable.clone(), 2), [2, 5, 3].map(tid));
        runnable[4].has_run = false;
        assert_eq!(first_threads(runnable, 2), [2, 5, 3, 1].map(tid));
        let mut many = busy(&[Span::ZERO; 20]);
        many.iter_mut().for_each(|thread| thread.has_run = false);
        assert_eq!(first_threads(many, 2).len(), MOST_WOKEN);
        assert!(first_threads(busy(&[ms(1)]), 2).is_empty());
    }

    #[test]
    fn running_thread_is_replaced_when_blocked_or_too_far_ahead() {
        let ahead = [tid(1), tid(2)];
        let next = |received: &[Span]| next_threads(busy(received), 2, (&ahead, ms(10)));
        assert_eq!(next(&[ms(9), ms(8), ms(0)]), [2, 1].map(tid));
        assert_eq!(next(&[ms(11), ms(8), ms(0)]), [2, 3].map(tid));
        let mut others = busy(&[ms(9), ms(8), ms(5), ms(6)]);
        others.remove(0);
        assert_eq!(next_threads(others, 2, (&ahead, ms(10))), [2, 3].map(tid));
    }
}
