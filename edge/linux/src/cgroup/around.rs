//! Cgroups that a thread is in, limits of CPU time of these cgroups, and freezes by other programs.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{CgroupError, Controller, DEEPEST, Version, is_ours, mounts, read, upward, write};
use super::{Step, move_to};
use crate::sys::{Tid, read_of_thread};
use crate::thread::starts_or_ends;

/// Controllers whose cgroups determine when and where a thread runs.
const CONTROLLERS: [Controller; 3] = [Controller::Freezer, Controller::Cpu, Controller::Cpuset];

/// Mounts of the cgroup hierarchies that determine when and where threads run. The mounts are read
/// once and used for many threads.
#[derive(Debug)]
pub struct Hierarchies([Vec<mounts::Mount>; CONTROLLERS.len()]);

/// A cgroup that a thread is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Version of the cgroup hierarchy.
    pub version: Version,
    controller: Controller,
    /// Folder of the cgroup.
    pub group: PathBuf,
}

/// Cgroups of a thread, and their limits of CPU time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Cgroup of the thread in each hierarchy with a controller that determines when and where
    /// threads run.
    pub groups: Vec<Membership>,
    /// Limits of CPU time of the thread's cgroups and of the cgroups above them. Each item is the
    /// folder of a cgroup and its limit as the kernel writes it.
    quotas: Vec<(PathBuf, String)>,
}

impl Surroundings {
    /// Returns true if `group` is the thread's cgroup in one of the hierarchies.
    #[must_use]
    pub fn is_in(&self, group: &Path) -> bool {
        self.groups.iter().any(|membership| membership.group == group)
    }

    /// Sets the recorded cgroup of the thread to `group`, in the hierarchy that contains `group`.
    /// Does not move the thread.
    pub fn set_group(&mut self, group: &Path) {
        let device = |path: &Path| fs::metadata(path).map(|folder| folder.dev()).ok();
        let Some(of) = device(group) else { return };
        let same = self.groups.iter_mut().filter(|it| device(&it.group) == Some(of));
        same.for_each(|membership| membership.group = group.to_path_buf());
    }

    /// Returns the limits of CPU time of the thread's cgroups and of the cgroups above them. Each
    /// item is the folder of a cgroup and its limit as the kernel writes it. Limits of cgroups that
    /// Slackline made are left out.
    pub fn quotas(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.quotas.iter().map(|(group, quota)| (group.as_path(), quota.as_str()))
    }

    /// Returns the folder of the thread's version 2 cgroup. `None` if version 2 is not mounted.
    #[must_use]
    pub fn unified(&self) -> Option<&Path> {
        let mut groups = self.groups.iter();
        let unified = groups.find(|group| group.version == Version::V2)?;
        Some(&unified.group)
    }
}

impl Hierarchies {
    /// Reads the mounts of the hierarchies.
    ///
    /// # Errors
    /// If procfs cannot be read.
    pub fn read() -> Result<Hierarchies, CgroupError> {
        let text = read(Path::new("/proc/self/mountinfo"))?;
        Ok(Hierarchies(CONTROLLERS.map(|controller| mounts::parse(&text, controller))))
    }

    /// Reads the cgroups of a thread and their limits of CPU time. `None` if the thread has exited.
    pub fn around(&self, pid: Tid, tid: Tid) -> Option<Surroundings> {
        let groups = self.groups_of(pid, tid)?;
        let quotas = groups.iter().flat_map(Membership::quotas).collect();
        Some(Surroundings { groups, quotas })
    }

    /// Reads the cgroups of a thread, but not their limits of CPU time. `None` if the thread has
    /// exited.
    #[must_use]
    pub fn around_without_limits(&self, pid: Tid, tid: Tid) -> Option<Surroundings> {
        Some(Surroundings { groups: self.groups_of(pid, tid)?, quotas: Vec::new() })
    }

    /// Returns true if the thread `tid` of process `pid` is in the cgroup `group` now, and is
    /// neither new nor ending. A new or ending thread is excluded because the kernel shows root
    /// cgroups for it, although it was not moved there.
    #[must_use]
    pub fn confirm(&self, (pid, tid): (Tid, Tid), group: &Path) -> bool {
        let groups = || self.groups_of(pid, tid).unwrap_or_default();
        !starts_or_ends(pid, tid) && groups().iter().any(|it| it.group == group)
    }

