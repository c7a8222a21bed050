//! Tests of `slackline serve`: reservations outlive the daemon process that enforces them. Needs
//! root.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Ran;
use crate::common::budgets::{NoRealTime, SKIPPED};
use crate::common::live::{self, Victim, let_pass, nap, wait_until};
use crate::common::service::{Daemon, Machine, ask_text, spawn, spawn_on};
use rustix::process::Signal;
use serde_json::{Value, json};
use slackline_linux::sys::{online_cpus, thread_cpu_time};

/// Two daemons on two CPUs act as two separate hosts.
#[test]
fn place_command_reserves_on_the_host_that_its_rule_selects() {
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
    // A repeated request stays on the same host, whichever one would be chosen now.
    place("one", "3ms", "worst").ended_with(0).shows("on socket-a: one: 3ms in every 10ms");
    place("two", "2ms", "worst").ended_with(0).shows("on socket-b: two");
    place("three", "5ms", "best").ended_with(0).shows("on socket-a: three");
    place("four", "5ms", "first").ended_with(0).shows("on socket-b: four");
    place("five", "3ms", "first").ended_with(4).says("no host can reserve 3ms every 10ms");
    place("one", "1ms", "first").ended_with(2).says("reservation one exists already");
    // A host that does not answer counts as one without capacity.
    let end = |daemon: &mut Child| {
        live::kill(i32::try_from(daemon.id()).unwrap(), Signal::TERM);
        wait_until("a daemon to end", || daemon.try_wait().unwrap().is_some());
    };
    end(&mut daemons[0].0);
    place("six", "1ms", "first").ended_with(0).shows("on socket-b: six");
    // A host that accepts the connection and does not answer is skipped after a second.
    let mute = std::os::unix::net::UnixListener::bind(live.place.path("socket-mute")).unwrap();
    fs::write(live.place.path("hosts"), "socket-mute\nsocket-b\n").unwrap();
    let eight = place("eight", "100us", "first").ended_with(0).shows("on socket-b: eight");
    eight.says("socket-mute did not answer, so it may already have the reservation eight");
    drop(mute);
    fs::write(live.place.path("hosts"), "socket-a\nsocket-b\n").unwrap();
    end(&mut daemons[1].0);
    place("seven", "1ms", "first").ended_with(3).says("no daemon listens at socket-a");
    live.nothing_is_left();
}

fn used(victim: &Victim) -> u64 {
    thread_cpu_time(victim.spinner).unwrap().ns()
}

