//! Tests that bad input is refused. The error has the position and the reason, the hint has a
//! correction, and the exit code is 2. The program prints nothing else, and creates no file.

use crate::common::{GOOD, Place, Ran};

/// Replaces `from` by `to` in the scenario [`GOOD`](common::GOOD). Asserts that every command with
/// the scenario reports the position `at` and the text `says`.
#[track_caller]
fn wrong(from: &str, to: &str, at: &str, says: &str) {
    assert!(GOOD.contains(from), "nothing to replace: {from}");
    let place = Place::with(&GOOD.replacen(from, to, 1));
    for command in ["check", "sim", "run", "compare"] {
        let ran = place.run(&[command, "it.toml"]);
        // A message that gives the valid range, or says that the file is not TOML, has no hint.
        let is_plain = ran.err.contains(" must be from ") || ran.err.contains("not TOML");
        let ran = if is_plain { ran.ended_with(2) } else { ran.refused(2) };
        assert_eq!(ran.out, "");
        let begins = format!("error: it.toml:{at}: ");
        assert!(ran.err.starts_with(&begins), "{command}: not {begins}\n{}", ran.err);
        ran.says(says);
    }
    nothing_is_kept(&place, "it.toml");
}

/// Asserts that a failing run creates no output file.
#[track_caller]
fn nothing_is_kept(place: &Place, scenario: &str) {
    let before = place.files();
    for command in ["sim", "run"] {
        place.run(&[command, scenario, "--save", "made", "--perfetto", "too"]).ended_with(2);
    }
    assert_eq!(place.files(), before);
}

#[test]
fn scenario_error_states_line_column_and_reason() {
    for (from, to, at, says) in [
        ("length", "lenght", "2:1", "did you mean `length`?"),
        ("slice", "slcie", "9:15", "did you mean `slice`?"),
        ("\"400ms\"", "400", "2:10", "400` has no unit"),
        ("\"6ms\"", "6", "9:23", "6"),
        ("\"6ms\"", "\"0ms\"", "9:23", "0ms"),
        ("\"6ms\"", "\"-6ms\"", "9:23", "-6ms"),
        ("\"400ms\"", "\"0s\"", "2:10", "must be greater than zero"),
        ("\"400ms\"", "\"-1s\"", "2:10", "-1s"),
        ("\"400ms\"", "\"600y\"", "2:10", "600y"),
        ("\"400ms\"", "\"99999999999999999999s\"", "2:10", "99999999999999999999s"),
        ("\"400ms\"", "\"9000h\"", "2:10", "is longer than a year"),
        ("cpus = 1", "cpus = 0", "5:8", "must be from 1 to 256"),
        ("cpus = 1", "cpus = -1", "5:8", "-1"),
        ("cpus = 1", "cpus = 99999999999999999999", "5:8", "99999999999999999999"),
        ("\"edf\"", "\"edff\"", "3:19", "did you mean `edf`?"),
        ("\"spin\"", "\"spni\"", "8:17", "is not one of"),
        ("of gold", "of golf", "15:8", "did you mean `gold`?"),
        ("within 2%", "around 2%", "16:6", "is not a test"),
        ("cpus = 1", "cpus = \u{7}", "5:8", "this is not TOML"),
    ] {
        wrong(from, to, at, says);
    }
}

#[test]
fn refusal_of_slice_longer_than_period_states_both_values() {
    let place = Place::with(&GOOD.replacen("\"6ms\"", "\"16ms\"", 1));
    for command in ["check", "sim", "run"] {
        let ran = place.run(&[command, "it.toml"]).refused(2);
        assert!(ran.err.starts_with("error: it.toml:9:"), "{}", ran.err);
        ran.says("16ms").says("10ms");
    }
    nothing_is_kept(&place, "it.toml");
}