    fn groups_of(&self, pid: Tid, tid: Tid) -> Option<Vec<Membership>> {
        let text = read_of_thread((pid, tid), "cgroup").ok()?;
        let mut groups: Vec<Membership> = Vec::new();
        for (controller, mounts) in CONTROLLERS.into_iter().zip(&self.0) {
            for version in [Version::V1, Version::V2] {
                let Some(named) = mounts::group_of(&text, version, controller) else { continue };
                let mut mounts = mounts.iter().filter(|mount| mount.version == version);
                let Some(group) = mounts.find_map(|mount| mount.place(&named)) else { continue };
                // All controllers of version 2 share one hierarchy.
                if groups.iter().all(|known| known.group != group) {
                    groups.push(Membership { version, controller, group });
                }
            }
        }
        Some(groups)
    }
}

impl Membership {
    /// Returns the limits of CPU time of this cgroup and of the cgroups above it. Limits of cgroups
    /// that Slackline made are left out.
    fn quotas(&self) -> Vec<(PathBuf, String)> {
        let line = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim().to_owned());
        let quota = |folder: &Path| match self.version {
            Version::V2 => line(folder.join("cpu.max")).filter(|max| !max.starts_with("max")),
            Version::V1 => {
                let quota = line(folder.join("cpu.cfs_quota_us"))?;
                let period = line(folder.join("cpu.cfs_period_us"))?;
                (!quota.starts_with('-')).then(|| format!("{quota} {period}"))
            }
        };
        let others = upward(&self.group).filter(|folder| !is_ours(folder));
        others.filter_map(|folder| Some((folder.to_path_buf(), quota(folder)?))).collect()
    }

    /// Searches this cgroup and the cgroups above it, from below, and returns the first cgroup that
    /// another program has frozen. `None` if no such cgroup is frozen.
    ///
    /// Slackline freezes some cgroups itself: the cgroups that it made, and `tree`, the cgroup of a
    /// scheduled process tree. The search skips these cgroups, because the code that freezes them
    /// also detects freezes by other programs.
    fn frozen(&self, tree: Option<&Path>) -> Option<PathBuf> {
        if self.version == Version::V1 && self.controller != Controller::Freezer {
            // In version 1, only the freezer's hierarchy has a file that freezes processes.
            return None;
        }
        let (file, frozen) = match self.version {
            Version::V2 => ("cgroup.freeze", b"1"),
            Version::V1 => ("freezer.self_freezing", b"1"),
        };
        let is_frozen = |folder: &&Path| {
            read_short(&folder.join(file)).is_ok_and(|text| text.trim_ascii() == frozen)
        };
        // Folders above the hierarchy have no such file.
        let mut others =
            folders_upward(&self.group).filter(|folder| !is_ours(folder) && Some(*folder) != tree);
        others.find(is_frozen).map(Path::to_path_buf)
    }

    /// Moves a thread, which was in this cgroup before, back into it. If the cgroup does not accept
    /// single threads, the whole process is moved.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_back(&self, tid: Tid) -> Result<(), CgroupError> {
        let single = if self.version == Version::V1 { "tasks" } else { "cgroup.threads" };
        let moved = move_to(&self.group.join(single), &tid.to_string());
        moved.or_else(|_| write(&self.group.join("cgroup.procs"), &tid.to_string(), Step::Move))
    }
}

impl Membership {
    /// Moves a whole process, which was in this cgroup before, back into it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_back_process(&self, pid: Tid) -> Result<(), CgroupError> {
        write(&self.group.join("cgroup.procs"), &pid.to_string(), Step::Move)
    }
}

impl Surroundings {
    /// Searches the thread's cgroups and the cgroups above them, and returns the first cgroup that
    /// another program has frozen. `None` if no such cgroup is frozen. Cgroups that Slackline
    /// freezes itself are skipped: the cgroups that it made, and `tree`, the cgroup of a scheduled
    /// process tree.
    #[must_use]
    pub fn frozen(&self, tree: Option<&Path>) -> Option<PathBuf> {
        self.groups.iter().find_map(|membership| membership.frozen(tree))
    }

