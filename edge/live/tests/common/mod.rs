//! Functions that the tests of a whole session share. Only one test at a time runs live. A test can
//! compare each target process with the state that the process had before the test.

#![allow(dead_code, unreachable_pub)] // Each test program uses only some of these functions.

pub mod turn;
pub mod waiting;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio, exit};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};
use slackline_fence::{KeeperCommand, keeper_main};
use slackline_host::policy::{RawValue, Values, find};
use slackline_linux::WallClock;
use slackline_linux::sys::{
    SchedulingOf, Tid, die_with_us, get_affinity, get_scheduling, online_cpus, process_cpu_time,
};
use slackline_linux::thread::{ThreadRef, threads_of};
use slackline_live::session::{JoinTarget, Options, Request, RequestedId};
use slackline_units::{CpuId, CpuSet, Span};

use turn::Turn;
#[allow(unused_imports)] // Each test program uses only some of these functions.
pub use waiting::{PATIENCE, kill, let_pass, nap, wait_until};

/// Environment variable that tells a child process of a test which role it plays. In the test
/// process itself it is not set.
pub const PART: &str = "SLACKLINE_TEST_PART";

pub fn plays(part: &str) -> bool {
    env::var(PART).is_ok_and(|played| played == part)
}

/// Runs as the keeper process if the variable [`PART`] says so, and otherwise does nothing. The
/// test functions for the keeper consist only of this call.
pub fn play_keeper() {
    if plays("keeper") {
        exit(i32::from(keeper_main() != ExitCode::SUCCESS));
    }
}

pub fn play_target() {
    if plays("threads") {
        for _ in 0..2 {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        println!("@");
        let _ = std::io::stdin().read_line(&mut String::new());
        exit(0);
    }
    if plays("ending") {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ends = std::thread::spawn(move || ended.recv());
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
        println!("@");
        let _ = std::io::stdin().read_line(&mut String::new());
        drop(end);
        let _ = ends.join();
        let _ = std::io::stdin().read_line(&mut String::new());
        exit(0);
    }
    if plays("sleeper") {
        println!("@");
        loop {
            park_timeout(Duration::from_millis(10));
            (0..20_000).for_each(|_| std::hint::spin_loop());
        }
    }
}

/// Returns a command that runs this test program again, in another role. `test` is the path of a
/// test function whose name ends with `entry_point_of_helper_ROLE`.
pub fn again(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    let (_, part) = test.rsplit_once("entry_point_of_helper_").expect("a test with a role");
    command.args(["--exact", test, "--nocapture", "--quiet"]).env(PART, part);
    command
}

/// Returns the command that starts this program as the keeper, with its journal in the folder
/// `state` of the test.
pub fn keeper(state: &Path) -> KeeperCommand {
    let script = format!(
        "exec env {PART}=keeper \"$0\" --exact entry_point_of_helper_keeper --nocapture --quiet"
    );
    let program = env::current_exe().expect("this program");
    KeeperCommand {
        program: "/bin/sh".into(),
        arguments: ["-c".into(), script.into(), program.into()].into(),
        state_directory: state.to_path_buf(),
        keep_for: None,
    }
}

/// Returns the cgroups that Slackline made for a thread, in all mounted hierarchies.
pub fn our_groups(tid: Tid) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("procfs");
    let points = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let points = points.map(|line| line.split(' ').nth(4).expect("a line has more"));
    let lists = points.flat_map(|point| fs::read_dir(point).expect("the hierarchy is mounted"));
    let names = lists.map(|entry| entry.expect("a folder").path());
    let ours = format!("slackline-{tid}-");
    let is_ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&ours))
    };
    names.filter(is_ours).collect()
}

/// Waits until no other live test runs. If no live test can run on this host, prints the reason and
/// returns `None`.
pub fn begin() -> Option<Turn> {
    if !geteuid().is_root() {
        println!("skipped: needs root");
        return None;
    }
    Some(Turn::wait())
}

/// Returns at most `most` CPUs of this host, starting with the last CPU.
pub fn cpus(most: usize) -> Vec<CpuId> {
    let online: Vec<CpuId> = online_cpus().expect("CPUs").iter().collect();
    online.into_iter().rev().take(most).collect()
}

/// Returns the options of a session with the policy `edf`.
pub fn options(cpus: Vec<CpuId>, state: &Path) -> Options {
    let policy = find("edf").expect("a policy");
    let values = Values::defaults(policy.policy_fields).expect("defaults");
    let keeper = keeper(state);
    let (dispatch, origin, wall_clock) = (None, None, Some(WallClock::default()));
    Options { cpus, owned: None, policy, values, keeper, dispatch, origin, wall_clock }
}

/// Returns a share of the policy `edf` with this slice and period, both in microseconds.
pub fn share(slice: u64, period: u64, exact: bool) -> Values {
    let (slice, period) = (format!("{slice}us"), format!("{period}us"));
    let given = [
        ("slice", RawValue::Text(&slice)),
        ("period", RawValue::Text(&period)),
        ("exact", RawValue::Flag(exact)),
    ];
    let policy = find("edf").expect("a policy");
    Values::read(policy.share_fields, given.into_iter()).expect("a share")
}

/// Scheduling state of one thread: everything that a session can change.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub tid: Tid,
    pub scheduling: SchedulingOf,
    pub affinity: CpuSet,
    pub is_stopped: bool,
    pub groups: String,
}

/// A target process of a test, with the state of its threads before the test scheduled it.
pub struct Target {
    pub child: Child,
    before: Vec<State>,
}

