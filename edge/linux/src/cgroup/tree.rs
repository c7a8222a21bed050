//! Version 2 cgroups for process trees. A process tree is a process and all its descendants. All of
//! them are in one cgroup, so they are frozen, listed and accounted for together.
//!
//! For a process and its descendants, Slackline makes a new cgroup below their current cgroup. If
//! the user names an existing cgroup, that cgroup is used unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::family::{descendants, has_lost_first};
use super::members::{ListLimit, TreeMembers, list_below};
use super::{
    CgroupError, Controller, PREFIX, Place, Step, Version, check_depth, dissolve, group_of_process,
    mounts, read, upward, write,
};
use crate::sys::Tid;
use crate::thread::ThreadRef;

/// Cgroup of a process tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePlace {
    /// Folder of the tree's cgroup.
    pub group: PathBuf,
    /// Folder of the cgroup in which the processes were before, and to which they return. `None` if
    /// `group` is an existing cgroup that Slackline did not make.
    pub origin: Option<PathBuf>,
}

const FREEZE: &str = "cgroup.freeze";
/// Name of an empty cgroup in the cgroup of a tree. While this empty cgroup exists, even a user who
/// owns the cgroup above cannot remove the tree's cgroup.
const ANCHOR: &str = "slackline-anchor";
/// Name of a cgroup that Slackline makes if a former cgroup of a process accepts no processes any
/// more. The new cgroup is below the former cgroup, and the process returns into it.
const RETURNED: &str = "returned";
const PROCESSES: &str = "cgroup.procs";
const THREADS: &str = "cgroup.threads";

/// Maximum number of times that the descendants of a process are listed while they are moved to a
/// cgroup. The list is read again if processes were started meanwhile. Each time it has fewer new
/// processes, because children of a process that was already moved start in the right cgroup.
const ROUNDS: usize = 100;

impl TreePlace {
    /// Chooses the folder of a new cgroup for a process and its descendants. Creates nothing yet.
    ///
    /// # Errors
    /// If no cgroups of version 2 are mounted, or the cgroup of the process is not visible.
    pub fn of_process(root: &ThreadRef) -> Result<TreePlace, CgroupError> {
        let place = Place::find_in(Version::V2, root, Controller::Freezer)?;
        Ok(TreePlace { group: place.group, origin: Some(place.origin) })
    }

    /// Returns the existing cgroup `named`, which is a folder or the kernel's path of a cgroup.
    ///
    /// # Errors
    /// If there is no such cgroup, it is nested too deeply, or this process is in it.
    pub fn existing(named: &Path) -> Result<TreePlace, CgroupError> {
        let groups = read(Path::new("/proc/self/cgroup"))?;
        let mounts = mounted()?;
        let by_name = mounts.iter().find_map(|mount| mount.place(named));
        let folder = [Some(named.to_path_buf()), by_name].into_iter().flatten();
        let is_seen = |folder: &PathBuf| mounts.iter().any(|mount| mount.shows(folder));
        let mut folder = folder.filter(|folder| is_seen(folder) && folder.is_dir());
        let Some(group) = folder.next() else {
            return Err(CgroupError::NoSuchGroup { group: named.to_path_buf() });
        };
        check_depth(&group)?;
        let own = mounts::group_of(&groups, Version::V2, Controller::Freezer);
        let own = own.and_then(|own| mounts.iter().find_map(|mount| mount.place(&own)));
        if own.is_some_and(|own| own.starts_with(&group)) {
            return Err(CgroupError::HoldsOurselves { group });
        }
        Ok(TreePlace { group, origin: None })
    }

    /// Returns true if a process is in the cgroup, or in a cgroup below it.
    ///
    /// # Errors
    /// If the cgroup of the process cannot be read.
    pub fn holds(&self, pid: Tid) -> Result<bool, CgroupError> {
        let group = group_of_process(pid, Version::V2, Controller::Freezer)?;
        Ok(group.is_some_and(|group| group.starts_with(&self.group)))
    }

