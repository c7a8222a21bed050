//! Tests of details of commands: windows of traces, reports, names, and widths of tables.

use crate::common::{GOOD, Place};
use serde_json::Value;

#[test]
fn show_command_lists_run_intervals_as_json() {
    let place = Place::with(GOOD);
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    let lines = place.run(&["show", "it.trace", "--list", "--for", "40ms"]).good();
    let json = place.run(&["show", "it.trace", "--list", "--for", "40ms", "--json"]).good();
    let whole: Value = serde_json::from_str(&json).expect("JSON");
    let stretches = whole["stretches"].as_array().expect("stretches");
    // The first line is the heading. The last one counts the run intervals outside the window.
    assert_eq!(stretches.len(), lines.lines().count() - 2);
    let first = &stretches[0];
    let line = lines.lines().nth(1).expect("a run interval");
    for field in ["cpu", "vcpu", "why"] {
        assert!(line.contains(first[field].as_str().expect("a text")), "{field}: {line}");
    }
    let used = first["used_ns"].as_u64().expect("a time");
    assert!(line.contains(&format!("{}.{:06}", used / 1_000_000, used % 1_000_000)), "{line}");
}

#[test]
fn show_command_refuses_window_after_end_of_run() {
    let place = Place::with(GOOD);
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    for from in ["400ms", "1h", "8760h"] {
        for more in [&[][..], &["--list"], &["--list", "--json"]] {
            let ran = place.run(&[&["show", "it.trace", "--from", from], more].concat());
            ran.refused(2).says("is not before the end of the run at 400ms").says("--from 200ms");
        }
    }
    place.run(&["show", "it.trace", "--from", "399ms", "--for", "1h"]).good();
}

#[test]
fn show_command_refuses_window_with_output_of_whole_trace() {
    let place = Place::with(GOOD);
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    for window in [["--from", "100ms"], ["--for", "100ms"]] {
        for more in [&["--table"][..], &["--runs", "silver"], &["--xenmon"], &["--json"]] {
            let ran = place.run(&[&["show", "it.trace"], &window[..], more].concat());
            ran.ended_with(2).says(window[0]);
        }
    }
}

