//! Tests with targets that are stopped in a cell. Needs root.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::{self, Target, begin};
use crate::escapes::{Adversary, Group, Open, is_real_time};
use crate::moves::{Delegated, delegated_spinner, limit_in};
use slackline_fence::Fence;
use slackline_linux::cgroup::{Hierarchies, TreePlace, descendants};
use slackline_linux::step::Hold;
use slackline_linux::sys::{Tid, monotonic};
use slackline_linux::thread::{ThreadRef, threads_of};
use slackline_live::mechanism::{Bound, Demand, EnforceTarget, kernel_mechanism};
use slackline_live::session::{EnforcedWatch, JoinTarget};
use slackline_units::{Enforcement, Reservation, Span};

/// Returns the path of a process's cgroup of version 2 in the kernel.
fn unified_group(pid: Tid) -> String {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
    group.unwrap_or_default().to_owned()
}

fn is_in_cell(pid: Tid) -> bool {
    unified_group(pid).contains("slackline-cell-")
}

#[test]
fn process_with_two_held_threads_returns_from_its_only_cell() {
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

/// Another process of the same user moves the target again and again, so the session stops the
/// target in a cell.
#[test]
fn processes_of_a_tree_include_processes_in_its_cell() {
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
fn tree_that_cannot_be_moved_back_stays_within_its_limit() {
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
/// version 2. The child moves itself out of the quota again and again.
#[test]
fn processes_under_quota_return_from_cell_to_own_cgroups() {
    let Some(_alone) = begin() else { return };
    let has_cpu = |line: &str| {
        let options = line.rsplit(' ').next().unwrap_or_default();
        line.contains(" - cgroup ") && options.split(',').any(|option| option == "cpu")
    };
    let Some(group) = Delegated::make_in(has_cpu) else {
        println!("skipped: needs a controller `cpu` of version 1 that can be written");
        return;
    };
    let adversary = Adversary::start(&format!("let-move {}", group.0.join("b").display()));
    let pid = adversary.pid();
    fs::write(group.0.join("a/cgroup.procs"), pid.to_string()).unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut fence = Fence::start(common::keeper(state.path())).unwrap();
    let thread = ThreadRef::open(pid, pid).unwrap();
    let each = Reservation::new(Span::from_ms(20), Span::from_ms(100)).unwrap();
    let (who, demand) = (EnforceTarget::Tree(thread.clone()), Demand::Time(each, Bound::AtMost));
    let quota = kernel_mechanism(Enforcement::Quota).unwrap();
    let enforced = quota.apply(&who, demand, &mut fence).unwrap();
    let limit = (None, Some(enforced.groups[0].as_path()));
    let hierarchies = Hierarchies::read().unwrap();
    let since = (&fence, Some(&hierarchies), monotonic());
    let mut watches = [EnforcedWatch::new((&who, &thread), limit, since)];
    let mut look_until = |what: &str, is_so: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < common::PATIENCE, "not in time: {what}");
            EnforcedWatch::look_at_all(&mut watches, &mut fence, monotonic());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let child = || descendants(pid).unwrap().into_iter().find(|found| *found != pid);
    look_until("the child to start", &|| child().is_some());
    let child = child().unwrap();
    let own = Group::with(child);
    let before = [pid, child].map(unified_group);
    if own.is_some() {
        look_until("the child to be in a cell", &|| is_in_cell(child));
        look_until("the child to leave the cell", &|| !is_in_cell(child));
    }
    let after = [pid, child].map(unified_group);
    drop(fence);
    common::kill(child.raw(), rustix::process::Signal::KILL);
    drop(adversary);
    drop(own);
    drop(group);
    assert_eq!(after, before);
}
