//! Tests of commands with valid input: their output and their files. Repeated commands give the
//! same output and files.

use std::process::Stdio;

use crate::common::{GOOD, Place, Ran};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("no JSON: {error}\n{text}"))
}

#[track_caller]
fn has_fields(object: &Value, names: &[&str]) {
    for name in names {
        assert!(object.get(name).is_some(), "`{name}` is missing: {object:#}");
    }
}

/// Returns a folder with the scenario [`GOOD`](common::GOOD) and a saved trace of it.
fn traced() -> Place {
    let place = Place::with(GOOD);
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    place
}

#[test]
fn sim_command_prints_a_table_with_all_vcpus() {
    let out = Place::with(GOOD).run(&["sim", "it.toml"]).good();
    for word in ["two hogs", "gold", "silver", "edf"] {
        assert!(out.contains(word), "`{word}` is missing:\n{out}");
    }
}

#[test]
fn cost_option_of_sim_reports_event_count_and_cpu_time() {
    let place = Place::with(GOOD);
    let out = place.run(&["sim", "it.toml", "--cost"]).good();
    assert!(out.contains("note: ") && out.contains(" events in "), "{out}");
    let runs = json(&place.run(&["sim", "it.toml", "--cost", "--json"]).good());
    let cost = &runs["runs"][0]["cost"];
    has_fields(cost, &["took_ns", "cpu_ns", "events", "peak_kib"]);
    assert!(out.contains(" s of CPU time, "), "{out}");
    assert!(cost["cpu_ns"].as_u64() > Some(0), "{cost}");
    // The number is the same as in the table.
    let events = cost["events"].as_u64().unwrap();
    assert!(events > 100 && out.contains(&format!("{events} events in ")), "{out} {cost}");
    place.run(&["sim", "it.toml", "--cost", "--seeds", "2"]).ended_with(2).says("--seeds");
}

#[test]
fn json_output_of_a_run_has_the_documented_fields() {
    let place = Place::with(GOOD);
    let whole = json(&place.run(&["sim", "it.toml", "--json"]).good());
    assert_eq!(whole["format"], "slackline-runs-1");
    let run = &whole["runs"][0];
    has_fields(
        run,
        &[
            "run",
            "title",
            "machine",
            "policy",
            "seed",
            "length_ns",
            "knows_sleep",
            "knows_stretches",
            "declined",
            "refused",
            "timer_lateness_p99_ns",
            "change_delay_worst_ns",
            "vcpus",
            "cpus",
        ],
    );
    assert_eq!((&run["run"], &run["title"]), (&"sim".into(), &"two hogs".into()));
    assert_eq!(run["length_ns"], 400_000_000);
    has_fields(
        &run["vcpus"][1],
        &[
            "name",
            "vcpu",
            "exact",
            "promised_slice_ns",
            "promised_period_ns",
            "promised_ppm",
            "delivered_ns",
            "delivered_ppm",
            "present_ns",
            "work_ppm",
            "slowed_ns",
            "error_ppm",
            "second_error_p99_ppm",
            "seconds",
            "deadlines",
            "misses",
            "miss_time_p50_ns",
            "miss_time_p99_of_slice_ppm",
            "wake_to_run_p90_ns",
            "switches",
            "migrations",
            "waiting_ns",
            "stopped_ns",
            "asleep_ns",
            "overrun_ns",
            "jobs",
            "jobs_late",
            "job_lateness_worst_ns",
            "response_p50_ns",
        ],
    );
    assert_eq!(run["vcpus"][1]["name"], "silver");
    has_fields(
        &run["cpus"][0],
        &["cpu", "busy_ns", "due_ns", "spare_ns", "idle_ns", "overhead_ns", "switches"],
    );
}

