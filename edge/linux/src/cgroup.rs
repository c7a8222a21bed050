//! Cgroups that Slackline makes: finding a folder for a cgroup, making the cgroup and dissolving
//! it.
//!
//! Such a cgroup is for one thread or one process, which is moved into the cgroup as its first
//! member. Threads and processes that the first member starts are also members. Dissolving the
//! cgroup moves all members back to their former cgroup and removes the cgroup.

mod around;
mod cpuset;
mod family;
mod grace_period;
mod members;
mod mounts;
mod tree;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::sys::Tid;
use crate::thread::ThreadRef;
pub use around::{Credentials, Hierarchies, Membership, Surroundings, may_move, may_write};
pub use cpuset::Cpuset;
pub use cpuset::keep_group_on;
pub use family::{descendants, threads_below};
use grace_period::ShortGracePeriods;
pub use grace_period::restore_grace_periods;
pub use members::{MOST_THREADS, TreeMembers};
use mounts::Mount;
pub use tree::{TreePlace, UnitFolders};

/// Prefix of the names of cgroups that Slackline makes.
const PREFIX: &str = "slackline-";

/// Version of cgroups in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1: one hierarchy for each set of controllers.
    V1,
    /// Version 2: one hierarchy for all controllers.
    V2,
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Version::V1 => "version 1",
            Version::V2 => "version 2",
        })
    }
}

/// Controller for which a cgroup is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Freezing of threads. Cgroups with this controller are for single threads.
    Freezer,
    /// Limit of CPU time. Cgroups with this controller are for whole processes.
    Cpu,
    /// Limit of CPU time of single threads. Only version 1 of cgroups has this controller.
    CpuThread,
    /// Restriction to some CPUs. Cgroups with this controller are for single threads.
    Cpuset,
}

impl Controller {
    /// Returns the kernel's name of the controller.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Controller::Freezer => "freezer",
            Controller::Cpu | Controller::CpuThread => "cpu",
            Controller::Cpuset => "cpuset",
        }
    }

    /// Returns the name of the file that lists a cgroup's members. Writing an id to the file adds a
    /// member.
    const fn members(self, version: Version) -> &'static str {
        match (self, version) {
            (Controller::Cpu, _) => "cgroup.procs",
            (_, Version::V1) => "tasks",
            (_, Version::V2) => "cgroup.threads",
        }
    }
}

