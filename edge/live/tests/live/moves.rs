//! Tests with targets that leave their cgroup, stop their first process, or set limits of their own
//! cgroups. Also tests with targets that root moves. All of these tests need root.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{self, Target, begin, kill, wait_until};
use crate::contested::CpuGroup;
use crate::escapes::{
    Adversary, Group, NOBODY, NOTICED, Open, Pinned, is_real_time, scheduled, spin,
};
use rustix::process::Signal;
use slackline_fence::Fence;
use slackline_linux::cgroup::{Hierarchies, TreePlace, descendants};
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, monotonic, online_cpus, own_tid, process_cpu_time,
    set_scheduling,
};
use slackline_linux::thread::ThreadRef;
use slackline_live::mechanism::{Bound, Demand, EnforceTarget, kernel_mechanism};
use slackline_live::session::{EnforcedChange, EnforcedWatch, ForeignChange, JoinTarget};
use slackline_units::{Enforcement, Reservation, Span};

/// Time that an adversary waits before its first move, so that the test can first let a session
/// schedule it.
const BEFORE: Duration = Duration::from_millis(2_500);

/// Moves this process to another cgroup again and again, and makes it an ordinary process each
/// time. Never blocks.
pub(crate) fn move_repeatedly(group: &str, removes: bool) -> ! {
    let ordinary = SchedulingOf { class: Scheduling::Other { nice: 0 }, reset_on_fork: true };
    spin(BEFORE);
    loop {
        // The results are ignored, since the adversary repeats the calls.
        let _ = set_scheduling(own_tid(), &ordinary);
        let _ = fs::write(Path::new(group).join("cgroup.procs"), "0");
        if removes {
            // The cgroup that the session has made is below the former cgroup of this process.
            let former = fs::read_dir(Path::new(group).with_file_name("a")).into_iter().flatten();
            former.flatten().for_each(|entry| drop(fs::remove_dir(entry.path())));
        }
        spin(Duration::from_millis(1));
    }
}

/// Moves this process to the cgroup `group` again and again, and never blocks. Also makes the
/// cgroup `b` in `group` threaded. After that, the kernel no longer allows processes in `a`, the
/// former cgroup of this process.
pub(crate) fn move_for_good(group: &str) -> ! {
    let ordinary = SchedulingOf { class: Scheduling::Other { nice: 0 }, reset_on_fork: true };
    spin(BEFORE);
    loop {
        // The results are ignored, since the adversary repeats the calls.
        let _ = set_scheduling(own_tid(), &ordinary);
        let _ = fs::write(Path::new(group).join("cgroup.procs"), "0");
        let _ = fs::write(Path::new(group).join("b/cgroup.type"), "threaded");
        spin(Duration::from_millis(1));
    }
}

/// Writes a text to a file again and again, and never blocks.
pub(crate) fn write_repeatedly(text: &str, file: &str) -> ! {
    loop {
        // The result is ignored, since the adversary repeats the call.
        let _ = fs::write(file, text);
        spin(Duration::from_millis(1));
    }
}

/// Starts a child process that moves itself to another cgroup again and again. The child is started
/// only when a session already schedules this process.
pub(crate) fn let_child_move(group: &str) -> ! {
    spin(BEFORE / 2);
    let mut command = common::again("escapes::entry_point_of_helper_adversary");
    command.env(common::PART, format!("adversary move {group}"));
    command.stdout(std::process::Stdio::null());
    slackline_linux::sys::die_with_us(&mut command);
    let ended = command.spawn().unwrap().wait();
    panic!("the child process ended: {ended:?}");
}

/// A cgroup of version 2 that belongs to `nobody`, with the cgroups `a` and `b` in it.
pub(crate) struct Delegated(pub(crate) PathBuf);

impl Delegated {
    pub(crate) fn make() -> Option<Delegated> {
        Delegated::make_in(|line| line.contains(" - cgroup2 "))
    }

