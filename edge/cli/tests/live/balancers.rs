//! Tests of live VMs on several CPUs of this host: balancers and split vCPUs. Needs root.

use crate::common::live::{self, Live, delivered};
use serde_json::Value;

/// Scenario with three vCPUs that always compute, on two CPUs. Without a balancer they are not
/// migrated: two share a CPU, and the third receives twice as much as each of them.
const THREE: &str = r#"title = "three on two"
length = "4s"
warmup = "500ms"
policy = { name = "sedf" }
[host]
cpus = 2
[[domain]]
name = "a"
work = { kind = "spin" }
share.sedf = { }
[[domain]]
name = "b"
work = { kind = "spin" }
share.sedf = { }
[[domain]]
name = "c"
work = { kind = "spin" }
share.sedf = { }
"#;

/// Runs the scenario [`THREE`]. Returns the CPU time received by the three vCPUs in increasing
/// order, and the number of migrations. Asserts that every thread is restored.
fn run(live: &Live, balancer: &str) -> ([u64; 3], u64) {
    let policy = format!("sedf:balancer={balancer}");
    let words = ["run", "it.toml", "--policy", &policy, "--json", "--save", "it.trace"];
    let json: Value = serde_json::from_str(&live.run(&words).good()).expect("JSON");
    let run = &json["runs"][0];
    let mut had = ["a", "b", "c"].map(|name| delivered(run, name));
    had.sort_unstable();
    let vcpus = run["vcpus"].as_array().expect("all vCPUs");
    let moves = vcpus.iter().map(|vcpu| vcpu["migrations"].as_u64().expect("a number")).sum();
    // The trace of the live run replays to the same decisions.
    let told = live.run(&["replay", "it.trace"]).good();
    assert!(told.ends_with(" decisions, all as recorded\n"), "{balancer}: {told}");
    live.nothing_is_left();
    (had, moves)
}

/// Other programs use the CPUs too. So the test only asserts that the shares are more equal than
/// without a balancer, in at least one of three runs.
#[test]
fn live_balancer_gives_three_vms_on_two_cpus_similar_shares() {
    let Some(live) = live::begin() else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: needs two CPUs");
        return;
    }
    live.place.write("it.toml", THREE.as_bytes());
    let (_, moves) = run(&live, "none");
    assert_eq!(moves, 0, "no vCPU is migrated without a balancer");
    for balancer in ["repaired", "planned"] {
        let runs = std::iter::repeat_with(|| run(&live, balancer)).take(3);
        // At least one migration is expected in each second.
        let is_balanced = |[least, _, most]: [u64; 3], moves| most * 10 <= least * 16 && moves >= 3;
        let mut seen = Vec::new();
        let balanced = runs.inspect(|run| seen.push(*run)).find(|run| is_balanced(run.0, run.1));
        assert!(balanced.is_some(), "{balancer}: shares and moves {seen:?}");
    }
}

/// Three vCPUs with hard limits of 0.55 CPU fit on two CPUs if one of them is split. The two others
/// still receive no more than their limits.
#[test]
fn split_and_unsplit_vcpus_receive_their_slices_on_live_host() {
    let Some(live) = live::begin() else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: needs two CPUs");
        return;
    }
    let share = r#"share.edf = { slice = "55ms", period = "100ms", exact = true }"#;
    let policy = r#"{ name = "edf", place = "split" }"#;
    let text = THREE.replace("share.sedf = { }", share).replace(r#"{ name = "sedf" }"#, policy);
    live.place.write("it.toml", text.as_bytes());
    let json: Value =
        serde_json::from_str(&live.run(&["run", "it.toml", "--json"]).good()).unwrap();
    for name in ["a", "b", "c"] {
        let had = delivered(&json["runs"][0], name);
        assert!((500_000..=580_000).contains(&had), "{name}: {had}");
    }
    live.nothing_is_left();
}
