//! Live runs that go wrong, or that others get in the way of. Needs root.
//!
//! What is asserted holds on any machine, however busy: who is refused and why, that everything is
//! given back, that nobody gets more than it may.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::budgets::{NoRealTime, SKIPPED};
use crate::common::live::{self, Live, Victim, delivered, let_pass, wait_until};
use crate::common::{GOOD, Ran};
use rustix::process::Signal;
use serde_json::Value;
use slackline_linux::sys::{Tid, online_cpus, set_affinity};
use slackline_units::CpuSet;

/// A scenario of one domain that is something else than a load process.
fn one(live: &str) -> String {
    format!(
        "title = \"one\"\nlength = \"1s\"\npolicy = {{ name = \"edf\" }}\n[[domain]]\n\
         name = \"it\"\nlive = {{ {live} }}\n\
         share.edf = {{ slice = \"2ms\", period = \"10ms\", exact = true }}\n"
    )
}

fn run_one(live: &Live, target: &str) -> Ran {
    live.place.write("it.toml", one(target).as_bytes());
    live.run(&["run", "it.toml"])
}

#[test]
fn a_process_that_is_gone_is_refused() {
    let Some(live) = live::begin() else { return };
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let pid = child.id();
    let ran = run_one(&live, &format!("pid = {pid}")).refused(3);
    ran.says(&format!("`it`: process {pid} has no thread {pid}")).says("whether it still runs");
    live.nothing_is_left();
}

#[test]
fn what_the_machine_lives_on_is_refused() {
    let Some(live) = live::begin() else { return };
    for threads in ["process", "vcpus"] {
        run_one(&live, &format!("pid = 1, threads = \"{threads}\"")).ended_with(3).says("`it`: ");
    }
    run_one(&live, "pid = 1").refused(3).says("cannot schedule process 1: the host depends on it");
    // The kernel's threads are children of number 2, unless a container hides them.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        run_one(&live, "pid = 2")
            .refused(3)
            .says("cannot schedule 2: it is a thread of the kernel");
    } else {
        println!("skipped: needs the kernel's threads in sight");
    }
    live.nothing_is_left();
}

#[test]
fn the_runner_itself_is_refused() {
    let Some(live) = live::begin() else { return };
    live.place.write("it.toml", one("pid = OURSELVES").as_bytes());
    let script = "sed -i s/OURSELVES/$$/ it.toml && exec \"$0\" run it.toml";
    let mut command = live.command(&[]);
    command = {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, crate::common::PROGRAM]).current_dir(live.place.folder.path());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
    };
    let ran = Ran::new(&command.output().unwrap()).refused(3);
    ran.says("it belongs to Slackline");
    live.nothing_is_left();
}

#[test]
fn a_program_that_cannot_be_started_is_refused() {
    let Some(live) = live::begin() else { return };
    let ran = run_one(&live, "command = [\"slackline-has-no-such-program\"]").refused(3);
    ran.says("cannot start `slackline-has-no-such-program`: No such file").says("install it");
    live.nothing_is_left();
}

/// It ends at once or a moment after it was taken over; either way one learns how.
#[test]
fn a_program_that_ends_at_once_is_told_with_its_exit_code() {
    let Some(live) = live::begin() else { return };
    for _ in 0..5 {
        let ran = run_one(&live, "command = [\"sh\", \"-c\", \"exit 42\"]");
        match ran.code {
            Some(0) => drop(ran.shows("note: `it` ended by itself").shows("exit code 42")),
            _ => drop(ran.refused(3).says("`it` ended at once (exit code 42")),
        }
    }
    live.nothing_is_left();
}

#[test]
fn a_program_that_ends_in_the_middle_is_noted_and_the_run_goes_on() {
    let Some(live) = live::begin() else { return };
    let more = "[[domain]]\nname = \"other\"\nwork = { kind = \"spin\" }\n\
                share.edf = { slice = \"1ms\", period = \"10ms\", exact = true }\n";
    let text = one("command = [\"sh\", \"-c\", \"sleep 0.6; exit 7\"]") + more;
    live.place.write("it.toml", text.as_bytes());
    let ran = live.run(&["run", "it.toml"]).ended_with(0);
    ran.shows("note: `it` ended by itself at ").shows("exit code 7").shows("other");
    live.nothing_is_left();
}

