//! Order of events at one instant, on one CPU and on several CPUs, as in the original schedulers.
//! CPUs reschedule last, in order of their number, and a timeslice can have a length of zero. All
//! numbers are computed by hand.

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Span, Time};

const fn ms(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn records(length: &str, policy: &str, rest: &str) -> Vec<Record> {
    let text = format!("title = 't'\nlength = '{length}'\npolicy = {{ {policy} }}\n{rest}");
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}", error.line));
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    records
}

/// Returns slot, CPU, start and end of each run interval.
fn stretches(records: &[Record]) -> Vec<(usize, usize, Time, Time)> {
    let stretch = |record: &Record| match *record {
        Record::Ran { vcpu, cpu, from, to, .. } => Some((vcpu.slot(), cpu.index(), from, to)),
        _ => None,
    };
    records.iter().filter_map(stretch).collect()
}

/// Returns the CPU time of a vCPU between two times.
fn used(records: &[Record], slot: usize, (from, to): (Time, Time)) -> Span {
    let mine = stretches(records).into_iter().filter(|&(other, ..)| other == slot);
    mine.map(|(_, _, begin, end)| end.min(to).since(begin.max(from))).sum()
}

/// A vCPU that is preempted as its timeslice begins goes to the end of the queue. Ticks are a
/// second apart, so that the class of a vCPU stays the same between two full seconds. At 3 s both
/// hogs have used exactly the credit of their weights, and are UNDER (the class with credit left)
/// until 6 s.
///
/// From 3,005 ms on, the first sleeper wakes every 10 ms, preempts the running hog, and blocks a
/// millisecond later. Then the waiting hog begins its timeslice, and the second sleeper preempts it
/// at the same instant. So the waiting hog goes behind the hog that was preempted first, and never
/// runs. If a hog that is preempted at the start of its timeslice kept its place in the queue, the
/// two hogs would alternate.
#[test]
fn credit_vcpu_preempted_at_timeslice_start_goes_to_queue_tail() {
    let sleeper = |offset| {
        format!(
            "work = {{ kind = 'periodic', period = '10ms', work = '1ms', offset = '{offset}' }}\n"
        )
    };
    let records = records(
        "6s",
        "name = 'credit', rules = 'xen-3.0.4', tick = '1s', slice = '20ms'",
        &format!(
            "[[domain]]\nname = 'b'\nwork = {{ kind = 'spin' }}\n\
             share.credit = {{ weight = 512 }}\n\
             [[domain]]\nname = 'd'\nwork = {{ kind = 'spin' }}\n\
             share.credit = {{ weight = 256 }}\n\
             [[domain]]\nname = 'first'\n{}[[domain]]\nname = 'second'\n{}",
            sleeper("3005ms"),
            sleeper("3006ms"),
        ),
    );
    let window = (ms(3_100), ms(5_900));
    let hogs = [0, 1].map(|slot| used(&records, slot, window));
    let sleepers = [2, 3].map(|slot| used(&records, slot, window));
    assert_eq!(sleepers, [Span::from_ms(280); 2]);
    let all = Span::from_ms(2_240);
    assert!(hogs == [all, Span::ZERO] || hogs == [Span::ZERO, all], "{hogs:?}");
}

/// Timeslices end at ticks, at wakes of other vCPUs, at starts of periods and at ends of quanta of
/// slack. All these times are multiples of 500 us. So every run interval must begin and end at a
/// multiple of 500 us.
#[test]
fn timeslice_that_ends_together_with_another_event_is_not_prolonged() {
    let work = "[[domain]]\nname = 'hog'\nvcpus = 2\nwork = { kind = 'spin' }\n\
                [[domain]]\nname = 'a'\n\
                work = { kind = 'periodic', period = '10ms', work = '1ms', offset = '5ms' }\n\
                [[domain]]\nname = 'b'\n\
                work = { kind = 'periodic', period = '15ms', work = '2ms', offset = '10ms' }\n";
    for policy in [
        "name = 'credit', rules = 'xen-3.0.3'",
        "name = 'credit', rules = 'xen-2006-10-30'",
        "name = 'credit', rules = 'xen-3.0.4'",
        "name = 'credit'",
        "name = 'round-robin', quantum = '5ms'",
        "name = 'round-robin', rules = 'xen-2.0', quantum = '5ms'",
        "name = 'sedf', rules = 'xen-3.0.3'",
        "name = 'sedf'",
        "name = 'bvt'",
    ] {
        let ran = stretches(&records("2s", policy, work));
        let is_whole = |time: Time| ((time - Time::START) % Span::from_us(500)).is_zero();
        let late = ran.iter().find(|&&(.., from, to)| !is_whole(from) || !is_whole(to));
        assert!(late.is_none(), "{policy}: {late:?}");
    }
}