impl Target {
    /// Starts a process of one thread that never blocks.
    pub fn spinner() -> Target {
        Target::of_shell("while :; do :; done")
    }

    pub fn of_shell(script: &str) -> Target {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        die_with_us(&mut command);
        Target::new(command.spawn().expect("a shell"))
    }

    /// Starts a process with several threads. The last two threads never block.
    pub fn threaded() -> Target {
        Target::of_part("threads")
    }

    /// Starts a process with one thread that never blocks and one thread that
    /// [`Target::end_a_thread`] ends.
    pub fn ending() -> Target {
        Target::of_part("ending")
    }

    /// Ends the blocked thread of [`Target::ending`].
    pub fn end_a_thread(&mut self) {
        let threads =
            |target: &Target| threads_of(target.pid()).expect("the target is there").len();
        let before = threads(self);
        let stdin = self.child.stdin.as_mut().expect("standard input is piped");
        std::io::Write::write_all(stdin, b"\n").expect("the target reads its input");
        wait_until("a thread to end", || threads(self) < before);
        let left = threads_of(self.pid()).expect("the target is there");
        self.before.retain(|state| left.contains(&state.tid));
    }

    /// Starts a process that wakes a hundred times a second and runs for a moment each time.
    pub fn sleeper() -> Target {
        Target::of_part("sleeper")
    }

    fn of_part(part: &str) -> Target {
        let mut command = again("entry_point_of_helper_scheduled_thread");
        command.env(PART, part).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        die_with_us(&mut command);
        let mut child = command.spawn().expect("this program can be started");
        let mut out = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut line = String::new();
        while !line.contains('@') {
            line.clear();
            assert!(
                out.read_line(&mut line).expect("the target prints a line") > 0,
                "the target prints a line before it ends"
            );
        }
        // Standard output stays open: after a minute the child's test harness prints a warning, and
        // would exit if it could not print.
        child.stdout = Some(out.into_inner());
        Target::new(child)
    }

    fn new(child: Child) -> Target {
        let mut target = Target { child, before: Vec::new() };
        wait_until("the target to run", || !target.used().is_zero());
        target.before = target.state();
        target
    }

    pub fn pid(&self) -> Tid {
        Tid::new(i32::try_from(self.child.id()).expect("a process id")).expect("a process id")
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid().raw(), signal);
    }

    /// Returns the CPU time that all threads of the process have used so far.
    pub fn used(&self) -> Span {
        process_cpu_time(self.pid()).expect("the target is there")
    }

    pub fn state(&self) -> Vec<State> {
        let state = |tid| State {
            tid,
            scheduling: get_scheduling(tid).expect("the target is there"),
            affinity: get_affinity(tid).expect("the target is there"),
            is_stopped: self.file(tid, "stat").contains(") T "),
            groups: self.file(tid, "cgroup"),
        };
        threads_of(self.pid()).expect("the target is there").into_iter().map(state).collect()
    }

    fn file(&self, tid: Tid, name: &str) -> String {
        let path = format!("/proc/{}/task/{tid}/{name}", self.pid());
        fs::read_to_string(path).expect("the target is there")
    }

    /// Returns the kernel's description of the process's state, for messages of failed tests.
    pub fn says(&self) -> String {
        self.file(self.pid(), "status") + &self.file(self.pid(), "stat")
    }

    /// Returns true if one of the process's threads is runnable.
    pub fn waits_for_a_cpu(&self) -> bool {
        let threads = threads_of(self.pid()).expect("the target is there");
        threads.into_iter().any(|tid| self.file(tid, "stat").contains(") R "))
    }

    pub fn is_stopped(&self) -> bool {
        self.state().iter().all(|state| state.is_stopped)
    }

    /// Asserts that the scheduling of every thread is as it was before the test.
    #[track_caller]
    pub fn is_given_back(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.state() != self.before && Instant::now() < deadline {
            nap();
        }
        assert_eq!(self.state(), self.before, "the target is restored: {}", self.says());
    }

    /// Asserts that the process uses CPU time at present.
    #[track_caller]
    pub fn runs(&self) {
        let before = self.used();
        wait_until("the target to run", || self.used() > before);
    }

    /// Asserts that the process is stopped and uses no CPU time.
    #[track_caller]
    pub fn rests(&self) {
        wait_until("the target to stop", || self.is_stopped());
        self.rests_frozen();
    }

    /// Asserts that the threads that never block are frozen. Only the little CPU time that a thread
    /// uses while it is being frozen or stopped is allowed.
    #[track_caller]
    pub fn rests_frozen(&self) {
        let before = self.used();
        let_pass(Duration::from_millis(300));
        let used = self.used() - before;
        assert!(used < Span::from_ms(2), "a stopped target used {used} of CPU time");
    }

    /// Returns a request to schedule the whole process as one vCPU.
    pub fn as_one(&self, share: Values) -> Request {
        request(JoinTarget::Process(self.pid()), share)
    }

    /// Returns each thread that never blocks, as the target of a separate vCPU.
    pub fn by_thread(&self) -> Vec<JoinTarget> {
        let threads = threads_of(self.pid()).expect("the target is there");
        let open = |&tid: &Tid| ThreadRef::open(self.pid(), tid).expect("the target is there");
        threads[threads.len() - 2..].iter().map(open).map(JoinTarget::Thread).collect()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a request that lets a target join under any free id.
pub fn request(who: JoinTarget, share: Values) -> Request {
    let (name, domain) = ("one".into(), "target".into());
    Request { who, name, domain, called: RequestedId::Anything, share, cpus: None }
}
