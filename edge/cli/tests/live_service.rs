//! `slackline serve`: reservations that outlive whoever holds them. Needs root.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::live::{self, Victim, let_pass, wait_until};
use common::service::{Daemon, ask_text, cpu, spawn, spawn_on};
use common::{Place, Ran};
use rustix::process::Signal;
use serde_json::{Value, json};
use slackline_live::sys::{online_cpus, thread_cpu_time};

#[test]
fn part_victim() {
    live::play_victim();
}

/// Two daemons of two CPUs, as two hosts that know nothing of each other.
#[test]
fn a_reservation_is_placed_on_the_host_that_has_room() {
    let Some(live) = live::begin() else { return };
    let cpus: Vec<String> =
        online_cpus().unwrap().iter().map(|cpu| cpu.index().to_string()).collect();
    let [.., one, other] = &cpus[..] else {
        println!("skipped: needs two CPUs");
        return;
    };
    let mut daemons = [(one, "a"), (other, "b")].map(|(cpu, host)| {
        let (state, socket) = (format!("state-{host}"), format!("socket-{host}"));
        Machine(spawn_on(cpu, &live, &state, &socket))
    });
    for host in ["socket-a", "socket-b"] {
        wait_until("a daemon to answer", || live.run(&["list", "--socket", host]).code == Some(0));
    }
    fs::write(live.place.path("hosts"), "# two\nsocket-a\n\nsocket-b\n").unwrap();
    let place = |name: &str, slice: &str, by: &str| {
        let machine = format!("qemu:{name}");
        live.run(&[
            "place", name, "--slice", slice, "--vcpus", "1", "--for", &machine, "--hosts", "hosts",
            "--by", by,
        ])
    };
    place("one", "3ms", "first").ended_with(0).shows("on socket-a: one: 3ms in every 10ms");
    // Again it is the same, wherever it would go now.
    place("one", "3ms", "worst").ended_with(0).shows("on socket-a: one: 3ms in every 10ms");
    place("two", "2ms", "worst").ended_with(0).shows("on socket-b: two");
    place("three", "5ms", "best").ended_with(0).shows("on socket-a: three");
    place("four", "5ms", "first").ended_with(0).shows("on socket-b: four");
    place("five", "3ms", "first").ended_with(4).says("no host has room for 3ms in every 10ms");
    place("one", "1ms", "first").ended_with(2).says("one is reserved already");
    // A host that is not there is as one that has no room.
    let end = |daemon: &mut Child| {
        live::kill(i32::try_from(daemon.id()).unwrap(), Signal::TERM);
        wait_until("a daemon to end", || daemon.try_wait().unwrap().is_some());
    };
    end(&mut daemons[0].0);
    place("six", "1ms", "first").ended_with(0).shows("on socket-b: six");
    end(&mut daemons[1].0);
    place("seven", "1ms", "first").ended_with(3).says("no daemon listens at socket-a");
    live.nothing_is_left();
}

fn used(victim: &Victim) -> u64 {
    thread_cpu_time(victim.spinner).unwrap().ns()
}

