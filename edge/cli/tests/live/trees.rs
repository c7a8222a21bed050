//! Tests of process trees. A tree and all processes that it starts are scheduled and counted as one
//! vCPU, and restored completely. Needs root and version 2 cgroups.
//!
//! The tests check only what holds on any host, however busy. Reported CPU time agrees with the
//! processes' own count and stays within the reservation. No process is left real-time, pinned,
//! frozen or moved.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::live::{self, Live, PATIENCE, delivered, kill, let_pass, nap, wait_until};
use rustix::process::Signal;
use slackline_fence::KeeperCommand;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_affinity, get_scheduling, monotonic, process_cpu_time,
    set_scheduling,
};
use slackline_linux::thread::threads_of;
use slackline_units::{CpuSet, Span};

/// Environment variable with the role of a process in a tree.
const PART: &str = "SLACKLINE_TEST_TREE";
/// Environment variable that marks all processes of a tree.
const MARK: &str = "SLACKLINE_TEST_TREE_OF";
/// Environment variable with the path of a file, the notes. The first process of a tree writes into
/// this file the CPU time that all processes of the tree used.
const NOTES: &str = "SLACKLINE_TEST_TREE_NOTES";

/// Nice value of the tree's processes before a run schedules them.
const NICE: i32 = 7;

fn own_pid() -> Tid {
    Tid::new(i32::try_from(std::process::id()).unwrap()).unwrap()
}

/// Returns a command that runs this test program as a child, which is killed when its parent ends.
fn play_alone() -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "trees::entry_point_of_helper_in_tree", "--nocapture", "--quiet"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    slackline_linux::sys::die_with_us(&mut command);
    command
}

fn spin_for(span: Span) {
    let until = process_cpu_time(own_pid()).unwrap() + span;
    while process_cpu_time(own_pid()).unwrap() < until {
        std::hint::spin_loop();
    }
}

/// Returns the CPU time of those children of this process that it has waited for, and of their
/// descendants.
fn of_children() -> Span {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // The fields `cutime` and `cstime` are in hundredths of a second.
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    Span::from_ms(10 * (ticks(13) + ticks(14)))
}

/// Runs as a process of a tree, if a test has started this program as such a process. The process
/// computes, or starts short-lived children all the time.
#[test]
fn entry_point_of_helper_in_tree() {
    let Ok(part) = env::var(PART) else { return };
    match part.as_str() {
        "spin" => loop {
            std::hint::spin_loop();
        },
        "short" => spin_for(Span::from_ms(20)),
        "first of two" | "first of many" => {
            let mut spinners = Vec::new();
            for _ in 0..if part == "first of two" { 2 } else { 0 } {
                spinners.push(play_alone().env(PART, "spin").spawn().unwrap());
            }
            loop {
                if spinners.is_empty() {
                    let mut child = play_alone().env(PART, "short").spawn().unwrap();
                    spin_for(Span::from_ms(20));
                    child.wait().unwrap();
                } else {
                    nap();
                }
                note(&spinners);
            }
        }
        "first of all" => {
            // The spinner ends with this process.
            let mut spinner = play_alone().env(PART, "spin").spawn().unwrap();
            std::thread::spawn(move || spinner.wait());
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
            loop {
                assert!(play_alone().env(PART, "short").status().unwrap().success());
            }
        }
        // This process spins. When the file of notes exists, the process starts a child that leaves
        // the tree and spins too.
        "first of lost" => {
            let notes = env::var_os(NOTES).unwrap();
            while !Path::new(&notes).exists() {
                std::hint::spin_loop();
            }
            let script = "\"$@\" >/dev/null 2>&1 & echo $! >\"$0.pid\"; mv \"$0.pid\" \"$0.lost\"";
            let mut command = Command::new("sh");
            command.arg("-c").arg(script).arg(&notes).arg(env::current_exe().unwrap());
            command
                .args(["--exact", "trees::entry_point_of_helper_in_tree", "--nocapture", "--quiet"])
                .env(PART, "spin");
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap().wait().unwrap();
            loop {
                std::hint::spin_loop();
            }
        }
        part => panic!("there is no part {part}"),
    }
    std::process::exit(0);
}

