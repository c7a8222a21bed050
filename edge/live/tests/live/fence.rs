//! Tests that every thread is restored, no matter which process is killed at which time. The tests
//! really stop, freeze and pin threads, make them real-time, and kill fence owners, all as root.
//!
//! The owner and the keeper of a fence must be processes other than the test, because the test
//! kills them. Both are copies of this test program, in the role that the environment names.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio, exit};
use std::thread::{park_timeout, spawn};
use std::time::{Duration, Instant};

use crate::common::{again, begin, keeper, kill, our_groups, plays, wait_until};
use rustix::process::{Pid, Signal, getpid, kill_process};
use slackline_fence::{Fence, FenceError, GivenBack, HeldThread, give_back, leftovers};
use slackline_linux::cgroup::{CgroupError, Controller, Place};
use slackline_linux::step::freezer::{Freezer, clear};
use slackline_linux::step::{ActError, FifoPriority, Hold};
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_affinity, get_scheduling, own_tid, set_scheduling,
    thread_cpu_time,
};
use slackline_linux::thread::{TaskFd, ThreadRef};
use slackline_units::{CpuId, CpuSet, Span};
use tempfile::TempDir;

/// Environment variable that tells the owner (the process that controls the target) its target:
/// process id, thread id and means of stopping the target.
const TARGET: &str = "SLACKLINE_TEST_TARGET";
/// Environment variable that tells the process that owns the fence the folder of its journal.
const STATE: &str = "SLACKLINE_TEST_STATE";
/// Environment variable with the number of a step, for the process that owns the fence. After this
/// step the process kills itself. If there is no step with this number, the process repeats all
/// steps. If the variable is not set, the process stops the target and waits for commands.
const LAST_STEP: &str = "SLACKLINE_TEST_LAST_STEP";

const NICE: i32 = 5;

// Roles of child processes.

/// Entry point of a target process with two threads, which a test starts from this program. The
/// second thread never blocks and prints its id. Does nothing if the test harness runs it as a
/// test.
#[test]
fn entry_point_of_helper_scheduled_thread() {
    if plays("scheduled_thread") {
        spawn(|| {
            println!("@{}", own_tid());
            loop {
                std::hint::spin_loop();
            }
        });
        // Wait until the test that started this process has ended.
        let _ = std::io::stdin().read_line(&mut String::new());
        exit(0);
    }
}

#[test]
fn entry_point_of_helper_scheduler() {
    if !plays("scheduler") {
        return;
    }
    // Become real-time. Otherwise the real-time threads that this process schedules starve it.
    let class = Scheduling::Fifo { priority: FifoPriority::DISPATCHER.number().into() };
    set_scheduling(own_tid(), &SchedulingOf { class, reset_on_fork: true }).unwrap();
    let mut fence = Fence::start(keeper(Path::new(&env::var(STATE).unwrap()))).unwrap();
    let _first = take_hold(&mut fence);
    println!("@{}", fence.keeper_id());
    while env::var(LAST_STEP).is_ok() {
        take_hold(&mut fence);
    }
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "revive" => {
                fence.revive().unwrap();
                println!("@{}", fence.keeper_id());
            }
            "return" => return,
            "exit" => exit(0),
            "panic" => panic!("as the test commanded"),
            other => panic!("unknown command `{other}`"),
        }
    }
}

