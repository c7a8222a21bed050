//! Common parts of live tests. One test runs at a time and leaves the host as it was. A
//! process that a run scheduled can itself check whether it was restored.

#![allow(dead_code, unreachable_pub)] // Each topic uses its own part.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid};
use serde_json::Value;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_affinity, get_scheduling, online_cpus, own_tid,
    set_affinity, set_scheduling, thread_cpu_time,
};
use slackline_linux::thread::threads_of;
use slackline_units::{CpuId, CpuSet, Span};

use super::{Place, Ran};

#[path = "../../../live/tests/common/turn.rs"]
mod turn;
#[path = "../../../live/tests/common/waiting.rs"]
pub mod waiting;
use turn::Turn;
#[allow(unused_imports)] // Each topic uses its own part.
pub use waiting::{PATIENCE, kill, let_pass, nap, wait_until};

/// Environment variable that marks every process that a test starts, and all its descendants.
pub const TAG: &str = "SLACKLINE_TEST_TAG";
/// Environment variable with the role of a child process. It is not set in the test process itself.
pub const PART: &str = "SLACKLINE_TEST_PART";

/// Name of the computing thread of a [`Victim`], which looks like the name of a QEMU vCPU thread.
const VCPU: &str = "CPU 0/TCG";

/// Scenario with two VMs. One joins, is paused, resumes and leaves. The other changes its share.
/// The last change of this share exceeds the capacity and is refused, so the old share stays in
/// force.
pub const COMES_AND_GOES: &str = r#"title = "comes and goes"
length = "2s"
policy = { name = "edf" }
[[domain]]
name = "stays"
work = { kind = "spin" }
share.edf = { slice = "2ms", period = "10ms", exact = true }
[[domain]]
name = "guest"
work = { kind = "spin" }
share.edf = { slice = "2ms", period = "10ms", exact = true }
joins = "500ms"
leaves = "1s"
[[change]]
at = "700ms"
domain = "guest"
paused = true
[[change]]
at = "800ms"
domain = "guest"
paused = false
[[change]]
at = "1200ms"
domain = "stays"
share.edf = { slice = "4ms", period = "10ms", exact = true }
[[change]]
at = "1500ms"
domain = "stays"
share.edf = { slice = "11ms", period = "11ms", exact = true }
"#;

/// Permission to run live. Only one test has it at a time.
pub struct Live {
    pub place: Place,
    kernel: Kernel,
    pub tag: String,
    _turn: Turn,
}

/// Simulated kernel on which the program under test runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    Ours,
    /// A kernel that has only the system calls of Linux 4.4.
    #[cfg(target_arch = "x86_64")]
    Linux44,
    /// A kernel without perf events, so that blocking threads are not reported.
    #[cfg(target_arch = "x86_64")]
    WithoutPerf,
}

/// Begins a live test when no other live test runs. Prints the reason and returns `None` if this
/// host cannot run live.
pub fn begin() -> Option<Live> {
    begin_on(Kernel::Ours)
}

/// Begins a live test in which the program under test runs on a simulated kernel.
pub fn begin_on(kernel: Kernel) -> Option<Live> {
    if !geteuid().is_root() {
        println!("skipped: needs root");
        return None;
    }
    let turn = Turn::wait();
    let place = Place::new();
    // `doctor` takes long, because it sleeps a few hundred times to measure timers. No test changes
    // its result, so it runs only once.
    static SKIPPED: OnceLock<Option<&str>> = OnceLock::new();
    if let Some(why) = SKIPPED.get_or_init(|| what_is_missing(&place)) {
        println!("skipped: {why}");
        return None;
    }
    let started = Instant::now();
    let tag = format!("{}-{started:?}", std::process::id());
    Some(Live { place, kernel, tag, _turn: turn })
}

/// Returns what this host lacks for live runs. `None` if it lacks nothing.
fn what_is_missing(place: &Place) -> Option<&'static str> {
    let doctor: Value =
        serde_json::from_str(&place.run(&["doctor", "--json"]).good()).expect("JSON");
    if doctor["can_run_live"] != true {
        return Some("needs a host that can run live; see `slackline doctor`");
    }
    let findings = doctor["findings"].as_array().expect("findings");
    let is_missing = |it: &&Value| it["state"] == "missing";
    let watching = |it: &Value| it["id"] == "perf" || it["id"] == "tracefs";
    let is_blind = findings.iter().filter(is_missing).any(watching);
    is_blind.then_some("needs a kernel that reports scheduling events")
}

/// Returns the CPU time that a vCPU received in a run, in millionths of a CPU.
pub fn delivered(run: &Value, name: &str) -> u64 {
    let vcpus = run["vcpus"].as_array().expect("vCPUs");
    let vcpu = vcpus.iter().find(|vcpu| vcpu["name"] == name).expect("the vCPU exists");
    vcpu["delivered_ppm"].as_u64().expect("CPU time")
}