/// Writes a line with the time, the CPU time used by all processes, and the CPU time used by each
/// child in `spinners`. It writes only while a run schedules the tree, since the processes are not
/// limited before and after the run.
fn note(spinners: &[Child]) {
    let Some(path) = env::var_os(NOTES) else { return };
    let class = get_scheduling(own_pid()).unwrap().class;
    if !matches!(class, Scheduling::RoundRobin { .. } | Scheduling::Fifo { .. }) {
        return;
    }
    let each: Vec<Span> = spinners
        .iter()
        .map(|child| process_cpu_time(Tid::new(i32::try_from(child.id()).unwrap()).unwrap()))
        .map(Result::unwrap)
        .collect();
    let own = process_cpu_time(own_pid()).unwrap() + of_children();
    let all = each.iter().fold(own, |all, one| all + *one);
    let each: String = each.iter().map(|one| format!(" {}", one.ns())).collect();
    let line = format!("{} {}{each}\n", monotonic().ns(), all.ns());
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap();
}

/// Returns the rate at which each number in the notes increased, in millionths of a CPU.
fn rates(notes: &Path) -> Vec<u64> {
    let text = fs::read_to_string(notes).expect("notes");
    let lines: Vec<Vec<u64>> = text
        .lines()
        .map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect())
        .collect();
    let (first, last) = (&lines[0], lines.last().unwrap());
    let grew = |at: usize| (last[at] - first[at]) * 1_000_000 / (last[0] - first[0]);
    (1..last.len()).map(grew).collect()
}

/// Returns a scenario with one domain and a hard limit of 30 % of a CPU.
fn scenario(target: &str, length: &str) -> String {
    format!(
        "title = \"tree\"\nlength = \"{length}\"\npolicy = {{ name = \"edf\" }}\n[[domain]]\n\
         name = \"tree\"\nlive = {{ {target} }}\n\
         share.edf = {{ slice = \"3ms\", period = \"10ms\", exact = true }}\n"
    )
}

/// Upper limit of the tree's CPU time in millionths of a CPU, by the processes' own count during
/// the run. It is a tenth above the reservation. Within four seconds, the tree can exceed the
/// reservation by one slice, by 20 us per period, and by one late enforcement.
const AT_MOST: u64 = 330_000;

/// Runs a tree as a command for four seconds, by `slackline run` or `slackline hold`. Returns the
/// CPU share that `slackline` reported, and the rates that the processes measured.
fn run_tree(live: &Live, part: &str, by: &str) -> (u64, Vec<u64>) {
    let (program, member) = (env::current_exe().unwrap(), "trees::entry_point_of_helper_in_tree");
    let tree = [program.to_str().unwrap(), "--exact", member, "--nocapture", "--quiet"];
    let notes = live.place.path(&format!("notes of {by}"));
    let told = if by == "run" {
        live.place.write("it.toml", scenario(&format!("command = {tree:?}"), "4s").as_bytes());
        let mut command = live.command(&["run", "it.toml", "--json"]);
        let output = command.env(PART, part).env(NOTES, &notes).output().unwrap();
        let ran = crate::common::Ran::new(&output).good();
        delivered(
            &serde_json::from_str::<serde_json::Value>(&ran).expect("JSON")["runs"][0],
            "tree",
        )
    } else {
        let hold = ["hold", "--slice", "3ms", "--period", "10ms", "--json", "--"];
        let mut command = live.command(&[&hold[..], &tree].concat());
        command.stdout(Stdio::null()).stderr(fs::File::create(live.place.path("err")).unwrap());
        let mut hold = command.env(PART, part).env(NOTES, &notes).spawn().unwrap();
        wait_until("notes", || notes.exists());
        let_pass(Duration::from_secs(4));
        kill(i32::try_from(hold.id()).unwrap(), Signal::TERM);
        hold.wait().unwrap();
        let said = String::from_utf8(live.place.read("err")).unwrap();
        let last: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        last["delivered_ppm"].as_u64().unwrap_or_else(|| panic!("{said}"))
    };
    live.nothing_is_left();
    (told, rates(&notes))
}

/// Both children together receive the parent's reservation. With a former bug only the parent was
/// limited, and each child used a whole CPU.
#[test]
fn busy_child_processes_share_the_reservation_of_their_parent() {
    let Some(live) = live::begin() else { return };
    for by in ["run", "hold"] {
        let (told, rates) = run_tree(&live, "first of two", by);
        let [all, one, other] = rates[..] else { panic!("{rates:?}") };
        assert!(told.abs_diff(all) <= 30_000, "{by}: reported {told}, counted {all}");
        assert!(all <= AT_MOST, "{by}: {all} of 300000");
        // The child that did not run in the last period runs in the next one, so both receive about
        // a half. Other programs may change that, so the limit is a fifth.
        assert!(one.min(other) >= all / 5, "{by}: {one} and {other}");
    }
}

