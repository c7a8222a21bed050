//! Tests with CPU limits and scheduling classes that other programs set on members of a session.
//! The tests need root.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{self, Target, begin, cpus, options};
use crate::escapes::{Group, NOTICED, Open, is_real_time, scheduled};
use slackline_linux::cgroup::Hierarchies;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_affinity, get_scheduling, online_cpus, set_affinity,
    set_scheduling,
};
use slackline_linux::thread::ThreadRef;
use slackline_live::mechanism::{Bound, Demand, EnforceTarget};
use slackline_live::session::{EnforcedChange, ForeignChange, JoinTarget, Session};
use slackline_units::{Enforcement, Reservation, Span};

/// A cgroup with the version 1 controller `cpu`, in which the kernel allows real-time threads.
pub(crate) struct CpuGroup(pub(crate) PathBuf);

impl CpuGroup {
    pub(crate) fn with(pid: Tid) -> Option<CpuGroup> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let has_cpu = |line: &&str| {
            let options = line.rsplit(' ').next().unwrap_or_default();
            line.contains(" - cgroup ") && options.split(',').any(|option| option == "cpu")
        };
        let point = PathBuf::from(mounts.lines().find(has_cpu)?.split(' ').nth(4)?);
        let folder = point.join(format!("test-{pid}"));
        fs::create_dir(&folder).ok()?;
        let group = CpuGroup(folder);
        // If cgroups have real-time budgets on this kernel, the new cgroup needs one. A write can
        // fail for a moment, while the kernel still counts the budget of a cgroup that was removed.
        let runtime = group.0.join("cpu.rt_runtime_us");
        let deadline = Instant::now() + Duration::from_secs(5);
        while runtime.exists() && fs::write(&runtime, "500000").is_err() {
            if Instant::now() >= deadline {
                return None;
            }
            common::nap();
        }
        fs::write(group.0.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + common::PATIENCE;
        while fs::remove_dir(&self.0).is_err() && self.0.is_dir() && Instant::now() < deadline {
            common::nap();
        }
    }
}

/// Asserts that a session notices the change `change` in time. Until the change is undone, the
/// target must run as ordinary threads. Afterwards the session must schedule the target again.
#[track_caller]
fn contests_until_undone(
    target: &Target,
    who: JoinTarget,
    (change, undo): (impl FnOnce(), impl FnOnce()),
    is_it: impl Fn(&ForeignChange) -> bool,
) {
    contests_while(target, Open::holding(who, true), (change, undo), is_it);
}

/// Checks that a target is contested from `change` until `undo`. The session already schedules the
/// target.
#[track_caller]
fn contests_while(
    target: &Target,
    mut open: Open,
    (change, undo): (impl FnOnce(), impl FnOnce()),
    is_it: impl Fn(&ForeignChange) -> bool,
) {
    open.until("the target to be real-time", |_| is_real_time(target.pid()));
    // A quota that is set within 2 s after the join counts as part of the target's start.
    open.go_on(Duration::from_millis(2_200));
    change();
    open.until_contested();
    assert!(is_it(open.contested()[0]), "{:?}", open.contested());
    assert!(!is_real_time(target.pid()));
    undo();
    open.until("the member to be settled", |open| open.settled() == 1);
    open.until("the target to be real-time again", |_| is_real_time(target.pid()));
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
}

fn whole(target: &Target) -> JoinTarget {
    JoinTarget::Tree(target.pid())
}

fn thread(target: &Target) -> JoinTarget {
    JoinTarget::Thread(ThreadRef::open(target.pid(), target.pid()).unwrap())
}

/// Another program sets a quota. The test does this in a version 1 hierarchy and in a version 2
/// hierarchy, and for a process tree and for a thread.
#[test]
fn target_is_contested_while_limited_by_quota_of_another_program() {
    let Some(_alone) = begin() else { return };
    for who in [whole, thread] {
        let target = Target::spinner();
        let limits: (&Path, [&str; 2], _) = match CpuGroup::with(target.pid()) {
            Some(group) => (&group.0.clone(), ["30000", "-1"], Ok::<_, Group>(group)),
            None => match Group::with(target.pid()) {
                Some(group) if group.0.join("cpu.max").exists() => {
                    (&group.0.clone(), ["30000 100000", "max 100000"], Err(group))
                }
                _ => {
                    // The target ends first, since a cgroup with a process cannot be removed.
                    drop(target);
                    println!("skipped: needs a controller `cpu` that can be written");
                    return;
                }
            },
        };
        let (folder, [set, unset], ref group) = limits;
        let file = folder.join(if group.is_ok() { "cpu.cfs_quota_us" } else { "cpu.max" });
        let write = |text: &str| fs::write(&file, text).unwrap();
        let names_it = |finding: &ForeignChange| match finding {
            ForeignChange::Limited { group, .. } => group == folder,
            _ => false,
        };
        contests_until_undone(&target, who(&target), (|| write(set), || write(unset)), names_it);
        drop(target);
    }
}

