//! Tests with targets that are stopped in a cell: a frozen cgroup of root, out of which users
//! cannot move processes. The tests need root.

use std::fs;
use std::time::Duration;

use crate::common::{self, Target, begin};
use crate::escapes::{Adversary, Group, Open, is_real_time};
use crate::moves::{Delegated, UnderQuota, delegated_spinner, limit_in};
use slackline_fence::Fence;
use slackline_linux::cgroup::{Hierarchies, TreePlace, descendants};
use slackline_linux::step::Hold;
use slackline_linux::sys::Tid;
use slackline_linux::thread::{ThreadRef, threads_of};
use slackline_live::session::JoinTarget;
use slackline_units::Span;

/// Returns the path of a process's version 2 cgroup, as the kernel names it.
fn unified_group(pid: Tid) -> String {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
    group.unwrap_or_default().to_owned()
}

fn is_in_cell(pid: Tid) -> bool {
    unified_group(pid).contains("slackline-cell-")
}

#[test]
fn process_with_two_scheduled_threads_returns_from_confinement_cgroup() {
    let Some(_alone) = begin() else { return };
    let target = Target::threaded();
    let pid = target.pid();
    let Some(group) = Group::with(pid) else {
        drop(target);
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let mut fence = Fence::start(common::keeper(state.path())).unwrap();
    let tids = threads_of(pid).unwrap();
    for &tid in &tids[..2] {
        fence.hold(&ThreadRef::open(pid, tid).unwrap(), Hold::Nothing).unwrap();
    }
    let outside = |cell: &TreePlace| match cell.processes().unwrap().is_empty() {
        true => vec![pid],
        false => Vec::new(),
    };
    let cell = fence.confine(tids[0], &group.0, outside).unwrap().unwrap();
    assert!(is_in_cell(pid));
    let second = fence.confine(tids[1], &cell.group, outside).unwrap();
    fence.end_confinement(tids[0]).unwrap();
    drop(fence);
    let listed = fs::read_to_string(group.0.join("cgroup.procs")).unwrap();
    drop(target);
    drop(group);
    assert_eq!(second, None);
    assert_eq!(listed.trim(), pid.to_string());
}

/// Another process of the target's user moves the target again and again, so the session stops the
/// target in a cell, a frozen cgroup of root.
#[test]
fn process_list_of_tree_includes_processes_in_confinement_cgroup() {
    let Some(_alone) = begin() else { return };
    let Some((group, adversary)) = delegated_spinner() else { return };
    let mut open = Open::holding(JoinTarget::Tree(adversary.pid()), true);
    open.go_on(Duration::from_millis(300));
    let file = group.0.join("b/cgroup.procs");
    let helper = Adversary::start(&format!("write {} {}", adversary.pid(), file.display()));
    open.until("the process to be in its cell", |_| is_in_cell(adversary.pid()));
    let id = open.session.members().next().unwrap().id;
    let listed = open.session.processes_of(id);
    drop(helper);
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    assert_eq!(listed, [adversary.pid()]);
    drop(adversary);
    drop(group);
}

#[test]
fn process_tree_that_cannot_be_moved_back_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    let Some(group) = Delegated::make() else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let adversary = Adversary::start(&format!("move-for-good {}", group.0.display()));
    fs::write(group.0.join("a/cgroup.procs"), adversary.pid().to_string()).unwrap();
    let mut open = Open::holding(JoinTarget::Tree(adversary.pid()), true);
    open.until("the adversary to move", |open| !open.meddled().is_empty());
    let before = group.used();
    open.go_on(Duration::from_secs(3));
    let used = group.used() - before;
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    assert!(used <= limit_in(Span::from_secs(3), 400), "{used}");
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    assert!(!is_real_time(adversary.tid) && !is_in_cell(adversary.pid()));
    drop(adversary);
    drop(group);
}

/// The process and its child are in one cgroup of version 1 with a quota, and in two cgroups of
/// version 2. The child moves itself out of the cgroup with the quota again and again. So Slackline
/// stops both in a cell, a frozen cgroup of root, and later moves them back.
#[test]
fn processes_under_quota_return_from_confinement_to_former_cgroups() {
    let Some(_alone) = begin() else { return };
    let Some(group) = Delegated::make_with_cpu() else { return };
    let adversary = Adversary::start(&format!("let-move {}", group.0.join("b").display()));
    let pid = adversary.pid();
    fs::write(group.0.join("a/cgroup.procs"), pid.to_string()).unwrap();
    let mut limited = UnderQuota::start(pid);
    let child = || descendants(pid).unwrap().into_iter().find(|found| *found != pid);
    limited.look_until("the child to start", |_| child().is_some());
    let child = child().unwrap();
    let own = Group::with(child);
    let before = [pid, child].map(unified_group);
    if own.is_some() {
        limited.look_until("the child to be in a cell", |_| is_in_cell(child));
        limited.look_until("the child to leave the cell", |_| !is_in_cell(child));
    }
    let after = [pid, child].map(unified_group);
    drop(limited);
    common::kill(child.raw(), rustix::process::Signal::KILL);
    drop(adversary);
    drop(own);
    drop(group);
    assert_eq!(after, before);
}

/// A single thaw that is not undone can lift the limit for more than a second.
#[test]
fn thaw_of_process_tree_by_root_is_undone() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.go_on(Duration::from_millis(300));
    let around = Hierarchies::read().unwrap().around(target.pid(), target.pid()).unwrap();
    let switch = around.unified().unwrap().join("cgroup.freeze");
    let before = target.used();
    while open.meddled().is_empty() {
        fs::write(&switch, "0").unwrap();
        open.go_on(Duration::from_millis(300));
        assert!(target.used() <= before + Span::from_secs(5), "no thaw was noticed");
    }
    let before = target.used();
    for _ in 0..5 {
        fs::write(&switch, "0").unwrap();
        open.go_on(Duration::from_millis(600));
    }
    let used = target.used() - before;
    assert!(used <= limit_in(Span::from_secs(3), 600), "{used}");
    assert!(open.contested().is_empty(), "{:?}", open.contested());
}
