//! What live tests share: one runs at a time, each leaves the machine as it was, and a process that
//! is scheduled from outside can tell whether it was given back.

#![allow(dead_code, unreachable_pub)] // Each topic uses its own part.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::process::{Pid, Signal, geteuid};
use serde_json::Value;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_affinity, get_scheduling, own_tid, set_affinity,
    set_scheduling, thread_cpu_time,
};
use slackline_linux::thread::threads_of;
use slackline_units::{CpuId, CpuSet, Span};

use super::{Place, Ran};

#[path = "../../../live/tests/common/waiting.rs"]
pub mod waiting;
#[allow(unused_imports)] // Each topic uses its own part.
pub use waiting::{PATIENCE, kill, let_pass, nap, wait_until};

/// Marks every process that a test starts, and all that those start.
pub const TAG: &str = "SLACKLINE_TEST_TAG";
/// Says which part a process plays; unset for the tests themselves.
pub const PART: &str = "SLACKLINE_TEST_PART";

/// What everybody's victim is called where threads of virtual machines are.
const VCPU: &str = "CPU 0/TCG";

/// Somebody joins, is paused, goes on and leaves beside somebody whose share changes. The last
/// change is more than there is, and keeps the share of before.
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

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The right to run live, alone on this machine as far as these tests go.
pub struct Live {
    pub place: Place,
    kernel: Kernel,
    pub tag: String,
    _alone: (MutexGuard<'static, ()>, File),
}

/// Which kernel the program finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    Ours,
    /// One with the system calls of Linux 4.4.
    #[cfg(target_arch = "x86_64")]
    Linux44,
    /// One that tells nobody what threads do.
    #[cfg(target_arch = "x86_64")]
    WithoutPerf,
}

/// The start of a live test; none, and said why, where there can be none.
pub fn begin() -> Option<Live> {
    begin_on(Kernel::Ours)
}

/// As [`begin`], with the program on another kernel.
pub fn begin_on(kernel: Kernel) -> Option<Live> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if !geteuid().is_root() {
        println!("skipped: needs root");
        return None;
    }
    let lock = File::create(env::temp_dir().join("slackline-live-tests.lock")).expect("a lock");
    lock.lock().expect("a lock");
    let place = Place::new();
    // It sleeps a few hundred times to see how timers are, and no test changes what it finds here.
    static SKIPPED: OnceLock<Option<&str>> = OnceLock::new();
    if let Some(why) = SKIPPED.get_or_init(|| what_is_missing(&place)) {
        println!("skipped: {why}");
        return None;
    }
    let started = Instant::now();
    let tag = format!("{}-{started:?}", std::process::id());
    Some(Live { place, kernel, tag, _alone: (alone, lock) })
}

/// What a live run needs and this machine does not have.
fn what_is_missing(place: &Place) -> Option<&'static str> {
    let doctor: Value =
        serde_json::from_str(&place.run(&["doctor", "--json"]).good()).expect("JSON");
    if doctor["can_run_live"] != true {
        return Some("needs a machine that can run live; `slackline doctor` says why not");
    }
    let findings = doctor["findings"].as_array().expect("findings");
    let is_missing = |it: &&Value| it["state"] == "missing";
    let watching = |it: &Value| it["id"] == "perf" || it["id"] == "tracefs";
    let is_blind = findings.iter().filter(is_missing).any(watching);
    is_blind.then_some("needs a kernel that tells what threads do")
}

/// What a vCPU got in a run as it is printed in JSON, in millionths of a CPU.
pub fn delivered(run: &Value, name: &str) -> u64 {
    let vcpus = run["vcpus"].as_array().expect("vCPUs");
    let vcpu = vcpus.iter().find(|vcpu| vcpu["name"] == name).expect("who was asked for");
    vcpu["delivered_ppm"].as_u64().expect("CPU time")
}

impl Live {
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

