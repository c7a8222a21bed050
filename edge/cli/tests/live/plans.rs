//! Tests of plans that first change one VM as a canary, and of `slackline undo`, with a real
//! daemon. Needs root.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::live::{self, Live, Victim, let_pass, wait_until};
use crate::common::service::Daemon;

/// Writes a plan that halves the slice of `web` and enlarges the slice of `db`. The plan predicts
/// the share of `web`, and 100 deadline misses. The canary fails only if more deadlines are missed
/// than predicted, so the misses on a loaded test machine are allowed.
fn write_plan(live: &Live, revision: u64, share_ppm: u64) {
    let plan = format!(
        "_revision = {revision}\n\
         [web]\nslice = \"1ms\"\nperiod = \"10ms\"\nexact = true\nvcpus = 1\n\
         [[web.predicted]]\nvcpu = \"web.0\"\nlength_ns = 2000000000\n\
         share_ppm = [{share_ppm}, {share_ppm}]\nmissed = [100, 100]\n\
         [db]\nslice = \"4ms\"\nperiod = \"10ms\"\nexact = true\nvcpus = 1\n"
    );
    std::fs::write(live.place.path("plan"), plan).expect("a file for the test");
}

fn revision(daemon: &Daemon<'_>) -> u64 {
    daemon.ask("GET", "/v1/host", None).1["revision"].as_u64().expect("a revision")
}

fn slices(daemon: &Daemon<'_>) -> [Value; 2] {
    ["web", "db"].map(|name| daemon.one(name)["slice"].clone())
}

fn start<'a>(live: &'a Live, web: &Victim, db: &Victim) -> Daemon<'a> {
    let daemon = Daemon::start(live);
    assert_eq!(daemon.reserve("web", web, "2ms").0, 201);
    assert_eq!(daemon.reserve("db", db, "3ms").0, 201);
    daemon
}

#[test]
fn failed_canary_reverts_plan_and_undo_command_restores_slices() {
    let Some(live) = live::begin() else { return };
    let (web, db) = (Victim::start(), Victim::start());
    let daemon = start(&live, &web, &db);
    write_plan(&live, revision(&daemon), 300_000);
    let ran = daemon.run("apply plan --canary --watch 2s").ended_with(1);
    assert!(ran.err.contains("the plan was undone: web received"), "{}", ran.err);
    assert_eq!(slices(&daemon), ["2ms", "3ms"]);
    // The wrong prediction counts in the record.
    daemon.run("predictions").shows("web.0");
    // The revision of the host has changed since the plan was made.
    let refused = daemon.run("apply plan --canary --watch 2s").ended_with(2);
    assert!(refused.err.contains("the host is at revision"), "{}", refused.err);
    for command in ["apply plan", "apply plan --dry-run"] {
        let refused = daemon.run(command).ended_with(2);
        assert!(refused.err.contains("the host is at revision"), "{}", refused.err);
    }
    assert_eq!(slices(&daemon), ["2ms", "3ms"]);
    write_plan(&live, revision(&daemon), 100_000);
    daemon.run("apply plan --canary --watch 2s").ended_with(0).shows("watched for 2s");
    assert_eq!(slices(&daemon), ["1ms", "4ms"]);
    daemon.run("log").shows("canary: web behaves as predicted; other changes made: 1");
    daemon.run("undo").ended_with(0).shows("change 2");
    assert_eq!(slices(&daemon), ["2ms", "3ms"]);
    assert_eq!(daemon.ask("POST", "/v1/undo", Some(&json!({}))).0, 404);
    // A single change is undone too, unless another change has followed.
    daemon.run("change web --slice 4ms").ended_with(0);
    daemon.run("pause web").ended_with(0);
    let (status, problem) = daemon.ask("POST", "/v1/undo", Some(&json!({})));
    assert_eq!((status, &problem["type"]), (409, &json!("moved")), "{problem}");
    assert_eq!(slices(&daemon), ["4ms", "3ms"]);
    daemon.run("resume web").ended_with(0);
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

#[test]
fn canary_of_a_plan_continues_after_the_daemon_was_killed() {
    let Some(live) = live::begin() else { return };
    let (web, db) = (Victim::start(), Victim::start());
    for (share_ppm, after) in [(100_000, ["1ms", "4ms"]), (300_000, ["2ms", "3ms"])] {
        let daemon = start(&live, &web, &db);
        write_plan(&live, revision(&daemon), share_ppm);
        let words = ["apply", "plan", "--canary", "--watch", "5s", "--socket", "socket"];
        let command = live.command(&words);
        let mut client = command_in(command, &live).spawn().expect("a client");
        wait_until("the first VM to be changed", || daemon.one("web")["slice"] == "1ms");
        let_pass(Duration::from_millis(500));
        // The client is not needed any more.
        client.kill().and_then(|()| client.wait()).expect("the client was started");
        assert_eq!(slices(&daemon), ["1ms", "3ms"]);
        daemon.kill();
        let daemon = Daemon::start(&live);
        assert_eq!(daemon.ask("GET", "/v1/plan", None).1["stage"], "watching");
        assert_eq!(slices(&daemon), ["1ms", "3ms"]);
        let is_over = || daemon.ask("GET", "/v1/plan", None).1["stage"] != "watching";
        wait_until("the end of the plan", is_over);
        assert_eq!(slices(&daemon), after);
        daemon.run("release web").ended_with(0);
        daemon.run("release db").ended_with(0);
        assert_eq!(daemon.end().code, Some(0));
    }
    live.nothing_is_left();
}

/// All VMs always compute. `batch` always waits for CPU time, so a VM that has used its slice early
/// in a period gives up capacity only after a wait.
#[test]
fn running_vms_can_exchange_capacity_with_apply_and_undo() {
    let Some(live) = live::begin() else { return };
    let (web, db, batch) = (Victim::start(), Victim::start(), Victim::start());
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &web, "4ms").0, 201);
    assert_eq!(daemon.reserve("db", &db, "1ms").0, 201);
    let pid = format!("pid:{}", batch.pid());
    let body = json!({ "slice": "30ms", "period": "100ms", "exact": true, "for": pid });
    assert_eq!(daemon.ask("PUT", "/v1/reservations/batch", Some(&body)).0, 201);
    let table = |name: &str, slice: &str| {
        format!("[{name}]\nslice = \"{slice}\"\nperiod = \"10ms\"\nexact = true\nvcpus = 1\n")
    };
    for _ in 0..5 {
        for [first, second] in [["1ms", "4ms"], ["4ms", "1ms"], ["1ms", "4ms"]] {
            let list = table("db", second) + &table("web", first);
            std::fs::write(live.place.path("list"), list).expect("a file for the test");
            daemon.run("apply list").ended_with(0).shows("change 2");
            assert_eq!(slices(&daemon), [first, second]);
        }
        daemon.run("undo").ended_with(0).shows("change 2");
        assert_eq!(slices(&daemon), ["4ms", "1ms"]);
    }
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

fn command_in(mut command: std::process::Command, live: &Live) -> std::process::Command {
    command.current_dir(live.place.path("")).stdout(std::process::Stdio::null());
    command
}
