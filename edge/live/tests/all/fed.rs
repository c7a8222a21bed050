//! Tests of the live host's reactions to events. The tests use no kernel and no threads: they
//! supply the events and the time themselves.

use slackline_host::policy::{RawValue, Spec, Topology, Values, find};
use slackline_live::fed::{FedHost, OrderedClass};
use slackline_live::watch::ThreadEventKind;
use slackline_trace::{Entry, Exchange, Fact, Record};
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

pub(crate) const ASLEEP: ThreadEventKind = ThreadEventKind::SwitchedOut { ready: false };
const PREEMPTED: ThreadEventKind = ThreadEventKind::SwitchedOut { ready: true };

fn edf() -> &'static Spec {
    find("edf").unwrap()
}

pub(crate) fn host(cpus: usize) -> FedHost {
    host_of(&Topology::flat(cpus))
}

fn host_of(topology: &Topology) -> FedHost {
    let values = Values::defaults(edf().policy_fields).unwrap();
    FedHost::new(edf(), &values, topology).unwrap()
}

pub(crate) fn share(slice: &str, period: &str) -> Values {
    let given = [
        ("slice", RawValue::Text(slice)),
        ("period", RawValue::Text(period)),
        ("exact", RawValue::Flag(true)),
    ];
    Values::read(edf().share_fields, given.into_iter()).unwrap()
}

pub(crate) fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

fn ms(ms: u64) -> Time {
    Time::START + Span::from_ms(ms)
}

pub(crate) fn us(us: u64) -> Time {
    Time::START + Span::from_us(us)
}

pub(crate) const CPUS: [CpuId; 2] = [CpuId::new(0), CpuId::new(1)];

/// Returns the latest class that the host has set for a vCPU since the last call of
/// [`FedHost::told`]. `None` if it has set none.
pub(crate) fn last_told(host: &FedHost, of: VcpuId) -> Option<OrderedClass> {
    host.told().into_iter().rfind(|&(told, _)| told == of).map(|(_, told)| told)
}

pub(crate) fn ran(records: &[Record], of: VcpuId) -> Span {
    let ran = records.iter().map(|record| match *record {
        Record::Ran { vcpu, used, .. } if vcpu == of => used,
        _ => Span::ZERO,
    });
    ran.sum()
}

/// Returns a host with two vCPUs that are pinned to different CPUs. The second vCPU has already
/// been chosen on CPU 1, and is blocked now.
pub(crate) fn pair() -> FedHost {
    let mut host = host(2);
    for slot in 0..2 {
        host.join(vcpu(slot), &share("6ms", "10ms"), true).unwrap();
    }
    host.note(CPUS[0], us(1), vcpu(0), ThreadEventKind::Woke);
    host.note(CPUS[1], us(1), vcpu(1), ThreadEventKind::Woke);
    host.at(us(2));
    for cpu in CPUS {
        host.reschedule(cpu).unwrap();
    }
    assert_eq!(last_told(&host, vcpu(1)), Some(OrderedClass::InLine));
    host.note(CPUS[1], us(10), vcpu(1), ThreadEventKind::SwitchedIn);
    host.note(CPUS[1], us(20), vcpu(1), ASLEEP);
    host.count(vcpu(1), Span::from_us(10));
    host.at(us(30));
    host.reschedule(CPUS[1]).unwrap();
    assert_eq!(last_told(&host, vcpu(1)), Some(OrderedClass::Original));
    host
}

#[test]
fn cpu_time_counted_by_kernel_is_recorded_in_run_interval() {
    let host = pair();
    let records = host.records();
    let stretch = records.iter().find_map(|record| match *record {
        Record::Ran { vcpu: of, cpu, from, to, used, .. } if of == vcpu(1) => {
            Some((cpu, from, to, used))
        }
        _ => None,
    });
    assert_eq!(stretch, Some((CPUS[1], us(10), us(20), Span::from_us(10))));
}

