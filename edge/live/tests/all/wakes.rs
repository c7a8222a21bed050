//! Tests of wake-ups that are read late, out of order, or on another CPU.

use slackline_live::fed::OrderedClass;
use slackline_live::watch::ThreadEventKind;
use slackline_trace::Record;
use slackline_units::Span;

use crate::fed::{ASLEEP, CPUS, host, last_told, pair, ran, share, us, vcpu};

/// The vCPU wakes while a pass demotes it. The kernel notifies no dispatcher of the wake-up, since
/// the vCPU is still real-time at that moment.
#[test]
fn wake_during_vcpu_demotion_causes_an_immediate_dispatcher_pass() {
    let mut host = host(1);
    host.join(vcpu(0), &share("6ms", "10ms"), true).unwrap();
    host.note(CPUS[0], us(1), vcpu(0), ThreadEventKind::Woke);
    host.at(us(2));
    host.reschedule(CPUS[0]).unwrap();
    assert_eq!(last_told(&host, vcpu(0)), Some(OrderedClass::InLine));
    host.note(CPUS[0], us(10), vcpu(0), ThreadEventKind::SwitchedIn);
    host.note(CPUS[0], us(20), vcpu(0), ASLEEP);
    host.count(vcpu(0), Span::from_us(10));
    host.note_during_orders(CPUS[0], us(31), vcpu(0), ThreadEventKind::Woke);
    host.at(us(30));
    assert_eq!(host.reschedule(CPUS[0]).unwrap(), Some(us(30)), "the next pass is due now");
    assert_eq!(last_told(&host, vcpu(0)), Some(OrderedClass::Original));
    host.at(us(32));
    assert!(host.reschedule(CPUS[0]).unwrap() > Some(us(32)));
    assert_eq!(last_told(&host, vcpu(0)), Some(OrderedClass::InLine));
}

#[test]
fn vcpu_woken_on_another_cpu_is_dispatched_on_home_cpu() {
    let host = pair();
    host.note(CPUS[0], us(40), vcpu(1), ThreadEventKind::Woke);
    host.at(us(50));
    host.reschedule(CPUS[0]).unwrap();
    assert_eq!(last_told(&host, vcpu(1)), None, "CPU 0 gives no orders for CPU 1");
    host.reschedule(CPUS[1]).unwrap();
    assert_eq!(last_told(&host, vcpu(1)), Some(OrderedClass::InLine));
    let woke = host.records().into_iter().rfind(|it| matches!(it, Record::Woke { .. }));
    assert_eq!(woke, Some(Record::Woke { at: us(40), vcpu: vcpu(1) }));
}

#[test]
fn vcpu_stays_runnable_if_wake_is_read_before_preceding_block() {
    let host = pair();
    host.note(CPUS[1], us(40), vcpu(1), ThreadEventKind::Woke);
    host.note(CPUS[1], us(41), vcpu(1), ThreadEventKind::SwitchedIn);
    host.at(us(42));
    host.reschedule(CPUS[1]).unwrap();
    let _ = (host.records(), host.told());
    // The vCPU blocks on CPU 1. A wake-up on CPU 0 ends the block, and CPU 0 is read first.
    host.note(CPUS[1], us(50), vcpu(1), ASLEEP);
    host.note(CPUS[0], us(60), vcpu(1), ThreadEventKind::Woke);
    host.count(vcpu(1), Span::from_us(9));
    host.at(us(70));
    host.reschedule(CPUS[0]).unwrap();
    host.reschedule(CPUS[1]).unwrap();
    let records = host.records();
    assert_eq!(ran(&records, vcpu(1)), Span::from_us(9), "{records:?}");
    assert!(records.contains(&Record::Blocked { at: us(50), vcpu: vcpu(1) }), "{records:?}");
    assert!(records.contains(&Record::Woke { at: us(60), vcpu: vcpu(1) }), "{records:?}");
    assert_eq!(last_told(&host, vcpu(1)), Some(OrderedClass::InLine));
}

#[test]
fn block_event_read_after_a_later_wake_is_ignored() {
    let host = pair();
    // For a vCPU without a home, the events of every CPU are processed.
    let mut host = host;
    host.join(vcpu(2), &share("1ms", "10ms"), true).unwrap();
    host.note(CPUS[0], us(60), vcpu(2), ThreadEventKind::Woke);
    host.at(us(70));
    host.reschedule(CPUS[0]).unwrap();
    host.note(CPUS[1], us(50), vcpu(2), ASLEEP);
    host.reschedule(CPUS[1]).unwrap();
    let records = host.records();
    let told = |wanted: &dyn Fn(&Record) -> bool| records.iter().filter(|it| wanted(it)).count();
    let of = vcpu(2);
    assert_eq!(told(&|it| matches!(it, Record::Woke { vcpu, .. } if *vcpu == of)), 1);
    assert_eq!(told(&|it| matches!(it, Record::Blocked { vcpu, .. } if *vcpu == of)), 0);
}