#[test]
fn what_is_reserved_is_held_changed_paused_and_given_back() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = Daemon::start(&live);
    let (status, made) = daemon.reserve("web", &victim, "2ms");
    assert_eq!((status, &made["state"]), (201, &json!("active")), "{made}");
    assert_eq!(daemon.reserve("db", &other, "3ms").0, 201);
    assert!(victim.is_held());
    let before = used(&victim);
    let_pass(Duration::from_secs(1));
    // A machine that is busy may give less; it is never given more.
    wait_until("the victim to run", || used(&victim) > before);
    let web = daemon.one("web");
    let recent = |key: &str| web["recent"][key].as_u64().unwrap();
    assert!(recent("used_ns") > 0, "{web}");
    assert!(recent("used_ns") <= recent("promised_ns") + 20_000_000, "{web}");
    assert_eq!(web["total"]["deadlines"], web["recent"]["deadlines"], "{web}");
    // There is no room for so much; what was promised stands.
    let (status, problem) =
        daemon.ask("PATCH", "/v1/reservations/web", Some(&json!({ "slice": "9ms" })));
    assert_eq!((status, &problem["type"]), (409, &json!("no-room")), "{problem}");
    assert!(problem["largest_ns"].as_u64().unwrap() >= 2_000_000, "{problem}");
    let (status, changed) =
        daemon.ask("PATCH", "/v1/reservations/web", Some(&json!({ "slice": "4ms" })));
    assert_eq!((status, &changed["slice"]), (200, &json!("4ms")), "{changed}");
    let (status, _) = daemon.ask("POST", "/v1/reservations/web/pause", None);
    assert_eq!((status, &daemon.one("web")["state"]), (200, &json!("paused")));
    let rests = used(&victim);
    let_pass(Duration::from_millis(300));
    assert!(used(&victim) - rests < 2_000_000, "it ran although it was paused");
    let (status, _) = daemon.ask("POST", "/v1/reservations/web/resume", None);
    assert_eq!((status, &daemon.one("web")["state"]), (200, &json!("active")));
    wait_until("the victim to run again", || used(&victim) > rests + 2_000_000);
    let (status, _) = daemon.ask("DELETE", "/v1/reservations/web", None);
    assert_eq!(status, 200);
    victim.is_given_back();
    assert!(other.is_held());
    // A machine that ends leaves a promise that nobody can have any more.
    drop(other);
    wait_until("its end to be noticed", || daemon.ask("GET", "/v1/reservations/db", None).0 == 404);
    let (_, log) = daemon.ask("GET", "/v1/log", None);
    let verbs: Vec<&str> =
        log.as_array().unwrap().iter().filter_map(|it| it["verb"].as_str()).collect();
    assert_eq!(
        verbs,
        ["vanished", "release", "resume", "pause", "change", "reserve", "reserve"],
        "newest first"
    );
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// As a person does it: each verb as a command, and what it says.
#[test]
fn every_verb_reaches_the_daemon() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    let binding = format!("pid:{}", victim.pid());
    daemon.run("find nobody").ended_with(0).shows("no machine here");
    let reserve = format!("reserve web --cpu 20% --exact --for {binding}");
    daemon.run(&reserve).ended_with(0).shows("2ms in every 10ms, and no more");
    assert!(victim.is_held());
    daemon.run("reserve db --slice 9ms --for qemu:db --vcpus 1").ended_with(4).says("9ms every");
    daemon.run("reserve db --slice 1ms --for qemu:db --vcpus 1").ended_with(0).shows("waiting");
    daemon.run("list").ended_with(0).shows("web").shows("db");
    daemon.run("room --period 20ms").ended_with(0).shows("ms");
    daemon.run("change web --slice 3ms").ended_with(0).shows("3ms in every 10ms");
    daemon.run("change web --slice 4ms --if-revision 1").ended_with(2).says("revision");
    daemon.run("pause web --yes").ended_with(0).shows("paused");
    daemon.run("resume web").ended_with(0).shows("active");
    daemon.run("release web").ended_with(0).shows("web is released");
    victim.is_given_back();
    daemon.run("list web").ended_with(2).says("web");
    daemon.run("log").ended_with(0).shows("reserve").shows("release");
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// A ledger that cannot be trusted is not used, nor touched; what is whole of it is kept.
#[test]
fn a_damaged_ledger_is_told_and_rebuilt() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    let asked = |more: &[&str]| live.run(&[&["doctor", "--ledger", "state"], more].concat());
    asked(&[]).ended_with(0).shows("nothing is wrong; a daemon has it").shows("reservation 1");
    asked(&["--rebuild"]).ended_with(3);
    daemon.end().ended_with(0);
    let ledger = live.place.path("state/ledger.db");
    let mut bytes = fs::read(&ledger).unwrap();
    // The index of events by their names: all rows are whole.
    let page = 4096;
    let last = bytes.len() - page;
    bytes[last..].fill(0x5a);
    fs::write(&ledger, &bytes).unwrap();
    asked(&[]).ended_with(3).shows("damaged; no daemon has it").says("--rebuild");
    let mut refused = spawn(&live, "state", "socket");
    wait_until("it to be refused", || refused.try_wait().unwrap().is_some());
    assert_eq!(refused.wait().unwrap().code(), Some(3));
    assert_eq!(fs::read(&ledger).unwrap(), bytes, "it was touched");
    asked(&["--rebuild"]).ended_with(0).shows("are now in");
    asked(&[]).ended_with(0).shows("nothing is wrong; no daemon has it");
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.ask("GET", "/v1/reservations", None).0, 200);
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

