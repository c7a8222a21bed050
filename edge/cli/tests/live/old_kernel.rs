//! Tests of live runs on two simulated kernels: one with only the system calls of Linux 4.4, and
//! one that reports no scheduling events. Needs root.

#![cfg(target_arch = "x86_64")]

use std::time::Duration;

use crate::common::GOOD;
use crate::common::live::{self, Kernel, Victim, let_pass, wait_until};
use crate::common::service::Daemon;
use rustix::process::Signal;

#[test]
fn doctor_command_reports_that_the_kernel_lacks_pidfds() {
    let Some(live) = live::begin_on(Kernel::Linux44) else { return };
    let text = live.run(&["doctor"]).good();
    let line = text.lines().find(|line| line.contains(" pidfd ")).expect("a line about pidfds");
    assert!(line.contains("missing") && line.contains("/proc descriptors are used"), "{line}");
    assert!(text.contains("This host can run scenarios live"), "{text}");
}

#[test]
fn live_run_of_two_busy_vms_works_without_pidfds() {
    let Some(live) = live::begin_on(Kernel::Linux44) else { return };
    live.place.write("it.toml", GOOD.as_bytes());
    let out = live.run(&["run", "it.toml"]).good();
    assert!(out.contains("gold") && out.contains("silver"), "{out}");
    assert!(!out.contains("note: "), "{out}");
    live.nothing_is_left();
}

#[test]
fn live_run_without_pidfds_notes_end_of_process() {
    let Some(live) = live::begin_on(Kernel::Linux44) else { return };
    for threads in ["process", "vcpus"] {
        let victim = Victim::start();
        let runner = live.start(&victim.scenario(threads, "1500ms"));
        wait_until("a timeslice of the victim", || victim.is_dispatched());
        drop(victim);
        runner.end().ended_with(0).shows("note: `victim` ended by itself at ");
        live.nothing_is_left();
    }
}

#[test]
fn second_keeper_process_restores_threads_on_a_kernel_without_pidfds() {
    let Some(live) = live::begin_on(Kernel::Linux44) else { return };
    let victim = Victim::start();
    let runner = live.start(&victim.scenario("vcpus", "10s"));
    wait_until("the victim to be scheduled", || victim.is_held());
    let_pass(Duration::from_millis(200));
    let first = live.processes_of("keep");
    assert_eq!(first.len(), 1);
    live::kill(first[0], Signal::KILL);
    wait_until("another keeper", || {
        live.processes_of("keep").iter().any(|pid| !first.contains(pid))
    });
    runner.signal(Signal::KILL);
    assert_eq!(runner.end().code, None);
    victim.is_given_back();
    live.nothing_is_left();
}

/// On a kernel without scheduling events, a vCPU with a reservation of 30 % would receive less. In
/// a measurement it received 9 %. So the run is refused before any thread is changed.
#[test]
fn reservations_are_refused_on_a_kernel_without_scheduling_events() {
    let Some(live) = live::begin_on(Kernel::WithoutPerf) else { return };
    live.run(&["doctor"]).ended_with(0).shows("nothing can be reserved");
    live.place.write("it.toml", GOOD.as_bytes());
    let refused = live.run(&["run", "it.toml"]).refused(3);
    refused.says("cannot reserve 6ms every 10ms").says("perf").says("slackline doctor");
    let victim = Victim::start();
    let pid = victim.pid().to_string();
    for exactly in [&[][..], &["--at-least"]] {
        let hold = [&["hold", "--pid", &pid, "--cpu", "20%"], exactly].concat();
        live.run(&hold).refused(3).says("cannot reserve 2ms every 10ms");
    }
    let daemon = Daemon::start(&live);
    let reserve = format!("reserve web --cpu 20% --for pid:{pid}");
    daemon.run(&reserve).refused(3).says("cannot reserve 2ms every 10ms").says("doctor");
    assert!(!victim.is_held());
    daemon.run("list").ended_with(0).shows("there are no reservations");
    daemon.end().ended_with(0);
    // Shares without reservations still work.
    let shares = GOOD.replace("name = \"edf\", reserve = \"0.05cpu\"", "name = \"credit\"");
    let shares =
        shares.replace("share.edf = { slice = \"6ms\", period = \"10ms\", exact = true }", "");
    let shares = shares.replace("share.edf = { slice = \"3ms\", period = \"10ms\" }", "");
    let shares = &shares[..shares.find("[[claim]]").unwrap_or(shares.len())];
    live.place.write("shares.toml", shares.as_bytes());
    live.run(&["run", "shares.toml"]).ended_with(0).shows("gold");
    live.nothing_is_left();
}