/// One vCPU has two run intervals between two readings of the kernel's count of its CPU time.
#[test]
fn reading_of_cpu_time_is_divided_between_two_run_intervals() {
    let host = pair();
    host.note(CPUS[1], us(40), vcpu(1), ThreadEventKind::Woke);
    host.at(us(50));
    host.reschedule(CPUS[1]).unwrap();
    let _ = host.records();
    for (from, to, why) in [(1000, 1010, PREEMPTED), (3000, 5000, ASLEEP)] {
        host.note(CPUS[1], us(from), vcpu(1), ThreadEventKind::SwitchedIn);
        host.note(CPUS[1], us(to), vcpu(1), why);
    }
    // The kernel also charges the vCPU for the switches to it, 3 us in all.
    host.count(vcpu(1), Span::from_us(2013));
    host.at(us(5010));
    host.reschedule(CPUS[1]).unwrap();
    let stretches = host.records().into_iter().filter_map(|record| match record {
        Record::Ran { from, to, used, .. } => Some((from, to, used)),
        _ => None,
    });
    let expected = [(997, 1010, 13), (3000, 5000, 2000)];
    let expected = expected.map(|(from, to, used)| (us(from), us(to), Span::from_us(used)));
    assert_eq!(stretches.collect::<Vec<_>>(), expected);
}

#[test]
fn cpu_time_is_charged_only_once_after_lost_switch_events() {
    let host = pair();
    host.note(CPUS[1], ms(1), vcpu(1), ThreadEventKind::Woke);
    host.note(CPUS[1], ms(1), vcpu(1), ThreadEventKind::SwitchedIn);
    host.at(us(1001));
    host.reschedule(CPUS[1]).unwrap();
    // The vCPU leaves the CPU and returns to it, and those events are lost.
    host.note(CPUS[1], us(1500), vcpu(1), ASLEEP);
    host.note(CPUS[1], us(2500), vcpu(1), ThreadEventKind::SwitchedIn);
    host.lose(CPUS[1]);
    host.count(vcpu(1), Span::from_us(500));
    host.at(us(2600));
    host.reschedule(CPUS[1]).unwrap();
    host.note(CPUS[1], us(3000), vcpu(1), ASLEEP);
    host.note(CPUS[1], us(3100), vcpu(1), ThreadEventKind::Woke);
    host.note(CPUS[1], us(3100), vcpu(1), ThreadEventKind::SwitchedIn);
    host.note(CPUS[1], us(3400), vcpu(1), ASLEEP);
    host.count(vcpu(1), Span::from_us(800));
    host.at(us(3500));
    host.reschedule(CPUS[1]).unwrap();
    let records = host.records();
    // At least the known run intervals and at most the kernel's count are charged.
    let ran = ran(&records, vcpu(1));
    assert!(ran >= Span::from_us(310) && ran <= Span::from_us(1310), "{ran}: {records:?}");
}

#[test]
fn events_of_threads_that_are_not_scheduled_are_ignored() {
    let host = pair();
    let _ = host.records();
    host.note_thread(CPUS[1], us(40), 12_345, ThreadEventKind::Woke);
    host.note_thread(CPUS[1], us(41), 12_345, ThreadEventKind::SwitchedIn);
    host.note_thread(CPUS[1], us(90), 12_345, PREEMPTED);
    let before = host.orders();
    host.at(us(100));
    host.reschedule(CPUS[1]).unwrap();
    assert_eq!(host.records(), []);
    assert_eq!(host.orders(), before);
}

#[test]
fn vcpu_with_failed_priority_change_is_skipped_and_later_retried() {
    let mut host = host(1);
    for slot in 0..2 {
        host.join(vcpu(slot), &share("2ms", "10ms"), true).unwrap();
    }
    host.refuse(vcpu(0), true);
    for slot in 0..2 {
        host.note(CPUS[0], us(1), vcpu(slot), ThreadEventKind::Woke);
    }
    host.at(us(2));
    host.reschedule(CPUS[0]).unwrap();
    let records = host.records();
    let refused = Record::Refused { at: us(2), vcpu: vcpu(0), cpu: CPUS[0] };
    assert!(records.contains(&refused), "{records:?}");
    let told = host.told();
    assert_eq!(told.last(), Some(&(vcpu(1), OrderedClass::InLine)), "{told:?}");
    host.refuse(vcpu(0), false);
    host.at(ms(50));
    host.reschedule(CPUS[0]).unwrap();
    assert!(!host.told().contains(&(vcpu(0), OrderedClass::InLine)), "not within 100 ms");
    host.at(ms(101));
    host.reschedule(CPUS[0]).unwrap();
    assert!(host.told().contains(&(vcpu(0), OrderedClass::InLine)));
}

