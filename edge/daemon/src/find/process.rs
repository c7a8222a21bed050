//! What procfs says about one process.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use slackline_linux::sys::Tid;
use slackline_linux::thread::{StartTime, Stat, ThreadError, threads_of};

/// The longest command line that is read, in bytes. QEMU's has about 10,000, and a few hundred for
/// each device.
const LONGEST_LINE: u64 = 1 << 20;

/// A process that has a command line: neither the kernel's nor one that has ended.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: Tid,
    /// Its command line, as procfs has it.
    pub(super) line: Vec<u8>,
}

impl Process {
    /// None for the kernel's threads, and for those that have ended and wait to be reaped.
    ///
    /// # Errors
    /// `NotFound` or `ESRCH` when there is no such process.
    pub(super) fn read(pid: Tid) -> io::Result<Option<Process>> {
        let mut line = Vec::new();
        File::open(format!("/proc/{pid}/cmdline"))?.take(LONGEST_LINE).read_to_end(&mut line)?;
        Ok((!line.is_empty()).then_some(Process { pid, line }))
    }

    /// The text of its `cgroup` file.
    pub(super) fn groups(&self) -> io::Result<Vec<u8>> {
        fs::read(format!("/proc/{}/cgroup", self.pid))
    }

    /// When it was started.
    pub(super) fn started(&self) -> io::Result<StartTime> {
        Stat::of(self.pid, self.pid).map(Stat::started)
    }

    /// Whose it is. One that is several users at once is root's.
    pub(super) fn owner(&self) -> io::Result<u32> {
        let status = fs::read(format!("/proc/{}/status", self.pid))?;
        owner(&status).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The user in the text of a `status` file.
pub(super) fn owner(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let users = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    let users = std::str::from_utf8(users).ok()?.split_ascii_whitespace();
    let users: Vec<u32> = users.map(str::parse).collect::<Result<_, _>>().ok()?;
    // Real, effective, saved, and that of files.
    let [real, rest @ ..] = users.as_slice() else { return None };
    Some(if rest.iter().all(|user| user == real) { *real } else { 0 })
}

/// All processes that can be seen, in order of their numbers.
///
/// # Errors
/// When there is no procfs.
pub(super) fn all() -> io::Result<Vec<Tid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|name| name.parse().ok()).and_then(Tid::new));
    }
    found.sort_unstable();
    Ok(found)
}

/// Refuses what the host or the service lives on: process 1, the kernel's threads, ourselves, and
/// those whom we have started from our own program.
///
/// # Errors
/// Which of them it is; or that there is no such process.
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
    // The front cannot be looked into, not even by us: a child of ours that cannot is one of ours.
    if parent(&stat).is_some_and(is_us) && runs_our_program(pid).unwrap_or(true) {
        return Err(ThreadError::Ourselves { tid: pid });
    }
    // Its cgroup cannot be changed any more, though its other threads run on.
    if known.exited() && threads_of(pid).is_ok_and(|threads| threads.len() > 1) {
        return Err(ThreadError::FirstEnded { pid });
    }
    Ok(())
}

/// The parent, by the text of a `stat` file.
fn parent(stat: &[u8]) -> Option<Tid> {
    // The name stands in brackets and may contain anything.
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    Tid::new(rest.split_ascii_whitespace().nth(1)?.parse().ok()?)
}

fn runs_our_program(pid: Tid) -> io::Result<bool> {
    let (its, ours) = (fs::metadata(format!("/proc/{pid}/exe"))?, fs::metadata("/proc/self/exe")?);
    Ok((its.dev(), its.ino()) == (ours.dev(), ours.ino()))
}