#[test]
fn xenmon_table_of_run_equals_table_computed_from_trace() {
    let place = traced();
    let text = place.run(&["sim", "it.toml", "--xenmon"]).good();
    let table = text.split("XenMon: ").nth(1).expect("a second table");
    for word in ["gold", "gotten", "allocated", "blocked", "waited", "nothing about I/O"] {
        assert!(table.contains(word), "`{word}` is missing:\n{table}");
    }
    let shown = place.run(&["show", "it.trace", "--xenmon"]).good();
    assert_eq!(shown.split("XenMon: ").nth(1), Some(table), "the trace gives the same table");
    let whole = json(&place.run(&["sim", "it.toml", "--xenmon", "--json"]).good());
    let xenmon = &whole["runs"][0]["xenmon"];
    assert_eq!(xenmon["point_ns"], 100_000_000);
    let gold = &xenmon["domains"][0];
    has_fields(gold, &["gotten_ppm", "allocated_per_execution_ns", "waited_ns_per_s", "seconds"]);
    assert_eq!((&gold["domain"], &gold["gotten_ns"]), (&"gold".into(), &240_000_000.into()));
    assert!(gold["io"].is_null(), "the trace has no I/O");
}

#[test]
fn results_of_run_depend_on_seed_policy_and_length_options() {
    let place = Place::with(GOOD);
    let run = |more: &[&str]| {
        let arguments = [&["sim", "it.toml", "--json"], more].concat();
        json(&place.run(&arguments).good())["runs"][0].take()
    };
    let plain = run(&[]);
    assert_eq!(plain, run(&[]));
    assert_ne!(plain["vcpus"], run(&["--seed", "2"])["vcpus"]);
    assert_eq!(run(&["--seed", "2"])["seed"], 2);
    assert_eq!(run(&["--length", "300ms"])["length_ns"], 300_000_000);
    let other = Place::with(&GOOD.replace("on = \"sim\"", "on = \"live\""));
    let other = other.run(&["sim", "it.toml", "--json", "--policy", "round-robin"]).good();
    assert_eq!(json(&other)["runs"][0]["policy"], "round-robin");
}

#[test]
fn compare_command_shows_one_run_per_policy_side_by_side() {
    let place = Place::with(GOOD);
    let arguments = ["compare", "it.toml", "--policies", "edf,round-robin"];
    let out = place.run(&arguments).good();
    assert!(out.contains("edf") && out.contains("round-robin"), "{out}");
    let whole = json(&place.run(&[&arguments[..], &["--json"]].concat()).good());
    let names: Vec<_> = whole["runs"].as_array().unwrap().iter().map(|run| &run["run"]).collect();
    assert_eq!(names, ["edf", "round-robin"]);
    assert_eq!(whole["runs"][1]["policy"], "round-robin");
}

#[test]
fn check_command_reports_size_and_admission_of_a_scenario() {
    let place = Place::with(GOOD);
    let out = place.run(&["check", "it.toml"]).good();
    assert!(out.contains("two hogs") && out.contains("  admitted\n"), "{out}");
    let found = json(&place.run(&["check", "it.toml", "--json"]).good());
    has_fields(&found, &["title", "policy", "cpus", "length_ns", "changes"]);
    assert_eq!((&found["domains"], &found["vcpus"]), (&2.into(), &2.into()));
    assert_eq!((&found["claims"], &found["admitted"]), (&1.into(), &true.into()));
    assert_eq!(found["refused"], Value::Null);
}

#[test]
fn claim_expecting_refusal_passes_only_if_admission_refuses_scenario() {
    let text = GOOD.replace("slice = \"3ms\"", "slice = \"8ms\"");
    let claims = text.find("[[claim]]").unwrap();
    let text = format!("{}[[claim]]\nthat = \"refused\"\n", &text[..claims]);
    let place = Place::with(&text);
    for command in ["check", "sim", "run"] {
        let out = place.run(&[command, "it.toml"]).good();
        assert!(
            out.contains("admission refuses the scenario, as its claim expects"),
            "{command}: {out}"
        );
    }
    let found = json(&place.run(&["check", "it.toml", "--json"]).good());
    assert_eq!(found["admitted"], false);
    assert!(found["refused"].as_str().is_some_and(|why| why.contains("silver")), "{found:#}");
    // A scenario that is admitted fails this claim.
    let place = Place::with(&text.replace("slice = \"8ms\"", "slice = \"3ms\""));
    for command in ["check", "sim", "run"] {
        place
            .run(&[command, "it.toml"])
            .ended_with(1)
            .says("claim failed: `refused`, but admission accepted the scenario");
    }
}

