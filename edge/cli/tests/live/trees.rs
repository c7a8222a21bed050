//! Processes that start others: held and counted as one, whatever they start, and given back with
//! all of it. Needs root and cgroups of version 2.
//!
//! What is asserted holds on any machine, however busy: that what is told is what the processes
//! count of themselves, that they get no more than they are promised, and that nothing of them is
//! left real-time, pinned, frozen or moved.

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

/// Which part a process of a tree plays.
const PART: &str = "SLACKLINE_TEST_TREE";
/// Marks all processes of one tree.
const MARK: &str = "SLACKLINE_TEST_TREE_OF";
/// Where its first process writes what it and all others have used.
const NOTES: &str = "SLACKLINE_TEST_TREE_NOTES";

/// What the processes of a tree have as their own.
const NICE: i32 = 7;

fn own_pid() -> Tid {
    Tid::new(i32::try_from(std::process::id()).unwrap()).unwrap()
}

/// Ends with whoever started it, if that ends otherwise than planned.
fn play_alone() -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "trees::part_tree", "--nocapture", "--quiet"]);
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

/// What a process that has been waited for has used, and all that it waited for.
fn of_children() -> Span {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // `cutime` and `cstime`, in hundredths of a second.
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    Span::from_ms(10 * (ticks(13) + ticks(14)))
}