    /// Makes the cgroups in the version 1 hierarchy with the controller `cpu`. If there is no such
    /// hierarchy that can be written, prints that the test is skipped and returns `None`.
    pub(crate) fn make_with_cpu() -> Option<Delegated> {
        let has_cpu = |line: &str| {
            let options = line.rsplit(' ').next().unwrap_or_default();
            line.contains(" - cgroup ") && options.split(',').any(|option| option == "cpu")
        };
        let made = Delegated::make_in(has_cpu);
        if made.is_none() {
            println!("skipped: needs a controller `cpu` of version 1 that can be written");
        }
        made
    }

    /// Makes the cgroups in one hierarchy. `is_it` returns true for the line of this hierarchy in
    /// the table of mounts.
    pub(crate) fn make_in(is_it: impl Fn(&str) -> bool) -> Option<Delegated> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let line = mounts.lines().find(|line| is_it(line))?;
        let folder = PathBuf::from(line.split(' ').nth(4)?);
        let folder = folder.join(format!("test-delegated-{}", std::process::id()));
        for folder in [folder.clone(), folder.join("a"), folder.join("b")] {
            fs::create_dir(&folder).ok()?;
            chown(&folder, Some(NOBODY), None).ok()?;
            let files = ["cgroup.procs", "cgroup.freeze", "cgroup.type"];
            for file in files.map(|file| folder.join(file)) {
                if file.exists() {
                    chown(&file, Some(NOBODY), None).ok()?;
                }
            }
        }
        Some(Delegated(folder))
    }

    /// Returns the CPU time of all processes that are or were in the cgroup.
    pub(crate) fn used(&self) -> Span {
        let text = fs::read_to_string(self.0.join("cpu.stat")).unwrap();
        let used = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        Span::from_us(used.unwrap().parse().unwrap())
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let deadline = Instant::now() + common::PATIENCE;
        for folder in [self.0.join("a"), self.0.join("b"), self.0.clone()] {
            while fs::remove_dir(&folder).is_err() && folder.is_dir() && Instant::now() < deadline {
                common::nap();
            }
        }
    }
}

/// Returns the path of the cgroup that a session has made for a process. Also returns the path of
/// the file in the parent cgroup to which a thread id is written to move that thread there.
fn own_group(pid: Tid) -> (PathBuf, PathBuf) {
    let group = common::our_groups(pid).into_iter().find(|group| {
        ["cgroup.threads", "tasks"].iter().any(|file| {
            let listed = fs::read_to_string(group.join(file)).unwrap_or_default();
            listed.lines().any(|line| line == pid.to_string())
        }) && !group.starts_with("/sys/fs/cgroup/cpuset")
    });
    let group = group.expect("a scheduled target has a cgroup");
    let file = if group.join("cgroup.threads").exists() { "cgroup.threads" } else { "tasks" };
    let above = group.parent().unwrap().join(file);
    (group, above)
}

/// Returns the longest CPU time that a target may use in `length`. It is a fifth of `length`, the
/// limit of all targets here, plus `more` milliseconds for the time until an audit.
pub(crate) fn limit_in(length: Span, more: u64) -> Span {
    length / 5 + Span::from_ms(more)
}

#[test]
fn process_tree_moved_by_root_is_contested_until_moved_back() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.go_on(Duration::from_millis(300));
    let own = own_group(target.pid()).0;
    let Some(elsewhere) = Group::with(target.pid()) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    open.until_contested();
    let finding = open.contested()[0].to_string();
    assert!(finding.contains(&elsewhere.0.display().to_string()), "{finding}");
    assert!(!is_real_time(target.pid()));
    assert_eq!(open.session.members().count(), 1);
    let (before, told) = (target.used(), open.told());
    open.go_on(Duration::from_secs(1));
    let (used, told) = (target.used() - before, open.told() - told);
    assert!(told + Span::from_ms(150) > used, "{used} used, {told} told");
    fs::write(own.join("cgroup.procs"), target.pid().to_string()).unwrap();
    open.until("the tree to be settled", |open| open.settled() == 1);
    open.until("the tree to be real-time again", |_| is_real_time(target.pid()));
    let before = target.used();
    open.go_on(Duration::from_secs(2));
    let used = target.used() - before;
    assert!(used <= limit_in(Span::from_secs(2), 100), "{used}");
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    target.is_given_back();
    drop(target);
}