#[test]
fn cpu_time_of_ended_child_processes_counts_for_process_tree() {
    let Some(live) = live::begin() else { return };
    for by in ["run", "hold"] {
        let (told, rates) = run_tree(&live, "first of many", by);
        // The difference is CPU time used before the processes are found, and while the notes are
        // written.
        assert!(told.abs_diff(rates[0]) <= 50_000, "{by}: reported {told}, counted {}", rates[0]);
        assert!(rates[0] <= AT_MOST, "{by}: {} of 300000", rates[0]);
    }
}

/// A process tree that exists before the run. One process starts children all the time, one
/// computes, and one has a second thread that computes.
struct Tree {
    first: Child,
    mark: String,
    affinity: CpuSet,
}

impl Tree {
    fn start() -> Tree {
        Tree::start_in(None)
    }

    /// Starts a process tree, in the cgroup `group` if `group` is given.
    fn start_in(group: Option<&Path>) -> Tree {
        let tree = Tree::start_as("first of all", group, Path::new("/dev/null"));
        wait_until("the tree to grow", || tree.processes().len() >= 3);
        tree
    }

    fn start_as(part: &str, group: Option<&Path>, notes: &Path) -> Tree {
        let mark = format!("{}-{:?}", std::process::id(), monotonic());
        let script = "echo $$ >\"$0\"; shift 0; exec \"$@\"";
        let mut command = Command::new("sh");
        let folder = group.map_or("/dev/null".into(), |group| group.join("cgroup.procs"));
        command.arg("-c").arg(script).arg(folder).arg(env::current_exe().unwrap());
        command.args(["--exact", "trees::entry_point_of_helper_in_tree", "--nocapture", "--quiet"]);
        command.env(PART, part).env(MARK, &mark).env(NOTES, notes);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let first = command.spawn().unwrap();
        let pid = Tid::new(i32::try_from(first.id()).unwrap()).unwrap();
        let class = Scheduling::Other { nice: NICE };
        set_scheduling(pid, &SchedulingOf { class, reset_on_fork: false }).unwrap();
        let affinity = get_affinity(pid).unwrap();
        Tree { first, mark, affinity }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.first.id()).unwrap()
    }

    fn processes(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.mark).into_bytes();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_of = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|word| word == mark)
        };
        pids.filter(is_of).collect()
    }

    /// Returns descriptions of the differences between the current state of the tree's threads and
    /// their state before the run.
    fn wrongs(&self) -> Vec<String> {
        let mut wrongs = Vec::new();
        for pid in self.processes() {
            let Some(process) = Tid::new(pid) else { continue };
            for tid in threads_of(process).unwrap_or_default() {
                let (Ok(scheduling), Ok(affinity)) = (get_scheduling(tid), get_affinity(tid))
                else {
                    continue;
                };
                let is_plain = matches!(scheduling.class, Scheduling::Other { nice } if nice >= 0);
                if !is_plain || affinity != self.affinity {
                    wrongs.push(format!("{tid} of {pid}: {scheduling:?} on {affinity:?}"));
                }
            }
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            if groups.contains("/slackline-") {
                wrongs.push(format!("{pid} is in {groups}"));
            }
        }
        wrongs
    }

    fn is_held(&self) -> bool {
        !self.wrongs().is_empty()
    }

    /// Asserts that no thread of the tree is changed any more. Threads of processes that were
    /// started during the run are included.
    #[track_caller]
    fn is_given_back_as_it_is(&self) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while self.is_held() && std::time::Instant::now() < deadline {
            nap();
        }
        assert_eq!(self.wrongs(), Vec::<String>::new());
    }

    /// Asserts that no thread of the tree is changed any more, and that the tree starts new
    /// processes.
    #[track_caller]
    fn is_given_back(&self) {
        self.is_given_back_as_it_is();
        let before: Vec<i32> = self.processes();
        wait_until("the tree to start processes", || {
            self.processes().iter().any(|pid| !before.contains(pid))
        });
        assert_eq!(self.wrongs(), Vec::<String>::new());
        let group = |name: &str| name.starts_with(&format!("slackline-{}-", self.pid()));
        // The tree's cgroup is removed last, when it is empty.
        let left =
            || -> Vec<PathBuf> { groups().into_iter().flat_map(|it| below(&it, &group)).collect() };
        let deadline = std::time::Instant::now() + PATIENCE;
        while !left().is_empty() && std::time::Instant::now() < deadline {
            nap();
        }
        assert_eq!(left(), Vec::<PathBuf>::new());
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.first.kill();
        let _ = self.first.wait();
        for pid in self.processes() {
            kill(pid, Signal::KILL);
        }
    }
}

