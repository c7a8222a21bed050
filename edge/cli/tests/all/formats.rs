//! Files of earlier versions, kept in `tests/fixtures`, can still be read. A fixture is never
//! remade: a new version of a format adds one.

use std::fs;
use std::path::Path;

use crate::common::Place;

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fs::read(folder.join(name)).expect("a fixture")
}

/// The trace is of version 4: two VMs spin for 60 ms, with 6 ms and 3 ms of each 10 ms reserved.
#[test]
fn trace_of_version_4_shows_delivered_cpu_time() {
    let place = Place::new();
    place.write("old.trace", &fixture("trace-version-4"));
    let table = place.run(&["show", "old.trace", "--table"]).good();
    assert!(table.starts_with("two hogs: edf, sim, seed 1, 60ms measured"), "{table}");
    let row = table.lines().find(|line| line.trim_start().starts_with("gold")).expect("a row");
    assert!(row.contains("6ms/10ms = 60.00 %") && row.contains("60.00"), "{table}");
}

#[test]
fn trace_of_newer_version_is_refused_by_number() {
    let place = Place::new();
    let mut newer = fixture("trace-version-4");
    let number = newer.iter().position(|byte| *byte == b'4').expect("the version");
    newer[number] = b'9';
    place.write("new.trace", &newer);
    place.run(&["show", "new.trace"]).refused(2).says("this is a trace of version 9");
}

/// The file has 13 of 6,000 runs. The table equals one that was made without it.
#[test]
fn sweep_resumes_from_partial_file_of_format_version_1() {
    let place = Place::new();
    place.write("family.toml", &fixture("family.toml"));
    place.write("old.csv.part", &fixture("sweep-1.csv.part"));
    let sweep = |table: &str| {
        let options = ["--policies", "edf,credit", "--seeds", "3000", "--csv"];
        place.run(&[&["sweep", "family.toml"], &options[..], &[table]].concat()).ended_with(0)
    };
    sweep("old.csv").says("5987 runs, 13 finished before");
    sweep("new.csv");
    assert_eq!(place.read("old.csv"), place.read("new.csv"));
}