#[test]
fn whoever_of_the_three_is_killed_what_is_reserved_is_held_again() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    for part in ["serve-front", "keep"] {
        let before = daemon.process_of(part).unwrap();
        live::kill(before, Signal::KILL);
        wait_until("another one", || daemon.process_of(part).is_some_and(|pid| pid != before));
        assert_eq!(daemon.one("web")["state"], "active", "after {part}");
        assert!(victim.is_held(), "after {part}");
    }
    daemon.kill();
    // Nobody holds it, and it runs.
    victim.is_given_back();
    live.nothing_is_left();
    for killed in [true, false] {
        let daemon = Daemon::start(&live);
        let web = daemon.one("web");
        assert_eq!((&web["state"], &web["slice"]), (&json!("active"), &json!("2ms")), "{web}");
        assert!(victim.is_held());
        let (_, log) = daemon.ask("GET", "/v1/log", None);
        assert_eq!(log[0]["verb"], "adopted", "{log}");
        if killed {
            daemon.kill();
        } else {
            daemon.end().ended_with(0);
        }
        victim.is_given_back();
        live.nothing_is_left();
    }
}

/// What a virtual machine is to whoever looks for one: a command line, and a thread with a name.
struct Machine(Child);

impl Machine {
    fn start(name: &str) -> Machine {
        Machine::start_by(name, 0)
    }

