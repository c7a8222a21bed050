//! Tests with targets that get a scheduling class or priority above all vCPUs. They need root.

use std::time::Duration;

use crate::common::{Target, begin};
use crate::escapes::{Group, Open, is_real_time};
use slackline_linux::cgroup::TreePlace;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_scheduling, online_cpus, set_affinity, set_scheduling,
};
use slackline_linux::thread::ThreadRef;
use slackline_live::session::JoinTarget;
use slackline_units::Span;

fn class_of(tid: Tid) -> Scheduling {
    get_scheduling(tid).unwrap().class
}

fn set_class(tid: Tid, class: Scheduling) -> std::io::Result<()> {
    set_scheduling(tid, &SchedulingOf { class, reset_on_fork: true })
}

/// A thread takes the priority of the dispatchers. The dispatcher of its CPU cannot preempt it,
/// since both have the same priority.
#[test]
fn thread_taking_dispatcher_priority_during_slack_is_demoted() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let thread = ThreadRef::open(target.pid(), target.pid()).unwrap();
    let mut open = Open::holding(JoinTarget::Thread(thread), false);
    open.go_on(Duration::from_secs(1));
    let top = Scheduling::Fifo { priority: 99 };
    // The next slice can begin before the change is noticed, and sets the class too.
    let mut noticed = 0;
    // A fourth time within 10 s would stop the thread.
    for _ in 0..3 {
        open.until("the thread to use slack", |_| !is_real_time(target.pid()));
        let meddled = open.meddled().len();
        set_class(target.pid(), top).unwrap();
        open.go_on(Duration::from_millis(200));
        assert_ne!(class_of(target.pid()), top);
        noticed += open.meddled().len() - meddled;
    }
    assert!(noticed > 0);
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    open.until("the thread to be real-time again", |_| is_real_time(target.pid()));
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    target.is_given_back();
}

#[test]
fn cgroup_set_to_sched_deadline_by_root_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let Some(group) = Group::with(target.pid()) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let mut open = Open::holding(JoinTarget::Group(TreePlace::existing(&group.0).unwrap()), true);
    open.go_on(Duration::from_millis(300));
    let (slice, period) = (Span::from_ms(9), Span::from_ms(10));
    let class = Scheduling::Deadline { runtime: slice, deadline: period, period };
    let before = target.used();
    let mut is_set = false;
    for _ in 0..20 {
        // The class needs an affinity to all CPUs. An audit between the calls restores the CPU.
        set_affinity(target.pid(), &online_cpus().unwrap()).unwrap();
        is_set = set_class(target.pid(), class).is_ok();
        if is_set {
            break;
        }
    }
    if !is_set {
        println!("skipped: the kernel refuses a thread under SCHED_DEADLINE");
        return;
    }
    open.go_on(Duration::from_secs(3));
    let used = target.used() - before;
    assert!(used <= Span::from_secs(3) / 5 + Span::from_ms(300), "{used}");
    assert!(!matches!(class_of(target.pid()), Scheduling::Deadline { .. }));
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    // The target is still in the cgroup of the test.
    assert_eq!(class_of(target.pid()), Scheduling::Other { nice: 0 });
    drop(target);
    drop(group);
}