#[test]
fn claim_that_fails_is_reported_with_required_and_measured_number() {
    let place = Place::with(&GOOD.replace("within 2% of promised", "below 50%"));
    let ran = place.run(&["sim", "it.toml"]).ended_with(1);
    assert!(ran.err.starts_with("claim failed: delivered of gold is below 50%, but it is 6"));
    assert!(ran.err.contains("it.toml:14") && ran.out.contains("gold"), "{}", ran.err);
}

/// The claims are about a CPU that is always busy, and about one second of measurement.
#[test]
fn claims_about_cpu_busy_time_and_overhead_are_evaluated() {
    let scenario = |that: &str, is: &str| {
        format!(
            "title = 't'\nlength = '1s'\npolicy = {{ name = 'round-robin' }}\n\
             [host]\ncpus = 2\nswitch = '10ms'\n\
             [[domain]]\nname = 'a'\ncpus = [0]\nwork = {{ kind = 'spin' }}\n\
             [[claim]]\nthat = '{that}'\nis = '{is}'\n"
        )
    };
    for (that, is) in [
        ("busy of cpu0", "above 1%"),
        ("busy of cpu0", "within 0% of 1s"),
        ("program of cpu0", "within 0 points of 99%"),
        ("switch overhead of cpu0", "within 0% of 10ms"),
        ("idle of cpu1", "at least 100%"),
        ("idle", "within 0 points of 50%"),
        ("switches of cpu0", "at most 1"),
    ] {
        Place::with(&scenario(that, is)).run(&["sim", "it.toml"]).good();
    }
    let ran = Place::with(&scenario("busy of cpu0", "below 99%")).run(&["sim", "it.toml"]);
    let ran = ran.ended_with(1);
    assert!(ran.err.starts_with("claim failed: busy of cpu0 is below 99%, but it is 100"));
    let ran = Place::with(&scenario("busy of cpu2", "above 1%")).run(&["sim", "it.toml"]);
    let ran = ran.ended_with(2);
    assert!(ran.err.contains("`busy of cpu2`") && ran.err.contains("of cpu0"), "{}", ran.err);
}

/// The task `web/0` takes 1 ms per request. Packets of the second client travel longer than packets
/// of the first client. Packets of the third client arrive after the end of the run. The task
/// `web/1` has no job.
#[test]
fn claims_about_clients_and_guest_tasks_are_evaluated() {
    let scenario = |that: &str, is: &str| {
        let client = "[[client]]\nkind = 'ping'\nevery = '20ms'\nto = 'web'\ndelay = ";
        format!(
            "title = 't'\nlength = '100ms'\npolicy = {{ name = 'round-robin' }}\n\
             [driver]\ndomain = 'dom0'\n[[domain]]\nname = 'dom0'\n[[domain]]\nname = 'web'\n\
             [[domain.task]]\nname = 'server'\nwork = {{ kind = 'echo', each = '1ms' }}\n\
             [[domain.task]]\nname = 'idle'\n\
             work = {{ kind = 'periodic', offset = '900ms', period = '1s', work = '1ms' }}\n\
             {client}'1ms'\n{client}'3ms'\n{client}'60ms'\n\
             [[claim]]\nthat = '{that}'\nis = '{is}'\n"
        )
    };
    for (that, is) in [
        ("answered of client0", "within 0% of 5"),
        ("response worst of client0", "below 4ms"),
        ("response worst of client1", "within 1% of 7ms"),
        ("answered of client2", "at most 0"),
        ("response worst of client2", "below 1ms"),
        ("jobs of web/0", "within 0% of 10"),
        ("response worst of web/0", "within 1% of 7ms"),
        ("jobs of web/1", "at most 0"),
    ] {
        Place::with(&scenario(that, is)).run(&["sim", "it.toml"]).good();
    }
    for (that, is, got) in [
        ("response worst of client1", "below 5ms", ", but it is 7"),
        ("response p50 of client1", "below 5ms", "ms (n 5)"),
        ("jobs of web/1", "at least 1", ", but it is 0"),
    ] {
        let ran = Place::with(&scenario(that, is)).run(&["sim", "it.toml"]).ended_with(1);
        assert!(ran.err.contains(got), "{}", ran.err);
    }
    for (that, near) in [("answered of client3", "of client"), ("jobs of web/2", "of web/")] {
        let ran = Place::with(&scenario(that, "at most 0")).run(&["check", "it.toml"]);
        ran.refused(2).says(that).says(near);
    }
    let place = Place::with(&scenario("jobs of web", "at least 1"));
    let text = place.run(&["sim", "it.toml"]).good();
    assert!(text.contains("client2") && text.contains("answered"), "{text}");
    let compare = ["compare", "it.toml", "--policies", "round-robin"];
    let metrics = ["--metric", "response worst of client1", "--metric", "boosts of web"];
    let text = place.run(&[&compare[..], &metrics].concat()).good();
    assert!(text.contains("response worst of client1, us"), "{text}");
    let json = place.run(&["sim", "it.toml", "--json"]).good();
    let whole: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let clients = &whole["runs"][0]["clients"];
    assert_eq!((&clients[0]["answered"], &clients[2]["response_count"]), (&5.into(), &0.into()));
}

