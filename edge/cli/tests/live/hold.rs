//! Tests of `slackline hold` as a user types it, and of its effect. Needs root.

use std::fs::File;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::common::budgets::{NoRealTime, SKIPPED};
use crate::common::live::{self, Live, Victim, kill, let_pass, wait_until};
use crate::common::{Place, Ran};
use rustix::process::Signal;
use serde_json::Value;
use slackline_linux::sys::{
    Scheduling, Tid, get_scheduling, monotonic, online_cpus, process_cpu_time,
};

/// Environment variable with the role of a child process.
const BUSY: &str = "SLACKLINE_TEST_BUSY";

/// Runs as a child process with a number of busy threads, if a test has started this program for
/// that purpose. After a while it measures its own CPU use.
#[test]
fn entry_point_of_helper_busy_process() {
    let Some(threads) = std::env::var(BUSY).ok().and_then(|count| count.parse().ok()) else {
        return;
    };
    for _ in 0..threads {
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    let own = Tid::new(i32::try_from(std::process::id()).unwrap()).unwrap();
    let now = || (process_cpu_time(own).unwrap(), monotonic());
    // By then `hold` limits the process.
    let_pass(Duration::from_millis(700));
    let (used, began) = now();
    let_pass(Duration::from_millis(1500));
    let (more, ended) = now();
    println!("busy {} {}", more.left_after(used).ns(), ended.since(began).ns());
    std::process::exit(0);
}

/// Runs as a child process whose threads have names like QEMU's, if a test has started this program
/// for that purpose. Two threads are busy, and one sleeps.
#[test]
fn entry_point_of_helper_qemu_guest() {
    if std::env::var(BUSY).as_deref() != Ok("guest") {
        return;
    }
    let named = |index: u32| std::thread::Builder::new().name(format!("CPU {index}/TCG"));
    for index in [0, 1] {
        let spin = || {
            loop {
                std::hint::spin_loop();
            }
        };
        named(index).spawn(spin).unwrap();
    }
    let sleeper = named(2).spawn(|| {
        loop {
            std::thread::park();
        }
    });
    let _ = sleeper.unwrap().join();
}

/// Starts a process that looks like a guest with three vCPUs, of which the last vCPU sleeps.
/// Returns the process and the ids of the vCPU threads.
pub(crate) fn guest() -> (Ended, Vec<i32>) {
    let mut guest = std::process::Command::new(std::env::current_exe().unwrap());
    guest
        .args(["--exact", "hold::entry_point_of_helper_qemu_guest", "--quiet"])
        .env(BUSY, "guest")
        .stdout(Stdio::null());
    let guest = Ended(guest.spawn().unwrap());
    let named = || slackline_live::vcpus::find(i32::try_from(guest.0.id()).unwrap());
    wait_until("three vCPUs", || named().is_ok_and(|vcpus| vcpus.len() == 3));
    let tids = named().unwrap().iter().map(|vcpu| vcpu.tid).collect();
    (guest, tids)
}

/// A process that is killed when this value is dropped.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A `slackline hold` that runs in the background.
pub(crate) struct Holding<'a> {
    live: &'a Live,
    child: Child,
}

impl<'a> Holding<'a> {
    pub(crate) fn start(live: &'a Live, arguments: &[&str]) -> Holding<'a> {
        let file = |name| Stdio::from(File::create(live.place.path(name)).unwrap());
        let mut command = live.command(arguments);
        let child = command.stdout(file("out")).stderr(file("err")).spawn().unwrap();
        Holding { live, child }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        live::kill(i32::try_from(self.child.id()).unwrap(), signal);
    }

    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8(self.live.place.read(name)).unwrap()
    }

