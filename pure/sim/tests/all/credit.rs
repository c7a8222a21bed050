//! Credit on the simulated host. Properties of this project's rules are tested for random sets of
//! vCPUs. The rules of Xen are compared with the numbers of our reference on Credit, a set of notes
//! and test cases that is not in this repository. Numbers are in nanoseconds.

#![allow(clippy::cast_possible_truncation)] // A run has few windows.

use std::fmt::Write as _;

use crate::sets::{Host, check_time, work};
use proptest::prelude::*;
use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Span, Time};

pub(crate) const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Time between two accountings of credit.
pub(crate) const PERIOD: u64 = 30 * MS;

/// Parameters of a domain in a random set.
#[derive(Clone, Debug)]
struct Dom {
    weight: u64,
    /// Cap in percent of a CPU. `None` if the domain has no cap.
    cap: Option<u64>,
    vcpus: usize,
    /// Times to compute and to sleep, in turn. Empty for vCPUs that are always runnable.
    sleeps: Vec<(u64, u64)>,
    /// Changes of the affinity: time, and a bit for each CPU. Before the first change the affinity
    /// is all CPUs.
    confined: Vec<(u64, u8)>,
}

/// A domain with one vCPU that is always runnable and can run on all CPUs.
const HOG: Dom = Dom { weight: 256, cap: None, vcpus: 1, sleeps: Vec::new(), confined: Vec::new() };

impl Dom {
    /// Returns start, end and CPUs of each affinity on a host with `cpus` CPUs. If an affinity
    /// contains no CPU of the host, all CPUs are returned.
    fn places(&self, cpus: usize) -> Vec<(u64, u64, Vec<usize>)> {
        let starts = [(0, 0)].into_iter().chain(self.confined.iter().copied());
        let ends = self.confined.iter().map(|&(at, _)| at).chain([u64::MAX]);
        let named = |set: u8| (0..cpus).filter(|cpu| set >> cpu & 1 == 1).collect::<Vec<_>>();
        let numbers = |set| if named(set).is_empty() { named(u8::MAX) } else { named(set) };
        let places = starts.zip(ends).map(|((from, set), to)| (from, to, numbers(set)));
        places.filter(|(from, to, _)| from < to).collect()
    }
}

fn run(parameters: &str, host: &Host, doms: &[Dom]) -> Vec<Record> {
    let Host { cpus, lateness, length } = host;
    let mut text = format!(
        "title = \"random\"\nlength = \"{length}ns\"\n\
         policy = {{ name = \"credit\", {parameters} }}\n\
         [host]\ncpus = {cpus}\ntimer_lateness = \"uniform 0ns {lateness}ns\"\n"
    );
    for (index, dom) in doms.iter().enumerate() {
        let Dom { weight, cap, vcpus, sleeps, .. } = dom;
        let work = work(sleeps);
        let cap = cap.map_or("none".to_owned(), |cap| format!("{cap}%"));
        let _ = write!(
            text,
            "[[domain]]\nname = \"d{index}\"\nvcpus = {vcpus}\nwork = {work}\n\
             share.credit = {{ weight = {weight}, cap = \"{cap}\", gang = true }}\n"
        );
        for (at, _, cpus) in dom.places(*cpus) {
            if at > 0 {
                let _ = write!(text, "[[change]]\nat = \"{at}ns\"\ndomain = \"d{index}\"\n");
            }
            let _ = writeln!(text, "cpus = {cpus:?}");
        }
    }
    simulate(&text)
}

