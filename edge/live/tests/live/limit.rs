//! Tests of limits of CPU time on processes. The tests check that each kind of limit is enforced,
//! and that it is removed when its owner ends, in whatever way. They need root.
//!
//! The owner and its keeper must be processes other than the test, because the test kills them.
//! Both are copies of this test program, in the role that the environment names.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio, exit};

use crate::common::{again, begin, keeper, kill, our_groups, plays, wait_until};
use rustix::process::Signal;
use slackline_fence::{give_back, leftovers};
use slackline_linux::cgroup::Version;
use slackline_linux::sys::{
    SchedulingOf, Tid, get_affinity, get_scheduling, online_cpus, set_affinity,
};
use slackline_live::mechanism::MechanismError;
use slackline_live::meter::Sampler;
use slackline_play::limit::{LimitError, LimitInterface, LimitedProcess, target};
use slackline_units::{CpuSet, CpuShare, Reservation, Span};
use tempfile::TempDir;

/// Environment variable that tells the process that owns the limit which target to limit and how.
const TARGET: &str = "SLACKLINE_TEST_TARGET";
/// Environment variable that tells the process that owns the limit the folder of its journal.
const STATE: &str = "SLACKLINE_TEST_STATE";

/// Limiter script as users write them. The script stops and continues a process in turn. If the
/// script is killed, the process stays as it is at that time, stopped or running.
const SCRIPT: &str = "while :; do kill -STOP $1; sleep 0.09; kill -CONT $1; sleep 0.01; done";

#[test]
fn entry_point_of_helper_limiter() {
    if !plays("limiter") {
        return;
    }
    let text = env::var(TARGET).unwrap();
    let (pid, name) = text.split_once(' ').unwrap();
    let state = env::var(STATE).unwrap();
    let scratch = Path::new(&state).parent().unwrap();
    let way = ways(scratch).into_iter().find(|way| way.name() == name).unwrap();
    let limited =
        LimitedProcess::apply(&way, pid.parse().unwrap(), tenth(&way), keeper(Path::new(&state)))
            .unwrap();
    println!("@");
    // Wait until the test kills this process.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(limited);
    exit(0);
}

/// Returns all kinds of limits. One of them runs a program of the user, here the script [`SCRIPT`].
fn ways(scratch: &Path) -> Vec<LimitInterface> {
    let script = scratch.join("limiter");
    fs::write(&script, SCRIPT).unwrap();
    let command = format!("sh {} {{pid}} {{percent}}", script.display());
    let cpu = online_cpus().unwrap().iter().last().unwrap();
    vec![
        LimitInterface::Deadline,
        LimitInterface::Quota(Some(Version::V1)),
        LimitInterface::Quota(Some(Version::V2)),
        LimitInterface::Command(command.parse().unwrap()),
        LimitInterface::Slackline(cpu),
    ]
}

fn tenth(way: &LimitInterface) -> Reservation {
    let share = CpuShare::from_ppm(100_000);
    target(share, way.usual_period(share)).unwrap()
}

/// A process with one thread that never blocks.
struct Hog {
    child: Child,
    before: (SchedulingOf, CpuSet, String),
}

impl Hog {
    fn start() -> Hog {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let tid = tid_of(&child);
        // The target has an unusual affinity, so that only the recorded affinity can restore it.
        let one = CpuSet::one(online_cpus().unwrap().iter().last().unwrap());
        set_affinity(tid, &one).unwrap();
        let before = state(tid);
        Hog { child, before }
    }

    fn tid(&self) -> Tid {
        tid_of(&self.child)
    }

    fn pid(&self) -> i32 {
        self.tid().raw()
    }

