//! The kernel's own ways of limiting a thread to 1 % of a CPU.

use std::any::Any;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use slackline_live::sys::{
    Scheduling, SchedulingOf, Tid, online_cpus, set_affinity, set_scheduling,
};
use slackline_units::Span;

use super::sample::Limit;

/// Each with a name.
pub(crate) const ALL: &[(&str, Limit)] =
    &[("SCHED_DEADLINE, 0.1 ms of 10 ms", deadline), ("a CFS quota, 1 ms of 100 ms", quota)];

fn deadline(tid: Tid) -> Result<Box<dyn Any>> {
    // The kernel refuses it to a thread that is pinned.
    set_affinity(tid, &online_cpus()?)?;
    let period = Span::from_ms(10);
    let class = Scheduling::Deadline { runtime: Span::from_us(100), deadline: period, period };
    set_scheduling(tid, &SchedulingOf { class, reset_on_fork: true })?;
    Ok(Box::new(()))
}

/// A group that is removed again.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        // It can be removed only once the kernel has buried its last process.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn quota(tid: Tid) -> Result<Box<dyn Any>> {
    let (root, is_v2) = cpu_hierarchy()?;
    let group = root.join(format!("slackline-bench-{tid}"));
    fs::create_dir(&group).context("cannot make a group")?;
    let guard = Group(group.clone());
    if is_v2 {
        fs::write(group.join("cpu.max"), "1000 100000")?;
    } else {
        fs::write(group.join("cpu.cfs_period_us"), "100000")?;
        fs::write(group.join("cpu.cfs_quota_us"), "1000")?;
    }
    fs::write(group.join("cgroup.procs"), tid.to_string())?;
    Ok(Box::new(guard))
}

/// Where groups with a quota can be made, and whether that is version 2.
fn cpu_hierarchy() -> Result<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    for line in mounts.lines() {
        let (before, after) = line.split_once(" - ").context("a line of mountinfo")?;
        let point = Path::new(before.split(' ').nth(4).context("a mount point")?);
        let kind = after.split(' ').next().unwrap_or_default();
        let options = after.rsplit(' ').next().unwrap_or_default();
        if kind == "cgroup" && options.split(',').any(|option| option == "cpu") {
            return Ok((point.into(), false));
        }
        let controllers = fs::read_to_string(point.join("cgroup.subtree_control"));
        if kind == "cgroup2" && controllers.is_ok_and(|text| text.contains("cpu")) {
            return Ok((point.into(), true));
        }
    }
    bail!("no cgroup hierarchy has the cpu controller")
}