/// The vCPU has no threads in this test, so no thread can stay real-time after the failure.
#[test]
fn vcpu_that_cannot_be_restored_does_not_end_the_run() {
    let mut host = host(1);
    for slot in 0..2 {
        host.join(vcpu(slot), &share("2ms", "10ms"), true).unwrap();
    }
    host.note(CPUS[0], us(1), vcpu(0), ThreadEventKind::Woke);
    host.at(us(2));
    host.reschedule(CPUS[0]).unwrap();
    host.refuse_restoring(vcpu(0));
    host.note(CPUS[0], us(10), vcpu(0), ThreadEventKind::SwitchedIn);
    host.note(CPUS[0], us(20), vcpu(0), ASLEEP);
    host.at(us(30));
    host.reschedule(CPUS[0]).unwrap();
    let told = host.told();
    let restored = told.iter().filter(|told| **told == (vcpu(0), OrderedClass::Original)).count();
    assert!((1..=2).contains(&restored), "{told:?}");
    host.note(CPUS[0], us(40), vcpu(1), ThreadEventKind::Woke);
    host.at(us(50));
    host.reschedule(CPUS[0]).unwrap();
    assert_eq!(last_told(&host, vcpu(1)), Some(OrderedClass::InLine));
}

/// The kernel refuses one change of priority, and would refuse the same change again.
#[test]
fn priority_change_refused_by_kernel_is_not_repeated_immediately() {
    let mut host = host(1);
    for slot in 0..3 {
        host.join(vcpu(slot), &share("2ms", "10ms"), true).unwrap();
        host.note(CPUS[0], us(1), vcpu(slot), ThreadEventKind::Woke);
    }
    host.refuse(vcpu(1), true);
    host.at(us(2));
    host.reschedule(CPUS[0]).unwrap();
    let told = host.told();
    let times = told.iter().filter(|told| **told == (vcpu(1), OrderedClass::InLine)).count();
    assert_eq!(times, 1, "{told:?}");
    for slot in [0, 2] {
        assert_eq!(told.iter().rfind(|told| told.0 == vcpu(slot)).unwrap().1, OrderedClass::InLine);
    }
    host.refuse(vcpu(1), false);
    host.at(ms(101));
    host.reschedule(CPUS[0]).unwrap();
    assert!(host.told().contains(&(vcpu(1), OrderedClass::InLine)));
}

#[test]
fn scheduling_calls_per_switch_do_not_grow_with_vcpu_count() {
    let told = [10, 1000].map(|count: u32| {
        let mut host = host(1);
        for slot in 0..count {
            host.join(vcpu(slot), &share("500us", "1s"), true).unwrap();
            host.note(CPUS[0], us(1), vcpu(slot), ThreadEventKind::Woke);
        }
        host.at(us(2));
        host.reschedule(CPUS[0]).unwrap();
        let (mut now, mut told) = (us(2), 0);
        for slot in 0..5 {
            host.note(CPUS[0], now, vcpu(slot), ThreadEventKind::SwitchedIn);
            now += Span::from_us(500);
            host.note(CPUS[0], now, vcpu(slot), PREEMPTED);
            host.count(vcpu(slot), Span::from_us(500));
            host.at(now);
            let before = host.orders();
            host.reschedule(CPUS[0]).unwrap();
            told += host.orders() - before;
        }
        told
    });
    assert_eq!(told[0], told[1]);
    assert!(told[1] <= 5 * 6, "{told:?}");
}

