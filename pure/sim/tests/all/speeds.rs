//! CPUs that slow each other down, so that a vCPU does less work in the same CPU time. Expected
//! numbers are computed by hand, or by a second computation from the run intervals.

use proptest::prelude::*;
use slackline_metrics::{Measure, Meter};
use slackline_scenario::{Draw, Program, Scenario, Step};
use slackline_trace::{Header, Knowledge, Record};
use slackline_units::{Span, Time};

fn scenario(length: &str, host: &str, domains: &str) -> Scenario {
    let policy = "policy = { name = 'round-robin', quantum = '10ms' }";
    let text = format!(
        "title = 't'\nlength = '{length}'\n{policy}\n[host]\n{host}\n{domains}",
        domains = domains.replace("; ", "\n")
    );
    Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", error.line))
}

fn records(scenario: &Scenario) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(scenario, &mut records).expect("the run completes");
    records
}

/// Returns a domain that computes without end on one CPU.
fn spins(name: &str, cpu: usize) -> String {
    format!("[[domain]]; name = '{name}'; cpus = [{cpu}]; work = {{ kind = 'spin' }}\n")
}

/// Returns a domain on one CPU whose only job is released at `offset`.
fn once(name: &str, cpu: usize, work: &str, offset: &str) -> String {
    format!(
        "[[domain]]; name = '{name}'; cpus = [{cpu}]; \
         work = {{ kind = 'periodic', period = '1h', work = '{work}', offset = '{offset}' }}\n"
    )
}

/// Returns CPU time and work at full speed, by slot.
fn time_and_work(records: &[Record], vcpus: usize) -> Vec<(Span, Span)> {
    let mut time = vec![Span::ZERO; vcpus];
    let mut lost = time.clone();
    for record in records {
        match *record {
            Record::Ran { vcpu, used, .. } => time[vcpu.slot()] += used,
            Record::Slowed { vcpu, from, to, work } => {
                lost[vcpu.slot()] += (to - from) - work;
            }
            _ => {}
        }
    }
    time.into_iter().zip(lost).map(|(time, lost)| (time, time - lost)).collect()
}

/// Checks that all vCPUs run all the time and do the given amounts of work.
fn do_work(scenario: &Scenario, work: &[Span]) {
    let expected: Vec<(Span, Span)> = work.iter().map(|&work| (scenario.length, work)).collect();
    assert_eq!(time_and_work(&records(scenario), work.len()), expected);
}

/// Returns the end of the first job of a slot, in nanoseconds.
fn done(records: &[Record], slot: usize) -> u64 {
    let of = |record: &Record| match *record {
        Record::Job { vcpu, done, .. } if vcpu.slot() == slot => Some(done.ns()),
        _ => None,
    };
    records.iter().find_map(of).expect("the job ends")
}

#[test]
fn two_busy_threads_of_one_core_run_at_smt_speed() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '65%'";
    do_work(&scenario("10s", host, &(spins("a", 0) + &spins("b", 1))), &[Span::from_ms(6_500); 2]);
}

#[test]
fn vcpu_alone_on_a_core_runs_at_full_speed() {
    let host = "cpus = 4\nthreads_per_core = 2\nsmt = '65%'";
    let three = spins("a", 0) + &spins("b", 1) + &spins("c", 2);
    do_work(&scenario("10s", host, &three), &[6_500, 6_500, 10_000].map(Span::from_ms));
}

/// Four busy threads of a core have a speed of 0.65 x 0.65 x 0.65 each.
#[test]
fn each_additional_busy_thread_slows_the_core_by_smt_factor() {
    let host = "cpus = 4\nthreads_per_core = 4\nsmt = '65%'";
    let four: String = (0..4).map(|cpu| spins(&format!("d{cpu}"), cpu)).collect();
    do_work(&scenario("1s", host, &four), &[Span::from_us(274_625); 4]);
}

#[test]
fn bus_contention_slows_every_cpu_while_several_cpus_are_busy() {
    let host = "cpus = 3\nbus = '80%'";
    do_work(&scenario("10s", host, &spins("a", 0)), &[Span::from_secs(10)]);
    do_work(&scenario("10s", host, &(spins("a", 0) + &spins("b", 2))), &[Span::from_ms(8_000); 2]);
    let host = "cpus = 2\nthreads_per_core = 2\nbus = '80%'\nsmt = '65%'";
    do_work(&scenario("10s", host, &(spins("a", 0) + &spins("b", 1))), &[Span::from_ms(5_200); 2]);
}