    /// Returns the cgroup of a systemd unit.
    ///
    /// # Errors
    /// If no cgroup has this name, or if several cgroups have it.
    pub fn of_unit(unit: &str) -> Result<TreePlace, CgroupError> {
        UnitFolders::find(&BTreeSet::from([unit]))?.place_of(unit)
    }

    /// Checks that the cgroup can be used for a process tree. An existing cgroup must have a
    /// freezer and must not be frozen. A cgroup that Slackline is about to make must not exist yet.
    ///
    /// # Errors
    /// If one of these conditions does not hold.
    pub fn check(&self) -> Result<(), CgroupError> {
        if self.origin.is_some() {
            let is_there = io::Error::from(io::ErrorKind::AlreadyExists);
            let refused = || CgroupError::refused(Step::Make, &self.group, is_there);
            return if self.is_made() { Err(refused()) } else { Ok(()) };
        }
        if read(&self.group.join(FREEZE))?.trim_ascii() == b"1" {
            return Err(CgroupError::FrozenAlready { group: self.group.clone() });
        }
        Ok(())
    }

    /// Creates the cgroup without members, unless the cgroup exists already. The caller must have
    /// registered the cgroup with the keeper before. So the keeper can remove the cgroup if the
    /// caller is killed.
    ///
    /// # Errors
    /// If the kernel refuses, or the cgroup has no freezer. No cgroup is left behind.
    pub fn make(&self) -> Result<(), CgroupError> {
        if self.origin.is_none() {
            return Ok(());
        }
        let made = fs::create_dir(&self.group);
        made.map_err(|source| CgroupError::refused(Step::Make, &self.group, source))?;
        let freezer = read(&self.group.join(FREEZE)).inspect_err(|_| {
            let _ = fs::remove_dir(&self.group);
        });
        freezer?;
        if self.group.parent().is_some_and(is_writable_for_others) {
            // If the anchor cannot be made, the tree is scheduled without it.
            let _ = fs::create_dir(self.group.join(ANCHOR));
        }
        Ok(())
    }

    /// Chooses the folder of a cell: a cgroup directly below the root cgroup, in which processes
    /// are stopped. Only the user root can move processes out of it. Creates nothing yet. `None` if
    /// neither `origin` nor any folder above it is a cgroup.
    ///
    /// `origin` is the cgroup to which the processes return. It may already have been removed. The
    /// name of the folder contains the id and the start time of the thread `first`.
    #[must_use]
    pub fn cell(origin: &Path, first: &ThreadRef) -> Option<TreePlace> {
        let there = origin.ancestors().find(|folder| folder.join(PROCESSES).exists())?;
        let root = upward(there).last()?;
        let name = format!("{PREFIX}cell-{}-{}", first.tid(), first.started());
        Some(TreePlace { group: root.join(name), origin: Some(origin.to_path_buf()) })
    }

    /// Moves all processes of a cgroup that Slackline made back into their former cgroup.
    ///
    /// # Errors
    /// If a process can be moved neither into the former cgroup nor into a cgroup above.
    pub fn empty(&self) -> Result<(), CgroupError> {
        self.origin.as_ref().map_or(Ok(()), |origin| self.move_back(origin))
    }

    /// Returns the path of the file that freezes and thaws the cgroup.
    #[must_use]
    pub fn switch(&self) -> PathBuf {
        self.group.join(FREEZE)
    }