    /// Starts `slackline run it.toml`, with a process group of its own, as a shell would.
    pub fn start(&self, scenario: &str) -> Runner<'_> {
        self.start_as("it", scenario)
    }

    pub fn start_as(&self, name: &str, scenario: &str) -> Runner<'_> {
        self.place.write(&format!("{name}.toml"), scenario.as_bytes());
        let output = |kind: &str| File::create(self.place.path(&format!("{name}.{kind}")));
        let mut command = self.command(&["run", &format!("{name}.toml")]);
        command.stdout(output("out").expect("a file")).stderr(output("err").expect("a file"));
        let child = command.process_group(0).spawn().expect("the program can be started");
        Runner { live: self, child, name: name.into() }
    }

    /// Starts it with a terminal for all that it says.
    pub fn start_on(&self, terminal: File, scenario: &str) -> Runner<'_> {
        self.place.write("it.toml", scenario.as_bytes());
        let mut command = self.command(&["run", "it.toml"]);
        command.stderr(terminal.try_clone().expect("a terminal")).stdout(terminal);
        let child = command.process_group(0).spawn().expect("the program can be started");
        Runner { live: self, child, name: "it".into() }
    }

    /// Processes that this test has started, or that those have, with their command lines.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let mark = format!("{TAG}={}", self.tag).into_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").expect("procfs").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // One that ends while it is looked at is none.
            let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
            if environment.split(|&byte| byte == 0).any(|word| word == mark) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    /// Those whose command line has this word.
    pub fn processes_of(&self, word: &str) -> Vec<i32> {
        let has = |(_, line): &(i32, String)| line.split(' ').any(|other| other == word);
        self.processes().into_iter().filter(has).map(|(pid, _)| pid).collect()
    }

    /// Nothing that the test has started is left.
    #[track_caller]
    pub fn nothing_is_left(&self) {
        wait_until("every process to end", || self.processes().is_empty());
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Only after a failure is there anybody.
        for (pid, line) in self.processes() {
            println!("ending what is left: {pid} {line}");
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

    /// What a key on a terminal does: everybody in the foreground hears it.
    pub fn signal_group(&self, signal: Signal) {
        let group = Pid::from_raw(self.pid()).expect("a process id");
        rustix::process::kill_process_group(group, signal).expect("the group is there");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("is our child").is_none()
    }

    /// Nothing, if it was said to a terminal.
    fn said(&self, kind: &str) -> String {
        let bytes = fs::read(self.live.place.path(&format!("{}.{kind}", self.name)));
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    /// What came of it, once it has ended.
    #[track_caller]
    pub fn end(mut self) -> Ran {
        wait_until("the run to end", || !self.is_running());
        let code = self.child.wait().expect("is our child").code();
        Ran { code, out: self.said("out"), err: super::without_cost(&self.said("err")) }
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        // Only after a failure is it running. Its keeper then gives back what it held.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a thread is scheduled.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub tid: Tid,
    pub scheduling: SchedulingOf,
    pub affinity: CpuSet,
    pub is_stopped: bool,
    pub groups: String,
}

/// How every thread of a process is scheduled; none if it ends meanwhile.
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

/// A process that was there before: one of its threads never waits, and is named as a vCPU is.
pub struct Victim {
    child: Child,
    pub spinner: Tid,
    before: Vec<State>,
}

/// The body of a test that plays the victim where it is told to, and else does nothing.
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
        // A line ends the worker, and then it goes on until whoever started this is gone.
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
        command.args(["--exact", "part_victim", "--nocapture", "--quiet"]).env(PART, "victim");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program can be started");
        let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        let lines = lines.map_while(Result::ok);
        let said = lines.filter_map(|line| line.rsplit_once('@').map(|(_, tid)| tid.to_owned()));
        // The two may come in any order.
        let said: Vec<String> = said.take(2).collect();
        let spinner = said.iter().find_map(|number| Tid::new(number.parse().ok()?));
        let spinner = spinner.expect("the victim says who spins");
        let mut victim = Victim { child, spinner, before: Vec::new() };
        // Not what threads usually are, so that what is given back is not a guess.
        for (place, tid) in victim.threads().into_iter().enumerate() {
            let class = Scheduling::Other { nice: 3 + i32::try_from(place).expect("a few") };
            set_scheduling(tid, &SchedulingOf { class, reset_on_fork: false }).expect("is ours");
            if tid != spinner {
                set_affinity(tid, &CpuSet::one(CpuId::new(0))).expect("is ours");
            }
        }
        victim.before = victim.state();
        victim
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// One of its threads, which never did anything, ends.
    pub fn end_a_thread(&mut self) {
        let before = self.threads().len();
        self.child.stdin.as_mut().expect("is piped").write_all(b"\n").expect("it listens");
        wait_until("a thread to end", || self.threads().len() < before);
        let left = self.threads();
        self.before.retain(|state| left.contains(&state.tid));
    }

    fn threads(&self) -> Vec<Tid> {
        threads_of(Tid::new(self.pid()).expect("a process id")).expect("the victim is there")
    }

    fn state(&self) -> Vec<State> {
        states(self.pid()).expect("the victim is there")
    }

    /// Whether somebody has taken it over: it is not as it was.
    pub fn is_held(&self) -> bool {
        self.state() != self.before
    }

    /// Every thread is as it was, and the one that spins does spin.
    #[track_caller]
    pub fn is_given_back(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.is_held() && Instant::now() < deadline {
            nap();
        }
        assert_eq!(self.state(), self.before, "the victim was not given back");
        let used = || thread_cpu_time(self.spinner).expect("the victim is there");
        let before = used();
        wait_until("the victim to run", || used() > before + Span::from_ms(1));
        assert_eq!(groups_left(&self.threads()), Vec::<String>::new());
    }

    /// The two ways to hold it: all of it by stopping the process, or one thread in the freezer.
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

/// The freezer's groups of these threads, wherever they are mounted.
pub fn groups_left(threads: &[Tid]) -> Vec<String> {
    let mut left = Vec::new();
    let mut folders = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        // A group that ends while it is looked at has nothing in it.
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