pub(crate) fn simulate(text: &str) -> Vec<Record> {
    let scenario = Scenario::read(text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"));
    let mut trace = Vec::new();
    slackline_sim::run(&scenario, &mut trace).unwrap_or_else(|error| panic!("{error}"));
    trace
}

/// Returns the CPU time of each domain.
fn used(trace: &[Record], doms: &[Dom]) -> Vec<u64> {
    let mut used = vec![0; doms.len()];
    for record in trace {
        if let Record::Ran { vcpu, used: ran, .. } = record {
            used[vcpu.domain().number() as usize] += ran.ns();
        }
    }
    used
}

/// Returns the CPU time of each domain in each of `windows` windows of this length.
pub(crate) fn used_by_window(
    trace: &[Record],
    doms: usize,
    length: u64,
    windows: u64,
) -> Vec<Vec<u64>> {
    let mut used = vec![vec![0; windows as usize]; doms];
    for record in trace {
        let Record::Ran { vcpu, from, to, .. } = *record else { continue };
        let mut from = from.ns();
        while from < to.ns() {
            let next = ((from / length + 1) * length).min(to.ns());
            used[vcpu.domain().number() as usize][(from / length) as usize] += next - from;
            from = next;
        }
    }
    used
}

/// Parameters that enable or disable gang scheduling, for properties that hold in both cases.
pub(crate) fn gangs() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "gang = \"relaxed\""])
}

fn hog() -> impl Strategy<Value = Dom> {
    (1..=8_u64, 1..=2_usize).prop_map(|(weight, vcpus)| Dom {
        weight: 64 * weight,
        cap: None,
        vcpus,
        sleeps: Vec::new(),
        confined: Vec::new(),
    })
}

fn any_dom() -> impl Strategy<Value = Dom> {
    let sleep = (1..20 * MS, 1..60 * MS);
    let sleeps = prop_oneof![Just(Vec::new()), prop::collection::vec(sleep, 1..6)];
    (hog(), sleeps).prop_map(|(hog, sleeps)| Dom { sleeps, ..hog })
}

/// A domain with or without a cap, whose affinity can change.
fn confined_dom() -> impl Strategy<Value = Dom> {
    let cap = prop::option::weighted(0.2, 1..=150_u64);
    let sets = prop::collection::btree_map(0..3 * SECOND, any::<u8>(), 0..4);
    let sets = prop_oneof![
        2 => Just(Vec::new()),
        2 => any::<u8>().prop_map(|set| vec![(0, set)]),
        3 => sets.prop_map(|sets| sets.into_iter().collect()),
    ];
    (any_dom(), cap, sets).prop_map(|(dom, cap, confined)| Dom { cap, confined, ..dom })
}

/// Returns the fair CPU time of always runnable VMs. The fair CPU times are proportional to the
/// weights, but each VM gets at most the time that its vCPUs can use.
fn fair(host: &Host, doms: &[Dom]) -> Vec<u64> {
    let mut shares = vec![0; doms.len()];
    let mut open: Vec<usize> = (0..doms.len()).collect();
    let mut left = host.length * host.cpus as u64;
    loop {
        let weight: u64 = open.iter().map(|&index| doms[index].weight).sum();
        let most = |index: usize| host.length * doms[index].vcpus as u64;
        let share = |index: usize| left * doms[index].weight / weight;
        let (full, rest): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|&&index| share(index) >= most(index));
        if full.is_empty() || rest.is_empty() {
            open.iter().for_each(|&index| shares[index] = share(index).min(most(index)));
            return shares;
        }
        for index in full {
            shares[index] = most(index);
            left -= most(index);
        }
        open = rest;
    }
}

/// Returns slot, start and end of each wait, in which a vCPU was runnable and did not run.
fn waits(trace: &[Record]) -> Vec<(usize, Time, Time)> {
    let mut waits = Vec::new();
    let mut since = std::collections::BTreeMap::new();
    for record in trace {
        match *record {
            Record::Woke { at, vcpu } => {
                since.insert(vcpu.slot(), at);
            }
            Record::Blocked { vcpu, .. } => {
                since.remove(&vcpu.slot());
            }
            Record::Ran { vcpu, from, to, .. } => {
                let start = since.insert(vcpu.slot(), to).expect("a running vCPU is runnable");
                waits.push((vcpu.slot(), start, from));
            }
            Record::Ended { at } => {
                waits.extend(since.iter().map(|(&slot, &start)| (slot, start, at)));
            }
            _ => {}
        }
    }
    waits.retain(|(_, from, to)| from < to);
    waits
}

