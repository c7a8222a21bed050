//! Test that a reservation with a hard limit is delivered exactly, even if other programs compete
//! for its CPU. The test needs root.

use std::time::{Duration, Instant};

use crate::common::{Target, begin, cpus, options, request, share};
use slackline_linux::sys::{Scheduling, SchedulingOf, set_affinity, set_scheduling};
use slackline_live::session::{JoinTarget, Session};
use slackline_units::{CpuId, CpuSet, Span};

/// Number of ordinary threads that compute on the tree's CPU.
const ORDINARY: usize = 20;

/// Returns a target that computes on one CPU in the scheduling class `class`.
fn spinner_on(cpu: CpuId, class: Scheduling) -> Target {
    let target = Target::spinner();
    set_affinity(target.pid(), &CpuSet::one(cpu)).unwrap();
    set_scheduling(target.pid(), &SchedulingOf { class, reset_on_fork: true }).unwrap();
    target
}

/// Returns the CPU time that a target receives in each of `count` seconds, and the exact length of
/// each second.
fn seconds(session: &mut Session, target: &Target, count: usize) -> Vec<(Span, Span)> {
    let mut seconds = Vec::new();
    let (mut began, mut before) = used_now(target);
    for _ in 0..count {
        while began.elapsed() < Duration::from_secs(1) {
            session.poll(&mut Vec::new()).unwrap();
            let _ = session.wait(&[], Span::from_ms(20));
        }
        let (ended, used) = used_now(target);
        let length = Span::from_us(u64::try_from((ended - began).as_micros()).unwrap());
        seconds.push((used - before, length));
        (began, before) = (ended, used);
    }
    seconds
}

/// Reads the CPU time of a target together with the current time. If this thread was preempted
/// between the two readings, they belong to different times. In that case both are read again, for
/// up to a second.
fn used_now(target: &Target) -> (Instant, Span) {
    let first = Instant::now();
    loop {
        let (before, used, after) = (Instant::now(), target.used(), Instant::now());
        if after - before < Duration::from_millis(1) || first.elapsed() > Duration::from_secs(1) {
            return (after, used);
        }
    }
}

/// Runs a process tree with a hard limit of 30 %. Ordinary threads and one `SCHED_FIFO` thread
/// compete for its CPU, and none of them blocks. Returns for each of six seconds the CPU time that
/// the tree receives, and the length of the second.
fn beside_a_fifo_spinner() -> Vec<(Span, Span)> {
    let cpu = cpus(1)[0];
    let mut others = Vec::new();
    for _ in 0..ORDINARY {
        others.push(spinner_on(cpu, Scheduling::Other { nice: 0 }));
    }
    let target = Target::spinner();
    let state = tempfile::tempdir().unwrap();
    let mut session = Session::open(&options(vec![cpu], state.path())).unwrap();
    let exact = share(3_000, 10_000, true);
    session.join(vec![request(JoinTarget::Tree(target.pid()), exact)]).unwrap();
    others.push(spinner_on(cpu, Scheduling::Fifo { priority: 50 }));
    seconds(&mut session, &target, 1);
    let seconds = seconds(&mut session, &target, 6);
    session.close(&mut Vec::new()).unwrap();
    drop(others);
    target.is_given_back();
    seconds
}

/// The kernel gives 50 ms of each second to ordinary threads, during which no real-time thread
/// runs. The tree receives its missing time later in the second. A hypervisor can take the CPU, and
/// so delay a slice beyond the end of a second or make the stop of the slice late. Therefore one
/// second of each run may differ more, and the test passes if one of three runs is as expected.
#[test]
fn process_tree_receives_its_share_in_nearly_every_second() {
    let Some(_alone) = begin() else { return };
    let is_within = |off: Span, &(used, length): &(Span, Span)| {
        let even = length * 3 / 10;
        even - off <= used && used <= even + off
    };
    // The tolerance covers a period at either end of the second, and late stops.
    let is_even = |second: &&(Span, Span)| is_within(Span::from_ms(9), second);
    let mut runs = Vec::new();
    for _ in 0..3 {
        let seconds = beside_a_fifo_spinner();
        println!("{seconds:?}");
        let is_near = |second| is_within(Span::from_ms(50), second);
        if seconds.iter().filter(is_even).count() >= 5 && seconds.iter().all(is_near) {
            return;
        }
        runs.push(seconds);
    }
    panic!("CPU time and length of each second: {runs:?}");
}