/// Reason why a cgroup cannot be found, made, used or dissolved.
#[derive(Debug, Error)]
pub enum CgroupError {
    /// No hierarchy of this version with this controller is mounted.
    #[error(
        "no cgroup hierarchy of {version} with the controller `{}` is mounted",
        controller.name()
    )]
    NotMounted {
        /// Version of the hierarchy.
        version: Version,
        /// Controller of the hierarchy.
        controller: Controller,
    },
    /// The thread's cgroup is not visible: it is outside of all mounts of cgroup hierarchies that
    /// this process sees.
    #[error("thread {tid} is in cgroup {group}, which is outside of the mounted hierarchy")]
    OutOfSight {
        /// Id of the thread.
        tid: Tid,
        /// Path of the thread's cgroup, as the kernel names it.
        group: PathBuf,
    },
    /// The thread is already in a cgroup that Slackline made.
    #[error("cannot schedule thread {tid}: it is scheduled already, in cgroup {group}")]
    AlreadyHeld {
        /// Id of the thread.
        tid: Tid,
        /// Path of the cgroup that Slackline made.
        group: PathBuf,
    },
    /// Neither the thread's version 2 cgroup nor a cgroup above it enables the controller.
    #[error("no cgroup of version 2 from {group} upwards enables the controller `cpu`")]
    NotEnabled {
        /// Path of the thread's cgroup.
        group: PathBuf,
    },
    /// No cgroup of version 2 exists at this path.
    #[error("there is no cgroup {group} of version 2")]
    NoSuchGroup {
        /// Cgroup in the request.
        group: PathBuf,
    },
    /// No cgroup has the name of this systemd unit.
    #[error(
        "no cgroup of version 2 has the name {unit:?}: the unit does not exist or is not running"
    )]
    NoSuchUnit {
        /// Unit in the request.
        unit: String,
    },
    /// Two cgroups have the name of this systemd unit.
    #[error("two cgroups have the name {unit:?}: {first} and {second}")]
    SeveralUnits {
        /// Unit in the request.
        unit: String,
        /// Path of the first cgroup.
        first: PathBuf,
        /// Path of the second cgroup.
        second: PathBuf,
    },
    /// The cgroup is nested so deeply that checking all cgroups above it would take too long.
    #[error(
        "cannot schedule a cgroup with {depth} folders in its path: at most {DEEPEST} are supported"
    )]
    TooDeep {
        /// Number of folders in the path of the cgroup.
        depth: usize,
    },
    /// The cgroup has so many threads or cgroups below it that listing them would take too long.
    #[error("cannot schedule cgroup {group}: it has more than {most} {what}")]
    TooMany {
        /// Path of the cgroup.
        group: PathBuf,
        /// Kind of member that the cgroup has too many of: `threads`, or `cgroups below it`.
        what: &'static str,
        /// Maximum number of members of this kind.
        most: usize,
    },
    /// The cgroup has no processes, so there is nothing to schedule.
    #[error("cgroup {group} has no processes")]
    Empty {
        /// Path of the cgroup.
        group: PathBuf,
    },
    /// The process of Slackline is in the cgroup, so it would stop itself by freezing the cgroup.
    #[error("cannot schedule cgroup {group}: this program itself is in it")]
    HoldsOurselves {
        /// Path of the cgroup.
        group: PathBuf,
    },
    /// The cgroup is frozen already, and only the program that froze it should thaw it.
    #[error("cannot schedule cgroup {group}: it is frozen")]
    FrozenAlready {
        /// Path of the cgroup.
        group: PathBuf,
    },
    /// The processes of a tree are in several cgroups, so the tree cannot be scheduled as one vCPU.
    #[error(
        "cannot schedule a process tree in several cgroups: process {pid} is in {group}, the first \
         process in {origin}"
    )]
    Elsewhere {
        /// Id of a process whose cgroup is not the cgroup of the first process of the tree.
        pid: Tid,
        /// Path of the cgroup that contains process `pid`.
        group: PathBuf,
        /// Cgroup that contains the first process of the tree.
        origin: PathBuf,
    },
    /// The first thread of a process has ended, but its other threads continue. The kernel does not
    /// move such a process, so the process tree cannot be moved.
    #[error(
        "cannot schedule the process tree: the first thread of its process {pid} has ended, so the \
         process cannot be moved to a cgroup"
    )]
    FirstEnded {
        /// Id of the process.
        pid: Tid,
    },
    /// The kernel refused a step of finding, making, using or dissolving a cgroup.
    #[error("cannot {step} {path}")]
    Refused {
        /// Step that was refused.
        step: Step,
        /// Path of the file or folder of the step.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// A step of finding, making, using or dissolving a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read a file of the kernel.
    Read,
    /// Make the cgroup's directory.
    Make,
    /// Make the cgroup threaded, so that single threads can be moved into it.
    MakeThreaded,
    /// Enable a controller for the cgroups below a cgroup.
    Enable,
    /// Move a thread or process into the cgroup.
    Move,
    /// Open the file that freezes and thaws the cgroup.
    OpenSwitch,
    /// Freeze the whole cgroup.
    Freeze,
    /// Thaw the whole cgroup.
    Thaw,
    /// Limit the cgroup's CPU time or CPUs.
    Limit,
    /// Remove the cgroup's directory.
    Remove,
}

impl Step {
    /// Returns true if the kernel waits for an RCU grace period in this step.
    const fn waits_for_grace_period(self) -> bool {
        matches!(self, Step::MakeThreaded | Step::Enable | Step::Move)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Step::Read => "read",
            Step::Make => "make cgroup",
            Step::MakeThreaded => "make a cgroup threaded by writing",
            Step::Enable => "enable a controller by writing",
            Step::Move => "move a thread by writing",
            Step::OpenSwitch => "open",
            Step::Freeze => "freeze a cgroup by writing",
            Step::Thaw => "thaw a cgroup by writing",
            Step::Limit => "limit a cgroup by writing",
            Step::Remove => "remove cgroup",
        })
    }
}

/// Place of a cgroup that Slackline makes for a thread or process. The cgroup need not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Version of the cgroup hierarchy.
    pub version: Version,
    /// Controller for which the cgroup is made.
    pub controller: Controller,
    /// Folder of the cgroup that Slackline makes.
    pub group: PathBuf,
    /// Folder of the former cgroup of the thread or process, to which dissolving moves it back.
    pub origin: PathBuf,
}

