//! A reservation with a hard limit is received in full and never exceeded, whatever else runs on
//! its CPU. Needs root.

use std::time::{Duration, Instant};

use crate::common::{Target, begin, cpus, options, request, share};
use slackline_linux::sys::{Scheduling, SchedulingOf, set_affinity, set_scheduling};
use slackline_live::session::{Session, Who};
use slackline_units::{CpuId, CpuSet, Span};

/// Number of ordinary threads beside the process tree.
const ORDINARY: usize = 20;

/// Returns a target that spins on one CPU, in this scheduling class.
fn spinner_on(cpu: CpuId, class: Scheduling) -> Target {
    let target = Target::spinner();
    set_affinity(target.pid(), &CpuSet::one(cpu)).unwrap();
    set_scheduling(target.pid(), &SchedulingOf { class, reset_on_fork: true }).unwrap();
    target
}

/// Returns, for each of `count` seconds, the CPU time that a target received and how long the
/// second really was.
fn seconds(session: &mut Session, target: &Target, count: usize) -> Vec<(Span, Span)> {
    let mut seconds = Vec::new();
    for _ in 0..count {
        let (began, before) = (Instant::now(), target.used());
        while began.elapsed() < Duration::from_secs(1) {
            session.poll(&mut Vec::new()).unwrap();
            let _ = session.wait(&[], Span::from_ms(20));
        }
        let (used, length) = (target.used() - before, began.elapsed());
        seconds.push((used, Span::from_us(u64::try_from(length.as_micros()).unwrap())));
    }
    seconds
}

/// The kernel takes 50 ms of each second from all real-time threads and gives them to ordinary
/// threads. The process tree makes up for that within the second.
#[test]
fn exact_tree_receives_its_share_each_second_beside_a_fifo_spinner() {
    let Some(_alone) = begin() else { return };
    let cpu = cpus(1)[0];
    let mut others = Vec::new();
    for _ in 0..ORDINARY {
        others.push(spinner_on(cpu, Scheduling::Other { nice: 0 }));
    }
    let target = Target::spinner();
    let state = tempfile::tempdir().unwrap();
    let mut session = Session::open(&options(vec![cpu], state.path())).unwrap();
    let exact = share(3_000, 10_000, true);
    session.join(vec![request(Who::Tree(target.pid()), exact)]).unwrap();
    others.push(spinner_on(cpu, Scheduling::Fifo { priority: 50 }));
    seconds(&mut session, &target, 1);
    let seconds = seconds(&mut session, &target, 6);
    println!("{seconds:?}");
    session.close(&mut Vec::new()).unwrap();
    for &(used, length) in &seconds {
        // A period at either end of the second, and stops that are late.
        let (least, most) =
            (length * 3 / 10 - Span::from_ms(9), length * 3 / 10 + Span::from_ms(9));
        assert!(least <= used && used <= most, "{used} of {length}: {seconds:?}");
    }
    drop(others);
    target.is_given_back();
}
