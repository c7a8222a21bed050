//! Tests of the meaning of each key of a scenario.

use slackline_policy::{Groups, Topology, find};
use slackline_scenario::{
    Amount, AmountOrPromised, Balancing, ClaimHosts, Draw, Hold, LiveTarget, MigrationCost,
    Program, Relay, Scenario, Step, Test, Threads, WarmCache, next_instant,
};
use slackline_units::{CpuId, CpuSet, DomId, Span, Time};

/// A scenario that sets every key.
const FULL: &str = r#"
title  = "everything at once"
length = "30s"
warmup = "2s"
seed   = 18446744073709551615
policy = { name = "edf", reserve = "0.1cpu", place = "pack" }

[policies.round-robin]
quantum = "3ms"

[host]
cpus             = 4
threads_per_core = 2
switch           = "3us"
smt              = "65%"
bus              = "92.5%"
migrate          = { core = "1us", node = "20us", host = "80us" }
warm             = { cache = "60%" }
ipi              = "4us"
ticks            = "staggered"
timer_resolution = "1ms"
timer_lateness   = "exponential 5us"
timer_slop       = "50us"
balancing        = { call = "5us", vcpu = "50ns" }
refuse           = "1.5%"

[[domain]]
name  = "web"
vcpus = 2
work  = { kind = "interactive", compute = "exponential 2ms", sleep = "uniform 1ms 3ms" }
share.edf = { slice = "4ms", period = "10ms" }
live  = { command = ["qemu-system-x86_64", "-nographic"], threads = "vcpus" }

[[domain]]
name   = "sound"
work   = { kind = "periodic", period = "20ms", work = "2ms", deadline = "15ms", offset = "1ms" }
joins  = "1s"
leaves = "20s"
[domain.share.edf]
slice  = "3ms"
period = "20ms"
exact  = true

[[domain]]
name   = "job"
copies = 2
vcpus  = 3
work   = { kind = "batch", total = "30s" }
share  = { edf = { slice = "1ms", period = "100ms" } }
cpus   = [1, 2]
[[domain.vcpu]]
number    = 2
cpus      = [3]
share.edf = { slice = "4ms", period = "100ms" }

[[domain]]
name = "old"
live = { pid = 1234 }
share.edf = { slice = "1ms", period = "100ms" }

[[domain]]
name = "traced"
work = { kind = "replay", list = ["3ms", "7ms", "1ms", "0s", "2ms"] }
share.edf = { slice = "1ms", period = "100ms" }

[[domain]]
name = "polite"
vcpus = 2
work = { kind = "yield", compute = "100us" }
share.edf = { slice = "1ms", period = "100ms" }
cpus = [0, 2]
starts_on = 2
wakes = "50ms"
[[domain.vcpu]]
number = 1
starts_on = 0
wakes = "1s"

[[domain]]
name = "dodger"
work = { kind = "clock", period = "10ms", compute = "9ms", offset = "100us" }
share.edf = { slice = "1ms", period = "100ms" }

[[change]]
at = "9s"
domain = "job-1"
share.edf = { slice = "2ms", period = "100ms" }

[[change]]
at     = "11s"
domain = "job-0.1"
cpus   = [0]
paused = true

[[change]]
at = "5s"
domain = "web"
share.edf = { slice = "5ms", period = "10ms" }
share.round-robin = {}

[[claim]]
that = "share of web.1"
is   = "within 2% of promised"

[[claim]]
that = "wake latency p99 of sound"
is   = "below 8ms"
on   = "live"
"#;

fn full() -> Scenario {
    Scenario::read(FULL).unwrap_or_else(|error| panic!("{}: {error}", error.line))
}

/// Returns a scenario that has only the required keys, with the text `rest` added after its domain.
fn least(rest: &str) -> Scenario {
    let text = format!(
        "title = \"least\"\nlength = \"1s\"\npolicy = {{ name = \"round-robin\" }}\n\
         [[domain]]\nname = \"a\"\nwork = {{ kind = \"spin\" }}\n{rest}"
    );
    Scenario::read(&text).unwrap_or_else(|error| panic!("{rest}: {error}"))
}