/// Returns the folder in which version 2 cgroups are mounted.
fn groups() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    Some(line.split(' ').nth(4)?.into())
}

/// Returns the folders below `folder` whose names satisfy the condition.
fn below(folder: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if is_wanted(&entry.file_name().to_string_lossy()) {
                found.push(entry.path());
            }
            found.extend(below(&entry.path(), is_wanted));
        }
    }
    found
}

#[test]
fn process_tree_is_restored_including_processes_started_during_the_run() {
    let Some(live) = live::begin() else { return };
    let tree = Tree::start();
    let runner = live.start(&scenario(&format!("pid = {}", tree.pid()), "1500ms"));
    wait_until("the tree to be scheduled", || tree.is_held());
    let ran = runner.end().ended_with(0);
    assert_eq!(ran.err, "");
    tree.is_given_back();
    live.nothing_is_left();
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Whom {
    Runner,
    Keeper,
    Both,
}

#[test]
fn process_tree_is_restored_if_live_run_or_keeper_dies() {
    let Some(live) = live::begin() else { return };
    // One round has no hard limit: its threads are demoted instead of frozen.
    for (round, whom) in
        [Whom::Runner, Whom::Keeper, Whom::Both, Whom::Runner].into_iter().enumerate()
    {
        let tree = Tree::start();
        let text = scenario(&format!("pid = {}", tree.pid()), "60s");
        let exact = round % 2 == 0;
        let text = if exact { text } else { text.replace(", exact = true", "") };
        let runner = live.start(&text);
        wait_until("the tree to be scheduled", || tree.is_held());
        let_pass(Duration::from_millis(200 + 111 * u64::try_from(round).unwrap()));
        let keepers = live.processes_of("keep");
        if whom != Whom::Runner {
            keepers.iter().for_each(|&pid| kill(pid, Signal::KILL));
        }
        if whom == Whom::Keeper {
            wait_until("another keeper", || {
                live.processes_of("keep").iter().any(|pid| !keepers.contains(pid))
            });
        }
        runner.signal(Signal::KILL);
        assert_eq!(runner.end().code, None);
        if whom == Whom::Both {
            live.run(&["doctor", "--free"]).good();
        }
        tree.is_given_back();
        live.nothing_is_left();
    }
}

/// A process is started during the run, and its parent ends. The process is then moved to another
/// cgroup. After that, only Slackline's journal and the list of its keeper process show that the
/// moved process must be restored.
#[test]
fn process_moved_from_cgroup_is_restored_if_live_run_dies() {
    let Some(live) = live::begin() else { return };
    for whom in [Whom::Runner, Whom::Both] {
        let Some((group, elsewhere)) =
            Group::make("test-of-lost").zip(Group::make("test-elsewhere"))
        else {
            println!("skipped: needs cgroups of version 2 that can be written");
            return;
        };
        let notes = live.place.path(&format!("{whom:?}"));
        let tree = Tree::start_as("first of lost", Some(&group.0), &notes);
        let runner = live.start(&scenario(&format!("cgroup = {:?}", group.0), "60s"));
        wait_until("the tree to be scheduled", || tree.is_held());
        let keepers = live.processes_of("keep");
        fs::write(&notes, "").unwrap();
        let lost = notes.with_extension("lost");
        wait_until("another process", || lost.exists());
        let lost: i32 = fs::read_to_string(lost).unwrap().trim().parse().unwrap();
        let is_raised = || {
            let now = get_scheduling(Tid::new(lost).unwrap()).unwrap();
            matches!(now.class, Scheduling::RoundRobin { .. } | Scheduling::Fifo { .. })
        };
        wait_until("the process to be real-time", is_raised);
        wait_until("the process to be in a journal", || {
            let files =
                fs::read_dir(KeeperCommand::STATE_DIRECTORY).into_iter().flatten().flatten();
            let mut journals = files.filter_map(|file| fs::read_to_string(file.path()).ok());
            journals.any(|journal| journal.contains(&format!(" {lost} ")))
        });
        // A stopped runner cannot notice the move.
        runner.signal(Signal::STOP);
        fs::write(elsewhere.0.join("cgroup.procs"), lost.to_string()).unwrap();
        if whom == Whom::Both {
            keepers.iter().for_each(|&pid| kill(pid, Signal::KILL));
        }
        runner.signal(Signal::KILL);
        assert_eq!(runner.end().code, None);
        if whom == Whom::Both {
            assert!(is_raised(), "only `doctor --free` restores the process");
            live.run(&["doctor", "--free"]).good();
        }
        tree.is_given_back_as_it_is();
        live.nothing_is_left();
    }
}

/// A cgroup that Slackline did not make. It is removed when this value is dropped.
struct Group(PathBuf);

impl Group {
    fn make(name: &str) -> Option<Group> {
        let path = groups()?.join(format!("{name}-{}.service", std::process::id()));
        fs::create_dir(&path).ok().map(|()| Group(path))
    }

    fn name(&self) -> String {
        self.0.file_name().unwrap().to_string_lossy().into_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            nap();
        }
    }
}