/// Another program cuts the real-time budget of a cgroup. With so small a budget, the kernel stops
/// the cgroup's real-time threads for nearly all of each period.
#[test]
fn target_is_contested_while_its_real_time_budget_is_cut() {
    let Some(_alone) = begin() else { return };
    for who in [whole, thread] {
        let target = Target::spinner();
        let group = CpuGroup::with(target.pid());
        let file = group.as_ref().map(|group| group.0.join("cpu.rt_runtime_us"));
        let Some(file) = file.filter(|file| file.exists()) else {
            drop(target);
            println!("skipped: needs cgroups with real-time budgets");
            return;
        };
        let write = |text: &str| fs::write(&file, text).unwrap();
        let names_it = |finding: &ForeignChange| match finding {
            ForeignChange::Limited { group, limit, .. } => {
                file.starts_with(group) && limit == "1000 1000000"
            }
            _ => false,
        };
        let change = (|| write("1000"), || write("500000"));
        contests_until_undone(&target, who(&target), change, names_it);
        drop(target);
    }
}

/// A class that root gives to a vCPU of libvirt is not undone, even while the kernel enforces a
/// limit on the vCPU.
#[test]
fn libvirt_vcpu_under_sched_deadline_is_contested_after_class_change() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let Some(_group) = LibvirtGroup::with(target.pid()) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let mut session = Session::open(&options(cpus(1), state.path())).unwrap();
    let thread = ThreadRef::open(target.pid(), target.pid()).unwrap();
    let each = Reservation::new(Span::from_ms(1), Span::from_ms(10)).unwrap();
    let (who, demand) =
        (EnforceTarget::Vcpus(vec![thread.clone()]), Demand::Time(each, Bound::Exact));
    let class = || get_scheduling(target.pid()).unwrap().class;
    let before = class();
    let enforced = session.enforce(Enforcement::Deadline, &who, demand).unwrap();
    let mut watch = session.watch_enforced(&who, &thread, each);
    let set = |class| {
        set_scheduling(target.pid(), &SchedulingOf { class, reset_on_fork: true }).unwrap();
    };
    let mut looks = |length| {
        let until = Instant::now() + length;
        let mut seen = Vec::new();
        while Instant::now() < until {
            let around = Hierarchies::read().unwrap();
            seen.append(&mut session.look_at_enforced(&mut watch, Some(&around)));
            common::nap();
        }
        seen
    };
    assert_eq!(looks(Duration::from_millis(300)), []);
    set(Scheduling::Batch { nice: 0 });
    let finding = ForeignChange::Class { tid: target.pid(), class: Scheduling::Batch { nice: 0 } };
    assert_eq!(looks(NOTICED), [EnforcedChange::Contested(finding)]);
    assert_eq!(class(), Scheduling::Batch { nice: 0 });
    // A second change does not undo the first.
    set(Scheduling::Idle);
    assert_eq!(looks(NOTICED), []);
    set(before);
    assert_eq!(looks(NOTICED), [EnforcedChange::Settled]);
    assert!(matches!(class(), Scheduling::Deadline { .. }), "{:?}", class());
    session.end_enforced(&enforced).unwrap();
    assert_eq!(class(), before);
    session.close(&mut Vec::new()).unwrap();
}

/// A cgroup below the systemd slice of all VMs. Only libvirt gives cgroups such a name there.
struct LibvirtGroup(PathBuf);

impl LibvirtGroup {
    fn with(pid: Tid) -> Option<LibvirtGroup> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let slice = PathBuf::from(line.split(' ').nth(4)?).join("machine.slice");
        let group = slice.join(format!("machine-qemu\\x2d1\\x2dtest{pid}.scope"));
        fs::create_dir_all(&group).ok()?;
        fs::write(group.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(LibvirtGroup(group))
    }
}

impl Drop for LibvirtGroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + common::PATIENCE;
        while fs::remove_dir(&self.0).is_err() && self.0.is_dir() && Instant::now() < deadline {
            common::nap();
        }
        // The slice stays if it has other cgroups.
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

