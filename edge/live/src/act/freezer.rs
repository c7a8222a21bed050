//! The cgroup freezer. Acts on one thread.
//!
//! The thread gets a group of its own below the one it is in, and that group is frozen and thawed
//! through a descriptor that stays open. In version 2 the group is *threaded*: its threads are
//! accounted for by the process's own group, and the rest of the process stays where it is. The
//! root and every group without domain controllers below it can be the parent of such a group, so
//! the process never has to be moved. Where version 2 is not there or its rules do not allow this,
//! version 1 does the same at more than ten times the cost (35 to 100 us a call, against 1 to 7);
//! a thread frozen by version 1 cannot be killed until it is thawed.
//!
//! A frozen thread stops before its next instruction outside the kernel. A wait in the kernel is
//! interrupted as by a signal, though none is delivered. Threads and processes that it starts while
//! it has a group of its own are born into that group, and are frozen with it; giving the group
//! back moves all of them.

mod mounts;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use super::{Act, ActError};
use crate::sys::Tid;
use crate::thread::ThreadRef;
use mounts::Mount;

/// What our groups' names begin with.
const PREFIX: &str = "slackline-";

/// Which of the kernel's two freezers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The freezer controller of cgroup version 1.
    V1,
    /// `cgroup.freeze` of cgroup version 2.
    V2,
}

impl Version {
    const fn members(self) -> &'static str {
        match self {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        }
    }

    const fn switch(self) -> &'static str {
        match self {
            Version::V1 => "freezer.state",
            Version::V2 => "cgroup.freeze",
        }
    }

    const fn frozen(self) -> &'static str {
        match self {
            Version::V1 => "FROZEN",
            Version::V2 => "1",
        }
    }

    const fn thawed(self) -> &'static str {
        match self {
            Version::V1 => "THAWED",
            Version::V2 => "0",
        }
    }
}

/// Why a thread cannot be given a freezer, or its group cannot be removed.
#[derive(Debug, Error)]
pub enum FreezerError {
    /// No version of the cgroup freezer is mounted.
    #[error("no cgroup freezer is mounted on this host, neither version 2 nor version 1")]
    NotMounted,
    /// The thread's group is not below any mount that we can see.
    #[error("thread {tid} is in cgroup {group}, which is outside what is mounted here")]
    OutOfSight {
        /// The thread.
        tid: Tid,
        /// Its group, as the kernel names it.
        group: PathBuf,
    },
    /// The thread already has a group as we make them.
    #[error("thread {tid} is already held, in cgroup {group}")]
    AlreadyHeld {
        /// The thread.
        tid: Tid,
        /// Its group.
        group: PathBuf,
    },
    /// A step on the way was refused.
    #[error("cannot {step} {path}")]
    Refused {
        /// What was tried.
        step: Step,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A step in making or removing a thread's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read what the kernel says.
    Read,
    /// Make the group.
    Make,
    /// Make the group threaded.
    MakeThreaded,
    /// Move a thread into the group.
    Move,
    /// Open the file that freezes.
    OpenSwitch,
    /// Thaw the group.
    Thaw,
    /// Remove the group.
    Remove,
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Step::Read => "read",
            Step::Make => "make cgroup",
            Step::MakeThreaded => "make threaded by",
            Step::Move => "move a thread by",
            Step::OpenSwitch => "open",
            Step::Thaw => "thaw by",
            Step::Remove => "remove cgroup",
        })
    }
}

/// Where a thread's group of its own is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which freezer.
    pub version: Version,
    /// The group for the thread alone.
    pub group: PathBuf,
    /// The group it comes from and goes back to.
    pub origin: PathBuf,
}

impl Place {
    /// Where this thread could be frozen, best first. Touches nothing.
    ///
    /// # Errors
    /// When no freezer is mounted, the thread's group cannot be seen from here, or the thread is in
    /// a group of our making.
    pub fn find(thread: &ThreadRef) -> Result<Vec<Place>, FreezerError> {
        let read = |path: &str| {
            let refused = |source| FreezerError::refused(Step::Read, Path::new(path), source);
            fs::read(path).map_err(refused)
        };
        let tid = thread.tid();
        let mounts = mounts::parse(&read("/proc/self/mountinfo")?);
        let groups = read(&format!("/proc/{}/task/{tid}/cgroup", thread.pid()))?;
        let mut places = Vec::new();
        let mut unseen = FreezerError::NotMounted;
        for version in [Version::V2, Version::V1] {
            let Some(of_thread) = mounts::group_of(&groups, version) else { continue };
            let mut mounted = mounts.iter().filter(|mount| mount.version == version).peekable();
            if mounted.peek().is_none() {
                continue;
            }
            let Some(origin) = mounted.find_map(|mount: &Mount| mount.place(&of_thread)) else {
                unseen = FreezerError::OutOfSight { tid, group: of_thread };
                continue;
            };
            if is_ours(&origin) {
                return Err(FreezerError::AlreadyHeld { tid, group: origin });
            }
            // The start time keeps groups of different threads apart even where an old one is left.
            let name = OsString::from(format!("{PREFIX}{tid}-{}", thread.started()));
            places.push(Place { version, group: origin.join(name), origin });
        }
        if places.is_empty() { Err(unseen) } else { Ok(places) }
    }

