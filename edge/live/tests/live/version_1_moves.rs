//! Tests with targets that move themselves to cgroups of version 1. The tests need root.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{self, Target, begin, cpus, kill};
use crate::escapes::{Adversary, NOBODY, Open, Pinned, is_real_time, scheduled};
use rustix::process::Signal;
use slackline_linux::cgroup::{Cpuset, descendants};
use slackline_linux::sys::{online_cpus, process_cpu_time};
use slackline_live::session::{ForeignChange, JoinTarget};
use slackline_units::Span;

/// A new cgroup with the version 1 controller `cpu`. It has no real-time budget: on a kernel with
/// real-time budgets, no thread in it can be real-time.
struct WithoutBudget(PathBuf);

impl WithoutBudget {
    fn make() -> Option<WithoutBudget> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let has_cpu = |line: &&str| {
            let options = line.rsplit(' ').next().unwrap_or_default();
            line.contains(" - cgroup ") && options.split(',').any(|option| option == "cpu")
        };
        let point = PathBuf::from(mounts.lines().find(has_cpu)?.split(' ').nth(4)?);
        let folder = point.join(format!("test-moves-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        Some(WithoutBudget(folder))
    }
}

impl Drop for WithoutBudget {
    fn drop(&mut self) {
        common::wait_until("the cgroup to be removed", || {
            fs::remove_dir(&self.0).is_ok() || !self.0.is_dir()
        });
    }
}

/// Asserts that a process stays within its limit although it moves itself to the cgroup `group`
/// again and again. Of the files of this cgroup, the process may write only the lists of members.
#[track_caller]
fn stays_within_limit(group: &Path) {
    for file in ["tasks", "cgroup.procs"] {
        chown(group.join(file), Some(NOBODY), None).unwrap();
    }
    let adversary = Adversary::start(&format!("move {}", group.display()));
    let mut open = Open::holding(JoinTarget::Tree(adversary.pid()), true);
    open.until("the adversary to move", |open| {
        !open.meddled().is_empty() || !open.contested().is_empty()
    });
    let before = adversary.used();
    open.go_on(Duration::from_secs(3));
    let used = adversary.used() - before;
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    assert!(used <= Span::from_secs(3) / 5 + Span::from_ms(400), "{used}");
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
}

/// Root moves one process of a tree to a cpuset that does not contain the CPU of the session.
#[test]
fn process_tree_keeps_limit_after_root_moves_child_to_cpuset() {
    let Some(_alone) = begin() else { return };
    let Some(pinned) = Pinned::make() else { return };
    pinned.set(&online_cpus().unwrap().without(&scheduled()));
    let target = Target::of_shell("(while :; do :; done) & while :; do :; done");
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.go_on(Duration::from_millis(300));
    let child = *descendants(target.pid()).unwrap().last().unwrap();
    let former = Cpuset::of(child, child).unwrap().unwrap().group;
    fs::write(pinned.0.join("tasks"), child.to_string()).unwrap();
    let is_it = |finding: &ForeignChange| match finding {
        ForeignChange::Cpus { tid, cpuset: Some(_), .. } => *tid == child,
        _ => false,
    };
    open.until("the move to be noticed", |open| open.contested().into_iter().any(is_it));
    let used = || process_cpu_time(target.pid()).unwrap() + process_cpu_time(child).unwrap();
    let before = used();
    open.go_on(Duration::from_secs(2));
    let during = used() - before;
    let is_first_real_time = is_real_time(target.pid());
    fs::write(former.join("tasks"), child.to_string()).unwrap();
    open.until("the tree to be settled", |open| open.settled() > 0);
    open.until("the child to be real-time again", |_| is_real_time(child));
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    kill(child.raw(), Signal::KILL);
    drop(target);
    assert!(is_first_real_time);
    assert!(during <= Span::from_secs(2) / 5 + Span::from_ms(300), "{during}");
}

/// A process tree runs on two CPUs. Root moves one of its processes to a cpuset with only one of
/// these CPUs.
#[test]
fn process_tree_receives_reserved_time_if_child_has_smaller_cpuset() {
    let Some(_alone) = begin() else { return };
    let Some(pinned) = Pinned::make() else { return };
    pinned.set(&scheduled());
    let target = Target::of_shell("(while :; do :; done) & while :; do :; done");
    let both = cpus(2).into_iter().collect();
    let mut open = Open::holding(JoinTarget::Wide(target.pid(), both), true);
    open.go_on(Duration::from_millis(300));
    let child = *descendants(target.pid()).unwrap().last().unwrap();
    let former = Cpuset::of(child, child).unwrap().unwrap().group;
    fs::write(pinned.0.join("tasks"), child.to_string()).unwrap();
    open.until("the move to be noticed", |open| !open.contested().is_empty());
    let used = || process_cpu_time(target.pid()).unwrap() + process_cpu_time(child).unwrap();
    let before = used();
    open.go_on(Duration::from_secs(3));
    let during = used() - before;
    fs::write(former.join("tasks"), child.to_string()).unwrap();
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    kill(child.raw(), Signal::KILL);
    drop(target);
    // The tree receives a fifth of each CPU. If it were stopped again and again, it would receive
    // about a sixth of that.
    assert!(during >= Span::from_secs(3) / 5, "{during}");
}

#[test]
fn process_moving_to_group_without_realtime_budget_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    let Some(group) = WithoutBudget::make() else {
        println!("skipped: needs a controller `cpu` of version 1 that can be written");
        return;
    };
    stays_within_limit(&group.0);
}

#[test]
fn process_moving_to_cpuset_of_another_cpu_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    let Some(pinned) = Pinned::make() else { return };
    pinned.set(&online_cpus().unwrap().without(&scheduled()));
    stays_within_limit(&pinned.0);
}
