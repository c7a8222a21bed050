//! Tests of predictions by `slackline whatif` from a saved trace.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use slackline_control::link::{Answer, Request};
use slackline_control::{Host, Kind, Length, Moment, Problem, Recording, Reservation, State};
use slackline_trace::{Entry, Exchange, Fact, Reader, Record, Writer};
use slackline_units::{Enforcement, Span, Time};

use crate::common::Place;
use crate::service::{Daemon, Outcome, clock, fine, reservation};

const SCENARIO: &str = r#"
title = "two servers and a batch VM"
length = "4s"
policy = { name = "sedf" }
[[domain]]
name = "web"
share.sedf = { slice = "3ms", period = "10ms" }
work = { kind = "interactive", compute = "exponential 2ms", sleep = "exponential 6ms" }
[[domain]]
name = "db"
share.sedf = { slice = "4ms", period = "20ms" }
work = { kind = "periodic", period = "20ms", work = "uniform 1ms 3ms" }
[[domain]]
name = "batch"
share.sedf = { slice = "2ms", period = "10ms", extra = false }
work = { kind = "spin" }
"#;

fn traced() -> Place {
    let place = Place::with(SCENARIO);
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    place
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn whatif_command_without_edits_reports_if_model_reproduces_recording() {
    let told = traced().run(&["whatif", "it.trace"]).good();
    assert!(told.contains("The open and the closed form both repeat the recording."), "{told}");
    assert!(!told.contains("differs"), "{told}");
}

#[test]
fn whatif_command_prints_predicted_shares_and_lists_unknown_effects() {
    let place = traced();
    let told = place.run(&["whatif", "it.trace", "--set", "batch.slice=1ms"]).good();
    for line in [
        "batch  share           20.00 %",
        "10.00 %",
        "batch loses: 10.00 percentage points less CPU time.",
    ] {
        assert!(told.contains(line), "`{line}` is missing:\n{told}");
    }
    assert!(told.contains("Not known:\n- "), "{told}");
    let again = place.run(&["whatif", "it.trace", "--set", "batch.slice=1ms"]).good();
    assert_eq!(told, again);
}

#[test]
fn scenario_saved_by_whatif_gives_predicted_numbers_in_simulation() {
    let place = traced();
    let edits = ["--set", "batch.slice=3ms", "--add", "db2", "--like", "db", "--set"];
    let edits = [&edits[..], &["db.slice=2ms", "--set", "db2.slice=2ms"]].concat();
    let all = [&["whatif", "it.trace", "--json", "--save-scenario", "then.toml"], &edits[..]];
    let predicted = json(&place.run(&all.concat()).good());
    for (form, file) in [("open", "then.toml"), ("closed", "then-closed.toml")] {
        let run = json(&place.run(&["sim", file, "--json"]).good());
        let vcpus = run["runs"][0]["vcpus"].as_array().expect("a list");
        assert_eq!(vcpus.len(), 4);
        for vcpu in vcpus {
            let rows = predicted["vcpus"].as_array().expect("a list");
            let row = rows.iter().find(|row| row["name"] == vcpu["name"]).expect("a row");
            let then = &row["then"][form];
            let share = vcpu["delivered_ns"].as_u64().expect("a number") / 4_000;
            assert_eq!(then["share_ppm"].as_u64().map(|ppm| ppm.abs_diff(share) <= 1), Some(true));
            assert_eq!(then["misses"], vcpu["misses"], "{form}: {row:#}");
            let wait = &vcpu["wake_to_run_p99_ns"];
            assert_eq!(&then["wait_p99_ns"], wait, "{form}: {vcpu:#}");
        }
    }
}

#[test]
fn plan_saved_by_whatif_lists_reservations_with_predictions() {
    let place = traced();
    let edit =
        ["whatif", "it.trace", "--policy", "edf", "--set", "web.slice=4ms", "--remove", "db"];
    place.run(&[&edit[..], &["--save", "plan.toml", "--report", "r.html"]].concat()).good();
    let plan = String::from_utf8(place.read("plan.toml")).expect("text");
    assert!(plan.contains("# web: share "), "{plan}");
    assert!(plan.contains("# db: removed."), "{plan}");
    let read: toml::Table = plan.parse().expect("TOML");
    assert_eq!(read.keys().collect::<Vec<_>>(), ["batch", "web"]);
    assert_eq!(read["web"]["slice"].as_str(), Some("4ms"));
    assert_eq!(read["batch"]["exact"].as_bool(), Some(true));
    let page = String::from_utf8(place.read("r.html")).expect("text");
    assert!(page.contains("<figure") && page.contains("No") && page.contains("web"));
}

#[test]
fn saved_plan_contains_vcpu_number_of_added_vm() {
    let place = traced();
    let edits = ["whatif", "it.trace", "--remove", "db", "--add", "db2", "--like", "db"];
    place.run(&[&edits[..], &["--policy", "edf", "--save", "plan.toml"]].concat()).good();
    let plan = String::from_utf8(place.read("plan.toml")).expect("text");
    let read: toml::Table = plan.parse().expect("TOML");
    assert_eq!(read["db2"]["predicted"][0]["vcpu"].as_str(), Some("db2.0"), "{plan}");
}

#[test]
fn plan_saved_by_whatif_uses_parameters_from_end_of_recording() {
    let change = "[[change]]\nat = \"2500ms\"\ndomain = \"web\"\nshare.sedf = { slice = \"2ms\", \
                  period = \"10ms\" }\n";
    let place = Place::with(&format!("{SCENARIO}{change}"));
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    let edit = ["whatif", "it.trace", "--policy", "edf", "--set", "db.slice=3ms"];
    let told = place.run(&[&edit[..], &["--save", "plan.toml"]].concat()).good();
    assert!(told.contains("during the recording, parameters changed or a VM came"), "{told}");
    let plan = String::from_utf8(place.read("plan.toml")).expect("text");
    let plan: toml::Table = plan.parse().expect("TOML");
    let slice = |name: &str| plan[name]["slice"].as_str().expect("a slice");
    assert_eq!((slice("web"), slice("db"), slice("batch")), ("2ms", "3ms", "2ms"));
    // The predicted numbers of `web` would also cover the time before the change.
    let is_predicted = |name: &str| plan[name].get("predicted").is_some();
    assert!(is_predicted("db") && is_predicted("batch") && !is_predicted("web"), "{plan}");
}

#[test]
fn whatif_refuses_to_save_changes_that_no_reservation_can_express() {
    let place = Place::with(&SCENARIO.replace("name = \"db\"", "name = \"db\"\nvcpus = 2"));
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    for (options, says) in [
        (&["--policy", "credit"][..], "`--policy credit` cannot be part of"),
        (&["--cpus", "0-1"], "`--cpus` cannot be part of"),
        (&["--move", "web", "--to-cpu", "0"], "`--move web` cannot be part of"),
        (&["--set", "web.weight=2"], "`--set web.weight` cannot be part of"),
        (&["--set", "web.slice=2ms"], "under the policy `sedf`, and the daemon schedules by `edf`"),
        (
            &["--policy", "edf", "--set", "db.0.slice=3ms"],
            "the vCPUs of db do not have one reservation in common",
        ),
    ] {
        let command = [&["whatif", "it.trace", "--save", "plan.toml"], options].concat();
        place.run(&command).refused(2).says("cannot write --save: ").says(says);
        assert!(!place.path("plan.toml").exists(), "{options:?}");
    }
    // `web` has one vCPU.
    let whole = ["--set", "web.0.slice=2ms", "--set", "db.slice=3ms", "--save", "plan.toml"];
    place.run(&[&["whatif", "it.trace", "--policy", "edf"], &whole[..]].concat()).good();
    assert!(place.path("plan.toml").exists());
}

/// Path of the recording that [`records`] answers with.
static RECORDED: OnceLock<PathBuf> = OnceLock::new();

/// Returns the reservations of the host in [`records`]. `db` is recorded with two vCPUs. `idle` and
/// `gang` are not in the recording.
fn reservations() -> Vec<Reservation> {
    let until = Some(Moment("2126-12-01T18:00".parse().expect("a time")));
    let phase = Some(Length(Span::from_ms(3)));
    let db = Reservation { by_use: true, until, ..reservation("db") };
    let idle = Reservation { state: State::Waiting, phase, ..reservation("idle") };
    let gang = Reservation { state: State::Held, ..reservation("gang") };
    let web = Reservation { vcpus: 1, exact: false, until, phase, ..reservation("web") };
    // The daemon enforces this period as shorter periods, which the recording has.
    let (period, period_ns) = (Length(Span::from_secs(1)), 1_000_000_000);
    let slow = Reservation { vcpus: 1, period, period_ns, ..reservation("slow") };
    vec![db, gang, idle, slow, web]
}

/// Answers requests in place of the daemon's core process. The flight recorder has a recording.
fn records(request: &Request) -> Outcome {
    Ok(match request {
        Request::Host => Answer::Host(Host { revision: 12, ..clock(Duration::ZERO, "one") }),
        Request::List { .. } => Answer::Reservations(reservations()),
        Request::Record { .. } => {
            let trace = RECORDED.get().expect("the test has made a recording");
            let copy = trace.with_extension("copy");
            std::fs::copy(trace, &copy).expect("a copy for the client");
            let file = copy.display().to_string();
            Answer::Recording(Recording { file, length_ns: 4_000_000_000 })
        }
        other => return fine(other),
    })
}

/// The recording has the VM `gone`, whose reservation has ended. It does not have the end times and
/// phases of the reservations, nor the long period of `slow`.
#[test]
fn plan_from_daemon_recording_changes_only_the_edited_parameters() {
    let Some(daemon) = Daemon::new(records) else { return };
    let vm = |name: &str, more: &str| {
        let work = "work = { kind = \"spin\" }";
        let share = "share.edf = { slice = \"2ms\", period = \"10ms\", exact = true }";
        format!("[[domain]]\nname = \"{name}\"\n{more}{work}\n{share}\n")
    };
    let vms = [vm("web", ""), vm("db", "vcpus = 2\n"), vm("gone", ""), vm("slow", "")].concat();
    let place = Place::with(&format!(
        "title = \"t\"\nlength = \"4s\"\npolicy = {{ name = \"edf\" }}\nhost.cpus = 2\n{vms}"
    ));
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    RECORDED.set(place.path("it.trace")).expect("one test has the recording");
    let whatif = |edit: &[&str]| {
        let plan = place.path("plan").display().to_string();
        daemon.run(&[&["whatif", "--since", "4s", "--save", &plan], edit].concat())
    };
    whatif(&["--set", "web.slice=3ms"]).good();
    let plan = String::from_utf8(place.read("plan")).expect("text");
    let mut plan: toml::Table = plan.parse().expect("TOML");
    let has_prediction = |table: &mut toml::Value| {
        table.as_table_mut().expect("a table").remove("predicted").is_some()
    };
    let mut predicted = Vec::new();
    for (name, table) in plan.iter_mut().filter(|(name, _)| *name != "_revision") {
        predicted.extend(has_prediction(table).then(|| name.clone()));
    }
    assert_eq!(predicted, ["db", "slow", "web"]);
    let expected = "_revision = 12\n\
         [db]\ncpu = \"0.400000cpu\"\nperiod = \"10ms\"\nexact = true\nenforce = \"dispatcher\"\n\
         until = \"2126-12-01T18:00:00Z\"\nvcpus = 2\n\
         [idle]\nslice = \"2ms\"\nperiod = \"10ms\"\nexact = true\nphase = \"3ms\"\n\
         enforce = \"dispatcher\"\nvcpus = 2\n\
         [slow]\nslice = \"2ms\"\nperiod = \"1s\"\nexact = true\nenforce = \"dispatcher\"\n\
         vcpus = 1\n\
         [web]\nslice = \"3ms\"\nperiod = \"10ms\"\nphase = \"3ms\"\nenforce = \"dispatcher\"\n\
         until = \"2126-12-01T18:00:00Z\"\nvcpus = 1\n";
    let expected: toml::Table = expected.parse().expect("TOML");
    assert_eq!(plan, expected);
    std::fs::remove_file(place.path("plan")).expect("the plan");
    let refused = whatif(&["--set", "gone.slice=1ms"]).refused(2);
    refused.says("cannot write --save: gone has no reservation now");
    assert!(!place.path("plan").exists());
    // The prediction is for 5 ms in each 100 ms, and the plan has the values that the user gave.
    whatif(&["--set", "slow.slice=50ms", "--add", "slow2", "--like", "slow"]).good();
    let plan = String::from_utf8(place.read("plan")).expect("text");
    let plan: toml::Table = plan.parse().expect("TOML");
    assert_eq!((&plan["slow"]["slice"], &plan["slow"]["period"]), (&"50ms".into(), &"1s".into()));
    assert_eq!((&plan["slow2"]["slice"], &plan["slow2"]["period"]), (&"2ms".into(), &"1s".into()));
    let share = plan["slow"]["predicted"][0]["share_ppm"].as_array().expect("an interval");
    let share: Vec<i64> = share.iter().map(|ppm| ppm.as_integer().expect("a number")).collect();
    assert!(share[0] > 40_000 && share[1] < 60_000, "{share:?}");
    whatif(&["--remove", "db", "--set", "web.exact=true"]).good();
    let plan = String::from_utf8(place.read("plan")).expect("text");
    let plan: toml::Table = plan.parse().expect("TOML");
    assert_eq!(plan.keys().collect::<Vec<_>>(), ["_revision", "idle", "slow", "web"]);
    assert_eq!((&plan["web"]["exact"], &plan["web"]["slice"]), (&true.into(), &"2ms".into()));
}

/// Predictions of [`predicts`], with the keys `changed` and `unchanged`.
static PREDICTED: OnceLock<Value> = OnceLock::new();

/// Answers requests in place of the daemon's core process. The caller may ask for predictions, and
/// may not save a recording.
fn predicts(request: &Request) -> Outcome {
    match request {
        Request::Host => Ok(Answer::Host(clock(Duration::ZERO, "one"))),
        Request::Record { .. } => Err(Problem::new(Kind::NotAllowed, "not for tenants")),
        Request::Whatif(asked) => {
            let key = if asked.set.is_empty() { "unchanged" } else { "changed" };
            let mut answer = PREDICTED.get().expect("the test has made predictions")[key].clone();
            answer["revision"] = json!(12);
            answer["age_ns"] = json!(0);
            answer["largest"] = json!([]);
            Ok(Answer::Whatif(serde_json::from_value(answer).expect("an answer")))
        }
        other => fine(other),
    }
}

/// Returns the options in `more` and an option that changes a VM, so that `whatif` predicts.
fn with_edits<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [more, &["--set", "batch.slice=1ms"]].concat()
}