/// Timeline in milliseconds. While both CPUs are busy (`-`), each has 0.65 of its full speed (`=`).
///
/// ```text
/// a  ==---======   2 ms at full speed, 3 ms in which it does 1.95, and the 6.05 that are left
/// b  ..---         1.95 ms of work from 2 ms on
/// ```
#[test]
fn cpu_speed_that_changes_within_a_computation_is_applied_exactly() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '65%'";
    let two = once("a", 0, "10ms", "0ms") + &once("b", 1, "1950us", "2ms");
    let records = records(&scenario("20ms", host, &two));
    assert_eq!((done(&records, 0), done(&records, 1)), (11_050_000, 5_000_000));
    let time_and_work = time_and_work(&records, 2);
    assert_eq!(time_and_work[0], (Span::from_us(11_050), Span::from_us(10_000)));
    assert_eq!(time_and_work[1], (Span::from_us(3_000), Span::from_us(1_950)));
}

/// `b` starts 2 ns after `a`, which has 7 ns of work. The 5 ns of `a` that are left would take 7.69
/// ns at a speed of 0.65. The 3 ns of `b` take 4.62 ns, so `b` ends after 5 ns. Until then `a` does
/// 3.25 ns more work, and its last 1.75 ns take 2 ns at full speed.
#[test]
fn work_done_in_fractions_of_a_nanosecond_is_carried_over() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '65%'";
    let two = once("a", 0, "7ns", "1us") + &once("b", 1, "3ns", "1002ns");
    let records = records(&scenario("20ms", host, &two));
    assert_eq!((done(&records, 0), done(&records, 1)), (1_009, 1_007));
}

/// Each of a hundred steps of 10 ns at a speed of 0.65 would take 16 ns if it were rounded up.
/// Together they take as long as 1,000 ns of work, except for the rounding of the last step.
#[test]
fn many_short_computations_take_as_long_as_one_long_computation() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '65%'";
    let mut scenario = scenario("1ms", host, &(spins("a", 0) + &spins("b", 1)));
    let compute = |ns| Step::Compute(Draw::Fixed(Span::from_ns(ns)));
    let steps = vec![compute(10), compute(7), Step::Done];
    scenario.domains[0].program = Program::repeated(steps);
    let jobs = records(&scenario);
    let times: Vec<u64> = jobs
        .iter()
        .filter_map(|record| match *record {
            Record::Job { done, .. } => Some(done.ns()),
            _ => None,
        })
        .collect();
    for (number, &at) in (1..).zip(&times) {
        assert_eq!(at, (17 * number * 100_u64).div_ceil(65), "{number}");
    }
    assert!(times.len() > 30_000);
}

/// Switches and ticks take their fixed time even if other CPUs are busy.
#[test]
fn switch_and_tick_costs_do_not_depend_on_cpu_speed() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '50%'\nswitch = '1ms'\ntick = '5ms'\n\
                tick_cost = '1ms'";
    let two = once("a", 0, "4ms", "0ms") + &spins("b", 1);
    let records = records(&scenario("50ms", host, &two));
    // 1 ms for the switch, 4 ms for 2 ms of work, 1 ms for the tick, and 4 ms up to the next tick.
    assert_eq!(done(&records, 0), 10_000_000);
}

#[test]
fn summary_of_slowed_cpus_reports_work_separately_from_cpu_time() {
    let host = "cpus = 4\nthreads_per_core = 2\nsmt = '65%'";
    let three = spins("a", 0) + &spins("b", 1) + &spins("c", 2);
    let mut scenario = scenario("3s", host, &three);
    scenario.warmup = Span::from_secs(1);
    let mut meter = Meter::new(&Header {
        title: String::new(),
        machine: "sim".into(),
        policy: String::new(),
        parameters: String::new(),
        seed: 1,
        cpus: 4,
        groups: Vec::new(),
        dispatch: Span::ZERO,
        warmup: scenario.warmup,
        knows: Knowledge::ALL,
        scenario: String::new(),
    });
    slackline_sim::run(&scenario, &mut meter).expect("the run completes");
    let summary = meter.view().expect("every record names a known vCPU");
    let of =
        |metric: &str, name: &str| summary.lookup(metric, Some(name)).expect("the metric exists");
    assert_eq!(of("work", "a"), Measure::Ppm(650_000));
    assert_eq!(of("work", "c"), Measure::Ppm(1_000_000));
    assert_eq!(of("delivered", "a"), Measure::Ppm(1_000_000));
    assert_eq!(of("slowed", "b"), Measure::Span(Span::from_ms(700)));
    assert_eq!(of("slowed", "c"), Measure::Span(Span::ZERO));
}

