//! Soak test of a session: fifty processes join, change, pause, migrate and leave. The process that
//! owns the session and its keeper are killed in turn. After each kill, no target stays stopped,
//! real-time, pinned or frozen. The test needs root.
//!
//! The test takes fifteen seconds. `cargo xtask soak --minutes 5` runs it for longer.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    PART, Target, begin, cpus, kill, let_pass, options, plays, request, share, wait_until,
};
use rustix::process::Signal;
use slackline_fence::{give_back, leftovers};
use slackline_linux::sys::{Tid, die_with_us};
use slackline_live::Punctual;
use slackline_live::session::{JoinId, JoinTarget, Request, RequestError, Session};
use slackline_units::{CpuId, CpuSet, Span};

/// Environment variable with the length of the test in seconds. If it is not set, the test has its
/// default length.
const LENGTH: &str = "SLACKLINE_SOAK_SECONDS";
/// Environment variable with the ids of the processes that the owner of the session schedules,
/// separated by commas.
const TARGETS: &str = "SLACKLINE_SOAK_TARGETS";
/// Environment variable with the folder in which the owner of the session has its journal.
const STATE: &str = "SLACKLINE_SOAK_STATE";
/// Environment variable with the seed of the random requests that the owner of the session sends.
const SEED: &str = "SLACKLINE_SOAK_SEED";

/// Number of target processes.
const PROCESSES: usize = 50;

/// Opens a session and sends requests to it until this process is killed. Does nothing unless the
/// soak test has started this process for that.
#[test]
fn entry_point_of_helper_scheduler() {
    if !plays("scheduler") {
        return;
    }
    let text = |name| env::var(name).expect("the test sets the variable");
    let targets = text(TARGETS);
    let targets = targets.split(',').filter_map(|pid| Tid::new(pid.parse().ok()?)).collect();
    let options = options(cpus(2), Path::new(&text(STATE)));
    let session = Session::open(&options).expect("a session");
    println!("@keeper {}", session.keeper_id());
    let dice = Dice(text(SEED).parse().expect("the seed is a number"));
    let mut owner =
        Owner { session, targets, members: BTreeMap::new(), dice, cpus: options.cpus.len() };
    owner.ask();
}

/// A generator of pseudo-random numbers. The sequence depends only on the seed.
struct Dice(u64);

impl Dice {
    /// Returns a number from 0 to `count` - 1.
    fn below(&mut self, count: usize) -> usize {
        // Knuth's linear congruential generator. Its low bits repeat after a few numbers, so only
        // the high bits are used.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).expect("31 bits fit into a usize") % count
    }
}

/// The process that owns the session and sends random requests to it.
struct Owner {
    session: Session,
    /// The target processes. At any time some of them are members of the session.
    targets: Vec<Tid>,
    /// Members of the session, by the process id of the target.
    members: BTreeMap<Tid, JoinId>,
    dice: Dice,
    /// Number of managed CPUs.
    cpus: usize,
}

impl Owner {
    /// Sends random requests to the session until this process is killed.
    fn ask(&mut self) {
        let (mut records, mut asked, mut keeper) = (Vec::new(), 0_u64, self.session.keeper_id());
        loop {
            for _ in 0..5 {
                let target = self.targets[self.dice.below(self.targets.len())];
                self.ask_about(target);
                asked += 1;
            }
            let seen = self.session.poll(&mut records).expect("the session continues");
            self.members.retain(|_, id| !seen.ended.contains(id));
            if self.session.keeper_id() != keeper {
                keeper = self.session.keeper_id();
                println!("@keeper {keeper}");
            }
            println!("@asked {asked}");
            let _ = self.session.wait(&[], Span::from_ms(10));
        }
    }

