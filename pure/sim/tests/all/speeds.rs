//! CPUs that others slow: what is done in CPU time is less, and CPU time is what it was. Numbers
//! are worked out by hand, or added up anew from who ran when.

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

/// A loop on one CPU.
fn spins(name: &str, cpu: usize) -> String {
    format!("[[domain]]; name = '{name}'; cpus = [{cpu}]; work = {{ kind = 'spin' }}\n")
}

/// One that begins its only piece of work at some time, on one CPU.
fn once(name: &str, cpu: usize, work: &str, offset: &str) -> String {
    format!(
        "[[domain]]; name = '{name}'; cpus = [{cpu}]; \
         work = {{ kind = 'periodic', period = '1h', work = '{work}', offset = '{offset}' }}\n"
    )
}

/// By slot: CPU time, and how much was done in it at full speed.
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

/// All run all the time, and do so much in it.
fn do_work(scenario: &Scenario, work: &[Span]) {
    let expected: Vec<(Span, Span)> = work.iter().map(|&work| (scenario.length, work)).collect();
    assert_eq!(time_and_work(&records(scenario), work.len()), expected);
}

/// When the first job of each was done.
fn done(records: &[Record], slot: usize) -> u64 {
    let of = |record: &Record| match *record {
        Record::Job { vcpu, done, .. } if vcpu.slot() == slot => Some(done.ns()),
        _ => None,
    };
    records.iter().find_map(of).expect("it is done")
}

#[test]
fn two_threads_of_a_core_do_so_much_each_and_have_all_the_time() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '65%'";
    do_work(&scenario("10s", host, &(spins("a", 0) + &spins("b", 1))), &[Span::from_ms(6_500); 2]);
}

#[test]
fn of_three_on_two_cores_one_has_a_core_to_itself() {
    let host = "cpus = 4\nthreads_per_core = 2\nsmt = '65%'";
    let three = spins("a", 0) + &spins("b", 1) + &spins("c", 2);
    do_work(&scenario("10s", host, &three), &[6_500, 6_500, 10_000].map(Span::from_ms));
}

/// Four busy threads of a core are at 0.65 x 0.65 x 0.65 each.
#[test]
fn each_further_thread_slows_by_as_much() {
    let host = "cpus = 4\nthreads_per_core = 4\nsmt = '65%'";
    let four: String = (0..4).map(|cpu| spins(&format!("d{cpu}"), cpu)).collect();
    do_work(&scenario("1s", host, &four), &[Span::from_us(274_625); 4]);
}

#[test]
fn the_bus_slows_all_while_more_than_one_is_busy() {
    let host = "cpus = 3\nbus = '80%'";
    do_work(&scenario("10s", host, &spins("a", 0)), &[Span::from_secs(10)]);
    do_work(&scenario("10s", host, &(spins("a", 0) + &spins("b", 2))), &[Span::from_ms(8_000); 2]);
    let host = "cpus = 2\nthreads_per_core = 2\nbus = '80%'\nsmt = '65%'";
    do_work(&scenario("10s", host, &(spins("a", 0) + &spins("b", 1))), &[Span::from_ms(5_200); 2]);
}

/// ```text
/// a  ==---======   2 ms at full speed, 3 ms in which it does 1.95, and the 6.05 that are left
/// b  ..---         1.95 ms of work from 2 ms on
/// ```
#[test]
fn speed_changes_in_the_middle_of_a_step() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '65%'";
    let two = once("a", 0, "10ms", "0ms") + &once("b", 1, "1950us", "2ms");
    let records = records(&scenario("20ms", host, &two));
    assert_eq!((done(&records, 0), done(&records, 1)), (11_050_000, 5_000_000));
    let time_and_work = time_and_work(&records, 2);
    assert_eq!(time_and_work[0], (Span::from_us(11_050), Span::from_us(10_000)));
    assert_eq!(time_and_work[1], (Span::from_us(3_000), Span::from_us(1_950)));
}

/// `b` comes 1 ns before the middle of a nanosecond's worth of `a`'s work would be over: of 7 ns
/// `a` has done 2, and 5 take 7.69 at 0.65. `b` leaves after 3 ns of work, which take 4.62: after 5
/// `a` has done 3.25 more, and the 1.75 that are left take 2 more at full speed.
#[test]
fn what_is_no_whole_nanosecond_is_not_lost() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '65%'";
    let two = once("a", 0, "7ns", "1us") + &once("b", 1, "3ns", "1002ns");
    let records = records(&scenario("20ms", host, &two));
    assert_eq!((done(&records, 0), done(&records, 1)), (1_009, 1_007));
}

/// A hundred times 10 ns at 0.65, of which each is rounded up by itself to 16 ns or less: together
/// they take what 1,000 ns take, but for the last.
#[test]
fn many_short_steps_take_what_a_long_one_does() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '65%'";
    let mut scenario = scenario("1ms", host, &(spins("a", 0) + &spins("b", 1)));
    let compute = |ns| Step::Compute(Draw::Fixed(Span::from_ns(ns)));
    let steps = vec![compute(10), compute(7), Step::Done];
    scenario.domains[0].program = Program { steps, repeat: true };
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

/// Switching and a tick take the time that they say, whoever works beside.
#[test]
fn costs_are_not_slowed() {
    let host = "cpus = 2\nthreads_per_core = 2\nsmt = '50%'\nswitch = '1ms'\ntick = '5ms'\n\
                tick_cost = '1ms'";
    let two = once("a", 0, "4ms", "0ms") + &spins("b", 1);
    let records = records(&scenario("50ms", host, &two));
    // 1 ms to switch, 4 ms for 2 ms of work, 1 ms for the tick, 4 ms, at whose end is a tick.
    assert_eq!(done(&records, 0), 10_000_000);
}

#[test]
fn summaries_tell_work_as_apart_from_cpu_time() {
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
    let of = |metric: &str, name: &str| summary.lookup(metric, Some(name)).expect("a metric");
    assert_eq!(of("work", "a"), Measure::Ppm(650_000));
    assert_eq!(of("work", "c"), Measure::Ppm(1_000_000));
    assert_eq!(of("delivered", "a"), Measure::Ppm(1_000_000));
    assert_eq!(of("slowed", "b"), Measure::Span(Span::from_ms(700)));
    assert_eq!(of("slowed", "c"), Measure::Span(Span::ZERO));
}

/// Who had a CPU when, by the stretches of a run: from, to, CPU, slot.
fn stretches(records: &[Record]) -> Vec<(Time, Time, usize, usize)> {
    let stretch = |record: &Record| match *record {
        Record::Ran { vcpu, cpu, from, to, .. } => Some((from, to, cpu.index(), vcpu.slot())),
        _ => None,
    };
    records.iter().filter_map(stretch).collect()
}

/// What each did by who else ran on its core and on the host, in millionths of a nanosecond.
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

/// Loops, sleepers and jobs on some cores.
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

    /// What is told of work is what comes of who ran beside whom, to the nanosecond.
    #[test]
    fn work_is_what_follows_from_who_ran_beside_whom(
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

    /// At full speed nothing is other than where nobody slows anybody.
    #[test]
    fn at_full_speed_the_records_are_the_same((text, plain, ..) in hosts()) {
        let mut scenario = read(&text);
        (scenario.host.smt, scenario.host.bus) = (Some(1_000_000), Some(1_000_000));
        prop_assert_eq!(records(&scenario), records(&read(&plain)), "{}", &text);
    }
}