#[test]
fn traces_of_equal_runs_are_identical_and_give_equal_reports() {
    let place = Place::with(GOOD);
    let told = place.run(&["sim", "it.toml", "--json", "--save", "1.trace"]).good();
    place.run(&["sim", "it.toml", "--save", "2.trace", "--perfetto", "1.perfetto"]).good();
    assert_eq!(place.read("1.trace"), place.read("2.trace"));
    assert_eq!(place.run(&["show", "1.trace", "--json"]).good(), told);
    // An existing file is replaced.
    place.run(&["sim", "it.toml", "--seed", "7", "--save", "2.trace"]).good();
    assert_ne!(place.read("1.trace"), place.read("2.trace"));
    // The Perfetto file of a run and that of its saved trace are equal.
    place.run(&["show", "1.trace", "--perfetto", "2.perfetto"]).good();
    assert_eq!(place.read("1.perfetto"), place.read("2.perfetto"));
    let files = ["1.perfetto", "1.trace", "2.perfetto", "2.trace", "it.toml"];
    assert_eq!(place.files(), files);
}

#[test]
fn output_file_is_created_with_the_permissions_that_umask_allows() {
    use std::os::unix::fs::PermissionsExt;
    let place = traced();
    let mode = |name| place.path(name).metadata().unwrap().permissions().mode() & 0o777;
    place.write("plain", b"");
    assert_eq!(mode("it.trace"), mode("plain"));
}