#[test]
fn whatif_command_without_recording_permission_shows_prediction_from_daemon() {
    let Some(daemon) = Daemon::new(predicts) else { return };
    let place = traced();
    let by_hand = |options: &[&str]| place.run(&[&["whatif", "it.trace"], options].concat()).good();
    let predicted = json!({
        "unchanged": json(&by_hand(&["--json"])),
        "changed": json(&by_hand(&with_edits(&["--json"])))
    });
    PREDICTED.set(predicted.clone()).expect("one test has predictions");
    let of_daemon =
        |options: &[&str]| daemon.run(&[&["whatif", "--since", "4s"], options].concat());
    let report = |name: &str| place.path(name).display().to_string();
    let (own, daemons) = (report("own.html"), report("daemons.html"));
    let own_text = by_hand(&with_edits(&["--report", &own]));
    assert_eq!(of_daemon(&with_edits(&["--report", &daemons])).good(), own_text);
    assert_eq!(place.read("daemons.html"), place.read("own.html"));
    assert_eq!(json(&of_daemon(&with_edits(&["--json"])).good()), predicted["changed"]);
    assert_eq!(json(&of_daemon(&["--json"]).good()), predicted["unchanged"]);
    // The daemon's answer does not contain the number of jobs in the recording.
    let jobs = by_hand(&[]).replace(&of_daemon(&[]).good(), "");
    assert!(jobs.starts_with("The recording has ") && jobs.lines().count() == 1, "{jobs}");
    for option in ["--save", "--save-scenario"] {
        let refused = of_daemon(&with_edits(&[option, "plan"])).refused(2);
        refused.says(&format!("cannot use {option}: it needs the daemon's recording"));
    }
}