#[test]
fn a_load_process_that_is_killed_is_noted_and_the_run_goes_on() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let runner = live.start(&victim.scenario("process", "1500ms"));
    wait_until("the load process", || !live.processes_of("load").is_empty());
    wait_until("the victim to be held", || victim.is_held());
    let_pass(Duration::from_millis(200));
    live.processes_of("load").into_iter().for_each(|pid| live::kill(pid, Signal::KILL));
    runner.end().ended_with(0).shows("note: `other` ended by itself at ").shows("signal 9");
    victim.is_given_back();
    live.nothing_is_left();
}

#[test]
fn a_victim_that_ends_in_the_middle_is_noted() {
    let Some(live) = live::begin() else { return };
    for threads in ["process", "vcpus"] {
        let victim = Victim::start();
        let runner = live.start(&victim.scenario(threads, "1500ms"));
        wait_until("the victim to be held", || victim.is_held());
        drop(victim);
        runner.end().ended_with(0).shows("note: `victim` ended by itself at ");
        live.nothing_is_left();
    }
}

/// Threads come and go; those that are there still are scheduled, and given back.
#[test]
fn a_victim_that_loses_a_thread_is_held_on() {
    let Some(live) = live::begin() else { return };
    let mut victim = Victim::start();
    let runner = live.start(&victim.scenario("process", "1500ms"));
    wait_until("the victim to be held", || victim.is_held());
    let_pass(Duration::from_millis(300));
    victim.end_a_thread();
    let_pass(Duration::from_millis(300));
    assert!(victim.is_held());
    let ran = runner.end().ended_with(0);
    assert!(!ran.out.contains("note: "), "{}", ran.out);
    victim.is_given_back();
    live.nothing_is_left();
}

#[test]
fn a_virtual_machine_that_is_killed_in_the_middle_is_noted() {
    let Some(live) = live::begin() else { return };
    let qemu = "qemu-system-x86_64";
    if !Command::new(qemu).arg("--version").output().is_ok_and(|ran| ran.status.success()) {
        println!("skipped: needs {qemu}");
        return;
    }
    let words = "-S -nodefaults -no-user-config -display none -accel tcg -smp 1 -m 32";
    let words: Vec<String> = words.split(' ').map(|word| format!("{word:?}")).collect();
    let target = format!(
        "command = [{qemu:?}, {}, \"-name\", \"it,debug-threads=on\"], threads = \"vcpus\"",
        words.join(", ")
    );
    let runner = live.start(&one(&target).replace("length = \"1s\"", "length = \"3s\""));
    let found = || live.processes_of(qemu);
    wait_until("the virtual machine", || !found().is_empty());
    let_pass(Duration::from_millis(1200));
    found().into_iter().for_each(|pid| live::kill(pid, Signal::KILL));
    let ran = runner.end();
    if ran.code == Some(3) {
        // On a machine so busy that it had not been taken over yet.
        ran.refused(3).says("`it` ended at once");
    } else {
        ran.ended_with(0).shows("note: `it` ended by itself at ").shows("signal 9");
    }
    live.nothing_is_left();
}

#[test]
fn without_privilege_nothing_is_touched() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    live.place.write("it.toml", victim.scenario("process", "1s").as_bytes());
    live.place.write("good.toml", GOOD.as_bytes());
    let as_nobody = |arguments: &[&str]| {
        let mut command = live.place.command_of_nobody(arguments).expect("we are root here");
        Ran::new(&command.output().expect("nobody can start it"))
    };
    let ran = as_nobody(&["run", "it.toml"]).refused(3);
    ran.says("cannot use real-time scheduling: ").says("run as root");
    as_nobody(&["compare", "good.toml", "--live"]).refused(3);
    let ran = as_nobody(&["compare", "good.toml", "--live-if-possible"]).ended_with(0);
    ran.says("error: cannot use real-time scheduling").says("only simulated runs").shows("gold");
    as_nobody(&["doctor"]).ended_with(0);
    assert!(!victim.is_held());
    live.nothing_is_left();
}

