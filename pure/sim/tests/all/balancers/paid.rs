//! Costs of balancing: which vCPU pays for the balancer's calls and when, and the effect on other
//! vCPUs.

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Span, Time};

use super::hosts::{Got, Guest, Host, MS, run, run_text, text};
use super::random::Dice;

const US: u64 = 1_000;
const BALANCERS: [&str; 3] = ["thesis", "repaired", "planned"];

/// Returns the host key for balancer calls that take `us` microseconds each, independent of the
/// number of CPUs and vCPUs.
fn calls(us: u64) -> String {
    format!("balancing = {{ call = '{us}us' }}")
}

fn three_loops_and_dom0() -> Vec<Guest> {
    vec![Guest::hog(0, 1), Guest::hog(1, 1), Guest::hog(1, 1), Guest::promised(0, 5 * MS, 20 * MS)]
}

/// Returns the times at which the balancer's calls were complete. At these times the vCPU that is
/// charged for the calls blocked again.
fn paid(got: &Got, payer: usize) -> Vec<Time> {
    let blocked = |record: &Record| match *record {
        Record::Blocked { at, vcpu } if vcpu.slot() == payer => Some(at),
        _ => None,
    };
    got.trace.iter().filter_map(blocked).collect()
}

/// Returns the times of all migrations.
fn moved(got: &Got, slots: usize) -> Vec<Time> {
    let of = |slot: usize| {
        let own: Vec<_> = got.stretches.iter().filter(|on| on.slot == slot).collect();
        let pairs = own.windows(2).filter(|pair| pair[0].cpu != pair[1].cpu);
        pairs.map(|pair| pair[1].from).collect::<Vec<Time>>()
    };
    (0..slots).flat_map(of).collect()
}

/// Returns true if the migration at `at` followed a paid call immediately, or with the next
/// timeslice of slack.
fn follows(at: Time, paid: &[Time]) -> bool {
    let quantum = Span::from_us(500);
    paid.iter().any(|&paid| paid <= at && at.since(paid) <= quantum)
}

/// Figure 4.4 of the thesis [Diestelhorst], with costs. The balancer makes 20 calls per second.
/// Each call takes 5 us, plus 200 ns for each of two CPUs and 50 ns for each of four vCPUs. The
/// balancer vCPU uses exactly that CPU time. The balancer migrates vCPUs only after a paid call,
/// and as many vCPUs as without costs.
#[test]
fn cost_of_balancer_calls_is_charged_to_the_balancer_vcpu() {
    let guests = three_loops_and_dom0();
    for balancer in BALANCERS {
        let keys = "balancing = { call = '5us', cpu = '200ns', vcpu = '50ns' }".to_owned();
        let host = Host { balancer, keys, length: 62_000 * MS, ..Host::default() };
        let got = run(&host, &guests);
        let had = got.had(4, 2_000..62_000).ns();
        assert_eq!(had, 1_200 * 5_600, "{balancer}: 1,200 calls in a minute");
        for slot in 0..3 {
            let had = got.had(slot, 2_000..62_000).ns() / (60 * MS);
            assert!(had.abs_diff(583) <= 3, "{balancer}: {slot} had {had}");
        }
        assert_eq!(got.missed(host.length), [], "{balancer}");
        if balancer != "planned" {
            let free = run(&Host { keys: String::new(), ..host }, &guests);
            assert_eq!(got.moves(2_000..62_000), free.moves(2_000..62_000), "{balancer}");
            let paid = paid(&got, 4);
            assert!(moved(&got, 3).iter().all(|&at| follows(at, &paid)), "{balancer}");
        }
    }
}

/// A balancer call of 250 us takes 100 us in each of two periods of 50 ms, and 50 us in a third. So
/// there is a call every 150 ms, and vCPUs migrate with every tenth call, every 1.5 s. No other
/// vCPU's slice lacks a nanosecond.
#[test]
fn balancer_call_longer_than_slice_continues_in_next_period() {
    let guests = three_loops_and_dom0();
    let host =
        Host { balancer: "repaired", keys: calls(250), length: 62_000 * MS, ..Host::default() };
    let got = run(&host, &guests);
    for period in 0..1_240 {
        let had = got.had(4, period * 50..(period + 1) * 50).ns();
        assert!(had <= 100 * US, "{had} ns in period {period}");
    }
    assert_eq!(got.had(4, 2_000..62_000).ns() / (250 * US), 400, "one call in each 150 ms");
    assert_eq!(got.moves(2_000..62_000), 80);
    assert_eq!(got.missed(host.length), []);
}

