//! Cgroup of a guest's process. A list of reservations names a cgroup, because a process id ends
//! with its process.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Cgroup of version 2 that contains one process. It is removed when this value is dropped, which
/// must be after the end of the process.
pub(super) struct GuestGroup(PathBuf);

impl GuestGroup {
    /// Creates a cgroup for the guest `name` and moves the process into it.
    pub(super) fn with(name: &str, process: u32) -> Result<GuestGroup> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let root = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let place = words.next()?;
            (words.next()? == "cgroup2").then_some(place)
        });
        let root = Path::new(root.context("needs cgroups of version 2")?);
        let folder = root.join(format!("slackline-bench-{}-{name}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let group = GuestGroup(folder);
        fs::write(group.0.join("cgroup.procs"), process.to_string())?;
        Ok(group)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for GuestGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