impl Live {
    /// Returns the number of the host's last CPU.
    pub fn cpu(&self) -> String {
        let last = online_cpus().expect("CPUs").iter().last().expect("a CPU");
        last.index().to_string()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.place.command(arguments);
        command.env(TAG, &self.tag);
        #[cfg(target_arch = "x86_64")]
        match self.kernel {
            Kernel::Ours => {}
            Kernel::Linux44 => slackline_linux::sys::as_on_linux_4_4(&mut command),
            Kernel::WithoutPerf => slackline_linux::sys::without_perf_events(&mut command),
        }
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::new(&self.command(arguments).output().expect("the program can be started"))
    }

    /// Starts `slackline run it.toml` in a new process group, as a shell does.
    pub fn start(&self, scenario: &str) -> Runner<'_> {
        self.start_as("it", scenario)
    }

    pub fn start_as(&self, name: &str, scenario: &str) -> Runner<'_> {
        self.start_with(name, scenario, &[])
    }

    /// Starts `slackline run NAME.toml` with these options.
    pub fn start_with(&self, name: &str, scenario: &str, options: &[&str]) -> Runner<'_> {
        self.place.write(&format!("{name}.toml"), scenario.as_bytes());
        let output = |kind: &str| File::create(self.place.path(&format!("{name}.{kind}")));
        let mut command = self.command(&["run", &format!("{name}.toml")]);
        command.args(options);
        command.stdout(output("out").expect("a file")).stderr(output("err").expect("a file"));
        let child = command.process_group(0).spawn().expect("the program can be started");
        Runner { live: self, child, name: name.into() }
    }

    /// Starts a run whose output goes to the terminal `terminal`.
    pub fn start_on(&self, terminal: File, scenario: &str) -> Runner<'_> {
        self.place.write("it.toml", scenario.as_bytes());
        let mut command = self.command(&["run", "it.toml"]);
        command.stderr(terminal.try_clone().expect("a terminal")).stdout(terminal);
        let child = command.process_group(0).spawn().expect("the program can be started");
        Runner { live: self, child, name: "it".into() }
    }

    /// Returns the id and command line of each process that this test has started, and of their
    /// descendants.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let mark = format!("{TAG}={}", self.tag).into_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").expect("procfs").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A process that has ended meanwhile is left out.
            let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
            if environment.split(|&byte| byte == 0).any(|word| word == mark) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    /// Returns the test's processes whose command line contains this word.
    pub fn processes_of(&self, word: &str) -> Vec<i32> {
        let has = |(_, line): &(i32, String)| line.split(' ').any(|other| other == word);
        self.processes().into_iter().filter(has).map(|(pid, _)| pid).collect()
    }

    /// Asserts that all processes that the test started have ended.
    #[track_caller]
    pub fn nothing_is_left(&self) {
        wait_until("every process to end", || self.processes().is_empty());
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Processes are left only if the test failed.
        for (pid, line) in self.processes() {
            println!("killing a process that the test left: {pid} {line}");
            kill(pid, Signal::KILL);
        }
    }
}

/// A live run in the background.
pub struct Runner<'a> {
    live: &'a Live,
    child: Child,
    name: String,
}

impl Runner<'_> {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Sends a signal to the process group, as a key on a terminal does.
    pub fn signal_group(&self, signal: Signal) {
        let group = Pid::from_raw(self.pid()).expect("a process id");
        rustix::process::kill_process_group(group, signal).expect("the process group exists");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the process is a child of the test").is_none()
    }

    /// Returns an output of the run, `out` or `err`. Empty if the output went to a terminal.
    fn said(&self, kind: &str) -> String {
        let bytes = fs::read(self.live.place.path(&format!("{}.{kind}", self.name)));
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    /// Waits for the end of the run and returns its result.
    #[track_caller]
    pub fn end(mut self) -> Ran {
        wait_until("the run to end", || !self.is_running());
        let code = self.child.wait().expect("the process is a child of the test").code();
        Ran { code, out: self.said("out"), err: super::without_cost(&self.said("err")) }
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        // The run is still running only if the test failed. Its keeper then restores the threads.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The part of a thread's state that scheduling of the thread can change.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub tid: Tid,
    pub scheduling: SchedulingOf,
    pub affinity: CpuSet,
    pub is_stopped: bool,
    pub groups: String,
}

/// Returns the scheduling state of every thread of a process. `None` if the process has ended.
pub fn states(pid: i32) -> Option<Vec<State>> {
    let file = |tid: Tid, name: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}"));
    let state = |tid| {
        Some(State {
            tid,
            scheduling: get_scheduling(tid).ok()?,
            affinity: get_affinity(tid).ok()?,
            is_stopped: file(tid, "stat").ok()?.contains(") T "),
            groups: file(tid, "cgroup").ok()?,
        })
    };
    threads_of(Tid::new(pid)?).ok()?.into_iter().map(state).collect()
}

/// A process that a run schedules. One of its threads always computes, and has the name of a vCPU
/// thread.
pub struct Victim {
    child: Child,
    pub spinner: Tid,
    before: Vec<State>,
}