/// Registers the target with the fence, and then raises, pins, stops, resumes and restores it in
/// steps, up to the requested step.
fn take_hold(fence: &mut Fence) -> HeldThread {
    let target = env::var(TARGET).unwrap();
    let (id, way) = target.rsplit_once(' ').unwrap();
    let (pid, tid) = id.split_once(' ').unwrap();
    let thread = ThreadRef::open(tid_of(pid), tid_of(tid)).unwrap();
    let last: Option<usize> = env::var(LAST_STEP).ok().map(|step| step.parse().unwrap());
    let step = |number| {
        if last == Some(number) {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    };
    step(0);
    let held = fence.hold(&thread, if way == "thread" { Hold::Thread } else { Hold::Process });
    let held = held.unwrap();
    step(1);
    held.raise(FifoPriority::CHOSEN).unwrap();
    step(2);
    held.pin(CpuId::new(0)).unwrap();
    step(3);
    held.hold_back().unwrap();
    if last.is_none() {
        return held;
    }
    step(4);
    held.let_go().unwrap();
    step(5);
    held.hold_back().unwrap();
    step(6);
    held.lower().unwrap();
    step(7);
    held.unpin().unwrap();
    step(8);
    fence.release(thread.tid()).unwrap();
    step(LAST_STEP_NUMBER);
    held
}

/// Number of the last step of the process that owns the fence.
const LAST_STEP_NUMBER: usize = 9;
/// Step number that does not exist, so the process that owns the fence does not kill itself. It
/// repeats all steps until the test kills it.
const NO_STEP: usize = 10;

// Helpers of the tests.

fn tid_of(text: &str) -> Tid {
    Tid::new(text.trim().parse().unwrap()).unwrap()
}

/// A process with its standard input and output. The process is killed when this value is dropped.
struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &mut Command) -> Process {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the process can be started");
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Process { child, to, from: BufReader::new(from) }
    }

    fn tid(&self) -> Tid {
        tid_of(&self.child.id().to_string())
    }

    /// Returns the number on the next output line that has an `@`. Lines without `@` come from the
    /// test harness.
    fn says(&mut self) -> Tid {
        loop {
            let mut line = String::new();
            let length = self.from.read_line(&mut line).unwrap();
            assert_ne!(length, 0, "the process prints a line before it ends");
            if let Some((_, number)) = line.split_once('@') {
                return tid_of(number);
            }
        }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A thread that the owner of a fence controls, and the thread's state before any change.
struct Target {
    process: Process,
    thread: Tid,
    scheduling: SchedulingOf,
    affinity: CpuSet,
    groups: Vec<u8>,
    way: &'static str,
}

impl Target {
    /// Starts a target process with one thread, which never blocks.
    fn process() -> Target {
        let mut command = Command::new("nice");
        let process = Process::start(command.args(["-n", "5", "sh", "-c", "while :; do :; done"]));
        let thread = process.tid();
        // `nice` adds to the nice value of these tests.
        let Scheduling::Other { nice } = get_scheduling(own_tid()).unwrap().class else {
            panic!("these tests run as ordinary threads");
        };
        let nice = Scheduling::Other { nice: nice + NICE };
        wait_until("the target has its nice value", || {
            get_scheduling(thread).unwrap().class == nice
        });
        Target::of(process, thread, "process")
    }

    /// Starts a target process with two threads, of which one never blocks.
    fn thread() -> Target {
        let mut process =
            Process::start(&mut again("fence::entry_point_of_helper_scheduled_thread"));
        let thread = process.says();
        Target::of(process, thread, "thread")
    }

    fn of(process: Process, thread: Tid, way: &'static str) -> Target {
        let (scheduling, affinity) =
            (get_scheduling(thread).unwrap(), get_affinity(thread).unwrap());
        let groups = groups(process.tid(), thread);
        Target { process, thread, scheduling, affinity, groups, way }
    }

    fn reference(&self) -> ThreadRef {
        ThreadRef::open(self.process.tid(), self.thread).unwrap()
    }

    /// Starts an owner process. Returns after the owner has raised, pinned and stopped the target.
    fn owner(&self, state: &Path) -> (Process, Tid) {
        let mut owner = Process::start(&mut self.owner_command(state));
        let keeper = owner.says();
        self.assert_held();
        (owner, keeper)
    }

    fn owner_command(&self, state: &Path) -> Command {
        let mut command = again("fence::entry_point_of_helper_scheduler");
        let target = format!("{} {} {}", self.process.tid(), self.thread, self.way);
        command.env(TARGET, target).env(STATE, state).stderr(Stdio::null());
        command
    }

    fn assert_held(&self) {
        let class = Scheduling::Fifo { priority: 97 };
        let raised = SchedulingOf { class, reset_on_fork: true };
        assert_eq!(get_scheduling(self.thread).unwrap(), raised);
        assert_eq!(get_affinity(self.thread).unwrap(), CpuSet::one(CpuId::new(0)));
        self.assert_stands_still();
    }

    fn assert_stands_still(&self) {
        // The stop takes effect on another CPU only after a moment, so wait until two readings of
        // the CPU time are equal. A tick of the kernel, after which a reading is exact, is at most
        // 10 ms long.
        let mut before = self.used();
        wait_until("the target stands still", || {
            park_timeout(Duration::from_millis(25));
            let now = self.used();
            std::mem::replace(&mut before, now) == now
        });
    }

    fn used(&self) -> Span {
        thread_cpu_time(self.thread).unwrap()
    }

    /// Returns true if scheduling, affinity and cgroups of the target are as they were before the
    /// test.
    fn is_back(&self) -> bool {
        get_scheduling(self.thread).unwrap() == self.scheduling
            && get_affinity(self.thread).unwrap() == self.affinity
            && groups(self.process.tid(), self.thread) == self.groups
    }

    fn assert_comes_back(&self) {
        wait_until("the target is restored", || self.is_back());
        let before = self.used();
        wait_until("the target runs", || self.used() > before);
        wait_until("the target's cgroup is removed", || our_groups(self.thread).is_empty());
    }
}

fn groups(pid: Tid, tid: Tid) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/task/{tid}/cgroup")).unwrap()
}