/// Returns CPU, start and end of each interval in which a CPU was idle.
fn idle(trace: &[Record], cpus: usize) -> Vec<(usize, Time, Time)> {
    let mut until = vec![Time::START; cpus];
    let mut idle = Vec::new();
    for record in trace {
        match *record {
            Record::Ran { cpu, from, to, .. } => {
                idle.push((cpu.index(), until[cpu.index()], from));
                until[cpu.index()] = to;
            }
            Record::Ended { at } => {
                idle.extend(until.iter().enumerate().map(|(cpu, &until)| (cpu, until, at)));
            }
            _ => {}
        }
    }
    idle.retain(|(_, from, to)| from < to);
    idle
}

/// Returns slot, CPU, start and end of each interval in which a vCPU without a cap waited although
/// a CPU of its affinity was idle.
fn idle_waits(trace: &[Record], doms: &[Dom], cpus: usize) -> Vec<(usize, usize, Time, Time)> {
    let slots: Vec<&Dom> =
        doms.iter().flat_map(|dom| std::iter::repeat_n(dom, dom.vcpus)).collect();
    let idle = idle(trace, cpus);
    let mut found = Vec::new();
    for (slot, from, to) in waits(trace) {
        let places = if slots[slot].cap.is_none() { slots[slot].places(cpus) } else { Vec::new() };
        for (start, end, allowed) in places {
            let (from, to) = (from.max(Time::from_ns(start)), to.min(Time::from_ns(end)));
            let there = idle.iter().filter(|(cpu, ..)| allowed.contains(cpu));
            let both = there.map(|&(cpu, start, end)| (slot, cpu, start.max(from), end.min(to)));
            found.extend(both.filter(|(.., from, to)| from < to));
        }
    }
    found
}

