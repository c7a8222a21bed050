//! Conservation of CPU time, under every policy, on random hosts. On every CPU, the time in
//! programs, the overhead of each kind and the idle time amount to the elapsed time, to the
//! nanosecond. The sums are computed from the intervals of the trace, and again from the metrics.

use std::fmt::Write as _;

use proptest::prelude::*;
use slackline_host::policy::{ALL, SIMULATED_ONLY};
use slackline_metrics::{Meter, Summary};
use slackline_scenario::Scenario;
use slackline_sim::SimResults;
use slackline_trace::{Header, OverheadKind, Record};
use slackline_units::{CpuId, Span, Time, VcpuId};

/// Rules to test in addition to the defaults of each policy.
const RULES: [(&str, &str); 5] = [
    ("sedf", ", balancer = 'thesis'"),
    ("sedf", ", balancer = 'planned'"),
    ("credit", ", rules = 'xen-3.0.4'"),
    ("round-robin", ", quantum = '300us'"),
    ("bvt", ", rules = 'xen-2.0'"),
];

const SHARES: &str = "share.edf = { slice = '500us', period = '10ms' }\n\
    share.sedf = { slice = '500us', period = '10ms' }\n\
    share.atropos = { slice = '500us', period = '10ms', extra = true }\n\
    share.gedf = { budget = '500us', period = '10ms' }\n";

const WORKS: [&str; 6] = [
    "{ kind = 'spin' }",
    "{ kind = 'spin' }",
    "{ kind = 'periodic', period = '3ms', work = '700us' }",
    "{ kind = 'interactive', compute = 'exponential 300us', sleep = 'exponential 2ms' }",
    "{ kind = 'batch', total = '5ms' }",
    "{ kind = 'spinlock', compute = 'exponential 80us', hold = '20us' }",
];

/// Returns the policies by name, each as a scenario writes it.
fn policies() -> Vec<(&'static str, String)> {
    let plain =
        ALL.iter().chain(SIMULATED_ONLY).map(|spec| (spec.name, format!("name = '{}'", spec.name)));
    let more = RULES.iter().map(|(name, rules)| (*name, format!("name = '{name}'{rules}")));
    plain.chain(more).collect()
}

/// Text of a scenario with up to four CPUs and up to five domains. All costs are drawn at random.
fn text() -> impl Strategy<Value = String> {
    let host = (1..3_usize, 1..3_usize, any::<u16>(), any::<bool>(), 0..30_000_u64);
    let costs = prop::collection::vec(prop_oneof![Just(0), 0..40_u32], 7);
    let domain = (0..WORKS.len(), 1..3_usize, 0..6_u32, 0..90_u32);
    let domains = prop::collection::vec(domain, 1..6);
    (host, costs, domains).prop_map(|((cores, threads, seed, staggered, warmup), costs, domains)| {
        let smt = ["", "smt = '65%'\n"][usize::from(threads == 2)];
        let ticks = ["aligned", "staggered"][usize::from(staggered)];
        let mut text = format!(
            "seed = {seed}\nlength = '60ms'\nwarmup = '{warmup}us'\n[host]\ncpus = {}\n\
             threads_per_core = {threads}\n{smt}bus = '90%'\nswitch = '{}us'\nmigrate = '{}us'\n\
             tick = '1ms'\ntick_cost = '{}us'\nticks = '{ticks}'\nipi = '{}us'\n\
             warm = {{ core = '80%', cache = '40%' }}\nbalancing = {{ call = '{}us' }}\n",
            cores * threads,
            costs[0],
            costs[1],
            costs[2],
            costs[3],
            costs[4],
        );
        for (index, (work, vcpus, cache, joins)) in domains.into_iter().enumerate() {
            let vcpus = vcpus.min(cores * threads);
            // A spin lock is for several vCPUs.
            let work = if vcpus == 1 { work % (WORKS.len() - 1) } else { work };
            let _ = write!(
                text,
                "[[domain]]\nname = 'd{index}'\nvcpus = {vcpus}\nwork = {}\njoins = '{joins}00us'\n\
                 dispatch = '{}us'\ncache = '{}us'\n{SHARES}",
                WORKS[work],
                costs[5],
                cache * costs[6],
            );
        }
        text
    })
}

type Interval = (Time, Time);

fn length((from, to): &Interval) -> Span {
    *to - *from
}

fn total(intervals: &[Interval]) -> Span {
    intervals.iter().map(length).sum()
}

/// Returns intervals sorted by time. Fails if two intervals overlap.
fn in_order(mut intervals: Vec<Interval>) -> Result<Vec<Interval>, TestCaseError> {
    intervals.sort();
    for pair in intervals.windows(2) {
        prop_assert!(pair[0].1 <= pair[1].0, "{pair:?} overlap");
    }
    Ok(intervals)
}

/// Returns true if one of `intervals` contains `inner`.
fn contain(intervals: &[Interval], inner: &Interval) -> bool {
    let next = intervals.partition_point(|outer| outer.1 < inner.1);
    intervals.get(next).is_some_and(|outer| outer.0 <= inner.0 && inner.1 <= outer.1)
}

/// Intervals of run time and overhead that a trace records for one CPU or vCPU.
#[derive(Default)]
struct RecordedIntervals {
    ran: Vec<Interval>,
    /// Overhead that a vCPU paid.
    paid: Vec<Interval>,
    /// Overhead that no vCPU paid.
    unpaid: Vec<Interval>,
}

