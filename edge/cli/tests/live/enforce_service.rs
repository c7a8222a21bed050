//! Tests of reservations that the kernel enforces (`--enforce deadline`), and of what outlives a
//! killed daemon. Needs root.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use crate::common::live::{self, Live, Victim, let_pass, wait_until};
use crate::common::service::Daemon;
use crate::enforce::{assert_one_of_three_below, used_despite_class_changes};
use rustix::process::Signal;
use serde_json::{Value, json};
use slackline_linux::sys::{
    Scheduling, Tid, get_affinity, get_scheduling, online_cpus, set_affinity, thread_cpu_time,
};
use slackline_units::{CpuSet, Span};

pub(crate) fn start<'a>(live: &'a Live, options: &[&str]) -> Daemon<'a> {
    let cpu = live.cpu();
    let serve = ["serve", "--cpus", &cpu, "--state", "state", "--socket", "socket"];
    let command = live.command(&[&serve[..], options].concat());
    Daemon::start_by(live, command).expect("the daemon starts")
}

fn reserve(daemon: &Daemon<'_>, victim: &Victim) -> Value {
    let body = json!({
        "slice": "1ms", "period": "10ms", "exact": true, "enforce": "deadline",
        "for": format!("pid:{}", victim.pid()),
    });
    let (status, made) = daemon.ask("PUT", "/v1/reservations/web", Some(&body));
    assert_eq!((status, &made["state"]), (201, &json!("active")), "{made}");
    made
}

/// Returns the slice that the kernel enforces for the vCPU thread of the victim. `None` if the
/// thread is in another class.
pub(crate) fn slice(victim: &Victim) -> Option<Span> {
    match get_scheduling(victim.spinner).unwrap().class {
        Scheduling::Deadline { runtime, .. } => Some(runtime),
        _ => None,
    }
}

#[test]
fn reservation_under_sched_deadline_can_change_its_slice_and_mechanism() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = start(&live, &[]);
    assert_eq!(reserve(&daemon, &victim)["enforce"], "deadline");
    assert_eq!(daemon.reserve("db", &other, "1ms").0, 201);
    assert_eq!(slice(&victim), Some(Span::from_ms(1)));
    // CPU time is also counted if the kernel enforces the reservation.
    wait_until("the VM to receive CPU time", || {
        let web = daemon.one("web");
        web["total"]["used_ns"].as_u64().is_some_and(|used| used > 1_000_000)
    });
    let listed = daemon.run("list").ended_with(0).shows("deadline").shows("dispatcher");
    listed.shows("deadline misses are counted only if the dispatcher enforces");
    let says = "the kernel enforces the reservation of web (`deadline`)";
    daemon.run("manage --live").ended_with(2).says(says);
    daemon.run("change web --slice 2ms").ended_with(0).shows("by deadline");
    assert_eq!(slice(&victim), Some(Span::from_ms(2)));
    daemon.run("change web --at-least").ended_with(2).says("mechanism sets a hard limit");
    daemon.run("pause web --yes").ended_with(3).says("cannot pause a VM");
    assert_eq!(slice(&victim), Some(Span::from_ms(2)));
    daemon.run("change web --enforce dispatcher").ended_with(0).shows("2ms in every 10ms");
    assert!(slice(&victim).is_none() && victim.is_held());
    daemon.run("change web --enforce deadline").ended_with(0).shows("by deadline");
    assert_eq!(slice(&victim), Some(Span::from_ms(2)));
    daemon.run("log").ended_with(0).shows("by deadline");
    daemon.run("release web").ended_with(0);
    victim.is_given_back();
    assert!(other.is_held());
    daemon.end().ended_with(0);
    other.is_given_back();
    live.nothing_is_left();
}

#[test]
fn service_limits_and_reports_thread_that_leaves_sched_deadline() {
    let Some(live) = live::begin() else { return };
    assert_one_of_three_below(Span::from_ms(2_000 / 10 + 300), || used_under_service(&live));
}

/// Returns the CPU time that a thread with a limit of 10 % uses in 2 s in which it leaves the
/// deadline class again and again.
fn used_under_service(live: &Live) -> Span {
    let victim = Victim::start();
    let daemon = start(live, &[]);
    reserve(&daemon, &victim);
    let used = used_despite_class_changes(&victim, Duration::from_secs(2));
    daemon.run("log").ended_with(0).shows("meddled");
    wait_until("the kernel to enforce again", || slice(&victim).is_some());
    daemon.run("release web").ended_with(0);
    victim.is_given_back();
    daemon.end().ended_with(0);
    live.nothing_is_left();
    used
}