/// The error has the line of the domain that does not fit. It has no column, because several
/// numbers of the domain together decide if it fits.
#[test]
fn scenario_that_reserves_more_than_the_capacity_is_refused() {
    let place = Place::with(&GOOD.replacen("\"3ms\"", "\"4ms\"", 1));
    let ran = place.run(&["check", "it.toml"]).ended_with(2).shows("refused");
    assert!(ran.err.starts_with("error: it.toml:10: "), "{}", ran.err);
    for command in ["sim", "run", "compare"] {
        let ran = place.run(&[command, "it.toml"]).refused(2);
        assert!(ran.err.starts_with("error: it.toml:10: "), "{}", ran.err);
        // The message has the request, the sum of reservations and the limit.
        ran.says("silver").says("4ms").says("0.6cpu").says("0.95cpu");
    }
    nothing_is_kept(&place, "it.toml");
}

#[test]
fn refusal_of_unknown_policy_quotes_name_and_suggests_known_policies() {
    let place = Place::with(GOOD);
    place.run(&["sim", "it.toml", "--policy", "edff"]).refused(2).says("did you mean `edf`?");
    let arguments = ["compare", "it.toml", "--policies", "edf,rr"];
    place.run(&arguments).refused(2).says("no policy is called `rr`").says("round-robin");
    place.run(&["compare", "it.toml", "--policies", ""]).refused(2);
}

#[test]
fn claim_about_unknown_metric_is_refused_with_list_of_metrics() {
    for (metric, says) in [
        ("deliverd of gold", "did you mean `delivered of gold`?"),
        ("beauty of gold", "use one of: "),
    ] {
        let place = Place::with(&GOOD.replacen("delivered of gold", metric, 1));
        let ran = place.run(&["check", "it.toml"]).refused(2).says(says);
        assert!(ran.err.starts_with("error: it.toml:14: there is no metric"), "{}", ran.err);
    }
}

#[test]
fn file_that_is_not_a_scenario_is_refused() {
    let place = Place::new();
    place.write("empty", b"");
    place.write("garbage", b"title = \"\xc3\xa9\"\n\xc3\xa9 \xff\xfe\x00\x01");
    place.write("zeros", &[0; 4096]);
    place.write("brackets", "[".repeat(100_000).as_bytes());
    for (file, begins) in [
        ("empty", "error: empty:1:1: `title` is missing"),
        ("garbage", "error: garbage:2:3: not a text file: byte 0xff"),
        ("zeros", "error: zeros:1:1: not a text file: byte 0x00"),
        ("brackets", "error: brackets:1:"),
        ("nothing.toml", "error: cannot read nothing.toml: No such file"),
        (".", "error: cannot read .: Is a directory"),
    ] {
        for command in ["check", "sim", "run", "compare"] {
            let ran = place.run(&[command, file]);
            // The parser of TOML explains itself, and no correction can be guessed.
            let ran = if file == "brackets" { ran.ended_with(2) } else { ran.refused(2) };
            assert!(ran.out.is_empty() && ran.err.starts_with(begins), "{command}: {}", ran.err);
        }
    }
    assert_eq!(place.files(), ["brackets", "empty", "garbage", "zeros"]);
}

/// Returns a valid trace and its folder. Tests then damage the trace.
fn trace() -> (Place, Vec<u8>) {
    let place = Place::with(GOOD);
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    let bytes = place.read("it.trace");
    (place, bytes)
}

const SHOWS: [&[&str]; 5] = [&[], &["--table"], &["--list"], &["--json"], &["--perfetto", "made"]];

#[track_caller]
fn no_trace(place: &Place, file: &str, says: &str) {
    for more in SHOWS {
        let ran = place.run(&[&["show", file], more].concat()).refused(2).says(says);
        assert!(ran.err.contains(file), "which file it was is not said: {}", ran.err);
        assert!(!place.path("made").exists(), "a file was made of {file}");
    }
}

#[test]
fn file_that_is_not_a_trace_is_refused() {
    let (place, bytes) = trace();
    place.write("empty", b"");
    place.write("almost", b"slackline-tracer-3\n");
    for file in ["empty", "almost", "it.toml"] {
        no_trace(&place, file, "this is not a Slackline trace");
    }
    place.write("older", b"slackline-trace-2\n");
    no_trace(&place, "older", "this is a trace of version 2; this program reads versions 4 to 6");
    no_trace(&place, "nothing", "No such file");
    no_trace(&place, ".", "directory");
    for length in [18, 19, 60, bytes.len() / 2, bytes.len() - 9, bytes.len() - 1] {
        place.write("cut", &bytes[..length]);
        no_trace(&place, "cut", "the trace is cut off");
    }
}