/// In one pass three vCPUs wake, and one vCPU wakes and blocks again. All these events together
/// cause one scheduling pass of the CPU.
#[test]
fn dispatcher_pass_with_several_events_reschedules_its_cpu_once() {
    let mut host = host(1);
    for slot in 0..4 {
        host.join(vcpu(slot), &share("1ms", "10ms"), true).unwrap();
    }
    host.keep_exchanges();
    for slot in 0..4 {
        host.note(CPUS[0], us(1 + u64::from(slot)), vcpu(slot), ThreadEventKind::Woke);
    }
    host.note(CPUS[0], us(9), vcpu(3), ASLEEP);
    host.at(us(10));
    host.reschedule(CPUS[0]).unwrap();
    let (mut facts, mut settled) = (0, 0);
    for entry in host.entries() {
        if let Entry::Exchange(Exchange::Reported { fact, .. }) = entry {
            facts += 1;
            settled += u32::from(matches!(fact, Fact::Settled));
        }
    }
    assert_eq!((facts, settled), (6, 1), "five events and one end of the pass");
}

/// Slack is divided by weight. If both vCPUs were ordinary threads, the kernel would give them
/// equal parts of the slack. So the vCPU that is not chosen gets the lowest priority, below all
/// ordinary threads.
#[test]
fn only_the_vcpu_picked_for_slack_competes_with_ordinary_threads() {
    let spec = find("sedf").unwrap();
    let values = Values::defaults(spec.policy_fields).unwrap();
    let mut host = FedHost::new(spec, &values, &Topology::flat(1)).unwrap();
    for (slot, weight) in [(0, "3"), (1, "1")] {
        let given = [("extra-weight", RawValue::Number(weight))];
        let share = Values::read(spec.share_fields, given.into_iter()).unwrap();
        host.join(vcpu(slot), &share, false).unwrap();
        host.note(CPUS[0], us(1), vcpu(slot), ThreadEventKind::Woke);
    }
    let (mut places, mut turns) = ([OrderedClass::Behind; 2], [0_u32; 2]);
    let mut at = us(2);
    for _ in 0..40 {
        host.at(at);
        let next = host.reschedule(CPUS[0]).unwrap().expect("a timeslice of slack has an end");
        host.told().into_iter().for_each(|(of, told)| places[of.slot()] = told);
        // A vCPU that has not been chosen yet also has the lowest priority.
        let ordinary: Vec<usize> =
            (0..2).filter(|&it| places[it] == OrderedClass::Original).collect();
        let [running] = ordinary[..] else { panic!("{places:?}") };
        turns[running] += 1;
        let of = vcpu(u32::try_from(running).unwrap());
        host.note(CPUS[0], at, of, ThreadEventKind::SwitchedIn);
        host.note(CPUS[0], next, of, PREEMPTED);
        host.count(of, next - at);
        at = next;
    }
    let [heavy, light] = turns;
    assert!(light >= 9 && heavy.abs_diff(3 * light) <= 4, "{turns:?}");
}

/// In each millisecond, 0.95 ms can be reserved, and two vCPUs reserve 0.45 ms each. That leaves 50
/// us for the dispatch overhead: two passes per period and vCPU. Four passes of 12 us fit into 50
/// us, but four passes of 13 us do not.
#[test]
fn reservation_that_leaves_no_time_for_dispatch_overhead_is_refused() {
    let second = |look| {
        let mut host = host_of(&Topology::flat(1).with_dispatch(Span::from_us(look)));
        host.join(vcpu(0), &share("450us", "1ms"), true).unwrap();
        host.join(vcpu(1), &share("450us", "1ms"), true).map_err(|error| error.to_string())
    };
    assert_eq!(second(12), Ok(()));
    let says = "450us every 1ms (0.45cpu) plus 0.026cpu for 2000 dispatches a second does not fit: \
                0.476cpu of at most 0.95cpu is already reserved on the CPU";
    assert_eq!(second(13).unwrap_err(), says);
}

