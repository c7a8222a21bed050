//! Duration of operations of the kernel and the disk that are comparable with requests to the
//! daemon.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use slackline_units::Span;

use super::daemon::{Processes, ServiceSetting};

/// A process in its own cgroup with a CFS quota. The process is ended and the cgroup is removed
/// when this value is dropped.
pub(super) struct Quota {
    group: PathBuf,
    is_v2: bool,
    _process: Processes,
}

impl Quota {
    /// Creates the cgroup and its process. `None` if this host has no cgroups with a CPU
    /// controller, or refuses a new cgroup.
    pub(super) fn new() -> Result<Option<Quota>> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mounted = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (point, kind, options) = (words.next()?, words.next()?, words.next()?);
            let has_cpu = match kind {
                "cgroup" => options.split(',').any(|option| option == "cpu"),
                "cgroup2" => fs::read_to_string(Path::new(point).join("cgroup.subtree_control"))
                    .is_ok_and(|on| on.split_whitespace().any(|one| one == "cpu")),
                _ => false,
            };
            has_cpu.then(|| (PathBuf::from(point), kind == "cgroup2"))
        });
        let Some((point, is_v2)) = mounted else { return Ok(None) };
        let group = point.join(format!("slackline-bench-{}", std::process::id()));
        if fs::create_dir(&group).is_err() {
            return Ok(None);
        }
        let process = Processes::that_spin(1)?;
        let quota = Quota { group, is_v2, _process: process };
        for pid in quota._process.pids() {
            fs::write(quota.group.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(Some(quota))
    }

    /// Sets the quota per 10 ms to `slice` plus a millisecond, because the kernel does not allow
    /// less than a millisecond.
    pub(super) fn set(&mut self, slice: Span) -> Result<()> {
        let us = slice.ns() / 1_000 + 1_000;
        let (file, text) = match self.is_v2 {
            true => ("cpu.max", format!("{us} 10000")),
            false => ("cpu.cfs_quota_us", us.to_string()),
        };
        Ok(fs::write(self.group.join(file), text)?)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // A cgroup that contains processes cannot be removed, so they are moved back to its parent.
        if let Some(above) = self.group.parent() {
            for pid in self._process.pids() {
                let _ = fs::write(above.join("cgroup.procs"), pid.to_string());
            }
        }
        let _ = fs::remove_dir(&self.group);
    }
}

/// A file that grows with each write. Each write is flushed to the disk.
pub(super) struct Disk(File);

impl Disk {
    pub(super) fn new(setting: &ServiceSetting) -> Result<Disk> {
        Ok(Disk(File::create(setting.path("grows"))?))
    }

    pub(super) fn write(&mut self) -> Result<()> {
        self.0.write_all(&[7; 4096])?;
        Ok(self.0.sync_data()?)
    }
}
