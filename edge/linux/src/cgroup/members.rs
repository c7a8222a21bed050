//! Lists of the members of a cgroup and of all cgroups below it.
//!
//! A user can start thousands of threads, and can make thousands of cgroups in a delegated cgroup.
//! So every list has a limit, unless it serves to restore threads.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, open, openat};

use super::{CgroupError, Step};
use crate::sys::Tid;

/// Maximum number of threads of a process tree.
pub const MOST_THREADS: usize = 10_000;

/// Maximum number of cgroups below the cgroup of a process tree. Listing the members of the tree
/// takes about 10 us per cgroup.
const MOST_BELOW: usize = 1_000;

/// Number of threads that take as much time as one cgroup when an order is given to a process tree.
/// The order handles each thread, and reads the list of each cgroup below the tree's cgroup twice.
const THREADS_PER_GROUP: usize = 3;

/// Maximum length in bytes of one line in a list of members: a thread id and the line break.
const LONGEST_ID: u64 = 11;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Members of a cgroup and of all cgroups below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeMembers {
    /// Ids of the threads or processes.
    pub ids: Vec<Tid>,
    /// Number of cgroups below the cgroup, at any depth.
    pub below: usize,
}

impl TreeMembers {
    /// Returns the size of the tree: number of threads + 3 × number of cgroups below the tree's
    /// cgroup. The time that an order to the tree takes is proportional to this size.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ids.len() + THREADS_PER_GROUP * self.below
    }
}

/// Maximum numbers of ids and cgroups in a list of members.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListLimit {
    ids: usize,
    below: usize,
}

impl ListLimit {
    /// No limit, for restoring threads.
    pub(super) const NONE: ListLimit = ListLimit { ids: usize::MAX, below: usize::MAX };
    /// Limit of every list that does not serve to restore threads.
    pub(super) const MOST: ListLimit = ListLimit { ids: MOST_THREADS, below: MOST_BELOW };

    /// Returns the limit for a tree whose [size](TreeMembers::size) is at most `most`.
    pub(super) fn of_size(most: usize) -> ListLimit {
        let most = most.min(MOST_THREADS);
        ListLimit { ids: most, below: (most / THREADS_PER_GROUP).min(MOST_BELOW) }
    }
}

/// Returns the ids in the file `file` of a cgroup and of all cgroups below it.
///
/// A user can nest delegated cgroups thousands of levels deep. So this function is not recursive.
/// It keeps one folder open at a time and opens the next folder relative to the open folder.
///
/// # Errors
/// [`CgroupError::TooMany`] as soon as more ids or cgroups than in `limit` were found. Also if the
/// kernel refuses to read a list.
pub(super) fn list_below(
    group: &Path,
    file: &str,
    limit: ListLimit,
) -> Result<TreeMembers, CgroupError> {
    let refused = |source| CgroupError::refused(Step::Read, &group.join(file), source);
    let too_many = |what, most| CgroupError::TooMany { group: group.to_path_buf(), what, most };
    let list = |folder: &OwnedFd, found: &mut TreeMembers| {
        let names = list_one(folder, file, limit, &mut found.ids).map_err(refused)?;
        found.below += names.len();
        if found.below > limit.below {
            return Err(too_many("cgroups below it", limit.below));
        }
        if found.ids.len() > limit.ids { Err(too_many("threads", limit.ids)) } else { Ok(names) }
    };
    let mut found = TreeMembers::default();
    let mut folder = match open(group, FOLDER, Mode::empty()).map_err(io::Error::from) {
        // The cgroup was removed after it was found.
        Err(error) if is_no_list(&error) => return Ok(found),
        folder => folder.map_err(refused)?,
    };
    // Names of the folders that are still to be read, for each level down to `folder`.
    let mut left = vec![list(&folder, &mut found)?];
    while let Some(names) = left.last_mut() {
        let Some(name) = names.pop() else {
            left.pop();
            if !left.is_empty() {
                let above = openat(&folder, "..", FOLDER, Mode::empty());
                folder = above.map_err(|errno| refused(errno.into()))?;
            }
            continue;
        };
        match openat(&folder, name, FOLDER, Mode::empty()).map_err(io::Error::from) {
            Err(error) if is_no_list(&error) => {}
            below => {
                let below = below.map_err(refused)?;
                left.push(list(&below, &mut found)?);
                folder = below;
            }
        }
    }
    Ok(found)
}