#[test]
fn show_command_prints_trace_as_timeline_list_or_totals() {
    let place = traced();
    let show = |more: &[&str]| place.run(&[&["show", "it.trace"], more].concat()).good();
    let picture = show(&["--for", "40ms", "--width", "80"]);
    assert!(picture.contains("gold") && picture.contains("silver"), "{picture}");
    let ascii = show(&["--for", "40ms", "--width", "80", "--ascii"]);
    assert!(ascii.is_ascii() && ascii.contains("gold"), "{ascii}");
    let list = show(&["--list", "--from", "100ms", "--for", "50ms"]);
    let lines: Vec<_> = list.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("cpu0")), "{list}");
    let last = list.lines().last().unwrap_or_default();
    assert!(last.ends_with(" run intervals outside 100.000000 to 150.000000 are not listed"));
    let (whole, part) = (show(&["--list"]), lines.len());
    let left_out: usize = last.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap();
    assert!(!whole.contains("not listed") && whole.contains(" over "), "{whole}");
    assert_eq!(whole.lines().count() - 1, part + left_out);
    let stretches = |more: &[&str]| json(&show(&[&["--list", "--json"], more].concat()));
    let (all, some) = (stretches(&[]), stretches(&["--from", "100ms", "--for", "50ms"]));
    assert_eq!(all["stretches"].as_array().unwrap().len(), part + left_out);
    assert_eq!(
        (&all["not_listed"], &some["not_listed"]),
        (&json("0"), &json(&left_out.to_string()))
    );
    let (passes, plain) = (show(&["--list", "--passes"]), show(&["--list"]));
    let listed = |text: &str, why: &str| text.matches(&format!(" {why} ")).count();
    assert!(listed(&plain, "pass") == 0 && listed(&passes, "pass") > 100, "{passes}");
    assert_eq!(listed(&passes, "limit"), listed(&plain, "limit"));
    let all = stretches(&["--passes"]);
    assert_eq!(all["passes"].as_array().map(Vec::len), Some(listed(&passes, "pass")));
    let granted = |row: &serde_json::Value| row["granted_ns"].as_u64().is_some_and(|ns| ns > 0);
    assert!(all["stretches"].as_array().is_some_and(|rows| rows.iter().any(granted)), "{all}");
    let runs = show(&["--runs", "silver"]);
    assert!(runs.starts_with("run_ns,block_ns\n") && runs.lines().count() > 10, "{runs}");
    assert_eq!(show(&["--table"]), place.run(&["sim", "it.toml"]).good());
    // A recording of the runs can be replayed.
    place.write("runs.csv", runs.as_bytes());
    let work =
        "{ kind = \"interactive\", compute = \"exponential 1ms\", sleep = \"exponential 5ms\" }";
    let text = GOOD.replace(work, "{ kind = \"replay\", file = \"runs.csv\" }");
    assert_ne!(text, GOOD);
    place.write("again.toml", text.as_bytes());
    place.run(&["sim", "again.toml"]).good();
}

/// Returns a scenario whose second VM replays the recording `runs.csv`.
fn replaying() -> String {
    let work =
        "{ kind = \"interactive\", compute = \"exponential 1ms\", sleep = \"exponential 5ms\" }";
    let text = GOOD.replace(work, "{ kind = \"replay\", file = \"runs.csv\" }");
    assert_ne!(text, GOOD);
    text
}

#[test]
fn vm_replaying_recording_without_cpu_time_receives_no_cpu_time() {
    let place = Place::with(&replaying());
    place.write("runs.csv", b"run_ns,block_ns\n0,100000000\n");
    let runs = json(&place.run(&["sim", "it.toml", "--json"]).good());
    let vcpus = runs["runs"][0]["vcpus"].as_array().expect("vCPUs");
    let delivered = |name: &str| {
        let vcpu = vcpus.iter().find(|vcpu| vcpu["name"] == name).expect("the vCPU");
        vcpu["delivered_ns"].as_u64().expect("a time")
    };
    assert!(delivered("silver") == 0 && delivered("gold") > 0, "{runs}");
}

#[test]
fn unreadable_recording_is_refused_with_the_reason() {
    let place = Place::with(&replaying());
    place.run(&["sim", "it.toml"]).refused(2).says("cannot read `runs.csv`: there is no such file");
    std::fs::create_dir(place.path("runs.csv")).expect("a folder");
    place.run(&["sim", "it.toml"]).refused(2).says("cannot read `runs.csv`: it is a folder");
    std::fs::remove_dir(place.path("runs.csv")).expect("removed");
    place.write("runs.csv", b"1,2\n\xff\n");
    place.run(&["sim", "it.toml"]).refused(2).says("line 2, column 1: this is not UTF-8");
    let file = std::fs::File::create(place.path("runs.csv")).expect("a file");
    file.set_len((1 << 28) + 1).expect("a long file");
    place.run(&["sim", "it.toml"]).refused(2).says("line 1 is longer than 16384 bytes");
    place.run(&["load", "replay", "--file", "runs.csv"]).refused(2).says("line 1 is longer");
    place.run(&["load", "replay", "--file", "no.csv"]).refused(2).says("there is no such file");
    let jobs = replaying().replacen("kind = \"replay\"", "kind = \"jobs\"", 1);
    place.write("it.toml", jobs.as_bytes());
    let ran = place.run(&["sim", "it.toml"]).refused(2);
    ran.says("the file has more than the maximum of 268435456 bytes");
}

