//! Comparison of two runs by `slackline diff`.

use serde_json::Value;

use crate::common::Place;

const SCENARIO: &str = r#"
title = "a server beside a batch VM"
length = "10s"
policy = { name = "round-robin", quantum = "2ms" }
[[domain]]
name = "web"
work = { kind = "interactive", compute = "exponential 1ms", sleep = "exponential 4ms" }
[[domain]]
name = "batch"
work = { kind = "spin" }
"#;

fn place() -> Place {
    let place = Place::with_traces(SCENARIO);
    let args = ["sim", "it.toml", "--policy", "round-robin:quantum=8ms", "--save", "slow.trace"];
    place.run(&args).good();
    place
}

fn rows(text: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(file["format"], "slackline-diff-1");
    file["differences"].as_array().expect("differences").clone()
}

#[test]
fn diff_command_reports_effect_of_quantum_but_not_of_seed() {
    let place = place();
    let of = |rows: &[Value], vm: Option<&str>, metric: &str| {
        let is_it = |row: &&Value| row["vm"].as_str() == vm && row["metric"] == metric;
        rows.iter().find(is_it).expect("a row").clone()
    };
    let slow = rows(&place.run(&["diff", "a.trace", "slow.trace", "--json"]).good());
    for vm in [None, Some("web")] {
        let wake = of(&slow, vm, "wake_latency_p99_ns");
        assert_eq!((&wake["change"], &wake["worse"]), (&"more".into(), &true.into()), "{wake}");
        let after = wake["b"].as_u64().expect("a wait");
        assert!((7_000_000..=8_000_000).contains(&after), "{wake}");
    }
    let slice = of(&slow, Some("batch"), "slice_p50_ns");
    assert_eq!((&slice["change"], &slice["worse"]), (&"more".into(), &false.into()), "{slice}");
    let same = rows(&place.run(&["diff", "a.trace", "b.trace", "--json"]).good());
    let certain: Vec<&Value> =
        same.iter().filter(|row| row["change"] == "more" || row["change"] == "less").collect();
    assert!(certain.is_empty(), "{certain:#?}");
    let equal = rows(&place.run(&["diff", "a.trace", "a.trace", "--json"]).good());
    assert!(equal.iter().all(|row| row["a"] == row["b"] && row["change"] != "more"));
}

#[test]
fn diff_command_prints_table_and_check_option_sets_exit_code() {
    let place = place();
    let told = place.run(&["diff", "a.trace", "slow.trace"]).good();
    assert!(told.starts_with("A: a.trace, 10s, 1 CPU\nB: slow.trace, 10s, 1 CPU\n"), "{told}");
    let wake = told.lines().find(|line| line.contains("wake latency p99")).expect("a line");
    assert!(wake.starts_with("all") || wake.contains("more, worse"), "{wake}");
    assert!(told.contains("more, worse\n"), "{told}");
    assert_eq!(
        told,
        place.run(&["diff", "a.trace", "slow.trace"]).good(),
        "the output is deterministic"
    );
    let ran = place.run(&["diff", "a.trace", "slow.trace", "--check"]).ended_with(1);
    ran.says("B is worse than A by more than noise (number of worse lines: ");
    place.run(&["diff", "slow.trace", "a.trace", "--check"]).ended_with(0);
    place.run(&["diff", "a.trace", "b.trace", "--check"]).ended_with(0);
    place.run(&["diff", "a.trace", "it.toml"]).refused(2).says("not a Slackline trace");
}