/// Three hogs start on CPU 0 of two CPUs. At 30 ms the timeslice on CPU 0 ends, and CPU 1 has idled
/// for a slice and looks for work. CPU 0 reschedules first and takes the second hog. CPU 1 then
/// finds the third hog in the queue of CPU 0. If CPU 1 rescheduled first, the two hogs would be
/// swapped.
#[test]
fn xen_credit_cpus_reschedule_in_cpu_order_at_one_instant() {
    for rules in ["xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"] {
        let records = records(
            "60ms",
            &format!("name = 'credit', rules = '{rules}'"),
            "[host]\ncpus = 2\n[[domain]]\nname = 'hog'\nvcpus = 3\nwork = { kind = 'spin' }\n\
             starts_on = 0\n",
        );
        let at_30 = stretches(&records).into_iter().filter(|&(.., from, _)| from == ms(30));
        let at_30: Vec<_> = at_30.map(|(slot, cpu, ..)| (slot, cpu)).collect();
        assert_eq!(at_30, [(1, 0), (2, 1)], "{rules}");
        assert_eq!(used(&records, 0, (ms(0), ms(30))), Span::from_ms(30), "{rules}");
    }
}

/// A change of affinity moves a vCPU from CPU 1 to CPU 0. CPU 0 reschedules first, while the vCPU
/// is still on CPU 1. The vCPU has the earlier deadline, so it continues on CPU 0 at that instant.
#[test]
fn vcpu_moved_to_lower_numbered_cpu_continues_without_delay() {
    let records = records(
        "20ms",
        "name = 'edf'",
        "[host]\ncpus = 2\n\
         [[domain]]\nname = 'moved'\nwork = { kind = 'spin' }\ncpus = [1]\n\
         share.edf = { slice = '5ms', period = '10ms' }\n\
         [[domain]]\nname = 'other'\nwork = { kind = 'spin' }\ncpus = [0]\n\
         share.edf = { slice = '20ms', period = '100ms' }\n\
         [[change]]\nat = '1ms'\ndomain = 'moved'\ncpus = [0]\n",
    );
    let ran = stretches(&records);
    let moved = ran.iter().find(|&&(slot, cpu, ..)| (slot, cpu) == (0, 0));
    assert_eq!(moved.map(|&(_, _, from, _)| from), Some(ms(1)), "{ran:?}");
}

/// Returns the time of each block of a vCPU.
fn blocked(records: &[Record], slot: usize) -> Vec<Time> {
    let block = |record: &Record| match *record {
        Record::Blocked { at, vcpu } if vcpu.slot() == slot => Some(at),
        _ => None,
    };
    records.iter().filter_map(block).collect()
}

/// `until` and `spin` alternate in timeslices of 10 ms. With the end time 25 ms, `until` blocks at
/// 25 ms in its second timeslice. An end time of 15 ms falls in the timeslice of `spin`, so `until`
/// blocks at 20 ms, when it runs again. An end time of 2 h lies after the run.
#[test]
fn work_with_end_time_ends_regardless_of_cpu_time_received() {
    let until = |instant: &str| {
        let records = records(
            "60ms",
            "name = 'round-robin', quantum = '10ms'",
            &format!(
                "[[domain]]\nname = 'until'\nwork = {{ kind = 'batch', until = '{instant}' }}\n\
                 [[domain]]\nname = 'spin'\nwork = {{ kind = 'spin' }}\n"
            ),
        );
        (blocked(&records, 0), used(&records, 0, (ms(0), ms(60))))
    };
    assert_eq!(until("25ms"), (vec![ms(25)], Span::from_ms(15)));
    assert_eq!(until("15ms"), (vec![ms(20)], Span::from_ms(10)));
    assert_eq!(until("2h"), (vec![], Span::from_ms(30)));
}

/// Bursts of computing from 2 to 6 ms of each 10 ms end at the same times on a thread at half
/// speed.
#[test]
fn burst_with_end_time_ends_on_time_at_any_speed() {
    for smt in ["100%", "50%"] {
        let records = records(
            "40ms",
            "name = 'round-robin', quantum = '1s'",
            &format!(
                "[host]\ncpus = 2\nthreads_per_core = 2\nsmt = '{smt}'\n\
                 [[domain]]\nname = 'burst'\ncpus = [0]\n\
                 work = {{ kind = 'clock', period = '10ms', offset = '2ms', until = '6ms' }}\n\
                 [[domain]]\nname = 'spin'\ncpus = [1]\nwork = {{ kind = 'spin' }}\n"
            ),
        );
        assert_eq!(blocked(&records, 0), [ms(6), ms(16), ms(26), ms(36)], "{smt}");
        assert_eq!(used(&records, 0, (ms(0), ms(40))), Span::from_ms(16), "{smt}");
    }
}

/// A vCPU computes until a fixed time, which passes while it is paused. It blocks when it is
/// resumed.
#[test]
fn vcpu_paused_beyond_work_end_time_blocks_when_resumed() {
    let records = records(
        "40ms",
        "name = 'round-robin', quantum = '1s'",
        "[[domain]]\nname = 'a'\nwork = { kind = 'batch', until = '15ms' }\n\
         [[change]]\nat = '10ms'\ndomain = 'a'\npaused = true\n\
         [[change]]\nat = '20ms'\ndomain = 'a'\npaused = false\n\
         [[domain]]\nname = 'b'\ncpus = [0]\nwork = { kind = 'batch', until = '30ms' }\n\
         [[change]]\nat = '18ms'\ndomain = 'b'\npaused = true\n\
         [[change]]\nat = '22ms'\ndomain = 'b'\npaused = false\n",
    );
    assert_eq!(used(&records, 0, (ms(0), ms(40))), Span::from_ms(10));
    assert_eq!(blocked(&records, 1), [ms(30)]);
    assert_eq!(used(&records, 1, (ms(0), ms(40))), Span::from_ms(8 + 8));
}
