//! Tests of the daemon on a host with deeply nested cgroups. Needs root.

use std::fs;
use std::path::PathBuf;

use crate::common::live::{self, wait_until};
use crate::common::service::{Daemon, Machine};

/// Levels of cgroups: more than the stack of a thread of the daemon allows for recursive calls.
const LEVELS: usize = 1_000;

/// A unit's cgroup with many nested cgroups. They are removed when this value is dropped.
struct Nested {
    top: PathBuf,
    deepest: PathBuf,
}

impl Nested {
    fn make(unit: &str) -> Option<Nested> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let top = PathBuf::from(line.split(' ').nth(4)?).join(unit);
        let mut deepest = top.clone();
        deepest.extend(std::iter::repeat_n("x", LEVELS));
        let nested = Nested { top, deepest };
        fs::create_dir_all(&nested.deepest).ok()?;
        Some(nested)
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        for group in self.deepest.ancestors().take(LEVELS + 1) {
            wait_until("the cgroup to be empty", || {
                fs::remove_dir(group).is_ok() || !group.is_dir()
            });
        }
    }
}

#[test]
fn daemon_survives_requests_on_a_host_with_deeply_nested_cgroups() {
    let Some(live) = live::begin() else { return };
    let unit = format!("nested-{}.service", std::process::id());
    let Some(nested) = Nested::make(&unit) else { return };
    let vm = Machine::start(&format!("nested-{}", std::process::id()));
    let daemon = Daemon::start(&live);
    fs::write(nested.deepest.join("cgroup.procs"), vm.0.id().to_string()).unwrap();
    daemon.run("find").ended_with(0).shows(&unit);
    for of in [format!("unit:{unit}"), format!("cgroup:{}", nested.top.display())] {
        let made = daemon.run(&format!("reserve web --cpu 10% --vcpus 1 --for {of}"));
        made.ended_with(0).shows("active");
        daemon.run("release web").ended_with(0);
    }
    // A reservation that waits for a unit makes the daemon search all cgroups again and again.
    daemon.run("reserve none --cpu 10% --vcpus 1 --for unit:none-of-a-test.service").ended_with(0);
    let deep = nested.deepest.ancestors().nth(LEVELS - 100).unwrap();
    let refused =
        daemon.run(&format!("reserve web --cpu 10% --vcpus 1 --for cgroup:{}", deep.display()));
    assert_ne!(refused.code, Some(0));
    assert!(refused.err.contains("at most 64 are supported"), "{}", refused.err);
    daemon.end().ended_with(0);
    drop(vm);
    live.nothing_is_left();
}