#[test]
fn daemon_can_enforce_change_pause_and_release_a_reservation() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = Daemon::start(&live);
    let (status, made) = daemon.reserve("web", &victim, "2ms");
    assert_eq!((status, &made["state"]), (201, &json!("active")), "{made}");
    assert_eq!(daemon.reserve("db", &other, "3ms").0, 201);
    assert!(victim.is_held());
    let before = used(&victim);
    let_pass(Duration::from_secs(1));
    // A busy host may deliver less, but never more.
    wait_until("the victim to run", || used(&victim) > before);
    let web = daemon.one("web");
    let recent = |key: &str| web["recent"][key].as_u64().unwrap();
    assert!(recent("used_ns") > 0, "{web}");
    // The tolerance of one half allows for late enforcement. A whole CPU would be five times as
    // much.
    assert!(recent("used_ns") <= recent("promised_ns") * 3 / 2 + 20_000_000, "{web}");
    assert_eq!(web["total"]["deadlines"], web["recent"]["deadlines"], "{web}");
    // A change that does not fit is refused, and the reservation stays.
    let (status, problem) =
        daemon.ask("PATCH", "/v1/reservations/web", Some(&json!({ "slice": "9ms" })));
    assert_eq!((status, &problem["type"]), (409, &json!("no-room")), "{problem}");
    let largest = problem["largest_ns"].as_u64().unwrap();
    assert!(largest >= 2_000_000, "{problem}");
    // The refusal states the largest slice that fits.
    let change = |ns: u64| {
        let slice = json!({ "slice": format!("{ns}ns") });
        daemon.ask("PATCH", "/v1/reservations/web", Some(&slice)).0
    };
    assert_eq!((change(largest + 1), change(largest)), (409, 200), "{problem}");
    let (status, changed) =
        daemon.ask("PATCH", "/v1/reservations/web", Some(&json!({ "slice": "4ms" })));
    assert_eq!((status, &changed["slice"]), (200, &json!("4ms")), "{changed}");
    let (status, _) = daemon.ask("POST", "/v1/reservations/web/pause", None);
    assert_eq!((status, &daemon.one("web")["state"]), (200, &json!("paused")));
    let rests = used(&victim);
    let_pass(Duration::from_millis(300));
    assert!(used(&victim) - rests < 2_000_000, "a paused VM does not run");
    let (status, _) = daemon.ask("POST", "/v1/reservations/web/resume", None);
    assert_eq!((status, &daemon.one("web")["state"]), (200, &json!("active")));
    wait_until("the victim to run again", || used(&victim) > rests + 2_000_000);
    let (status, _) = daemon.ask("DELETE", "/v1/reservations/web", None);
    assert_eq!(status, 200);
    victim.is_given_back();
    assert!(other.is_held());
    // The reservation of a process ends with the process.
    drop(other);
    wait_until("the reservation to end", || {
        daemon.ask("GET", "/v1/reservations/db", None).0 == 404
    });
    let (_, log) = daemon.ask("GET", "/v1/log", None);
    let verbs: Vec<&str> =
        log.as_array().unwrap().iter().filter_map(|it| it["verb"].as_str()).collect();
    assert_eq!(
        verbs,
        ["vanished", "release", "resume", "pause", "change", "change", "reserve", "reserve"],
        "newest first"
    );
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// Each command for the daemon is run once, and its output is checked.
#[test]
fn every_service_command_works_with_a_running_daemon() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    let binding = format!("pid:{}", victim.pid());
    daemon.run("find nobody").ended_with(0).shows("no VM has `nobody`");
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

/// The daemon refuses to use a damaged ledger, and does not change it. A rebuild keeps the intact
/// parts.
#[test]
fn doctor_command_reports_damaged_ledger_and_rebuilds_on_request() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    let asked = |more: &[&str]| live.run(&[&["doctor", "--ledger", "state"], more].concat());
    asked(&[]).ended_with(0).shows("intact; a daemon uses it").shows("reservation 1");
    asked(&["--rebuild"]).ended_with(3);
    daemon.end().ended_with(0);
    let ledger = live.place.path("state/ledger.db");
    let mut bytes = fs::read(&ledger).unwrap();
    // The page belongs to the table of raises, which is empty. The rows of all tables are intact.
    let (page, length) = (13, 4096);
    bytes[(page - 1) * length..page * length].fill(0x5a);
    fs::write(&ledger, &bytes).unwrap();
    asked(&[]).ended_with(3).shows("damaged; no daemon uses it").says("--rebuild");
    let mut refused = spawn(&live, "state", "socket");
    wait_until("the damaged ledger to be refused", || refused.try_wait().unwrap().is_some());
    assert_eq!(refused.wait().unwrap().code(), Some(3));
    assert_eq!(fs::read(&ledger).unwrap(), bytes, "the daemon does not change a damaged ledger");
    asked(&["--rebuild"]).ended_with(0).shows("are now in");
    asked(&[]).ended_with(0).shows("intact; no daemon uses it");
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.one("web")["slice"], "2ms");
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

#[test]
fn reservations_resume_after_any_process_of_the_daemon_is_killed() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    for part in ["serve-front", "keep"] {
        let before = daemon.process_of(part).unwrap();
        live::kill(before, Signal::KILL);
        wait_until("the process to be replaced", || {
            daemon.process_of(part).is_some_and(|pid| pid != before)
        });
        assert_eq!(daemon.one("web")["state"], "active", "after {part}");
        assert!(victim.is_held(), "after {part}");
    }
    daemon.kill();
    // The threads of the VM are restored, and the VM runs.
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