/// The test damages a few bytes in each region of a trace. The checksum covers every byte. The text
/// of the error depends on the meaning of the damaged byte.
#[test]
fn trace_with_any_damaged_byte_is_refused_by_show_command() {
    let (place, bytes) = trace();
    let step = bytes.len() / 40;
    for at in (0..bytes.len()).step_by(step).chain([18, 20, bytes.len() - 8, bytes.len() - 1]) {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            place.write("damaged", &damaged);
            let ran = place.run(&["show", "damaged", "--table"]).refused(2);
            assert!(ran.err.starts_with("error: damaged: "), "byte {at} ^ {flip}: {}", ran.err);
        }
    }
}

#[test]
fn invalid_value_of_a_command_line_option_is_refused() {
    let warm = GOOD.replacen("length = \"400ms\"", "length = \"4s\"\nwarmup = \"2s\"", 1);
    let (place, _) = trace();
    place.write("warm.toml", warm.as_bytes());
    let before = place.files();
    for (arguments, says) in [
        (&["sim", "warm.toml", "--length", "1s"][..], "--length 1s is not longer than"),
        (&["run", "warm.toml", "--length", "2s"], "the warm-up of 2s"),
        (&["compare", "warm.toml", "--length", "0s"], "the warm-up of 2s"),
        (&["sim", "it.toml", "--length", "0s"], "--length 0s is not longer than"),
        (&["sim", "it.toml", "--length", "584y"], ""),
        (&["sim", "it.toml", "--length", "9000h"], "is longer than a year"),
        (&["run", "it.toml", "--length", "18446744073s"], "is longer than a year"),
        (&["sim", "it.toml", "--save", "same", "--perfetto", "same"], "are the same file"),
        (&["show", "it.trace", "--for", "0s"], "write --for 100ms"),
        (&["show", "it.trace", "--from", "9000h"], "is beyond the longest run"),
        (&["show", "it.trace", "--list", "--from", "18446744073s"], "is beyond the longest run"),
        (&["show", "it.trace", "--width", "99999999999"], "is more than 10000 columns"),
        (&["show", "it.trace", "--runs", "nobody"], "no vCPU `nobody`"),
        (&["load", "batch", "--total", "4"], "`total = \"4\"` has no unit"),
        (&["load", "periodic", "--period", "0s", "--work", "1ms"], "must be greater than zero"),
        (&["load", "interactive", "--compute", "uniform 3ms 1ms", "--sleep", "1ms"], "uniform"),
        (&["load", "replay", "--file", "nothing"], "cannot read nothing"),
        (&["load", "replay", "--file", "it.toml"], "`it.toml`, line 1"),
        (&["load", "web-server", "--each", "1ms", "--response", "10"], "an amount of data, as in"),
        (
            &["load", "web-server", "--each", "1", "--response", "1KiB"],
            "`each = \"1\"` has no unit",
        ),
        (&["load", "echo", "--each", "0s"], "must be greater than zero"),
        (&["load", "disk-read", "--each", "1ms", "--block", "0B"], "an amount of data"),
        (
            &["load", "disk-read", "--each", "1ms", "--block", "4KiB", "--folder", "nothing"],
            "cannot create a file of 16777216 bytes in nothing: No such file",
        ),
        (&["load", "compile", "--each", "1ms", "--read", "8KiB", "--jobs", "0"], "`jobs = 0`"),
        (&["load", "httperf", "--rate", "0", "--to", "9"], "`rate = 0`"),
        (&["load", "ab", "--at-once", "20000", "--to", "9"], "`at_once = 20000`"),
        (&["load", "ping", "--every", "soon", "--to", "9"], "`every = \"soon\"`"),
        (&["load", "iperf", "--window", "64KiB", "--way", "up", "--to", "9"], "`way = \"up\"`"),
        (&["load", "ttcp", "--window", "64KiB", "--to", "1"], "cannot connect to 127.0.0.1:1: "),
    ] {
        if says.is_empty() {
            place.run(arguments).ended_with(2);
        } else {
            place.run(arguments).refused(2).says(says);
        }
    }
    assert_eq!(place.files(), before);
}