/// Returns a host with a stopped process tree: a shell (thread 100) that waits for its child
/// (thread 200), which has used up the slice.
fn stopped_tree() -> FedHost {
    let mut host = host(1);
    host.join_tree((vcpu(0), &[100]), &share("2ms", "10ms"), true).unwrap();
    let child = ThreadEventKind::Forked { child: slackline_linux::sys::Tid::new(200).unwrap() };
    host.note_thread(CPUS[0], us(1), 100, ThreadEventKind::Woke);
    host.at(us(2));
    host.reschedule(CPUS[0]).unwrap();
    for (at, thread, what) in [
        (us(10), 100, ThreadEventKind::SwitchedIn),
        (us(20), 100, child),
        (us(30), 100, ASLEEP),
        (us(30), 200, ThreadEventKind::SwitchedIn),
    ] {
        host.note_thread(CPUS[0], at, thread, what);
    }
    host.count(vcpu(0), Span::from_us(2000));
    host.at(us(2011));
    host.reschedule(CPUS[0]).unwrap();
    assert_eq!(last_told(&host, vcpu(0)), Some(OrderedClass::Held));
    host
}

#[test]
fn throttled_process_tree_runs_in_next_period_after_thread_exit() {
    let host = stopped_tree();
    // The child was exiting when it was stopped. Its exit wakes the shell, which then stops.
    host.note_thread(CPUS[0], us(2012), 200, ThreadEventKind::Ending);
    host.note_thread(CPUS[0], us(2013), 100, ThreadEventKind::Woke);
    host.note_thread(CPUS[0], us(2014), 200, ASLEEP);
    host.note_thread(CPUS[0], us(2014), 100, ThreadEventKind::SwitchedIn);
    host.note_thread(CPUS[0], us(2015), 100, ASLEEP);
    host.at(us(3000));
    host.reschedule(CPUS[0]).unwrap();
    assert_eq!(last_told(&host, vcpu(0)), None, "a throttled tree gets no order");
    host.at(us(10_010));
    host.reschedule(CPUS[0]).unwrap();
    assert_eq!(last_told(&host, vcpu(0)), Some(OrderedClass::InLine));
    let blocked = |it: &Record| matches!(it, Record::Blocked { .. });
    let records = host.records();
    assert!(!records.iter().any(blocked), "a stopped tree does not count as blocked");
    let stopped = Record::Stopped { vcpu: vcpu(0), from: us(2011), to: us(10_010) };
    assert!(records.contains(&stopped), "{records:?}");
    // Once the tree is resumed, events show that it is blocked.
    host.note_thread(CPUS[0], us(10_020), 100, ThreadEventKind::Woke);
    host.note_thread(CPUS[0], us(10_021), 100, ThreadEventKind::SwitchedIn);
    host.note_thread(CPUS[0], us(10_030), 100, ASLEEP);
    host.at(us(10_040));
    host.reschedule(CPUS[0]).unwrap();
    assert!(host.records().iter().any(blocked));
}

#[test]
fn throttled_process_tree_is_resumed_if_all_threads_ended() {
    let host = stopped_tree();
    for thread in [200, 100] {
        host.note_thread(CPUS[0], us(2012), thread, ThreadEventKind::Ending);
        host.note_thread(CPUS[0], us(2013), thread, ASLEEP);
    }
    host.at(us(3000));
    host.reschedule(CPUS[0]).unwrap();
    assert_eq!(last_told(&host, vcpu(0)), Some(OrderedClass::Original));
}