#[test]
fn reservation_waits_for_vm_after_each_daemon_restart() {
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
        assert!(
            room(&daemon) <= before - 2_000_000,
            "the capacity stays reserved while the VM is absent"
        );
        let machine = Machine::start(&name);
        wait_until("the machine to be found", || daemon.one("web")["state"] == "active");
        assert_eq!(daemon.one("web")["served"], 1);
        drop(machine);
        wait_until("the reservation to wait for the VM", || {
            daemon.one("web")["state"] == "waiting"
        });
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

/// Returns the sum of a metric's samples whose lines contain the text `of`.
fn metric(daemon: &Daemon<'_>, live: &live::Live, name: &str, of: &str) -> f64 {
    let mut page = String::new();
    wait_until("the page of metrics", || {
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
fn time_in_which_no_daemon_runs_is_reported_as_lapsed() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    let of_web = "reservation=\"web\"";
    let lapsed = "slackline_vcpu_lapsed_seconds_total";
    wait_until("a sample of the metric", || metric(&daemon, &live, lapsed, of_web) == 0.0);
    assert_eq!(metric(&daemon, &live, "slackline_restarts_total", ""), 0.0);
    // A VM that spins uses CPU time, and a stopped one does not.
    let name = format!("test-{}", std::process::id());
    let machine = Machine::start(&name);
    let uses = || {
        let (_, machines) = daemon.ask("GET", "/v1/machines", None);
        let mut all = machines.as_array().unwrap().iter();
        let found = all.find(|machine| machine["name"] == name.as_str());
        found.and_then(|machine| machine["cpu_ppm"].as_u64())
    };
    wait_until("CPU time of the VM", || uses().is_some_and(|ppm| ppm > 0));
    let pid = i32::try_from(machine.0.id()).unwrap();
    live::kill(pid, Signal::STOP);
    wait_until("the VM to use no CPU time", || uses() == Some(0));
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
}

/// The VM was not started by libvirt. So a change of its scheduling class counts as made by the VM
/// itself, even if another program made it.
#[test]
fn scheduling_changes_made_by_a_vm_are_undone_and_logged() {
    let Some(live) = live::begin() else { return };
    let name = format!("test-{}", std::process::id());
    let machine = Machine::start(&name);
    let daemon = Daemon::start(&live);
    let body = json!({ "slice": "2ms", "exact": true, "for": format!("qemu:{name}") });
    assert_eq!(daemon.ask("PUT", "/v1/reservations/web", Some(&body)).0, 201);
    let pid = i32::try_from(machine.0.id()).unwrap();
    let thread = slackline_linux::sys::Tid::new(pid).unwrap();
    let ordinary = slackline_linux::sys::SchedulingOf {
        class: slackline_linux::sys::Scheduling::Batch { nice: 0 },
        reset_on_fork: false,
    };
    wait_until("a change to be logged", || {
        slackline_linux::sys::set_scheduling(thread, &ordinary).unwrap();
        let (_, log) = daemon.ask("GET", "/v1/log", None);
        log.as_array().unwrap().iter().any(|event| event["verb"] == "meddled")
    });
    daemon.run("log").ended_with(0).shows("SCHED_BATCH");
    assert_eq!(daemon.one("web")["state"], "active");
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// An administrator stops the VM with SIGSTOP. The VM stays stopped until the administrator resumes
/// it: the daemon does not resume it.
#[test]
fn reservation_is_contested_while_vm_is_stopped_by_sigstop() {
    let Some(live) = live::begin() else { return };
    let name = format!("test-{}", std::process::id());
    let machine = Machine::start(&name);
    let daemon = Daemon::start(&live);
    let reserve = |name: &str, binding: &str| {
        let body = json!({ "slice": "2ms", "exact": true, "for": binding });
        daemon.ask("PUT", &format!("/v1/reservations/{name}"), Some(&body))
    };
    assert_eq!(reserve("web", &format!("qemu:{name}")).0, 201);
    let pid = i32::try_from(machine.0.id()).unwrap();
    let room = || {
        let (_, room) = daemon.ask("GET", "/v1/room?period=10ms", None);
        room["cpus"][0]["slice_ns"].as_u64().unwrap()
    };
    let before = room();
    live::kill(pid, Signal::STOP);
    wait_until("the reservation to be contested", || daemon.one("web")["state"] == "contested");
    let web = daemon.one("web");
    let why = format!("vCPU 0: process {pid} is stopped by a signal");
    assert_eq!(web["why"], json!(why), "{web}");
    assert!(room() <= before, "the capacity stays reserved");
    // The VM stays with this reservation, under whichever binding another request names it.
    let (status, problem) = reserve("other", &format!("pid:{pid}"));
    assert_eq!((status, &problem["type"]), (409, &json!("exists")), "{problem}");
    // `resume` does not undo a SIGSTOP.
    assert!(daemon.ask("POST", "/v1/reservations/web/resume", None).0 >= 400);
    live::kill(pid, Signal::CONT);
    wait_until("the reservation to be active", || daemon.one("web")["state"] == "active");
    let (_, log) = daemon.ask("GET", "/v1/log", None);
    let events: Vec<&str> =
        log.as_array().unwrap().iter().filter_map(|it| it["verb"].as_str()).collect();
    assert!(events.contains(&"contested") && events.contains(&"settled"), "{events:?}");
    // The next VM of the same name is a different VM.
    live::kill(pid, Signal::STOP);
    wait_until("the reservation to be contested again", || {
        daemon.one("web")["state"] == "contested"
    });
    drop(machine);
    wait_until("the reservation to wait for the VM", || daemon.one("web")["state"] == "waiting");
    let _machine = Machine::start(&name);
    wait_until("the next VM to be found", || daemon.one("web")["state"] == "active");
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

#[test]
fn reservation_is_partial_if_vm_has_fewer_vcpus_than_reserved() {
    let Some(live) = live::begin() else { return };
    let name = format!("test-{}", std::process::id());
    let _machine = Machine::start(&name);
    let daemon = Daemon::start(&live);
    let body = json!({ "slice": "1ms", "vcpus": 2, "for": format!("qemu:{name}") });
    let (status, made) = daemon.ask("PUT", "/v1/reservations/web", Some(&body));
    assert_eq!((status, &made["state"], &made["served"]), (201, &json!("partial"), &json!(1)));
    let why = "the VM has 1 vCPU, and 2 are reserved";
    assert_eq!(made["why"], why, "{made}");
    daemon.run("list").ended_with(0).shows("partial").shows(why);
    daemon.run("change web --vcpus 1").ended_with(0).shows("active");
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// A monitor that never answers delays requests for its own VM only.
#[test]
fn silent_qemu_monitor_delays_only_requests_for_its_vm() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let socket = live.place.path("monitor");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let name = format!("silent-{}", std::process::id());
    let mut command = Command::new("sh");
    let monitor = format!("unix:{},server=on,wait=off", socket.display());
    command.arg0("qemu-system-x86_64").args(["-c", "while :; do sleep 1; done"]);
    command.args(["-name", &name, "-qmp", &monitor]).stdout(Stdio::null());
    slackline_linux::sys::die_with_us(&mut command);
    let machine = Machine(command.spawn().unwrap());
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "1ms").0, 201);
    let mut was_quicker = false;
    let mut slices = ["2ms", "1ms"].into_iter().cycle();
    // The daemon waits for the monitor for two seconds. On a busy host a change may take longer.
    wait_until("a change while the daemon waits", || {
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| {
                let body = json!({ "slice": "1ms", "vcpus": 1, "for": format!("qemu:{name}") });
                daemon.ask("PUT", "/v1/reservations/silent", Some(&body))
            });
            // The daemon does not connect to a monitor that was silent a few seconds ago.
            let mut asked = None;
            while asked.is_none() && !slow.is_finished() {
                asked = listener.accept().ok();
                nap();
            }
            // From here on the daemon waits for the monitor.
            if asked.is_some() {
                let body = json!({ "slice": slices.next() });
                let changed = daemon.ask("PATCH", "/v1/reservations/web", Some(&body));
                assert_eq!(changed.0, 200, "{}", changed.1);
                was_quicker |= !slow.is_finished();
            }
            let (status, problem) = slow.join().unwrap();
            assert!(status >= 400, "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains("QMP"), "{problem}");
        });
        was_quicker
    });
    drop(machine);
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// Libvirt moves each thread of a starting VM to a new cgroup without real-time budget. This test
/// moves the threads after the daemon has found them.
#[test]
fn daemon_gives_real_time_budget_to_cgroup_that_vm_enters() {
    let Some(live) = live::begin() else { return };
    let Some(group) = NoRealTime::make() else {
        println!("{SKIPPED}");
        return;
    };
    let names = ["a", "b"].map(|name| format!("{name}-{}", std::process::id()));
    let [first, second] = [0, 1].map(|number| Machine::start(&names[number]));
    fs::write(group.0.join("cgroup.procs"), first.0.id().to_string()).unwrap();
    fs::write(group.0.join("cgroup.procs"), second.0.id().to_string()).unwrap();
    let daemon = Daemon::start(&live);
    let reserve = |name: &str, number: usize| {
        let body =
            json!({ "slice": "2ms", "exact": true, "for": format!("qemu:{}", names[number]) });
        daemon.ask("PUT", &format!("/v1/reservations/{name}"), Some(&body))
    };
    // The cycle is repeated: budgets that are no longer needed must be removed.
    for _ in 0..8 {
        for (number, name) in ["a", "b"].into_iter().enumerate() {
            let (status, made) = reserve(name, number);
            assert_eq!(status, 201, "{made}");
        }
        for name in ["a", "b"] {
            let path = format!("/v1/reservations/{name}");
            assert_eq!(daemon.ask("DELETE", &path, None).0, 200);
        }
    }
    assert_eq!(group.budget(), 0);
    assert_eq!((reserve("a", 0).0, reserve("b", 1).0), (201, 201));
    let before = group.budget();
    assert!(before > 400_000, "{before}");
    let (status, _) = daemon.ask("PATCH", "/v1/reservations/a", Some(&json!({ "slice": "3ms" })));
    assert_eq!(status, 200);
    assert!(group.budget() > before, "the budget of the cgroup grows with the slice");
    let inner = group.inner("vcpu0");
    // The kernel moves no real-time thread to a group without budget.
    assert_eq!(daemon.ask("POST", "/v1/reservations/b/pause", None).0, 200);
    let pid = second.0.id().to_string();
    wait_until("the VM to be moved", || {
        let _ = Command::new("chrt").args(["--other", "--pid", "0", &pid]).status();
        fs::write(inner.0.join("cgroup.procs"), &pid).is_ok()
    });
    // If the move was noticed first, the VM is contested and must be resumed.
    wait_until("the inner cgroup to have a budget", || {
        daemon.ask("POST", "/v1/reservations/b/resume", None).0 == 200 && inner.budget() > 200_000
    });
    wait_until("the daemon to be healthy", || daemon.ask("GET", "/health", None).1["good"] == true);
    let of = |machine: &Machine| {
        let tid = i32::try_from(machine.0.id()).ok().and_then(slackline_linux::sys::Tid::new);
        thread_cpu_time(tid.unwrap()).unwrap()
    };
    for machine in [&first, &second] {
        let used = of(machine);
        wait_until("the VM to run", || of(machine).ns() > used.ns() + 20_000_000);
    }
    daemon.end().ended_with(0);
    assert_eq!((group.budget(), inner.budget()), (0, 0));
    drop((first, second));
    live.nothing_is_left();
    drop(inner);
}

/// The test runs the hook as libvirt does, with different metadata.
#[test]
fn libvirt_hook_refuses_vm_start_only_if_metadata_require_reservation() {
    let Some(live) = live::begin() else { return };
    let hook = |moment: &str, xml: &[u8]| {
        let words = ["hook", "libvirt", "web", moment, "begin", "--socket", "socket"];
        let mut command = live.command(&[&words[..], &["--within", "20s"]].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A hook that refuses may have ended before it reads its input.
        let _ = child.stdin.take().unwrap().write_all(xml);
        Ran::new(&child.wait_with_output().unwrap())
    };
    let domain = |terms: &str| {
        format!(
            "<domain type='qemu'><name>web</name><vcpu>2</vcpu><metadata><s:reservation \
             xmlns:s='urn:slackline:1' {terms}/></metadata></domain>"
        )
        .into_bytes()
    };
    // Without a daemon, no reservation can be made.
    hook("start", &domain("slice='1ms'")).ended_with(0).says("no daemon listens");
    hook("start", &domain("slice='1ms' require='yes'")).ended_with(1).says("no daemon listens");
    let daemon = Daemon::start(&live);
    hook("start", &domain("slice='1ms' exact='yes'")).ended_with(0);
    let web = daemon.one("web");
    let of = |web: &Value| {
        ["state", "slice", "vcpus", "for", "exact"].map(|key| web[key].to_string()).join(" ")
    };
    assert_eq!(of(&web), r#""waiting" "1ms" 2 "libvirt:web" true"#, "{web}");
    // The VM starts with the same metadata, which changes nothing. Then it starts with other
    // metadata.
    hook("started", &domain("slice='1ms' exact='yes'")).ended_with(0);
    assert_eq!(daemon.one("web")["revision"], web["revision"]);
    hook("start", &domain("slice='2ms' vcpus='1'")).ended_with(0);
    assert_eq!(of(&daemon.one("web")), r#""waiting" "2ms" 1 "libvirt:web" false"#);
    let before = daemon.one("web")["revision"].clone();
    hook("start", &domain("slice='2'")).ended_with(0).says("`2` has no unit");
    hook("start", &domain("slice='9.9ms'")).ended_with(0).says("cannot reserve for web");
    hook("start", &domain("slice='9.9ms' require='yes'")).ended_with(1).says("9.9ms every 10ms");
    hook("started", &domain("slice='9.9ms' require='yes'")).ended_with(0);
    hook("start", b"<domain>").ended_with(0).says("is not XML");
    hook("start", &vec![b' '; 2 << 20]).ended_with(0).says("at most 1048576 are read");
    hook("start", b"<domain><metadata><x:y xmlns:x='urn:x'/></metadata></domain>").ended_with(0);
    // The name belongs to a reservation that waits for another VM.
    let other = json!({ "slice": "1ms", "vcpus": 1, "for": "qemu:other" });
    assert_eq!(daemon.ask("PUT", "/v1/reservations/other", Some(&other)).0, 201);
    hook("start", &domain("slice='2ms' name='other'")).ended_with(0).says("cannot reserve for web");
    assert_eq!(daemon.one("other")["for"], "qemu:other");
    assert_eq!(daemon.one("web")["revision"], before);
    let script = live.run(&["hook", "libvirt", "--script", "--socket", "socket"]).good();
    assert!(
        script.starts_with("#!/bin/sh\n")
            && script.contains("hook libvirt --socket 'socket' -- \"$1\" \"$2\" \"$3\"\n"),
        "{script}"
    );
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// The disk has no space for a change. The change is refused, and existing reservations stay in
/// force.
#[test]
fn full_ledger_disk_prevents_new_reservations_and_keeps_existing_reservations() {
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
    // The ledger's file may have some free pages.
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
    wait_until("the daemon to be healthy", || daemon.ask("GET", "/health", None).1["good"] == true);
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