    /// Returns the former and the present cgroup in the first hierarchy in which the thread's
    /// cgroup differs from `before`. `None` if it differs in no hierarchy.
    #[must_use]
    pub fn moved<'a>(
        &'a self,
        before: &'a Surroundings,
    ) -> Option<(&'a Membership, &'a Membership)> {
        self.moves(before).next()
    }

    /// Returns the former and the present cgroup in each hierarchy in which the thread's cgroup
    /// differs from `before`.
    pub fn moves<'a>(
        &'a self,
        before: &'a Surroundings,
    ) -> impl Iterator<Item = (&'a Membership, &'a Membership)> {
        let is_one = |now: &&Membership, was: &&Membership| {
            (now.version, now.controller) == (was.version, was.controller)
        };
        self.groups.iter().filter_map(move |now| {
            let was = before.groups.iter().find(|was| is_one(&now, was))?;
            (was.group != now.group).then_some((was, now))
        })
    }

    /// Moves a thread back into the version 1 cgroups that it had in `before`. In each hierarchy
    /// this is done only if `credentials` permit a process to leave the former cgroup by itself.
    /// Returns true if the thread was moved back in at least one hierarchy.
    #[must_use]
    pub fn return_to(&self, before: &Surroundings, tid: Tid, credentials: &Credentials) -> bool {
        let of_version_1 = self.groups.iter().filter(|now| now.version == Version::V1);
        let returned = of_version_1.filter(|now| {
            let was = before.groups.iter().find(|was| {
                (was.version, was.controller) == (now.version, now.controller)
                    && was.group != now.group
            });
            was.is_some_and(|was| {
                may_move(credentials, &was.group, &now.group) && was.take_back(tid).is_ok()
            })
        });
        returned.count() > 0
    }

    /// Returns the file of the kernel that sets a cgroup's limit of CPU time.
    #[must_use]
    pub fn quota_file(group: &Path) -> PathBuf {
        let of_version_2 = group.join("cpu.max");
        if of_version_2.exists() { of_version_2 } else { group.join("cpu.cfs_quota_us") }
    }

    /// Returns the file of the kernel that freezes and thaws a cgroup.
    #[must_use]
    pub fn freeze_file(group: &Path) -> PathBuf {
        let of_version_2 = group.join("cgroup.freeze");
        if of_version_2.exists() { of_version_2 } else { group.join("freezer.state") }
    }

    /// Returns all limits of CPU time that apply to the thread now and did not apply in `before`.
    /// Each item is the folder of a cgroup with its limit.
    pub fn new_limits<'a>(
        &'a self,
        before: &'a Surroundings,
    ) -> impl Iterator<Item = &'a (PathBuf, String)> {
        self.quotas.iter().filter(|quota| !before.quotas.contains(quota))
    }

    /// Returns the first limit of CPU time that applies to the thread now and did not apply in
    /// `before`. `None` if there is no such limit.
    #[must_use]
    pub fn limited(&self, before: &Surroundings) -> Option<&(PathBuf, String)> {
        self.quotas.iter().find(|quota| !before.quotas.contains(quota))
    }
}

/// Users and groups with whose permissions a process changes cgroups. Root is never among the
/// users: changes that only root may make are attributed to another program.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    users: Vec<u32>,
    groups: Vec<u32>,
}

impl Credentials {
    /// Returns the users and groups of a thread: the real and the effective ones, and the
    /// supplementary groups. The real user is included because the program that started a
    /// set-user-id program may move that program to another cgroup. If the credentials cannot be
    /// read, the result is empty.
    #[must_use]
    pub fn of(tid: Tid) -> Credentials {
        let status = read_of_thread((tid, tid), "status").unwrap_or_default();
        Credentials::parse(&String::from_utf8_lossy(&status))
    }

    fn parse(status: &str) -> Credentials {
        let ids = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_ascii_whitespace().filter_map(|id| id.parse().ok())
        };
        let users: Vec<u32> = ids("Uid:").take(2).filter(|&user| user != 0).collect();
        let groups = ids("Gid:").take(2).chain(ids("Groups:"));
        let groups = if users.is_empty() { Vec::new() } else { groups.collect() };
        Credentials { users, groups }
    }

    /// Adds the users and groups in `other`.
    #[must_use]
    pub fn and(mut self, other: &Credentials) -> Credentials {
        self.users.extend(&other.users);
        self.groups.extend(&other.groups);
        self
    }
}

/// Returns true if a process with these credentials may move itself from one cgroup to another. If
/// such a process may not move itself, only another program can have made the move. Returns false
/// for root: moves of root's processes are always attributed to another program.
///
/// Version 1 checks only the permissions of the new cgroup. Version 2 also checks the permissions
/// of the nearest cgroup above both cgroups.
#[must_use]
pub fn may_move(credentials: &Credentials, from: &Path, to: &Path) -> bool {
    // Only cgroups of version 1 have this file.
    let tasks = to.join("tasks");
    if tasks.exists() {
        return [tasks, to.join("cgroup.procs")].iter().any(|file| may_write(credentials, file));
    }
    // This takes time proportional to the depth of the cgroups. Users can choose the depth.
    let shared = from.components().zip(to.components()).take_while(|(a, b)| a == b);
    let common: PathBuf = shared.map(|(folder, _)| folder).collect();
    [&common, to].into_iter().all(|folder| may_write(credentials, &folder.join("cgroup.procs")))
}