/// Root moves the process to another cgroup and ends it there. The member ends only when its last
/// process has ended.
#[test]
fn process_tree_moved_by_root_remains_until_last_process_ends() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.go_on(Duration::from_millis(300));
    let Some(elsewhere) = Group::with(target.pid()) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    open.until_contested();
    open.go_on(Duration::from_millis(300));
    assert_eq!(open.session.members().count(), 1);
    drop(target);
    open.until("the member to end", |open| open.session.members().next().is_none());
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    drop(elsewhere);
}

#[test]
fn process_moving_itself_out_of_its_tree_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    for how in ["move", "let-move", "move-and-remove"] {
        let Some(group) = Delegated::make() else {
            println!("skipped: needs cgroups of version 2 that can be written");
            return;
        };
        let adversary = Adversary::start(&format!("{how} {}", group.0.join("b").display()));
        fs::write(group.0.join("a/cgroup.procs"), adversary.pid().to_string()).unwrap();
        let mut open = Open::holding(JoinTarget::Tree(adversary.pid()), true);
        open.until("the adversary to move", |open| !open.meddled().is_empty());
        let (before, told) = (group.used(), open.told());
        open.go_on(Duration::from_secs(3));
        let used = group.used() - before;
        // The session counts CPU time outside the tree at the next audit.
        open.go_on(Duration::from_millis(100));
        let told = open.told() - told;
        assert!(told + Span::from_ms(150) >= used, "{how}: {told} told, {used} used");
        assert!(open.contested().is_empty(), "{how}: {:?}", open.contested());
        assert!(used <= limit_in(Span::from_secs(3), 400), "{how}: {used}");
        let mut records = Vec::new();
        open.session.close(&mut records).unwrap();
        assert!(!is_real_time(adversary.tid));
        drop(adversary);
        drop(group);
    }
}

#[test]
fn process_tree_stays_within_limit_after_first_process_stops_itself() {
    let Some(_alone) = begin() else { return };
    let target = Target::of_shell("sleep 1; (while :; do :; done) & kill -STOP $$; wait");
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.until_contested_within(Duration::from_secs(6));
    let is_it = matches!(open.contested()[..], [ForeignChange::Stopped { .. }]);
    let child = *descendants(target.pid()).unwrap().last().unwrap();
    let before = process_cpu_time(child).unwrap();
    open.go_on(Duration::from_secs(2));
    let used = process_cpu_time(child).unwrap() - before;
    let id = open.session.members().next().unwrap().id;
    let now = open.session.now();
    open.session.pause(id, now).unwrap();
    let at_pause = process_cpu_time(child).unwrap();
    open.go_on(Duration::from_millis(500));
    let during_pause = process_cpu_time(child).unwrap() - at_pause;
    kill(target.pid().raw(), Signal::CONT);
    open.until("the tree to be settled", |open| open.settled() == 1);
    kill(child.raw(), Signal::KILL);
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    assert!(is_it && child != target.pid());
    assert!(during_pause <= Span::from_ms(20), "{during_pause}");
    assert!(used <= limit_in(Span::from_secs(2), 300), "{used}");
    assert!(used > Span::from_ms(200), "the child keeps its reservation: {used}");
}