/// Another vCPU reserves all of CPU 0 except the balancer's share. This vCPU has a period of 7 ms,
/// so it leaves 14 us in each 7 ms for the balancer's call of 90 us. The call completes, and its
/// migrations follow late but within 50 ms. (Case M6 of our reference on balancers, which is not in
/// this repository.)
#[test]
fn balancer_call_on_full_cpu_completes_late_but_within_period() {
    let mut guests = vec![Guest::promised(0, 6_986 * US, 7 * MS)];
    guests.extend([1, 2, 2].map(|cpu| Guest::hog(cpu, 1)));
    for balancer in ["thesis", "repaired"] {
        let host =
            Host { cpus: 3, balancer, keys: calls(90), length: 32_000 * MS, ..Host::default() };
        let got = run(&host, &guests);
        assert_eq!(got.missed(host.length), [], "{balancer}");
        let paid = paid(&got, 4);
        assert_eq!(paid.len(), 639, "{balancer}: a call in each period");
        let late = |(nth, at): (usize, &Time)| at.ns() - (nth as u64 + 1) * 50 * MS;
        let late: Vec<u64> = paid.iter().enumerate().map(late).collect();
        let (least, most) = (late.iter().min().unwrap(), late.iter().max().unwrap());
        assert!(*most < 50 * MS && *most > 45 * MS, "{balancer}: up to {most} ns late");
        assert!(*least > MS, "{balancer}: a call is only {least} ns late");
        let moved = moved(&got, 4);
        assert!(moved.len() > 100, "{balancer}: {} moves", moved.len());
        for at in moved {
            assert!(follows(at, &paid), "{balancer}: a vCPU migrated at {at} without a paid call");
        }
    }
}

/// On 40 random hosts, other vCPUs reserve all of CPU 0 except the balancer's share. Each balancer
/// call of up to 100 us completes within its period, and no vCPU misses a slice.
#[test]
fn vcpus_beside_balancer_miss_no_slice_on_full_cpu() {
    for seed in 1..=40 {
        let mut dice = Dice(seed);
        let (mut guests, mut left) = (Vec::new(), 998_000);
        for others in (0..1 + dice.below(5)).rev() {
            let part = if others == 0 { left } else { 5_000 + dice.below(left / 2) };
            left -= part;
            let period = (1 + dice.below(150)) as u64 * MS;
            guests.push(Guest::promised(0, period / 1_000_000 * part as u64, period));
        }
        guests.extend([1, 2, 2].map(|cpu| Guest::hog(cpu, 1)));
        let balancer = BALANCERS[dice.below(3)];
        let keys = calls(1 + dice.below(100) as u64);
        let host = Host { cpus: 3, balancer, keys, length: 5_000 * MS, ..Host::default() };
        let got = run(&host, &guests);
        assert_eq!(got.missed(host.length), [], "seed {seed}");
        let paid = paid(&got, guests.len());
        assert_eq!(paid.len(), 99, "seed {seed}: a call in each period");
        for (nth, at) in paid.iter().enumerate() {
            let due = (nth as u64 + 1) * 50 * MS;
            assert!((due..due + 50 * MS).contains(&at.ns()), "seed {seed}: call {nth} at {at}");
        }
    }
}