fn host(cpus: usize, length: u64) -> Host {
    Host { cpus, lateness: 0, length }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    /// In the long run CPU time follows weights, but no domain receives more than its vCPUs can
    /// use. Credit granted to a vCPU is exact, and its CPU time differs from the grants by the
    /// credit left. With n active vCPUs, the credit left right after an accounting is at most n + 1
    /// accounting periods, positive or negative. Up to one more period has passed after the last
    /// accounting.
    #[test]
    fn cpu_time_under_credit_follows_weights_in_the_long_run(
        cpus in 1..=4_usize,
        doms in prop::collection::vec(hog(), 1..=5),
        gangs in gangs(),
    ) {
        let host = host(cpus, 40 * SECOND);
        let trace = run(gangs, &host, &doms);
        check_time(&trace, &host)?;
        let active: usize = doms.iter().map(|dom| dom.vcpus).sum();
        for (index, used) in used(&trace, &doms).into_iter().enumerate() {
            let due = fair(&host, &doms)[index];
            let bound = (doms[index].vcpus * (active + 2)) as u64 * PERIOD;
            prop_assert!(used.abs_diff(due) <= bound, "d{index} used {used}, not {due}");
        }
    }

    /// In any pattern of sleeps and wakes, a domain uses at most its cap in each period.
    #[test]
    fn domain_under_credit_stays_within_cap_for_any_sleep_pattern(
        cpus in 1..=3_usize,
        doms in prop::collection::vec((any_dom(), 1..=150_u64), 1..=4),
        gangs in gangs(),
    ) {
        let capped = |(dom, cap)| Dom { cap: Some(cap), ..dom };
        let doms: Vec<Dom> = doms.into_iter().map(capped).collect();
        let host = host(cpus, 3 * SECOND);
        let trace = run(gangs, &host, &doms);
        check_time(&trace, &host)?;
        let used = used_by_window(&trace, doms.len(), PERIOD, host.length / PERIOD);
        for (dom, used) in doms.iter().zip(&used) {
            let most = dom.cap.expect("every domain has a cap") * PERIOD / 100;
            prop_assert!(used.iter().all(|&used| used <= most), "{used:?}, not {most}");
        }
    }

    /// No CPU is idle while an uncapped vCPU whose affinity allows that CPU waits.
    #[test]
    fn credit_leaves_no_cpu_idle_while_an_uncapped_vcpu_waits(
        cpus in 1..=4_usize,
        doms in prop::collection::vec(confined_dom(), 1..=6),
        gangs in gangs(),
    ) {
        let host = host(cpus, 3 * SECOND);
        let trace = run(gangs, &host, &doms);
        check_time(&trace, &host)?;
        for (slot, cpu, from, to) in idle_waits(&trace, &doms, cpus) {
            prop_assert!(false, "v{slot} waits from {from} to {to}, and cpu{cpu} idles");
        }
    }

    /// Under the rules of Xen an idle CPU looks for work at a wake, and one slice after it last
    /// looked. The idle CPU cannot take a vCPU while another CPU still switches away from that
    /// vCPU. So a vCPU can wait for up to a slice after the last wake while a CPU is idle.
    #[test]
    fn xen_credit_idle_cpu_takes_waiting_vcpu_within_one_timeslice(
        cpus in 1..=4_usize,
        doms in prop::collection::vec(confined_dom(), 1..=6),
        rules in prop::sample::select(vec!["xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"]),
    ) {
        let doms: Vec<Dom> = doms.into_iter().map(|dom| Dom { cap: None, ..dom }).collect();
        let host = host(cpus, 3 * SECOND);
        let trace = run(&format!("rules = \"{rules}\""), &host, &doms);
        let woke = |record: &Record| match *record {
            Record::Woke { at, .. } => Some(at),
            _ => None,
        };
        // A vCPU that migrates counts as woken, too.
        let moves = doms.iter().flat_map(|dom| &dom.confined).map(|&(at, _)| Time::from_ns(at));
        let mut wakes: Vec<Time> = trace.iter().filter_map(woke).chain(moves).collect();
        wakes.sort_unstable();
        for (slot, cpu, from, to) in idle_waits(&trace, &doms, cpus) {
            let before = wakes.partition_point(|&at| at < to);
            let last = before.checked_sub(1).map_or(from, |last| wakes[last].max(from));
            let ends = last + Span::from_ns(PERIOD);
            prop_assert!(to <= ends, "v{slot} waits from {from} to {to}, and cpu{cpu} idles");
        }
    }

    /// Every wait of a runnable vCPU is within the bound that the manual states.
    #[test]
    fn credit_vcpu_never_waits_longer_than_the_documented_bound(
        cpus in 1..=3_usize,
        doms in prop::collection::vec(any_dom(), 1..=5),
        gangs in gangs(),
    ) {
        let host = host(cpus, 10 * SECOND);
        let trace = run(gangs, &host, &doms);
        let all: usize = doms.iter().map(|dom| dom.vcpus).sum();
        let weight: u64 = doms.iter().map(|dom| dom.weight).sum();
        let slots: Vec<&Dom> =
            doms.iter().flat_map(|dom| std::iter::repeat_n(dom, dom.vcpus)).collect();
        for (slot, from, to) in waits(&trace) {
            let dom = slots[slot];
            let all = all as u64;
            let whole = (all + 1) * (all + 2) * PERIOD * weight * dom.vcpus as u64;
            let bound = Span::from_ns(whole / (dom.weight * cpus as u64));
            prop_assert!(to - from <= bound, "v{slot} waits from {from} to {to}");
        }
    }

    /// Under all rules and with late timers, simulated time advances and each CPU runs one vCPU at
    /// a time.
    #[test]
    fn credit_never_runs_two_vcpus_on_one_cpu_at_once(
        cpus in 1..=3_usize,
        doms in prop::collection::vec(confined_dom(), 1..=5),
        rules in prop::sample::select(vec!["exact", "xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"]),
        lateness in prop::sample::select(vec![0, 10_000, 15 * MS]),
    ) {
        let host = Host { cpus, lateness, length: 3 * SECOND };
        check_time(&run(&format!("rules = \"{rules}\""), &host, &doms), &host)?;
    }
}

/// A domain whose fair share exceeds what its vCPUs can use leaves the rest to the other domains,
/// by their weights. In the test, three vCPUs receive two thirds of a CPU each on three CPUs.
#[test]
fn credit_divides_unused_fair_share_by_weight() {
    let dom =
        |weight, vcpus| Dom { weight, cap: None, vcpus, sleeps: Vec::new(), confined: Vec::new() };
    let doms = [dom(384, 1), dom(64, 1), dom(128, 2)];
    let trace = run("", &host(3, 60 * SECOND), &doms);
    let due = [60, 40, 80].map(|seconds| seconds * SECOND);
    for (used, due) in used(&trace, &doms).into_iter().zip(due) {
        assert!(used.abs_diff(due) <= PERIOD, "used {used}, not {due}");
    }
}

