//! Tests of `slackline record` and `slackline why` while processes take the CPU from a victim.
//! Needs root.
//!
//! The victim never blocks, so it waits whenever another thread has its CPU. So the waiting time
//! that is blamed on a culprit equals the CPU time that the culprit used, also on a busy test
//! machine.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use slackline_linux::sys::{Tid, monotonic, online_cpus, process_cpu_time};
use slackline_units::{Span, Time};

use crate::common::live::{self, Live, Victim, let_pass, wait_until};
use crate::common::service::{Daemon, ask_text};
use crate::common::{PROGRAM, Ran};

/// A process with a unique name on the last CPU. It ends with the test.
struct Load {
    child: Child,
}

impl Load {
    fn start(live: &Live, name: &str, work: &[&str]) -> Load {
        Load::start_as(live, name, &[], work)
    }

    /// Starts a process whose threads all have the class `SCHED_FIFO` with this priority.
    fn start_fifo(live: &Live, name: &str, priority: &str, work: &[&str]) -> Load {
        Load::start_as(live, name, &["chrt", "-f", priority], work)
    }

    fn start_as(live: &Live, name: &str, class: &[&str], work: &[&str]) -> Load {
        let program = live.place.path(name);
        symlink(PROGRAM, &program).expect("a link for the test");
        let cpu = online_cpus().expect("CPUs").iter().last().expect("a CPU").index().to_string();
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu]).args(class).arg(program).arg("load").args(work);
        command.args(["--length", "60s"]).env(live::TAG, &live.tag);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let load = Load { child: command.spawn().expect("taskset is installed") };
        let comm = || std::fs::read_to_string(format!("/proc/{}/comm", load.pid())).ok();
        wait_until("the program to be executed", || comm().is_some_and(|it| it.trim() == name));
        load
    }

    fn pid(&self) -> Tid {
        Tid::new(i32::try_from(self.child.id()).expect("a number")).expect("above zero")
    }

    fn used(&self) -> Span {
        process_cpu_time(self.pid()).expect("the process runs")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid().raw()).expect("above zero"), signal)
            .expect("the process runs");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Records the targets while `during` runs, and returns the path of the recording.
