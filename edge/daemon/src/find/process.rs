//! Properties of one process, read from procfs.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use slackline_linux::sys::Tid;
use slackline_linux::thread::{StartTime, Stat, ThreadError, threads_of};
use slackline_live::vcpus::LONGEST_LINE;

/// A process with a command line. Kernel threads and zombies have none.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: Tid,
    /// Command line in the format of procfs: each word ends with a zero byte. At most
    /// [`LONGEST_LINE`] bytes.
    pub(super) line: Vec<u8>,
}

impl Process {
    /// Reads the properties of a process. Returns `None` if the process is a kernel thread or a
    /// zombie.
    ///
    /// # Errors
    /// `NotFound` or `ESRCH` if there is no such process.
    pub(super) fn read(pid: Tid) -> io::Result<Option<Process>> {
        let line = read_line(pid)?;
        Ok((!line.is_empty()).then_some(Process { pid, line }))
    }

    /// Returns true if the command line of the process has not changed since it was read. A process
    /// that executes another program gets another command line, and can get other user ids.
    ///
    /// # Errors
    /// `NotFound` or `ESRCH` if there is no such process.
    pub(super) fn has_same_line(&self) -> io::Result<bool> {
        Ok(read_line(self.pid)? == self.line)
    }

    /// Returns the text of the file `/proc/PID/cgroup` of the process.
    pub(super) fn groups(&self) -> io::Result<Vec<u8>> {
        fs::read(format!("/proc/{}/cgroup", self.pid))
    }

    /// Returns the time at which the process was started.
    pub(super) fn started(&self) -> io::Result<StartTime> {
        Stat::of(self.pid, self.pid).map(Stat::started)
    }

    /// Returns the user id of the process. A process with several different user ids counts as
    /// root's.
    pub(super) fn owner(&self) -> io::Result<u32> {
        let status = fs::read(format!("/proc/{}/status", self.pid))?;
        owner(&status).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Reads the command line of a process, at most [`LONGEST_LINE`] bytes.
fn read_line(pid: Tid) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    File::open(format!("/proc/{pid}/cmdline"))?.take(LONGEST_LINE).read_to_end(&mut line)?;
    Ok(line)
}

/// Parses the user id of a process in the text of its `status` file. A process with several
/// different user ids counts as root's. `None` if the text has no valid line with user ids.
pub(super) fn owner(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let users = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    let users = std::str::from_utf8(users).ok()?.split_ascii_whitespace();
    let users: Vec<u32> = users.map(str::parse).collect::<Result<_, _>>().ok()?;
    // The fields are the real, effective, saved and file system user ids.
    let [real, rest @ ..] = users.as_slice() else { return None };
    Some(if rest.iter().all(|user| user == real) { *real } else { 0 })
}

#[cfg(test)]
thread_local! {
    /// Number of times that this thread has listed all processes.
    pub(crate) static SCANS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns the ids of all processes that procfs shows, in increasing order.
///
/// # Errors
/// If procfs is not mounted.
pub(super) fn all() -> io::Result<Vec<Tid>> {
    #[cfg(test)]
    SCANS.set(SCANS.get() + 1);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|name| name.parse().ok()).and_then(Tid::new));
    }
    found.sort_unstable();
    Ok(found)
}

/// Checks that a process may be scheduled. The host or the daemon depends on process 1, kernel
/// threads, the daemon itself, and the daemon's children that run its program. So these must not be
/// scheduled. A process whose first thread has ended while other threads still run must not be
/// scheduled either.
///
/// # Errors
/// If the process must not be scheduled, or does not exist.
pub(super) fn may_be_held(pid: Tid) -> Result<(), ThreadError> {
    if pid.raw() == 1 {
        return Err(ThreadError::Init);
    }
    let is_us = |pid: Tid| u32::try_from(pid.raw()) == Ok(std::process::id());
    if is_us(pid) {
        return Err(ThreadError::Ourselves { tid: pid });
    }
    let stat =
        fs::read(format!("/proc/{pid}/stat")).map_err(|_| ThreadError::Gone { pid, tid: pid })?;
    let Some(known) = Stat::parse(&stat) else { return Err(ThreadError::Gone { pid, tid: pid }) };
    if known.is_of_kernel() {
        return Err(ThreadError::Kernel { tid: pid });
    }
    // The front hides itself even from the daemon. So a child that cannot be inspected counts as
    // ours.
    if parent(&stat).is_some_and(is_us) && runs_our_program(pid).unwrap_or(true) {
        return Err(ThreadError::Ourselves { tid: pid });
    }
    // The cgroup of a process whose first thread has ended cannot be changed, although its other
    // threads run on.
    if known.exited() && threads_of(pid).is_ok_and(|threads| threads.len() > 1) {
        return Err(ThreadError::FirstEnded { pid });
    }
    Ok(())
}

/// Returns the id of the process's parent, from the text of a `stat` file. `None` if the process
/// has no parent, or the text is invalid.
fn parent(stat: &[u8]) -> Option<Tid> {
    // The name is in parentheses and may contain any bytes.
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    Tid::new(rest.split_ascii_whitespace().nth(1)?.parse().ok()?)
}

fn runs_our_program(pid: Tid) -> io::Result<bool> {
    let (its, ours) = (fs::metadata(format!("/proc/{pid}/exe"))?, fs::metadata("/proc/self/exe")?);
    Ok((its.dev(), its.ino()) == (ours.dev(), ours.ino()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn command_line_change_by_execve_of_a_process_is_detected() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo @; read line; exec sleep 60"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
        let process = Process::read(Tid::new(i32::try_from(child.id()).unwrap()).unwrap());
        let process = process.unwrap().unwrap();
        assert!(process.has_same_line().unwrap());
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let is_changed = || !process.has_same_line().unwrap();
        assert!((0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            is_changed()
        }));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