/// Three equal vCPUs on two CPUs receive two thirds of a CPU each under all rules.
#[test]
fn credit_divides_two_cpus_equally_among_three_vcpus() {
    let dom = Dom { weight: 256, cap: None, vcpus: 1, sleeps: Vec::new(), confined: Vec::new() };
    let doms = vec![dom; 3];
    let host = host(2, 60 * SECOND);
    for rules in ["exact", "xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"] {
        let trace = run(&format!("rules = \"{rules}\""), &host, &doms);
        for (index, used) in used(&trace, &doms).into_iter().enumerate() {
            let error = used.abs_diff(40 * SECOND);
            assert!(error <= 5 * PERIOD, "{rules}: d{index} used {used}");
        }
    }
}

/// Three vCPUs with a cap of 66 % each reach it on two CPUs, to within a timeslice. Timeslices are
/// short enough for the third vCPU to run when the other two vCPUs have used their caps.
#[test]
fn three_capped_domains_on_two_cpus_reach_caps_under_credit() {
    let hog =
        Dom { weight: 256, cap: Some(66), vcpus: 1, sleeps: Vec::new(), confined: Vec::new() };
    let doms = vec![hog; 3];
    let trace = run("", &host(2, 60 * SECOND), &doms);
    for (index, used) in used(&trace, &doms).into_iter().enumerate() {
        let (least, most) = (60 * SECOND * 66 / 100 - 10 * MS, 60 * SECOND * 66 / 100);
        assert!(least <= used && used <= most, "d{index} used {used}, not {least} to {most}");
    }
}

/// CPU time of a hog with a cap, in total and in each second, in millionths of a CPU.
struct Usage {
    long_run: u64,
    seconds: Vec<u64>,
}

/// Runs a hog alone on a CPU that the hog joins `phase` after a tick. Returns its CPU time in a
/// minute from the third second on.
fn usage(rules: &str, cap: u64, phase: u64) -> Usage {
    const FROM: u64 = 2;
    const SECONDS: u64 = 60;
    let length = FROM + SECONDS;
    // The clock of the ticks starts with the first vCPU that joins.
    let trace = simulate(&format!(
        "title = \"a hog\"\nlength = \"{length}s\"\n\
         policy = {{ name = \"credit\", rules = \"{rules}\" }}\n[host]\ncpus = 1\n\
         [[domain]]\nname = \"clock\"\nwork = {{ kind = \"batch\", total = \"1ns\" }}\n\
         share.credit = {{}}\n\
         [[domain]]\nname = \"hog\"\njoins = \"{phase}ns\"\nwork = {{ kind = \"spin\" }}\n\
         share.credit = {{ cap = \"{cap}%\" }}\n"
    ));
    let used = used_by_window(&trace, 2, SECOND, length)[1][FROM as usize..].to_vec();
    let seconds: Vec<u64> = used.into_iter().map(|used| used / (SECOND / 1_000_000)).collect();
    Usage { long_run: seconds.iter().sum::<u64>() / SECONDS, seconds }
}

/// Expected results of a hog with a cap, alone on its CPU. The results are the hog's CPU time in
/// the long run, and the smallest and largest error of any second in percent of the cap. All
/// results are over all phases of timeslices, ticks and seconds.
struct Expected {
    rules: &'static str,
    cap: u64,
    /// Possible CPU times in the long run, one for each outcome of the phase, in millionths of a
    /// CPU.
    long_run: &'static [u64],
    errors: (i64, i64),
}

const fn expected(
    rules: &'static str,
    cap: u64,
    long_run: &'static [u64],
    errors: (i64, i64),
) -> Expected {
    Expected { rules, cap, long_run, errors }
}