/// Runs a process tree for nine periods as the kernel would. Thread 1 is blocked, and threads 2 to
/// 4 are always runnable. Thawing the tree wakes all four threads. Each of them runs for a moment
/// before the tree is frozen again. Returns the number of timeslices that threads 2 to 4 received.
fn timeslices_of_three() -> [u32; 3] {
    let mut host = host(1);
    host.join_tree((vcpu(0), &[1, 2, 3, 4]), &share("2ms", "10ms"), true).unwrap();
    (2..=4).for_each(|thread| host.note_thread(CPUS[0], us(1), thread, ThreadEventKind::Woke));
    let mut slices = [0; 3];
    for period in 0..9_u64 {
        let at = |offset: u64| us(10_000 * period + offset);
        host.at(at(2));
        host.reschedule(CPUS[0]).unwrap();
        let mut queue = host.front();
        queue.extend((1..=4).filter(|thread| !host.front().contains(thread)));
        if period > 0 {
            (1..=4)
                .for_each(|thread| host.note_thread(CPUS[0], at(3), thread, ThreadEventKind::Woke));
        }
        if queue[0] == 1 {
            host.note_thread(CPUS[0], at(4), queue.remove(0), ThreadEventKind::SwitchedIn);
            host.note_thread(CPUS[0], at(5), 1, ASLEEP);
        }
        let runs = queue[0];
        slices[usize::try_from(runs - 2).unwrap()] += 1;
        host.note_thread(CPUS[0], at(5), runs, ThreadEventKind::SwitchedIn);
        host.count(vcpu(0), Span::from_us(2000));
        host.at(at(2005));
        host.reschedule(CPUS[0]).unwrap();
        host.note_thread(CPUS[0], at(2006), runs, ASLEEP);
        for thread in (1..=4).filter(|thread| *thread != runs) {
            host.note_thread(CPUS[0], at(2007), thread, ThreadEventKind::SwitchedIn);
            host.note_thread(CPUS[0], at(2008), thread, ASLEEP);
        }
        host.at(at(3000));
        host.reschedule(CPUS[0]).unwrap();
    }
    slices
}

#[test]
fn busy_threads_of_a_scheduled_process_tree_receive_equal_timeslices() {
    assert_eq!(timeslices_of_three(), [3; 3]);
}

/// Thawing a tree wakes all of its threads. Four of them were blocked before and block again
/// immediately. One has really become runnable. The host learns which thread that is only when the
/// threads run.
#[test]
fn thawed_threads_that_have_not_run_yet_are_dispatched_first() {
    let mut host = host(1);
    host.join_tree((vcpu(0), &[1, 2, 3, 4, 5, 6]), &share("2ms", "10ms"), true).unwrap();
    host.note_thread(CPUS[0], us(1), 6, ThreadEventKind::Woke);
    host.at(us(2));
    host.reschedule(CPUS[0]).unwrap();
    for begin in [0, 10_000] {
        host.note_thread(CPUS[0], us(begin + 3), 6, ThreadEventKind::SwitchedIn);
        (1..=5).for_each(|thread| {
            host.note_thread(CPUS[0], us(begin + 4), thread, ThreadEventKind::Woke);
        });
        host.count(vcpu(0), Span::from_us(2000));
        host.at(us(begin + 2005));
        host.reschedule(CPUS[0]).unwrap();
        host.note_thread(CPUS[0], us(begin + 2006), 6, ASLEEP);
        host.at(us(begin + 10_003));
        host.reschedule(CPUS[0]).unwrap();
    }
    assert_eq!(host.front(), [1, 2, 3, 4, 5, 6]);
}

/// The kernel has kept a vCPU from running for a while. The vCPU catches up as a real-time thread.
/// As an ordinary thread it would have to wait for real-time threads of other programs.
#[test]
fn vcpu_catches_up_missed_budget_at_real_time_priority() {
    let mut host = host(1);
    host.join(vcpu(0), &share("3ms", "10ms"), true).unwrap();
    host.note(CPUS[0], us(1), vcpu(0), ThreadEventKind::Woke);
    host.at(us(2));
    host.reschedule(CPUS[0]).unwrap();
    // The vCPU receives nothing in the first three periods, and then its slice of the fourth.
    for at in [11, 21, 31] {
        host.at(ms(at));
        host.reschedule(CPUS[0]).unwrap();
    }
    host.note(CPUS[0], ms(31), vcpu(0), ThreadEventKind::SwitchedIn);
    host.count(vcpu(0), Span::from_ms(3));
    let _ = host.told();
    host.at(ms(34));
    host.reschedule(CPUS[0]).unwrap();
    let told = host.told();
    assert!(told.iter().all(|(_, told)| *told == OrderedClass::InLine), "{told:?}");
    host.count(vcpu(0), Span::from_ms(6));
    host.at(ms(40));
    host.reschedule(CPUS[0]).unwrap();
    assert_ne!(last_told(&host, vcpu(0)), Some(OrderedClass::First));
}

