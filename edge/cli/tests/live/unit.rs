//! Tests of the daemon with the rights that its systemd unit gives it. Needs root.

#![cfg(target_arch = "x86_64")]

use std::process::Command;
use std::time::Duration;

use crate::common::live::{self, Live, Victim, let_pass, wait_until};
use crate::common::service::Daemon;
use rustix::process::Signal;
use slackline_linux::sys::only_with_calls;

const UNIT: &str = include_str!("../../../daemon/systemd/slackline.service");
/// System calls of x86-64. Each line has a number, a name, and `service` if the call is in the
/// group `@system-service` of systemd 252.
const CALLS: &str = include_str!("../fixtures/system-calls.txt");

/// Returns the words of a setting of the unit.
fn setting(name: &str) -> Vec<&'static str> {
    let line = UNIT.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("the unit has no {name}")).split(' ').collect()
}

/// Returns the numbers of the system calls that the unit permits.
fn permitted_calls() -> Vec<u32> {
    let named = setting("SystemCallFilter");
    assert!(named.contains(&"@system-service"), "{named:?}");
    let calls = CALLS.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut words = line.split(' ');
        let number = words.next().and_then(|word| word.parse().ok()).expect("a number");
        (number, words.next().expect("a name"), words.next() == Some("service"))
    });
    let permitted = calls.filter(|(_, name, is_service)| *is_service || named.contains(name));
    permitted.map(|(number, ..)| number).collect()
}

/// Starts the daemon with the system calls and capabilities of its unit. A forbidden system call
/// kills the daemon, so that no such call goes unnoticed.
fn start(live: &Live) -> Option<Daemon<'_>> {
    let capabilities =
        setting("CapabilityBoundingSet").join(",").to_lowercase().replace("cap_", "+");
    let cpu = live.cpu();
    let serve = ["serve", "--cpus", &cpu, "--state", "state", "--socket", "socket", "--page"];
    let serve = live.command(&serve);
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", &format!("-all,{capabilities}"), "--no-new-privs"]);
    command.arg(serve.get_program()).args(serve.get_args());
    command.envs(serve.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.current_dir(live.place.path(""));
    only_with_calls(&mut command, &permitted_calls());
    let daemon = Daemon::start_by(live, command);
    if daemon.is_none() {
        println!("skipped: needs setpriv");
    }
    daemon
}

#[test]
fn daemon_with_rights_of_its_systemd_unit_serves_every_command() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let Some(daemon) = start(&live) else { return };
    let front = daemon.process_of("serve-front").expect("a front");
    assert_eq!(daemon.reserve("web", &victim, "1ms").0, 201);
    assert_eq!(daemon.reserve("db", &other, "1ms").0, 201);
    wait_until("both reservations to be active", || {
        ["web", "db"].iter().all(|name| daemon.one(name)["state"] == "active")
    });
    let_pass(Duration::from_millis(1_500));
    live.place
        .write("plan", b"[[reservation]]\nname = \"db\"\nslice = \"2ms\"\nperiod = \"10ms\"\n");
    for command in [
        "list",
        "find",
        "room",
        "log",
        "history web",
        "why web",
        "incidents",
        "predictions",
        "access",
        "page",
        "whatif --since 1s --set web.slice=2ms",
        "change web --slice 2ms",
        "change web --enforce deadline",
        "change web --enforce dispatcher",
        "undo",
        "pause web",
        "resume web",
        "list --json",
        "release web",
        "release db",
    ] {
        let ran = daemon.run(command);
        // Some commands can be refused, for example because the recording is short.
        assert!(ran.code.is_some_and(|code| code <= 4), "{command}: {} {}", ran.err, daemon.said());
    }
    live::kill(daemon.pid(), Signal::HUP);
    wait_until("another front", || {
        daemon.process_of("serve-front").is_some_and(|pid| pid != front)
    });
    assert_eq!(daemon.ask("GET", "/v1/host", None).0, 200);
    assert!(!daemon.said().contains("SIGSYS"), "{}", daemon.said());
    daemon.end().ended_with(0);
    live.nothing_is_left();
}