/// The recording has 20,000 lines, more than are kept in memory. The recorded VM runs for 10 ms of
/// every 100 ms.
#[test]
fn recording_of_20000_lines_is_replayed_by_sim_and_load() {
    let place = Place::with(&replaying());
    place.write("runs.csv", "10000000,90000000\n".repeat(20_000).as_bytes());
    let runs = json(&place.run(&["sim", "it.toml", "--json"]).good());
    let vcpus = runs["runs"][0]["vcpus"].as_array().expect("vCPUs");
    let silver = vcpus.iter().find(|vcpu| vcpu["name"] == "silver").expect("the vCPU");
    assert_eq!(silver["delivered_ppm"], 100_000);
    place.run(&["load", "replay", "--file", "runs.csv", "--length", "50ms"]).ended_with(0);
    place.write("runs.csv", ("1,2\n".repeat(20_000) + "3;4\n").as_bytes());
    let says = "line 20001: `3;4` is not two durations in nanoseconds";
    place.run(&["sim", "it.toml"]).refused(2).says(says);
}

#[test]
fn doctor_command_reports_findings_with_hints_as_text_and_json() {
    let place = Place::new();
    assert!(!place.run(&["doctor"]).good().is_empty());
    let whole = json(&place.run(&["doctor", "--json"]).good());
    assert_eq!(whole["format"], "slackline-doctor-1");
    assert!(whole["can_run_live"].is_boolean() && whole["leftovers"].is_array());
    let findings = whole["findings"].as_array().unwrap();
    assert!(!findings.is_empty());
    for finding in findings {
        has_fields(finding, &["id", "state", "found", "matters", "hint", "figures"]);
    }
}

#[test]
fn load_command_runs_each_workload_kind_for_given_length() {
    let place = Place::new();
    place.write("runs.csv", b"run_ns,block_ns\n1000000,2000000\n");
    for kind in [
        &["spin"][..],
        &["periodic", "--period", "10ms", "--work", "1ms"],
        &["periodic", "--period", "10ms", "--work", "uniform 1ms 2ms", "--deadline", "5ms"],
        &["interactive", "--compute", "1ms", "--sleep", "exponential 2ms"],
        &["batch", "--total", "10s"],
        &["yield", "--compute", "uniform 10us 1ms"],
        &["clock", "--period", "5ms", "--compute", "1ms"],
        &["clock", "--period", "5ms", "--compute", "1ms", "--offset", "2ms"],
        &["replay", "--file", "runs.csv"],
    ] {
        let ran = place.run(&[&["load"], kind, &["--length", "50ms"]].concat()).ended_with(0);
        assert!(ran.out.is_empty() && ran.err.starts_with("used "), "{kind:?}: {}", ran.err);
    }
    // A batch workload ends by itself.
    place.run(&["load", "batch", "--total", "5ms"]).ended_with(0).says("of CPU time");
}