    /// Thaws the group, moves everything in it back, and removes it. Does nothing where there is no
    /// group, and can be repeated.
    ///
    /// # Errors
    /// The first step that was refused; all others have been tried.
    pub fn clear(&self) -> Result<(), FreezerError> {
        /// Threads may be born into the group while others are moved out of it, and a thread that
        /// is exiting leaves only when it is done. Either is over within a few rounds.
        const ROUNDS: usize = 100;
        if !self.is_made() {
            return Ok(());
        }
        let switch = self.group.join(self.version.switch());
        let thawed = write(&switch, self.version.thawed(), Step::Thaw);
        let mut last = Ok(());
        for _ in 0..ROUNDS {
            last = self.move_all_back().and_then(|()| self.remove());
            if last.is_ok() {
                break;
            }
            std::thread::yield_now();
        }
        // A group that is gone is thawed, whatever was said before.
        if last.is_ok() { last } else { thawed.and(last) }
    }

    /// Whether the group exists.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.group.is_dir()
    }

    fn make(&self, tid: Tid) -> Result<File, FreezerError> {
        let refused = |step, path: &Path| {
            let path = path.to_path_buf();
            move |source| FreezerError::Refused { step, path, source }
        };
        fs::create_dir(&self.group).map_err(refused(Step::Make, &self.group))?;
        if self.version == Version::V2 {
            write(&self.group.join("cgroup.type"), "threaded", Step::MakeThreaded)?;
        }
        let switch = self.group.join(self.version.switch());
        let opened = OpenOptions::new().write(true).open(&switch);
        let opened = opened.map_err(refused(Step::OpenSwitch, &switch))?;
        write(&self.group.join(self.version.members()), &tid.to_string(), Step::Move)?;
        Ok(opened)
    }

    fn move_all_back(&self) -> Result<(), FreezerError> {
        let (from, to) = (self.version.members(), self.origin.join(self.version.members()));
        let from = self.group.join(from);
        let threads = match fs::read_to_string(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            threads => {
                threads.map_err(|source| FreezerError::refused(Step::Read, &from, source))?
            }
        };
        for tid in threads.lines() {
            match write(&to, tid, Step::Move) {
                // It exited after it was listed.
                Err(error) if error.is(Errno::SRCH) => {}
                result => result?,
            }
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), FreezerError> {
        match fs::remove_dir(&self.group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => {
                result.map_err(|source| FreezerError::refused(Step::Remove, &self.group, source))
            }
        }
    }
}

/// Freezes and thaws one thread.
#[derive(Debug)]
pub struct Freezer {
    thread: ThreadRef,
    version: Version,
    switch: File,
    frozen: bool,
}

impl Freezer {
    /// Makes the thread's group and moves it there. It is not frozen yet. If this fails, the group
    /// is gone again.
    ///
    /// # Errors
    /// The step that the kernel refused. `EOPNOTSUPP` means that the rules of version 2 forbid a
    /// threaded group in this place.
    pub fn make(thread: ThreadRef, place: &Place) -> Result<Freezer, FreezerError> {
        match place.make(thread.tid()) {
            Ok(switch) => Ok(Freezer { thread, version: place.version, switch, frozen: false }),
            Err(error) => {
                place.clear()?;
                Err(error)
            }
        }
    }

    /// Freezes the thread. It runs no further instruction of its own once its CPU has seen this:
    /// at once if that is the caller's CPU, else a few microseconds later.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn freeze(&mut self) -> Result<(), ActError> {
        if !self.frozen {
            self.set(self.version.frozen(), Act::Freeze)?;
            self.frozen = true;
        }
        Ok(())
    }

    /// Lets the thread run.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn thaw(&mut self) -> Result<(), ActError> {
        if self.frozen {
            self.set(self.version.thawed(), Act::Thaw)?;
            self.frozen = false;
        }
        Ok(())
    }

    fn set(&self, to: &str, act: Act) -> Result<(), ActError> {
        let written = self.switch.write_all_at(to.as_bytes(), 0);
        written.map_err(|source| ActError::new(self.thread.tid(), act, source))
    }
}

impl FreezerError {
    fn refused(step: Step, path: &Path, source: io::Error) -> FreezerError {
        FreezerError::Refused { step, path: path.to_path_buf(), source }
    }

    fn is(&self, errno: Errno) -> bool {
        matches!(self, FreezerError::Refused { source, .. }
            if source.raw_os_error() == Some(errno.raw_os_error()))
    }
}

fn is_ours(group: &Path) -> bool {
    group.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
}

/// Writes to a file of the kernel, which must exist.
fn write(path: &Path, text: &str, step: Step) -> Result<(), FreezerError> {
    let written = OpenOptions::new().write(true).open(path);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| FreezerError::refused(step, path, source))
}