#[test]
fn reservation_by_sched_deadline_is_contested_while_vm_is_stopped() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = start(&live, &[]);
    reserve(&daemon, &victim);
    let_pass(Duration::from_millis(300));
    live::kill(victim.pid(), Signal::STOP);
    wait_until("the stop to be reported", || daemon.one("web")["state"] == "contested");
    assert!(slice(&victim).is_some());
    live::kill(victim.pid(), Signal::CONT);
    wait_until("the VM to be settled", || daemon.one("web")["state"] == "active");
    daemon.run("log").ended_with(0).shows("is stopped by a signal");
    daemon.run("release web").ended_with(0);
    victim.is_given_back();
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// The recording still has the VM after its reservation was changed or released.
#[test]
fn whatif_leaves_out_reservation_enforced_by_sched_deadline() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = start(&live, &[]);
    reserve(&daemon, &victim);
    assert_eq!(daemon.reserve("db", &other, "1ms").0, 201);
    let_pass(Duration::from_secs(2));
    daemon.run("record last.trace --since 1s").ended_with(0);
    let asked = json!({ "since": "30s", "set": [{ "name": "web", "slice": "2ms" }] });
    let (status, refused) = daemon.ask("POST", "/v1/whatif", Some(&asked));
    let detail = refused["detail"].as_str().unwrap_or_default();
    assert!(status == 503 && detail.contains("`web`: `deadline` enforced"), "{refused}");
    daemon.run("release web").ended_with(0);
    for command in ["whatif last.trace --json", "whatif --since 30s --json"] {
        // If the host has other load, the simulation may not repeat the recording.
        let ran = daemon.run(command);
        assert!(matches!(ran.code, Some(0 | 2)), "{}", ran.err);
        let answer: Value = serde_json::from_str(&ran.out).expect("JSON");
        assert_eq!(answer["left_out"][0]["name"], "web", "{answer}");
        let vcpus = answer["gate"]["forms"][0]["vcpus"].as_array().expect("vCPUs");
        assert!(vcpus.iter().all(|it| it["name"] == "db.0"), "{answer}");
    }
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// Returns the CPU on which a thread runs or ran last.
fn cpu_of(tid: Tid) -> usize {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    // The first of these fields has number 3, and the CPU has number 39.
    fields.split_ascii_whitespace().nth(36).unwrap().parse().unwrap()
}

#[test]
fn wait_behind_sched_deadline_thread_is_blamed_on_its_reservation() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = start(&live, &[]);
    // The kernel does not pin a deadline thread. It stays on the CPU on which it computes, so the
    // thread first moves to the CPU that the daemon records.
    let all = get_affinity(victim.spinner).unwrap();
    let last = online_cpus().unwrap().iter().last().unwrap();
    set_affinity(victim.spinner, &CpuSet::one(last)).unwrap();
    let_pass(Duration::from_millis(50));
    set_affinity(victim.spinner, &all).unwrap();
    reserve(&daemon, &victim);
    assert_eq!(daemon.reserve("db", &other, "4ms").0, 201);
    let is_on_last = || cpu_of(victim.spinner) == last.index();
    let was_on_last = is_on_last();
    let_pass(Duration::from_secs(3));
    let stays_on_last = was_on_last && is_on_last();
    let (status, answer) = daemon.ask("GET", "/v1/why/db", None);
    assert_eq!(status, 200, "{answer}");
    let culprits = answer["vcpus"][0]["culprits"].as_array().expect("culprits");
    let of_web: Vec<&Value> = culprits.iter().filter(|it| it["vm"] == "web").collect();
    // The kernel may move the deadline thread to the other CPU. Then `db` does not wait for it.
    assert!(of_web.iter().all(|it| it["kind"] == "vm-reserved"), "{answer:#}");
    assert!(!(stays_on_last && of_web.is_empty()), "{answer:#}");
    let refused = daemon.run("why web").ended_with(3);
    refused.says("the kernel enforces its reservation (`deadline`)").says("--enforce dispatcher");
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// The dispatcher is always possible. Which mechanism is better depends on the last trial of the
/// host.
#[test]
fn auto_enforcement_chooses_a_possible_mechanism_and_logs_the_reason() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = start(&live, &["--enforce", "auto"]);
    let reserve = |name: &str, victim: &Victim, more: &str| {
        format!("reserve {name} --slice 1ms --period 10ms --for pid:{} {more}", victim.pid())
    };
    let web = reserve("web", &victim, "--exact");
    daemon.run(&web).ended_with(0);
    // The same request again changes nothing.
    daemon.run(&web).ended_with(0);
    // Only the dispatcher can allow slack.
    daemon.run(&reserve("db", &other, "--at-least --enforce auto")).ended_with(0);
    assert!(slice(&other).is_none() && other.is_held());
    let by = if slice(&victim).is_some() { "deadline" } else { "dispatcher" };
    let log = daemon.run("log").ended_with(0);
    let log = log.shows(&format!("web by {by}: ")).shows("db by dispatcher: ");
    let chosen = log.out.matches("chosen").count();
    assert_eq!(chosen, 2, "{}", log.out);
    // The log of a reservation has its own choice only.
    let log = daemon.run("log web").ended_with(0).shows(&format!("chosen: web by {by}: "));
    assert_eq!(log.out.matches("chosen").count(), 1, "{}", log.out);
    let listed = daemon.run("list").ended_with(0).shows(&format!("auto: {by}"));
    assert!(
        listed.out.contains(&format!("auto chose {by} for ")) || listed.err.contains("auto chose")
    );
    assert!(daemon.one("web")["chosen"].is_string());
    daemon.run(&format!("change web --enforce {by}")).ended_with(0);
    assert!(daemon.one("web")["chosen"].is_null());
    daemon.run("change web --slice 2ms --enforce auto").ended_with(0);
    daemon.run("release web").ended_with(0);
    victim.is_given_back();
    daemon.end().ended_with(0);
    other.is_given_back();
    live.nothing_is_left();
}