/// Groups of CPUs as lists of CPU numbers, as users write them.
type Lists<'a> = &'a [&'a [usize]];

/// One group that contains all four CPUs.
const ONE: Lists<'_> = &[&[0, 1, 2, 3]];

/// Builds the topology with these cores, caches, nodes and sockets.
fn groups(cpus: usize, lists: [Lists<'_>; 4]) -> Topology {
    let set = |list: &&[usize]| list.iter().map(|&cpu| CpuId::new(cpu)).collect();
    let [cores, caches, nodes, sockets] = lists.map(|lists| lists.iter().map(set).collect());
    Topology::new(cpus, &Groups { cores, caches, nodes, sockets }).unwrap()
}

#[test]
fn scenario_that_sets_every_key_is_parsed() {
    let scenario = full();
    assert_eq!(scenario.title, "everything at once");
    assert_eq!(scenario.text, FULL);
    assert_eq!((scenario.length, scenario.warmup), (Span::from_secs(30), Span::from_secs(2)));
    assert_eq!(scenario.seed, u64::MAX);
    assert_eq!(scenario.policy.to_string(), "edf reserve=0.1cpu place=pack");
    let host = &scenario.host;
    assert_eq!((host.cpus, host.refuse), (4, 15_000));
    assert_eq!(host.switch, Span::from_us(3));
    let [core, cache, node, host_wide] = [1, 20, 20, 80].map(Span::from_us);
    assert_eq!(host.migrate, MigrationCost { core, cache, node, host: host_wide });
    assert_eq!(host.warm, WarmCache { core: 600_000, cache: 600_000 });
    assert_eq!((host.ipi, host.ticks_are_staggered), (Span::from_us(4), true));
    assert_eq!((host.smt, host.bus), (Some(650_000), Some(925_000)));
    assert_eq!(host.timer_resolution, Span::from_ms(1));
    assert_eq!(host.timer_lateness, Draw::Exponential { mean: Span::from_us(5) });
    assert_eq!(host.timer_slop, Span::from_us(50));
    let [call, vcpu] = [Span::from_us(5), Span::from_ns(50)];
    assert_eq!(host.balancing, Balancing { call, cpu: Span::ZERO, vcpu, line: 24 });
    assert_eq!(host.topology, groups(4, [&[&[0, 1], &[2, 3]], ONE, ONE, ONE]));
    let names: Vec<&str> = scenario.domains.iter().map(|domain| domain.name.as_str()).collect();
    assert_eq!(names, ["web", "sound", "job-0", "job-1", "old", "traced", "polite", "dodger"]);
    let sound = &scenario.domains[1];
    assert_eq!(sound.joins, Time::START + Span::from_secs(1));
    assert_eq!(sound.leaves, Some(Time::START + Span::from_secs(20)));
    assert_eq!(sound.line, 34);
}

#[test]
fn scenario_keys_that_are_omitted_take_their_defaults() {
    let scenario = least("");
    assert_eq!((scenario.warmup, scenario.seed), (Span::ZERO, 1));
    assert_eq!(scenario.policy.to_string(), "round-robin");
    let host = &scenario.host;
    assert_eq!((host.cpus, host.refuse), (1, 0));
    assert_eq!((host.switch, host.migrate), (Span::ZERO, MigrationCost::default()));
    assert_eq!(
        (host.warm, host.ipi, host.ticks_are_staggered),
        (WarmCache::default(), Span::ZERO, false)
    );
    assert_eq!((host.smt, host.bus), (None, None));
    assert_eq!(host.balancing, Balancing::default());
    assert_eq!(host.timer_resolution, Span::ZERO);
    assert_eq!(host.timer_lateness, Draw::Fixed(Span::ZERO));
    assert_eq!(host.timer_slop, Span::ZERO);
    assert_eq!(host.topology, Topology::flat(1));
    let domain = &scenario.domains[0];
    assert_eq!((domain.vcpus.len(), domain.joins, domain.leaves), (1, Time::START, None));
    assert_eq!(domain.live, None);
}

#[test]
fn simulated_topology_is_built_from_scenario_host_keys() {
    let pairs: Lists<'_> = &[&[0, 1], &[2, 3]];
    let halves: Lists<'_> = &[&[0, 2], &[1, 3]];
    let singles: Lists<'_> = &[&[0], &[1], &[2], &[3]];
    let cases: [(&str, [Lists<'_>; 4]); 8] = [
        ("", [singles, ONE, ONE, ONE]),
        ("numbering = 'spread'", [singles, ONE, ONE, ONE]),
        ("threads_per_core = 2\nnumbering = 'spread'", [halves, ONE, ONE, ONE]),
        ("threads_per_core = 2\nnumbering = 'neighbours'", [pairs, ONE, ONE, ONE]),
        (
            "threads_per_core = 2\nnumbering = 'spread'\ncores_per_socket = 1",
            [halves, halves, halves, halves],
        ),
        ("cores_per_socket = 2", [singles, pairs, pairs, pairs]),
        ("cores = [[3], [1], [0, 2]]\nnodes = [[1, 3], [0, 2]]", {
            [&[&[0, 2], &[1], &[3]], halves, halves, ONE]
        }),
        (
            "caches = [[0], [1, 2], [3]]\nnodes = [[0], [3, 2, 1]]\nsockets = [[1, 2, 3], [0]]",
            [singles, &[&[0], &[1, 2], &[3]], &[&[0], &[1, 2, 3]], &[&[0], &[1, 2, 3]]],
        ),
    ];
    for (says, means) in cases {
        let scenario = least(&format!("[host]\ncpus = 4\n{says}\n"));
        assert_eq!(scenario.host.topology, groups(4, means), "{says}");
        assert_eq!(scenario.host.topology.cpus(), scenario.host.cpus);
    }
}

#[test]
fn scenario_vcpu_slots_and_domain_ids_are_numbered_without_gaps() {
    let scenario = full();
    for (index, domain) in scenario.domains.iter().enumerate() {
        assert_eq!(domain.id.number() as usize, index);
        for (number, vcpu) in domain.vcpus.iter().enumerate() {
            assert_eq!((vcpu.domain(), usize::from(vcpu.number())), (domain.id, number));
        }
    }
    let vcpus: Vec<_> = scenario.vcpus().collect();
    assert!(vcpus.iter().enumerate().all(|(slot, (vcpu, _))| vcpu.slot() == slot));
    let names: Vec<&str> = vcpus.iter().map(|(_, name)| name.as_str()).collect();
    let jobs = ["job-0.0", "job-0.1", "job-0.2", "job-1.0", "job-1.1", "job-1.2"];
    assert_eq!(names[..3], ["web.0", "web.1", "sound"]);
    assert_eq!(names[3..9], jobs);
    assert_eq!(names[9..], ["old", "traced", "polite.0", "polite.1", "dodger"]);
}

/// The domain of the balancer comes last, and its affinity is CPU 0. The cost of a balancer call is
/// 5 us, plus 50 ns for each of 14 vCPUs.
#[test]
fn scenario_has_balancer_domain_only_if_balancer_calls_cost_time() {
    assert_eq!(full().simulated().domains.len(), 8, "edf does not");
    let edf = r#"{ name = "edf", reserve = "0.1cpu", place = "pack" }"#;
    let sedf = FULL.replace(edf, r#"{ name = "sedf", balancer = "thesis" }"#);
    let sedf = Scenario::read(&sedf).unwrap();
    let simulated = sedf.simulated();
    let [others @ .., payer] = &simulated.domains[..] else { panic!("domains") };
    assert_eq!((others.len(), payer.name.as_str(), payer.line), (8, "[balancer]", 24));
    assert_eq!((payer.id, payer.vcpus[0].slot()), (DomId::new(8), 14));
    assert_eq!(simulated.cpus(payer.vcpus[0]), CpuSet::one(CpuId::new(0)));
    let instant = Step::Instant { period: Span::from_ms(50), offset: Span::ZERO };
    let cost = Draw::Fixed(Span::from_ns(5_700));
    assert_eq!(payer.program, Program::by_the_clock(instant, Step::Compute(cost)));
    let free = FULL.replace("balancing ", "# balancing ");
    let free = free.replace(edf, r#"{ name = "sedf", balancer = "thesis" }"#);
    assert_eq!(Scenario::read(&free).unwrap().simulated().domains.len(), 8, "it is free");
}

#[test]
fn workload_of_each_domain_is_translated_into_a_program() {
    let scenario = full();
    let fixed = |ms| Draw::Fixed(Span::from_ms(ms));
    let program = |index: usize| &scenario.domains[index].program;
    let uniform = Draw::Uniform { least: Span::from_ms(1), most: Span::from_ms(3) };
    let compute = Draw::Exponential { mean: Span::from_ms(2) };
    assert_eq!(program(0).steps, [Step::Compute(compute), Step::Sleep(uniform)]);
    let release = Step::Release {
        period: Span::from_ms(20),
        deadline: Some(Span::from_ms(15)),
        offset: Span::from_ms(1),
        gap: fixed(0),
        jitter: fixed(0),
    };
    assert_eq!(program(1).steps, [release, Step::Compute(fixed(2)), Step::Done]);
    assert_eq!(program(2), &Program::batch(Span::from_secs(30)));
    assert_eq!(program(4), &Program::spin());
    let replay = [
        Step::Compute(fixed(3)),
        Step::Sleep(fixed(7)),
        Step::Compute(fixed(1)),
        Step::Compute(fixed(2)),
    ];
    assert_eq!(program(5).steps, replay);
    let compute = |us| Step::Compute(Draw::Fixed(Span::from_us(us)));
    assert_eq!(program(6).steps, [compute(100), Step::Yield]);
    let instant = Step::Instant { period: Span::from_ms(10), offset: Span::from_us(100) };
    assert_eq!(program(7).steps, [instant, compute(9_000)]);
    assert_eq!(
        [0, 1, 2, 4, 5, 6, 7].map(|index| program(index).repeat),
        [true, true, false, false, true, true, true]
    );
}

#[test]
fn recording_file_becomes_a_program_of_runs_and_blocks() {
    let text = FULL.replace(
        "list = [\"3ms\", \"7ms\", \"1ms\", \"0s\", \"2ms\"]",
        "file = \"recorded/web.csv\"",
    );
    let load = |path: &str| {
        assert_eq!(path, "recorded/web.csv");
        Ok("run_ns,block_ns\n3000000,7000000\n1000000,0\n".to_owned())
    };
    let scenario = Scenario::with_files(&text, &load).unwrap();
    let fixed = |ms| Draw::Fixed(Span::from_ms(ms));
    let steps = [Step::Compute(fixed(3)), Step::Sleep(fixed(7)), Step::Compute(fixed(1))];
    assert_eq!(scenario.domains[5].program.steps, steps);
}

#[test]
fn live_target_agent_and_relay_of_scenario_domain_are_parsed() {
    let scenario = full();
    let argv = ["qemu-system-x86_64", "-nographic"].map(str::to_owned).to_vec();
    let command = LiveTarget::Command { argv, threads: Threads::Vcpus };
    assert_eq!(scenario.domains[0].live, Some(command));
    let process = LiveTarget::Pid { pid: 1234, threads: Threads::Process };
    assert_eq!(scenario.domains[4].live, Some(process));
    for (live, target) in [
        ("cgroup = \"/a/b\"", LiveTarget::Cgroup { path: "/a/b".into() }),
        ("unit = \"web.service\"", LiveTarget::Unit { name: "web.service".into() }),
    ] {
        let text = format!(
            "title = \"group\"\nlength = \"1s\"\npolicy = {{ name = \"edf\" }}\n\
             [[domain]]\nname = \"it\"\nlive = {{ {live} }}\n\
             share.edf = {{ slice = \"1ms\", period = \"10ms\" }}\n"
        );
        let domain = &Scenario::read(&text).unwrap().domains[0];
        assert_eq!((&domain.live, &domain.agent), (&Some(target), &None));
        let text = text.replace("live = { ", "live = { agent = \"/run/it.gaps\", ");
        let agent = Scenario::read(&text).unwrap().domains[0].agent.clone();
        assert_eq!(agent.as_deref(), Some("/run/it.gaps"));
        let relay = "live = { relay = { guest = \"/run/a\", outside = \"/run/b\" }, ";
        let text = text.replace("live = { ", relay);
        let relay = Scenario::read(&text).unwrap().domains[0].relay.clone();
        assert_eq!(relay, Some(Relay { guest: "/run/a".into(), outside: "/run/b".into() }));
    }
}

#[test]
fn domain_without_share_takes_policy_default_or_is_refused() {
    let scenario = full();
    let (edf, round_robin) = (find("edf").unwrap(), find("round-robin").unwrap());
    let sound = &scenario.domains[1];
    let share = sound.share(sound.vcpus[0], edf).unwrap();
    let promise = (edf.promise)(&share).unwrap().unwrap();
    assert_eq!(promise.reservation.to_string(), "3ms/20ms");
    assert!(promise.exact);
    assert_eq!(sound.share(sound.vcpus[0], round_robin).unwrap().iter().count(), 0);
    let bare = &least("").domains[0];
    let error = bare.share(bare.vcpus[0], edf).unwrap_err();
    assert_eq!(error.to_string(), "domain `a` has no share for policy `edf`");
    assert_eq!((error.line, error.column), (4, 1));
}

/// Each vCPU of a domain gets an equal share, rounded down. Unused budget is lent to the other
/// vCPUs of the domain, unless the file sets another `spread`. A domain with a single vCPU lends no
/// budget.
#[test]
fn domain_cpu_share_is_divided_equally_among_vcpus() {
    let edf = find("edf").unwrap();
    for (vcpus, said, slice, spread) in [
        (4, "cpu = \"1.5cpu\"", "3.75ms", "use"),
        (3, "cpu = \"100%\"", "3.333333ms", "use"),
        (2, "cpu = \"2cpu\", spread = \"even\"", "10ms", "even"),
        (1, "cpu = \"0.3cpu\"", "3ms", "even"),
    ] {
        let text = format!(
            "title = \"together\"\nlength = \"10s\"\npolicy = {{ name = \"edf\" }}\n\
             [[domain]]\nname = \"web\"\nvcpus = {vcpus}\nwork = {{ kind = \"spin\" }}\n\
             share.edf = {{ period = \"10ms\", {said} }}\n\
             [[change]]\nat = \"5s\"\ndomain = \"web\"\n\
             share.edf = {{ period = \"10ms\", {said} }}\n"
        );
        let scenario = Scenario::read(&text).unwrap();
        let changed = scenario.changes[0].share(edf).unwrap();
        let web = &scenario.domains[0];
        for share in web.vcpus.iter().map(|vcpu| web.share(*vcpu, edf).unwrap()).chain([changed]) {
            let said =
                format!("slice={slice} period=10ms exact=false overrun=forgive spread={spread}");
            assert_eq!(share.to_string(), said);
        }
    }
}

#[test]
fn vcpu_of_a_domain_may_have_own_share_and_affinity() {
    let scenario = full();
    let edf = find("edf").unwrap();
    let job = &scenario.domains[2];
    let [first, _, last] = job.vcpus[..] else { panic!("three vCPUs") };
    let promised = |vcpu| {
        let share = job.share(vcpu, edf).unwrap();
        (edf.promise)(&share).unwrap().unwrap().reservation.to_string()
    };
    assert_eq!((promised(first), promised(last)), ("1ms/100ms".into(), "4ms/100ms".into()));
    let some: CpuSet = [1, 2].map(CpuId::new).into_iter().collect();
    assert_eq!(job.cpus(first), Some(some));
    assert_eq!(job.cpus(last), Some(CpuSet::one(CpuId::new(3))));
    assert!(job.is_confined() && !scenario.domains[0].is_confined());
    assert_eq!(scenario.domains[0].cpus(scenario.domains[0].vcpus[0]), None);
}

/// The settings of a vCPU override the settings of its domain.
#[test]
fn vcpu_may_be_configured_to_start_blocked_on_given_cpu() {
    let scenario = full();
    let (sound, polite) = (&scenario.domains[1], &scenario.domains[6]);
    let of = |number: usize| {
        (polite.starts_on(polite.vcpus[number]), polite.wakes(polite.vcpus[number]))
    };
    assert_eq!(of(0), (Some(CpuId::new(2)), Time::START + Span::from_ms(50)));
    assert_eq!(of(1), (Some(CpuId::new(0)), Time::START + Span::from_secs(1)));
    assert_eq!(sound.starts_on(sound.vcpus[0]), None);
    assert_eq!(sound.wakes(sound.vcpus[0]), sound.joins);
}

/// The expected instant is found by a search through all instants in order.
#[test]
fn next_instant_of_periodic_program_step_is_first_after_now() {
    for (period, offset) in [(10, 0), (10, 3), (10, 9), (10, 25), (1, 0), (7, 6)] {
        for now in 0..60 {
            let instants = (0..=60).map(|n| offset % period + n * period);
            let later = instants.into_iter().find(|&instant| instant > now);
            let (period, offset) = (Span::from_ns(period), Span::from_ns(offset));
            let next = next_instant(Time::from_ns(now), period, offset);
            assert_eq!(Some(next.ns()), later, "after {now}: {offset} + n * {period}");
        }
    }
}

#[test]
fn changes_in_a_scenario_are_sorted_by_time() {
    let scenario = full();
    let (edf, round_robin) = (find("edf").unwrap(), find("round-robin").unwrap());
    let secs = |secs| Time::START + Span::from_secs(secs);
    let changes = scenario.changes.iter().map(|change| (change.at, change.domain));
    assert_eq!(changes.collect::<Vec<_>>(), [(secs(5), 0), (secs(9), 3), (secs(11), 2)]);
    let [first, second, third] = scenario.changes.as_slice() else { panic!("three changes") };
    let promise = (edf.promise)(&first.share(edf).unwrap()).unwrap().unwrap();
    assert_eq!(promise.reservation.to_string(), "5ms/10ms");
    assert!(first.share(round_robin).is_some() && second.share(round_robin).is_none());
    assert!(first.line > second.line);
    assert_eq!(scenario.vcpus_of(second), scenario.domains[3].vcpus);
    assert_eq!(scenario.vcpus_of(third), &scenario.domains[2].vcpus[1..2]);
    assert_eq!((third.cpus, third.hold), (Some(CpuSet::first_n(1)), Some(Hold::Pause)));
    assert!(third.share(edf).is_none() && first.cpus.is_none() && first.hold.is_none());
}

#[test]
fn scenario_under_another_policy_takes_parameters_of_that_policy() {
    let scenario = full();
    let other = scenario.with_policy("round-robin").unwrap();
    assert_eq!(other.policy.to_string(), "round-robin quantum=3ms");
    assert_eq!(other.domains.len(), scenario.domains.len());
    let same = scenario.with_policy("edf").unwrap();
    assert_eq!(same.policy.to_string(), "edf reserve=0.1cpu place=pack");
    let error = least("").with_policy("edf").unwrap_err();
    assert_eq!(error.to_string(), "domain `a` has no share for policy `edf`");
    let plain = FULL.replace("[policies.round-robin]\nquantum = \"3ms\"", "");
    let other = Scenario::read(&plain).unwrap().with_policy("round-robin").unwrap();
    assert_eq!(other.policy.to_string(), "round-robin");
}

#[test]
fn scenario_claims_are_parsed_with_metric_subject_and_hosts() {
    let scenario = full();
    let [share, latency] = scenario.claims.as_slice() else { panic!("two claims") };
    assert_eq!((share.metric.as_str(), share.of.as_deref()), ("share", Some("web.1")));
    assert_eq!(share.to_string(), "share of web.1 is within 2% of promised");
    assert_eq!((share.on, latency.on), (ClaimHosts::Both, ClaimHosts::Live));
    let of_latency = (latency.metric.as_str(), latency.of.as_deref());
    assert_eq!(of_latency, ("wake latency p99", Some("sound")));
    assert_eq!(latency.test, Test::Below(Amount::Span(Span::from_ms(8))));
    assert_eq!(latency.line, 105);
}

#[test]
fn every_scenario_claim_comparison_is_unchanged_if_printed_and_parsed() {
    let ppm = |ppm| Amount::Ppm(ppm);
    let amount = AmountOrPromised::Amount;
    let promised = AmountOrPromised::Promised;
    let percent = |tolerance_ppm, of| Test::WithinPercent { tolerance_ppm, of };
    let points = |tolerance_ppm, of| Test::WithinPoints { tolerance_ppm, of };
    let cases = [
        ("below 8ms", Test::Below(Amount::Span(Span::from_ms(8)))),
        ("above 20%", Test::Above(ppm(200_000))),
        ("above -0.25%", Test::Above(ppm(-2_500))),
        ("at most 0", Test::AtMost(Amount::Count(0))),
        ("at least 150%", Test::AtLeast(ppm(1_500_000))),
        ("within 2.5% of promised", percent(25_000, promised)),
        ("within 10% of 8ms", percent(100_000, amount(Amount::Span(Span::from_ms(8))))),
        ("within 0.5 points of 33.3333%", points(5_000, amount(ppm(333_333)))),
        ("within 1 points of promised", points(10_000, promised)),
    ];
    for (is, test) in cases {
        let scenario = least(&format!("[[claim]]\nthat = \"share of a\"\nis = \"{is}\""));
        assert_eq!(scenario.claims[0].test, test, "{is}");
        assert_eq!(test.to_string(), is);
    }
}

#[test]
fn scenario_claim_without_a_domain_applies_to_all_domains() {
    for that in ["misses", "misses of total"] {
        let scenario = least(&format!("[[claim]]\nthat = \"{that}\"\nis = \"at most 0\""));
        assert_eq!((scenario.claims[0].metric.as_str(), &scenario.claims[0].of), ("misses", &None));
    }
    let scenario = least("[[claim]]\nthat = \"refused\"");
    assert_eq!(scenario.claims[0].test, Test::Refused);
    assert_eq!(scenario.claims[0].to_string(), "the domains are refused");
    let scenario = least("[[claim]]\nthat = \"refused\"\nis = \"above 0\"");
    assert_eq!(scenario.claims[0].test, Test::Above(Amount::Count(0)));
}

#[test]
fn scenario_with_a_million_vcpus_is_accepted() {
    let text = "title = \"many\"\nlength = \"1s\"\npolicy = { name = \"round-robin\" }\n\
                [[domain]]\nname = \"a\"\nvcpus = 50000\ncopies = 20\nwork = { kind = \"spin\" }\n";
    let scenario = Scenario::read(text).unwrap();
    assert_eq!(scenario.vcpus().count(), 1_000_000);
    let last = scenario.domains.last().unwrap();
    assert_eq!((last.name.as_str(), last.id), ("a-19", DomId::new(19)));
}

#[test]
fn scenario_with_over_65536_domain_copies_in_total_is_refused() {
    let text = |first: usize, second: usize| {
        format!(
            "title = \"many\"\nlength = \"1s\"\npolicy = {{ name = \"round-robin\" }}\n\
             [[domain]]\nname = \"a\"\ncopies = {first}\nwork = {{ kind = \"spin\" }}\n\
             [[domain]]\nname = \"b\"\ncopies = {second}\nwork = {{ kind = \"spin\" }}\n"
        )
    };
    assert_eq!(Scenario::read(&text(65_535, 1)).unwrap().domains.len(), 65_536);
    for (first, second, most) in [(65_537, 1, 65_536), (60_000, 6_000, 5_536)] {
        let error = Scenario::read(&text(first, second)).unwrap_err().to_string();
        assert!(error.contains(&format!("must be from 1 to {most}")), "{error}");
    }
}
