//! Tests of the fair division of a process tree's CPU time among its threads, without a kernel.

use slackline_live::fed::FedHost;
use slackline_live::watch::ThreadEventKind;
use slackline_units::{Span, Time};

use crate::fed::{ASLEEP, CPUS, host, share, us, vcpu};

/// Returns the time that is `offset` microseconds after the start of a period of 10 ms. `period` is
/// the number of the period.
fn at(period: u64, offset: u64) -> Time {
    us(10_000 * period + offset)
}

/// Lets both threads of a tree spin in one period until the tree is stopped. Thawing the tree wakes
/// both threads. Returns the thread that receives the slice.
fn spin(host: &FedHost, period: u64) -> i32 {
    host.at(at(period, 2));
    host.reschedule(CPUS[0]).unwrap();
    let runs = host.front()[0];
    for thread in [1, 2] {
        host.note_thread(CPUS[0], at(period, 3), thread, ThreadEventKind::Woke);
    }
    host.note_thread(CPUS[0], at(period, 5), runs, ThreadEventKind::SwitchedIn);
    host.count(vcpu(0), Span::from_us(2000));
    host.at(at(period, 2005));
    host.reschedule(CPUS[0]).unwrap();
    host.note_thread(CPUS[0], at(period, 2006), runs, ASLEEP);
    host.at(at(period, 3000));
    host.reschedule(CPUS[0]).unwrap();
    runs
}

/// One thread runs for 20 ms while the other is blocked. Then the first thread blocks, and the
/// second wakes while no thread of the tree is runnable. Afterwards both spin.
#[test]
fn thread_waking_in_idle_process_tree_gains_nothing_from_blocking() {
    let mut host = host(1);
    host.join_tree((vcpu(0), &[1, 2]), &share("2ms", "10ms"), true).unwrap();
    for period in 0..20 {
        host.note_thread(CPUS[0], at(period, 3), 1, ThreadEventKind::Woke);
        host.at(at(period, 4));
        host.reschedule(CPUS[0]).unwrap();
        host.note_thread(CPUS[0], at(period, 5), 1, ThreadEventKind::SwitchedIn);
        host.count(vcpu(0), Span::from_us(1000));
        host.note_thread(CPUS[0], at(period, 1005), 1, ASLEEP);
        host.at(at(period, 1010));
        host.reschedule(CPUS[0]).unwrap();
    }
    host.note_thread(CPUS[0], at(20, 3), 2, ThreadEventKind::Woke);
    host.at(at(20, 4));
    host.reschedule(CPUS[0]).unwrap();
    host.note_thread(CPUS[0], at(20, 5), 2, ThreadEventKind::SwitchedIn);
    host.note_thread(CPUS[0], at(20, 100), 1, ThreadEventKind::Woke);
    host.count(vcpu(0), Span::from_us(2000));
    host.at(at(20, 2005));
    host.reschedule(CPUS[0]).unwrap();
    host.note_thread(CPUS[0], at(20, 2006), 2, ASLEEP);
    host.at(at(20, 3000));
    host.reschedule(CPUS[0]).unwrap();
    // The second thread received the slice of period 20.
    let runs: Vec<i32> = (21..30).map(|period| spin(&host, period)).collect();
    assert_eq!(runs.iter().filter(|thread| **thread == 1).count(), 5, "{runs:?}");
}