/// The target's user may set a quota of the target's cgroup. The test sets the quota as root. That
/// makes no difference, since the session checks only the owner of the file.
#[test]
fn quota_set_by_user_of_target_lifts_no_hard_limit() {
    let Some(_alone) = begin() else { return };
    let adversary = Adversary::start("spin");
    let Some(group) = CpuGroup::with(adversary.pid()) else {
        println!("skipped: needs a controller `cpu` of version 1 that can be written");
        return;
    };
    let quota = group.0.join("cpu.cfs_quota_us");
    chown(&quota, Some(NOBODY), None).unwrap();
    let mut open = Open::holding(JoinTarget::Tree(adversary.pid()), true);
    open.go_on(Duration::from_millis(2_200));
    fs::write(&quota, "95000").unwrap();
    let before = adversary.used();
    open.go_on(Duration::from_secs(3));
    let used = adversary.used() - before;
    assert!(used <= limit_in(Span::from_secs(3), 300), "{used}");
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    let is_it = |found: &&&ForeignChange| matches!(found, ForeignChange::Limited { .. });
    assert_eq!(open.meddled().iter().filter(is_it).count(), 1, "{:?}", open.meddled());
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    drop(adversary);
    drop(group);
}

#[test]
fn target_frozen_by_its_own_user_is_not_contested() {
    let Some(_alone) = begin() else { return };
    let adversary = Adversary::start("spin");
    let Some(group) = Group::with(adversary.pid()) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let freeze = group.0.join("cgroup.freeze");
    chown(&freeze, Some(NOBODY), None).unwrap();
    let mut open = Open::holding(JoinTarget::Tree(adversary.pid()), true);
    open.go_on(Duration::from_millis(200));
    fs::write(&freeze, "1").unwrap();
    open.go_on(Duration::from_millis(2_200));
    fs::write(&freeze, "0").unwrap();
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    let is_it = |found: &&ForeignChange| matches!(found, ForeignChange::Frozen { .. });
    assert!(open.meddled().into_iter().any(|found| is_it(&found)), "{:?}", open.meddled());
    open.until("the target to be real-time", |_| is_real_time(adversary.tid));
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    drop(adversary);
    drop(group);
}

#[test]
fn target_leaving_managed_cpus_by_own_cpuset_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    let Some(pinned) = Pinned::make() else { return };
    let adversary = Adversary::start("spin");
    pinned.set(&online_cpus().unwrap());
    chown(pinned.0.join("cpuset.cpus"), Some(NOBODY), None).unwrap();
    fs::write(pinned.0.join("tasks"), adversary.tid.to_string()).unwrap();
    let thread = ThreadRef::open(adversary.pid(), adversary.tid).unwrap();
    let mut open = Open::holding(JoinTarget::Thread(thread), true);
    open.go_on(Duration::from_millis(300));
    pinned.set(&online_cpus().unwrap().without(&scheduled()));
    let before = adversary.used();
    open.go_on(Duration::from_secs(4));
    let used = adversary.used() - before;
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    assert!(used <= limit_in(Span::from_secs(4), 300), "{used}");
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    drop(adversary);
}

#[test]
fn thread_moved_out_of_freezer_after_joining_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let thread = ThreadRef::open(target.pid(), target.pid()).unwrap();
    let mut open = Open::holding(JoinTarget::Thread(thread), true);
    open.go_on(Duration::from_millis(500));
    let (former, above) = own_group(target.pid());
    fs::write(&above, target.pid().to_string()).unwrap();
    open.go_on(Duration::from_millis(200));
    let before = target.used();
    open.go_on(Duration::from_secs(3));
    let used = target.used() - before;
    assert!(used <= limit_in(Span::from_secs(3), 300), "{used} beside {}", former.display());
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    target.is_given_back();
    wait_until("its cgroups to be removed", || common::our_groups(target.pid()).is_empty());
}

/// Asserts that an adversary stays within its limit for 3 s. The adversary spins, and the session
/// already schedules it. `helper` is another process of the adversary's user, which works against
/// the session.
#[track_caller]
fn stays_limited_despite(helper: &str, adversary: &Adversary, open: &mut Open) {
    let helper = Adversary::start(helper);
    open.until("a change to be undone", |open| !open.meddled().is_empty());
    // Moves to another cgroup delay the session's own steps by up to 40 ms each, and on a busy host
    // by more. Stops become longer with each repetition, so a later measurement is lower.
    let mut measured = Vec::new();
    let within_limit = (0..3).any(|_| {
        let before = adversary.used();
        open.go_on(Duration::from_secs(3));
        measured.push(adversary.used() - before);
        measured.last().is_some_and(|used| *used <= limit_in(Span::from_secs(3), 600))
    });
    assert!(within_limit, "{measured:?}");
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    drop(helper);
    let before = adversary.used();
    open.until("the adversary to run again", |_| {
        adversary.used() > before + Span::from_ms(50) && is_real_time(adversary.tid)
    });
}

