//! Tests with unprivileged members that try to escape their limit, and with changes that other
//! programs make to members. The tests need root and two CPUs.

use std::fs;
use std::path::PathBuf;
use std::process::exit;
use std::time::{Duration, Instant};

use crate::common::{self, Target, begin, cpus, kill, options, request, share, wait_until};
use rustix::process::Signal;
use slackline_linux::cgroup::{Cpuset, Place, TreePlace};
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_affinity, get_scheduling, online_cpus, own_tid,
    set_affinity, set_scheduling, thread_cpu_time,
};
use slackline_linux::thread::ThreadRef;
use slackline_live::session::{ForeignChange, JoinId, JoinTarget, Session, SessionEvents};
use slackline_trace::{Entry, Record};
use slackline_units::{CpuId, CpuSet, Span};

/// User id of the adversary process: `nobody`.
pub(crate) const NOBODY: u32 = 65_534;

/// Maximum time until a session must have noticed a change by another program.
pub(crate) const NOTICED: Duration = Duration::from_secs(3);

/// Time in which a contested vCPU is observed.
const SOON: Duration = Duration::from_millis(1_000);

pub(crate) fn spin(length: Duration) {
    let end = Instant::now() + length;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Runs as an adversary without privileges, if a test has started this program as such an
/// adversary. The adversary prints its thread id and then tries to escape.
#[test]
fn entry_point_of_helper_adversary() {
    let Ok(part) = std::env::var(common::PART) else { return };
    let Some(how) = part.strip_prefix("adversary ") else { return };
    // A process without privileges cannot clear the flag `reset_on_fork` of a held thread.
    let class = |class| SchedulingOf { class, reset_on_fork: true };
    let elsewhere = online_cpus().unwrap();
    println!("@{}", own_tid());
    if how == "program" {
        use std::os::unix::process::CommandExt;
        spin(Duration::from_secs(1));
        let script = "while :; do :; done";
        panic!("{}", std::process::Command::new("/bin/sh").args(["-c", script]).exec());
    }
    if let Some(group) = how.strip_prefix("move ") {
        crate::moves::move_repeatedly(group, false);
    }
    if let Some(group) = how.strip_prefix("move-for-good ") {
        crate::moves::move_for_good(group);
    }
    if let Some(group) = how.strip_prefix("move-and-remove ") {
        crate::moves::move_repeatedly(group, true);
    }
    if let Some((text, file)) = how.strip_prefix("write ").and_then(|it| it.split_once(' ')) {
        crate::moves::write_repeatedly(text, file);
    }
    if let Some(group) = how.strip_prefix("let-move ") {
        crate::moves::let_child_move(group);
    }
    loop {
        // The result is ignored, since the adversary repeats the call.
        let _ = match how {
            "affinity" => set_affinity(own_tid(), &CpuSet::one(elsewhere.first().unwrap())),
            "everywhere" => set_affinity(own_tid(), &elsewhere),
            "class" => set_scheduling(own_tid(), &class(Scheduling::Other { nice: 0 })),
            "idle" => set_scheduling(own_tid(), &class(Scheduling::Idle)),
            "priority" => set_scheduling(own_tid(), &class(Scheduling::RoundRobin { priority: 1 })),
            "spin" => Ok(()),
            _ => exit(70),
        };
        spin(Duration::from_millis(1));
    }
}

/// A process that tries to escape its limit. It never blocks, and it changes its own scheduling
/// again and again. For example, it sets its affinity to the first CPU, which no session schedules.
pub(crate) struct Adversary {
    child: std::process::Child,
    pub(crate) tid: Tid,
}

impl Adversary {
    pub(crate) fn start(how: &str) -> Adversary {
        use std::io::BufRead;
        use std::os::unix::process::CommandExt;
        let mut command = common::again("escapes::entry_point_of_helper_adversary");
        command.env(common::PART, format!("adversary {how}")).uid(NOBODY).gid(NOBODY);
        command.stdout(std::process::Stdio::piped());
        slackline_linux::sys::die_with_us(&mut command);
        let mut child = command.spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = lines.map_while(Result::ok);
        let number = said.find_map(|line| line.rsplit_once('@')?.1.parse().ok());
        let tid = Tid::new(number.unwrap()).unwrap();
        Adversary { child, tid }
    }

    pub(crate) fn pid(&self) -> Tid {
        Tid::new(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    pub(crate) fn used(&self) -> Span {
        thread_cpu_time(self.tid).unwrap()
    }
}

impl Drop for Adversary {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A version 2 cgroup that was not created by a session.
pub(crate) struct Group(pub(crate) PathBuf);

impl Group {
    pub(crate) fn with(pid: Tid) -> Option<Group> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let folder = PathBuf::from(line.split(' ').nth(4)?).join(format!("test-{pid}"));
        fs::create_dir(&folder).ok()?;
        fs::write(folder.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(Group(folder))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + common::PATIENCE;
        while fs::remove_dir(&self.0).is_err() && self.0.is_dir() && Instant::now() < deadline {
            common::nap();
        }
    }
}

/// An open session of a test on the last CPU, with one member.
pub(crate) struct Open {
    pub(crate) session: Session,
    id: JoinId,
    records: Vec<Entry>,
    seen: Vec<SessionEvents>,
    _state: tempfile::TempDir,
}

impl Open {
    pub(crate) fn holding(who: JoinTarget, exact: bool) -> Open {
        let state = tempfile::tempdir().unwrap();
        let mut session = Session::open(&options(cpus(1), state.path())).unwrap();
        let id = session.join(vec![request(who, share(2_000, 10_000, exact))]).unwrap()[0];
        Open { session, id, records: Vec::new(), seen: Vec::new(), _state: state }
    }

    pub(crate) fn go_on(&mut self, length: Duration) {
        let until = Instant::now() + length;
        while Instant::now() < until {
            let mut records = Vec::new();
            self.seen.push(self.session.poll(&mut records).unwrap());
            self.records.append(&mut records);
            let _ = self.session.wait(&[], Span::from_ms(20));
        }
    }

    /// Polls the session until a condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&Open) -> bool) {
        wait_until(what, || {
            self.go_on(Duration::from_millis(20));
            is_so(self)
        });
    }

    pub(crate) fn contested(&self) -> Vec<&ForeignChange> {
        self.seen.iter().flat_map(|seen| &seen.contested).map(|(_, finding)| finding).collect()
    }

    /// Polls the session until it reports a change that another program has just made. Asserts that
    /// the session reports the change within [`NOTICED`].
    #[track_caller]
    pub(crate) fn until_contested(&mut self) {
        self.until_contested_within(NOTICED);
    }

    #[track_caller]
    pub(crate) fn until_contested_within(&mut self, most: Duration) {
        let changed = Instant::now();
        self.until("the change to be noticed", |open| !open.contested().is_empty());
        let noticed = changed.elapsed();
        assert!(noticed < most, "{noticed:?}");
    }

    pub(crate) fn meddled(&self) -> Vec<&ForeignChange> {
        self.seen.iter().flat_map(|seen| &seen.meddled).map(|(_, finding)| finding).collect()
    }

    pub(crate) fn settled(&self) -> usize {
        self.seen.iter().map(|seen| seen.settled.len()).sum()
    }

    /// Returns the CPU time that the member has used on all CPUs so far, according to the session's
    /// records.
    pub(crate) fn told(&self) -> Span {
        let used = |entry: &Entry| match entry {
            Entry::Record(
                Record::Ran { vcpu, used, .. } | Record::Elsewhere { vcpu, used, .. },
            ) if *vcpu == self.id.vcpu() => *used,
            _ => Span::ZERO,
        };
        self.records.iter().map(used).fold(Span::ZERO, |sum, used| sum + used)
    }
}

pub(crate) fn is_real_time(tid: Tid) -> bool {
    let class = get_scheduling(tid).unwrap().class;
    matches!(class, Scheduling::Fifo { .. } | Scheduling::RoundRobin { .. })
}

pub(crate) fn scheduled() -> CpuSet {
    cpus(1).into_iter().collect()
}

/// Asserts that an adversary stays within its limit for 2 s, and that the session's records agree
/// with the kernel. `hold` returns the target that the session schedules.
#[track_caller]
fn stays_within_its_limit(how: &str, hold: impl FnOnce(&Adversary) -> Option<JoinTarget>) {
    let adversary = Adversary::start(how);
    let Some(who) = hold(&adversary) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let mut open = Open::holding(who, true);
    open.go_on(Duration::from_millis(200));
    let (began, before, told) = (Instant::now(), adversary.used(), open.told());
    let mut urgent_elsewhere = 0;
    for _ in 0..40 {
        open.go_on(Duration::from_millis(50));
        let is_elsewhere = !get_affinity(adversary.tid).unwrap().without(&scheduled()).is_empty();
        urgent_elsewhere += u32::from(is_elsewhere && is_real_time(adversary.tid));
    }
    let (used, length) = (adversary.used() - before, began.elapsed());
    let length = Span::from_ms(u64::try_from(length.as_millis()).unwrap());
    // The limit is a fifth of the CPU. Until the target is stopped, it may receive more for 4
    // audits, one every 50 ms.
    assert!(used <= length / 5 + Span::from_ms(300), "{how}: used {used} in {length}");
    // CPU time received on other CPUs is counted at the next audit, which can be delayed.
    let off = Span::from_ms(150);
    open.until("the records to agree with the kernel", |open| {
        let (used, told) = (adversary.used() - before, open.told() - told);
        told <= used + off && used <= told + off
    });
    assert!(urgent_elsewhere <= 8, "{how}: real-time elsewhere {urgent_elsewhere} times of 40");
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    assert!(!is_real_time(adversary.tid));
}

const CALLS: [&str; 5] = ["affinity", "everywhere", "class", "idle", "priority"];

#[test]
fn process_tree_changing_own_scheduling_stays_within_limit() {
    let Some(_alone) = begin() else { return };
    for how in CALLS {
        stays_within_its_limit(how, |adversary| Some(JoinTarget::Tree(adversary.pid())));
    }
}

#[test]
fn thread_that_changes_its_own_scheduling_stays_within_its_limit() {
    let Some(_alone) = begin() else { return };
    for how in CALLS {
        stays_within_its_limit(how, |adversary| {
            Some(JoinTarget::Thread(ThreadRef::open(adversary.pid(), adversary.tid).unwrap()))
        });
    }
}

/// A scheduled thread calls `execve`. So it takes over the id of its process.
#[test]
fn thread_that_calls_execve_is_restored_and_no_longer_scheduled() {
    let Some(_alone) = begin() else { return };
    for is_exact in [true, false] {
        let adversary = Adversary::start("program");
        let thread = ThreadRef::open(adversary.pid(), adversary.tid).unwrap();
        let mut open = Open::holding(JoinTarget::Thread(thread), is_exact);
        open.until("the other program to run", |_| {
            slackline_linux::thread::threads_of(adversary.pid()).is_ok_and(|all| all.len() == 1)
        });
        open.until("the thread to be ordinary", |_| !is_real_time(adversary.pid()));
        open.until("the member to end", |open| open.session.members().next().is_none());
        assert_eq!(get_affinity(adversary.pid()).unwrap(), online_cpus().unwrap());
        let mut records = Vec::new();
        open.session.close(&mut records).unwrap();
        assert_eq!(get_affinity(adversary.pid()).unwrap(), online_cpus().unwrap());
    }
}

/// The target is a cgroup that another program made, so the session creates no cpuset for it.
/// Instead the session moves an escaped target back, and stops the target if it escapes repeatedly.
#[test]
fn cgroup_with_processes_that_change_their_scheduling_stays_limited() {
    let Some(_alone) = begin() else { return };
    for how in CALLS {
        let mut group = None;
        stays_within_its_limit(how, |adversary| {
            group = Group::with(adversary.pid());
            Some(JoinTarget::Group(TreePlace::existing(&group.as_ref()?.0).ok()?))
        });
    }
}

#[test]
fn cpuset_confines_a_scheduled_process_tree_to_the_managed_cpus() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    if online_cpus().unwrap().len() < 2
        || !matches!(Cpuset::of(target.pid(), target.pid()), Ok(Some(_)))
    {
        println!("skipped: needs two CPUs and the controller cpuset");
        return;
    }
    let thread = ThreadRef::open(target.pid(), target.pid()).unwrap();
    let is_version_1 = Place::find_cpuset(&thread).is_ok_and(|place| place.is_some());
    drop(thread);
    let open = Open::holding(JoinTarget::Tree(target.pid()), true);
    let other = online_cpus().unwrap().without(&scheduled());
    let Ok(Some(cpuset)) = Cpuset::of(target.pid(), target.pid()) else { panic!("no cpuset") };
    let is_confined = cpuset.cpus.without(&scheduled()).is_empty();
    assert!(is_confined || !is_version_1, "{cpuset:?}");
    if is_confined {
        assert!(set_affinity(target.pid(), &other).is_err());
    } else {
        println!("skipped: the parent cgroup of version 2 does not enable the controller cpuset");
    }
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    target.is_given_back();
}

/// Root changes the cpuset of a vCPU. The session respects the change.
#[test]
fn vcpu_is_contested_while_cpuset_contains_no_managed_cpu() {
    let Some(_alone) = begin() else { return };
    let Some(pinned) = Pinned::make() else { return };
    let target = Target::spinner();
    pinned.set(&online_cpus().unwrap());
    fs::write(pinned.0.join("tasks"), target.pid().to_string()).unwrap();
    let thread = ThreadRef::open(target.pid(), target.pid()).unwrap();
    let mut open = Open::holding(JoinTarget::Thread(thread), true);
    open.go_on(Duration::from_millis(300));
    let other = online_cpus().unwrap().without(&scheduled());
    pinned.set(&other);
    open.until_contested();
    assert!(!is_real_time(target.pid()));
    assert_eq!(get_affinity(target.pid()).unwrap(), other);
    let finding = open.contested()[0].to_string();
    assert!(finding.contains(&pinned.0.display().to_string()), "{finding}");
    // The vCPU is not stopped, and the records have the CPU time that it uses.
    let (before, told) = (target.used(), open.told());
    open.go_on(SOON);
    let (used, told) = (target.used() - before, open.told() - told);
    assert!(used > Span::from_ms(100), "{used}");
    assert!(told + Span::from_ms(100) > used, "{used} used, {told} told");
    pinned.set(&online_cpus().unwrap());
    open.until("the vCPU to be settled", |open| open.settled() == 1);
    open.until("the vCPU to be real-time again", |_| is_real_time(target.pid()));
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    assert_eq!(get_affinity(target.pid()).unwrap(), online_cpus().unwrap());
    drop(target);
}

/// A version 1 cpuset that restricts a target. Tests that use it need two CPUs.
pub(crate) struct Pinned(pub(crate) PathBuf);

impl Pinned {
    pub(crate) fn make() -> Option<Pinned> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let is_it = |line: &&str| line.contains(" - cgroup ") && line.ends_with("cpuset");
        let point = mounts.lines().find(is_it).and_then(|line| line.split(' ').nth(4));
        let (Some(point), true) = (point, online_cpus().ok()?.len() > 1) else {
            println!("skipped: needs two CPUs and the controller cpuset of version 1");
            return None;
        };
        let folder = PathBuf::from(point).join(format!("test-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        fs::write(folder.join("cpuset.mems"), "0").ok()?;
        Some(Pinned(folder))
    }

    pub(crate) fn set(&self, cpus: &CpuSet) {
        let numbers = cpus.iter().map(CpuId::index).map(|cpu| cpu.to_string());
        let list = numbers.collect::<Vec<_>>().join(",");
        fs::write(self.0.join("cpuset.cpus"), list).unwrap();
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let deadline = Instant::now() + common::PATIENCE;
        while fs::remove_dir(&self.0).is_err() && self.0.is_dir() && Instant::now() < deadline {
            common::nap();
        }
    }
}

#[test]
fn process_tree_is_contested_while_stopped_by_sigstop() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.go_on(Duration::from_millis(200));
    kill(target.pid().raw(), Signal::STOP);
    open.until_contested();
    assert!(
        matches!(open.contested()[..], [ForeignChange::Stopped { .. }]),
        "{:?}",
        open.contested()
    );
    kill(target.pid().raw(), Signal::CONT);
    open.until("the tree to be settled", |open| open.settled() == 1);
    open.until("the tree to be real-time again", |_| is_real_time(target.pid()));
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    target.is_given_back();
}

#[test]
fn process_tree_is_contested_while_root_freezes_the_cgroup() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let Some(group) = Group::with(target.pid()) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.go_on(Duration::from_millis(200));
    fs::write(group.0.join("cgroup.freeze"), "1").unwrap();
    open.until_contested();
    let finding = open.contested()[0].to_string();
    assert!(finding.contains(&group.0.display().to_string()), "{finding}");
    fs::write(group.0.join("cgroup.freeze"), "0").unwrap();
    open.until("the tree to be settled", |open| open.settled() == 1);
    open.until("the tree to be real-time again", |_| is_real_time(target.pid()));
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    drop(target);
}