#[test]
fn libvirt_vcpu_with_scheduling_class_changed_by_root_is_contested() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let Some(_group) = LibvirtGroup::with(target.pid()) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let class = |class| SchedulingOf { class, reset_on_fork: false };
    let set = |to| set_scheduling(target.pid(), &class(to)).unwrap();
    let change = || set(Scheduling::Batch { nice: 5 });
    let undo = || set(Scheduling::Other { nice: 0 });
    let is_it = |finding: &ForeignChange| matches!(finding, ForeignChange::Class { .. });
    contests_until_undone(&target, thread(&target), (change, undo), is_it);
    drop(target);
}

/// The vCPU runs in slack for most of the time. While it runs in slack, the session does not set
/// its class or nice value.
#[test]
fn libvirt_vcpu_keeps_class_or_nice_value_changed_during_slack() {
    let Some(_alone) = begin() else { return };
    for is_renice in [false, true] {
        let target = Target::spinner();
        let Some(_group) = LibvirtGroup::with(target.pid()) else {
            println!("skipped: needs cgroups of version 2 that can be written");
            return;
        };
        let set = |class, nice| {
            if is_renice {
                let pid = rustix::process::Pid::from_raw(target.pid().raw());
                rustix::process::setpriority_process(pid, nice).unwrap();
            } else {
                let to = SchedulingOf { class, reset_on_fork: false };
                set_scheduling(target.pid(), &to).unwrap();
            }
        };
        let expected =
            if is_renice { Scheduling::Other { nice: 5 } } else { Scheduling::Batch { nice: 0 } };
        let change = || set(Scheduling::Batch { nice: 0 }, 5);
        let undo = || {
            assert_eq!(get_scheduling(target.pid()).unwrap().class, expected);
            set(Scheduling::Other { nice: 0 }, 0);
        };
        let is_it = |found: &ForeignChange| {
            let ForeignChange::Class { class, .. } = found else { return false };
            *class == expected
        };
        let open = Open::holding(thread(&target), false);
        contests_while(&target, open, (change, undo), is_it);
        drop(target);
    }
}

#[test]
fn libvirt_vcpu_stays_contested_if_root_changes_its_class_again() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let Some(_group) = LibvirtGroup::with(target.pid()) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let set = |class| {
        set_scheduling(target.pid(), &SchedulingOf { class, reset_on_fork: false }).unwrap();
    };
    let mut open = Open::holding(thread(&target), true);
    open.go_on(Duration::from_millis(2_200));
    set(Scheduling::Batch { nice: 5 });
    open.until_contested();
    set(Scheduling::Batch { nice: 6 });
    open.go_on(Duration::from_millis(2_200));
    assert_eq!(open.settled(), 0);
    assert_eq!(get_scheduling(target.pid()).unwrap().class, Scheduling::Batch { nice: 6 });
    let last = open.contested().pop().unwrap().to_string();
    assert!(last.ends_with("nice 6"), "{last}");
    set(Scheduling::Other { nice: 0 });
    open.until("the vCPU to be settled", |open| open.settled() == 1);
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    assert_eq!(get_scheduling(target.pid()).unwrap().class, Scheduling::Other { nice: 0 });
    drop(target);
}

/// Root pins a libvirt VM that is scheduled as a whole, as `virsh vcpupin` does.
#[test]
fn affinity_that_root_sets_for_whole_libvirt_vm_is_kept() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let other = online_cpus().unwrap().without(&scheduled());
    let group = LibvirtGroup::with(target.pid()).filter(|_| !other.is_empty());
    if group.is_none() {
        drop(target);
        println!("skipped: needs two CPUs and cgroups of version 2 that can be written");
        return;
    }
    let change = || set_affinity(target.pid(), &other).unwrap();
    let undo = || {
        assert_eq!(get_affinity(target.pid()).unwrap(), other);
        set_affinity(target.pid(), &online_cpus().unwrap()).unwrap();
    };
    let is_it = |found: &ForeignChange| matches!(found, ForeignChange::Cpus { .. });
    contests_until_undone(&target, whole(&target), (change, undo), is_it);
    drop(target);
}

/// Root changes the class of a process tree. That still counts as a change by the target itself. So
/// the session undoes it and reports it in `SessionEvents::meddled`.
#[test]
fn process_tree_scheduling_class_changed_by_root_is_restored() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.until("the target to be real-time", |_| is_real_time(target.pid()));
    let idle = SchedulingOf { class: Scheduling::Idle, reset_on_fork: false };
    let changed = Instant::now();
    set_scheduling(target.pid(), &idle).unwrap();
    open.until("the target to be real-time again", |_| is_real_time(target.pid()));
    assert!(changed.elapsed() < NOTICED, "{:?}", changed.elapsed());
    assert!(open.contested().is_empty());
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    assert_eq!(get_scheduling(target.pid()).unwrap().class, Scheduling::Other { nice: 0 });
    target.is_given_back();
}