/// Runs as the [`Victim`], which is the process that a run schedules, if a test has started this
/// program as the victim. Returns at once in other processes.
pub fn play_victim() {
    if env::var(PART).is_ok_and(|part| part == "victim") {
        let spin = || {
            println!("@{}", own_tid());
            loop {
                std::hint::spin_loop();
            }
        };
        std::thread::Builder::new().name(VCPU.into()).spawn(spin).expect("a thread");
        let (worker_ends, worker) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::spawn(move || worker.recv());
        println!("@");
        // The first line on standard input ends the worker thread, and the end of input ends the
        // process.
        let _ = std::io::stdin().read_line(&mut String::new());
        drop(worker_ends);
        let _ = worker.join();
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    }
}

impl Victim {
    pub fn start() -> Victim {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command
            .args(["--exact", "entry_point_of_helper_scheduled_process", "--nocapture", "--quiet"])
            .env(PART, "victim");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program can be started");
        let lines = BufReader::new(child.stdout.take().expect("the stream is a pipe")).lines();
        let lines = lines.map_while(Result::ok);
        let said = lines.filter_map(|line| line.rsplit_once('@').map(|(_, tid)| tid.to_owned()));
        // The two lines may come in any order.
        let said: Vec<String> = said.take(2).collect();
        let spinner = said.iter().find_map(|number| Tid::new(number.parse().ok()?));
        let spinner = spinner.expect("the victim prints the id of its computing thread");
        let mut victim = Victim { child, spinner, before: Vec::new() };
        // The threads get unusual priorities, so that restoring them cannot succeed by chance.
        for (place, tid) in victim.threads().into_iter().enumerate() {
            let class =
                Scheduling::Other { nice: 3 + i32::try_from(place).expect("a small number") };
            set_scheduling(tid, &SchedulingOf { class, reset_on_fork: false })
                .expect("root may do this");
            if tid != spinner {
                set_affinity(tid, &CpuSet::one(CpuId::new(0))).expect("root may do this");
            }
        }
        victim.before = victim.state();
        victim
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Ends the idle thread of the victim. The computing thread continues.
    pub fn end_a_thread(&mut self) {
        let before = self.threads().len();
        self.child
            .stdin
            .as_mut()
            .expect("the stream is a pipe")
            .write_all(b"\n")
            .expect("the victim reads its input");
        wait_until("a thread to end", || self.threads().len() < before);
        let left = self.threads();
        self.before.retain(|state| left.contains(&state.tid));
    }

    fn threads(&self) -> Vec<Tid> {
        threads_of(Tid::new(self.pid()).expect("a process id")).expect("the victim runs")
    }

    fn state(&self) -> Vec<State> {
        states(self.pid()).expect("the victim runs")
    }

    /// Returns true if the scheduling state of the victim's threads differs from their state before
    /// the run.
    pub fn is_held(&self) -> bool {
        self.state() != self.before
    }

    /// Returns true if a run makes the victim's computing thread real-time within 50 ms, as it does
    /// for each timeslice after the run has begun.
    pub fn is_dispatched(&self) -> bool {
        let deadline = Instant::now() + Duration::from_millis(50);
        while Instant::now() < deadline {
            let class = get_scheduling(self.spinner).expect("the victim runs").class;
            if matches!(class, Scheduling::Fifo { .. } | Scheduling::RoundRobin { .. }) {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// Asserts that every thread of the victim is restored, and that its computing thread runs.
    #[track_caller]
    pub fn is_given_back(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.is_held() && Instant::now() < deadline {
            nap();
        }
        assert_eq!(self.state(), self.before, "the victim is restored");
        let used = || thread_cpu_time(self.spinner).expect("the victim runs");
        let before = used();
        wait_until("the victim to run", || used() > before + Span::from_ms(1));
        assert_eq!(groups_left(&self.threads()), Vec::<String>::new());
    }

    /// Returns a scenario that schedules the victim with a hard limit, as a whole or only its vCPU
    /// thread.
    pub fn scenario(&self, threads: &str, length: &str) -> String {
        format!(
            "title = \"victim\"\nlength = \"{length}\"\npolicy = {{ name = \"edf\" }}\n\
             [[domain]]\nname = \"victim\"\nlive = {{ pid = {}, threads = \"{threads}\" }}\n\
             share.edf = {{ slice = \"2ms\", period = \"10ms\", exact = true }}\n\
             [[domain]]\nname = \"other\"\nwork = {{ kind = \"spin\" }}\n\
             share.edf = {{ slice = \"2ms\", period = \"10ms\", exact = true }}\n",
            self.pid()
        )
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        kill(self.pid(), Signal::CONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the freezer cgroups that still exist for these threads, in all mounted hierarchies.
pub fn groups_left(threads: &[Tid]) -> Vec<String> {
    let mut left = Vec::new();
    let mut folders = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        // A group that is removed meanwhile has no entries.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_of = |tid: &Tid| name.starts_with(&format!("slackline-{tid}-"));
            if threads.iter().any(is_of) {
                left.push(entry.path().display().to_string());
            }
            folders.push(entry.path());
        }
    }
    left
}