fn record(live: &Live, targets: &[(&str, &Load)], during: impl FnOnce()) -> PathBuf {
    let file = live.place.path("host.trace");
    let mut arguments = vec!["record", file.to_str().expect("a path"), "--length", "2s"];
    let bindings: Vec<String> =
        targets.iter().map(|(name, load)| format!("{name}=pid:{}", load.pid())).collect();
    bindings.iter().for_each(|binding| arguments.extend(["--for", binding]));
    let mut command = live.command(&arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let recorder = command.spawn().expect("the program can be started");
    during();
    let ran = Ran::new(&recorder.wait_with_output().expect("the recorder ends"));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    file
}

fn ask(live: &Live, file: &Path) -> Value {
    let file = file.to_str().expect("a path");
    serde_json::from_str(&live.run(&["why", "web", file, "--json"]).good()).expect("JSON")
}

/// Returns the total waiting time of all vCPUs in the answer, counting only waits that are blamed
/// on culprits whose field `key` is `name`.
fn blamed(answer: &Value, key: &str, name: &str) -> Span {
    let vcpus = answer["vcpus"].as_array().expect("vCPUs");
    let culprits = vcpus.iter().flat_map(|vcpu| vcpu["culprits"].as_array().expect("culprits"));
    let those = culprits.filter(|culprit| culprit[key] == name);
    those.map(|culprit| Span::from_ns(culprit["waited_ns"].as_u64().expect("a time"))).sum()
}

/// Asserts that the times in an answer add up, and that they are close to the kernel's own numbers.
fn check_sums(answer: &Value) {
    assert_eq!(answer["gaps"].as_array().map(Vec::len), Some(0), "{answer:#}");
    for vcpu in answer["vcpus"].as_array().expect("vCPUs") {
        let ns = |key: &str| vcpu[key].as_u64().expect("a time");
        let culprits = vcpu["culprits"].as_array().expect("culprits");
        let sum: u64 = culprits.iter().map(|it| it["waited_ns"].as_u64().expect("a time")).sum();
        assert_eq!(sum, ns("waited_ns"), "{answer:#}");
        if vcpu["check"].is_null() {
            // A recording of seconds may lack two readings of the kernel's numbers.
            continue;
        }
        let check = |key: &str| vcpu["check"][key].as_u64().expect("a time");
        // Within 2 %, plus waits that are in progress at the start and the end of the recording.
        let (ready, kernel) = (check("ready_ns"), check("kernel_ready_ns"));
        assert!(ready.abs_diff(kernel) <= kernel / 50 + 60_000_000, "{answer:#}");
    }
}

/// Asserts that the waiting time blamed on a load is between 70 % and 100 % of its CPU time. `used`
/// is the load's CPU time while the recorder ran, including the recorder's start and end.
fn check_blame(blamed: Span, used: Span, answer: &Value) {
    assert!(blamed <= used && blamed * 100 >= used * 70, "{blamed} of {used}: {answer:#}");
}

const SPIN: [&str; 1] = ["spin"];
const HALF: [&str; 5] = ["clock", "--period", "40ms", "--compute", "20ms"];

#[test]
fn why_command_names_competing_programs_with_their_cpu_time() {
    let Some(live) = live::begin() else { return };
    let victim = Load::start(&live, "victim", &SPIN);
    let hog = Load::start_fifo(&live, "rt-hog", "50", &HALF);
    let other = Load::start(&live, "cfs-hog", &SPIN);
    let before = (hog.used(), other.used());
    let file = record(&live, &[("web", &victim)], || {});
    let used = (hog.used() - before.0, other.used() - before.1);
    let answer = ask(&live, &file);
    check_sums(&answer);
    let vcpus = answer["vcpus"].as_array().expect("vCPUs");
    let is_checked = vcpus.iter().any(|vcpu| !vcpu["check"].is_null());
    assert!(is_checked, "no count of the kernel: {answer:#}");
    check_blame(blamed(&answer, "command", "rt-hog"), used.0, &answer);
    check_blame(blamed(&answer, "command", "cfs-hog"), used.1, &answer);
    let mode = std::fs::metadata(&file).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = live.run(&["why", "web", file.to_str().expect("a path")]).good();
    assert!(text.contains("process rt-hog") && text.contains("unexplained"), "{text}");
    for arguments in [&["--table"][..], &["--json"], &["--list"], &["--ascii"]] {
        let file = file.to_str().expect("a path");
        live.run(&[&["show", file], arguments].concat()).good();
    }
}

#[test]
fn why_command_blames_another_vm_or_sigstop_for_lost_time() {
    let Some(live) = live::begin() else { return };
    let victim = Load::start(&live, "victim", &SPIN);
    let neighbour = Load::start(&live, "neighbour", &SPIN);
    let before = neighbour.used();
    let mut stopped = (Time::START, Time::START);
    let file = record(&live, &[("web", &victim), ("db", &neighbour)], || {
        let_pass(Duration::from_millis(800));
        stopped.0 = monotonic();
        victim.signal(Signal::STOP);
        let_pass(Duration::from_millis(400));
        victim.signal(Signal::CONT);
        stopped.1 = monotonic();
    });
    let used = neighbour.used() - before;
    let stopped = stopped.1.since(stopped.0);
    let answer = ask(&live, &file);
    check_sums(&answer);
    // While the victim is stopped, the culprit is the stop and not the neighbour.
    let blamed_on = blamed(&answer, "vm", "db");
    assert!(blamed_on <= used && !blamed_on.is_zero(), "{blamed_on} of {used}: {answer:#}");
    check_blame(blamed(&answer, "kind", "paused"), stopped, &answer);
}

#[test]
fn why_command_on_saved_live_run_names_program_using_slack() {
    let Some(live) = live::begin() else { return };
    let hog = Load::start(&live, "cfs-hog", &SPIN);
    let scenario = r#"
title = "web beside another program"
length = "2s"
policy = { name = "edf" }
[[domain]]
name = "web"
work = { kind = "spin" }
share.edf = { slice = "2ms", period = "10ms" }
"#;
    std::fs::write(live.place.path("beside.toml"), scenario).expect("a file");
    let before = hog.used();
    let ran = live.run(&["run", "beside.toml", "--save", "run.trace"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let used = hog.used() - before;
    let answer = ask(&live, Path::new("run.trace"));
    let blamed = blamed(&answer, "command", "cfs-hog");
    assert!(!blamed.is_zero() && blamed <= used, "{blamed} of {used}: {answer:#}");
    let ran = live.run(&["replay", "run.trace"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
}

#[test]
fn recording_is_readable_after_the_record_command_is_killed() {
    let Some(live) = live::begin() else { return };
    let victim = Load::start(&live, "victim", &SPIN);
    let file = live.place.path("killed.trace");
    let binding = format!("web=pid:{}", victim.pid());
    let path = file.to_str().expect("a path").to_owned();
    let arguments = ["record", &path, "--for", &binding];
    let mut recorder = live.command(&arguments).spawn().expect("the program can be started");
    let length = || std::fs::metadata(&file).map_or(0, |found| found.len());
    wait_until("a checkpoint", || length() > 500);
    let_pass(Duration::from_millis(1_500));
    recorder.kill().expect("the recorder runs");
    recorder.wait().expect("the recorder ends");
    let ran = live.run(&["why", "web", &path, "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let answer: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert!(answer["length_ns"].as_u64() > Some(500_000_000), "{answer:#}");
    live.run(&["show", &path, "--table"]).ended_with(0).says("ends early");
}

#[test]
fn recording_made_with_anonymise_option_contains_no_names() {
    let Some(live) = live::begin() else { return };
    let victim = Load::start(&live, "victim", &SPIN);
    let file = live.place.path("anonymous.trace");
    let binding = format!("secretvm=pid:{}", victim.pid());
    let path = file.to_str().expect("a path");
    let arguments = ["record", path, "--for", &binding, "--length", "500ms", "--anonymise"];
    live.run(&arguments).ended_with(0);
    let bytes = std::fs::read(&file).expect("the file");
    for name in ["secretvm", "victim"] {
        let is_there = bytes.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(!is_there, "{name} is in the file");
    }
    live.run(&["why", "vm1", path]).good();
}

/// A cgroup of version 2 with a process that starts another process again and again.
struct BusyGroup(PathBuf, Child);

impl BusyGroup {
    fn start(live: &Live) -> Option<BusyGroup> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let root = line.split(' ').nth(4).expect("a mount point");
        let name = format!("recorded-{}.service", std::process::id());
        let group = PathBuf::from(root).join(name);
        std::fs::create_dir(&group).ok()?;
        let script = "echo $$ >\"$0\"; while :; do sleep 0.05; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(group.join("cgroup.procs")).env(live::TAG, &live.tag);
        let child = command.spawn().expect("a shell");
        let members = group.join("cgroup.procs");
        let is_in = || std::fs::read_to_string(&members).is_ok_and(|list| !list.is_empty());
        wait_until("the shell to join its cgroup", is_in);
        Some(BusyGroup(group, child))
    }

    fn name(&self) -> String {
        self.0.file_name().expect("a name").to_string_lossy().into_owned()
    }
}

impl Drop for BusyGroup {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = self.1.wait();
        wait_until("the cgroup to be removed", || std::fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn record_command_includes_new_processes_of_unit_or_cgroup() {
    let Some(live) = live::begin() else { return };
    let Some(group) = BusyGroup::start(&live) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let name = group.name();
    for binding in [format!("web=unit:{name}"), format!("web=cgroup:/{name}")] {
        let arguments = ["record", "group.trace", "--for", &binding, "--length", "1s"];
        live.run(&arguments).ended_with(0).says("recorded 1 VM");
        let file = live.place.path("group.trace");
        let answer = ask(&live, &file);
        let vcpus = answer["vcpus"].as_array().expect("vCPUs").len();
        assert!(vcpus >= 5, "the shell and its programs are vCPUs: {answer:#}");
    }
    live.run(&["record", "x", "--for", "unit:none.service"]).refused(3).says("none.service");
    drop(group);
    live.nothing_is_left();
}

#[test]
fn recording_of_the_daemon_can_be_saved_without_names() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("secretvm", &victim, "2ms").0, 201);
    let is_recorded = || daemon.ask("GET", "/v1/why/secretvm", None).0 == 200;
    wait_until("events of the VM", is_recorded);
    daemon.run("record last.trace --since 5s --anonymise").ended_with(0);
    let bytes = std::fs::read(live.place.path("last.trace")).expect("the file");
    let is_there = |name: &str| bytes.windows(name.len()).any(|part| part == name.as_bytes());
    assert!(!is_there("secretvm") && is_there("vm1"));
    live.run(&["why", "vm1", "last.trace"]).good();
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

#[test]
fn recordings_of_one_host_are_merged_by_the_wall_clock() {
    let Some(live) = live::begin() else { return };
    let victim = Load::start(&live, "victim", &SPIN);
    let binding = format!("web=pid:{}", victim.pid());
    for name in ["a.trace", "b.trace"] {
        live.run(&["record", name, "--for", &binding, "--length", "300ms"]).ended_with(0);
    }
    let told = live.run(&["merge", "both.zip", "a=a.trace", "b=b.trace"]).good();
    assert!(told.contains("a: begins at 0s"), "{told}");
    let (_, delay) = told.split_once("b: time 0s of this trace is time ").expect(&told);
    let (delay, _) = delay.split_once(" of the archive").expect("the end of the line");
    let delay: Span = delay.parse().expect("a time");
    assert!(delay >= Span::from_ms(300), "the second recording begins after the first: {told}");
}

/// The shell of the reservation `ci` starts a program only after the reservation was made.
#[test]
fn why_command_blames_reservation_for_child_processes_that_start_later() {
    let Some(live) = live::begin() else { return };
    let web = Victim::start();
    let daemon = Daemon::start(&live);
    let mut command = Command::new("taskset");
    command.args(["-c", &live.cpu(), "sh", "-c", "read go; while :; do :; done & wait"]);
    command.env(live::TAG, &live.tag);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut shell = command.spawn().expect("a shell");
    let for_shell = format!("reserve ci --slice 4ms --period 10ms --for pid:{}", shell.id());
    daemon.run(&for_shell).ended_with(0);
    let for_web = format!("reserve web --slice 3ms --period 10ms --for pid:{}", web.pid());
    daemon.run(&for_web).ended_with(0);
    drop(shell.stdin.take());
    let_pass(Duration::from_secs(2));
    let culprits = || {
        let (status, answer) = daemon.ask("GET", "/v1/why/web", None);
        assert_eq!(status, 200, "{answer}");
        answer["vcpus"][0]["culprits"].as_array().expect("culprits").clone()
    };
    let is_by_ci = |it: &Value| it["kind"] == "vm-reserved" && it["vm"] == "ci";
    let is_by_host = |it: &Value| it["command"] == "sh" && it["waited_ns"].as_u64() > Some(0);
    assert!(culprits().iter().any(is_by_ci), "{:#?}", culprits());
    assert!(!culprits().iter().any(is_by_host), "{:#?}", culprits());
    daemon.run("release ci").ended_with(0);
    let_pass(Duration::from_secs(1));
    assert!(culprits().iter().any(is_by_host), "{:#?}", culprits());
    let _ = shell.kill();
    let _ = shell.wait();
    for pid in live.processes_of("while") {
        live::kill(pid, Signal::KILL);
    }
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

/// The flight recorder of the daemon saves a recording after a missed deadline.
#[test]
fn daemon_saves_a_recording_if_a_reservation_misses_its_deadline() {
    let Some(live) = live::begin() else { return };
    let (web, db) = (Victim::start(), Victim::start());
    let daemon = Daemon::start(&live);
    // Each burst is longer than several periods, and has the priority of the dispatchers. The
    // bursts begin before the reservations, so that an incident contains a burst.
    let work = ["clock", "--period", "700ms", "--compute", "60ms"];
    let hog = Load::start_fifo(&live, "rt-hog", "99", &work);
    assert_eq!(daemon.reserve("web", &web, "2ms").0, 201);
    assert_eq!(daemon.reserve("db", &db, "3ms").0, 201);
    let incidents = || daemon.ask("GET", "/v1/incidents", None).1;
    let is_there = || incidents().as_array().is_some_and(|all| !all.is_empty());
    wait_until("an incident", is_there);
    let incident = incidents()[0].clone();
    let name = incident["name"].as_str().expect("a name").to_owned();
    assert!(name == "web" || name == "db", "{incident}");
    assert!(incident["missed"].as_u64() > Some(0), "{incident}");
    let file = PathBuf::from(incident["file"].as_str().expect("a file for root"));
    let file = live.place.path("").join(file);
    let mode = std::fs::metadata(&file).expect("the incident").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    daemon.run("incidents").ended_with(0).shows(&name);
    let number = format!("incident {}", incident["id"]);
    wait_until("the event in the log", || daemon.run(&format!("log {name}")).out.contains(&number));
    let path = file.to_str().expect("a path").to_owned();
    let of_incident = live.run(&["why", &name, &path, "--json"]).good();
    let of_incident: Value = serde_json::from_str(&of_incident).expect("JSON");
    check_sums(&of_incident);
    // A burst can count as a late timer, because it delays the dispatcher too.
    let vcpus = of_incident["vcpus"].as_array().expect("vCPUs");
    let mut culprits = vcpus.iter().flat_map(|it| it["culprits"].as_array().expect("culprits"));
    let is_own = |it: &Value| it["kind"] == "exhausted" || it["kind"] == "unexplained";
    assert!(culprits.any(|it| !is_own(it)), "no culprit: {of_incident:#}");
    let id = incident["id"].as_u64().expect("a number");
    let (status, over_http) = daemon.ask("GET", &format!("/v1/incidents/{id}"), None);
    assert_eq!((status, &over_http["vcpus"]), (200, &of_incident["vcpus"]));
    let by_number = daemon.run(&format!("why {name} --incident {id} --json")).ended_with(0).out;
    let by_number: Value = serde_json::from_str(&by_number).expect("JSON");
    assert_eq!(by_number["vcpus"], of_incident["vcpus"]);
    let other = daemon.run(&format!("why other --incident {id}")).ended_with(2);
    assert!(other.err.contains(&format!("is of the VM {name}, not of other")), "{}", other.err);
    assert_eq!(daemon.ask("GET", "/v1/incidents/7", None).0, 404);
    let metrics = ask_text(&live.place.path("socket"), "GET", "/metrics", None);
    let (status, metrics) = metrics.expect("an answer");
    assert!(status == 200 && metrics.contains("slackline_incidents_total"), "{metrics}");
    assert_eq!(daemon.ask("GET", "/v1/why/nobody", None).0, 404);
    assert_eq!(daemon.end().code, Some(0));
    drop(hog);
    live.nothing_is_left();
}