#[test]
fn cgroup_or_unit_named_as_target_is_scheduled_and_restored() {
    let Some(live) = live::begin() else { return };
    let Some(group) = Group::make("test-of-trees") else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let tree = Tree::start_in(Some(&group.0));
    let own = format!("cgroup = {:?}", group.0);
    for (target, killed) in [
        (own.clone(), false),
        (format!("cgroup = \"/{}\"", group.name()), false),
        (format!("unit = {:?}", group.name()), false),
        (format!("unit = {:?}", group.name()), true),
        (own, true),
    ] {
        let runner = live.start(&scenario(&target, if killed { "60s" } else { "1s" }));
        wait_until("the tree to be scheduled", || tree.is_held());
        if killed {
            runner.signal(Signal::KILL);
            assert_eq!(runner.end().code, None);
        } else {
            runner.end().ended_with(0).shows("tree");
        }
        tree.is_given_back();
        assert_eq!(fs::read_to_string(group.0.join("cgroup.freeze")).unwrap(), "0\n");
        live.nothing_is_left();
    }
}

#[test]
fn invalid_process_tree_target_is_refused_with_the_reason() {
    let Some(live) = live::begin() else { return };
    let Some(group) = Group::make("test-of-nobody") else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let empty = format!("cgroup = {:?}", group.0);
    for (target, says) in [
        (empty.as_str(), " has no processes"),
        ("cgroup = \"/no-such-group\"", "there is no cgroup /no-such-group of version 2"),
        ("unit = \"no-such.service\"", "no cgroup of version 2 has the name \"no-such.service\""),
        (&format!("pid = {}", std::process::id()), "this program itself is in it"),
    ] {
        live.place.write("it.toml", scenario(target, "1s").as_bytes());
        live.run(&["run", "it.toml"]).refused(3).says("error: `tree`: ").says(says);
    }
    live.nothing_is_left();
}

/// Only a child of the tree is in another cgroup.
#[test]
fn process_tree_in_several_cgroups_is_refused_and_not_changed() {
    let Some(live) = live::begin() else { return };
    let Some((group, other)) = Group::make("test-of-one").zip(Group::make("test-of-other")) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let tree = Tree::start_as("first of two", Some(&group.0), Path::new("/dev/null"));
    wait_until("both children", || tree.processes().len() == 3);
    let child = tree.processes().into_iter().find(|&pid| pid != tree.pid()).unwrap();
    fs::write(other.0.join("cgroup.procs"), child.to_string()).unwrap();
    let target = format!("pid = {}", tree.pid());
    live.place.write("it.toml", scenario(&target, "1s").as_bytes());
    live.run(&["run", "it.toml"]).refused(3).says("a process tree in several cgroups");
    let pid = tree.pid().to_string();
    live.run(&["hold", "--pid", &pid, "--cpu", "30%"]).refused(3).says("in several cgroups");
    tree.is_given_back_as_it_is();
    live.nothing_is_left();
    drop(tree);
}

/// A command that this program started ends with its VM or with the run, also if it ignores the
/// signal and starts processes until it is killed.
#[test]
fn live_run_ends_processes_that_start_while_run_is_ending() {
    let Some(live) = live::begin() else { return };
    let script = "trap '' TERM; while :; do sleep 1000 & sleep 0.1; done";
    let target = format!("command = [\"sh\", \"-c\", {script:?}]");
    let runner = live.start(&scenario(&target, "60s"));
    wait_until("a process", || live.processes().iter().any(|it| it.1.starts_with("sleep")));
    runner.signal(Signal::INT);
    runner.end();
    live.nothing_is_left();
    // The VM leaves during the run.
    let leaves = scenario(&target, "4s") + "leaves = \"500ms\"\n";
    live.start(&leaves).end().ended_with(0);
    live.nothing_is_left();
}
