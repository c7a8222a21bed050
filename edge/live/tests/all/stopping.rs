//! Tests of stopped process trees whose threads still run in the kernel. The tests supply the
//! events.

use slackline_host::policy::{RawValue, Topology, Values, find};
use slackline_live::fed::{FedHost, OrderedClass};
use slackline_live::watch::ThreadEventKind::{SwitchedIn, SwitchedOut, Woke};
use slackline_trace::Record;
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

const CPU: CpuId = CpuId::new(0);
const THREAD: i32 = 100;

fn tree() -> VcpuId {
    VcpuId::new(0, DomId::new(0), 0)
}

fn us(us: u64) -> Time {
    Time::START + Span::from_us(us)
}

/// Reschedules the CPU at `now`. Returns the class that the host then sets for the tree, or `None`
/// if it sets none.
fn order_at(host: &FedHost, now: Time) -> Option<OrderedClass> {
    host.at(now);
    host.reschedule(CPU).unwrap();
    host.told().into_iter().rfind(|&(told, _)| told == tree()).map(|(_, told)| told)
}

/// Returns a host that has just stopped a process tree at 2011 us. The tree has a reservation of
/// 2 ms in 10 ms.
fn stopped_tree() -> FedHost {
    let edf = find("edf").unwrap();
    let values = Values::defaults(edf.policy_fields).unwrap();
    let mut host = FedHost::new(edf, &values, &Topology::flat(1)).unwrap();
    let text = RawValue::Text;
    let given = [("slice", text("2ms")), ("period", text("10ms")), ("exact", RawValue::Flag(true))];
    let share = Values::read(edf.share_fields, given.into_iter()).unwrap();
    host.join_tree((tree(), &[THREAD]), &share, true).unwrap();
    host.note_thread(CPU, us(1), THREAD, Woke);
    assert_eq!(order_at(&host, us(2)), Some(OrderedClass::InLine));
    host.note_thread(CPU, us(10), THREAD, SwitchedIn);
    host.note_thread(CPU, us(2010), THREAD, SwitchedOut { ready: true });
    host.count(tree(), Span::from_us(2000));
    assert_eq!(order_at(&host, us(2011)), Some(OrderedClass::Held));
    host
}

#[test]
fn stop_of_escaped_vcpu_is_recorded_from_pause_to_resume() {
    let host = stopped_tree();
    assert_eq!(order_at(&host, us(10_010)), Some(OrderedClass::InLine));
    host.at(us(11_000));
    host.stop_escaped(tree()).unwrap();
    host.at(us(19_000));
    host.resume(tree()).unwrap();
    let records = host.records();
    let stopped = records.iter().filter_map(|record| match *record {
        Record::Stopped { from, to, .. } => Some((from, to)),
        _ => None,
    });
    let expected = [(us(2011), us(10_010)), (us(11_000), us(19_000))];
    assert_eq!(stopped.collect::<Vec<_>>(), expected);
    let paused = Record::Paused { at: us(11_000), vcpu: tree() };
    assert!(records.contains(&paused), "{records:?}");
}

/// After the stop the thread still runs for 2 ms, until a dispatcher pass preempts it.
#[test]
fn process_tree_that_stops_slowly_loses_its_real_time_class() {
    let host = stopped_tree();
    host.note_thread(CPU, us(2020), THREAD, SwitchedIn);
    host.note_thread(CPU, us(4020), THREAD, SwitchedOut { ready: true });
    host.count(tree(), Span::from_us(2000));
    assert_eq!(order_at(&host, us(4021)), Some(OrderedClass::Stopping));
    // In its next slice the tree is real-time again, and the next stop is a normal stop.
    host.note_thread(CPU, us(4022), THREAD, SwitchedIn);
    host.note_thread(CPU, us(4030), THREAD, SwitchedOut { ready: false });
    assert_eq!(order_at(&host, us(10_010)), Some(OrderedClass::InLine));
    host.note_thread(CPU, us(10_020), THREAD, SwitchedIn);
    host.note_thread(CPU, us(12_020), THREAD, SwitchedOut { ready: true });
    host.count(tree(), Span::from_us(2000));
    assert_eq!(order_at(&host, us(12_021)), Some(OrderedClass::Held));
}

/// A thread that is stopped first wakes to handle the stop signal. Handling takes some
/// microseconds, or more if another thread preempts the thread. Such a delay alone does not cost
/// the tree its real-time class.
#[test]
fn process_tree_that_stops_quickly_keeps_its_real_time_class() {
    let host = stopped_tree();
    for (from, to, ready) in [(2020, 2040, true), (2050, 2060, false)] {
        host.note_thread(CPU, us(from), THREAD, SwitchedIn);
        host.note_thread(CPU, us(to), THREAD, SwitchedOut { ready });
    }
    assert_eq!(order_at(&host, us(4000)), None);
}
