//! Tests of `slackline sweep`, which runs a family of scenarios under several policies and makes
//! one table. A sweep that was killed and continued makes the same table.

use std::process::Stdio;
use std::time::Duration;

use crate::common::live::{kill, let_pass, wait_until};
use crate::common::{GOOD, Place, Ran};
use rustix::process::Signal;

const FAMILY: &str = r#"title = "random"
length = "12s"
warmup = "2s"
policy = { name = "sedf" }
[family]
cpus = [1, 2]
weights = [1, 2]
reserved = ["0%", "25%"]
[family.share]
sedf = { extra-weight = "{weight}" }
credit = { weight = "{weight}" }
[family.reservation]
sedf = { slice = "{slice}", period = "{period}", extra = false }
credit = { cap = "{part}" }
[[axis]]
name = "sleepers"
[[axis.point]]
name = "none"
[[axis.point]]
name = "half"
set = { "family.sleepers" = "50%" }
"#;

const SWEEP: [&str; 8] =
    ["sweep", "it.toml", "--policies", "sedf,credit:boost=off", "--seeds", "3", "--csv", "it.csv"];

fn text(place: &Place, name: &str) -> String {
    String::from_utf8(place.read(name)).unwrap()
}

#[test]
fn sweep_command_writes_html_page_and_csv_row_per_run() {
    let place = Place::with(FAMILY);
    let arguments = [&SWEEP[..], &["--report", "it.html"]].concat();
    let ran = place.run(&arguments).ended_with(0).says("note: 24 runs; ");
    ran.shows("random").shows("half, 2 CPUs, credit:boost=off").shows("error %");
    let table = text(&place, "it.csv");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0][..5], ["sleepers", "cpus", "policy", "seed", "outcome"]);
    assert_eq!(lines.len(), 1 + 24);
    let column = |name: &str| lines[0].iter().position(|head| *head == name).unwrap();
    for line in &lines[1..] {
        assert_eq!((line.len(), line[4]), (lines[0].len(), "done"), "{line:?}");
        let is_sedf = line[2] == "sedf";
        let [moves, misses] = ["moves_per_cpu_second", "misses"].map(|name| line[column(name)]);
        assert!(
            !is_sedf || moves == "0.000" && misses == "0",
            "SEDF neither migrates nor misses: {line:?}"
        );
        let error: f64 = line[column("share_error_percent")].parse().unwrap();
        // On one CPU, slack by weight is fair to a VM that never blocks.
        let is_plain = is_sedf && line[0] == "none" && line[1] == "1";
        assert!(!is_plain || error < 1.0, "{line:?}");
    }
    let page = text(&place, "it.html");
    assert!(page.contains("<svg") && page.contains("Missed deadlines") && page.contains("half"));
    assert_eq!(place.files(), ["it.csv", "it.html", "it.toml"], "nothing else is left");
    // The second sweep runs on all cores, in any order.
    place.run(&SWEEP).ended_with(0);
    assert_eq!(text(&place, "it.csv"), table);
}

/// Returns the values of a column of the table, in the order of the runs.
fn values(table: &str, column: &str) -> Vec<f64> {
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let at = lines[0].iter().position(|head| *head == column).unwrap();
    lines[1..].iter().map(|line| line[at].parse().unwrap()).collect()
}

#[test]
fn sweep_command_reports_midpoint_of_two_seeds_as_median() {
    let place = Place::with(&FAMILY.replacen("cpus = [1, 2]", "cpus = [3]", 1));
    let words = ["sweep", "it.toml", "--policies", "credit:boost=off", "--seeds", "2"];
    let ran = place.run(&[&words[..], &["--csv", "it.csv"]].concat()).ended_with(0);
    let errors = values(&text(&place, "it.csv"), "worst_error_percent");
    assert_eq!(errors.len(), 4);
    for (nth, name) in ["none, 3 CPUs", "half, 3 CPUs"].iter().enumerate() {
        let [low, high] = [errors[2 * nth], errors[2 * nth + 1]];
        assert!((low - high).abs() > 0.14, "the seeds differ: {low} and {high}");
        let line = ran.out.lines().find(|line| line.trim().starts_with(name)).unwrap();
        let shown: f64 = line.split_whitespace().nth(6).unwrap().parse().unwrap();
        assert!((shown - f64::midpoint(low, high)).abs() < 0.06, "{line}: {low} and {high}");
    }
}

