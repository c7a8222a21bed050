//! Credit with gangs on the simulated host. Tests the benefit for a guest whose vCPUs share a spin
//! lock, and that other domains lose nothing.

use std::fmt::Write as _;

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::VcpuId;

/// Results of each domain at the end of the run.
#[derive(Clone, Copy, Debug, Default)]
struct DomainResults {
    ran_ns: u64,
    spun_ns: u64,
    rounds: u64,
    /// Time in nanoseconds in which all vCPUs of the domain ran. The next field is the time in
    /// which at least one of them ran.
    all_ns: u64,
    any_ns: u64,
}

/// Runs a guest of four vCPUs on four CPUs beside other domains for ten seconds under these rules.
fn run(parameters: &str, others: &str) -> Vec<DomainResults> {
    run_asking(true, parameters, others)
}

/// Runs a guest of four vCPUs beside other domains for ten seconds under these rules. `gang` says
/// if the guest requests to be a gang.
fn run_asking(gang: bool, parameters: &str, others: &str) -> Vec<DomainResults> {
    let text = format!(
        "title = 't'\nlength = '10s'\npolicy = {{ name = 'credit', {parameters} }}\n\
         [host]\ncpus = 4\nswitch = '5us'\n\
         [[domain]]\nname = 'guest'\nvcpus = 4\nshare.credit = {{ weight = 1024, gang = {gang} }}\n\
         work = {{ kind = 'spinlock', compute = 'exponential 80us', hold = '10us' }}\n{others}"
    );
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}", error.line));
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    let mut had = vec![DomainResults::default(); scenario.domains.len()];
    let mut of = |vcpu: VcpuId, add: &dyn Fn(&mut DomainResults)| {
        add(&mut had[vcpu.domain().number() as usize]);
    };
    for record in &records {
        match *record {
            Record::Ran { vcpu, used, .. } => of(vcpu, &|had| had.ran_ns += used.ns()),
            Record::Spun { vcpu, used, .. } => of(vcpu, &|had| had.spun_ns += used.ns()),
            Record::Job { vcpu, .. } => of(vcpu, &|had| had.rounds += 1),
            _ => {}
        }
    }
    (had[0].all_ns, had[0].any_ns) = together(&records);
    had
}

/// Returns the time in which all four vCPUs of the first domain ran, and the time in which at least
/// one ran.
fn together(records: &[Record]) -> (u64, u64) {
    let mut edges: Vec<(u64, i64)> = Vec::new();
    for record in records {
        if let Record::Ran { vcpu, from, to, .. } = *record
            && vcpu.domain().number() == 0
        {
            edges.extend([(from.ns(), 1), (to.ns(), -1)]);
        }
    }
    edges.sort_unstable();
    let (mut running, mut all, mut any) = (0, 0, 0);
    for pair in edges.windows(2) {
        running += pair[0].1;
        let length = pair[1].0 - pair[0].0;
        all += if running == 4 { length } else { 0 };
        any += if running > 0 { length } else { 0 };
    }
    (all, any)
}

/// Domains that always compute and join one after the other.
fn hogs(count: u64, weight: u64) -> String {
    let mut text = String::new();
    for number in 0..count {
        let joins = 3 * number;
        let _ = write!(
            text,
            "[[domain]]\nname = 'hog{number}'\njoins = '{joins}ms'\n\
             work = {{ kind = 'spin' }}\nshare.credit = {{ weight = {weight} }}\n"
        );
    }
    text
}

/// Checks that the CPU times of two runs differ at most by the error of credit accounting in both
/// runs. The error of a run is n + 2 accounting periods for each vCPU, where n is the number of
/// active vCPUs.
fn have_the_same(without: &[DomainResults], with: &[DomainResults]) {
    for (number, (one, other)) in without.iter().zip(with).enumerate() {
        let vcpus = if number == 0 { 4 } else { 1 };
        let bound = vcpus * 2 * (without.len() as u64 + 3 + 2) * 30_000_000;
        let differ = one.ran_ns.abs_diff(other.ran_ns);
        assert!(differ <= bound, "domain {number}: {one:?}, {other:?}");
    }
}

/// Sibling vCPUs that stay out of step by a few milliseconds spend nearly all of their time
/// spinning. A gang avoids that.
#[test]
fn relaxed_gang_scheduling_increases_work_without_cost_to_other_domains() {
    for (hogs, times) in [(hogs(4, 256), 50), (hogs(5, 205), 3)] {
        let (without, with) = (run("", &hogs), run("gang = 'relaxed'", &hogs));
        have_the_same(&without, &with);
        let (without, with) = (without[0], with[0]);
        assert!(with.rounds > times * without.rounds, "{without:?}, {with:?}");
        assert!(without.spun_ns > without.ran_ns / 2, "{without:?}");
        assert!(with.spun_ns < with.ran_ns / 8, "{with:?}");
        // The vCPUs of a gang run at the same time.
        assert!(without.all_ns < without.any_ns / 2, "{without:?}");
        assert!(with.all_ns > with.any_ns * 2 / 3, "{with:?}");
    }
}

/// The domains beside the gang have vCPUs that sleep, and that take precedence when they wake.
#[test]
fn domains_with_waking_vcpus_lose_no_time_to_a_gang() {
    let others = hogs(3, 256)
        + "[[domain]]\nname = 'int'\ncopies = 2\nshare.credit = { weight = 256 }\n\
           work = { kind = 'interactive', compute = 'exponential 2ms', sleep = '5ms' }\n";
    let (without, with) = (run("", &others), run("gang = 'relaxed'", &others));
    have_the_same(&without, &with);
    assert!(with[0].rounds > 3 * without[0].rounds, "{without:?}, {with:?}");
}

/// On a host without other domains, no vCPU of the gang ever waits for a CPU.
#[test]
fn gang_rule_changes_nothing_if_the_gang_is_alone() {
    let (without, with) = (run("", ""), run("gang = 'relaxed'", ""));
    assert_eq!(without[0].rounds, with[0].rounds);
}

/// Two other domains with a whole CPU each leave two CPUs to the gang's four vCPUs. So the four can
/// never run at the same time. But a vCPU that spins is preempted soon, so the holder of the lock
/// runs sooner.
#[test]
fn gang_rule_increases_work_even_with_too_few_free_cpus() {
    let others = hogs(2, 512);
    let (without, with) = (run("", &others), run("gang = 'relaxed'", &others));
    have_the_same(&without, &with);
    assert!(with[0].rounds > 5 * without[0].rounds, "{without:?}, {with:?}");
    assert!(with[0].spun_ns > with[0].ran_ns / 2, "{with:?}");
}

/// A domain that does not request to be a gang is no gang. Enabling the gang rule alone changes
/// nothing.
#[test]
fn gang_rule_applies_only_to_domains_requesting_gang_scheduling() {
    let others = hogs(4, 256);
    let none = run_asking(false, "gang = 'none'", &others);
    let relaxed = run_asking(false, "gang = 'relaxed'", &others);
    assert_eq!(none[0].rounds, relaxed[0].rounds);
    assert!(run("gang = 'relaxed'", &others)[0].rounds > none[0].rounds);
}
