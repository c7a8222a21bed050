//! Search for the descendants of a process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{CgroupError, Step};
use crate::sys::Tid;
use crate::thread::threads_of;

/// Maximum number of times that the kernel's lists of children are read. If two consecutive
/// readings are equal, they are the result. If processes start and end so fast that no two
/// consecutive readings are equal, all of procfs is scanned instead.
const READINGS: usize = 4;

/// Number of checks, 1 ms apart. A process counts as having lost its first thread only if every
/// check finds that this thread has ended and that another thread continues.
const ENDING: usize = 20;

/// Returns a process and its descendants. The result includes all descendants that were started
/// before this call and still exist at its end. The one exception is that a descendant whose parent
/// has ended may be missing.
///
/// # Errors
/// If procfs is not mounted.
pub fn descendants(root: Tid) -> Result<Vec<Tid>, CgroupError> {
    match by_children(root) {
        Some(found) => Ok(found),
        None => by_parents(root),
    }
}

/// Finds descendants in the kernel's lists of the children of each thread. Reads only the files of
/// the process and its descendants. `None` if the kernel has no such lists, or no two consecutive
/// readings are equal.
///
/// The kernel may omit a child from a list if another child in the list ends during the reading.
/// Then the next reading differs.
fn by_children(root: Tid) -> Option<Vec<Tid>> {
    if !Path::new("/proc/thread-self/children").exists() {
        return None;
    }
    let mut before = listed_below(root);
    for _ in 1..READINGS {
        let now = listed_below(root);
        if now == before {
            let has_ended = |pid: Tid| parent_of(pid).is_none();
            let others = now.into_iter().filter(|&pid| pid != root && !has_ended(pid));
            return Some(std::iter::once(root).chain(others).collect());
        }
        before = now;
    }
    None
}

/// Returns a process and its descendants, according to one reading of the kernel's lists of
/// children. Processes that have ended and wait to be reaped are included.
fn listed_below(root: Tid) -> BTreeSet<Tid> {
    let mut found = BTreeSet::from([root]);
    let mut left = vec![root];
    while let Some(pid) = left.pop() {
        // A process that has just ended has no lists, and its children now have another parent.
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            left.extend(children.filter_map(Tid::new).filter(|&child| found.insert(child)));
        }
    }
    found
}

/// Returns the number of threads of a process and its descendants. Counting ends as soon as the
/// number exceeds `most`, so a result above `most` can be too small.
#[must_use]
pub fn threads_below(root: Tid, most: usize) -> usize {
    let (mut found, mut left, mut count) = (BTreeSet::from([root]), vec![root], 0);
    while let Some(pid) = left.pop() {
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            count += 1;
            if count > most {
                return count;
            }
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            left.extend(children.filter_map(Tid::new).filter(|&child| found.insert(child)));
        }
    }
    count
}

/// Finds descendants by reading the parent of every process of the host.
fn by_parents(root: Tid) -> Result<Vec<Tid>, CgroupError> {
    let procfs = Path::new("/proc");
    let failed = |source| CgroupError::refused(Step::Read, procfs, source);
    let mut children: BTreeMap<i32, Vec<Tid>> = BTreeMap::new();
    for entry in fs::read_dir(procfs).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()).and_then(Tid::new) else {
            continue;
        };
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children.remove(&pid.raw()).unwrap_or_default());
        next += 1;
    }
    Ok(found)
}

/// Returns the text of the `stat` file of a process. Empty if the process has ended.
fn stat_of(pid: Tid) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/stat")).unwrap_or_default()
}

/// Returns the parent of a process. `None` if the process has ended and waits to be reaped. Such a
/// process is in no cgroup. A process that has lost only its first thread has not ended.
fn parent_of(pid: Tid) -> Option<i32> {
    let (state, parent) = state_and_parent(&stat_of(pid))?;
    let has_ended = is_ended(&state) && !has_other_threads(pid);
    (!has_ended).then_some(parent)
}

/// Returns true if the first thread of a process has ended and other threads of the process
/// continue. The kernel does not move such a process to another cgroup.
///
/// The threads of an exiting process end one after the other. So the process is checked several
/// times, to be sure that it is not exiting.
pub(super) fn has_lost_first(pid: Tid) -> bool {
    let is_so = || {
        let state = state_and_parent(&stat_of(pid));
        state.is_some_and(|(state, _)| is_ended(&state)) && has_other_threads(pid)
    };
    (0..ENDING).all(|nth| {
        if nth > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_so()
    })
}

fn has_other_threads(pid: Tid) -> bool {
    threads_of(pid).is_ok_and(|threads| threads.len() > 1)
}

fn is_ended(state: &str) -> bool {
    matches!(state, "Z" | "X")
}

/// Parses the state and the parent of a process from the text of its `stat` file.
fn state_and_parent(stat: &[u8]) -> Option<(String, i32)> {
    // The name is in parentheses and may contain any character.
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?.to_owned();
    Some((state, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn tid(child: &Child) -> Tid {
        Tid::new(i32::try_from(child.id()).unwrap()).unwrap()
    }

    /// The processes are a shell with a sleeping child, and a second shell, started by the first,
    /// with another sleeping child. One more child has ended but is not reaped.
    #[test]
    fn descendants_found_by_child_lists_and_by_parent_ids_agree() {
        let script = "sleep 1000 & (sleep 1000 & echo there; wait) & true & exec sleep 1000";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let root = tid(&shell);
        // Four live processes: the root, its first child, the second shell and that shell's child.
        // The ended child is the fifth in the lists. Wait until the script has reached this state.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let (mut listed, mut found) = (0, Vec::new());
        while (listed, found.len()) != (5, 4) && std::time::Instant::now() < deadline {
            listed = listed_below(root).len();
            found = descendants(root).unwrap();
        }
        let by_parents = by_parents(root).unwrap();
        for &pid in found.iter().rev() {
            let pid = rustix::process::Pid::from_raw(pid.raw()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        shell.wait().unwrap();
        assert_eq!((listed, found.len(), found[0]), (5, 4, root));
        let sorted = |mut all: Vec<Tid>| {
            all.sort_unstable();
            all
        };
        assert_eq!(sorted(found), sorted(by_parents));
    }

    /// The process has three children, and four threads in all.
    #[test]
    fn thread_count_of_descendants_stops_above_the_given_limit() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 1000 & sleep 1000 & sleep 1000 & echo there; wait"]);
        let mut shell = shell.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let root = tid(&shell);
        let counts = [10, 4, 2, 0].map(|most| threads_below(root, most));
        for pid in descendants(root).unwrap() {
            let pid = rustix::process::Pid::from_raw(pid.raw()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        shell.wait().unwrap();
        let has_lists = Path::new("/proc/thread-self/children").exists();
        assert_eq!(counts, if has_lists { [4, 4, 3, 1] } else { [1, 1, 1, 1] });
    }

    #[test]
    fn process_without_children_has_no_descendants() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert_eq!(descendants(tid(&child)).unwrap(), [tid(&child)]);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