/// The hints for unknown options come from the parser of the command line.
#[test]
fn malformed_command_line_is_refused_with_usage_or_help_hint() {
    let place = Place::with(GOOD);
    for arguments in [
        &[][..],
        &["simulate", "it.toml"],
        &["sim"],
        &["sim", "it.toml", "--length", "4"],
        &["sim", "it.toml", "--length", "-4s"],
        &["sim", "it.toml", "--length", "999999999999h"],
        &["sim", "it.toml", "--seed", "-1"],
        &["sim", "it.toml", "--seed", "99999999999999999999"],
        &["run", "it.toml", "--cpus", "one"],
        &["run", "it.toml", "--cpus", ""],
        &["compare", "it.toml", "--live", "--live-if-possible"],
        &["show", "it.trace", "--width", "-1"],
        &["show", "it.trace", "--list", "--ascii"],
        &["load"],
        &["load", "spin", "--length", "long"],
        &["load", "web-server", "--each", "1ms"],
        &["load", "httperf", "--rate", "many", "--to", "9"],
        &["load", "ping"],
        &["load", "ping", "--to", "0"],
        &["load", "sink", "--port", "65536"],
    ] {
        let Ran { out, err, .. } = place.run(arguments).ended_with(2);
        assert!(out.is_empty() && err.to_lowercase().contains("usage") || err.contains("--help"));
    }
}

#[test]
fn show_command_accepts_window_extending_beyond_trace_end() {
    let (place, _) = trace();
    for from in ["0s", "399ms"] {
        for length in ["1ns", "18446744073s"] {
            for more in [&[][..], &["--list"], &["--width", "1"], &["--width", "10000"]] {
                let window = ["show", "it.trace", "--from", from, "--for", length];
                let ran = place.run(&[&window, more].concat()).ended_with(0);
                assert!(ran.err.is_empty(), "{from} {length}: {}", ran.err);
            }
        }
    }
}

#[test]
fn live_run_with_missing_or_too_few_cpus_is_refused() {
    let place = Place::with(GOOD);
    for (cpus, says) in [
        ("4095", "this host has no CPU 4095"),
        ("18446744073709551615", "this host has no CPU 18446744073709551615"),
        ("0,0", "--cpus names 2 CPUs, the scenario needs 1"),
    ] {
        for command in [&["run"][..], &["compare", "--live"]] {
            let arguments = [command, &["it.toml", "--cpus", cpus]].concat();
            place
                .run(&arguments)
                .refused(2)
                .says(says)
                .says("use --cpus to name 1 of these CPUs: 0");
        }
    }
    place.write("two.toml", GOOD.replacen("cpus = 1", "cpus = 2", 1).as_bytes());
    place.run(&["run", "two.toml", "--cpus", "0,0"]).refused(2).says("names CPU 0 twice");
    place.run(&["run", "two.toml", "--cpus", "0"]).refused(2).says("the scenario needs 2");
    place.write("many.toml", GOOD.replacen("cpus = 1", "cpus = 256", 1).as_bytes());
    let ran = place.run(&["run", "many.toml"]).refused(3);
    ran.says("the scenario needs 256 CPUs, this host has ");
}

#[test]
fn run_command_refuses_enforcement_mechanisms_of_the_kernel() {
    let place = Place::with(GOOD);
    for mechanism in ["deadline", "quota", "weight"] {
        let ran = place.run(&["run", "it.toml", "--enforce", mechanism]).refused(2);
        ran.says(&format!("under `{mechanism}` the kernel chooses"))
            .says(&format!("slackline hold --enforce {mechanism}"));
    }
    let ran = place.run(&["run", "it.toml", "--enforce", "deadlin"]).ended_with(2);
    assert!(ran.err.contains("did you mean `deadline`?"), "{}", ran.err);
    for mechanism in ["auto", "dispatcher"] {
        let ran = place.run(&["run", "it.toml", "--enforce", mechanism, "--cpus", "4095"]);
        ran.refused(2).says("no CPU 4095");
    }
}