    #[track_caller]
    pub(crate) fn end(mut self) -> Ran {
        wait_until("`slackline hold` to end", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        Ran { code, out: self.text("out"), err: self.text("err") }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn hold_command_limits_process_and_restores_scheduling_when_interrupted() {
    let Some(live) = live::begin() else { return };
    for signal in [Signal::INT, Signal::TERM] {
        let victim = Victim::start();
        let pid = victim.pid().to_string();
        let holding = Holding::start(&live, &["hold", "--pid", &pid, "--cpu", "30%"]);
        wait_until("the victim to be scheduled", || victim.is_held());
        let_pass(Duration::from_millis(1500));
        holding.signal(signal);
        let ran = holding.end().ended_with(0);
        let first = format!(
            "holding process {pid} and all it starts: 3ms in every 10ms (30.00 %), and no more, on \
             CPU "
        );
        assert!(ran.out.starts_with(&first), "{}", ran.out);
        assert_eq!(ran.err, "");
        ran.shows("; Ctrl-C ends it\n")
            .shows(": promised 30.00 %, delivered ")
            .shows("; threads restored\n");
        victim.is_given_back();
        live.nothing_is_left();
    }
}

/// A command can get more than one CPU. Two busy threads of the command then receive more than
/// one CPU, but no more than their reservation. A single thread receives one CPU.
#[test]
fn hold_command_lets_two_threads_use_more_than_one_cpu() {
    let Some(live) = live::begin() else { return };
    if online_cpus().unwrap().iter().count() < 2 {
        println!("skipped: needs two CPUs");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let busy =
        [program, "--exact", "hold::entry_point_of_helper_busy_process", "--nocapture", "--quiet"];
    let hold = ["hold", "--cpu", "1.5", "--"].into_iter().chain(busy).collect::<Vec<_>>();
    // Limits in thousandths of a CPU. Two threads that are not held would receive 2,000.
    for (threads, least, most) in [("2", 1_100, 1_850), ("3", 1_100, 1_850), ("1", 600, 1_010)] {
        let output = live.command(&hold).env(BUSY, threads).output().unwrap();
        let ran = Ran::new(&output).ended_with(0);
        let said =
            "7.5ms in every 10ms (75.00 %) on 2 CPUs at once, together 150.00 %, and no more";
        let ran = ran.says(said);
        let counted = ran.out.lines().find_map(|line| line.split_once("busy ")).unwrap().1;
        let counted: Vec<u64> = counted.split(' ').map(|number| number.parse().unwrap()).collect();
        let thousandths = counted[0] * 1_000 / counted[1];
        assert!((least..=most).contains(&thousandths), "{threads} threads: {thousandths}");
        live.nothing_is_left();
    }
}

#[test]
fn hold_command_on_two_cpus_restores_process_at_end() {
    let Some(live) = live::begin() else { return };
    if online_cpus().unwrap().iter().count() < 2 {
        println!("skipped: needs two CPUs");
        return;
    }
    for signal in [Signal::INT, Signal::KILL] {
        let victim = Victim::start();
        let pid = victim.pid().to_string();
        let holding = Holding::start(&live, &["hold", "--pid", &pid, "--cpu", "1.2"]);
        wait_until("the victim to be scheduled", || victim.is_held());
        let_pass(Duration::from_millis(300));
        holding.signal(signal);
        let ran = holding.end();
        if signal == Signal::INT {
            ran.ended_with(0).shows("6ms in every 10ms (60.00 %) on 2 CPUs at once");
        }
        victim.is_given_back();
        live.nothing_is_left();
    }
}

#[test]
fn hold_command_never_shares_any_cpu_with_another_hold() {
    let Some(live) = live::begin() else { return };
    let online = online_cpus().unwrap();
    let Some((first, last)) = online.iter().next().zip(online.iter().skip(1).last()) else {
        println!("skipped: needs two CPUs");
        return;
    };
    let (narrow, wide) = (Victim::start(), Victim::start());
    let (narrow, wide) = (narrow.pid().to_string(), wide.pid().to_string());
    let both = format!("{},{}", first.index(), last.index());
    let last = last.index().to_string();
    let narrow = ["hold", "--pid", &narrow, "--cpu", "20%", "--cpus", &last];
    let wide = ["hold", "--pid", &wide, "--cpu", "1.5", "--cpus", &both];
    for (one, other) in [(narrow, wide), (wide, narrow)] {
        let holding = Holding::start(&live, &one);
        wait_until("the process to be limited", || holding.text("out").contains("CPU"));
        live.run(&other).ended_with(3).says(&format!("CPU {last}: another slackline, process"));
        holding.signal(Signal::INT);
        holding.end().ended_with(0);
    }
    live.nothing_is_left();
}

/// The progress of a process that is always busy never exceeds its reservation, and agrees with the
/// totals.
#[test]
fn hold_command_prints_delivered_cpu_time_each_second() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let pid = victim.pid().to_string();
    let hold = ["hold", "--pid", &pid, "--slice", "2ms", "--period", "20ms", "--json"];
    let holding = Holding::start(&live, &hold);
    wait_until("three lines", || holding.text("out").lines().count() >= 3);
    holding.signal(Signal::INT);
    let ran = holding.end().ended_with(0);
    let lines: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut before = 0;
    for line in &lines {
        assert_eq!(line["promised_ppm"], 100_000);
        let number = |name: &str| line[name].as_u64().unwrap();
        let (used, passed) = (number("used_ns"), number("passed_ns"));
        assert!(used >= before && passed > used, "{line}");
        assert_eq!(number("delivered_ppm"), used * 1_000_000 / passed);
        // The excess over a tenth allows for late enforcement, and for the time until the process
        // is limited.
        assert!(used <= passed / 8 + 20_000_000, "{line}");
        before = used;
    }
    assert_eq!(lines.last().unwrap()["given_back"], true);
    victim.is_given_back();
    live.nothing_is_left();
}

#[test]
fn hold_command_returns_the_exit_code_of_its_program() {
    let Some(live) = live::begin() else { return };
    for (script, code) in [("exit 0", 0), ("echo said; exit 7", 7), ("kill -KILL $$", 137)] {
        // The command must not end before it is limited.
        let script = format!("sleep 0.5; {script}");
        let ran = live.run(&["hold", "--cpu", "0.2", "--", "sh", "-c", &script]).ended_with(code);
        assert_eq!(ran.out, if script.contains("said") { "said\n" } else { "" });
        ran.says("holding sh and all it starts: 2ms in every 10ms (20.00 %)").says("held for ");
        live.nothing_is_left();
    }
    let hold = ["hold", "--cpu", "20%", "--", "sh", "-c", "while :; do :; done"];
    let holding = Holding::start(&live, &hold);
    wait_until("the command to be limited", || holding.text("err").contains("holding sh"));
    holding.signal(Signal::INT);
    holding.end().ended_with(130).says("; threads restored");
    live.nothing_is_left();
}

#[test]
fn process_is_restored_after_its_hold_command_is_killed() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let pid = victim.pid().to_string();
    let holding = Holding::start(&live, &["hold", "--pid", &pid, "--cpu", "30%"]);
    wait_until("the victim to be scheduled", || victim.is_held());
    let_pass(Duration::from_millis(300));
    holding.signal(Signal::KILL);
    assert_eq!(holding.end().code, None);
    victim.is_given_back();
    live.nothing_is_left();
}

#[test]
fn hold_command_with_vcpus_option_schedules_each_vcpu_thread() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let pid = victim.pid().to_string();
    let hold = ["hold", "--pid", &pid, "--cpu", "0.3", "--vcpus"];
    let holding = Holding::start(&live, &hold);
    wait_until("the victim to be scheduled", || victim.is_held());
    let_pass(Duration::from_millis(300));
    holding.signal(Signal::INT);
    holding.end().ended_with(0).shows(": 3ms in every 10ms (30.00 %), and no more");
    victim.is_given_back();
    live.nothing_is_left();
}

/// Each vCPU receives its reservation, even if the other vCPUs use all of theirs. If `--cpu`
/// reserves a total for all vCPUs of the VM, a vCPU may also use budget that the others leave
/// unused. The output distinguishes a vCPU that blocked from one that lacked CPU time.
#[test]
fn hold_command_reports_cpu_and_blocked_time_per_vcpu() {
    let Some(live) = live::begin() else { return };
    let (guest, tids) = guest();
    let pid = guest.0.id().to_string();
    let hold = ["hold", "--pid", &pid, "--vcpus"];
    let (even, by_use) =
        (["--slice", "2ms", "--period", "10ms", "--json"], ["--cpu", "60%", "--json"]);
    // The upper limits are a fifth of a CPU, or three tenths with the unused budget of the third
    // vCPU. Each has a tolerance for late enforcement and for the start.
    let ways = [(&by_use[..2], 0), (&even[..], 260_000), (&by_use[..], 360_000)];
    let mut busiest = Vec::new();
    for (more, most) in ways {
        let json = more.contains(&"--json");
        let holding = Holding::start(&live, &[&hold[..], more].concat());
        let tid = Tid::new(tids[0]).unwrap();
        let is_real_time =
            || get_scheduling(tid).is_ok_and(|of| !matches!(of.class, Scheduling::Other { .. }));
        wait_until("a vCPU thread to be real-time", is_real_time);
        let_pass(Duration::from_millis(1500));
        holding.signal(Signal::INT);
        let ran = holding.end().ended_with(0);
        if !json {
            let ran = ran.shows(
                " for each of 3 vCPUs, plus CPU time that other vCPUs leave unused, and no more",
            );
            for name in ["vCPU 0", "vCPU 1", "vCPU 2"] {
                assert!(ran.out.contains(&format!("\n  {name}: promised 20.00 %, delivered ")));
            }
            continue;
        }
        let last: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
        let parts = last["parts"].as_array().unwrap();
        let number = |part: &Value, name: &str| part[name].as_u64().unwrap();
        let total: u64 = parts.iter().map(|part| number(part, "used_ns")).sum();
        assert_eq!(number(&last, "used_ns"), total);
        assert_eq!(parts.len(), 3);
        for (part, sleeps) in parts.iter().zip([false, false, true]) {
            assert_eq!(number(part, "promised_ppm"), 200_000);
            let (delivered, asleep) = (number(part, "delivered_ppm"), number(part, "asleep_ppm"));
            // A vCPU receives at least half of its reservation.
            let has_its_share = (100_000..=most).contains(&delivered) && asleep < 100_000;
            assert!(
                if sleeps { delivered < 50_000 && asleep > 800_000 } else { has_its_share },
                "{last}"
            );
        }
        busiest.extend(parts.iter().map(|part| number(part, "delivered_ppm")).max());
    }
    // A busy vCPU used budget that the blocked vCPU left unused: more than a third of the limit.
    assert!(busiest[1] > busiest[0].max(200_000), "{busiest:?}");
    drop(guest);
    live.nothing_is_left();
}

/// The test creates cgroups like libvirt's: each vCPU is in a cgroup without real-time budget. A
/// vCPU is real-time also while it uses borrowed time, so Slackline must give the cgroup a budget
/// for borrowed time too. A thread whose cgroup exhausts its budget would be stopped until the end
/// of a second.
#[test]
fn vcpu_cgroup_real_time_budget_covers_own_and_borrowed_time() {
    let Some(live) = live::begin() else { return };
    let Some(group) = NoRealTime::make() else {
        println!("{SKIPPED}");
        return;
    };
    let inner = [0, 1, 2].map(|number| group.inner(&format!("vcpu{number}")));
    let (guest, tids) = guest();
    for (group, tid) in inner.iter().zip(&tids) {
        std::fs::write(group.0.join("tasks"), tid.to_string()).unwrap();
    }
    let budgets = || inner.each_ref().map(NoRealTime::budget);
    assert_eq!(budgets(), [0; 3]);
    let pid = guest.0.id().to_string();
    let even = ["--slice", "1ms", "--period", "10ms"];
    // The budget of each cgroup is a tenth of a second, or three tenths if a vCPU may borrow from
    // its siblings. A slice of 1 ms or 3 ms is added, and a margin of 10 ms.
    for (amount, us) in [(&even[..], 111_000), (&["--cpu", "30%"], 313_000)] {
        let hold = [&["hold", "--pid", &pid, "--vcpus"], amount].concat();
        let holding = Holding::start(&live, &hold);
        wait_until("all cgroups to have a budget", || budgets().iter().all(|&budget| budget > 0));
        wait_until("the budgets to be large enough", || budgets() == [us; 3]);
        holding.signal(Signal::INT);
        holding.end().ended_with(0);
        wait_until("the budgets to be restored", || budgets() == [0; 3]);
    }
    drop(guest);
    drop(inner);
    live.nothing_is_left();
}

/// The line that is overwritten with progress must fit the terminal. Otherwise the terminal would
/// show a new line each second.
#[test]
fn progress_line_of_hold_fits_a_terminal_of_40_columns() {
    let Some(live) = live::begin() else { return };
    let hold = ["hold", "--cpu", "20%", "--", "sh", "-c", "sleep 2.5"];
    let (end, text) = crate::common::on_terminal(live.command(&hold), 40);
    assert!(end.success(), "{text}");
    assert!(text.contains("\r\x1b[K1 s  ") && text.contains(" of 20.00 %, now "), "{text}");
    for line in text.split(['\r', '\n']) {
        crate::common::is_narrow(line.trim_start_matches("\x1b[K"));
    }
    live.place.write("it.toml", crate::common::GOOD.as_bytes());
    for arguments in [&["run", "it.toml"][..], &["compare", "it.toml", "--live"]] {
        // The claim of the scenario is about the simulated host.
        let (_, text) = crate::common::on_terminal(live.command(arguments), 40);
        assert!(text.contains("delivered"), "{text}");
        crate::common::is_narrow(&text);
    }
    live.nothing_is_left();
}

#[test]
fn hold_command_refuses_invalid_target_or_amount_with_hint() {
    let Some(live) = live::begin() else { return };
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let gone = gone.id().to_string();
    let victim = Victim::start();
    let pid = victim.pid().to_string();
    for (arguments, code, says) in [
        (&["--pid", &gone, "--cpu", "30%"][..], 3, format!("there is no process {gone}")),
        (
            &["--pid", "1", "--cpu", "30%"],
            3,
            "cannot schedule process 1: the host depends on it".into(),
        ),
        (&["--pid", &pid], 2, "no amount of CPU time is given".into()),
        (&["--pid", &pid, "--cpu", "99%"], 2, "of at most 0.95cpu is already reserved".into()),
        (
            &["--pid", &pid, "--cpu", "1.5", "--cpus", "0"],
            2,
            "cannot reserve 150.00 % of a CPU: the chosen CPUs can have at most 100.00 %".into(),
        ),
        (&["--pid", &pid, "--slice", "20ms", "--period", "10ms"], 2, "20ms".into()),
        (&["--unit", "no-such.service", "--cpu", "30%"], 3, "no-such.service".into()),
        (&["--cpu", "30%", "--", "no-such-program"], 2, "cannot start `no-such-program`".into()),
    ] {
        let hold: Vec<&str> = ["hold"].iter().chain(arguments).copied().collect();
        live.run(&hold).refused(code).says(&says);
        assert!(!victim.is_held(), "{arguments:?}");
    }
    // In these cases the command line itself is not valid.
    for arguments in [
        &["hold", "--cpu", "30%"][..],
        &["hold", "--pid", &pid, "--unit", "a.service", "--cpu", "30%"],
        &["hold", "--pid", &pid, "--cpu", "0"],
        &["hold", "--pid", &pid, "--cpu", "much"],
    ] {
        live.run(arguments).ended_with(2).says("error: ");
    }
    live.nothing_is_left();
}

#[test]
fn hold_command_without_root_prints_one_error() {
    let place = Place::new();
    let arguments = ["hold", "--cpu", "30%", "--", "sleep", "100"];
    let Some(mut command) = place.command_of_nobody(&arguments) else { return };
    let ran = Ran::new(&command.output().unwrap()).refused(3);
    ran.says("cannot use real-time scheduling").says("hint:  run as root");
}

/// A version 1 cpuset that allows only the first CPU.
struct Cpuset(std::path::PathBuf, i32);

impl Cpuset {
    fn with(pid: i32) -> Option<Cpuset> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let is_it = |line: &&str| line.contains(" - cgroup ") && line.ends_with("cpuset");
        let point = mounts.lines().find(is_it)?.split(' ').nth(4)?;
        let folder = std::path::PathBuf::from(point).join(format!("test-{pid}"));
        std::fs::create_dir(&folder).ok()?;
        let cpuset = Cpuset(folder, pid);
        for (file, text) in [("cpuset.mems", "0"), ("cpuset.cpus", "0"), ("tasks", "")] {
            let text = if text.is_empty() { pid.to_string() } else { text.to_owned() };
            std::fs::write(cpuset.0.join(file), text).ok()?;
        }
        Some(cpuset)
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        // The process still runs only if the test failed.
        kill(self.1, Signal::KILL);
        wait_until("the cpuset to be empty", || std::fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn hold_command_never_uses_cpus_outside_cpuset_of_process() {
    let Some(live) = live::begin() else { return };
    let mut child = std::process::Command::new("sh");
    let child = Ended(child.args(["-c", "while :; do :; done"]).spawn().unwrap());
    let pid = i32::try_from(child.0.id()).unwrap();
    let online = online_cpus().unwrap();
    let (Some(cpuset), Some(last)) = (Cpuset::with(pid), online.iter().skip(1).last()) else {
        println!("skipped: needs two CPUs and the controller cpuset of version 1");
        return;
    };
    let number = pid.to_string();
    let (last, folder) = (last.index().to_string(), cpuset.0.display().to_string());
    let hold =
        |more: &[&str]| live.run(&[&["hold", "--pid", &number, "--cpu", "20%"], more].concat());
    hold(&["--cpus", &last]).ended_with(3).says("only on CPU 0").says(&folder).says("--cpus 0");
    let holding = Holding::start(&live, &["hold", "--pid", &number, "--cpu", "20%"]);
    wait_until("the process to be limited", || holding.text("out").contains("on CPU 0"));
    holding.signal(Signal::INT);
    holding.end().ended_with(0);
    drop(child);
    drop(cpuset);
    live.nothing_is_left();
}

#[test]
fn hold_command_refuses_cpu_outside_cpuset_of_child_process() {
    use std::io::BufRead;
    let Some(live) = live::begin() else { return };
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "(while :; do :; done) & echo $!; wait"]).stdout(Stdio::piped());
    let mut shell = Ended(shell.spawn().unwrap());
    let said = std::io::BufReader::new(shell.0.stdout.take().unwrap()).lines().next();
    let child = said.unwrap().unwrap().parse().unwrap();
    let (Some(cpuset), Some(last)) =
        (Cpuset::with(child), online_cpus().unwrap().iter().skip(1).last())
    else {
        let _ = std::process::Command::new("kill").args(["-9", &child.to_string()]).status();
        println!("skipped: needs two CPUs and the controller cpuset of version 1");
        return;
    };
    let (number, last) = (shell.0.id().to_string(), last.index().to_string());
    let hold = ["hold", "--pid", &number, "--cpu", "20%", "--cpus", &last];
    live.run(&hold).ended_with(3).says("only on CPU 0").says(&cpuset.0.display().to_string());
    drop(cpuset);
    drop(shell);
    live.nothing_is_left();
}

/// Runs as a child process whose vCPU thread ends and is replaced by another thread of the same
/// name, if a test has started this program for that purpose.
#[test]
fn entry_point_of_helper_guest_that_replaces_a_vcpu() {
    if std::env::var(BUSY).as_deref() != Ok("replacing") {
        return;
    }
    let vcpu = |index: u32, lasts: Duration| {
        let named = std::thread::Builder::new().name(format!("CPU {index}/TCG"));
        named.spawn(move || std::thread::sleep(lasts)).unwrap()
    };
    let lasting = vcpu(0, Duration::from_secs(60));
    vcpu(1, Duration::from_secs(5)).join().unwrap();
    vcpu(1, Duration::from_secs(60));
    let _ = lasting.join();
}

#[test]
fn hold_command_reports_a_vcpu_thread_that_replaced_another() {
    let Some(live) = live::begin() else { return };
    let mut guest = std::process::Command::new(std::env::current_exe().unwrap());
    guest
        .args(["--exact", "hold::entry_point_of_helper_guest_that_replaces_a_vcpu", "--quiet"])
        .env(BUSY, "replacing")
        .stdout(Stdio::null());
    let guest = Ended(guest.spawn().unwrap());
    let pid = i32::try_from(guest.0.id()).unwrap();
    let named = || slackline_live::vcpus::find(pid).is_ok_and(|vcpus| vcpus.len() == 2);
    wait_until("two vCPUs", named);
    let pid = pid.to_string();
    let hold = ["hold", "--pid", &pid, "--vcpus", "--cpu", "0.2", "--json"];
    let holding = Holding::start(&live, &hold);
    let count = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        line["vcpus_not_scheduled"].as_u64()
    };
    let counts = || holding.text("out").lines().filter_map(count).collect::<Vec<_>>();
    wait_until("the new thread is counted", || counts().last() == Some(&1));
    holding.signal(Signal::INT);
    holding.end().ended_with(0);
}