    /// Sends one random request about a target. If the target is not a member of the session, the
    /// request is to join.
    fn ask_about(&mut self, target: Tid) {
        let now = self.session.now();
        // Each target gets a hundredth or a fiftieth of a CPU, and half of them a hard limit.
        let exact = self.dice.below(2) == 0;
        let share = share(500 + 500 * self.dice.below(2) as u64, 50_000, exact);
        let cpus = match self.dice.below(self.cpus + 1) {
            cpu if cpu < self.cpus => CpuSet::one(CpuId::new(cpu)),
            _ => CpuSet::first_n(self.cpus),
        };
        let Some(&id) = self.members.get(&target) else {
            let request =
                Request { cpus: Some(cpus), ..request(JoinTarget::Process(target), share) };
            match self.session.join(vec![request]) {
                Ok(ids) => drop(self.members.insert(target, ids[0])),
                Err(error) => expected(&error.error),
            }
            return;
        };
        let done = match self.dice.below(6) {
            0 => self.session.change(id, share, now),
            1 => self.session.pause(id, now),
            2 | 3 => self.session.resume(id, now),
            4 => self.session.move_to(id, cpus, now),
            _ => {
                self.members.remove(&target);
                self.session.leave(id)
            }
        };
        done.unwrap_or_else(|error| expected(&error));
    }
}

/// Asserts that the error of a request only means that a process has ended. In this test a process
/// can end at any time.
fn expected(error: &RequestError) {
    let text = format!("{error:?}");
    let is_gone = text.contains("Gone") || text.contains("ESRCH") || text.contains("NoThread");
    let is_gone = is_gone || matches!(error, RequestError::Unknown { .. });
    assert!(is_gone || text.contains("Unreadable"), "{text}");
}

/// Handle of a process that owns a session and that the test kills.
struct Running {
    child: Child,
    /// Lines that the process has printed and that the test has not read yet.
    said: std::sync::mpsc::Receiver<String>,
    /// Process id of the session's keeper, as the owner of the session last printed it.
    keeper: Option<i32>,
    /// Number of requests that the owner has sent to its session, as last printed by the owner.
    asked: u64,
}

impl Running {
    fn start(targets: &[Target], state: &Path, seed: u64) -> Running {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command
            .args(["--exact", "soak::entry_point_of_helper_scheduler", "--nocapture", "--quiet"])
            .env(PART, "scheduler");
        die_with_us(&mut command);
        let pids: Vec<String> = targets.iter().map(|target| target.pid().to_string()).collect();
        command.env(TARGETS, pids.join(",")).env(STATE, state).env(SEED, seed.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("this program");
        let out = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let (say, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| say.send(line))
        });
        let mut running = Running { child, said, keeper: None, asked: 0 };
        wait_until("the session to be open", || {
            running.hear();
            running.keeper.is_some()
        });
        running
    }

    /// Reads the lines that the owner of the session has printed. Panics if the owner has ended.
    fn hear(&mut self) {
        for line in self.said.try_iter() {
            let mut words = line.rsplit('@').next().unwrap_or_default().split(' ');
            match (words.next(), words.next().and_then(|number| number.parse::<u64>().ok())) {
                (Some("keeper"), Some(pid)) => self.keeper = i32::try_from(pid).ok(),
                (Some("asked"), Some(asked)) => self.asked = asked,
                _ => {}
            }
        }
        let status = self.child.try_wait().expect("the owner is a child of this process");
        assert!(status.is_none(), "the owner ended by itself: {status:?}");
    }

    /// Lets the owner of the session continue for at least `length`. Returns after the owner has
    /// sent another request.
    fn go_on(&mut self, length: Duration) {
        self.hear();
        let before = self.asked;
        let_pass(length);
        wait_until("the owner to send a request", || {
            self.hear();
            self.asked > before
        });
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Kills the owner of the session. Returns the number of requests that the owner had sent.
    fn kill(mut self) -> u64 {
        kill(self.pid(), Signal::KILL);
        self.child.wait().expect("the owner is a child of this process");
        self.asked
    }
}

/// Processes that the test kills in one round.
#[derive(Clone, Copy, Debug)]
enum Whom {
    /// Only the process that owns the session. Its keeper then restores the targets.
    Owner,
    /// First the keeper of the session. The process that owns the session is killed after it has
    /// started another keeper.
    KeeperThenOwner,
    /// The keeper of the session and, immediately afterwards, the process that owns the session.
    /// The test then restores the targets.
    Both,
}

