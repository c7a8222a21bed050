//! Tests of process trees that use several CPUs simultaneously, without a kernel.

use slackline_host::policy::{Topology, Values, find};
use slackline_live::fed::FedHost;
use slackline_live::watch::ThreadEventKind;
use slackline_units::Span;

use crate::fed::{ASLEEP, CPUS, share, us, vcpu};

/// Numbers of the threads that are always runnable. Thread 1 of the tree is blocked.
const BUSY: std::ops::RangeInclusive<i32> = 2..=6;

/// Returns a host that schedules the first of two CPUs. A process tree with a hard limit uses both
/// CPUs.
fn host_with_wide_tree() -> FedHost {
    let edf = find("edf").unwrap();
    let values = Values::defaults(edf.policy_fields).unwrap();
    let mut host = FedHost::with_unmanaged(edf, &values, &Topology::flat(1), 1).unwrap();
    let both = CPUS.into_iter().collect();
    host.join_wide_tree((vcpu(0), &[1, 2, 3, 4, 5, 6]), &share("2ms", "10ms"), both).unwrap();
    BUSY.for_each(|thread| host.note_thread(CPUS[0], us(1), thread, ThreadEventKind::Woke));
    host
}

/// Runs the tree for one period as the kernel would. Thawing wakes all threads of the tree. Each
/// runs for a moment before the tree is frozen again. Returns the two busy threads that receive the
/// timeslice.
fn run_period(host: &FedHost, period: u64) -> [i32; 2] {
    let at = |offset: u64| us(10_000 * period + offset);
    let note = |cpu: usize, offset: u64, thread: i32, what: ThreadEventKind| {
        host.note_thread(CPUS[cpu], at(offset), thread, what);
    };
    host.at(at(2));
    host.reschedule(CPUS[0]).unwrap();
    let mut queue = host.front();
    if period > 2 {
        let busy = queue.iter().filter(|thread| BUSY.contains(*thread)).count();
        assert_eq!(busy, CPUS.len(), "period {period}: {queue:?}");
    }
    queue.extend((1..=6).filter(|thread| !host.front().contains(thread)));
    if period > 0 {
        (1..=6).for_each(|thread| note(0, 3, thread, ThreadEventKind::Woke));
    }
    if let Some(place) = queue[..2].iter().position(|thread| *thread == 1) {
        queue.remove(place);
        note(0, 4, 1, ThreadEventKind::SwitchedIn);
        note(0, 5, 1, ASLEEP);
    }
    let runs = [queue[0], queue[1]];
    (0..2).for_each(|cpu| note(cpu, 6, runs[cpu], ThreadEventKind::SwitchedIn));
    host.count(vcpu(0), Span::from_us(2000));
    host.at(at(2005));
    host.reschedule(CPUS[0]).unwrap();
    (0..2).for_each(|cpu| note(cpu, 2006, runs[cpu], ASLEEP));
    for (place, thread) in (1..=6).filter(|thread| !runs.contains(thread)).enumerate() {
        note(place % 2, 2007, thread, ThreadEventKind::SwitchedIn);
        note(place % 2, 2008, thread, ASLEEP);
    }
    host.at(at(3000));
    host.reschedule(CPUS[0]).unwrap();
    runs
}

/// Only CPU 0 has a dispatcher. When the threads of the next timeslice are chosen, CPU time on CPU
/// 1 is taken into account too.
#[test]
fn busy_threads_on_two_cpus_receive_similar_numbers_of_timeslices() {
    let host = host_with_wide_tree();
    let runs: Vec<[i32; 2]> = (0..40).map(|period| run_period(&host, period)).collect();
    for ten in runs.windows(10) {
        for thread in BUSY {
            let slices = ten.iter().flatten().filter(|runs| **runs == thread).count();
            assert!((3..=5).contains(&slices), "thread {thread} received {slices} of 20: {ten:?}");
        }
    }
}
