//! Tests of `slackline whatif --since` and `slackline predictions` with a real daemon. Needs root.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use slackline_linux::sys::{Scheduling, Tid, get_scheduling};

use crate::common::live::{self, Victim, let_pass, wait_until};
use crate::common::service::{Daemon, Machine};

/// The recording of a live host contains what a simulation needs: parameters, periods and the other
/// programs. On a busy test machine the gate of `whatif` can reject the recording.
#[test]
fn whatif_command_simulates_the_last_seconds_recorded_by_the_daemon() {
    let Some(live) = live::begin() else { return };
    let (web, db) = (Victim::start(), Victim::start());
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &web, "2ms").0, 201);
    assert_eq!(daemon.reserve("db", &db, "3ms").0, 201);
    let_pass(Duration::from_millis(3_500));
    let ran = daemon.run("whatif --since 3s --json");
    assert!(matches!(ran.code, Some(0 | 2)), "{}", ran.err);
    let answer: Value = serde_json::from_str(&ran.out).expect("JSON");
    let open = &answer["gate"]["forms"][0];
    assert_eq!(open["form"], "open");
    let vcpus = open["vcpus"].as_array().expect("vCPUs");
    let names: Vec<&str> = vcpus.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["web.0", "db.0"]);
    for vcpu in vcpus {
        let share = |key: &str| vcpu[key]["share_ppm"].as_u64().expect("a share");
        let (recorded, simulated) = (share("recorded"), share("simulated"));
        assert_eq!(vcpu["simulated"]["period_ns"], 10_000_000);
        assert!(recorded.abs_diff(simulated) < 20_000, "{vcpu:#}");
    }
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

/// The parameters of a reservation are recorded when its vCPUs join. After a restart of the daemon,
/// the vCPUs join before the daemon starts its recorder.
#[test]
fn recording_after_daemon_restart_has_parameters_of_adopted_vm() {
    let Some(live) = live::begin() else { return };
    let web = Machine::start("web");
    let daemon = Daemon::start(&live);
    let pid = web.0.id();
    daemon
        .run(&format!("reserve web --cpu 40% --period 10ms --vcpus 2 --for pid:{pid}"))
        .ended_with(0);
    daemon.kill();
    let daemon = Daemon::start(&live);
    wait_until("the VM to be adopted", || daemon.one("web")["state"] != "waiting");
    let_pass(Duration::from_millis(2_500));
    let ran = daemon.run("whatif --since 2s --save-scenario then.toml");
    assert!(matches!(ran.code, Some(0 | 2)), "{}", ran.err);
    let scenario = String::from_utf8(live.place.read("then.toml")).expect("text");
    assert!(scenario.contains("spread = \"use\""), "{scenario}");
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

#[test]
fn daemon_compares_predictions_in_a_plan_with_their_outcomes() {
    let Some(live) = live::begin() else { return };
    let web = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &web, "2ms").0, 201);
    let plan = "[web]\nslice = \"3ms\"\nperiod = \"10ms\"\nexact = true\nvcpus = 1\n\n\
                [[web.predicted]]\nvcpu = \"web.0\"\nlength_ns = 1000000000\n\
                share_ppm = [300000, 300000]\nmissed = [0, 0]\n";
    std::fs::write(live.place.path("plan"), plan).expect("a file for the test");
    daemon.run("apply plan --dry-run").ended_with(0);
    assert_eq!(daemon.ask("GET", "/v1/predictions", None).1, Value::Array(Vec::new()));
    daemon.run("apply plan").ended_with(0);
    let outcome = || daemon.ask("GET", "/v1/predictions", None).1[0]["outcome"].clone();
    wait_until("the outcome of the prediction", || !outcome().is_null());
    let came = outcome()["share_ppm"].as_u64().expect("a share");
    assert!((200_000..=310_000).contains(&came), "{came}");
    daemon.run("predictions").ended_with(0).shows("Predictions so far: 1.");
    // The predictions are in the folder of the ledger, where the restarted daemon finds them.
    assert_eq!(daemon.end().code, Some(0));
    let daemon = Daemon::start(&live);
    daemon.run("predictions").ended_with(0).shows("Predictions so far: 1.");
    // The answer about a trace file ends with the same record of predictions.
    let scenario = "title = \"t\"\nlength = \"2s\"\npolicy = { name = \"edf\" }\n\
                    [[domain]]\nname = \"web\"\n\
                    share.edf = { slice = \"3ms\", period = \"10ms\" }\n\
                    work = { kind = \"periodic\", period = \"20ms\", work = \"2ms\" }\n";
    live.place.write("it.toml", scenario.as_bytes());
    live.place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    let ran = daemon.run("whatif it.trace --set web.slice=2ms").ended_with(0);
    ran.shows("Predictions so far: 1.");
    let bad = serde_json::json!([{ "vcpu": "web.0", "length_ns": 1 }]);
    assert_eq!(daemon.ask("POST", "/v1/predictions", Some(&bad)).0, 400);
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

/// Returns the ids of the processes that predict for this daemon.
fn workers(daemon: &Daemon<'_>) -> Vec<i32> {
    let parent = format!("PPid:\t{}", daemon.pid());
    let ids = fs::read_dir("/proc")
        .expect("processes")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_worker = |pid: &i32| {
        let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let status = String::from_utf8_lossy(&read("status")).into_owned();
        let is_ours = status.lines().any(|line| line == parent);
        is_ours && String::from_utf8_lossy(&read("cmdline")).contains("serve-worker")
    };
    ids.filter(is_worker).collect()
}