fn intervals(records: &[Record], of: impl Fn(CpuId, Option<VcpuId>) -> bool) -> RecordedIntervals {
    let mut intervals = RecordedIntervals::default();
    for record in records {
        match *record {
            Record::Ran { vcpu, cpu, from, to, .. } if of(cpu, Some(vcpu)) => {
                intervals.ran.push((from, to));
            }
            Record::Spent { vcpu: None, cpu, from, to, .. } if of(cpu, None) => {
                intervals.unpaid.push((from, to));
            }
            Record::Spent { vcpu, cpu, from, to, .. } if of(cpu, vcpu) => {
                intervals.paid.push((from, to));
            }
            _ => {}
        }
    }
    intervals
}

/// Checks that overhead paid by a vCPU lies within the time in which that vCPU ran, and unpaid
/// overhead within time in which no vCPU ran.
fn check_intervals(records: &[Record], length: Span, cpus: usize) -> Result<(), TestCaseError> {
    for cpu in (0..cpus).map(CpuId::new) {
        let RecordedIntervals { ran, paid, unpaid } = intervals(records, |of, _| of == cpu);
        let ran = in_order(ran)?;
        let paid = in_order(paid)?;
        let busy = in_order([ran.clone(), unpaid.clone()].concat())?;
        let program = total(&ran) - total(&paid);
        let idle = length - total(&busy);
        prop_assert_eq!(program + total(&paid) + total(&unpaid) + idle, length);
        let vcpus = records.iter().filter_map(|record| match *record {
            Record::Ran { vcpu, .. } => Some(vcpu),
            _ => None,
        });
        let vcpus: std::collections::BTreeSet<VcpuId> = vcpus.collect();
        for vcpu in vcpus {
            let RecordedIntervals { ran, paid, .. } =
                intervals(records, |of, who| of == cpu && who == Some(vcpu));
            let ran = merged(in_order(ran)?);
            for paid in paid {
                prop_assert!(contain(&ran, &paid), "{vcpu} paid {paid:?} on {cpu}: {ran:?}");
            }
        }
    }
    Ok(())
}

/// Returns the intervals. Adjacent intervals are joined.
fn merged(intervals: Vec<Interval>) -> Vec<Interval> {
    let mut merged: Vec<Interval> = Vec::new();
    for (from, to) in intervals {
        match merged.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => merged.push((from, to)),
        }
    }
    merged
}

fn check_summary(summary: &Summary) -> Result<(), TestCaseError> {
    for cpu in &summary.cpus {
        let program = cpu.program.expect("a simulation records time in programs");
        let overheads = cpu.overheads.expect("a simulation records overhead");
        let kinds: Span = OverheadKind::ALL.into_iter().map(|kind| overheads.of(kind)).sum();
        prop_assert_eq!(program + kinds + cpu.idle, summary.length, "{}", cpu.cpu);
        prop_assert_eq!(cpu.overhead, Some(kinds));
    }
    let programs: Span = summary.cpus.iter().filter_map(|cpu| cpu.program).sum();
    let of_vcpus: Span = summary.vcpus.iter().filter_map(|vcpu| vcpu.program()).sum();
    prop_assert_eq!(programs, of_vcpus);
    for kind in OverheadKind::ALL {
        let cpus = summary.cpus.iter().filter_map(|cpu| cpu.overheads);
        let vcpus = summary.vcpus.iter().filter_map(|vcpu| vcpu.overhead);
        let on_cpus: Span = cpus.map(|of| of.of(kind)).sum();
        let by_vcpus: Span = vcpus.map(|of| of.of(kind)).sum();
        prop_assert!(by_vcpus <= on_cpus, "{kind:?}");
        let pass_to_idle = matches!(kind, OverheadKind::Tick | OverheadKind::Switch);
        prop_assert!(pass_to_idle || kind == OverheadKind::Interrupt || by_vcpus == on_cpus);
    }
    for vcpu in &summary.vcpus {
        let slowed = vcpu.slowed.expect("a simulation records time lost on slow CPUs");
        let lost = slowed + vcpu.spun.expect("a simulation records spinning");
        prop_assert!(vcpu.work() <= vcpu.program());
        let is_balancer = vcpu.name == "[balancer]";
        let program = vcpu.program().expect("a simulation records time in programs");
        let left = program.left_after(lost);
        prop_assert!(is_balancer || Some(left) <= vcpu.work());
    }
    Ok(())
}

/// Checks that a batch job that is done has computed for exactly its total, in CPU time at full
/// speed.
fn check_batches(summary: &Summary, finished: &SimResults) -> Result<(), TestCaseError> {
    for &(at, done) in &finished.done {
        let vcpu =
            summary.vcpus.iter().find(|vcpu| vcpu.id == done).expect("a finished vCPU has a row");
        prop_assert_eq!(vcpu.work(), Some(Span::from_ms(5)), "{} is done at {}", vcpu.name, at);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn work_overhead_and_idle_time_sum_to_simulated_time(text in text()) {
        for (name, policy) in policies() {
            let text = format!("title = 'random'\npolicy = {{ {policy} }}\n{text}");
            let scenario = Scenario::read(&text);
            let scenario = scenario.unwrap_or_else(|error| panic!("{error:?} in\n{text}"));
            let whole = Header { warmup: Span::ZERO, ..slackline_sim::trace_header(&scenario) };
            let meters = (Meter::new(&slackline_sim::trace_header(&scenario)), Meter::new(&whole));
            let records: Vec<Record> = Vec::new();
            let mut sink = (meters, records);
            let finished = match slackline_sim::run(&scenario, &mut sink) {
                Ok(finished) => finished,
                Err(error) => return Err(TestCaseError::fail(format!("{name}: {error}\n{text}"))),
            };
            check_intervals(&sink.1, scenario.length, scenario.host.cpus)?;
            let (measured, whole) = sink.0;
            check_summary(&measured.view().expect("every vCPU has a name"))?;
            check_batches(&whole.view().expect("every vCPU has a name"), &finished)?;
        }
    }
}