#[test]
fn closing_the_output_pipe_early_causes_no_error() {
    let place = traced();
    for arguments in [
        &["sim", "it.toml"][..],
        &["sim", "it.toml", "--json"],
        &["compare", "it.toml", "--policies", "edf,round-robin"],
        &["check", "it.toml"],
        &["show", "it.trace"],
        // The output is larger than the buffer of a pipe.
        &["show", "it.trace", "--list", "--for", "1h"],
        &["show", "it.trace", "--runs", "silver"],
        &["help"],
        &["--help"],
        &["doctor"],
        &["doctor", "--json"],
    ] {
        let ran = place.run_into_head(arguments);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn unwritable_output_causes_error_and_no_panic() {
    let place = Place::with(GOOD);
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let output = place.command(&["sim", "it.toml"]).stdout(full()).output().unwrap();
    Ran::new(&output).ended_with(3).says("error: cannot write the output: ");
    for arguments in [&["sim", "it.toml"][..], &["sim", "nothing.toml"], &["help", "x"]] {
        let mut command = place.command(arguments);
        let status = command.stdout(Stdio::null()).stderr(full()).status().unwrap();
        assert!(matches!(status.code(), Some(0 | 2)), "{arguments:?}: {status}");
    }
}

#[test]
fn output_has_no_colours_if_stdout_is_not_a_terminal() {
    let place = traced();
    for arguments in [
        &["sim", "it.toml"][..],
        &["compare", "it.toml"],
        &["check", "it.toml"],
        &["show", "it.trace"],
        &["help"],
        &["doctor"],
    ] {
        let out = place.run(arguments).good();
        assert!(!out.contains('\x1b'), "{arguments:?} writes escape codes into a file:\n{out}");
    }
}

/// A timeline on a terminal has colours. If `NO_COLOR` is set, it has none.
#[test]
fn environment_variable_no_color_disables_colours_on_a_terminal() {
    let place = traced();
    let on_terminal = |no_color: Option<&str>| {
        let (reader, output) = crate::common::terminal();
        let mut command = place.command(&["show", "it.trace", "--for", "40ms"]);
        command.stdout(output).env_remove("NO_COLOR");
        command.envs(no_color.map(|value| ("NO_COLOR", value)));
        let mut child = command.spawn().expect("starts");
        drop(command); // The command holds the other end of the terminal.
        let text = read_until_closed(reader);
        assert!(child.wait().unwrap().success());
        text
    };
    assert!(on_terminal(None).contains("\x1b["));
    assert!(on_terminal(Some("")).contains("\x1b["), "an empty NO_COLOR has no effect");
    let plain = on_terminal(Some("1"));
    assert!(!plain.contains('\x1b') && plain.contains("gold"), "{plain}");
}

fn read_until_closed(mut reader: std::fs::File) -> String {
    use std::io::Read;
    let mut text = Vec::new();
    let mut bytes = [0; 4096];
    // Reading from a terminal whose other end is closed gives an error.
    while let Ok(count @ 1..) = reader.read(&mut bytes) {
        text.extend_from_slice(&bytes[..count]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn replay_command_makes_the_same_decisions_as_the_recorded_run() {
    let place = traced();
    let told = place.run(&["replay", "it.trace"]).good();
    let words: Vec<&str> = told.split_whitespace().collect();
    let [events, "events", "and", decisions, "decisions,", "all", "as", "recorded"] = words[..]
    else {
        panic!("{told}")
    };
    let count = |text: &str| text.parse::<u64>().expect("a number");
    assert!(count(events) > 100 && count(decisions) > 50, "{told}");
    place.write("cut", &place.read("it.trace")[..500]);
    place.run(&["replay", "cut"]).refused(2).says("the trace is cut off");
}

/// `check` examines the live target of each domain. A missing target gives a note and no error,
/// because the scenario may be meant for another host.
#[test]
fn check_command_prints_note_if_live_target_process_is_missing() {
    let one = |live: &str| {
        format!(
            "title = \"one\"\nlength = \"1s\"\npolicy = {{ name = \"edf\" }}\n[[domain]]\n\
             name = \"it\"\nlive = {{ {live} }}\n\
             share.edf = {{ slice = \"2ms\", period = \"10ms\" }}\n"
        )
    };
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let (own, gone) = (std::process::id(), gone.id());
    for (live, says) in [
        (format!("pid = {own}"), format!("  `it`: process {own} has ")),
        (format!("pid = {gone}"), format!("  note: `it`: there is no process {gone}\n")),
        (
            format!("pid = {own}, threads = \"vcpus\""),
            format!("  note: `it`: cannot find the vCPU threads of process {own}"),
        ),
        (
            "command = [\"sleep\", \"9\"]".into(),
            "  `it`: `sleep` is started only by `run`\n".into(),
        ),
        ("unit = \"no-such.service\"".into(), "  note: `it`: no cgroup".into()),
    ] {
        let place = Place::with(&one(&live));
        place.run(&["check", "it.toml"]).ended_with(0).shows(&says);
        let whole = place.run(&["check", "it.toml", "--json"]).good();
        let whole: serde_json::Value = serde_json::from_str(&whole).unwrap();
        assert_eq!(whole["live"][0]["is_there"], !says.contains("note: "), "{whole}");
    }
}