#[test]
fn html_report_of_run_has_numbers_scenario_and_timeline() {
    let place = Place::with(GOOD);
    place.run(&["sim", "it.toml", "--report", "it.html"]).good();
    let html = String::from_utf8(place.read("it.html")).expect("UTF-8");
    for part in [
        "<table>",
        "CPU time received",
        "Distribution of wake to run",
        "data-order=\"cpu\"",
        "export class Timeline",
        "\"columns\":[[",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert!(html.matches("</script>").count() == 1 && !html.contains("src="), "one script, inline");
    // The temporary trace of a report is removed. With a saved trace, the report is the same.
    assert_eq!(place.files(), ["it.html", "it.toml"]);
    place.run(&["sim", "it.toml", "--report", "again.html", "--save", "it.trace"]).good();
    assert_eq!(place.read("again.html"), html.as_bytes());
    let same = ["sim", "it.toml", "--report", "x", "--save", "x"];
    place.run(&same).refused(2);
}

#[test]
fn html_report_has_claim_results_and_marks_of_missed_deadlines() {
    let text = "title = 't'\nlength = '2s'\npolicy = { name = 'edf' }\n\
                [[interference]]\ncpu = 0\nready = ['1s']\nwork = ['200ms']\n\
                [[domain]]\nname = 'web'\nwork = { kind = 'spin' }\n\
                share.edf = { slice = '2ms', period = '10ms', exact = true }\n\
                [[claim]]\nthat = 'delivered of web'\nis = 'at least 10%'\n\
                [[claim]]\nthat = 'misses of web'\nis = 'at most 3'\n\
                [[claim]]\nthat = 'wake to run p99 of web'\nis = 'below 1ms'\n";
    let place = Place::with(text);
    place.run(&["sim", "it.toml", "--report", "it.html"]).ended_with(1);
    let html = String::from_utf8(place.read("it.html")).expect("UTF-8");
    let rows: Vec<&str> = html.split("<tr>").filter(|row| row.contains(" of web is ")).collect();
    assert_eq!(rows.len(), 3, "a row for each claim");
    assert!(rows[0].contains("holds") && rows[1].contains("fails: 20"), "{rows:?}");
    assert!(rows[2].contains("not measured"), "the VM never wakes: {rows:?}");
    // All 20 periods without CPU time are missed. A column is 4 ms long.
    let marks = html.split("\"missed\":").nth(1).expect("marks");
    let marks: Vec<(u64, u64, u64)> =
        serde_json::from_str(&marks[..=marks.find("]]").expect("marks") + 1]).expect("JSON");
    assert_eq!(marks.iter().map(|(.., count)| count).sum::<u64>(), 20);
    assert!(marks.iter().all(|(column, ..)| (250..=310).contains(column)), "{marks:?}");
}

#[test]
fn csv_file_of_sim_has_shares_and_waits_per_second() {
    let text = GOOD.replacen("\"400ms\"", "\"3500ms\"", 1);
    let place = Place::with(&text);
    let plain = place.run(&["sim", "it.toml"]).good();
    let table = place.run(&["sim", "it.toml", "--csv", "it.csv"]).good();
    assert_eq!(table, plain, "the table is the same");
    let csv = String::from_utf8(place.read("it.csv")).expect("text");
    let mut lines = csv.lines();
    let heading = lines.next().expect("headings");
    let columns = "second,domain,share_ppm,used_ns,waited_ns,slept_ns,turns,cpu,others_ppm,\
                   stolen_ppm,unused_ppm";
    assert_eq!(heading, columns);
    let taught = place.run(&["help", "metrics"]).good();
    let taught = taught.split("\nColumns of --csv").nth(1).expect("the list of columns");
    for column in heading.split(',') {
        assert!(taught.contains(&format!("\n  {column} ")), "`{column}` is not explained");
    }
    // The row of the CPU has the CPU time of all VMs. A simulated CPU has no other programs.
    let cpu: Vec<&str> = csv.lines().filter(|line| line.contains(",cpu0,")).collect();
    assert_eq!(cpu.len(), 3, "{csv}");
    for (second, line) in cpu.iter().enumerate() {
        let of_second =
            |line: &&str| line.starts_with(&format!("{second},")) && !line.contains("cpu0");
        let used = |line: &str| line.split(',').nth(3).and_then(|cell| cell.parse::<u64>().ok());
        let all: u64 = csv.lines().filter(of_second).filter_map(used).sum();
        assert_eq!((used(line), line.ends_with(",cpu0,,,")), (Some(all), true), "{csv}");
    }
    let gold: Vec<Vec<u64>> = lines
        .filter(|line| line.split(',').nth(1) == Some("gold"))
        .map(|line| line.split(',').filter_map(|cell| cell.parse().ok()).collect())
        .collect();
    assert!(gold.len() >= 3, "{csv}");
    for second in &gold[1..3] {
        let [_, share, used, waited, slept, turns] = second[..] else { panic!("{second:?}") };
        assert_eq!((share, used, slept), (600_000, 600_000_000, 0), "{csv}");
        assert!(waited == 400_000_000 && turns >= 100, "{csv}");
    }
    place.run(&["sim", "it.toml", "--csv", "it.toml"]).refused(2).says("are the same file");
}

#[test]
fn domain_name_with_inner_dot_is_refused_only_if_ambiguous() {
    let named = |name: &str| GOOD.replace("gold", name);
    for name in ["ubuntu22.04", "fedora.40", "a.b.c"] {
        let place = Place::with(&named(name));
        assert!(place.run(&["sim", "it.toml"]).good().contains(name));
    }
    for name in [".a", "a.", "."] {
        Place::with(&named(name)).run(&["check", "it.toml"]).refused(2).says("is not a valid name");
    }
    // A vCPU of `silver` may be called `silver.0`.
    for (one, other) in [("gold", "gold.0"), ("gold.0", "gold")] {
        let text = GOOD.replace("gold", one).replace("\"silver\"", &format!("\"{other}\""));
        Place::with(&text).run(&["check", "it.toml"]).refused(2).says("is used already");
    }
}

#[test]
fn escape_and_direction_characters_in_a_title_are_replaced() {
    let text = GOOD.replacen("two hogs", "two \u{202e}sgoh\u{2066} \\u001b[31mred", 1);
    let place = Place::with(&text);
    for arguments in [&["sim", "it.toml"][..], &["check", "it.toml"]] {
        let out = place.run(arguments).good();
        assert!(!out.contains(['\u{202e}', '\u{2066}', '\u{1b}']), "{out}");
        assert!(out.contains("two \u{fffd}sgoh\u{fffd} \u{fffd}[31mred"), "{out}");
    }
    let wrong = GOOD.replacen("\"gold\"", "\"go\u{202e}ld\"", 1);
    let err = Place::with(&wrong).run(&["check", "it.toml"]).refused(2).err;
    assert!(!err.contains('\u{202e}') && err.contains('\u{fffd}'), "{err}");
}

#[test]
fn end_time_of_a_finished_batch_workload_is_noted() {
    let batch = "work = { kind = \"batch\", total = \"60ms\" }";
    let place = Place::with(&GOOD.replacen("work = { kind = \"spin\" }", batch, 1));
    let ran = place.run(&["sim", "it.toml"]);
    // The VM receives 6 ms of every 10 ms.
    ran.ended_with(1).shows("note: `gold` finished its work at 96");
}

/// If the terminal wrapped lines, tables would be unreadable.
#[test]
fn table_of_sim_command_fits_terminal_of_40_columns() {
    let place = Place::with(GOOD);
    let (ran, text) = crate::common::on_terminal(place.command(&["sim", "it.toml"]), 40);
    assert!(ran.success());
    assert!(text.contains("gold") && text.contains("delivered %"), "{text}");
    crate::common::is_narrow(&text);
}

/// The tables of every command fit the width in `COLUMNS`. Lists of run intervals are exempt,
/// because their lines are meant for programs like `grep`.
#[test]
fn every_command_prints_tables_that_fit_into_40_columns() {
    let place = Place::with(GOOD);
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    place.run(&["sim", "it.toml", "--seed", "7", "--save", "other.trace"]).good();
    place.run(&["sim", "it.toml", "--length", "4s", "--save", "long.trace"]).good();
    place.write("long.toml", GOOD.replace("gold", &"a-long-name".repeat(4)).as_bytes());
    let axes = "[[axis]]\nname = \"load\"\npoint = [{ name = \"a\" }, { name = \"b\" }]\n";
    place.write("axes.toml", (GOOD.to_owned() + axes).as_bytes());
    let papers = concat!(env!("CARGO_MANIFEST_DIR"), "/../../papers");
    let alert = ["alert", "--policy", "credit:rules=xen-3.0.3", "--seeds", "1", "--length", "2s"];
    for arguments in [
        &["sim", "it.toml"][..],
        &["sim", "it.toml", "--xenmon"],
        &["sim", "it.toml", "--seeds", "2"],
        &["sim", "long.toml"],
        &["sim", "long.toml", "--xenmon"],
        &["compare", "long.toml", "--policies", "edf,round-robin"],
        &["sim", "axes.toml"],
        &["compare", "it.toml", "--policies", "edf,round-robin"],
        &["compare", "it.toml", "--policies", "edf,round-robin", "--seeds", "2"],
        &["compare", "axes.toml", "--policies", "edf,round-robin"],
        &["compare", "it.toml", "--policies", "edf:reserve=0.060000cpu:place=pack,edf"],
        &["show", "it.trace"],
        &["show", "it.trace", "--table"],
        &["show", "it.trace", "--from", "399ms", "--for", "40ms"],
        &["check", "it.toml"],
        &["check", "axes.toml"],
        &["doctor"],
        &["paper", "list", "--papers", papers],
        &["help"],
        &["help", "sim"],
        &["help", "whatif"],
        &["sim", "--help"],
        &["diff", "it.trace", "it.trace"],
        &["diff", "it.trace", "other.trace"],
        &["replay", "it.trace"],
        &["whatif", "long.trace"],
        &["whatif", "long.trace", "--set", "gold.slice=5ms"],
        &[&alert[..], &["--targets", "5,50"]].concat(),
        &[&alert[..], &["--targets", "50", "--ablate"]].concat(),
    ] {
        let output = place
            .command(arguments)
            .env("COLUMNS", "40")
            .output()
            .expect("the program can be started");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success() && !text.is_empty(), "{arguments:?}");
        crate::common::is_narrow(&text);
    }
    // Messages on standard error are as narrow.
    for arguments in
        [&["sim", "it.toml", "--lenght", "1s"][..], &["show", "it.trace", "--from", "1h"]]
    {
        let output = place
            .command(arguments)
            .env("COLUMNS", "40")
            .output()
            .expect("the program can be started");
        let text = String::from_utf8(output.stderr).expect("text");
        assert!(text.starts_with("error: ") && text.contains('\n'), "{text}");
        crate::common::is_narrow(&text);
    }
}

#[test]
fn machine_readable_output_is_not_wrapped_to_terminal_width() {
    let place = Place::with(GOOD);
    place.run(&["sim", "it.toml", "--length", "4s", "--save", "it.trace"]).good();
    let all = [
        &["hook", "libvirt", "--script"][..],
        &["man", "sim"],
        &["completions", "bash"],
        &["diff", "it.trace", "it.trace", "--json"],
        &["whatif", "it.trace", "--json"],
        &["show", "it.trace", "--list"],
    ];
    for arguments in all {
        let wide = place.run(arguments).good();
        let narrow = place.command(arguments).env("COLUMNS", "40").output();
        let narrow = narrow.expect("the program can be started").stdout;
        assert!(String::from_utf8(narrow).expect("text") == wide, "{arguments:?}");
    }
}
