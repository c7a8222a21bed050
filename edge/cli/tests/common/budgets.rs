//! Cgroups with real-time budgets, where the kernel has such a thing.

use std::fs;
use std::path::{Path, PathBuf};

use super::live::wait_until;

/// A group whose threads may not be real-time. Once they have left it is gone when this is.
pub struct NoRealTime(pub PathBuf);

impl NoRealTime {
    /// None where groups have no budgets.
    pub fn make() -> Option<NoRealTime> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let is_cpu = |options: &str| options.split(',').any(|option| option == "cpu");
        let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = lines.find(|line| line[2] == "cgroup" && is_cpu(line[3]))?[1].to_owned();
        let group = Path::new(&mount).join(format!("slackline-test-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let made = NoRealTime(group);
        made.0.join("cpu.rt_runtime_us").exists().then_some(made)
    }

    /// Another one in it.
    pub fn inner(&self, name: &str) -> NoRealTime {
        let group = self.0.join(name);
        fs::create_dir(&group).unwrap();
        NoRealTime(group)
    }

    /// Its budget, in microseconds of each period of it.
    pub fn budget(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("cpu.rt_runtime_us")).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for NoRealTime {
    fn drop(&mut self) {
        wait_until("the group to be empty", || fs::remove_dir(&self.0).is_ok());
    }
}

/// What a test says that needs them.
pub const SKIPPED: &str =
    "skipped: needs cgroups with real-time budgets (version 1, RT_GROUP_SCHED)";