impl Place {
    /// Finds folders for a new cgroup of a thread, best first: version 2, then version 1. With the
    /// controller `cpu`, the cgroup is for the thread's process. Creates nothing yet.
    ///
    /// # Errors
    /// If no cgroup can be made in version 1 or version 2. Returns the error of version 1 or, if
    /// version 1 is not mounted, the error of version 2.
    pub fn find(thread: &ThreadRef, controller: Controller) -> Result<Vec<Place>, CgroupError> {
        let mut places = Vec::new();
        let mut why = None;
        for version in [Version::V2, Version::V1] {
            match Place::find_in(version, thread, controller) {
                Ok(place) => places.push(place),
                Err(error @ CgroupError::NotMounted { .. }) => why = why.or(Some(error)),
                Err(error @ CgroupError::AlreadyHeld { .. }) => return Err(error),
                Err(error) => why = Some(error),
            }
        }
        match why {
            Some(error) if places.is_empty() => Err(error),
            _ => Ok(places),
        }
    }

    /// Finds a folder where a cgroup for a thread can be made, in a hierarchy of one version. The
    /// folder is below the thread's cgroup. If version 2 does not allow a new cgroup there, the
    /// folder is below the nearest ancestor that allows one.
    ///
    /// # Errors
    /// If no hierarchy with the controller is mounted, no cgroup enables the controller, or the
    /// thread's cgroup is not visible or is nested too deeply. Also if the thread is in a cgroup
    /// that Slackline made.
    pub fn find_in(
        version: Version,
        thread: &ThreadRef,
        controller: Controller,
    ) -> Result<Place, CgroupError> {
        let tid = thread.tid();
        let none = CgroupError::NotMounted { version, controller };
        let mounts = mounts::parse(&read(Path::new("/proc/self/mountinfo"))?, controller);
        let groups = read(&PathBuf::from(format!("/proc/{}/task/{tid}/cgroup", thread.pid())))?;
        let mut mounted = mounts.iter().filter(|mount| mount.version == version).peekable();
        let (Some(of_thread), Some(_)) =
            (mounts::group_of(&groups, version, controller), mounted.peek())
        else {
            return Err(none);
        };
        let Some(origin) = mounted.find_map(|mount: &Mount| mount.place(&of_thread)) else {
            return Err(CgroupError::OutOfSight { tid, group: of_thread });
        };
        check_depth(&origin)?;
        if is_ours(&origin) {
            return Err(CgroupError::AlreadyHeld { tid, group: origin });
        }
        let Some(parent) = parent_for(&origin, version, controller) else {
            return Err(CgroupError::NotEnabled { group: origin });
        };
        // The start time makes the name unique, even if the cgroup of an earlier thread with the
        // same id still exists.
        let name = OsString::from(format!("{PREFIX}{tid}-{}", thread.started()));
        Ok(Place { version, controller, group: parent.join(name), origin })
    }

    /// Creates the cgroup without members.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn make(&self) -> Result<(), CgroupError> {
        fs::create_dir(&self.group)
            .map_err(|source| CgroupError::refused(Step::Make, &self.group, source))
    }

    /// Moves a thread or process into the cgroup.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_in(&self, id: Tid) -> Result<(), CgroupError> {
        let members = self.controller.members(self.version);
        write(&self.group.join(members), &id.to_string(), Step::Move)
    }

    /// Returns true if a thread or process is a member of the cgroup. If the cgroup does not exist,
    /// returns false.
    #[must_use]
    pub fn contains(&self, id: Tid) -> bool {
        let members = self.group.join(self.controller.members(self.version));
        let listed = fs::read_to_string(members).unwrap_or_default();
        listed.lines().any(|line| line.parse() == Ok(id.raw()))
    }

    /// Moves a process and all its descendants into the cgroup. Processes that these processes
    /// start later are members from the beginning.
    ///
    /// # Errors
    /// If the cgroup of one of the processes is not the cgroup of `root`. Also if one of them is
    /// the calling process, or cannot be moved.
    pub fn gather(&self, root: Tid) -> Result<(), CgroupError> {
        let members = self.group.join(self.controller.members(self.version));
        let list = || {
            let text = read(&members)?;
            let lines = String::from_utf8_lossy(&text).into_owned();
            Ok(lines.lines().filter_map(|line| line.parse().ok()).filter_map(Tid::new).collect())
        };
        let folders = tree::Gathering { group: &self.group, origin: &self.origin, file: &members };
        folders.gather(root, list, |pid| group_of_process(pid, self.version, self.controller))
    }

    /// Moves all members of the cgroup back to their former cgroup, and removes the cgroup. Does
    /// nothing if the cgroup does not exist, so the call can be repeated.
    ///
    /// # Errors
    /// If the kernel refused a step. All other steps have been tried, and the first error is
    /// returned.
    pub fn dissolve(&self) -> Result<(), CgroupError> {
        if self.is_made() { dissolve(&self.group, || self.move_all_back()) } else { Ok(()) }
    }

    /// Returns true if the cgroup exists.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.group.is_dir()
    }

    fn move_all_back(&self) -> Result<(), CgroupError> {
        let members = self.controller.members(self.version);
        let (from, to) = (self.group.join(members), self.origin.join(members));
        let threads = match fs::read_to_string(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            threads => threads.map_err(|source| CgroupError::refused(Step::Read, &from, source))?,
        };
        threads.lines().try_for_each(|tid| move_to(&to, tid))
    }
}