#[test]
fn where_the_cgroup_has_no_real_time_that_is_said() {
    let Some(live) = live::begin() else { return };
    let Some(group) = NoRealTime::make() else {
        println!("{SKIPPED}");
        return;
    };
    let victim = Victim::start();
    live.place.write("it.toml", victim.scenario("process", "1s").as_bytes());
    // The runner in such a group: a shell goes there first and becomes the runner.
    let script = format!("echo $$ > {}/cgroup.procs && exec \"$0\" run it.toml", group.0.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, crate::common::PROGRAM]).current_dir(live.place.folder.path());
    let ran = Ran::new(&shell.output().unwrap()).refused(3);
    ran.says("cannot use real-time scheduling: ").says("this cgroup");
    assert!(!victim.is_held());
    live.nothing_is_left();
}

/// As libvirt has it: a group for each vCPU in one for the domain, none of which may be real-time.
#[test]
fn a_group_without_real_time_has_what_is_promised_as_long_as_it_is_held() {
    let Some(live) = live::begin() else { return };
    let Some(group) = NoRealTime::make() else {
        println!("{SKIPPED}");
        return;
    };
    let inner = group.0.join("vcpu0");
    fs::create_dir(&inner).unwrap();
    let victim = Victim::start();
    let number = victim.pid().to_string();
    fs::write(inner.join("cgroup.procs"), &number).unwrap();
    let budgets = || {
        [&group.0, &inner].map(|group| {
            let text = fs::read_to_string(group.join("cpu.rt_runtime_us")).unwrap();
            text.trim().parse::<u64>().unwrap()
        })
    };
    assert_eq!(budgets(), [0, 0]);
    for (threads, killed) in [("process", false), ("vcpus", false), ("vcpus", true)] {
        let length = if killed { "60s" } else { "1s" };
        let runner = live.start(&victim.scenario(threads, length));
        wait_until("the group to have a budget", || budgets().iter().all(|&us| us > 200_000));
        if killed {
            runner.signal(Signal::KILL);
            assert_eq!(runner.end().code, None);
        } else {
            runner.end().ended_with(0).shows("victim");
        }
        wait_until("the budgets to be given back", || budgets() == [0, 0]);
        live.nothing_is_left();
    }
    // More than there is to be had: said with both numbers, and nothing is changed.
    let beside = group.0.with_file_name(format!("beside-{number}"));
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("cpu.rt_runtime_us"), "900000").unwrap();
    live.place.write("it.toml", victim.scenario("process", "1s").as_bytes());
    let ran = live.run(&["run", "it.toml"]);
    fs::remove_dir(&beside).unwrap();
    let ran = ran.refused(3);
    ran.says(" a real-time budget of ").says(" us per period: ");
    assert_eq!(budgets(), [0, 0]);
    fs::write(group.0.parent().unwrap().join("cgroup.procs"), &number).unwrap();
    victim.is_given_back();
    fs::remove_dir(&inner).unwrap();
    live.nothing_is_left();
}

#[test]
fn two_runs_cannot_hold_one_process() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let scenario = victim.scenario("process", "3s");
    let first = live.start(&scenario);
    wait_until("the victim to be held", || victim.is_held());
    live.place.write("second.toml", scenario.as_bytes());
    let says = format!("another slackline, process {}, does already", first.pid());
    live.run(&["run", "second.toml"]).refused(3).says(&says).says("--cpus");
    if online_cpus().unwrap().iter().count() > 1 {
        let says = format!("process {} holds it", first.pid());
        let second = live.run(&["run", "second.toml", "--cpus", "0"]).refused(3);
        second.says("`victim`: cannot hold thread ").says(&says).says("wait for that run");
    }
    first.end().ended_with(0);
    victim.is_given_back();
    live.nothing_is_left();
}