/// Adds the ids in the file `file` of one cgroup to `found`. Returns the names of the cgroups
/// directly below that cgroup. If the ids or names exceed `limit`, not all of them are read.
fn list_one(
    folder: &OwnedFd,
    file: &str,
    limit: ListLimit,
    found: &mut Vec<Tid>,
) -> io::Result<Vec<CString>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let room = u64::try_from(limit.ids.saturating_sub(found.len())).unwrap_or(u64::MAX);
    let most_bytes = room.saturating_add(1).saturating_mul(LONGEST_ID);
    let text = openat(folder, file, flags, Mode::empty()).map_err(io::Error::from);
    let text = text.and_then(|list| {
        let mut text = String::new();
        File::from(list).take(most_bytes).read_to_string(&mut text).map(|_| text)
    });
    let text = match text {
        // The cgroup was removed after it was found, or has no such list. The processes of a
        // threaded cgroup are in the list of the cgroup above it.
        Err(error) if is_no_list(&error) => return Ok(Vec::new()),
        text => text?,
    };
    found.extend(text.lines().filter_map(|line| line.parse().ok()).filter_map(Tid::new));
    // A folder has two links and one more for each folder in it. With two links it has no folders.
    if fstat(folder).is_ok_and(|folder| folder.st_nlink == 2) {
        return Ok(Vec::new());
    }
    let entries = Dir::read_from(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type() == FileType::Directory);
    let names = folders.map(|entry| entry.file_name().to_owned());
    let names = names.filter(|name| !matches!(name.as_bytes(), b"." | b".."));
    Ok(names.take(limit.below.saturating_add(1)).collect())
}

fn is_no_list(error: &io::Error) -> bool {
    let codes = [libc::ENOENT, libc::ENODEV, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;

    const PROCESSES: &str = "cgroup.procs";

    /// Makes a chain of nested folders with `levels` levels. Each folder has a file with one id.
    /// The outermost folder also contains a folder `b` with such a file.
    pub(crate) fn nested(levels: i32, file: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut path = folder.path().to_path_buf();
        for level in 1..=levels {
            fs::write(path.join(file), format!("{level}\n")).unwrap();
            path.push("x");
            fs::create_dir(&path).unwrap();
        }
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("b").join(file), "9999\n").unwrap();
        folder
    }

    /// The test runs with a stack as small as that of the daemon's threads that search for VMs.
    #[test]
    fn processes_of_deeply_nested_cgroups_are_listed_with_small_stack() {
        let folder = nested(1_500, PROCESSES);
        let group = folder.path().to_path_buf();
        let list = move || list_below(&group, PROCESSES, ListLimit::NONE);
        let thread = std::thread::Builder::new().stack_size(1 << 18).spawn(list).unwrap();
        let found = thread.join().unwrap().unwrap();
        let mut ids: Vec<i32> = found.ids.into_iter().map(Tid::raw).collect();
        ids.sort_unstable();
        assert_eq!(ids, (1..=1_500).chain([9_999]).collect::<Vec<_>>());
        assert_eq!(found.below, 1_501);
    }

    /// In this test, folders without a list of members stand for empty cgroups.
    #[test]
    fn process_list_of_cgroup_fails_above_1000_child_cgroups() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(PROCESSES), "7\n").unwrap();
        for number in 0..MOST_BELOW {
            fs::create_dir(folder.path().join(number.to_string())).unwrap();
        }
        let list = || list_below(folder.path(), PROCESSES, ListLimit::MOST);
        let found = list().unwrap();
        assert_eq!((found.ids.len(), found.below, found.size()), (1, 1_000, 3_001));
        fs::create_dir(folder.path().join("one-more")).unwrap();
        let says = "it has more than 1000 cgroups below it";
        let error = list().unwrap_err();
        assert!(error.to_string().ends_with(says), "{error}");
        assert_eq!(list_below(folder.path(), PROCESSES, ListLimit::NONE).unwrap().below, 1_001);
        let nested = nested(1_500, PROCESSES);
        let error = list_below(nested.path(), PROCESSES, ListLimit::MOST).unwrap_err();
        assert!(error.to_string().ends_with(says), "{error}");
    }

    #[test]
    fn list_of_cgroup_threads_fails_above_the_allowed_number() {
        let folder = nested(2, PROCESSES);
        let ids = |count: usize| (1_000_001..).take(count).map(|id: i32| format!("{id}\n"));
        let list = |most| list_below(folder.path(), PROCESSES, ListLimit::of_size(most));
        for (count, most, fits) in [(10, 12, true), (11, 12, false), (5_000, 12, false)] {
            fs::write(folder.path().join(PROCESSES), ids(count).collect::<String>()).unwrap();
            let found = list(most);
            assert_eq!(found.is_ok(), fits, "{count}");
            let Err(error) = found else { continue };
            assert!(error.to_string().ends_with("it has more than 12 threads"), "{error}");
        }
    }
}
