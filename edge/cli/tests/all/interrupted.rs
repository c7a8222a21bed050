//! Tests of Ctrl-C: complete results are shown, and missing results are named.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::common::live::{kill, let_pass, wait_until};
use crate::common::{GOOD, Place, Ran};
use rustix::process::Signal;

/// Starts a command, interrupts it while it works, and waits for its end.
#[track_caller]
fn interrupted(place: &Place, arguments: &[&str], after: Duration) -> Ran {
    let mut command = place.command(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    // Before the handler is installed, a signal would simply end the command.
    wait_until("the command to handle signals", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        assert!(child.try_wait().unwrap().is_none(), "the command runs until the signal");
        caught.is_some_and(|mask| mask & 1 << (libc_sigint() - 1) != 0)
    });
    let_pass(after);
    kill(pid, Signal::INT);
    Ran::new(&child.wait_with_output().unwrap())
}

fn libc_sigint() -> i32 {
    Signal::INT.as_raw()
}

#[test]
fn simulation_that_is_interrupted_prints_its_partial_results() {
    let place = Place::with(&GOOD.replacen("\"400ms\"", "\"8760h\"", 1));
    let second = Duration::from_secs(1);
    let ran = interrupted(&place, &["sim", "it.toml", "--csv", "it.csv"], second).ended_with(130);
    ran.shows("note: stopped at ").shows("gold").shows("delivered %");
    let csv = String::from_utf8(place.read("it.csv")).unwrap();
    assert!(csv.starts_with("second,domain,share_ppm") && csv.contains("gold"), "{csv}");
}

/// Returns the JSON output of an interrupted command. Asserts that it is marked as interrupted.
#[track_caller]
fn json_of(ran: &Ran) -> serde_json::Value {
    let json: serde_json::Value = serde_json::from_str(&ran.out).expect("valid JSON");
    assert_eq!(json["interrupted"], true, "{json}");
    json
}

#[test]
fn json_output_of_an_interrupted_command_says_interrupted_true() {
    let place = Place::with(&GOOD.replacen("\"400ms\"", "\"8760h\"", 1));
    let second = Duration::from_secs(1);
    let ran = interrupted(&place, &["sim", "it.toml", "--json"], second).ended_with(130);
    assert_eq!(json_of(&ran)["runs"].as_array().map(Vec::len), Some(1));
    for command in ["sim", "compare"] {
        let words = [command, "it.toml", "--seeds", "2", "--json"];
        let ran = interrupted(&place, &words, Duration::from_millis(300)).ended_with(130);
        assert_eq!(json_of(&ran)["runs"].as_array().map(Vec::len), Some(0), "{command}");
    }
    let words = ["alert", "--json", "--length", "3600s", "--seeds", "20"];
    let ran = interrupted(&place, &words, Duration::from_millis(300)).ended_with(130);
    assert_eq!(json_of(&ran)["cases"].as_array().map(Vec::len), Some(0));
    let whole = Place::with(GOOD).run(&["sim", "it.toml", "--json"]).good();
    let whole: serde_json::Value = serde_json::from_str(&whole).expect("valid JSON");
    assert_eq!(whole["interrupted"], false);
}

#[test]
fn json_output_is_valid_if_run_is_interrupted_in_warmup() {
    let long = GOOD.replacen("\"400ms\"", "\"8760h\"", 1);
    let place = Place::with(&format!("warmup = \"8000h\"\n{}", without_warmup(&long)));
    let words = ["sim", "it.toml", "--json"];
    let ran = interrupted(&place, &words, Duration::from_millis(300)).ended_with(130);
    assert_eq!(json_of(&ran)["runs"].as_array().map(Vec::len), Some(0));
}

fn without_warmup(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("warmup")).flat_map(|it| [it, "\n"]).collect()
}

/// Returns the numbers of finished runs and of all runs, parsed from the note on standard error.
#[track_caller]
fn finished(ran: &Ran) -> (u64, u64) {
    let note = ran.err.lines().find_map(|line| line.strip_prefix("note: stopped after "));
    let words: Vec<&str> = note.expect("a note on the number of runs").split(' ').collect();
    assert_eq!((words[1], words[3]), ("of", "runs;"));
    (words[0].parse().unwrap(), words[2].parse().unwrap())
}

/// A run takes a tenth of a second on a usual host. The interrupt comes after three seconds. Even
/// on a host that is thirty times slower, some runs are complete by then. Even on a host that is
/// ten times faster, some runs are not complete by then.
#[test]
fn command_that_is_interrupted_prints_its_finished_runs() {
    let place = Place::with(&GOOD.replacen("\"400ms\"", "\"1000s\"", 1));
    let seeds = ["--seeds", "1000"];
    let two = ["compare", "it.toml", "--policies", "edf,round-robin"];
    for (command, of) in [(&["sim", "it.toml"][..], 1000), (&two[..], 2000)] {
        let arguments = [command, &seeds].concat();
        let ran = interrupted(&place, &arguments, Duration::from_secs(3)).ended_with(130);
        let (done, all) = finished(&ran);
        assert!(done > 0 && done < all && all == of, "{}", ran.err);
        let ran = ran.shows("gold").shows("delivered %").shows(" runs: mean");
        ran.says("; not run: ");
    }
}

/// Each run takes so long that none is complete at the time of the interrupt.
#[test]
fn command_that_is_interrupted_lists_its_unfinished_runs() {
    let place = Place::with(&GOOD.replacen("\"400ms\"", "\"8760h\"", 1));
    let two = ["compare", "it.toml", "--policies", "edf,round-robin"];
    let ran = interrupted(&place, &two, Duration::from_millis(300)).ended_with(130);
    assert_eq!(ran.out, "");
    ran.says("note: stopped after 0 of 2 runs; not run: edf, round-robin");
}

#[test]
fn sweep_command_reports_progress_and_remaining_time_to_a_pipe() {
    let place = Place::with(&GOOD.replacen("\"400ms\"", "\"300s\"", 1));
    let words = ["sweep", "it.toml", "--seeds", "10000", "--csv", "it.csv"];
    let ran = interrupted(&place, &words, Duration::from_secs(5)).ended_with(130);
    let line = ran.err.lines().find(|line| line.starts_with("sweep: ")).expect("a line");
    assert!(line.contains(" of 10000 runs, about ") && line.ends_with(" left"), "{line}");
}
