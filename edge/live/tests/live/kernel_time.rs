//! Test with a process tree that spends most of its time in the kernel, where a stop takes effect
//! late. The tree starts programs that read a large file and exit. The test needs root and version
//! 2 cgroups.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use crate::common::{Target, begin};
use crate::escapes::Open;
use slackline_live::session::JoinTarget;
use slackline_units::Span;

/// Size of the file that programs of the tree read with one system call. Such a call takes
/// milliseconds.
const FILE_SIZE: u64 = 16 << 20;

/// Returns the CPU time of all processes of a tree, from the cgroup in which a session holds the
/// tree. `None` if there is no such cgroup.
fn used_by_group(target: &Target) -> Option<Span> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let root = line.split(' ').nth(4)?;
    let own = fs::read_to_string(format!("/proc/{}/cgroup", target.pid())).ok()?;
    let group = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let stat = fs::read_to_string(format!("{root}{group}/cpu.stat")).ok()?;
    let used = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(Span::from_us(used.parse().ok()?))
}

/// The tree starts programs in a loop. Each program reads 16 MiB with one system call and exits.
/// The tree reserves 2 ms in 10 ms. Stops are late by milliseconds, and the resulting overruns are
/// deducted from later slices. So the excess over the hard limit is at most the sum of three
/// amounts: 250 us per period, 50 ms, and the largest debt. The largest debt is the tree's share of
/// a second, 200 ms.
#[test]
fn excess_over_hard_limit_is_bounded_despite_long_system_calls() {
    let Some(_alone) = begin() else { return };
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = folder.path().join("zeros");
    File::create(&path).and_then(|file| file.set_len(FILE_SIZE)).unwrap();
    let path = path.display();
    let target = Target::of_shell(&format!(
        "while :; do dd if={path} of=/dev/null bs={FILE_SIZE} count=1; done"
    ));
    let mut open = Open::holding(JoinTarget::Tree(target.pid()), true);
    open.go_on(Duration::from_millis(500));
    let counted = || used_by_group(&target).expect("a session needs cgroups for a tree");
    let (began, before, told) = (Instant::now(), counted(), open.told());
    open.go_on(Duration::from_secs(8));
    let used = counted() - before;
    let length = Span::from_ms(u64::try_from(began.elapsed().as_millis()).unwrap());
    let most = length / 5 + length / 40 + Span::from_ms(250);
    assert!(used <= most, "received {used} in {length}, at most {most}");
    // The tolerance covers the time between reading the records and the kernel's count.
    let tolerance = Span::from_ms(150);
    open.until("the records to agree with the kernel", |open| {
        let (told, used) = (open.told() - told, counted() - before);
        told <= used + tolerance && used <= told + tolerance
    });
}
