//! Tests of `hold --enforce` with mechanisms of the kernel. Needs root.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::live::{self, Live, Victim, let_pass, wait_until};
use rustix::process::Signal;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_scheduling, set_scheduling, thread_cpu_time,
};
use slackline_units::Span;

/// Mechanisms of the kernel, each with options of `hold` that use it for a VM.
pub(crate) const WAYS: [(&str, &[&str]); 3] = [
    ("deadline", &["--vcpus", "--slice", "1ms", "--period", "20ms", "--enforce", "deadline"]),
    ("quota", &["--cpu", "20%", "--at-most", "--enforce", "quota"]),
    ("weight", &["--weight", "50"]),
];

/// Returns true if a thread of the victim has a deadline reservation, or the victim is in a cgroup
/// that Slackline created.
pub(crate) fn is_enforced(victim: &Victim) -> bool {
    let pid = Tid::new(victim.pid()).unwrap();
    let threads = slackline_linux::thread::threads_of(pid).unwrap();
    let is_deadline = |tid: &Tid| {
        get_scheduling(*tid).is_ok_and(|of| matches!(of.class, Scheduling::Deadline { .. }))
    };
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    threads.iter().any(is_deadline) || groups.contains("/slackline-")
}

fn hold<'a>(live: &'a Live, victim: &Victim, way: &[&str]) -> crate::hold::Holding<'a> {
    let pid = victim.pid().to_string();
    let holding = crate::hold::Holding::start(live, &[&["hold", "--pid", &pid], way].concat());
    wait_until("the kernel to enforce the limit", || is_enforced(victim));
    holding
}

#[test]
fn interrupted_hold_command_ends_kernel_enforcement_and_restores_process() {
    let Some(live) = live::begin() else { return };
    for (name, way) in WAYS {
        let victim = Victim::start();
        let holding = hold(&live, &victim, way);
        let_pass(Duration::from_millis(300));
        holding.signal(Signal::INT);
        let ran = holding.end().ended_with(0);
        ran.shows(&format!(", by {name}; Ctrl-C ends it")).shows("; threads restored\n");
        assert!(!is_enforced(&victim), "{name}");
        victim.is_given_back();
        live.nothing_is_left();
    }
}

#[test]
fn keeper_process_ends_kernel_enforcement_after_hold_command_is_killed() {
    let Some(live) = live::begin() else { return };
    for (name, way) in WAYS {
        let victim = Victim::start();
        let holding = hold(&live, &victim, way);
        let_pass(Duration::from_millis(100));
        holding.signal(Signal::KILL);
        assert_eq!(holding.end().code, None, "{name}");
        wait_until("the keeper to restore the victim", || !is_enforced(&victim));
        victim.is_given_back();
        live.nothing_is_left();
    }
}

#[test]
fn doctor_command_ends_enforcement_after_hold_and_keeper_are_killed() {
    let Some(live) = live::begin() else { return };
    for (name, way) in WAYS {
        let victim = Victim::start();
        let holding = hold(&live, &victim, way);
        let_pass(Duration::from_millis(100));
        // The keepers are stopped before `hold` is killed, so that they cannot restore the victim.
        // They are killed last, because `hold` would replace a keeper that dies.
        let keepers = live.processes_of("keep");
        keepers.iter().for_each(|pid| live::kill(*pid, Signal::STOP));
        holding.signal(Signal::KILL);
        assert_eq!(holding.end().code, None, "{name}");
        keepers.iter().for_each(|pid| live::kill(*pid, Signal::KILL));
        live.run(&["doctor", "--free"]).ended_with(0);
        assert!(!is_enforced(&victim), "{name}");
        victim.is_given_back();
        live.nothing_is_left();
    }
}

/// A quota guarantees no CPU time, and the kernel accepts no quota below 1 ms. A deadline thread
/// cannot be pinned, and receives no slack. The dispatcher has no weights.
#[test]
fn hold_command_refuses_parameters_that_its_mechanism_cannot_enforce() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let pid = victim.pid().to_string();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--cpu", "20%", "--enforce", "quota"], 2, "cannot guarantee CPU time by `quota`"),
        (
            &["--cpu", "5%", "--at-most", "--enforce", "quota"],
            2,
            "500us is below the kernel's minimum of 1ms",
        ),
        (
            &["--vcpus", "--slice", "1ms", "--at-least", "--enforce", "deadline"],
            2,
            "cannot let the target use slack with the mechanism `deadline`",
        ),
        (
            &["--vcpus", "--slice", "1ms", "--cpus", "0", "--enforce", "deadline"],
            2,
            "cannot restrict the target to the CPUs of `--cpus` with the mechanism `deadline`",
        ),
        (&["--cpu", "20%", "--enforce", "deadline"], 2, "threads, not 1"),
        (&["--weight", "50", "--enforce", "dispatcher"], 2, "cannot use a weight"),
    ];
    for (way, code, says) in cases {
        let ran = live.run(&[&["hold", "--pid", &pid], way].concat());
        ran.ended_with(code).says(says).says("hint:  ");
        assert!(!is_enforced(&victim), "{way:?}");
    }
    live.nothing_is_left();
}