    /// Returns the path of the file that shows whether the cgroup has members. A `poll` of this
    /// file returns when the last member leaves or the first member enters.
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.group.join("cgroup.events")
    }

    /// Returns the path of the file with the CPU time of all members of the cgroup, including
    /// members that have ended.
    #[must_use]
    pub fn usage(&self) -> PathBuf {
        self.group.join("cpu.stat")
    }

    /// Moves a process and all its descendants into the cgroup.
    ///
    /// # Errors
    /// If the cgroup of one of the processes is not the cgroup of `root`. Also if one of them is
    /// the calling process, or cannot be moved.
    pub fn gather(&self, root: Tid) -> Result<(), CgroupError> {
        let Some(origin) = &self.origin else { return Ok(()) };
        let file = self.group.join(PROCESSES);
        let folders = Gathering { group: &self.group, origin, file: &file };
        let list = || Ok(self.processes()?.into_iter().collect());
        folders.gather(root, list, |pid| group_of_process(pid, Version::V2, Controller::Freezer))
    }

    /// Moves a process into the cgroup. If the cgroup accepts no processes, because it enables
    /// controllers for the cgroups below it, the process is moved into a new cgroup below it.
    ///
    /// # Errors
    /// If the kernel refuses, or the process has ended.
    pub fn take_in(&self, pid: Tid) -> Result<(), CgroupError> {
        move_into(&self.group, pid)
    }

    /// Returns the threads in the cgroup and in the cgroups below it.
    ///
    /// # Errors
    /// [`CgroupError::TooMany`] if there are more than 10,000 threads, or more than 1,000 cgroups
    /// below this cgroup. Also if the kernel refuses to list the threads.
    pub fn threads(&self) -> Result<Vec<Tid>, CgroupError> {
        Ok(list_below(&self.group, THREADS, ListLimit::MOST)?.ids)
    }

    /// Returns the processes in the cgroup and in the cgroups below it.
    ///
    /// # Errors
    /// On the same conditions as [`TreePlace::threads`].
    pub fn processes(&self) -> Result<Vec<Tid>, CgroupError> {
        Ok(list_below(&self.group, PROCESSES, ListLimit::MOST)?.ids)
    }

    /// Returns the threads in the cgroup and in the cgroups below it, and the number of these
    /// cgroups. `most` limits the [size](TreeMembers::size) of the result.
    ///
    /// # Errors
    /// [`CgroupError::TooMany`] if the threads or the cgroups below exceed the limit that follows
    /// from `most`. Also if the kernel refuses to list the threads.
    pub fn members(&self, most: usize) -> Result<TreeMembers, CgroupError> {
        list_below(&self.group, THREADS, ListLimit::of_size(most))
    }

    /// Returns all threads in the cgroup and in the cgroups below it, without a limit on their
    /// number. Restoring threads must not fail because a user has started too many of them.
    ///
    /// # Errors
    /// If the kernel refuses to list the threads.
    pub fn all_threads(&self) -> Result<Vec<Tid>, CgroupError> {
        Ok(list_below(&self.group, THREADS, ListLimit::NONE)?.ids)
    }

    /// Returns all processes in the cgroup and in the cgroups below it, without a limit on their
    /// number.
    ///
    /// # Errors
    /// If the kernel refuses to list the processes.
    pub fn all_processes(&self) -> Result<Vec<Tid>, CgroupError> {
        Ok(list_below(&self.group, PROCESSES, ListLimit::NONE)?.ids)
    }

    /// Returns true if the cgroup has members. A cgroup that does not exist has none.
    #[must_use]
    pub fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.events());
        events.is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
    }

    /// Returns true if the cgroup exists.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.group.is_dir()
    }

    /// Asks the kernel to freeze the cgroup, if `is_frozen` is true, or else to thaw it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn freeze(&self, is_frozen: bool) -> Result<(), CgroupError> {
        let (text, step) = if is_frozen { ("1", Step::Freeze) } else { ("0", Step::Thaw) };
        write(&self.switch(), text, step)
    }

    /// Thaws the cgroup. If Slackline made it, moves all members back and removes it. Does nothing
    /// if the cgroup does not exist, so the call can be repeated.
    ///
    /// # Errors
    /// If the kernel refused a step. All other steps have been tried, and the first error is
    /// returned.
    pub fn dissolve(&self) -> Result<(), CgroupError> {
        if !self.is_made() {
            return Ok(());
        }
        let thawed = self.freeze(false);
        let Some(origin) = &self.origin else { return thawed };
        // Only a cgroup below one that other users can write has an anchor.
        let _ = fs::remove_dir(self.group.join(ANCHOR));
        dissolve(&self.group, || self.move_back(origin))
    }

    fn move_back(&self, origin: &Path) -> Result<(), CgroupError> {
        let processes = self.all_processes()?;
        processes.iter().try_for_each(|pid| {
            let into = |group: &Path| match move_into(group, *pid) {
                // The process may end after it was listed.
                Err(error) if error.is(Errno::SRCH) => Ok(()),
                moved => moved,
            };
            let mut moved = into(origin);
            // If the former cgroup was removed, the nearest cgroup above it that accepts processes
            // is used. The same holds if a user has made a cgroup beside the former cgroup
            // threaded, because the former cgroup is then invalid and accepts no processes.
            let is_lost = moved.as_ref().is_err_and(|error| error.is(Errno::OPNOTSUPP));
            for above in origin.ancestors().skip(1) {
                if moved.is_ok() || origin.is_dir() && !is_lost {
                    break;
                }
                moved = into(above);
            }
            moved
        })
    }
}