#[test]
fn targets_are_restored_after_random_kills_of_scheduler_and_keeper() {
    let Some(_alone) = begin() else { return };
    let length = env::var(LENGTH).ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let deadline = Instant::now() + Duration::from_secs(length);
    // While owner and keeper are dead, targets may be real-time and never block, so the test itself
    // must be real-time to get a CPU.
    let _punctual = Punctual::begin().expect("root may become real-time");
    let state = tempfile::tempdir().expect("a folder for the journal");
    let mut dice = Dice(length);
    let kind = |number: usize| match number % 5 {
        0 => Target::threaded(),
        1 => Target::sleeper(),
        _ => Target::spinner(),
    };
    let mut targets: Vec<Target> = (0..PROCESSES).map(kind).collect();
    let (mut rounds, mut asked) = (0_usize, 0);
    // Three rounds kill each selection of processes at least once.
    while rounds < 3 || Instant::now() < deadline {
        let whom = [Whom::Owner, Whom::KeeperThenOwner, Whom::Both][rounds % 3];
        let seed = dice.below(1 << 30) as u64;
        let mut running = Running::start(&targets, state.path(), seed);
        running.go_on(Duration::from_millis(400 + dice.below(800) as u64));
        // Some targets end during the session, and new targets replace them.
        for _ in 0..3 {
            let place = dice.below(PROCESSES);
            targets[place] = kind(place);
        }
        running.go_on(Duration::from_millis(100 + dice.below(200) as u64));
        asked += end(running, whom, state.path());
        println!("killed {whom:?}, {asked} requests so far");
        for target in &targets {
            target.is_given_back();
        }
        everybody_may_run(&targets);
        let left = leftovers(state.path());
        assert!(left.threads.is_empty() && left.unread.is_empty(), "{left:?}");
        rounds += 1;
    }
    println!("{rounds} rounds, {asked} requests");
    assert!(asked > 50 * rounds as u64, "{asked} requests in {rounds} rounds");
}

/// Asserts that no target is stopped: each is runnable, or has run since the check began. A
/// runnable target may have to wait for a long time, since many targets never block.
fn everybody_may_run(targets: &[Target]) {
    let before: Vec<Span> = targets.iter().map(Target::used).collect();
    let deadline = Instant::now() + crate::common::PATIENCE;
    loop {
        let runs = |place: usize| targets[place].used() > before[place];
        let is_kept = |place: &usize| !runs(*place) && !targets[*place].waits_for_a_cpu();
        let kept: Vec<usize> = (0..targets.len()).filter(is_kept).collect();
        if kept.is_empty() {
            return;
        }
        let how = || kept.iter().map(|&place| targets[place].says()).collect::<String>();
        assert!(Instant::now() < deadline, "targets {kept:?} are still stopped: {}", how());
        crate::common::nap();
    }
}

/// Kills the processes that `whom` selects, and waits until all targets are restored. Returns the
/// number of requests that the owner of the session had sent.
fn end(mut running: Running, whom: Whom, state: &Path) -> u64 {
    let keeper = running.keeper.expect("the owner has printed its keeper");
    match whom {
        Whom::Owner => running.kill(),
        Whom::KeeperThenOwner => {
            kill(keeper, Signal::KILL);
            wait_until("another keeper to start", || {
                running.hear();
                running.keeper != Some(keeper)
            });
            running.go_on(Duration::from_millis(100));
            running.kill()
        }
        Whom::Both => {
            kill(keeper, Signal::KILL);
            // The owner may have started another keeper, which then restores the targets at the
            // same time as the test.
            let asked = running.kill();
            wait_until("all targets in the journal to be restored", || {
                let left = leftovers(state);
                left.threads.iter().for_each(|thread| drop(give_back(thread)));
                left.threads.is_empty()
            });
            asked
        }
    }
}