/// Returns start, end, CPU and slot of each run interval.
fn stretches(records: &[Record]) -> Vec<(Time, Time, usize, usize)> {
    let stretch = |record: &Record| match *record {
        Record::Ran { vcpu, cpu, from, to, .. } => Some((from, to, cpu.index(), vcpu.slot())),
        _ => None,
    };
    records.iter().filter_map(stretch).collect()
}

/// Returns the work of each vCPU in millionths of a nanosecond, computed from the vCPUs that ran on
/// its core and on the host.
fn added_up(
    records: &[Record],
    (vcpus, threads): (usize, usize),
    (smt, bus): (u128, u128),
) -> Vec<u128> {
    let stretches = stretches(records);
    let mut times: Vec<Time> = stretches.iter().flat_map(|&(from, to, ..)| [from, to]).collect();
    times.sort_unstable();
    times.dedup();
    let mut work = vec![0; vcpus];
    for pair in times.windows(2) {
        let here: Vec<(usize, usize)> = stretches
            .iter()
            .filter(|&&(from, to, ..)| from <= pair[0] && pair[1] <= to)
            .map(|&(_, _, cpu, slot)| (cpu, slot))
            .collect();
        for &(cpu, slot) in &here {
            let beside = here.iter().filter(|&&(other, _)| other / threads == cpu / threads);
            let speed = (1..beside.count()).fold(1_000_000, |speed, _| speed * smt / 1_000_000);
            let speed = if here.len() > 1 { speed * bus / 1_000_000 } else { speed };
            work[slot] += speed * u128::from((pair[1] - pair[0]).ns());
        }
    }
    work
}

/// Hosts with always runnable vCPUs, sleepers and jobs on some cores.
fn hosts() -> impl Strategy<Value = (String, String, usize, (u32, u32))> {
    let work = prop_oneof![
        Just("{ kind = 'spin' }".to_owned()),
        (1..9_u32, 1..20_u32).prop_map(|(work, more)| format!(
            "{{ kind = 'periodic', period = '{}ms', work = 'uniform 1us {work}ms' }}",
            work + more
        )),
    ];
    let domain = (work, prop::option::of(0..2_usize));
    let host = (1..4_usize, 1..4_usize, 1..100_u32, 1..100_u32);
    (host, prop::collection::vec(domain, 1..7), 0..7_usize).prop_map(
        |((cores, threads, smt, bus), domains, policy)| {
            let policy =
                ["round-robin', quantum = '3ms", "bvt", "credit", "gedf", "edf", "bvt", "credit"]
                    [policy];
            let smt_key = if threads > 1 { format!("smt = '{smt}%'\n") } else { String::new() };
            let mut text = format!(
                "title = 't'\nlength = '200ms'\npolicy = {{ name = '{policy}' }}\n[host]\n\
                 cpus = {}\nthreads_per_core = {threads}\n{smt_key}bus = '{bus}%'\n",
                cores * threads
            );
            for (number, (work, cpu)) in domains.iter().enumerate() {
                let cpu = cpu.filter(|&cpu| cpu < cores * threads);
                let cpus = cpu.map_or(String::new(), |cpu| format!("cpus = [{cpu}]\n"));
                text += &format!(
                    "[[domain]]\nname = 'd{number}'\n{cpus}work = {work}\n\
                     share.edf = {{ slice = '1ms', period = '20ms' }}\n\
                     share.gedf = {{ budget = '1ms', period = '20ms' }}\n"
                );
            }
            let plain = text.replace(&smt_key, "").replace(&format!("bus = '{bus}%'\n"), "");
            (text, plain, threads, (smt * 10_000, bus * 10_000))
        },
    )
}

fn read(text: &str) -> Scenario {
    Scenario::read(text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", error.line))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The recorded work equals the work computed from the run intervals, to the nanosecond.
    #[test]
    fn recorded_vcpu_work_equals_work_computed_from_run_intervals(
        (text, _, threads, (smt, bus)) in hosts(),
    ) {
        let scenario = read(&text);
        let vcpus = scenario.domains.len();
        let records = records(&scenario);
        let expected = added_up(&records, (vcpus, threads), (smt.into(), bus.into()));
        for ((_, work), expected) in time_and_work(&records, vcpus).into_iter().zip(expected) {
            prop_assert_eq!(u128::from(work.ns()), expected / 1_000_000, "{}", &text);
        }
    }

    /// With a slowdown factor of one, the records equal the records of a run without slowdown.
    #[test]
    fn slowdown_factor_of_one_does_not_change_the_records((text, plain, ..) in hosts()) {
        let mut scenario = read(&text);
        (scenario.host.smt, scenario.host.bus) = (Some(1_000_000), Some(1_000_000));
        prop_assert_eq!(records(&scenario), records(&read(&plain)), "{}", &text);
    }
}