/// Returns true if a process has ended. A zombie counts as ended, since the process may remain a
/// zombie for a long time: the test cannot reap it.
fn is_gone(process: Tid) -> bool {
    TaskFd::open(process).map_or(true, |held| held.has_exited().unwrap())
}

/// Returns true if the folder contains no journal. A running keeper's lock file is ignored.
fn is_empty(directory: &TempDir) -> bool {
    let names = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    names.filter(|path| path.extension().is_none_or(|end| end != "keeper")).count() == 0
}

fn targets() -> [Target; 2] {
    [Target::process(), Target::thread()]
}

// Tests of restoring.

#[test]
fn keeper_process_restores_threads_if_the_scheduling_process_is_killed() {
    let Some(_alone) = begin() else { return };
    for target in targets() {
        let state = TempDir::new().unwrap();
        let (mut owner, keeper) = target.owner(state.path());
        owner.kill();
        target.assert_comes_back();
        wait_until("the keeper ends", || is_gone(keeper));
        assert!(is_empty(&state), "the journal is removed");
    }
}

#[test]
fn keeper_process_restores_threads_however_the_scheduling_process_ends() {
    let Some(_alone) = begin() else { return };
    for target in targets() {
        for ending in ["return", "exit", "panic", "terminate", "end of input"] {
            let state = TempDir::new().unwrap();
            let (mut owner, keeper) = target.owner(state.path());
            match ending {
                "terminate" => {
                    let pid = Pid::from_raw(owner.tid().raw()).unwrap();
                    kill_process(pid, Signal::TERM).unwrap();
                }
                "end of input" => drop(std::mem::replace(&mut owner.to, spare_input())),
                told => owner.tell(told),
            }
            owner.child.wait().unwrap();
            target.assert_comes_back();
            wait_until("the keeper ends", || is_gone(keeper));
            assert!(is_empty(&state), "the journal is removed after {ending}");
        }
    }
}

/// Returns a pipe to take the place of a process's standard input.
fn spare_input() -> ChildStdin {
    let mut child = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take().unwrap();
    child.wait().unwrap();
    input
}

#[test]
fn threads_are_restored_if_scheduler_dies_after_any_step() {
    let Some(_alone) = begin() else { return };
    for target in targets() {
        for last in 0..=LAST_STEP_NUMBER {
            let state = TempDir::new().unwrap();
            let mut command = target.owner_command(state.path());
            let mut owner = Process::start(command.env(LAST_STEP, last.to_string()));
            owner.child.wait().unwrap();
            target.assert_comes_back();
            wait_until("the journal is gone", || is_empty(&state));
        }
    }
}

#[test]
fn threads_are_restored_whenever_the_scheduling_process_is_killed() {
    /// Number of different times at which the owner is killed. An owner takes about 300 us for one
    /// round of all steps. The times are spread over 680 us, so that every step is hit.
    const MOMENTS: u32 = 40;
    let Some(_alone) = begin() else { return };
    for target in targets() {
        for moment in 0..MOMENTS {
            let state = TempDir::new().unwrap();
            let mut command = target.owner_command(state.path());
            let mut owner = Process::start(command.env(LAST_STEP, NO_STEP.to_string()));
            owner.says();
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(17) * moment {
                std::hint::spin_loop();
            }
            owner.kill();
            target.assert_comes_back();
            wait_until("the journal is gone", || is_empty(&state));
        }
    }
}