impl CgroupError {
    /// Returns one line of advice for the user about this error. `None` if there is no advice.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            CgroupError::NotMounted { version: Version::V2, .. } => {
                Some("add version 2 with `mount -t cgroup2 none DIRECTORY` on an empty directory")
            }
            CgroupError::AlreadyHeld { .. } => Some(
                "wait for the other run, or use `slackline change` or `slackline release` if the \
                 daemon schedules the thread",
            ),
            CgroupError::NoSuchGroup { .. } => Some(
                "write the folder of the cgroup, or the path after `0::` in `/proc/PID/cgroup`",
            ),
            CgroupError::NoSuchUnit { .. } => Some(
                "write the full name of the unit, e.g. `web.service`, as `systemctl \
                     list-units` shows it",
            ),
            CgroupError::TooDeep { .. } => Some("use a cgroup nearer to the root of the hierarchy"),
            CgroupError::TooMany { .. } => Some("name one of the cgroups below it, or a process"),
            CgroupError::SeveralUnits { .. } => Some("name one of the two cgroups by its path"),
            CgroupError::Empty { .. } => Some("start a process in the cgroup or unit first"),
            CgroupError::HoldsOurselves { .. } => {
                Some("run slackline in another cgroup, or name a smaller target")
            }
            CgroupError::FirstEnded { .. } => {
                Some("schedule the cgroup or unit of the processes instead")
            }
            CgroupError::Elsewhere { .. } => Some("schedule each cgroup of the tree by its path"),
            _ => None,
        }
    }

    /// Creates the error for a file of a cgroup after the kernel has refused to read or write the
    /// file.
    #[must_use]
    pub fn refused(step: Step, path: &Path, source: io::Error) -> CgroupError {
        CgroupError::Refused { step, path: path.to_path_buf(), source }
    }

    fn is(&self, errno: Errno) -> bool {
        matches!(self, CgroupError::Refused { source, .. }
            if source.raw_os_error() == Some(errno.raw_os_error()))
    }
}

/// Returns two folders: the root of the version 1 hierarchy with the controller `cpu`, and the
/// thread's cgroup in that hierarchy. `None` if there is no such hierarchy.
///
/// # Errors
/// If the thread's cgroup cannot be read, or is not visible.
pub fn cpu_group_of(thread: &ThreadRef) -> Result<Option<(PathBuf, PathBuf)>, CgroupError> {
    let tid = thread.tid();
    let mounts = mounts::parse(&read(Path::new("/proc/self/mountinfo"))?, Controller::Cpu);
    let mut mounts = mounts.iter().filter(|mount| mount.version == Version::V1).peekable();
    if mounts.peek().is_none() {
        return Ok(None);
    }
    let groups = read(&PathBuf::from(format!("/proc/{}/task/{tid}/cgroup", thread.pid())))?;
    let Some(group) = mounts::group_of(&groups, Version::V1, Controller::Cpu) else {
        return Ok(None);
    };
    let place = mounts.find_map(|mount| Some((mount.point().to_path_buf(), mount.place(&group)?)));
    match place {
        Some(found) => Ok(Some(found)),
        None => Err(CgroupError::OutOfSight { tid, group }),
    }
}