/// Alone on a CPU, one that may have 20 % gets no more if it is exact, and what is left if not.
#[test]
fn exact_is_a_limit_and_work_conserving_is_not() {
    let Some(live) = live::begin() else { return };
    let share = |exact: bool| {
        let text = format!(
            "title = \"alone\"\nlength = \"2s\"\npolicy = {{ name = \"edf\" }}\n[[domain]]\n\
             name = \"it\"\nwork = {{ kind = \"spin\" }}\n\
             share.edf = {{ slice = \"4ms\", period = \"20ms\", exact = {exact} }}\n"
        );
        live.place.write("it.toml", text.as_bytes());
        let out = live.run(&["run", "it.toml", "--json"]).good();
        let whole: Value = serde_json::from_str(&out).unwrap();
        delivered(&whole["runs"][0], "it")
    };
    let (exact, conserving) = (share(true), share(false));
    // Each of the 100 periods can begin with what a late dispatcher let it overrun, but the debt is
    // charged to the next; so all that can be too much is one overrun, of at most 5 % of the run.
    assert!(exact <= 250_000, "exact and yet {exact} ppm");
    // Beside others that are not real-time it shares what is left with them. What it was promised
    // comes first, but a machine below this one can take the CPU away: at least half of it is left.
    assert!(exact >= 100_000 && conserving >= 100_000, "{exact} and {conserving} ppm of 200000");
    assert!(conserving > exact, "work-conserving gets no more: {conserving} ppm, exact {exact}");
    live.nothing_is_left();
}

/// A process that wakes for the start of the run, between being held and being heard,
/// is held to its share from the start. It was not noticed for 20 ms once, and ran as it liked; a
/// machine below this one may make a run look like that, but not one after the other.
#[test]
fn exact_is_a_limit_from_the_start() {
    let Some(live) = live::begin() else { return };
    let text = "title = \"start\"\nlength = \"400ms\"\npolicy = { name = \"edf\" }\n[[domain]]\n\
                name = \"it\"\nwork = { kind = \"spin\" }\n\
                share.edf = { slice = \"100us\", period = \"10ms\", exact = true }\n";
    live.place.write("it.toml", text.as_bytes());
    // On the CPU that is scheduled, so that the process is alone on another: nothing is heard of
    // one that never makes way.
    let mut hog = live.command(&["load", "spin"]).stdout(Stdio::null()).spawn().expect("a load");
    let hog_id = Tid::new(i32::try_from(hog.id()).unwrap()).unwrap();
    let last = online_cpus().unwrap().iter().last().expect("a CPU");
    set_affinity(hog_id, &CpuSet::one(last)).unwrap();
    let runs = (0..5).map(|_| {
        let out = live.run(&["run", "it.toml", "--json"]).good();
        let whole: Value = serde_json::from_str(&out).unwrap();
        delivered(&whole["runs"][0], "it")
    });
    // 4 ms are its share. Unnoticed it has at least 17.
    let best = runs.min().expect("five runs");
    hog.kill().unwrap();
    hog.wait().unwrap();
    assert!(best <= 30_000, "never less than {best} ppm of 10000");
    live.nothing_is_left();
}

#[test]
fn who_joins_late_leaves_early_or_changes_is_followed() {
    let Some(live) = live::begin() else { return };
    let runner = live.start(live::COMES_AND_GOES);
    wait_until("the guest to be gone", || {
        let is_guests = |line: &str| line.contains("--who 1.0");
        let_pass(Duration::from_millis(1300));
        !live.processes().iter().any(|(_, line)| is_guests(line))
    });
    let ran = runner.end().ended_with(0);
    let ran = ran.shows("note: refused at 1500.000ms: `stays`: ").shows("guest");
    assert_eq!(ran.out.matches("note: ").count(), 1, "{}", ran.out);
    live.nothing_is_left();
}