#[test]
fn keeper_process_that_was_killed_is_replaced_without_restoring_threads() {
    let Some(_alone) = begin() else { return };
    for target in targets() {
        let state = TempDir::new().unwrap();
        let (mut owner, first) = target.owner(state.path());
        kill(first.raw(), Signal::KILL);
        owner.tell("revive");
        let second = owner.says();
        assert_ne!(first, second);
        target.assert_held();
        owner.kill();
        target.assert_comes_back();
        wait_until("the keeper ends", || is_gone(second));
        assert!(is_empty(&state), "the journal is removed");
    }
}

#[test]
fn journal_restores_threads_if_scheduling_process_and_keeper_are_killed() {
    let Some(_alone) = begin() else { return };
    for target in targets() {
        let state = TempDir::new().unwrap();
        let (mut owner, keeper) = target.owner(state.path());
        assert!(leftovers(state.path()).threads.is_empty(), "a living owner leaves no thread");
        kill(keeper.raw(), Signal::KILL);
        owner.kill();
        target.assert_held();

        let left = leftovers(state.path());
        assert!(left.unread.is_empty());
        let [left] = &left.threads[..] else { panic!("not one leftover: {left:?}") };
        assert_eq!((left.tid(), left.owner()), (target.thread, owner.tid()));
        let mut fence = Fence::start(crate::common::keeper(state.path())).unwrap();
        assert!(matches!(
            fence.hold(&target.reference(), Hold::Nothing),
            Err(FenceError::HeldElsewhere { .. })
        ));
        assert_eq!(give_back(left).unwrap(), GivenBack::Restored);
        target.assert_comes_back();
        assert!(leftovers(state.path()).threads.is_empty());
        assert!(is_empty(&state), "the journal is removed");
        // Restoring the thread a second time changes nothing.
        assert_eq!(give_back(left).unwrap(), GivenBack::Restored);
        assert!(target.is_back());
    }
}

#[test]
fn keeper_removes_journal_and_ends_if_target_has_ended() {
    let Some(_alone) = begin() else { return };
    for mut target in targets() {
        let state = TempDir::new().unwrap();
        let (mut owner, keeper) = target.owner(state.path());
        target.process.kill();
        owner.kill();
        wait_until("the keeper ends", || is_gone(keeper));
        assert!(is_empty(&state), "the journal is removed");
        assert!(our_groups(target.thread).is_empty());
    }
}

#[test]
fn other_threads_of_process_continue_while_one_thread_is_frozen() {
    let Some(_alone) = begin() else { return };
    let state = TempDir::new().unwrap();
    let mut target = Target::thread();
    let (_owner, _keeper) = target.owner(state.path());
    // The first thread ends the process when its input ends.
    target.process.to = spare_input();
    wait_until("the first thread has ended the process", || {
        target.process.child.try_wait().unwrap().is_some()
    });
}

#[test]
fn freezer_of_each_cgroup_version_stops_a_single_thread() {
    let Some(_alone) = begin() else { return };
    let target = Target::thread();
    for place in Place::find(&target.reference(), Controller::Freezer).unwrap() {
        let mut freezer = Freezer::make(target.reference(), &place).unwrap();
        assert!(matches!(
            Place::find(&target.reference(), Controller::Freezer),
            Err(CgroupError::AlreadyHeld { .. })
        ));
        freezer.freeze().unwrap();
        target.assert_stands_still();
        freezer.thaw().unwrap();
        let before = target.used();
        wait_until("the target runs", || target.used() > before);
        freezer.freeze().unwrap();
        clear(&place).unwrap();
        target.assert_comes_back();
        // Clearing the place a second time changes nothing.
        clear(&place).unwrap();
    }
}

#[test]
fn thread_of_removed_freezer_cgroup_counts_as_thawed() {
    let Some(_alone) = begin() else { return };
    let target = Target::thread();
    for place in Place::find(&target.reference(), Controller::Freezer).unwrap() {
        let mut freezer = Freezer::make(target.reference(), &place).unwrap();
        freezer.freeze().unwrap();
        target.assert_stands_still();
        clear(&place).unwrap();
        freezer.thaw().unwrap();
        assert!(!freezer.is_frozen());
        // The session continues after this error, and makes another freezer cgroup.
        assert!(freezer.freeze().unwrap_err().is_refusal());
        target.assert_comes_back();
    }
}

