//! Overhead takes CPU time: the running vCPU pays it, or the vCPU that runs next. Every expected
//! number is worked out by hand.

use slackline_metrics::{Measure, Meter, Summary};
use slackline_scenario::Scenario;
use slackline_sim::SimResults;
use slackline_trace::Record;
use slackline_units::Time;

fn scenario(length: &str, policy: &str, rest: &str) -> Scenario {
    let text = format!("title = 't'\nlength = '{length}'\npolicy = {{ {policy} }}\n{rest}");
    Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", error.line))
}

fn run(scenario: &Scenario) -> (SimResults, Summary, Vec<Record>) {
    let records: Vec<Record> = Vec::new();
    let mut sink = (Meter::new(&slackline_sim::trace_header(scenario)), records);
    let finished = slackline_sim::run(scenario, &mut sink).expect("the set is admitted");
    (finished, sink.0.view().expect("every vCPU has a name"), sink.1)
}

/// Returns the end of each program in microseconds, in the order of the domains.
fn ends(scenario: &Scenario) -> Vec<u64> {
    let mut done = run(scenario).0.done;
    done.sort_by_key(|&(_, vcpu)| vcpu.slot());
    done.into_iter().map(|(at, _)| at.since(Time::START).ns() / 1_000).collect()
}

fn two_batches(rest: &str) -> String {
    let batch = |name| {
        format!("[[domain]]\nname = '{name}'\nwork = {{ kind = 'batch', total = '40s' }}\n{rest}\n")
    };
    batch("a") + &batch("b")
}

/// Two programs of 40 s share a CPU that loses 200 us of every 10 ms to ticks. Both are done when
/// the CPU has worked for 80 s: 80 s / 0.98 = 81.632 s. The last tick before that time is number
/// 8,163, at 81.63 s.
#[test]
fn tick_at_timeslice_end_costs_cpu_time_under_credit() {
    for rules in ["", ", rules = 'xen-3.0.3'", ", rules = 'xen-3.0.4'"] {
        let host = "[host]\ntick_cost = '200us'\n";
        let policy = format!("name = 'credit'{rules}");
        let scenario = scenario("90s", &policy, &(host.to_owned() + &two_batches("")));
        assert_eq!(ends(&scenario).into_iter().max(), Some(81_632_600), "{rules}");
    }
}

/// The ticks of one CPU fall on the ends of its timeslices, the ticks of the other CPU in the
/// middle of its timeslices.
#[test]
fn staggered_ticks_cost_all_busy_cpus_equal_time() {
    let host = "[host]\ncpus = 2\nticks = 'staggered'\ntick_cost = '200us'\n";
    let on = |cpu: usize| two_batches(&format!("cpus = [{cpu}]"));
    let domains = on(0) + &on(1).replace("'a'", "'c'").replace("'b'", "'d'");
    let ends = ends(&scenario("90s", "name = 'credit'", &(host.to_owned() + &domains)));
    let last = |pair: &[u64]| pair.iter().copied().max();
    // The ticks of the second CPU begin at 15 ms, so it has one tick fewer.
    assert_eq!((last(&ends[..2]), last(&ends[2..])), (Some(81_632_600), Some(81_632_400)));
}

/// Two tasks, each with 1,000 jobs and half of the CPU, reserve the whole CPU. No time is left for
/// ticks, which cost a tenth of the CPU.
#[test]
fn edf_misses_deadlines_if_tick_costs_overload_the_cpu() {
    let task = |name| {
        format!(
            "[[domain]]\nname = '{name}'\n\
             work = {{ kind = 'periodic', period = '10ms', work = '5ms' }}\n\
             share.edf = {{ slice = '5ms', period = '10ms' }}\n"
        )
    };
    let host = "[host]\ntick_cost = '1ms'\n".to_owned();
    let scenario =
        scenario("10s", "name = 'edf', reserve = '0cpu'", &(host + &task("a") + &task("b")));
    let summary = run(&scenario).1;
    let late = |of| match summary.lookup("jobs late", Some(of)) {
        Ok(Measure::Count(count)) => count,
        other => panic!("{other:?}"),
    };
    // `a` runs first in each period, so it pays the tick and works 4 ms of its 5 ms. The one
    // exception is the first period, which has no tick. `b` has the other half of each period.
    assert_eq!((late("a"), late("b")), (999, 0));
}

/// A quantum of 10 ms begins with a switch of 100 us and a tick of 200 us: 9.7 ms of work are left.
#[test]
fn tick_during_context_switch_adds_its_cost_to_switch_cost() {
    let host = "[host]\nswitch = '100us'\ntick_cost = '200us'\n".to_owned();
    let rest = host + &two_batches("").replace("40s", "9700ms");
    let ends = ends(&scenario("30s", "name = 'round-robin', quantum = '10ms'", &rest));
    // Each program has 1,000 timeslices. The very first timeslice has no tick, which is 0.2 ms
    // less. There is no switch once the other program has ended.
    assert_eq!(ends, [19_989_800, 19_999_800]);
}

/// A vCPU that wakes 50 us after a tick begins to work when the tick is over.
#[test]
fn idle_cpu_tick_delays_a_vcpu_waking_during_the_tick() {
    let done = |offset: &str| {
        let rest = format!(
            "[host]\ntick_cost = '200us'\n[[domain]]\nname = 'a'\n\
             work = {{ kind = 'periodic', period = '1h', work = '1ms', offset = '{offset}' }}\n"
        );
        let records = run(&scenario("30ms", "name = 'round-robin'", &rest)).2;
        let done = |record: &Record| match *record {
            Record::Job { done, .. } => Some(done.ns() / 1_000),
            _ => None,
        };
        records.iter().find_map(done)
    };
    assert_eq!(done("10050us"), Some(11_200));
    assert_eq!(done("10300us"), Some(11_300));
}

/// `a` migrates to CPU 1 at 10 ms, and 100 us later `b` preempts it and computes for 1 ms. The 400
/// us left of the migration are paid when `a` runs again, so `b` pays none of them.
#[test]
fn remaining_migration_cost_is_charged_to_the_preempted_vcpu() {
    let rest = "[host]\ncpus = 2\nmigrate = '500us'\n\
        [[domain]]\nname = 'a'\nwork = { kind = 'batch', total = '20ms' }\ncpus = [0]\n\
        share.sedf = { slice = '1ms', period = '100ms', extra = true }\n\
        [[domain]]\nname = 'b'\ncpus = [1]\n\
        share.sedf = { slice = '50ms', period = '100ms', extra = false }\n\
        work = { kind = 'periodic', period = '1h', work = '1ms', offset = '10100us' }\n\
        [[change]]\nat = '10ms'\ndomain = 'a'\ncpus = [1]\n";
    let scenario = scenario("50ms", "name = 'sedf'", rest);
    let (finished, _, records) = run(&scenario);
    let b = records.iter().find_map(|record| match *record {
        Record::Job { done, .. } => Some(done.ns() / 1_000),
        _ => None,
    });
    assert_eq!(b, Some(11_100));
    assert_eq!(finished.done[0].0.ns() / 1_000, 21_500);
}