/// Starts a spinning process in the cgroup `a` of a delegated cgroup. If that is impossible, prints
/// the reason and returns `None`.
pub(crate) fn delegated_spinner() -> Option<(Delegated, Adversary)> {
    let Some(group) = Delegated::make() else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return None;
    };
    let adversary = Adversary::start("spin");
    fs::write(group.0.join("a/cgroup.procs"), adversary.pid().to_string()).unwrap();
    Some((group, adversary))
}

#[test]
fn process_moved_by_another_process_of_its_user_stays_limited() {
    let Some(_alone) = begin() else { return };
    let Some((group, adversary)) = delegated_spinner() else { return };
    let mut open = Open::holding(JoinTarget::Tree(adversary.pid()), true);
    open.go_on(Duration::from_millis(300));
    let file = group.0.join("b/cgroup.procs");
    let helper = format!("write {} {}", adversary.pid(), file.display());
    stays_limited_despite(&helper, &adversary, &mut open);
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    let now = fs::read_to_string(group.0.join("a/cgroup.procs")).unwrap();
    assert_eq!(now.trim(), adversary.pid().to_string());
    drop(adversary);
    drop(group);
}

#[test]
fn delegated_cgroup_thawed_by_its_user_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    let Some((group, adversary)) = delegated_spinner() else { return };
    let own = group.0.join("a");
    let mut open = Open::holding(JoinTarget::Group(TreePlace::existing(&own).unwrap()), true);
    open.go_on(Duration::from_millis(300));
    let helper = format!("write 0 {}", own.join("cgroup.freeze").display());
    stays_limited_despite(&helper, &adversary, &mut open);
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    let now = fs::read_to_string(own.join("cgroup.procs")).unwrap();
    assert_eq!(now.trim(), adversary.pid().to_string());
    drop(adversary);
    drop(group);
}

#[test]
fn released_process_tree_returns_from_confinement_to_former_cgroup() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let state = tempfile::tempdir().unwrap();
    let mut fence = Fence::start(common::keeper(state.path())).unwrap();
    let tree = fence.hold_tree(target.pid()).unwrap();
    let place = tree.place().clone();
    let list = |_: &TreePlace| place.processes().unwrap();
    let cell = fence.confine(target.pid(), &place.group, list).unwrap().unwrap();
    assert_eq!(cell.processes().unwrap(), [target.pid()]);
    let before = target.used();
    std::thread::sleep(Duration::from_millis(200));
    assert!(target.used() <= before + Span::from_ms(20), "the target runs in its cell");
    drop(fence);
    assert!(!cell.is_made() && !place.is_made());
    target.is_given_back();
}

#[test]
fn process_tree_is_contested_while_signal_stops_its_child() {
    let Some(_alone) = begin() else { return };
    let target = Target::of_shell("(while :; do :; done) & sleep 1000 & wait");
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.go_on(Duration::from_millis(300));
    let children = descendants(target.pid()).unwrap();
    for child in children.into_iter().filter(|child| *child != target.pid()) {
        let (settled, contested) = (open.settled(), open.contested().len());
        kill(child.raw(), Signal::STOP);
        let stopped = Instant::now();
        open.until("the stop to be noticed", |open| open.contested().len() > contested);
        assert!(stopped.elapsed() < NOTICED, "{:?}", stopped.elapsed());
        assert_eq!(**open.contested().last().unwrap(), ForeignChange::Stopped { pid: child });
        kill(child.raw(), Signal::CONT);
        open.until("the tree to be settled", |open| open.settled() > settled);
    }
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    kill_all_below(&target);
}