/// The program reports the mechanism and the CPU time in each line.
#[test]
fn hold_command_names_enforcement_mechanism_in_each_json_line() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let way = ["--cpu", "20%", "--at-most", "--json"];
    let holding = hold(&live, &victim, &way);
    wait_until("two lines", || holding.text("out").lines().count() >= 2);
    holding.signal(Signal::INT);
    let ran = holding.end().ended_with(0).says("quota was chosen");
    for line in ran.out.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["enforce"], &line["promised_ppm"]), (&"quota".into(), &200_000.into()));
        let (used, passed) =
            (line["used_ns"].as_u64().unwrap(), line["passed_ns"].as_u64().unwrap());
        // The tolerance allows for the quota of one more period, and for the time until the first
        // reading.
        assert!(used <= passed / 4 + 20_000_000, "{line}");
    }
    victim.is_given_back();
    live.nothing_is_left();
}

#[test]
fn doctor_command_reports_unreadable_journal_by_its_exit_code() {
    let Some(live) = live::begin() else { return };
    let folder = Path::new("/run/slackline/held");
    fs::create_dir_all(folder).expect("root can make the folder");
    // No process has this id.
    let journal = folder.join("4194304-1.held");
    fs::write(&journal, "garbage\n").expect("root can write a journal");
    let freed = live.run(&["doctor", "--free"]);
    let as_json = live.run(&["doctor", "--free", "--json"]);
    fs::remove_file(&journal).expect("root can remove a journal");
    freed.ended_with(3).says("cannot read 1 journals");
    as_json.ended_with(3).says("cannot read 1 journals").shows("slackline-doctor-1");
}

/// Sets the busy thread of a victim to an ordinary class each millisecond. The kernel would allow
/// the thread itself to do that. Returns the CPU time that the thread used meanwhile.
pub(crate) fn used_despite_class_changes(victim: &Victim, length: Duration) -> Span {
    let used = || thread_cpu_time(victim.spinner).unwrap();
    let (before, until) = (used(), Instant::now() + length);
    let class = Scheduling::Other { nice: 0 };
    while Instant::now() < until {
        set_scheduling(victim.spinner, &SchedulingOf { class, reset_on_fork: true }).unwrap();
        let_pass(Duration::from_millis(1));
    }
    used() - before
}

/// Asserts that one of at most three measurements of a CPU time is below `limit`. On a busy test
/// machine the checks that limit a thread can be late.
pub(crate) fn assert_one_of_three_below(limit: Span, used: impl Fn() -> Span) {
    let mut all = Vec::new();
    let is_below = (0..3).any(|_| {
        all.push(used());
        all.last().is_some_and(|used| *used < limit)
    });
    assert!(is_below, "{all:?}, each at least {limit}");
}

/// The kernel lets every thread leave the deadline class. After that, the thread is unlimited until
/// the next check by `hold`. A thread that leaves the class repeatedly is stopped for a second.
#[test]
fn hold_by_sched_deadline_limits_thread_that_leaves_sched_deadline() {
    let Some(live) = live::begin() else { return };
    assert_one_of_three_below(Span::from_ms(2_000 / 5 + 300), || used_under_hold(&live));
}

/// Returns the CPU time that a thread with a limit of 20 % uses in 2 s in which it leaves the
/// deadline class again and again.
fn used_under_hold(live: &Live) -> Span {
    let victim = Victim::start();
    let way = ["--vcpus", "--slice", "2ms", "--period", "10ms", "--enforce", "deadline", "--json"];
    let holding = hold(live, &victim, &way);
    let used = used_despite_class_changes(&victim, Duration::from_secs(2));
    let undone = || {
        let text = holding.text("out");
        let last = text.lines().last().unwrap_or("{}");
        serde_json::from_str::<serde_json::Value>(last).unwrap()["undone"].as_u64()
    };
    wait_until("the changes to be reported", || undone().is_some_and(|undone| undone > 0));
    holding.signal(Signal::INT);
    holding.end().ended_with(0);
    assert!(!is_enforced(&victim));
    victim.is_given_back();
    live.nothing_is_left();
    used
}

/// Root moves a process out of the cgroup that limits it. The process still exists, without the
/// limit.
#[test]
fn hold_by_quota_reports_process_moved_out_of_its_cgroup() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let holding = hold(&live, &victim, &["--cpu", "20%", "--at-most", "--json"]);
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", victim.pid())).unwrap();
    let line = groups.lines().find(|line| line.contains("/slackline-")).unwrap();
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, own) = (parts.next().unwrap(), parts.next().unwrap());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_it = |mount: &&str| match controllers {
        "" => mount.contains(" - cgroup2 "),
        _ => mount.contains(" - cgroup ") && mount.ends_with(controllers),
    };
    let point = mounts.lines().find(is_it).unwrap().split(' ').nth(4).unwrap();
    let above = std::path::Path::new(own).parent().unwrap().strip_prefix("/").unwrap();
    let procs = std::path::Path::new(point).join(above).join("cgroup.procs");
    std::fs::write(&procs, victim.pid().to_string()).unwrap();
    wait_until("the move to be reported", || holding.text("out").contains("was moved to cgroup"));
    holding.signal(Signal::INT);
    holding.end().ended_with(0);
    victim.is_given_back();
    live.nothing_is_left();
}