/// A deadline thread runs before all threads of the dispatcher. So a deadline reservation with a
/// long slice is refused, although the sum of all shares is small.
#[test]
fn sched_deadline_slice_longer_than_dispatcher_period_is_refused() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = start(&live, &[]);
    assert_eq!(daemon.reserve("db", &other, "2ms").0, 201);
    let long = format!(
        "reserve web --slice 100ms --period 1s --exact --enforce deadline --for pid:{}",
        victim.pid()
    );
    let ran = daemon.run(&long).ended_with(4);
    ran.says("deadline threads can take 10ms of a window of 10ms").says("use a slice of at most ");
    assert!(slice(&victim).is_none());
    victim.is_given_back();
    reserve(&daemon, &victim);
    // In the other order, the dispatcher's reservation is refused.
    daemon.run("change web --slice 4ms").ended_with(0);
    daemon.run("change db --slice 3ms").ended_with(4).says("deadline threads can take");
    assert_eq!(daemon.one("db")["slice"], "2ms");
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

#[test]
fn kernel_keeps_reservation_of_killed_daemon_for_next_daemon() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let keep = ["--on-death", "keep", "--keep-for", "5min"];
    let daemon = start(&live, &keep);
    reserve(&daemon, &victim);
    daemon.kill();
    let_pass(Duration::from_millis(500));
    assert_eq!(
        slice(&victim),
        Some(Span::from_ms(1)),
        "the kernel's reservation outlives the daemon"
    );
    let used = || thread_cpu_time(victim.spinner).unwrap();
    let before = used();
    wait_until("the VM to receive more CPU time", || used() > before);
    assert_eq!(
        doctor_as_service(&live),
        "systemctl --quiet stop slackline-kept.timer\n\
         systemd-run --quiet --collect --unit slackline-kept --timer-property=AccuracySec=1s \
         --on-active=300000ms PROGRAM doctor --free\n"
    );
    assert_eq!(slice(&victim), Some(Span::from_ms(1)));
    let daemon = start(&live, &keep);
    wait_until("the reservation to be active", || daemon.one("web")["state"] == "active");
    assert_eq!(slice(&victim), Some(Span::from_ms(1)));
    // The threads return to the state that they had before the first daemon.
    daemon.run("release web").ended_with(0);
    victim.is_given_back();
    reserve(&daemon, &victim);
    daemon.kill();
    let_pass(Duration::from_millis(200));
    live.run(&["doctor", "--free"]).ended_with(0);
    victim.is_given_back();
    live.nothing_is_left();
}

#[test]
fn keeper_ends_reservation_of_killed_daemon_after_the_configured_time() {
    let Some(live) = live::begin() else { return };
    for options in [&["--on-death", "keep", "--keep-for", "1s"][..], &[]] {
        let victim = Victim::start();
        let daemon = start(&live, options);
        reserve(&daemon, &victim);
        daemon.kill();
        victim.is_given_back();
        // The next daemon has no VM that it could adopt for the reservation.
        drop(victim);
        live.nothing_is_left();
        std::fs::remove_dir_all(live.place.path("state")).unwrap();
    }
}

/// Runs `doctor --free --unless-kept` as systemd does when a service has ended. Returns the
/// commands that it gives to systemd.
fn doctor_as_service(live: &Live) -> String {
    let bin = live.place.path("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["systemctl", "systemd-run"] {
        let script = "#!/bin/sh\necho \"${0##*/} $*\" >> \"${0%/*}/calls\"\n";
        std::fs::write(bin.join(name), script).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bin.join(name), mode).unwrap();
    }
    let program = live.command(&[]).get_program().to_owned();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let status = Command::new(&program)
        .args(["doctor", "--free", "--unless-kept"])
        .env("SLACKLINE_KEPT_BY_UNIT", "yes")
        .env("PATH", path)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let calls = std::fs::read_to_string(bin.join("calls")).unwrap();
    calls.replace(program.to_str().unwrap(), "PROGRAM")
}