/// Kills the children of a shell. Otherwise they would continue after the shell has ended.
fn kill_all_below(target: &Target) {
    for child in descendants(target.pid()).unwrap() {
        if child != target.pid() {
            kill(child.raw(), Signal::KILL);
        }
    }
}

#[test]
fn process_tree_is_contested_after_root_user_moves_child_process() {
    let Some(_alone) = begin() else { return };
    let target = Target::of_shell("(while :; do :; done) & sleep 1000 & wait");
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    // In this time the session learns in which cgroups the processes of the tree are.
    open.go_on(Duration::from_millis(4_500));
    let child = *descendants(target.pid()).unwrap().last().unwrap();
    let Some(group) = CpuGroup::with(child) else {
        kill_all_below(&target);
        println!("skipped: needs a controller `cpu` of version 1 that can be written");
        return;
    };
    open.until_contested();
    let finding = open.contested()[0].to_string();
    assert!(finding.contains(&group.0.display().to_string()), "{finding}");
    let above = group.0.parent().unwrap().join("cgroup.procs");
    fs::write(above, child.to_string()).unwrap();
    open.until("the tree to be settled", |open| open.settled() == 1);
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    kill_all_below(&target);
    drop(group);
}

/// Process and its descendants, which a quota limits to 20 ms in 100 ms.
pub(crate) struct UnderQuota {
    fence: Fence,
    watches: [EnforcedWatch; 1],
    /// Changes that were found so far.
    seen: Vec<EnforcedChange>,
    _state: tempfile::TempDir,
}

impl UnderQuota {
    pub(crate) fn start(pid: Tid) -> UnderQuota {
        let state = tempfile::tempdir().unwrap();
        let mut fence = Fence::start(common::keeper(state.path())).unwrap();
        let thread = ThreadRef::open(pid, pid).unwrap();
        let each = Reservation::new(Span::from_ms(20), Span::from_ms(100)).unwrap();
        let (who, demand) =
            (EnforceTarget::Tree(thread.clone()), Demand::Time(each, Bound::AtMost));
        let quota = kernel_mechanism(Enforcement::Quota).unwrap();
        let enforced = quota.apply(&who, demand, &mut fence).unwrap();
        let limit = (None, Some(enforced.groups[0].as_path()));
        let hierarchies = Hierarchies::read().unwrap();
        let since = (&fence, Some(&hierarchies), monotonic());
        let watches = [EnforcedWatch::new((&who, &thread), limit, since)];
        UnderQuota { fence, watches, seen: Vec::new(), _state: state }
    }

    /// Checks the process for changes again and again, until `is_done` returns true for the list of
    /// all changes found so far.
    pub(crate) fn look_until(&mut self, what: &str, is_done: impl Fn(&[EnforcedChange]) -> bool) {
        let began = Instant::now();
        while !is_done(&self.seen) {
            assert!(began.elapsed() < common::PATIENCE, "not in time: {what}; {:?}", self.seen);
            let all = EnforcedWatch::look_at_all(&mut self.watches, &mut self.fence, monotonic());
            self.seen.extend(all.into_iter().flatten());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The process moves itself to another version 1 cgroup, which the user of the process owns.
#[test]
fn process_leaving_its_quota_group_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    let Some(group) = Delegated::make_with_cpu() else { return };
    let adversary = Adversary::start(&format!("move {}", group.0.join("b").display()));
    fs::write(group.0.join("a/cgroup.procs"), adversary.pid().to_string()).unwrap();
    let mut limited = UnderQuota::start(adversary.pid());
    limited.look_until("the process to move", |seen| !seen.is_empty());
    let (before, began) = (adversary.used(), Instant::now());
    limited.look_until("three seconds", |_| began.elapsed() >= Duration::from_secs(3));
    let used = adversary.used() - before;
    let is_undone = |change: &EnforcedChange| matches!(change, EnforcedChange::Meddled(_));
    assert!(limited.seen.iter().all(is_undone), "{:?}", limited.seen);
    assert!(used <= limit_in(Span::from_secs(3), 400), "{used}");
    drop(limited);
    drop(adversary);
    drop(group);
}
