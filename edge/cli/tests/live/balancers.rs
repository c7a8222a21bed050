//! What is on several CPUs of this machine: balancers, and who is split. Needs root.

use crate::common::live::{self, Live, delivered};
use serde_json::Value;

/// Three loops on two CPUs. Without a balancer they stay where they are put: two of them share a
/// CPU, and the third one has twice as much.
const THREE: &str = r#"title = "three on two"
length = "7s"
warmup = "1s"
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

/// What the three had, the least first, and how often they moved. Everything has been given back.
fn run(live: &Live, balancer: &str) -> ([u64; 3], u64) {
    let policy = format!("sedf:balancer={balancer}");
    let words = ["run", "it.toml", "--policy", &policy, "--json", "--save", "it.trace"];
    let json: Value = serde_json::from_str(&live.run(&words).good()).expect("JSON");
    let run = &json["runs"][0];
    let mut had = ["a", "b", "c"].map(|name| delivered(run, name));
    had.sort_unstable();
    let vcpus = run["vcpus"].as_array().expect("all vCPUs");
    let moves = vcpus.iter().map(|vcpu| vcpu["migrations"].as_u64().expect("a number")).sum();
    // The facts of a real machine, through host and policy once more: the same orders.
    let told = live.run(&["replay", "it.trace"]).good();
    assert!(told.ends_with(" orders, the same\n"), "{balancer}: {told}");
    live.nothing_is_left();
    (had, moves)
}

/// Others that run here have a part of the CPUs as well, and move on them: so little is asked of a
/// run of some seconds, but more than what there is without a balancer.
#[test]
fn balancers_share_two_cpus_among_three_live() {
    let Some(live) = live::begin() else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: needs two CPUs");
        return;
    }
    live.place.write("it.toml", THREE.as_bytes());
    let (_, moves) = run(&live, "none");
    assert_eq!(moves, 0, "nobody moves them");
    for balancer in ["repaired", "planned"] {
        let (had @ [least, _, most], moves) = run(&live, balancer);
        assert!(most * 10 <= least * 16, "{balancer}: {had:?}");
        // Six seconds, in each of which two go at the least.
        assert!(moves >= 6, "{balancer}: {moves} moves");
    }
}

/// Three exact ones of 0.55 of a CPU on two: one is split, and the others have no more for it.
#[test]
fn who_is_split_and_its_neighbours_have_their_slices_live() {
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