/// Expected results by rules and cap: sections 7.8 and 15 (item 7) of our reference on Credit (not
/// in this repository). For the caps 25 % and 75 % under Xen 3.0.3, the CPU time depends on the
/// phase. The reference has the means over random phases: 27.3 % and 68.2 %. One number differs:
/// for the cap 25 % under Xen 3.0.3, the smallest error is -4 % in the reference and zero in this
/// simulator.
const TABLE: [Expected; 21] = [
    expected("xen-3.0.3", 1, &[33_333], (200, 500)),
    expected("xen-3.0.3", 2, &[33_333], (50, 200)),
    expected("xen-3.0.3", 3, &[33_333], (0, 100)),
    expected("xen-3.0.3", 5, &[66_667], (20, 80)),
    expected("xen-3.0.3", 7, &[100_000], (29, 71)),
    expected("xen-3.0.3", 10, &[100_000], (-10, 20)),
    expected("xen-3.0.3", 25, &[266_667, 285_714], (0, 20)),
    expected("xen-3.0.3", 50, &[500_000], (-4, 4)),
    expected("xen-3.0.3", 75, &[500_000, 766_667], (-36, 5)),
    expected("xen-3.0.3", 90, &[900_000], (-2, 1)),
    expected("xen-2006-10-30", 1, &[10_000], (-100, 200)),
    expected("xen-3.0.4", 1, &[10_000], (-100, 200)),
    expected("xen-3.0.4", 2, &[20_000], (-100, 50)),
    expected("xen-3.0.4", 3, &[30_000], (-67, 33)),
    expected("xen-3.0.4", 5, &[50_000], (-40, 20)),
    expected("xen-3.0.4", 7, &[70_000], (-14, 29)),
    expected("xen-3.0.4", 10, &[100_000], (-10, 20)),
    expected("xen-3.0.4", 25, &[250_000], (-4, 8)),
    expected("xen-3.0.4", 50, &[500_000], (-4, 4)),
    expected("xen-3.0.4", 75, &[750_000], (-4, 1)),
    expected("xen-3.0.4", 90, &[900_000], (-2, 4)),
];

/// A minute ends within a timeslice, so the CPU time of a minute varies by up to 30 ms, which is
/// 500 millionths. The CPU time varies by twice that if the phase decides between parking and a
/// further slice. Both extremes of the errors are reached and not exceeded.
#[test]
fn xen_credit_cap_errors_equal_the_errors_recorded_on_xen() {
    const PHASES: u64 = 100;
    for Expected { rules, cap, long_run, errors } in TABLE {
        let mut seen = (i64::MAX, i64::MIN);
        let mut is_met = vec![false; long_run.len()];
        for phase in (0..PHASES).map(|step| SECOND * step / PHASES + 333_333) {
            let usage = usage(rules, cap, phase);
            let most = 500 * long_run.len() as u64;
            let near = long_run.iter().position(|&near| usage.long_run.abs_diff(near) <= most);
            let near = near.unwrap_or_else(|| {
                panic!("{rules}, cap {cap} %, phase {phase}: {}", usage.long_run);
            });
            is_met[near] = true;
            for second in usage.seconds {
                // The error is in percent of the cap, rounded to the nearest.
                let error = (second as i64 + 50 * cap as i64) / (100 * cap as i64) - 100;
                seen = (seen.0.min(error), seen.1.max(error));
            }
        }
        assert_eq!(seen, errors, "{rules}, cap {cap} %");
        assert!(is_met.iter().all(|&is_met| is_met), "{rules}, cap {cap} %: {is_met:?}");
    }
}

/// Under the rules without Xen's flaws, a hog receives its cap in every period. The CPU time of a
/// second differs by at most the cap of one period.
#[test]
fn exact_rules_of_credit_deliver_the_cap_in_each_second() {
    for cap in [1, 2, 5, 10, 50, 90] {
        for second in usage("exact", cap, 3_333).seconds {
            let part = cap * 10_000 * PERIOD / SECOND;
            assert!(second.abs_diff(cap * 10_000) <= part, "{second}, cap {cap} %");
        }
    }
}

