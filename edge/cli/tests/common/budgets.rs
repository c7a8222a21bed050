//! Cgroups with real-time budgets, for tests on kernels that support such cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::live::wait_until;

/// A cgroup without real-time budget. When this value is dropped, the cgroup is removed after its
/// threads have left.
pub struct NoRealTime(pub PathBuf);

impl NoRealTime {
    /// Creates a cgroup. `None` if the kernel does not support real-time budgets of cgroups.
    pub fn make() -> Option<NoRealTime> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let is_cpu = |options: &str| options.split(',').any(|option| option == "cpu");
        let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = lines.find(|line| line[2] == "cgroup" && is_cpu(line[3]))?[1].to_owned();
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("slackline-test-{}-{number}", std::process::id());
        let group = Path::new(&mount).join(name);
        fs::create_dir(&group).ok()?;
        let made = NoRealTime(group);
        made.0.join("cpu.rt_runtime_us").exists().then_some(made)
    }

    /// Creates a cgroup inside this cgroup.
    pub fn inner(&self, name: &str) -> NoRealTime {
        let group = self.0.join(name);
        fs::create_dir(&group).unwrap();
        NoRealTime(group)
    }

    /// Returns the cgroup's real-time budget in microseconds per period.
    pub fn budget(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("cpu.rt_runtime_us")).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for NoRealTime {
    fn drop(&mut self) {
        wait_until("the cgroup to be empty", || fs::remove_dir(&self.0).is_ok());
    }
}

/// Note that a test prints when it is skipped, because the kernel has no real-time budgets of
/// cgroups.
pub const SKIPPED: &str =
    "skipped: needs cgroups with real-time budgets (version 1, RT_GROUP_SCHED)";
