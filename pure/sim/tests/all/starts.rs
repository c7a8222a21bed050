//! Starts of vCPUs: on a CPU that the scenario names, or blocked. Also workloads that yield, and
//! workloads that follow the host's clock. All numbers are computed by hand.

use slackline_host::policy::{ALL, SIMULATED_ONLY};
use slackline_scenario::Scenario;
use slackline_trace::{RanEnd, Record};
use slackline_units::{Span, Time};

const fn ms(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn records(policy: &str, rest: &str) -> Vec<Record> {
    let text = format!("title = 't'\nlength = '100ms'\npolicy = {{ {policy} }}\n{rest}");
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}", error.line));
    scenario.admit().expect("the trial admits the same set as the run");
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    records
}

const ROUND_ROBIN: &str = "name = 'round-robin', quantum = '10ms'";

/// Returns CPU, start, end and reason of the end of each run interval of a slot.
fn stretches(records: &[Record], slot: usize) -> Vec<(usize, Time, Time, RanEnd)> {
    let stretch = |record: &Record| match *record {
        Record::Ran { vcpu, cpu, from, to, end, .. } if vcpu.slot() == slot => {
            Some((cpu.index(), from, to, end))
        }
        _ => None,
    };
    records.iter().filter_map(stretch).collect()
}

/// Three of four vCPUs start on CPU 1. Under policies that bind vCPUs to CPUs they stay on CPU 1.
/// Under the other policies a vCPU that waits can first run on another CPU, but each vCPU runs.
#[test]
fn vcpu_stays_on_configured_start_cpu_if_policy_binds_vcpus() {
    for spec in ALL.iter().chain(SIMULATED_ONLY) {
        let share = match spec.name {
            "edf" | "atropos" => "{ slice = '2ms', period = '10ms' }",
            _ => "{}",
        };
        let name = spec.name;
        let records = records(
            &format!("name = '{name}'"),
            &format!(
                "[host]\ncpus = 2\n\
                 [[domain]]\nname = 'a'\nvcpus = 3\nwork = {{ kind = 'spin' }}\n\
                 share.{name} = {share}\nstarts_on = 1\n\
                 vcpu = [{{ number = 2, starts_on = 0 }}]\n\
                 [[domain]]\nname = 'b'\nwork = {{ kind = 'spin' }}\nshare.{name} = {share}\n\
                 starts_on = 1\n"
            ),
        );
        let binds = ["edf", "bvt", "sedf", "atropos"].contains(&name);
        for (slot, cpu) in [(0, 1), (1, 1), (2, 0), (3, 1)] {
            let ran = stretches(&records, slot);
            assert!(!ran.is_empty(), "{name}: v{slot} never ran");
            if binds {
                assert!(ran.iter().all(|&(on, ..)| on == cpu), "{name}: v{slot}: {ran:?}");
            }
        }
    }
}

/// By Xen's rules, vCPUs that wake together on an idle CPU make only that CPU reschedule. So the
/// other CPU idles for a slice of 30 ms. Then the CPUs reschedule in order of their number. If both
/// vCPUs are on CPU 0, CPU 0 takes the waiting vCPU, and CPU 1 takes the preempted vCPU. If both
/// vCPUs are on CPU 1, CPU 0 takes the waiting vCPU, and CPU 1 keeps its own vCPU.
#[test]
fn xen_credit_second_vcpu_starting_on_cpu_waits_one_timeslice() {
    let (first, second) = ((ms(0), ms(10)), (ms(30), ms(40)));
    for (starts_on, cpus) in
        [("", [0, 1]), ("starts_on = 0\n", [0, 0]), ("starts_on = 1\n", [1, 0])]
    {
        let records = records(
            "name = 'credit', rules = 'xen-2006-10-30'",
            &format!(
                "[host]\ncpus = 2\n\
                 [[domain]]\nname = 'a'\nvcpus = 2\nwork = {{ kind = 'spin' }}\n{starts_on}"
            ),
        );
        let began = [0, 1].map(|slot| stretches(&records, slot)[0]);
        let second = if starts_on.is_empty() { first } else { second };
        for ((cpu, from, to, _), (on, when)) in
            began.into_iter().zip(cpus.into_iter().zip([first, second]))
        {
            assert_eq!((cpu, (from, to)), (on, when), "{starts_on}");
        }
    }
}

/// A vCPU that joins blocked has its reservation immediately, and wakes at its configured time.
#[test]
fn vcpu_that_joins_blocked_wakes_at_its_configured_time() {
    let records = records(
        ROUND_ROBIN,
        "[[domain]]\nname = 'a'\nvcpus = 2\nwork = { kind = 'spin' }\njoins = '5ms'\n\
         wakes = '20ms'\nvcpu = [{ number = 1, wakes = '7ms' }]\n\
         [[domain]]\nname = 'b'\nwakes = '50ms'\n\
         work = { kind = 'periodic', period = '20ms', work = '1ms', offset = '5ms' }\n",
    );
    let joined = records.iter().filter_map(|record| match *record {
        Record::Joined { at, vcpu } => Some((vcpu.slot(), at)),
        _ => None,
    });
    assert_eq!(joined.collect::<Vec<_>>(), [(2, ms(0)), (0, ms(5)), (1, ms(5))]);
    let woke = records.iter().filter_map(|record| match *record {
        Record::Woke { at, vcpu } => Some((vcpu.slot(), at)),
        _ => None,
    });
    // The releases of a vCPU's jobs are counted from the start of its work.
    assert_eq!(
        woke.collect::<Vec<_>>(),
        [(1, ms(7)), (0, ms(20)), (2, ms(55)), (2, ms(75)), (2, ms(95))]
    );
}