/// Moves a process into a cgroup. If the cgroup accepts no processes, because it enables
/// controllers for the cgroups below it, moves the process into a new cgroup below it.
fn move_into(group: &Path, pid: Tid) -> Result<(), CgroupError> {
    let id = pid.to_string();
    let moved = write(&group.join(PROCESSES), &id, Step::Move);
    let enabled = || fs::read(group.join("cgroup.subtree_control")).unwrap_or_default();
    match moved {
        Err(error) if !error.is(Errno::SRCH) && !enabled().trim_ascii().is_empty() => {
            let below = group.join(RETURNED);
            // The cgroup may exist already. If it cannot be made, the move fails.
            let _ = fs::create_dir(&below);
            write(&below.join(PROCESSES), &id, Step::Move)
        }
        moved => moved,
    }
}

/// Move of a process tree from one cgroup to another.
pub(super) struct Gathering<'a> {
    /// Cgroup into which the tree is moved.
    pub(super) group: &'a Path,
    /// Cgroup in which the tree was before.
    pub(super) origin: &'a Path,
    /// File of `group` to which process ids are written.
    pub(super) file: &'a Path,
}

impl Gathering<'_> {
    /// Moves a process and all its descendants. `list` returns the processes that are already in
    /// the cgroup, and `group_of` the cgroup of a process.
    pub(super) fn gather(
        &self,
        root: Tid,
        list: impl Fn() -> Result<BTreeSet<Tid>, CgroupError>,
        group_of: impl Fn(Tid) -> Result<Option<PathBuf>, CgroupError>,
    ) -> Result<(), CgroupError> {
        let ours = i32::try_from(std::process::id()).ok();
        // A process that has ended is listed below its parent until the parent reaps it.
        let mut ended = BTreeSet::new();
        for _ in 0..ROUNDS {
            let inside = list()?;
            let is_outside = |pid: &Tid| !inside.contains(pid) && !ended.contains(pid);
            let outside: Vec<Tid> = descendants(root)?.into_iter().filter(is_outside).collect();
            if outside.is_empty() {
                return Ok(());
            }
            // All processes are checked before the first is moved, so that a refused tree is not
            // changed.
            for &pid in &outside {
                if ours == Some(pid.raw()) {
                    return Err(CgroupError::HoldsOurselves { group: self.group.into() });
                }
                match group_of(pid) {
                    Ok(Some(group)) if group != self.origin && group != self.group => {
                        let origin = self.origin.into();
                        return Err(CgroupError::Elsewhere { pid, group, origin });
                    }
                    Ok(Some(group)) if group == self.group => {}
                    _ if has_lost_first(pid) => return Err(CgroupError::FirstEnded { pid }),
                    // The process has ended, is in `origin` or `group`, or its cgroup is not
                    // visible.
                    Err(_) | Ok(_) => {}
                }
            }
            for pid in outside {
                match write(self.file, &pid.to_string(), Step::Move) {
                    Err(error) if error.is(rustix::io::Errno::SRCH) => {
                        ended.insert(pid);
                    }
                    result => result?,
                }
            }
        }
        Err(CgroupError::refused(Step::Move, self.group, io::ErrorKind::TimedOut.into()))
    }
}

/// Returns true if users other than root can add and remove cgroups below this cgroup.
fn is_writable_for_others(group: &Path) -> bool {
    let data = fs::metadata(group);
    data.is_ok_and(|data| data.uid() != 0 || data.permissions().mode() & 0o022 != 0)
}