/// One accounting unparks both vCPUs with a cap, and both are in the queue before a CPU
/// reschedules. As in a recording of the original Xen, a vCPU beside them without a cap receives
/// 75 % of a CPU. It would receive 100 % if an idle CPU rescheduled before the second vCPU was in
/// the queue.
#[test]
fn xen_credit_queues_all_unparked_vcpus_before_any_cpu_reschedules() {
    let capped = Dom { cap: Some(50), vcpus: 2, ..HOG };
    let doms = [capped, HOG];
    let length = 60 * SECOND;
    let trace = run("rules = \"xen-3.0.4\"", &host(2, length), &doms);
    for (used, percent) in used(&trace, &doms).into_iter().zip([50, 75]) {
        let error = used.abs_diff(percent * length / 100);
        assert!(error <= length / 100, "used {used}, not {percent} %");
    }
}

/// An accounting visits the active vCPUs of a domain newest first. Each vCPU that it unparks goes
/// behind the vCPUs that were unparked before. In the test, vCPU 2 becomes active after vCPU 1, and
/// both after vCPU 0. (Sections 7.2 and 7.3 of our reference on Credit, which is not in this
/// repository.)
#[test]
fn xen_credit_accounting_visits_the_newest_active_vcpu_first() {
    let trace = simulate(
        "title = \"order\"\nlength = \"300ms\"\n\
         policy = { name = \"credit\", rules = \"xen-3.0.4\" }\n[host]\ncpus = 1\n\
         [[domain]]\nname = \"x\"\nvcpus = 3\nwork = { kind = \"spin\" }\n\
         share.credit = { cap = \"0.66cpu\" }\n",
    );
    let began = |record: &Record| match *record {
        Record::Ran { vcpu, from, .. } => Some((from.ns() / MS, vcpu.number())),
        _ => None,
    };
    let mut turns: Vec<(u64, u16)> = trace.iter().filter_map(began).collect();
    turns.dedup_by_key(|turn| turn.1);
    let after = |at| turns.iter().copied().filter(|turn| turn.0 >= at).take(3).collect::<Vec<_>>();
    assert_eq!(after(180), [(180, 1), (210, 2), (240, 0)], "{turns:?}");
}

/// Section 15, item 14 of our reference on Credit (not in this repository). Xen 3.0.3 parks a
/// domain that received more than its fair share, even below its cap. So both of its vCPUs are
/// often parked at the same time, a CPU is idle, and the rival domain receives half of a CPU. Xen
/// 3.0.4 added a check that ended this.
#[test]
fn xen_303_credit_parks_domain_at_fair_share_below_cap() {
    let dom = |cap, vcpus| Dom { weight: 256, cap, vcpus, ..HOG };
    let doms = [dom(Some(150), 2), dom(None, 1)];
    for (rules, rival) in [("xen-3.0.3", 50), ("xen-3.0.4", 100), ("exact", 100)] {
        let trace = run(&format!("rules = \"{rules}\""), &host(2, 60 * SECOND), &doms);
        for (used, percent) in used(&trace, &doms).into_iter().zip([100, rival]) {
            let error = used.abs_diff(percent * 60 * SECOND / 100);
            assert!(error <= 5 * PERIOD, "{rules}: used {used}, not {percent} %");
        }
    }
}

/// Section 7.7, item 1 of our reference on Credit (not in this repository). A vCPU that always
/// sleeps during ticks is never charged under Xen's rules, and receives all of the 95 % that it
/// wants. If the vCPU is charged for its CPU time, it receives only half of the CPU.
#[test]
fn xen_credit_vcpu_sleeping_at_ticks_exceeds_fair_share() {
    for (rules, permille) in [("xen-3.0.4", 950), ("exact", 500)] {
        let trace = simulate(&format!(
            "title = \"ticks\"\nlength = \"60s\"\n\
             policy = {{ name = \"credit\", rules = \"{rules}\" }}\n[host]\ncpus = 1\n\
             [[domain]]\nname = \"dodger\"\nshare.credit = {{}}\n\
             work = {{ kind = \"periodic\", period = \"10ms\", work = \"9.5ms\", \
             offset = \"10.2ms\" }}\n\
             [[domain]]\nname = \"hog\"\nshare.credit = {{}}\nwork = {{ kind = \"spin\" }}\n"
        ));
        let used = used(&trace, &[HOG, HOG])[0];
        let error = used.abs_diff(permille * 60 * SECOND / 1_000);
        assert!(error <= 5 * PERIOD, "{rules}: used {used}, not {permille} permille");
    }
}