    fn start_by(name: &str, user: u32) -> Machine {
        let script = "echo 'CPU 0/TCG' > /proc/$$/comm; while :; do :; done";
        let mut command = Command::new("sh");
        command.arg0("qemu-system-x86_64").args(["-c", script, "-name", name]);
        command.uid(user);
        slackline_live::sys::die_with_us(&mut command);
        Machine(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_promised_waits_for_its_machine_as_often_as_that_comes() {
    let Some(live) = live::begin() else { return };
    let name = format!("test-{}", std::process::id());
    let mut daemon = Daemon::start(&live);
    let room = |daemon: &Daemon<'_>| {
        let (_, room) = daemon.ask("GET", "/v1/room?period=10ms", None);
        room["cpus"][0]["slice_ns"].as_u64().unwrap()
    };
    let before = room(&daemon);
    let body = json!({ "slice": "2ms", "vcpus": 1, "for": format!("qemu:{name}") });
    let (status, made) = daemon.ask("PUT", "/v1/reservations/web", Some(&body));
    assert_eq!((status, &made["state"]), (201, &json!("waiting")), "{made}");
    for killed in [true, false] {
        assert_eq!(daemon.one("web")["state"], "waiting");
        assert!(room(&daemon) <= before - 2_000_000, "it is promised to somebody else");
        let machine = Machine::start(&name);
        wait_until("the machine to be found", || daemon.one("web")["state"] == "active");
        assert_eq!(daemon.one("web")["served"], 1);
        drop(machine);
        wait_until("its end to be noticed", || daemon.one("web")["state"] == "waiting");
        if killed {
            daemon.kill();
            daemon = Daemon::start(&live);
        }
    }
    assert_eq!(daemon.ask("DELETE", "/v1/reservations/web", None).0, 200);
    assert!(room(&daemon) > before - 2_000_000);
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// The sum of all samples of a metric whose line has this.
fn metric(daemon: &Daemon<'_>, live: &live::Live, name: &str, of: &str) -> f64 {
    let mut page = String::new();
    wait_until("the page", || {
        let answer = ask_text(&live.place.path("socket"), "GET", "/metrics", None);
        page = answer.map_or_else(String::new, |(_, text)| text);
        page.contains(name)
    });
    assert!(daemon.pid() > 0);
    let is_it = |line: &&str| line.starts_with(name) && line.contains(of);
    let samples = page.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next());
    samples.filter_map(|number| number.parse::<f64>().ok()).sum()
}

#[test]
fn what_lapses_while_no_daemon_is_there_is_told() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    let of_web = "reservation=\"web\"";
    let lapsed = "slackline_vcpu_lapsed_seconds_total";
    wait_until("it to be told of", || metric(&daemon, &live, lapsed, of_web) == 0.0);
    assert_eq!(metric(&daemon, &live, "slackline_restarts_total", ""), 0.0);
    // Who never stops uses something, and who is stopped nothing.
    let name = format!("test-{}", std::process::id());
    let machine = Machine::start(&name);
    let uses = || {
        let (_, machines) = daemon.ask("GET", "/v1/machines", None);
        let mut all = machines.as_array().unwrap().iter();
        let found = all.find(|machine| machine["name"] == name.as_str());
        found.and_then(|machine| machine["cpu_ppm"].as_u64())
    };
    wait_until("it to be seen to run", || uses().is_some_and(|ppm| ppm > 0));
    let pid = i32::try_from(machine.0.id()).unwrap();
    live::kill(pid, Signal::STOP);
    wait_until("it to be seen to rest", || uses() == Some(0));
    drop(machine);
    let killed = Instant::now();
    daemon.kill();
    let_pass(Duration::from_millis(600));
    let without = killed.elapsed();
    let daemon = Daemon::start(&live);
    let answers = killed.elapsed();
    let lapse = metric(&daemon, &live, lapsed, of_web);
    assert!(lapse >= without.as_secs_f64(), "{lapse} s of at least {without:?}");
    assert!(lapse <= answers.as_secs_f64() + 0.5, "{lapse} s of at most {answers:?}");
    assert_eq!(metric(&daemon, &live, "slackline_restarts_total", ""), 1.0);
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// Whoever calls himself as somebody else's machine is called gets nothing of its.
#[test]
fn what_waits_for_one_users_machine_is_nobody_elses_whatever_that_is_called() {
    const STRANGER: u32 = 54_321;
    let Some(live) = live::begin() else { return };
    let name = format!("taken-{}", std::process::id());
    let daemon = Daemon::start(&live);
    let body = json!({ "slice": "2ms", "vcpus": 1, "for": format!("qemu:{name}") });
    let (status, made) = daemon.ask("PUT", "/v1/reservations/web", Some(&body));
    assert_eq!((status, &made["state"], &made["user"]), (201, &json!("waiting"), &json!(0)));
    let stranger = Machine::start_by(&name, STRANGER);
    let why = || daemon.one("web")["why"].as_str().unwrap_or_default().to_owned();
    wait_until("the stranger to be seen", || why().contains("uid 54321's, and this is for one"));
    assert_eq!(daemon.one("web")["state"], "waiting");
    // The one that is meant has it although the other one is there.
    let machine = Machine::start(&name);
    wait_until("the machine to be found", || daemon.one("web")["state"] == "active");
    // It is not handed on, and after a death it is not taken over.
    daemon.kill();
    drop(machine);
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.one("web")["state"], "waiting");
    // Who may say so says that it is the stranger's.
    let (status, _) = daemon.ask("DELETE", "/v1/reservations/web", None);
    assert_eq!(status, 200);
    let body = json!({ "slice": "2ms", "for": format!("qemu:{name}"), "user": 1 });
    let (status, problem) = daemon.ask("PUT", "/v1/reservations/web", Some(&body));
    assert_eq!((status, &problem["type"]), (404, &json!("no-machine")), "{problem}");
    let body = json!({ "slice": "2ms", "for": format!("qemu:{name}") });
    let (status, made) = daemon.ask("PUT", "/v1/reservations/web", Some(&body));
    assert_eq!((status, &made["user"]), (201, &json!(STRANGER)), "{made}");
    drop(stranger);
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// An operator has his own machines, and nobody else's; what he asks for otherwise is exit code 5.
#[test]
fn an_operator_reserves_for_his_own_machines_only() {
    const OPERATOR: u32 = 65_534;
    const GROUP: u32 = 54_323;
    let Some(live) = live::begin() else { return };
    let groups = live.place.path("group");
    let known = fs::read_to_string("/etc/group").unwrap();
    let known = known.lines().filter(|line| !line.starts_with("slackline"));
    let known: String = known.map(|line| format!("{line}\n")).collect();
    fs::write(&groups, format!("{known}slackline:x:{GROUP}:\n")).unwrap();
    // A host where there is such a group: seen by the daemon alone.
    let Some(daemon) = Daemon::start_with_groups(&live, &groups) else { return };
    let name = |whose: &str| format!("{whose}-{}", std::process::id());
    let own = Machine::start_by(&name("mine"), OPERATOR);
    let other = Machine::start_by(&name("theirs"), 0);
    let ask = |words: &str| {
        let words: Vec<&str> = words.split(' ').chain(["--socket", "socket"]).collect();
        let command = live.place.command_of_nobody(&words);
        Ran::new(&command.expect("we are root").gid(GROUP).output().unwrap())
    };
    for binding in [format!("qemu:{}", name("theirs")), format!("pid:{}", other.0.id())] {
        let asked = ask(&format!("reserve web --slice 1ms --period 10ms --for {binding}"));
        asked.refused(5).says("is a machine of uid 0, which uid 65534 may not have");
    }
    // Nor what is not there yet, as somebody else's.
    let asked = ask("reserve web --slice 1ms --period 10ms --vcpus 1 --for qemu:later --user 0");
    asked.refused(5).says("qemu:later is a machine of uid 0");
    ask(&format!("reserve web --slice 1ms --period 10ms --for qemu:{}", name("mine")))
        .ended_with(0);
    assert_eq!(daemon.one("web")["owner"], json!(format!("uid {OPERATOR}")));
    ask("release web").ended_with(0);
    drop((own, other));
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// What the disk does not take is not in force; what is in force stays so.
#[test]
fn on_a_full_disk_nothing_new_is_promised_and_nothing_is_lost() {
    let Some(live) = live::begin() else { return };
    let folder = live.place.path("state");
    fs::create_dir(&folder).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=1m", "slackline-test"]).arg(&folder);
    if !mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("skipped: needs the right to mount");
        return;
    }
    let unmounts = Unmounts(folder.clone());
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    let mut filler = File::create(folder.join("filler")).unwrap();
    while filler.write(&[1; 4096]).is_ok_and(|count| count > 0) {}
    drop(filler);
    // The file of the ledger may have a few pages left.
    let mut last = Value::Null;
    wait_until("the disk to be full", || {
        let (status, body) = daemon.reserve("db", &other, "2ms");
        last = body;
        if status == 201 {
            assert_eq!(daemon.ask("DELETE", "/v1/reservations/db", None).0, 200);
        }
        status == 507
    });
    assert_eq!(last["type"], "not-durable", "{last}");
    other.is_given_back();
    assert!(victim.is_held());
    assert_eq!(daemon.one("web")["state"], "active");
    assert_eq!(daemon.ask("GET", "/health", None).1["good"], false);
    fs::remove_file(folder.join("filler")).unwrap();
    wait_until("the ledger to be written again", || daemon.reserve("db", &other, "2ms").0 == 201);
    wait_until("all to be well", || daemon.ask("GET", "/health", None).1["good"] == true);
    daemon.kill();
    let daemon = Daemon::start(&live);
    for name in ["web", "db"] {
        assert_eq!(daemon.one(name)["state"], "active");
    }
    daemon.end().ended_with(0);
    victim.is_given_back();
    other.is_given_back();
    live.nothing_is_left();
    drop(unmounts);
}

struct Unmounts(std::path::PathBuf);

impl Drop for Unmounts {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn no_two_daemons_have_the_same_ledger_or_the_same_cpu() {
    let Some(live) = live::begin() else { return };
    let daemon = Daemon::start(&live);
    let cpu = cpu();
    let refused =
        live.run(&["serve", "--cpus", &cpu, "--state", "other", "--socket", "other.sock"]);
    refused.refused(3).says("another daemon schedules CPU");
    let first = online_cpus().unwrap().iter().next().unwrap().index().to_string();
    if first != cpu {
        let refused =
            live.run(&["serve", "--cpus", &first, "--state", "state", "--socket", "other.sock"]);
        refused.refused(3).says("another process has the ledger");
        let refused =
            live.run(&["serve", "--cpus", &first, "--state", "other", "--socket", "socket"]);
        refused.refused(3).says("another daemon listens on");
    }
    assert_eq!(daemon.ask("GET", "/health", None).1["good"], true);
    daemon.end().ended_with(0);
    live.run(&["serve", "--cpus", "255", "--state", "state"]).refused(2);
    live.nothing_is_left();
}

#[test]
fn the_front_has_no_rights_and_ends_with_the_core() {
    let Some(live) = live::begin() else { return };
    let daemon = Daemon::start(&live);
    let status = |pid: i32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |pid: i32, name: &str| {
        let text = status(pid);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name} of {pid}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let front = daemon.process_of("serve-front").unwrap();
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(front, name), "0000000000000000", "{name}");
    }
    assert_eq!(field(front, "NoNewPrivs"), "1");
    let uids = field(front, "Uid");
    assert!(uids.split(' ').all(|uid| uid != "0"), "{uids}");
    let gids = field(front, "Gid");
    assert!(gids.split(' ').all(|gid| gid != "0"), "{gids}");
    // Whoever gives threads back and whoever takes them are who may do that.
    for part in [daemon.pid(), daemon.process_of("keep").unwrap()] {
        assert_eq!(field(part, "Uid"), "0 0 0 0");
    }
    daemon.kill();
    live.nothing_is_left();
}

/// What systemd itself says of how much the daemon may do under its unit, of 10 at most.
#[test]
fn the_unit_of_systemd_exposes_little() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/systemd/slackline.service");
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--no-pager", "--threshold=40", unit]);
    let Ok(output) = analyze.output() else {
        println!("skipped: needs systemd-analyze");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find(|line| line.contains("Overall exposure level"));
    let Some(line) = line else {
        println!("skipped: needs a systemd-analyze that looks at files: {said}");
        return;
    };
    assert!(output.status.success(), "more than 4.0: {line}");
}

#[test]
fn without_root_there_is_no_service() {
    let place = Place::new();
    let arguments = ["serve", "--state", "state", "--socket", "socket"];
    let Some(mut command) = place.command_of_nobody(&arguments) else { return };
    Ran::new(&command.output().unwrap()).refused(3);
}