fn mounted() -> Result<Vec<mounts::Mount>, CgroupError> {
    let text = read(Path::new("/proc/self/mountinfo"))?;
    let mut mounts = mounts::parse(&text, Controller::Freezer);
    mounts.retain(|mount| mount.version == Version::V2);
    if mounts.is_empty() {
        let (version, controller) = (Version::V2, Controller::Freezer);
        return Err(CgroupError::NotMounted { version, controller });
    }
    Ok(mounts)
}

/// Cgroups of systemd units, found in one search of all cgroups.
#[derive(Debug)]
pub struct UnitFolders(BTreeMap<String, BTreeSet<PathBuf>>);

impl UnitFolders {
    /// Searches for the cgroups with the names of these units. Cgroups that are nested too deeply
    /// are left out.
    ///
    /// # Errors
    /// If no cgroups of version 2 are mounted.
    pub fn find(units: &BTreeSet<&str>) -> Result<UnitFolders, CgroupError> {
        let mut found = UnitFolders(BTreeMap::new());
        for mount in mounted()? {
            found.find_below(mount.point(), units);
        }
        Ok(found)
    }

    /// Returns the cgroup of a unit that [`find`](UnitFolders::find) searched for.
    ///
    /// # Errors
    /// On the same conditions as [`TreePlace::of_unit`].
    pub fn place_of(&self, unit: &str) -> Result<TreePlace, CgroupError> {
        let mut found = self.0.get(unit).into_iter().flatten();
        match (found.next(), found.next()) {
            (Some(group), None) => TreePlace::existing(group),
            (Some(first), Some(second)) => {
                let (first, second) = (first.clone(), second.clone());
                Err(CgroupError::SeveralUnits { unit: unit.to_owned(), first, second })
            }
            _ => Err(CgroupError::NoSuchUnit { unit: unit.to_owned() }),
        }
    }

