//! The controller `cpuset`: the CPUs that a thread's cgroup allows. Slackline also makes cgroups
//! with this controller. Such a cgroup keeps scheduled threads on the managed CPUs even if the
//! threads change their affinity.
//!
//! In version 1 Slackline makes such a cgroup for each thread. In version 2 the cgroup that freezes
//! the threads also restricts their CPUs. For that, the parent cgroup must enable the controller
//! for its children. Slackline enables the controller there if that does not affect the parent's
//! own threads. If no cgroup can restrict a thread, the thread can change its affinity, and an
//! audit moves it back afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use slackline_units::{CpuId, CpuSet};

use super::{CgroupError, Controller, Place, Step, Version, mounts, read, upward, write};
use crate::sys::{Tid, cpu_list};
use crate::thread::ThreadRef;

/// Cpuset that applies to a thread or to a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpuset {
    /// Folder of the cgroup that defines the cpuset.
    pub group: PathBuf,
    /// File that sets the CPUs of the cpuset.
    pub file: PathBuf,
    /// CPUs that the cpuset allows.
    pub cpus: CpuSet,
}

impl Cpuset {
    /// Returns the cpuset of a thread. `None` if the host has no controller `cpuset`, or the
    /// thread's cgroup is not visible.
    ///
    /// # Errors
    /// If procfs cannot be read, or the thread has exited.
    pub fn of(pid: Tid, tid: Tid) -> Result<Option<Cpuset>, CgroupError> {
        let mounts = mounts::parse(&read(Path::new("/proc/self/mountinfo"))?, Controller::Cpuset);
        let groups = read(&PathBuf::from(format!("/proc/{pid}/task/{tid}/cgroup")))?;
        // If version 1 has the controller, version 2 does not have it.
        let found = [Version::V1, Version::V2].into_iter().find_map(|version| {
            let group = mounts::group_of(&groups, version, Controller::Cpuset)?;
            let mut mounts = mounts.iter().filter(|mount| mount.version == version);
            Cpuset::at(version, &mounts.find_map(|mount| mount.place(&group))?)
        });
        Ok(found)
    }

    /// Returns the cpuset that applies in a cgroup: its own cpuset, or else the cpuset of the
    /// nearest cgroup above it that has a cpuset.
    fn at(version: Version, group: &Path) -> Option<Cpuset> {
        let (file, granted) = match version {
            Version::V1 => ("cpuset.cpus", "cpuset.effective_cpus"),
            Version::V2 => ("cpuset.cpus", "cpuset.cpus.effective"),
        };
        let group = upward(group).find(|folder| folder.join(granted).exists())?;
        let cpus = parsed(&fs::read_to_string(group.join(granted)).ok()?)?;
        Some(Cpuset { group: group.to_path_buf(), file: group.join(file), cpus })
    }
}

fn parsed(list: &str) -> Option<CpuSet> {
    let numbers = cpu_list(list)?.into_iter().filter(|&cpu| cpu < CpuId::LIMIT);
    Some(numbers.map(CpuId::new).collect())
}

/// Formats CPUs as the kernel does, such as `0,2,3`.
fn listed(cpus: &CpuSet) -> String {
    cpus.iter().map(|cpu| cpu.index().to_string()).collect::<Vec<_>>().join(",")
}

impl Place {
    /// Finds a folder in version 1 for a cgroup with the controller `cpuset`, which Slackline makes
    /// for a thread.
    ///
    /// `None` if the host has no version 1 controller `cpuset`. Also `None` if another program has
    /// put the thread into a cpuset, because a cgroup below that cpuset would keep the other
    /// program from changing it.
    ///
    /// # Errors
    /// As for [`Place::find_in`].
    pub fn find_cpuset(thread: &ThreadRef) -> Result<Option<Place>, CgroupError> {
        match Place::find_in(Version::V1, thread, Controller::Cpuset) {
            Err(CgroupError::NotMounted { .. }) => Ok(None),
            place => place.map(|place| Some(place).filter(|place| !has_group_above(&place.origin))),
        }
    }

    /// Creates the cgroup without members. The cgroup allows those CPUs in `cpus` that its parent
    /// allows.
    ///
    /// # Errors
    /// If the kernel rejects an operation, or the parent allows no CPU in `cpus`. A cgroup whose
    /// CPUs cannot be set is removed again.
    pub fn make_cpuset(&self, cpus: CpuSet) -> Result<(), CgroupError> {
        self.make()?;
        let set = || {
            let has = Cpuset::at(Version::V1, &self.origin).map_or(cpus, |origin| origin.cpus);
            let mems = read(&self.origin.join("cpuset.effective_mems"))?;
            let mems = String::from_utf8_lossy(&mems).trim().to_owned();
            // Load balancing is switched off before the CPUs are set. Otherwise the kernel would
            // rebuild its scheduling domains.
            let _ = write(&self.group.join("cpuset.sched_load_balance"), "0", Step::Limit);
            write(&self.group.join("cpuset.mems"), &mems, Step::Limit)?;
            write(&self.group.join("cpuset.cpus"), &listed(&cpus.and(&has)), Step::Limit)
        };
        set().inspect_err(|_| {
            let _ = fs::remove_dir(&self.group);
        })
    }

    /// Moves those of `threads` that are in the cgroup `origin` into this cgroup.
    pub fn take_in_from_origin(&self, threads: &[Tid]) {
        let inside = fs::read_to_string(self.origin.join("tasks")).unwrap_or_default();
        let inside: BTreeSet<i32> = inside.lines().filter_map(|line| line.parse().ok()).collect();
        for tid in threads.iter().filter(|tid| inside.contains(&tid.raw())) {
            // A thread that has exited need not be moved, and kernel workers cannot be moved.
            let _ = self.take_in(*tid);
        }
    }
}

fn has_group_above(group: &Path) -> bool {
    group.parent().is_some_and(|above| above.join("cgroup.procs").exists())
}

/// Restricts a version 2 cgroup that Slackline made to the CPUs in `cpus`, if possible. The parent
/// cgroup must enable the controller `cpuset` for its children. If it does not, Slackline enables
/// the controller there, but only where that does not affect the parent's own threads. This
/// condition holds for the root cgroup. If `is_threaded` is true, it also holds for the cgroup of
/// the process.
pub fn keep_group_on(group: &Path, cpus: &CpuSet, is_threaded: bool) {
    let file = group.join("cpuset.cpus");
    if !file.exists()
        && let Some(above) = group.parent()
    {
        let is_root = !above.join("cgroup.type").exists();
        if is_root || is_threaded {
            let _ = write(&above.join("cgroup.subtree_control"), "+cpuset", Step::Enable);
        }
    }
    if file.exists() {
        let _ = write(&file, &listed(cpus), Step::Limit);
    }
}