#[test]
fn impossible_edits_in_whatif_command_are_refused_with_a_hint() {
    let place = traced();
    let refused = |options: &[&str], code: i32, says: &str| {
        place.run(&[&["whatif", "it.trace"], options].concat()).refused(code).says(says);
    };
    refused(&["--set", "wed.slice=1ms"], 2, "did you mean `web`?");
    refused(&["--set", "web.slice"], 2, "write --set web.slice=3ms");
    refused(&["--set", "web.slices=1ms"], 2, "unknown parameter `slices`");
    refused(&["--set", "web.slice=9ms"], 4, "admission would refuse the changed reservations");
    refused(
        &["--add", "db2", "--like", "db", "--like", "web"],
        2,
        "cannot pair --add (given 1 times)",
    );
    refused(&["--cpus", "3-1"], 2, "cannot read --cpus `3-1`");
    refused(&["--move", "web", "--to-cpu", "7"], 2, "cannot move a VM to cpu7");
    refused(&["--save", "it.trace"], 2, "are the same file");
    place.write("cut", &place.read("it.trace")[..500]);
    place.run(&["whatif", "cut"]).refused(2).says("the trace is cut off");
}

/// Starts the process with which the daemon predicts, and sends it these frames.
fn worker(place: &Place, frames: &[&[u8]]) -> Output {
    let mut command = place.command(&["serve-worker"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a worker");
    let mut input = child.stdin.take().expect("a pipe");
    for frame in frames {
        let length = (frame.len() as u64).to_le_bytes();
        input.write_all(&length).and_then(|()| input.write_all(frame)).expect("the worker reads");
    }
    drop(input);
    child.wait_with_output().expect("the output of the worker")
}

/// Parses the output of a worker: JSON answers, each after its length.
fn answers(output: &Output) -> Vec<Value> {
    let mut rest = &*output.stdout;
    let mut answers = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<8>() {
        let (answer, after) =
            after.split_at(usize::try_from(u64::from_le_bytes(*length)).expect("a short answer"));
        answers.push(serde_json::from_slice(answer).expect("JSON"));
        rest = after;
    }
    answers
}

#[test]
fn whatif_worker_of_daemon_predicts_the_same_as_whatif_command() {
    let place = traced();
    let trace = place.read("it.trace");
    let set = json!([{ "name": "db", "slice": "6ms" }]);
    let changed = json!({ "asked": { "set": set, "remove": ["batch"] }, "own": null });
    let unchanged = json!({ "asked": {}, "own": null });
    let declined = json!({ "asked": { "set": [{ "name": "db", "slice": "19ms" }] }, "own": null });
    let unknown = json!({ "asked": { "remove": ["nobody"] }, "own": null });
    let asked = [changed, unchanged, declined, unknown].map(|it| it.to_string().into_bytes());
    let frames: Vec<&[u8]> = std::iter::once(&*trace).chain(asked.iter().map(|it| &**it)).collect();
    let output = worker(&place, &frames);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [changed, unchanged, declined, unknown] = &answers(&output)[..] else { panic!("4") };
    let by_hand = ["whatif", "it.trace", "--set", "db.slice=6ms", "--remove", "batch", "--json"];
    assert_eq!(changed["Ok"], json(&place.run(&by_hand).good()));
    assert_eq!(unchanged["Ok"], json(&place.run(&["whatif", "it.trace", "--json"]).good()));
    assert_eq!(declined["Err"]["type"], "no-room", "{declined}");
    assert_eq!(unknown["Err"]["type"], "bad", "{unknown}");
    // The daemon's recording is no file that `slackline show` could show.
    assert_eq!(unknown["Err"]["hint"], "list the reservations with `slackline list`");
}

#[test]
fn whatif_worker_of_daemon_answers_tenant_only_about_own_vms() {
    let place = traced();
    let trace = place.read("it.trace");
    let asked = json!({ "set": [{ "name": "db", "slice": "2ms" }], "add": [
        { "name": "db2", "like": "db" }
    ]});
    let question = json!({ "asked": asked, "own": ["db"] }).to_string();
    let output = worker(&place, &[&trace, question.as_bytes()]);
    let answer = &answers(&output)[0]["Ok"];
    let names = |rows: &Value| -> Vec<String> {
        let rows = rows.as_array().expect("rows").iter();
        rows.map(|row| row["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&answer["vcpus"]), ["db", "db2"]);
    assert_eq!(names(&answer["gate"]["forms"][0]["vcpus"]), ["db"]);
}

/// Returns a trace with the entries of another trace, after `change` was called for each entry.
fn altered(trace: &[u8], change: impl Fn(&mut Entry)) -> Vec<u8> {
    let mut reader = Reader::new(trace).expect("the file is a trace");
    let mut entries: Vec<Entry> = Vec::new();
    reader.pass_to(&mut entries).expect("the trace is complete");
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, reader.header());
    for entry in &mut entries {
        change(entry);
        entry.pass_to(&mut writer);
    }
    writer.finish().expect("writing to memory cannot fail");
    file
}

/// Returns the answers of a worker to a tenant that owns only `db`. Asserts that no answer names
/// the VM `batch` or contains a percentage, except in the title and the list of losses.
fn answers_to_owner_of_db(place: &Place, trace: &[u8], asked: &[Value]) -> Vec<Value> {
    let question = |asked| json!({ "asked": asked, "own": ["db"] }).to_string().into_bytes();
    let asked: Vec<Vec<u8>> = asked.iter().map(question).collect();
    let frames: Vec<&[u8]> = std::iter::once(trace).chain(asked.iter().map(|it| &**it)).collect();
    let output = worker(place, &frames);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers = answers(&output);
    assert_eq!(answers.len(), asked.len());
    for mut answer in answers.clone() {
        if let Some(answer) = answer.get_mut("Ok") {
            answer["losses"] = Value::Null;
            answer["recording"]["title"] = Value::Null;
        }
        let text = answer.to_string();
        assert!(!text.contains("batch") && !text.contains(" %"), "{text}");
    }
    answers
}

#[test]
fn whatif_worker_hides_shares_of_other_vms_from_refused_tenant() {
    let place = traced();
    let half = Time::START + Span::from_secs(2);
    let trace = altered(&place.read("it.trace"), |entry| {
        if let Entry::Record(Record::Ran { vcpu, from, used, .. }) = entry
            && vcpu.slot() == 2
            && *from > half
        {
            *used = *used / 2;
        }
    });
    place.write("lacking.trace", &trace);
    place.run(&["whatif", "lacking.trace"]).ended_with(2).says("batch received");
    let changed = json!({ "set": [{ "name": "db", "slice": "2ms" }] });
    let asked = [json!({}), json!({ "periods": true }), changed];
    let answers = answers_to_owner_of_db(&place, &trace, &asked);
    let cause = "the share of another VM differed between the halves of the recording";
    assert_eq!(answers[0]["Ok"]["gate"]["cause"], cause);
    assert!(answers.iter().all(|answer| answer.to_string().contains(cause)), "{answers:#?}");
}

/// Returns a trace in which the CPU-bound VM receives half of the recorded CPU time.
fn halved(trace: &[u8]) -> Vec<u8> {
    altered(trace, |entry| {
        if let Entry::Record(Record::Ran { vcpu, used, .. }) = entry
            && vcpu.slot() == 2
        {
            *used = *used / 2;
        }
    })
}

#[test]
fn refused_prediction_states_last_vm_change_and_retry_time() {
    let change = |domain: &str| {
        format!(
            "[[change]]\nat = \"3s\"\ndomain = \"{domain}\"\nshare.sedf = {{ slice = \"3ms\", \
             period = \"20ms\", extra = false }}\n"
        )
    };
    let traced = |domain: &str| {
        let place = Place::with(&format!("{SCENARIO}{}", change(domain)));
        place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
        let trace = halved(&place.read("it.trace"));
        place.write("halved.trace", &trace);
        (place, trace)
    };
    let set = json!({ "set": [{ "name": "db", "slice": "2ms" }] });
    let (place, trace) = traced("batch");
    let ran = place.run(&["whatif", "halved.trace", "--set", "db.slice=2ms"]).ended_with(2);
    ran.says("batch was changed from 2ms/10ms exact to 3ms/20ms exact, 1s before the end of the")
        .says("record again at a time at which no VM changes");
    let answers = answers_to_owner_of_db(&place, &trace, &[set.clone(), json!({})]);
    let change = &answers[1]["Ok"]["gate"]["last_change"];
    assert_eq!(change["says"], "another VM changed, 1s before the end of the recording");
    assert_eq!(change["gone_after_ns"], 4_000_000_000_u64);
    let detail = answers[0]["Err"]["detail"].as_str().expect("a reason");
    assert!(detail.ends_with("another VM changed, 1s before the end of the recording"), "{detail}");
    let hint = answers[0]["Err"]["hint"].as_str().expect("advice");
    assert!(hint.starts_with("ask again in 4s: "), "{hint}");
    let (place, trace) = traced("db");
    let answers = answers_to_owner_of_db(&place, &trace, &[set]);
    let detail = answers[0]["Err"]["detail"].as_str().expect("a reason");
    assert!(detail.contains("db was changed from 4ms/20ms to 3ms/20ms exact"), "{detail}");
}

#[test]
fn refusal_to_model_kernel_enforced_vms_names_only_tenant_vm() {
    let place = traced();
    let trace = altered(&place.read("it.trace"), |entry| {
        if let Entry::Record(Record::Promised { by, .. }) = entry {
            *by = Enforcement::Deadline;
        }
    });
    let add = json!({ "add": [{ "name": "batch", "like": "db" }] });
    let answers = answers_to_owner_of_db(&place, &trace, &[json!({}), add]);
    assert_eq!(answers[1], answers[0]);
    let detail = answers[0]["Err"]["detail"].as_str().expect("a reason");
    let says = "cannot model any VM of the recording, for example `db`: `deadline` enforced";
    assert!(detail.starts_with(says), "{detail}");
    let hint = answers[0]["Err"]["hint"].as_str().expect("advice");
    assert!(hint.contains("`slackline change db --enforce dispatcher`"), "{hint}");
}

#[test]
fn tenant_sees_no_details_if_admission_refuses_a_foreign_vm() {
    let place = traced();
    let trace = altered(&place.read("it.trace"), |entry| {
        if let Entry::Exchange(Exchange::Reported { fact: Fact::Joined(vcpu, terms), .. }) = entry
            && vcpu.slot() == 2
        {
            terms.share = terms.share.replace("slice=2ms", "slice=9ms");
        }
    });
    place.write("large.trace", &trace);
    place.run(&["whatif", "large.trace"]).ended_with(2).says("cannot admit `batch`");
    let answers = answers_to_owner_of_db(&place, &trace, &[json!({})]);
    let says = "cannot simulate the last seconds: sedf cannot admit a VM that is not yours";
    assert_eq!(answers[0]["Err"]["detail"], says);
}

#[test]
fn whatif_worker_hides_names_of_foreign_vms_that_admission_refuses() {
    let change = "[[change]]\nat = \"3s\"\ndomain = \"batch\"\nshare.sedf = { slice = \"3ms\", \
                  period = \"10ms\", extra = false }\n";
    let place = Place::with(&format!("{SCENARIO}{change}"));
    place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    place.run(&["whatif", "it.trace", "--set", "db.slice=9ms"]).shows("a change of `batch`");
    let slice = |slice: &str| json!([{ "name": "db", "slice": slice }]);
    let asked = [
        json!({ "set": slice("9ms") }),
        json!({ "set": slice("9ms"), "periods": true }),
        json!({ "set": slice("12ms") }),
    ];
    let answers = answers_to_owner_of_db(&place, &place.read("it.trace"), &asked);
    let limits = answers[0]["Ok"]["not_known"].as_array().expect("a list");
    assert_eq!(
        limits.last().and_then(Value::as_str),
        Some("what happens after admission refuses a change of another VM")
    );
    let hidden = "admission would refuse the changed reservations: sedf cannot admit a VM that is \
                  not yours";
    assert_eq!(answers[1]["Ok"]["periods"]["refused"], hidden);
    assert_eq!(answers[2]["Err"]["detail"], hidden);
}

#[test]
fn whatif_worker_refuses_tenant_edits_that_concern_foreign_vms() {
    let place = traced();
    let trace = place.read("it.trace");
    let asked = [
        json!({ "add": [{ "name": "db2", "like": "web" }] }),
        json!({ "remove": ["web"] }),
        json!({ "set": [{ "name": "web", "slice": "1ms" }] }),
        json!({ "move": [{ "name": "web", "to_cpu": 0 }] }),
    ];
    for answer in answers_to_owner_of_db(&place, &trace, &asked) {
        assert_eq!(answer["Err"]["detail"], "cannot find `web` among your VMs", "{answer}");
    }
}

#[test]
fn whatif_worker_reports_damaged_recording_and_has_limited_memory() {
    let place = Place::new();
    let question = json!({ "asked": {}, "own": null }).to_string();
    let output = worker(&place, &[b"not a trace", question.as_bytes()]);
    assert!(output.status.success());
    let answer = &answers(&output)[0];
    assert!(
        answer["Err"]["detail"].as_str().expect("a reason").contains("the last seconds"),
        "{answer}"
    );
    // The recording has more bytes than the memory limit of the worker.
    let mut child = place.command(&["serve-worker"]);
    child.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().expect("a worker");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(&(300_u64 << 20).to_le_bytes()).expect("the worker reads");
    let output = child.wait_with_output().expect("the output of the worker");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("memory allocation"), "{said}");
}