/// The body of a process of a tree: two that spin, or one that starts others all the time, each of
/// which spins a little and ends.
#[test]
fn part_tree() {
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
            // It ends with this one.
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
        // Spins, and once it is told to starts one that leaves it and spins as well.
        "first of lost" => {
            let notes = env::var_os(NOTES).unwrap();
            while !Path::new(&notes).exists() {
                std::hint::spin_loop();
            }
            let script = "\"$@\" >/dev/null 2>&1 & echo $! >\"$0.pid\"; mv \"$0.pid\" \"$0.lost\"";
            let mut command = Command::new("sh");
            command.arg("-c").arg(script).arg(&notes).arg(env::current_exe().unwrap());
            command
                .args(["--exact", "trees::part_tree", "--nocapture", "--quiet"])
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

/// A line of what has been used by when, of all and of each spinner, as long as all are held: they
/// run longer than that, and outside of it have all that there is.
fn note(spinners: &[Child]) {
    let Some(path) = env::var_os(NOTES) else { return };
    let class = get_scheduling(own_pid()).unwrap().class;
    if !matches!(class, Scheduling::RoundRobin { .. }) {
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

/// How fast each number of the notes grew, in millionths of a CPU.
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

/// A scenario of one domain, a third of a CPU and no more.
fn scenario(target: &str, length: &str) -> String {
    format!(
        "title = \"tree\"\nlength = \"{length}\"\npolicy = {{ name = \"edf\" }}\n[[domain]]\n\
         name = \"tree\"\nlive = {{ {target} }}\n\
         share.edf = {{ slice = \"3ms\", period = \"10ms\", exact = true }}\n"
    )
}

/// Of a CPU, in millionths, by the processes' own count while they are held: a tenth more than they
/// are promised. Four seconds have one slice more, 20 us a period, and one late stop.
const AT_MOST: u64 = 330_000;

/// Runs a tree as a command for four seconds: what it is said to have got, and what it counted.
fn run_tree(live: &Live, part: &str) -> (u64, Vec<u64>) {
    let program = env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let target = format!(
        "command = [{program:?}, \"--exact\", \"trees::part_tree\", \"--nocapture\", \"--quiet\"]"
    );
    live.place.write("it.toml", scenario(&target, "4s").as_bytes());
    let notes = live.place.path("notes");
    let mut command = live.command(&["run", "it.toml", "--json"]);
    let output = command.env(PART, part).env(NOTES, &notes).output().unwrap();
    let ran = crate::common::Ran::new(&output).good();
    let whole: serde_json::Value = serde_json::from_str(&ran).expect("JSON");
    live.nothing_is_left();
    (delivered(&whole["runs"][0], "tree"), rates(&notes))
}

/// Both children together have what their parent is promised: before, that one alone was held, and
/// they took a CPU each.
#[test]
fn children_that_spin_get_together_what_is_promised_and_take_turns() {
    let Some(live) = live::begin() else { return };
    let (told, rates) = run_tree(&live, "first of two");
    let [all, one, other] = rates[..] else { panic!("{rates:?}") };
    assert!(told.abs_diff(all) <= 30_000, "told {told}, counted {all}");
    assert!(all <= AT_MOST, "{all} of 300000");
    // The one that did not run in the last turn runs in the next; who else runs may change that.
    assert!(one.min(other) >= all / 5, "{one} and {other}");
}

#[test]
fn children_that_have_ended_are_counted() {
    let Some(live) = live::begin() else { return };
    let (told, rates) = run_tree(&live, "first of many");
    // What they use before they are seen by whoever counts here, and while that is written.
    assert!(told.abs_diff(rates[0]) <= 50_000, "told {told}, counted {}", rates[0]);
    assert!(rates[0] <= AT_MOST, "{} of 300000", rates[0]);
}

/// Processes that were there before: one that starts others all the time, one that spins, and one
/// with a thread that spins.
struct Tree {
    first: Child,
    mark: String,
    affinity: CpuSet,
}

impl Tree {
    fn start() -> Tree {
        Tree::start_in(None)
    }

    /// In a group, if one is given.
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
        command.args(["--exact", "trees::part_tree", "--nocapture", "--quiet"]);
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

    /// What is not as it was, of all its threads that are there.
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

    /// Nobody is held, whoever was started when.
    #[track_caller]
    fn is_given_back_as_it_is(&self) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while self.is_held() && std::time::Instant::now() < deadline {
            nap();
        }
        assert_eq!(self.wrongs(), Vec::<String>::new());
    }

    /// The same, and it goes on.
    #[track_caller]
    fn is_given_back(&self) {
        self.is_given_back_as_it_is();
        let before: Vec<i32> = self.processes();
        wait_until("the tree to start others", || {
            self.processes().iter().any(|pid| !before.contains(pid))
        });
        assert_eq!(self.wrongs(), Vec::<String>::new());
        let group = |name: &str| name.starts_with(&format!("slackline-{}-", self.pid()));
        // Its group goes last, when the last one is out of it.
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

/// Where cgroups of version 2 are mounted.
fn groups() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    Some(line.split(' ').nth(4)?.into())
}

/// The folders below one whose names are so.
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
fn a_tree_is_given_back_with_all_that_it_started_meanwhile() {
    let Some(live) = live::begin() else { return };
    let tree = Tree::start();
    let runner = live.start(&scenario(&format!("pid = {}", tree.pid()), "1500ms"));
    wait_until("the tree to be held", || tree.is_held());
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
fn a_tree_is_given_back_whoever_is_killed() {
    let Some(live) = live::begin() else { return };
    // With all it may have, too: then it is lowered and raised where otherwise it is frozen.
    for (round, whom) in
        [Whom::Runner, Whom::Keeper, Whom::Both, Whom::Runner].into_iter().enumerate()
    {
        let tree = Tree::start();
        let text = scenario(&format!("pid = {}", tree.pid()), "60s");
        let exact = round % 2 == 0;
        let text = if exact { text } else { text.replace(", exact = true", "") };
        let runner = live.start(&text);
        wait_until("the tree to be held", || tree.is_held());
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

/// One that was started while its tree was held, that lost its parent, and that somebody moves
/// elsewhere at the moment when nobody but the keeper, or the journal, can know of it.
#[test]
fn who_has_left_a_tree_is_given_back_whoever_is_killed() {
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
        wait_until("the tree to be held", || tree.is_held());
        let keepers = live.processes_of("keep");
        fs::write(&notes, "").unwrap();
        let lost = notes.with_extension("lost");
        wait_until("another process", || lost.exists());
        let lost: i32 = fs::read_to_string(lost).unwrap().trim().parse().unwrap();
        let is_raised = || {
            let now = get_scheduling(Tid::new(lost).unwrap()).unwrap();
            matches!(now.class, Scheduling::RoundRobin { .. })
        };
        wait_until("it to be real-time", is_raised);
        wait_until("it to be written down", || {
            let files =
                fs::read_dir(KeeperCommand::STATE_DIRECTORY).into_iter().flatten().flatten();
            let mut journals = files.filter_map(|file| fs::read_to_string(file.path()).ok());
            journals.any(|journal| journal.contains(&format!(" {lost} ")))
        });
        // Whoever is stopped looks after nobody.
        runner.signal(Signal::STOP);
        fs::write(elsewhere.0.join("cgroup.procs"), lost.to_string()).unwrap();
        if whom == Whom::Both {
            keepers.iter().for_each(|&pid| kill(pid, Signal::KILL));
        }
        runner.signal(Signal::KILL);
        assert_eq!(runner.end().code, None);
        if whom == Whom::Both {
            assert!(is_raised(), "nobody has given it back yet");
            live.run(&["doctor", "--free"]).good();
        }
        tree.is_given_back_as_it_is();
        live.nothing_is_left();
    }
}

/// A group that is not ours, gone when this is.
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
fn a_cgroup_and_a_unit_are_held_and_given_back() {
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
        (own, true),
    ] {
        let runner = live.start(&scenario(&target, if killed { "60s" } else { "1s" }));
        wait_until("the tree to be held", || tree.is_held());
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
fn what_cannot_be_held_as_one_is_said() {
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
        (&format!("pid = {}", std::process::id()), "this program is in it"),
    ] {
        live.place.write("it.toml", scenario(target, "1s").as_bytes());
        live.run(&["run", "it.toml"]).refused(3).says("error: `tree`: ").says(says);
    }
    live.nothing_is_left();
}