    fn find_below(&mut self, folder: &Path, units: &BTreeSet<&str>) {
        let mut left = vec![folder.to_path_buf()];
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if !is_folder || check_depth(&path).is_err() {
                    continue;
                }
                let name = entry.file_name();
                if let Some(&unit) = name.to_str().and_then(|name| units.get(name)) {
                    self.0.entry(unit.to_owned()).or_default().insert(path.clone());
                }
                left.push(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::super::members::tests::nested;
    use super::*;

    #[test]
    fn systemd_unit_in_too_deeply_nested_cgroup_is_not_found() {
        let folder = nested(1_500, PROCESSES);
        for depth in [1, 100] {
            let above = std::iter::repeat_n("x", depth).collect::<PathBuf>();
            fs::create_dir(folder.path().join(above).join("a.service")).unwrap();
        }
        let top = folder.path().to_path_buf();
        let search = move || {
            let mut units = UnitFolders(BTreeMap::new());
            units.find_below(&top, &BTreeSet::from(["a.service", "none.service"]));
            units.0
        };
        let thread = std::thread::Builder::new().stack_size(1 << 18).spawn(search).unwrap();
        let expected = BTreeSet::from([folder.path().join("x/a.service")]);
        assert_eq!(thread.join().unwrap(), BTreeMap::from([("a.service".to_owned(), expected)]));
    }

    #[test]
    fn confinement_cgroup_for_removed_cgroup_is_below_hierarchy_root() {
        let folder = tempfile::tempdir().unwrap();
        let upper = folder.path().join("a");
        fs::create_dir(&upper).unwrap();
        for group in [folder.path(), upper.as_path()] {
            fs::write(group.join(PROCESSES), "").unwrap();
        }
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        let thread = ThreadRef::open(pid, pid).unwrap();
        let removed = upper.join("removed");
        let cell = TreePlace::cell(&removed, &thread);
        child.kill().unwrap();
        child.wait().unwrap();
        let cell = cell.unwrap();
        assert_eq!(cell.group.parent(), Some(folder.path()));
        assert_eq!(cell.origin, Some(removed));
    }

    #[test]
    fn list_of_all_processes_of_a_tree_has_no_limit() {
        let folder = tempfile::tempdir().unwrap();
        let ids = (1..=10_001).map(|id| format!("{id}\n")).collect::<String>();
        fs::write(folder.path().join(PROCESSES), ids).unwrap();
        let place = TreePlace { group: folder.path().to_path_buf(), origin: None };
        assert!(matches!(place.processes(), Err(CgroupError::TooMany { .. })));
        assert_eq!(place.all_processes().unwrap().len(), 10_001);
    }

    /// The test uses ordinary folders in place of cgroups. The former cgroup's list of members is a
    /// folder here, so writing to the list fails, as if the cgroup accepted no processes.
    #[test]
    fn process_returns_to_child_of_former_cgroup_with_enabled_controllers() {
        let folder = tempfile::tempdir().unwrap();
        let (cell, origin) = (folder.path().join("cell"), folder.path().join("origin"));
        let below = origin.join(RETURNED);
        fs::create_dir_all(&cell).unwrap();
        fs::create_dir_all(origin.join(PROCESSES)).unwrap();
        fs::write(cell.join(PROCESSES), "42\n").unwrap();
        let enable = |controllers: &str| {
            fs::write(origin.join("cgroup.subtree_control"), controllers).unwrap();
        };
        let place = TreePlace { group: cell, origin: Some(origin.clone()) };
        enable("\n");
        assert!(place.empty().is_err() && !below.exists());
        enable("pids\n");
        fs::create_dir(&below).unwrap();
        fs::write(below.join(PROCESSES), "").unwrap();
        place.empty().unwrap();
        assert_eq!(fs::read_to_string(below.join(PROCESSES)).unwrap(), "42");
    }

    /// The descendants are a shell and its child. An ordinary file takes the place of the kernel's
    /// list of members, so the test can read which processes were moved.
    #[test]
    fn no_process_is_moved_if_a_descendant_has_another_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(PROCESSES);
        fs::write(&file, "").unwrap();
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", "sleep 1000 & echo; wait"]).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = [0];
        io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let root = Tid::new(i32::try_from(shell.id()).unwrap()).unwrap();
        let (origin, elsewhere) = (Path::new("/origin"), PathBuf::from("/elsewhere"));
        let folders = Gathering { group: folder.path(), origin, file: &file };
        let found = descendants(root).unwrap();
        let group_of = |pid| Ok(Some(if pid == root { origin.into() } else { elsewhere.clone() }));
        let gathered = folders.gather(root, || Ok(BTreeSet::new()), group_of);
        for pid in found.iter().filter_map(|pid| rustix::process::Pid::from_raw(pid.raw())) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        shell.wait().unwrap();
        assert_eq!(found.len(), 2);
        let error = gathered.unwrap_err();
        assert!(matches!(error, CgroupError::Elsewhere { pid, .. } if pid == found[1]), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "");
    }
    /// The tree is a shell and its child. The child's first thread has ended, another thread runs.
    #[test]
    fn process_tree_is_refused_if_main_thread_of_child_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(PROCESSES);
        fs::write(&file, "").unwrap();
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=time.sleep, args=(1000,)).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut shell = Command::new("sh");
        shell.args(["-c", "python3 -c \"$1\" & wait", "sh", script]).stderr(Stdio::null());
        let mut shell = shell.spawn().unwrap();
        let root = Tid::new(i32::try_from(shell.id()).unwrap()).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let child = || descendants(root).unwrap().into_iter().find(|&pid| pid != root);
        while !child().is_some_and(has_lost_first) && std::time::Instant::now() < deadline {}
        let found = descendants(root).unwrap();
        let folders = Gathering { group: folder.path(), origin: Path::new("/origin"), file: &file };
        let group_of = |_| Ok(Some(PathBuf::from("/origin")));
        let gathered = folders.gather(root, || Ok(BTreeSet::new()), group_of);
        for pid in found.iter().filter_map(|pid| rustix::process::Pid::from_raw(pid.raw())) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        shell.wait().unwrap();
        assert_eq!(found.len(), 2, "the child needs python3");
        let error = gathered.unwrap_err();
        assert!(matches!(error, CgroupError::FirstEnded { pid } if pid == found[1]), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "");
    }
}
