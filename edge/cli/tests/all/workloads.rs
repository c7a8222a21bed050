//! Tests of CPU series and task sets of other programs, as commands read and run them.

use std::fs;
use std::path::PathBuf;

use crate::common::{GOOD, Place};

/// Returns a folder with files of other programs.
fn place() -> Place {
    let place = Place::with(GOOD);
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../workload/tests/fixtures");
    for name in
        ["azure.csv", "bitbrains.csv", "planetlab.txt", "rt-app.json", "simso.xml", "eva.txt"]
    {
        fs::copy(fixtures.join(name), place.path(name)).expect("a fixture");
    }
    place
}

#[test]
fn import_of_any_workload_lists_assumptions_and_can_be_simulated() {
    let place = place();
    for (kind, file, title) in [
        ("azure", "azure.csv", "2 VMs of azure series"),
        ("bitbrains", "bitbrains.csv", "1 VM of bitbrains series"),
        ("planetlab", "planetlab.txt", "1 VM of planetlab series"),
        ("rt-app", "rt-app.json", "3 threads of rt-app"),
        ("simso", "simso.xml", "3 tasks of SimSo"),
        ("eva", "eva.txt", "taskset_U0.6_N03_000"),
    ] {
        let told = place.run(&["import", kind, file, "out.toml"]).good();
        assert!(told.starts_with("scenario: out.toml\n"), "{told}");
        assert!(told.contains("\nassumed:  "), "{told}");
        let told = place.run(&["sim", "out.toml"]).good();
        assert!(told.starts_with(title), "{told}");
    }
}

#[test]
fn task_sets_from_eva_and_uunifast_are_simulated_and_fitted() {
    let place = place();
    let draw = ["import", "uunifast", "out.toml", "--tasks", "6", "--seed", "3"];
    let told = place.run(&[&draw[..], &["--utilisation", "150%"]].concat()).good();
    assert!(told.contains("with the sum 1.5cpu, from seed 3\n"), "{told}");
    let told = place.run(&["sim", "out.toml"]).good();
    assert!(told.starts_with("6 tasks by UUniFast, seed 3: gedf"), "{told}");
    for source in [&["eva", "eva.txt"][..], &["uunifast"]] {
        let words = [&["import"], source, &["set.toml", "--task-set"]].concat();
        let told = place.run(&words).good();
        assert!(told.starts_with("task set: set.toml\n"), "{told}");
        let text = fs::read_to_string(place.path("set.toml")).expect("a task set");
        assert!(text.contains("scheduler = \"edf\""), "{text}");
        let told = place.run(&["fit", "set.toml", "--json"]).good();
        let answer: serde_json::Value = serde_json::from_str(&told).expect("an answer in JSON");
        assert_eq!(answer["witnesses"][0], "proof", "{source:?}: {told}");
        // The random set has a utilisation of 70 %, and its work is rounded down to microseconds.
        let used = answer["utilisation_ppm"].as_u64().expect("a number");
        let expected = if source[0] == "eva" { 595_000..=596_500 } else { 699_000..=700_500 };
        assert!(expected.contains(&used), "{source:?}: {used}");
    }
    place.write("late.txt", b"1 30 20\n");
    let words = ["import", "eva", "late.txt", "late.toml", "--task-set"];
    place.run(&words).refused(2).says("late.txt:1: deadline 30ms is more than the period 20ms");
    assert!(!place.path("late.toml").exists(), "nothing is written");
}

#[test]
fn scenario_imported_with_two_burst_models_is_swept_over_both() {
    let place = place();
    fs::copy(place.path("planetlab.txt"), place.path("second.txt")).expect("a copy");
    let told = place.run(&[
        "import",
        "planetlab",
        "planetlab.txt",
        "second.txt",
        "fleet.toml",
        "--bursts",
        "even,block",
        "--interval",
        "100ms",
        "--intervals",
        "0-1",
    ]);
    let told = told.good();
    assert!(told.contains("jobs:     fleet-planetlab-even.jobs\n"), "{told}");
    let told = place.run(&["sweep", "fleet.toml", "--csv", "out.csv"]).ended_with(0);
    assert!(told.out.contains("even") && told.out.contains("block"), "{}", told.out);
    let lines = fs::read_to_string(place.path("out.csv")).expect("a table");
    assert!(lines.contains("block"), "{lines}");
}

#[test]
fn import_command_refuses_options_of_other_kinds_of_input() {
    let place = place();
    let refused = |args: &[&str], text: &str| {
        place.run(&[&["import"], args].concat()).refused(2).says(text);
        assert!(!place.path("out.toml").exists(), "nothing is written");
    };
    refused(
        &["simso", "simso.xml", "out.toml", "--anonymise"],
        "cannot use --anonymise with `import simso`",
    );
    refused(
        &["perf", "simso.xml", "out.toml", "--cores", "2"],
        "cannot use --cores with `import perf`",
    );
    refused(
        &["simso", "simso.xml", "rt-app.json", "out.toml"],
        "cannot convert 2 files of kind simso: this kind takes exactly one file",
    );
    refused(&["rt-app", "simso.xml", "out.toml"], "name a JSON file of rt-app");
    refused(&["eva", "out.toml"], "cannot import out.toml: the file to write is not named");
    refused(
        &["eva", "eva.txt", "out.toml", "--tasks", "3"],
        "cannot use --tasks with `import eva`",
    );
    refused(&["simso", "simso.xml", "out.toml", "--task-set"], "cannot use --task-set");
    refused(&["uunifast", "out.toml", "--unit", "us"], "cannot use --unit with `import uunifast`");
    refused(
        &["uunifast", "eva.txt", "out.toml"],
        "cannot read 1 file for `uunifast`: its tasks are drawn at random",
    );
    refused(&["uunifast", "out.toml", "--utilisation", "501%"], "utilisation 5.01cpu of 5 tasks");
    refused(
        &["bitbrains", "bitbrains.csv", "out.toml", "--cores", "2"],
        "cannot use --cores with `import bitbrains`",
    );
    // Without OUT, the last file to read is not overwritten.
    refused(&["planetlab", "planetlab.txt", "azure.csv"], "name the scenario last");
    refused(&["planetlab", "planetlab.txt", "-"], "cannot write a scenario to");
    fs::copy(place.path("planetlab.txt"), place.path("out-vm-even.jobs")).expect("a copy");
    fs::copy(place.path("planetlab.txt"), place.path("vm")).expect("a copy");
    refused(&["planetlab", "vm", "out-vm-even.jobs", "out.toml"], "the same file");
    let args = ["import", "planetlab", "planetlab.txt", "out.toml", "--bursts", "odd"];
    place.run(&args).ended_with(2).says("[possible values: even, random, block]");
    refused(
        &["planetlab", "planetlab.txt", "out.toml", "--intervals", "9-12"],
        "cannot take the intervals 9 to 12: the series have 4 intervals, numbered from 0",
    );
}
