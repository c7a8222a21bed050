//! Tests that every policy runs on this host, with the same parameters as in the simulator. Needs
//! root.

use std::path::Path;

use crate::common::live::{self, delivered};
use serde_json::Value;
use slackline_policy::ALL;

/// The VMs `heavy` and `light` never block. Their weights or reservations are two to one, so
/// `light` must not receive more than `heavy`. Round robin has no shares.
#[test]
fn larger_share_gives_vm_more_cpu_time_in_live_run() {
    let Some(live) = live::begin() else { return };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/schedulers.toml");
    let file = file.to_str().expect("a path in UTF-8");
    for spec in ALL {
        let words =
            ["run", file, "--policy", spec.name, "--length", "2s", "--json", "--save", "it.trace"];
        let ran = live.run(&words);
        // A claim about deadlines may fail on a busy host.
        assert!(matches!(ran.code, Some(0 | 1)), "{}: {:?} {}", spec.name, ran.code, ran.err);
        let json: Value = serde_json::from_str(&ran.out).expect("JSON");
        let run = &json["runs"][0];
        assert_eq!((&run["policy"], &run["machine"]), (&spec.name.into(), &"live".into()));
        let (heavy, light) = (delivered(run, "heavy"), delivered(run, "light"));
        assert!(heavy > 0 && light > 0, "{}: {heavy} {light}", spec.name);
        assert!(heavy > light || spec.name == "round-robin", "{}: {heavy} {light}", spec.name);
        // The trace of the live run replays to the same decisions.
        let told = live.run(&["replay", "it.trace"]).good();
        assert!(told.ends_with(" decisions, all as recorded\n"), "{}: {told}", spec.name);
        live.nothing_is_left();
    }
}

/// Several runs, one after another, give one table with the means. The JSON output contains each
/// run.
#[test]
fn live_run_with_several_seeds_reports_means_over_its_runs() {
    let Some(live) = live::begin() else { return };
    live.place.write("it.toml", SPINNER.as_bytes());
    let run = ["run", "it.toml", "--seeds", "2"];
    live.run(&run).ended_with(0).shows(" 2 runs: mean").shows("spinner").shows(" ±");
    let out = live.run(&[&run[..], &["--json"]].concat()).ended_with(0).out;
    let whole: serde_json::Value = serde_json::from_str(&out).unwrap();
    let runs = whole["runs"].as_array().unwrap();
    assert_eq!((&runs[0]["seed"], &runs[1]["seed"]), (&1.into(), &2.into()));
    let over = &whole["over_seeds"][0]["vcpus"][0]["delivered_ppm"];
    let of = |run: &serde_json::Value| live::delivered(run, "spinner");
    let mean = (of(&runs[0]) + of(&runs[1])) as f64 / 2.0;
    assert!((over["mean"].as_f64().unwrap() - mean).abs() < 1.0, "{whole:#}");
    live.nothing_is_left();
}

/// The CSV has a row for each second of the live run, with the CPU time that other programs used on
/// the CPU.
#[test]
fn csv_file_of_a_live_run_has_rows_per_second() {
    let Some(live) = live::begin() else { return };
    live.place.write("it.toml", SPINNER.replacen("\"1s\"", "\"2500ms\"", 1).as_bytes());
    let out = live.run(&["run", "it.toml", "--csv", "it.csv", "--json"]).ended_with(0).out;
    let whole: serde_json::Value = serde_json::from_str(&out).unwrap();
    let csv = String::from_utf8(live.place.read("it.csv")).unwrap();
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let headings = lines.next().unwrap();
    let cell = |line: &[&str], name: &str| {
        let place = headings.iter().position(|heading| *heading == name).unwrap();
        line[place].parse::<u64>().ok()
    };
    let (domains, cpus): (Vec<_>, Vec<_>) = lines.partition(|line| line[1] == "spinner");
    let used: Vec<u64> = domains.iter().map(|line| cell(line, "used_ns").unwrap()).collect();
    assert!(used.len() >= 2 && cpus.len() == used.len(), "{csv}");
    // The VM is alone on its CPU. The kernel counts in ticks, which do not include dispatching.
    for (line, used) in cpus.iter().zip(&used) {
        assert_eq!(cell(line, "used_ns"), Some(*used), "{csv}");
        let parts = ["share_ppm", "others_ppm", "stolen_ppm", "unused_ppm"];
        let parts = parts.map(|name| cell(line, name).unwrap_or_else(|| panic!("{name}: {csv}")));
        assert!(parts.iter().sum::<u64>() <= 1_050_000, "{csv}");
    }
    let cpu = &whole["runs"][0]["cpus"][0];
    for part in ["others_ppm", "stolen_ppm", "unused_ppm"] {
        assert!(cpu[part].as_u64().is_some_and(|ppm| ppm <= 1_000_000), "{part}: {cpu}");
    }
    // All seconds add up to the run, except for the incomplete last one.
    let all = whole["runs"][0]["vcpus"][0]["delivered_ns"].as_u64().unwrap();
    assert!(used.iter().sum::<u64>().abs_diff(all) <= 1_000_000_000, "{all}: {csv}");
    assert!(used.iter().all(|&used| used <= 1_000_000_000), "{csv}");
    live.nothing_is_left();
}

const SPINNER: &str = r#"title = "one"
length = "1s"
policy = { name = "edf" }
[[domain]]
name = "spinner"
work = { kind = "spin" }
share.edf = { slice = "2ms", period = "10ms", exact = true }
"#;