/// A reservation is refused if it exceeds the capacity of CPU 0 minus the balancer's share. The
/// error names the requested reservation and the limit. The order of the joins does not matter.
#[test]
fn reservation_of_the_balancer_share_of_cpu_0_is_refused() {
    let refused = |fields: &str, guests: &[Guest]| {
        let host = Host {
            balancer: "repaired",
            fields: fields.to_owned(),
            keys: calls(5),
            ..Host::default()
        };
        let scenario = Scenario::read(&text(&host, guests)).expect("the scenario can be read");
        let refused = scenario.admit().expect_err("the reservations exceed the CPU").to_string();
        let ran = slackline_sim::run(&scenario, &mut ())
            .expect_err("the reservations exceed the CPU")
            .to_string();
        assert_eq!(ran, refused, "the trial admission and the run give the same error");
        refused
    };
    let too_much = Guest::promised(0, 19_961 * US, 20 * MS);
    assert_eq!(
        refused("", std::slice::from_ref(&too_much)),
        "sedf cannot admit `g0`: 19.961ms every 20ms (0.99805cpu) does not fit: 0cpu of at most \
         0.998cpu is already reserved on the CPU"
    );
    let later = Guest { joins: MS, ..too_much };
    assert_eq!(
        refused("", &[Guest::hog(1, 1), later]),
        "sedf cannot admit `g1`: 19.961ms every 20ms (0.99805cpu) does not fit: 0.002cpu of at \
         most 1cpu is already reserved on the CPU"
    );
    assert_eq!(
        refused(", balancer-slice = '1us'", &[Guest::hog(0, 1)]),
        "sedf cannot admit `[balancer]`: a slice of 1us is too short: the shortest is 5us"
    );
}

/// If balancer calls have no cost, or there is nothing to balance, no vCPU pays for calls and the
/// trace is unchanged.
#[test]
fn balancer_with_calls_that_cost_nothing_leaves_the_trace_unchanged() {
    let guests = three_loops_and_dom0();
    let trace = |balancer, cpus, keys: &str| {
        let keys = keys.to_owned();
        let host = Host { balancer, cpus, keys, length: 3_000 * MS, ..Host::default() };
        run(&host, &guests).trace
    };
    for balancer in BALANCERS {
        let free = "balancing = { call = '0us', cpu = '0ns' }";
        assert!(trace(balancer, 2, "") == trace(balancer, 2, free), "{balancer}");
        assert!(trace(balancer, 2, "") != trace(balancer, 2, &calls(5)), "{balancer}");
    }
    assert!(trace("none", 2, "") == trace("none", 2, &calls(5)));
    let one = vec![Guest::hog(0, 1), Guest::promised(0, 5 * MS, 20 * MS)];
    let [free, paid] = [String::new(), calls(5)].map(|keys| {
        let host =
            Host { balancer: "thesis", cpus: 1, keys, length: 1_000 * MS, ..Host::default() };
        run(&host, &one).trace
    });
    assert!(free == paid, "on one CPU, the cost of a call does not change the trace");
}

/// A scenario can name a domain that makes the balancer's calls. The domain can be on any CPU, and
/// makes calls only while it is present.
#[test]
fn domain_named_as_balancer_makes_balancer_calls_while_present() {
    let host = Host { balancer: "repaired", length: 20_000 * MS, ..Host::default() };
    let pays = Guest {
        work: "{ kind = 'clock', period = '50ms', compute = '80us', offset = '10ms' }".into(),
        share: "slice = '100us', period = '50ms', extra = false, balances = true".into(),
        ..Guest::promised(1, 100 * US, 50 * MS)
    };
    let mut guests = [0, 1, 1].map(|cpu| Guest::hog(cpu, 1)).to_vec();
    guests.push(pays);
    let leaves = "name = 'g3'\nleaves = '10s'";
    let text = text(&host, &guests).replace("name = 'g3'", leaves);
    let got = run_text(&text, &guests);
    let moved = moved(&got, 3);
    let (with, without): (Vec<u64>, Vec<u64>) =
        moved.iter().map(|at| at.ns()).partition(|&at| at < 10_000 * MS);
    assert!(with.len() >= 30 && without.len() >= 30, "{with:?}, {without:?}");
    let after = |at: &u64, phase: u64| (at - phase) % (50 * MS) <= 500 * US;
    assert!(with.iter().all(|at| after(at, 10 * MS + 80 * US)), "{with:?}");
    assert!(without.iter().all(|at| after(at, 0)), "{without:?}");
}
