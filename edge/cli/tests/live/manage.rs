//! Tests of `slackline manage --live` with a real daemon. Needs root.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::Ran;
use crate::common::live::{self, Live, PATIENCE, Victim, let_pass, wait_until};
use crate::common::service::Daemon;
use crate::hold::guest;

/// Goals with a floor and a ceiling for `web`.
const GOALS: &[u8] = b"[vm.web]\nfloor = \"10%\"\nceiling = \"60%\"\n[vm.db]\nleave = true\n";

/// A process that computes for 4 ms and then sleeps for 4 ms, in a loop.
struct Worker(Child);

impl Worker {
    fn start(live: &Live) -> Worker {
        let arguments = ["load", "interactive", "--compute", "4ms", "--sleep", "4ms"];
        let mut command = live.command(&arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Worker(command.spawn().expect("the program can be started"))
    }

    /// Reserves a tenth of a CPU for this process, which needs half of a CPU.
    #[track_caller]
    fn reserve(&self, daemon: &Daemon<'_>, name: &str) {
        let binding = format!("pid:{}", self.0.id());
        daemon.run(&format!("reserve {name} --for {binding} --slice 1ms --exact")).ended_with(0);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the lines of a file that `--save` has written, the header first. The last line may be
/// incomplete.
fn lines(live: &Live) -> Vec<Value> {
    let text = String::from_utf8(live.place.read("rounds.jsonl")).expect("text");
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until a running manager has made a change, and returns the line of that round. `None` if
/// the test machine is too busy: then no simulation agrees with the recording, and the manager
/// changes nothing.
fn wait_for_change(live: &Live) -> Option<Value> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        // The file grows about once a second.
        let_pass(Duration::from_millis(200));
        let change = lines(live).into_iter().find(|line| line["is_done"] == true);
        if change.is_some() {
            return change;
        }
    }
    let says = |line: &Value| line["says"].as_str().unwrap_or_default().to_owned();
    let all: Vec<String> = lines(live).iter().skip(1).map(says).collect();
    assert!(all.iter().any(|says| says.contains("held:")), "no round was held: {all:?}");
    None
}

#[test]
fn live_manager_raises_share_after_deadline_misses_and_replay_agrees() {
    let Some(live) = live::begin() else { return };
    let web = Worker::start(&live);
    let db = Victim::start();
    let daemon = Daemon::start(&live);
    web.reserve(&daemon, "web");
    assert_eq!(daemon.reserve("db", &db, "2ms").0, 201);
    live.place.write("goals.toml", GOALS);
    let act = "manage --live --goals goals.toml --round 1s --mode act --save rounds.jsonl";
    let words: Vec<&str> = act.split(' ').chain(["--socket", "socket"]).collect();
    let mut manager = live.command(&words);
    let mut manager = manager.stdout(Stdio::null()).spawn().expect("the program can be started");
    let first = wait_for_change(&live);
    live::kill(i32::try_from(manager.id()).expect("an id"), Signal::INT);
    let ended = manager.wait().expect("the manager was started");
    let Some(first) = first else {
        println!("skipped: the test machine is too busy for a prediction");
        return;
    };
    assert!(ended.success(), "{ended}");
    let decision = &first["round"]["decision"];
    assert_eq!(decision["name"], "web");
    assert_eq!(decision["from_ppm"], 100_000);
    let to = decision["to_ppm"].as_u64().expect("a share");
    assert!((101_000..=600_000).contains(&to), "{first:#}");
    assert!(first["round"]["vms"][0]["misses"].as_u64().expect("a number") > 0, "{first:#}");
    assert_eq!(first["round"]["vms"].as_array().map(Vec::len), Some(1), "db is not managed");
    assert_eq!(daemon.one("db")["revision"], 2);
    assert!(daemon.one("web")["revision"].as_u64().expect("a number") > 2);
    let replayed = live.run(&["manage", "--replay", "rounds.jsonl"]).ended_with(0);
    replayed.shows("0 decisions differ");
    // The same inputs with another decision in the file.
    let text = String::from_utf8(live.place.read("rounds.jsonl")).expect("text");
    let other = text.replacen(&format!("\"to_ppm\":{to}"), "\"to_ppm\":1", 1);
    live.place.write("other.jsonl", other.as_bytes());
    let differs = live.run(&["manage", "--replay", "other.jsonl"]).ended_with(1);
    assert!(differs.out.contains("1 decision differs"), "{}", differs.out);
    let log = daemon.run("log web").ended_with(0);
    assert!(log.out.contains("change: manager: web 10 to "), "{}", log.out);
    drop(web);
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

#[test]
fn live_manager_in_mode_observe_or_recommend_makes_no_change() {
    let Some(live) = live::begin() else { return };
    let web = Worker::start(&live);
    let daemon = Daemon::start(&live);
    web.reserve(&daemon, "web");
    let_pass(Duration::from_secs(2));
    let ran = daemon.run("manage --live --mode observe --round 1s --rounds 2").ended_with(0);
    let is_shown = ran.out.contains("web: 10.0 % reserved") || ran.out.contains("held:");
    assert!(is_shown && ran.out.contains("observe: web in rounds of 1s"), "{}", ran.out);
    let words = "manage --live --round 1s --rounds 4 --save rounds.jsonl";
    daemon.run(words).ended_with(0).shows("recommend: web in rounds of 1s");
    let lines = lines(&live);
    assert_eq!(lines[0]["mode"], "recommend");
    assert_eq!(lines.len(), 5);
    for line in &lines[1..] {
        assert_eq!(line["is_done"], false);
        // Each decision comes with the command that would make it.
        let is_decided = line["round"]["decision"].is_object();
        let says = line["says"].as_str().expect("text");
        assert_eq!(says.contains("slackline change web --slice"), is_decided, "{says}");
    }
    let after = daemon.one("web");
    assert_eq!((&after["revision"], &after["slice"]), (&Value::from(1), &Value::from("1ms")));
    assert_eq!(daemon.end().code, Some(0));
    drop(web);
    live.nothing_is_left();
}

#[test]
fn live_manager_requires_running_vm_and_goals_of_known_vms() {
    let Some(live) = live::begin() else { return };
    let daemon = Daemon::start(&live);
    let ran = daemon.run("manage --live").ended_with(2);
    assert!(ran.err.contains("no running VM"), "{}", ran.err);
    let web = Victim::start();
    assert_eq!(daemon.reserve("web", &web, "2ms").0, 201);
    live.place.write("goals.toml", b"[vm.wbe]\nfloor = \"10%\"\n");
    let ran = daemon.run("manage --live --goals goals.toml").ended_with(2);
    assert!(ran.err.contains("`wbe`") && ran.err.contains("write one of web"), "{}", ran.err);
    let ran = daemon.run("manage --live --round 100ms").ended_with(2);
    assert!(ran.err.contains("100ms") && ran.err.contains("1s to 30s"), "{}", ran.err);
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

#[test]
fn live_manager_changes_nothing_after_another_client_made_a_change() {
    let Some(live) = live::begin() else { return };
    let daemon = Daemon::start(&live);
    let web = Worker::start(&live);
    web.reserve(&daemon, "web");
    let words = "manage --live --round 1s --mode act --save rounds.jsonl --socket socket";
    let mut manager = live.command(&words.split(' ').collect::<Vec<_>>());
    let mut manager = manager.stdout(Stdio::null()).spawn().expect("the program can be started");
    wait_until("a measured round", || {
        let_pass(Duration::from_millis(200));
        live.place.path("rounds.jsonl").exists()
            && lines(&live).iter().any(|line| line["round"].is_object())
    });
    daemon.run("change web --slice 2ms").ended_with(0);
    let mut round = None;
    wait_until("a round without a change", || {
        let_pass(Duration::from_millis(200));
        let is_it = |line: &Value| {
            let says = line["says"].as_str().unwrap_or_default();
            says.starts_with("no change: another client changed web: revision ")
        };
        round = lines(&live).into_iter().find(is_it);
        round.is_some()
    });
    // In this round the manager neither decided nor changed anything.
    let round = round.expect("it was found");
    assert_eq!((&round["is_done"], &round["round"]), (&Value::from(false), &Value::Null));
    live::kill(i32::try_from(manager.id()).expect("an id"), Signal::INT);
    assert!(manager.wait().expect("the manager was started").success());
    drop(web);
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

/// Id of the group `slackline` in a group file that only the daemon reads. The client of the test
/// runs in this group.
const VIEWERS: u32 = 54_324;

#[test]
fn live_manager_with_viewer_role_may_only_observe_and_recommend() {
    let Some(live) = live::begin() else { return };
    let groups = live.place.path("group");
    let known = std::fs::read_to_string("/etc/group").expect("the groups of this host");
    let known = known.lines().filter(|line| !line.starts_with("slackline"));
    let known: String = known.map(|line| format!("{line}\n")).collect();
    live.place.write("group", format!("{known}slackline:x:{VIEWERS}:\n").as_bytes());
    let Some(daemon) = Daemon::start_with_groups(&live, &groups) else { return };
    daemon.run("access add 65534 --role viewer").ended_with(0);
    let web = Worker::start(&live);
    web.reserve(&daemon, "web");
    let revision = daemon.one("web")["revision"].clone();
    let manage = |words: &str| {
        let words = format!("manage --live --round 1s --socket socket {words}");
        let command = live.place.command_of_nobody(&words.split(' ').collect::<Vec<_>>());
        Ran::new(
            &command
                .expect("the test runs as root")
                .gid(VIEWERS)
                .output()
                .expect("the program can be started"),
        )
    };
    let refused = manage("--mode act --rounds 1");
    refused.refused(5).says("cannot manage in mode act: the caller's role has no right");
    let rounds = |mode: &str| {
        let ran = manage(&format!("--mode {mode} --rounds 2 --json")).ended_with(0);
        let lines = ran.out.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        lines.collect::<Vec<Value>>()
    };
    for mode in ["observe", "recommend"] {
        let lines = rounds(mode);
        assert_eq!((lines.len(), &lines[0]["mode"]), (3, &Value::from(mode)), "{lines:?}");
        assert!(lines[1..].iter().all(|line| line["is_done"] == false), "{lines:?}");
        let measured = lines.iter().filter_map(|line| line["round"]["vms"].as_array());
        assert!(measured.flatten().any(|vm| vm["name"] == "web"), "{lines:?}");
    }
    assert_eq!(daemon.one("web")["revision"], revision);
    drop(web);
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

#[test]
fn live_manager_measures_the_most_demanding_vcpu_of_a_vm() {
    let Some(live) = live::begin() else { return };
    let daemon = Daemon::start(&live);
    // Two of the three vCPUs are busy.
    let (vm, _) = guest();
    daemon.run(&format!("reserve web --slice 1ms --for pid:{}", vm.0.id())).ended_with(0);
    assert_eq!(daemon.one("web")["vcpus"], 3);
    let_pass(Duration::from_secs(2));
    let words = "manage --live --mode observe --round 1s --rounds 2 --json";
    let ran = daemon.run(words).ended_with(0);
    let lines = ran.out.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    let mut vms = lines.iter().filter_map(|line| line["round"]["vms"].as_array()).flatten();
    let web = vms.find(|vm| vm["name"] == "web").expect("a measured VM");
    assert_eq!(web["share_ppm"], 100_000);
    let demand = web["demand"].as_array().expect("periods");
    let most = demand.iter().filter_map(|level| level[0].as_u64()).max();
    assert!(most.is_some_and(|most| most > 1_000_000), "{web:#}");
    drop(vm);
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}
