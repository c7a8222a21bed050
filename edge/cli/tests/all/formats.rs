//! Tests that this version reads the files that earlier versions of Slackline wrote. Such files are
//! stored in `tests/fixtures`. A stored file is never replaced: for a new version of a format, a
//! new file is added.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::common::Place;

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fs::read(folder.join(name)).expect("a fixture")
}

/// Each trace has two VMs that compute for 60 ms and reserve 6 ms and 3 ms in every 10 ms. Traces
/// of these versions have no index.
#[test]
fn traces_of_format_versions_4_and_5_are_readable() {
    for name in ["trace-version-4", "trace-version-5"] {
        let place = Place::new();
        place.write("old.trace", &fixture(name));
        let table = place.run(&["show", "old.trace", "--table"]).good();
        assert!(table.starts_with("two hogs: edf, sim, seed 1, 60ms measured"), "{table}");
        let row = table.lines().find(|line| line.trim_start().starts_with("gold")).expect("a row");
        assert!(row.contains("6ms/10ms = 60.00 %") && row.contains("60.00"), "{table}");
        let list = place.run(&["show", "old.trace", "--list", "--from", "10ms", "--for", "10ms"]);
        assert!(list.good().contains("intervals outside 10.000000 to 20.000000"), "{table}");
    }
}

const LONG: &str = r#"
title = "short runs"
length = "9s"
policy = { name = "edf" }
[[domain]]
name = "short"
vcpus = 4
share.edf = { slice = "100us", period = "1ms" }
work = { kind = "interactive", compute = "exponential 100us", sleep = "exponential 300us" }
[[domain]]
name = "long"
share.edf = { slice = "40ms", period = "200ms" }
work = { kind = "spin" }
"#;

/// A trace from a pipe is read completely. From a trace in a file, only the blocks of the window
/// are read.
#[test]
fn show_command_prints_equal_windows_from_indexed_file_and_pipe() {
    let place = Place::with(LONG);
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    let length = place.read("it.trace").len();
    assert!(length > 2 << 20, "{length} bytes are fewer than three blocks");
    let piped = |options: &[&str]| {
        let mut command = place.command(&[&["show", "-"], options].concat());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let mut input = child.stdin.take().expect("the stream is a pipe");
        let trace = place.read("it.trace");
        let writer = std::thread::spawn(move || input.write_all(&trace));
        let output = child.wait_with_output().expect("the program ends");
        writer.join().expect("the writer does not panic").expect("all is read");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    for from in ["0s", "5s", "8999ms"] {
        for kind in [&["--list"][..], &["--list", "--json"], &["--width", "100"]] {
            let options = [&["--from", from, "--for", "20ms"], kind].concat();
            let shown = place.run(&[&["show", "it.trace"], &options[..]].concat()).good();
            assert_eq!(shown, piped(&options), "{options:?}");
            assert!(shown.contains("long"), "{shown}");
        }
    }
    // Damage far from the window is not noticed. Without a window, the whole trace is checked.
    let mut damaged = place.read("it.trace");
    damaged[length / 4] ^= 0x10;
    place.write("it.trace", &damaged);
    place.run(&["show", "it.trace", "--list", "--from", "8900ms", "--for", "5ms"]).good();
    place.run(&["show", "it.trace", "--list"]).refused(2).says("damaged");
}

#[test]
fn trace_of_newer_version_is_refused_and_its_version_stated() {
    let place = Place::new();
    let mut newer = fixture("trace-version-4");
    let number = newer.iter().position(|byte| *byte == b'4').expect("the version");
    newer[number] = b'9';
    place.write("new.trace", &newer);
    place.run(&["show", "new.trace"]).refused(2).says("this is a trace of version 9");
}

/// The journal contains 13 of 6,000 runs. The table equals the table of a sweep that began without
/// a journal.
#[test]
fn sweep_command_resumes_from_partial_file_of_format_version_1() {
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