/// Returns true if a process with these credentials may write to a file, as the owner of the file,
/// as a member of its group, or as any user.
#[must_use]
pub fn may_write(credentials: &Credentials, file: &Path) -> bool {
    !credentials.users.is_empty()
        && fs::metadata(file).is_ok_and(|data| {
            let mode = data.permissions().mode();
            let is_owner = credentials.users.contains(&data.uid());
            let is_in_group = credentials.groups.contains(&data.gid());
            is_owner && mode & 0o200 != 0 || is_in_group && mode & 0o020 != 0 || mode & 0o002 != 0
        })
}

/// Returns the folder of a cgroup and the folders above it, from below. The last ones are above the
/// mount point of the hierarchy.
pub(super) fn folders_upward(group: &Path) -> impl Iterator<Item = &Path> {
    let all: Vec<&Path> = group.ancestors().collect();
    let skipped = all.len().saturating_sub(DEEPEST + 1);
    all.into_iter().skip(skipped)
}

/// Reads the first 16 bytes of a file of the kernel. This needs fewer system calls than reading a
/// file of unknown length.
fn read_short(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = [0; 16];
    let length = File::open(path)?.read(&mut text)?;
    Ok(text[..length].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_to_write_file_follows_permissions_of_owner_and_group() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cgroup.procs");
        fs::write(&file, "").unwrap();
        let data = fs::metadata(&file).unwrap();
        let (owner, group) = (data.uid(), data.gid());
        let other = owner + 1_000;
        let may = |mode, users: &[u32], groups: &[u32]| {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            may_write(&Credentials { users: users.into(), groups: groups.into() }, &file)
        };
        assert!(may(0o664, &[other], &[group + 1, group]));
        assert!(!may(0o644, &[other], &[group]));
        assert!(!may(0o664, &[other], &[group + 1]));
        assert!(may(0o644, &[owner], &[]) && may(0o666, &[other], &[]));
        assert!(!may(0o666, &[], &[]));
    }

    #[test]
    fn move_to_cgroup_v1_needs_write_permission_only_for_tasks() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        let owner = fs::metadata(folder.path()).unwrap().uid();
        let user = Credentials { users: vec![owner], groups: Vec::new() };
        let file = |path: PathBuf, mode| {
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        file(folder.path().join("cgroup.procs"), 0o444);
        for group in [&from, &to] {
            fs::create_dir(group).unwrap();
            file(group.join("cgroup.procs"), 0o444);
        }
        assert!(!may_move(&user, &from, &to));
        file(to.join("tasks"), 0o444);
        assert!(!may_move(&user, &from, &to));
        fs::set_permissions(to.join("tasks"), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(may_move(&user, &from, &to));
    }

    #[test]
    fn setuid_process_is_attributed_to_its_real_uid() {
        let status = "Name:\tpasswd\nUid:\t1000\t0\t0\t0\nGid:\t100\t100\t100\t100\n\
                      Groups:\t4 24\n";
        let found = Credentials::parse(status);
        assert_eq!((found.users, found.groups), (vec![1000], vec![100, 100, 4, 24]));
        let root = Credentials::parse("Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t0 7\n");
        assert!(root.users.is_empty() && root.groups.is_empty());
    }

    #[test]
    fn number_of_cgroups_read_above_deeply_nested_cgroup_is_limited() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = folder.path().to_path_buf();
        for _ in 0..300 {
            fs::write(group.join("cgroup.procs"), "").unwrap();
            group.push("x");
            fs::create_dir(&group).unwrap();
        }
        assert!(upward(&group).count() < 65);
        let membership = Membership { version: Version::V2, controller: Controller::Cpu, group };
        assert_eq!(membership.frozen(None), None);
        // A freeze near the root of the hierarchy is found in spite of the limit.
        let frozen = folder.path().join("x/x");
        fs::write(frozen.join("cgroup.freeze"), "1\n").unwrap();
        assert_eq!(membership.frozen(None), Some(frozen));
    }
}
