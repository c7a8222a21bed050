//! Tests with a target whose user owns the cgroup above the target's freezer cgroup. The tests need
//! root.

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Target, begin, kill};
use crate::escapes::{Adversary, Group, NOBODY, Open, is_real_time};
use crate::moves::limit_in;
use rustix::process::Signal;
use slackline_linux::thread::ThreadRef;
use slackline_live::session::JoinTarget;
use slackline_units::Span;

/// The test moves the thread and removes the freezer cgroup as root. The user who owns the cgroup
/// above could do the same. For the session only the ownership of that cgroup matters.
#[test]
fn thread_with_removed_freezer_cgroup_keeps_its_hard_limit() {
    let Some(_alone) = begin() else { return };
    let adversary = Adversary::start("spin");
    let Some(group) = Group::with(adversary.pid()) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    chown(&group.0, Some(NOBODY), None).unwrap();
    for file in ["cgroup.procs", "cgroup.threads"] {
        chown(group.0.join(file), Some(NOBODY), None).unwrap();
    }
    let thread = ThreadRef::open(adversary.pid(), adversary.tid).unwrap();
    let mut open = Open::holding(JoinTarget::Thread(thread), true);
    // After this time the session knows the cgroups of the thread.
    open.go_on(Duration::from_secs(4));
    let ours = || -> Vec<PathBuf> {
        let below = fs::read_dir(&group.0).unwrap().map(|entry| entry.unwrap().path());
        below.filter(|path| path.is_dir()).collect()
    };
    let [freezer] = &ours()[..] else {
        println!("skipped: needs threaded cgroups of version 2");
        return;
    };
    fs::write(group.0.join("cgroup.threads"), adversary.tid.to_string()).unwrap();
    fs::remove_dir(freezer).unwrap();
    let before = adversary.used();
    open.go_on(Duration::from_secs(3));
    let used = adversary.used() - before;
    assert!(open.contested().is_empty(), "{:?}", open.contested());
    assert!(!open.meddled().is_empty());
    assert!(used <= Span::from_secs(3) / 5 + Span::from_ms(300), "{used}");
    open.until("the thread to be real-time again", |_| is_real_time(adversary.tid));
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    assert!(ours().is_empty());
    drop(adversary);
    drop(group);
}

/// Most of the stops come while the thread is frozen. Then no event shows the stop, and the time of
/// the stop must not count as waiting time.
#[test]
fn thread_continued_after_sigstop_receives_no_extra_cpu_time() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let thread = ThreadRef::open(target.pid(), target.pid()).unwrap();
    let mut open = Open::holding(JoinTarget::Thread(thread), true);
    for _ in 0..3 {
        open.go_on(Duration::from_millis(500));
        kill(target.pid().raw(), Signal::STOP);
        open.go_on(Duration::from_secs(2));
        let before = target.used();
        kill(target.pid().raw(), Signal::CONT);
        open.go_on(Duration::from_millis(500));
        let used = target.used() - before;
        assert!(used <= limit_in(Span::from_ms(500), 150), "{used}");
    }
    let mut records = Vec::new();
    open.session.close(&mut records).unwrap();
    target.is_given_back();
}