/// Returns the folder of the cgroup that a process is in. `None` if the folder is not visible.
fn group_of_process(
    pid: Tid,
    version: Version,
    controller: Controller,
) -> Result<Option<PathBuf>, CgroupError> {
    let groups = read(&PathBuf::from(format!("/proc/{pid}/cgroup")))?;
    let group = mounts::group_of(&groups, version, controller);
    let mounts = mounts::parse(&read(Path::new("/proc/self/mountinfo"))?, controller);
    let mut mounts = mounts.iter().filter(|mount| mount.version == version);
    Ok(group.and_then(|group| mounts.find_map(|mount| mount.place(&group))))
}

/// Returns the nearest cgroup, from `origin` upwards, below which Slackline can make a cgroup with
/// the controller. `None` if there is no such cgroup.
///
/// In version 2 the controller `cpu` is available only below a cgroup that enables it for its
/// children. Such a cgroup has no processes of its own. The one exception is the root.
fn parent_for(origin: &Path, version: Version, controller: Controller) -> Option<PathBuf> {
    match (version, controller) {
        (Version::V2, Controller::Cpu) => {}
        // A threaded cgroup would need changes to the cgroups of other programs.
        (Version::V2, Controller::CpuThread) => return None,
        _ => return Some(origin.to_path_buf()),
    }
    let enables_cpu = |group: &&Path| {
        let enabled = fs::read_to_string(group.join("cgroup.subtree_control"));
        enabled.is_ok_and(|list| list.split_ascii_whitespace().any(|name| name == "cpu"))
    };
    origin.ancestors().find(enables_cpu).map(Path::to_path_buf)
}

/// Maximum number of folders in the path of a cgroup that Slackline schedules or searches. Users
/// can nest delegated cgroups thousands of levels deep.
const DEEPEST: usize = 64;

fn check_depth(group: &Path) -> Result<(), CgroupError> {
    let depth = group.components().count() - usize::from(group.has_root());
    if depth > DEEPEST { Err(CgroupError::TooDeep { depth }) } else { Ok(()) }
}

/// Returns the folder of a cgroup and the folders of the cgroups above it, up to the root of the
/// mount. If a cgroup is nested too deeply, only the outermost [`DEEPEST`] folders are returned.
fn upward(group: &Path) -> impl Iterator<Item = &Path> {
    around::folders_upward(group).take_while(|folder| folder.join("cgroup.procs").exists())
}

fn is_ours(group: &Path) -> bool {
    group.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
}

/// Moves all members of a cgroup back by calling `move_all`, and removes the cgroup.
fn dissolve(
    group: &Path,
    move_all: impl Fn() -> Result<(), CgroupError>,
) -> Result<(), CgroupError> {
    /// Maximum number of attempts to empty and remove the cgroup. An attempt fails if a process
    /// starts in the cgroup while other processes are moved out, or if a thread is still exiting.
    /// Normally a few attempts are enough.
    const ROUNDS: usize = 500;
    /// Number of first attempts that follow each other without a pause.
    const QUICK_ROUNDS: usize = 20;
    /// Pause between attempts after the quick rounds. An exiting thread may need this CPU to end.
    const REST: Duration = Duration::from_millis(1);
    let mut last = Ok(());
    for round in 0..ROUNDS {
        last = move_all().and_then(|()| match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(|source| CgroupError::refused(Step::Remove, group, source)),
        });
        if last.is_ok() {
            break;
        }
        if round < QUICK_ROUNDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(REST);
        }
    }
    last
}

/// Moves a thread or process by writing its id to a cgroup's list of members. Also succeeds if the
/// thread or process has exited, because that can happen after the caller has listed the members.
fn move_to(members: &Path, id: &str) -> Result<(), CgroupError> {
    match write(members, id, Step::Move) {
        Err(error) if error.is(Errno::SRCH) => Ok(()),
        result => result,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CgroupError> {
    fs::read(path).map_err(|source| CgroupError::refused(Step::Read, path, source))
}

/// Writes to a file of the kernel, which must exist.
///
/// # Errors
/// If the kernel refuses.
pub fn write(path: &Path, text: &str, step: Step) -> Result<(), CgroupError> {
    let _short = if step.waits_for_grace_period() { ShortGracePeriods::begin() } else { None };
    let written = OpenOptions::new().write(true).open(path);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| CgroupError::refused(step, path, source))
}