#[test]
fn example_of_scenario_family_in_help_page_can_be_swept() {
    let page = Place::new().run(&["help", "family"]).good();
    let intro = page.lines().take_while(|line| !line.starts_with("  - "));
    let example: Vec<&str> = intro.filter_map(|line| line.strip_prefix("  ")).collect();
    let place = Place::with(&example.join("\n"));
    let words = ["sweep", "it.toml", "--seeds", "1", "--length", "3s", "--csv", "it.csv"];
    place.run(&words).ended_with(0).says("note: 2 runs; ");
    assert_eq!(text(&place, "it.csv").lines().count(), 1 + 2, "two sizes");
}

/// Starts a sweep, and ends it with a signal when some of its runs are complete.
#[track_caller]
fn ended_by(place: &Place, arguments: &[&str], signal: Signal) -> Ran {
    let lines = || {
        let part = std::fs::read(place.path("it.csv.part")).unwrap_or_default();
        part.into_iter().filter(|&byte| byte == b'\n').count()
    };
    let before = lines();
    let mut command = place.command(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    wait_until("some runs to be done", || {
        assert!(child.try_wait().unwrap().is_none(), "the sweep runs until the signal");
        lines() > before + 3
    });
    let_pass(Duration::from_millis(20));
    kill(pid, signal);
    Ran::new(&child.wait_with_output().unwrap())
}

/// The sweep has 24 runs of 100 simulated seconds each, so that it can be killed in the middle.
#[test]
fn killed_sweep_resumes_and_writes_same_table_as_uninterrupted_sweep() {
    let place = Place::with(&FAMILY.replacen("\"12s\"", "\"100s\"", 1));
    place.run(&SWEEP).ended_with(0).says("note: 24 runs; ");
    let whole = text(&place, "it.csv");
    std::fs::remove_file(place.path("it.csv")).unwrap();
    assert_eq!(ended_by(&place, &SWEEP, Signal::KILL).code, None);
    assert!(!place.path("it.csv").exists(), "an incomplete table is not written");
    let part = text(&place, "it.csv.part");
    let done = part.lines().count() - 1 - usize::from(!part.ends_with('\n'));
    let ran = ended_by(&place, &SWEEP, Signal::INT).ended_with(130);
    let ran = ran.says("run the same command to continue").says(" before; ");
    assert!(ran.out.contains("error %"), "statistics of finished runs are shown: {}", ran.out);
    let some = text(&place, "it.csv");
    assert!(some.lines().count() > done && some.len() < whole.len());
    assert!(some.lines().all(|line| whole.lines().any(|other| other == line)));
    place.run(&SWEEP).ended_with(0).says(" before; ");
    assert_eq!(text(&place, "it.csv"), whole);
    assert_eq!(place.files(), ["it.csv", "it.toml"]);
}

#[test]
fn sweep_refuses_partial_file_of_another_sweep_without_fresh_option() {
    let place = Place::with(FAMILY);
    place.write("it.csv.part", b"slackline 0.1.0 sweep of something else\n0\tdone\n");
    place.run(&SWEEP).refused(2).says("runs of another sweep").says("--fresh");
    place.run(&[&SWEEP[..], &["--fresh"]].concat()).ended_with(0);
    assert_eq!(text(&place, "it.csv").lines().count(), 25);
}

#[test]
fn cpus_option_of_sweep_replaces_cpu_counts_of_scenario_family() {
    let place = Place::with(FAMILY);
    let sweep = ["sweep", "it.toml", "--seeds", "1", "--csv", "it.csv", "--length", "3s"];
    let sweep = |sizes| [&sweep[..], &["--cpus", sizes]].concat();
    place.run(&sweep("3,1")).ended_with(0).says("note: 4 runs; ");
    let table = text(&place, "it.csv");
    let sizes: Vec<&str> =
        table.lines().skip(1).map(|line| line.split(',').nth(1).unwrap()).collect();
    assert_eq!(sizes, ["3", "1", "3", "1"]);
    place.run(&sweep("1,257")).ended_with(2).says("257 is not in 1..=256");
    Place::with(GOOD).run(&sweep("2")).refused(2).says("has no [family]");
}

#[test]
fn sweep_command_runs_scenario_without_family_and_notes_refused_runs() {
    let place = Place::with(GOOD);
    let sweep = ["sweep", "it.toml", "--policies", "edf,edf:reserve=0.2cpu", "--seeds", "2"];
    place.run(&[&sweep[..], &["--csv", "it.csv"]].concat()).ended_with(0).shows("were refused");
    let table = text(&place, "it.csv");
    let outcomes: Vec<&str> =
        table.lines().skip(1).map(|line| line.split(',').nth(3).unwrap()).collect();
    assert_eq!(outcomes, ["done", "done", "refused", "refused"]);
}

#[test]
fn invalid_sweep_is_refused_before_its_first_run() {
    let family = |what: &str, with: &str| FAMILY.replacen(what, with, 1);
    let cases = [
        (family("cpus = [1, 2]", "cpus = [0]"), "it.toml:6:8: a host has 1 to 256 CPUs, not 0"),
        (family("cpus = [1, 2]", "cpus = []"), "it.toml:6:8: the list needs at least one value"),
        (family("weights = [1, 2]", "weight = [1, 2]"), "it.toml:7:1: unknown field `weight`"),
        (family("[\"0%\", \"25%\"]", "[\"97%\"]"), "it.toml:8:12: `97%` is more than 95%"),
        (
            family("\"50%\"", "\"half\""),
            "at point `half`: `family`: `half` is not a percentage from 0% to 100%",
        ),
        (family("credit = { weight", "credits = { weight"), "no policy is called `credits`"),
        (format!("{FAMILY}[[domain]]\nname = \"a\"\n"), "cannot set domains in a family of hosts"),
        (family("extra-weight = ", "extra-wait = "), "extra-wait"),
    ];
    for (scenario, says) in cases {
        let place = Place::with(&scenario);
        let ran = place.run(&SWEEP).refused(2);
        assert!(ran.err.contains(says), "`{says}` is missing:\n{}", ran.err);
        assert_eq!(place.files(), ["it.toml"], "no output file was created");
    }
    let place = Place::with(FAMILY);
    for command in ["sim", "check"] {
        place.run(&[command, "it.toml"]).refused(2).says("use `slackline sweep`");
    }
    let onto_itself = ["sweep", "it.toml", "--csv", "it.toml"];
    place.run(&onto_itself).refused(2).says("are the same file");
    assert_eq!(text(&place, "it.toml"), FAMILY);
}

#[test]
fn metric_option_of_sweep_adds_column_table_and_chart_panel() {
    let place = Place::with(FAMILY);
    let metrics = ["--metric", "wait worst", "--metric", "misses of total"];
    let arguments = [&SWEEP[..], &["--page", "it.html"], &metrics].concat();
    let ran = place.run(&arguments).ended_with(0);
    ran.shows("wait worst, ").shows("run by run with the same seed");
    let table = text(&place, "it.csv");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let width = lines[0].len();
    assert_eq!(lines[0][width - 2..], ["wait_worst_ns", "misses"]);
    for line in &lines[1..] {
        // The metric of the whole run is the sum that the usual column has.
        let usual = lines[0].iter().position(|head| *head == "misses").unwrap();
        // The metric is absent if no vCPU has deadlines. Then the usual column counts no misses.
        let misses = if line[width - 1].is_empty() { "0" } else { line[width - 1] };
        assert_eq!(misses, line[usual], "{line:?}");
        let _: u64 = line[width - 2].parse().unwrap_or_else(|_| panic!("{line:?}"));
    }
    assert!(text(&place, "it.html").contains("wait worst"));
    let ran = place.run(&[&SWEEP[..], &["--metric", "mises of total"]].concat()).refused(2);
    ran.says("cannot show --metric `mises of total`").says("did you mean `misses`?");
}