/// Returns the id of the process that predicts for this daemon. Asserts that the daemon has exactly
/// one such process.
#[track_caller]
fn worker(daemon: &Daemon<'_>) -> i32 {
    let all = workers(daemon);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

/// Returns the number of CPUs on which a process may run.
fn allowed_cpus(pid: i32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"));
    let digits = mask.expect("a set of CPUs").chars().filter_map(|digit| digit.to_digit(16));
    digits.map(|digit| digit.count_ones() as usize).sum()
}

#[test]
fn daemon_answers_whatif_over_http_in_an_unprivileged_process() {
    let Some(live) = live::begin() else { return };
    let web = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &web, "2ms").0, 201);
    let_pass(Duration::from_millis(2_500));
    let ask = |body: Value| daemon.ask("POST", "/v1/whatif", Some(&body));
    let asked = json!({ "since": "2s" });
    let (status, answer) = ask(asked.clone());
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["gate"]["forms"][0]["vcpus"][0]["name"], "web.0");
    let worker = worker(&daemon);
    let threads = fs::read_dir(format!("/proc/{worker}/task")).expect("the threads of the worker");
    let threads: Vec<_> = threads.map(|thread| thread.expect("a thread")).collect();
    assert_eq!(threads.len(), allowed_cpus(worker).min(2), "{threads:?}");
    for thread in &threads {
        let about = fs::read_to_string(thread.path().join("status")).expect("its status");
        let line =
            |key: &str| about.lines().find(|line| line.starts_with(key)).expect(key).to_owned();
        assert!(!line("Uid:").contains("\t0"), "{about}");
        for none in ["CapPrm:", "CapEff:", "CapBnd:", "Groups:"] {
            let value = line(none).replace(none, "").replace('0', "");
            assert!(none == "CapBnd:" || value.trim().is_empty(), "{about}");
        }
        assert!(line("NoNewPrivs:").ends_with('1') && line("Seccomp:").ends_with('2'), "{about}");
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok()).expect("an id");
        let scheduling = get_scheduling(Tid::new(id).expect("an id")).expect("its scheduling");
        assert_eq!(scheduling.class, Scheduling::Idle);
    }
    // The next answer is from the same recording. It also has the largest share that admission
    // would accept.
    let set = json!([{ "name": "web", "slice": "4ms" }]);
    let (status, changed) = ask(json!({ "since": "2s", "set": set }));
    assert_eq!(workers(&daemon), [worker]);
    match status {
        200 => {
            assert_eq!(changed["recording"], answer["recording"]);
            assert_eq!(
                changed["revision"],
                daemon.ask("GET", "/v1/reservations/web", None).1["revision"]
            );
            let largest = changed["largest"][0]["largest_ppm"].as_u64().expect("a share");
            assert!((850_000..=900_000).contains(&largest), "{changed:#}");
            assert!(changed["age_ns"].as_u64().expect("an age") > 0);
        }
        // The test machine was too busy for a prediction.
        _ => assert_eq!((status, &changed["type"]), (503, &json!("not-now")), "{changed}"),
    }
    // The reservation is unchanged: the questions change nothing.
    assert_eq!(daemon.ask("GET", "/v1/reservations/web", None).1["slice"], "2ms");
    for bad in [json!({ "since": "61s" }), json!({ "remove": ["nobody"] }), json!({ "x": 1 })] {
        assert_eq!(ask(bad.clone()).0, 400, "{bad}");
    }
    // After a change of a reservation, `whatif` makes a new recording and answers with a new
    // worker.
    daemon.run("change web --slice 3ms").ended_with(0);
    assert_eq!(ask(asked).0, 200);
    assert_ne!(workers(&daemon), [worker]);
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

#[test]
fn whatif_worker_that_dies_or_hangs_leaves_the_daemon_unaffected() {
    let Some(live) = live::begin() else { return };
    let web = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &web, "2ms").0, 201);
    let_pass(Duration::from_millis(1_500));
    let body = json!({ "since": "1s" });
    let ask = || daemon.ask("POST", "/v1/whatif", Some(&body));
    let signalled = |signal| {
        assert_eq!(ask().0, 200);
        let worker = worker(&daemon);
        kill_process(Pid::from_raw(worker).expect("an id"), signal)
            .expect("root may kill the worker");
    };
    signalled(Signal::KILL);
    let (status, problem) = ask();
    assert_eq!((status, &problem["type"]), (503, &json!("not-now")), "{problem}");
    assert!(problem["detail"].as_str().expect("a reason").contains("signal: 9"), "{problem}");
    signalled(Signal::STOP);
    std::thread::scope(|scope| {
        let hung = scope.spawn(ask);
        let_pass(Duration::from_millis(500));
        let second = daemon.try_ask("POST", "/v1/whatif", Some(&body));
        let (status, problem) = second.expect("an answer");
        assert_eq!((status, &problem["type"]), (429, &json!("too-many")), "{problem}");
        // Other requests are answered meanwhile.
        assert_eq!(daemon.ask("GET", "/v1/reservations/web", None).0, 200);
        let (status, problem) = hung.join().expect("an answer");
        assert_eq!((status, &problem["type"]), (503, &json!("not-now")), "{problem}");
        assert!(problem["detail"].as_str().expect("a reason").contains("within 10 s"), "{problem}");
    });
    assert_eq!(ask().0, 200, "a new worker answers");
    let worker = worker(&daemon);
    assert_eq!(daemon.end().code, Some(0));
    // A killed worker can end a little later than the daemon.
    let place = format!("/proc/{worker}");
    wait_until("the worker of the daemon to end", || !Path::new(&place).exists());
    live.nothing_is_left();
}