    /// Asserts that the state of the process is as it was before the limit, and that it uses CPU
    /// time.
    #[track_caller]
    fn is_free(&self) {
        wait_until("the process is restored", || state(self.tid()) == self.before);
        let mut sampler = Sampler::start(self.pid()).unwrap();
        let mut total = Span::ZERO;
        wait_until("the process runs", || {
            total += sampler.sample().unwrap().used;
            total > Span::from_ms(1)
        });
        wait_until("its cgroups are removed", || our_groups(self.tid()).is_empty());
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn tid_of(child: &Child) -> Tid {
    Tid::new(i32::try_from(child.id()).unwrap()).unwrap()
}

fn state(tid: Tid) -> (SchedulingOf, CpuSet, String) {
    let groups = fs::read_to_string(format!("/proc/{tid}/cgroup")).unwrap();
    (get_scheduling(tid).unwrap(), get_affinity(tid).unwrap(), groups)
}

/// Returns the value of a result. Returns `None` if the error says that this host does not support
/// the kind of limit `way`. Panics on any other error.
fn unless_impossible(
    way: &LimitInterface,
    result: Result<LimitedProcess, LimitError>,
) -> Option<LimitedProcess> {
    match result {
        Err(LimitError::Mechanism(error @ MechanismError::Group { .. })) => {
            println!("skipped {way}: {error}; {}", error.hint().unwrap());
            None
        }
        result => Some(result.unwrap()),
    }
}

#[test]
fn each_enforcement_mechanism_limits_a_process_until_the_limit_ends() {
    let Some(_alone) = begin() else { return };
    let scratch = TempDir::new().unwrap();
    for way in ways(scratch.path()) {
        let hog = Hog::start();
        let keeper = keeper(&scratch.path().join("state"));
        let applied = LimitedProcess::apply(&way, hog.pid(), tenth(&way), keeper);
        let Some(mut limited) = unless_impossible(&way, applied) else { continue };
        let mut sampler = Sampler::start(hog.pid()).unwrap();
        let sample = sampler.after(Span::from_secs(2)).unwrap();
        limited.check().unwrap();
        println!("{way}: {} ppm", sample.share_ppm());
        // Without the limit the process would use a whole CPU. The bound is wide, because limits by
        // stop signals are inexact.
        assert!(sample.share_ppm() < 300_000, "{way}: {sample:?}");
        limited.end().unwrap();
        hog.is_free();
    }
}

#[test]
fn cpu_limit_is_removed_if_the_limiting_process_is_killed() {
    let Some(_alone) = begin() else { return };
    let scratch = TempDir::new().unwrap();
    let state = scratch.path().join("state");
    for way in ways(scratch.path()) {
        for keeper_too in [false, true] {
            let hog = Hog::start();
            let applied = LimitedProcess::apply(&way, hog.pid(), tenth(&way), keeper(&state));
            if unless_impossible(&way, applied).is_none() {
                continue;
            }
            hog.is_free();
            let mut owner = owner(&way, &hog, &state);
            wait_until("the process is limited", || is_limited(&way, &hog));
            if keeper_too {
                kill_keeper_of(&owner);
            }
            owner.kill().unwrap();
            owner.wait().unwrap();
            if keeper_too {
                // The owner may have started a new keeper in time, which then restores the thread.
                wait_until("the journal lists the thread, or the keeper has restored it", || {
                    !leftovers(&state).threads.is_empty() || !is_limited(&way, &hog)
                });
                for left in &leftovers(&state).threads {
                    give_back(left).unwrap();
                }
            }
            hog.is_free();
            wait_until("the journal is gone", || leftovers(&state).threads.is_empty());
            assert!(limiters(&hog).is_empty(), "the limiting program has ended");
        }
    }
}

fn owner(way: &LimitInterface, hog: &Hog, state: &Path) -> Child {
    let mut command = again("limit::entry_point_of_helper_limiter");
    command.env(TARGET, format!("{} {}", hog.pid(), way.name())).env(STATE, state);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains('@')), "the owner prints a line before it ends");
    child
}

fn is_limited(way: &LimitInterface, hog: &Hog) -> bool {
    match way {
        LimitInterface::Command(_) => !limiters(hog).is_empty(),
        _ => state(hog.tid()) != hog.before || is_stopped(hog.tid()),
    }
}

fn is_stopped(tid: Tid) -> bool {
    fs::read_to_string(format!("/proc/{tid}/stat")).unwrap().contains(") T ")
}

/// Returns the processes whose command line has the id of the process `hog` as a word. They are the
/// processes that limit it.
fn limiters(hog: &Hog) -> Vec<String> {
    let number = hog.pid().to_string();
    processes()
        .filter(|(_, words)| words.iter().any(|word| word.ends_with("limiter")))
        .filter(|(_, words)| words.contains(&number))
        .map(|(pid, _)| pid)
        .collect()
}

fn processes() -> impl Iterator<Item = (String, Vec<String>)> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = entry.file_name().into_string().ok()?;
        pid.parse::<u32>().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let words = line.split(|&byte| byte == 0);
        Some((pid, words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()))
    })
}

fn kill_keeper_of(owner: &Child) {
    let child_of = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{}", owner.id()))
    };
    for (pid, words) in processes() {
        if words.iter().any(|word| word == "entry_point_of_helper_keeper") && child_of(&pid) {
            kill(pid.parse().unwrap(), Signal::KILL);
        }
    }
}

#[test]
fn cpu_limit_that_cannot_be_enforced_is_refused_with_reason() {
    let Some(_alone) = begin() else { return };
    let scratch = TempDir::new().unwrap();
    let keeper = || keeper(&scratch.path().join("state"));
    let hog = Hog::start();
    let tiny = target(CpuShare::from_ppm(10_000), Span::from_ms(10)).unwrap();
    let refused =
        LimitedProcess::apply(&LimitInterface::Quota(Some(Version::V1)), hog.pid(), tiny, keeper());
    let Err(LimitError::Mechanism(error @ MechanismError::TooFine { .. })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(error.hint().unwrap(), "use a period of 100ms or more");

    let missing: LimitInterface =
        LimitInterface::Command("slackline-has-no-such {pid} {percent}".parse().unwrap());
    let refused = LimitedProcess::apply(&missing, hog.pid(), tenth(&missing), keeper());
    assert!(matches!(refused, Err(LimitError::NotStarted { .. })), "{refused:?}");
    hog.is_free();

    let ends: LimitInterface = LimitInterface::Command("true {pid} {percent}".parse().unwrap());
    let mut limited = LimitedProcess::apply(&ends, hog.pid(), tenth(&ends), keeper()).unwrap();
    wait_until("the limiting program has ended", || {
        matches!(limited.check(), Err(LimitError::Ended { .. }))
    });
    drop(limited);
    hog.is_free();

    assert!(target(CpuShare::NONE, Span::from_ms(10)).is_err());
    assert!(target(CpuShare::from_ppm(1_100_000), Span::from_ms(10)).is_err());
    let gone = LimitedProcess::apply(&LimitInterface::Deadline, i32::MAX, tiny, keeper());
    assert!(matches!(gone, Err(LimitError::Thread(_))), "{gone:?}");
}