/// A hypervisor takes half of the CPU. So at least two of the four vCPUs have budget left at any
/// time. If all vCPUs with budget were always real-time, the kernel would stop all of them for 50
/// ms in every second.
#[test]
fn ordinary_threads_receive_fair_server_time_despite_50_percent_steal() {
    let mut host = host(1);
    for slot in 0..4 {
        host.join(vcpu(slot), &share("2200us", "10ms"), true).unwrap();
        host.note(CPUS[0], us(1), vcpu(slot), ThreadEventKind::Woke);
    }
    let mut places = [OrderedClass::Original; 4];
    let mut is_ordinary = Vec::new();
    for at in 1..3_000 {
        host.at(ms(at));
        host.reschedule(CPUS[0]).unwrap();
        host.told().into_iter().for_each(|(of, told)| places[of.slot()] = told);
        is_ordinary.push(!places.contains(&OrderedClass::InLine));
        let runs =
            (0..4).find(|&slot| matches!(places[slot], OrderedClass::InLine | OrderedClass::First));
        let runs = vcpu(u32::try_from(runs.expect("one vCPU is entitled")).unwrap());
        host.note(CPUS[0], ms(at), runs, ThreadEventKind::SwitchedIn);
        host.note(CPUS[0], ms(at + 1), runs, PREEMPTED);
        host.count(runs, Span::from_us(500));
    }
    let ordinary = |second: &[bool]| second.iter().filter(|ms| **ms).count();
    let least = is_ordinary.windows(1_000).map(ordinary).min();
    assert!(least >= Some(50), "{least:?} ms of a second");
}

/// Runs a vCPU with a hard limit of 8.4 s in 10 s, next to ordinary threads that never block, for
/// three periods. Returns the CPU time that the vCPU received in each period. Also returns the
/// longest CPU time that it received as an ordinary thread in one of the periods.
fn exact_in_three_long_periods() -> ([Span; 3], Span) {
    let mut host = host(1);
    host.join(vcpu(0), &share("8400ms", "10s"), true).unwrap();
    host.note(CPUS[0], us(1), vcpu(0), ThreadEventKind::Woke);
    let (mut place, mut now) = (OrderedClass::Original, us(2));
    let (mut received, mut as_ordinary) = ([Span::ZERO; 3], [Span::ZERO; 3]);
    while now < Time::START + Span::from_secs(30) {
        host.at(now);
        let next = host.reschedule(CPUS[0]).unwrap();
        host.told().into_iter().for_each(|(_, told)| place = told);
        let soon = now + Span::from_ms(1);
        let next = next.map_or(soon, |next| next.min(soon)).max(now + Span::from_us(1));
        // The vCPU runs if it is real-time or the first of the ordinary threads.
        if matches!(place, OrderedClass::InLine | OrderedClass::First) {
            host.note(CPUS[0], now, vcpu(0), ThreadEventKind::SwitchedIn);
            host.note(CPUS[0], next, vcpu(0), PREEMPTED);
            host.count(vcpu(0), next - now);
            let period = usize::try_from(now.since(Time::START).ns() / 10_000_000_000).unwrap();
            received[period] += next - now;
            if place == OrderedClass::First {
                as_ordinary[period] += next - now;
            }
        } else {
            assert_eq!(place, OrderedClass::Held, "a vCPU with a hard limit gets no slack");
        }
        now = next;
    }
    (received, as_ordinary.into_iter().max().unwrap())
}

/// The vCPU has a slice of several seconds. If it used the whole slice as a real-time thread,
/// ordinary threads would receive nothing for so long that the kernel would stop the vCPU.
#[test]
fn hard_limited_vcpu_receives_its_reservation_during_fair_server_repayment() {
    let (received, as_ordinary) = exact_in_three_long_periods();
    assert!(as_ordinary > Span::from_ms(300), "{as_ordinary}: debt is repaid");
    for received in received {
        let off =
            received.left_after(Span::from_ms(8_400)) + Span::from_ms(8_400).left_after(received);
        assert!(off <= Span::from_us(20), "{received}");
    }
}
