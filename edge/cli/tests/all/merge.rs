//! Traces of several hosts in one file, by `slackline merge`.

use std::fs::File;
use std::io::Read as _;

use serde_json::Value;

use crate::common::Place;

const SCENARIO: &str = r#"
title = "one VM"
length = "100ms"
policy = { name = "edf" }
[[domain]]
name = "web"
share.edf = { slice = "2ms", period = "10ms" }
work = { kind = "spin" }
"#;

#[test]
fn merged_archive_contains_perfetto_trace_per_host_and_a_manifest() {
    let place = Place::with_traces(SCENARIO);
    let told = place.run(&["merge", "both.zip", "web1=a.trace", "web2=b.trace"]).good();
    assert!(told.starts_with("both.zip: 2 traces\n  web1: begins at 0s\n"), "{told}");
    let file = File::open(place.path("both.zip")).expect("an archive");
    let mut archive = zip::ZipArchive::new(file).expect("a zip archive");
    let mut content = |name: &str| {
        let mut bytes = Vec::new();
        archive.by_name(name).expect("a file").read_to_end(&mut bytes).expect("bytes");
        bytes
    };
    let manifest: Value = serde_json::from_slice(&content("perfetto_manifest.json")).expect("JSON");
    let files = manifest["perfetto_manifest"]["files"].as_array().expect("files");
    let names = files.iter().map(|file| file["machine"]["name"].as_str());
    assert_eq!(names.collect::<Vec<_>>(), [Some("web1"), Some("web2")]);
    for (trace, path) in [("a.trace", "web1.pftrace"), ("b.trace", "web2.pftrace")] {
        place.run(&["show", trace, "--perfetto", "alone.pftrace"]).good();
        let alone = std::fs::read(place.path("alone.pftrace")).expect("a file");
        assert!(content(path) == alone, "{path} is the file of `show --perfetto`");
    }
}

/// The library that writes archives prints a message of its own if it sees the error.
#[test]
fn merge_command_on_full_device_prints_no_archive_library_message() {
    let place = Place::with_traces(SCENARIO);
    let ran = place.run(&["merge", "/dev/full", "web1=a.trace", "web2=b.trace"]);
    assert_ne!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.starts_with("error: ") && ran.err.contains("/dev/full"), "{}", ran.err);
    assert!(!ran.err.contains("ZipWriter"), "{}", ran.err);
}

#[test]
fn merge_command_refuses_equal_names_foreign_files_and_single_trace() {
    let place = Place::with_traces(SCENARIO);
    place.write("notes.txt", b"no trace\n");
    for (words, says) in [
        (&["both.zip", "web=a.trace", "web=b.trace"][..], "two traces have the name `web`"),
        (&["both.zip", "web=a.trace"], "2 values required"),
        (&["both.zip", "web=a.trace", "db=-"], "`db` cannot be standard input"),
        (&["both.zip", "web=a.trace", "db=notes.txt"], "not a Slackline trace"),
        (&["a.trace", "web=a.trace", "db=b.trace"], "a.trace"),
        (&["both.zip", "web=a.trace", "db=gone.trace"], "cannot read"),
    ] {
        let all: Vec<&str> = std::iter::once("merge").chain(words.iter().copied()).collect();
        let ran = place.run(&all);
        assert_eq!(ran.code, Some(2), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{words:?}: {}", ran.err);
    }
    assert!(!place.path("both.zip").exists(), "nothing is half done");
}