/// Two vCPUs yield their timeslice of 10 ms after 2 ms and 3 ms. When the second vCPU is alone, it
/// continues immediately after a yield.
#[test]
fn vcpu_that_yields_passes_the_cpu_to_a_waiting_vcpu() {
    let records = records(
        ROUND_ROBIN,
        "[[domain]]\nname = 'a'\nwork = { kind = 'yield', compute = '2ms' }\nleaves = '30ms'\n\
         [[domain]]\nname = 'b'\nwork = { kind = 'yield', compute = '3ms' }\n",
    );
    let (a, b) = (stretches(&records, 0), stretches(&records, 1));
    let turn = |from, to| (0, ms(from), ms(to), RanEnd::Yielded);
    assert_eq!(a[..3], [turn(0, 2), turn(5, 7), turn(10, 12)]);
    assert_eq!(b[..3], [turn(2, 5), turn(7, 10), turn(12, 15)]);
    assert_eq!(b[6..9], [turn(30, 33), turn(33, 36), turn(36, 39)][..]);
}

/// Bursts begin 1 ms after each multiple of 10 ms. A burst that lasts until the next of these times
/// or longer skips the burst that is due then.
#[test]
fn burst_lasting_until_next_start_time_skips_burst_due_then() {
    for (compute, starts) in
        [("4ms", [1, 11, 21, 31]), ("10ms", [1, 21, 41, 61]), ("12ms", [1, 21, 41, 61])]
    {
        let records = records(
            ROUND_ROBIN,
            &format!(
                "[[domain]]\nname = 'a'\nwork = {{ kind = 'clock', \
                 period = '10ms', compute = '{compute}', offset = '31ms' }}\n"
            ),
        );
        let begins = records.iter().filter_map(|record| match *record {
            Record::Woke { at, .. } => Some(at),
            _ => None,
        });
        assert_eq!(begins.take(4).collect::<Vec<_>>(), starts.map(ms), "{compute}");
    }
}

/// One task of a guest yields every millisecond. Another task of the same priority runs after the
/// next yield, without a wait for the end of the quantum of 100 ms.
#[test]
fn yielding_guest_task_lets_a_task_of_equal_priority_run() {
    let records = records(
        ROUND_ROBIN,
        "[[domain]]\nname = 'guest'\n\
         [[domain.task]]\nname = 'polite'\nwork = { kind = 'yield', compute = '1ms' }\n\
         [[domain.task]]\nname = 'worker'\n\
         work = { kind = 'periodic', period = '20ms', work = '5ms', offset = '4500us' }\n",
    );
    let late = records.iter().filter_map(|record| match *record {
        Record::Job { released, done, .. } => Some(done - released),
        _ => None,
    });
    assert_eq!(late.collect::<Vec<_>>(), [Span::from_us(5_500); 5]);
}

/// Returns time in ms and CPU of each tick under Credit up to 50 ms. A tick is visible because it
/// charges the running vCPU. Ticks of one instant are in order of CPUs.
fn ticks(said: &str) -> Vec<(u64, usize)> {
    let records = records(
        &format!("name = 'credit', rules = 'xen-3.0.4', slice = '1s', {said}"),
        "[host]\ncpus = 3\n[[domain]]\nname = 'a'\nvcpus = 3\nwork = { kind = 'spin' }\n",
    );
    let ends = records.iter().filter_map(|record| match *record {
        Record::Ran { cpu, to, .. } if to <= ms(50) => {
            let at = to - Time::START;
            assert!((at % Span::from_ms(1)).is_zero(), "{said}: a tick at {at}");
            Some((at / Span::from_ms(1), cpu.index()))
        }
        _ => None,
    });
    ends.collect()
}

/// As configured, the ticks of all CPUs come together, staggered from the first or the last CPU on,
/// or with an offset.
#[test]
fn cpu_ticks_occur_with_the_configured_phase_and_stagger() {
    let each = |firsts: [u64; 3]| {
        let all = (0..3).flat_map(|cpu| (0..5).map(move |n| (firsts[cpu] + 10 * n, cpu)));
        let mut all: Vec<(u64, usize)> = all.filter(|&(at, _)| at <= 50).collect();
        all.sort_unstable();
        all
    };
    for (said, firsts) in [
        ("phase = '0ms'", [10, 10, 10]),
        ("phase = '2ms'", [10, 12, 14]),
        ("phase = '2ms', order = 'down'", [14, 12, 10]),
        ("phase = '2ms', offset = '3ms'", [13, 15, 17]),
        ("phase = '2ms', order = 'down', offset = '3ms'", [17, 15, 13]),
    ] {
        assert_eq!(ticks(said), each(firsts), "{said}");
    }
}