#[test]
fn dropping_a_fence_restores_threads_and_disables_their_handles() {
    let Some(_alone) = begin() else { return };
    for target in targets() {
        let state = TempDir::new().unwrap();
        let mut fence = Fence::start(keeper(state.path())).unwrap();
        assert!(fence.journal().is_some());
        let way = if target.way == "thread" { Hold::Thread } else { Hold::Process };
        let held = fence.hold(&target.reference(), way).unwrap();
        held.raise(FifoPriority::CHOSEN).unwrap();
        held.pin(CpuId::new(0)).unwrap();
        held.hold_back().unwrap();
        target.assert_held();
        drop(fence);
        target.assert_comes_back();
        assert!(matches!(held.hold_back(), Err(ActError::GivenBack { .. })));
        assert!(is_empty(&state), "the journal is removed");
    }
}

/// A thread must not stay stopped if the means of stopping it is removed. So the thread is resumed
/// first.
#[test]
fn stopped_thread_is_resumed_before_its_stop_method_is_removed() {
    let Some(_alone) = begin() else { return };
    for target in targets() {
        let state = TempDir::new().unwrap();
        let mut fence = Fence::start(keeper(state.path())).unwrap();
        let held = fence.hold(&target.reference(), Hold::Nothing).unwrap();
        let way = if target.way == "thread" { Hold::Thread } else { Hold::Process };
        fence.add_stop(target.thread, way).unwrap();
        held.hold_back().unwrap();
        target.assert_stands_still();
        fence.drop_stop(target.thread).unwrap();
        target.assert_comes_back();
        assert!(matches!(held.hold_back(), Err(ActError::NeverHeldBack { .. })));
        held.let_go().unwrap();
    }
}

#[test]
fn stopped_or_ended_or_already_scheduled_target_is_refused() {
    let Some(_alone) = begin() else { return };
    let state = TempDir::new().unwrap();
    let mut fence = Fence::start(keeper(state.path())).unwrap();
    let mut target = Target::thread();
    let pid = target.process.tid();
    let first = ThreadRef::open(pid, pid).unwrap();
    let second = target.reference();

    let held = fence.hold(&first, Hold::Nothing).unwrap();
    assert!(matches!(held.hold_back(), Err(ActError::NeverHeldBack { .. })));
    assert!(matches!(fence.hold(&first, Hold::Process), Err(FenceError::HeldAlready { .. })));
    fence.release(first.tid()).unwrap();
    fence.hold(&first, Hold::Process).unwrap();
    assert!(matches!(fence.hold(&second, Hold::Process), Err(FenceError::ProcessHeldTwice { .. })));
    fence.release_all().unwrap();
    let number = Pid::from_raw(pid.raw()).unwrap();
    kill_process(number, Signal::STOP).unwrap();
    wait_until("the process is stopped", || {
        matches!(fence.hold(&first, Hold::Process), Err(FenceError::Stopped { .. })) || {
            fence.release_all().unwrap();
            kill_process(number, Signal::STOP).unwrap();
            false
        }
    });
    kill_process(number, Signal::CONT).unwrap();
    assert!(target.is_back());

    let held = fence.hold(&second, Hold::Thread).unwrap();
    target.process.kill();
    assert!(matches!(held.raise(FifoPriority::CHOSEN), Err(ActError::Gone { .. })));
    assert_eq!(fence.release(second.tid()).unwrap(), GivenBack::Exited);
    assert!(our_groups(second.tid()).is_empty());
    assert!(is_empty(&state), "the journal is removed");
}

#[test]
fn dropped_fence_restores_threads_even_without_a_writable_journal() {
    let Some(_alone) = begin() else { return };
    let target = Target::process();
    let mut fence = Fence::start(keeper(Path::new("/proc/nowhere"))).unwrap();
    assert_eq!(fence.journal(), None);
    let held = fence.hold(&target.reference(), Hold::Process).unwrap();
    held.raise(FifoPriority::CHOSEN).unwrap();
    drop(fence);
    target.assert_comes_back();
}
