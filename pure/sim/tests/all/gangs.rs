//! Credit with gangs on the simulated host: what bringing siblings along is worth to a guest whose
//! vCPUs share a spin lock, and that it takes nothing from others.

use std::fmt::Write as _;

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::VcpuId;

/// What became of each domain until the end.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    ran_ns: u64,
    spun_ns: u64,
    rounds: u64,
    /// How long all its vCPUs ran, and how long any of them did.
    all_ns: u64,
    any_ns: u64,
}

/// Ten seconds of a guest of four vCPUs on four CPUs beside others, under these rules.
fn run(parameters: &str, others: &str) -> Vec<Had> {
    run_asking(true, parameters, others)
}

/// The same, of a guest that asks to be a gang or not.
fn run_asking(gang: bool, parameters: &str, others: &str) -> Vec<Had> {
    let text = format!(
        "title = 't'\nlength = '10s'\npolicy = {{ name = 'credit', {parameters} }}\n\
         [host]\ncpus = 4\nswitch = '5us'\n\
         [[domain]]\nname = 'guest'\nvcpus = 4\nshare.credit = {{ weight = 1024, gang = {gang} }}\n\
         work = {{ kind = 'spinlock', compute = 'exponential 80us', hold = '10us' }}\n{others}"
    );
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}", error.line));
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("a run");
    let mut had = vec![Had::default(); scenario.domains.len()];
    let mut of = |vcpu: VcpuId, add: &dyn Fn(&mut Had)| {
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

/// How long the four vCPUs of the first domain all ran, and how long at least one of them did.
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

/// Others who always compute, each from its own time on.
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

/// Nobody has more or less by more than an account may be off: n + 2 periods for each vCPU.
fn have_the_same(without: &[Had], with: &[Had]) {
    for (number, (one, other)) in without.iter().zip(with).enumerate() {
        let vcpus = if number == 0 { 4 } else { 1 };
        let bound = vcpus * 2 * (without.len() as u64 + 3 + 2) * 30_000_000;
        let differ = one.ran_ns.abs_diff(other.ran_ns);
        assert!(differ <= bound, "domain {number}: {one:?}, {other:?}");
    }
}

/// Out of step by a few milliseconds for ever, siblings use nearly all their time for nothing.
#[test]
fn siblings_that_run_together_do_many_times_as_much_and_nobody_has_less() {
    for (hogs, times) in [(hogs(4, 256), 50), (hogs(5, 205), 3)] {
        let (without, with) = (run("", &hogs), run("gang = 'relaxed'", &hogs));
        have_the_same(&without, &with);
        let (without, with) = (without[0], with[0]);
        assert!(with.rounds > times * without.rounds, "{without:?}, {with:?}");
        assert!(without.spun_ns > without.ran_ns / 2, "{without:?}");
        assert!(with.spun_ns < with.ran_ns / 8, "{with:?}");
        // They are started and stopped at the same instants.
        assert!(without.all_ns < without.any_ns / 2, "{without:?}");
        assert!(with.all_ns > with.any_ns * 2 / 3, "{with:?}");
    }
}

/// Beside those who sleep and wake, who go first when they do.
#[test]
fn those_who_wake_go_first_as_before() {
    let others = hogs(3, 256)
        + "[[domain]]\nname = 'int'\ncopies = 2\nshare.credit = { weight = 256 }\n\
           work = { kind = 'interactive', compute = 'exponential 2ms', sleep = '5ms' }\n";
    let (without, with) = (run("", &others), run("gang = 'relaxed'", &others));
    have_the_same(&without, &with);
    assert!(with[0].rounds > 3 * without[0].rounds, "{without:?}, {with:?}");
}

/// Alone on the host nobody of it ever waits.
#[test]
fn who_is_alone_gains_nothing() {
    let (without, with) = (run("", ""), run("gang = 'relaxed'", ""));
    assert_eq!(without[0].rounds, with[0].rounds);
}

/// Two others who are due a whole CPU each leave two to the four: never can all run, but whoever
/// runs for nothing is stopped soon, and the one with the lock comes sooner.
#[test]
fn on_fewer_cpus_than_it_has_vcpus_a_gang_still_spins_most_of_its_time() {
    let others = hogs(2, 512);
    let (without, with) = (run("", &others), run("gang = 'relaxed'", &others));
    have_the_same(&without, &with);
    assert!(with[0].rounds > 5 * without[0].rounds, "{without:?}, {with:?}");
    assert!(with[0].spun_ns > with[0].ran_ns / 2, "{with:?}");
}

/// Who does not ask for it is not brought along, and the rule alone changes nothing.
#[test]
fn a_gang_is_who_asks_for_it() {
    let others = hogs(4, 256);
    let none = run_asking(false, "gang = 'none'", &others);
    let relaxed = run_asking(false, "gang = 'relaxed'", &others);
    assert_eq!(none[0].rounds, relaxed[0].rounds);
    assert!(run("gang = 'relaxed'", &others)[0].rounds > none[0].rounds);
}
