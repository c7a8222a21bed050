//! Errors of the search for a *machine*: a VM, container, unit, cgroup or process that can have a
//! reservation.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use slackline_linux::cgroup::CgroupError;
use slackline_linux::sys::Tid;
use slackline_linux::thread::{Stat, ThreadError};
use slackline_linux::with_causes;
use slackline_live::vcpus::FindError;
use slackline_service::{Binding, BindingKind, LookError};
use thiserror::Error;

use crate::monitors::cut;

/// Reason why a machine (VM, container, unit, cgroup or process) was not found, or cannot have a
/// reservation.
#[derive(Debug, Error)]
pub enum Absent {
    /// No machine matches the binding.
    #[error("cannot find {binding}")]
    NotHere {
        /// Binding (the text after `--for`) that the daemon searched for.
        binding: Binding,
    },
    /// Several machines match the binding, and none of them is preferred.
    #[error("cannot choose a process for {binding}: processes {first} and {second} both match")]
    Several {
        /// Binding (the text after `--for`) that the daemon searched for.
        binding: Binding,
        /// Id of one of two matching processes: the lower id.
        first: Tid,
        /// Id of the other of two matching processes.
        second: Tid,
    },
    /// The process has ended, or must not be scheduled.
    #[error(transparent)]
    Untouchable(#[from] ThreadError),
    /// The vCPU threads of the VM have not started yet, or cannot be identified.
    #[error(transparent)]
    NoVcpus(#[from] FindError),
    /// Only the VM's monitor (such as QEMU) knows which threads are vCPUs, and the search was not
    /// allowed to ask the monitor.
    #[error("cannot tell the vCPU threads of {binding} apart yet: they have no names")]
    NotAsked {
        /// Binding (the text after `--for`) that the daemon searched for.
        binding: Binding,
    },
    /// The VM's monitor was not asked, because it did not answer correctly when it was asked
    /// before.
    #[error("{why}: the next attempt is in {} s", left.as_secs() + 1)]
    Silent {
        /// Error of the last attempt to ask the monitor.
        why: String,
        /// Time until the monitor may be asked again.
        left: Duration,
    },
    /// The VM belongs to another user than the caller, so its monitor was not asked for the vCPUs.
    #[error("{binding} belongs to uid {user}")]
    NotYours {
        /// Binding (the text after `--for`) that the daemon searched for.
        binding: Binding,
        /// Id of the user that owns the VM.
        user: u32,
    },
    /// The cgroup does not exist, or must not be scheduled.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// The cgroup contains no processes.
    #[error("{binding} has no processes")]
    Empty {
        /// Binding (the text after `--for`) that the daemon searched for.
        binding: Binding,
    },
    /// A file of procfs or of cgroups cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Age of a process, in seconds, up to which the process may not have started all its vCPU threads.
const STARTING: u64 = 5;

/// Returns true if a process is so young that it may not have started its vCPU threads yet.
fn has_just_begun(pid: i32) -> bool {
    let started = Tid::new(pid).and_then(|pid| Stat::of(pid, pid).ok()).map(Stat::started);
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split(['.', ' ']).next().and_then(|text| text.parse::<u64>().ok());
    match started.zip(uptime) {
        Some((started, uptime)) => uptime.saturating_sub(started.ticks() / 100) < STARTING,
        None => true,
    }
}

impl Absent {
    /// Returns advice on how to fix the error. `None` if there is no advice.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Absent::NotHere { binding } if binding.kind() == BindingKind::Libvirt => Some(
                "check with `virsh list`; write a guest of qemu:///session as `qemu:NAME`"
                    .to_owned(),
            ),
            Absent::NotHere { .. } => Some("list VMs with `slackline find`".to_owned()),
            Absent::Several { first, .. } => {
                Some(format!("name one of the processes by `uuid:UUID`, or by `pid:{first}`"))
            }
            Absent::Untouchable(error) => Some(error.hint().to_owned()),
            Absent::NoVcpus(error) => error.hint().map(str::to_owned),
            Absent::Silent { .. } => Some(
                "start QEMU with `-name NAME,debug-threads=on`, which needs no monitor".to_owned(),
            ),
            Absent::NotAsked { .. } => Some(
                "try again in some seconds, when the monitor of the VM has answered".to_owned(),
            ),
            Absent::NotYours { .. } => None,
            Absent::Group(error) => error.hint().map(str::to_owned),
            Absent::Empty { .. } => Some("start a process in the cgroup or unit first".to_owned()),
            Absent::Unreadable { .. } => Some("run as root".to_owned()),
        }
    }

    /// Converts the error to the type that the service uses.
    #[must_use]
    pub fn in_service(&self) -> LookError {
        match self {
            Absent::NoVcpus(FindError::NotFound { pid }) if has_just_begun(*pid) => {
                LookError::Starting { says: self.text() }
            }
            _ if self.is_yet_to_come() => LookError::Absent,
            Absent::NotYours { user, .. } => LookError::NotYours(*user),
            Absent::Untouchable(error) => LookError::Forbidden(error.to_string()),
            Absent::Group(error @ CgroupError::HoldsOurselves { .. }) => {
                LookError::Forbidden(error.to_string())
            }
            _ => LookError::Unclear { says: self.text(), hint: self.hint() },
        }
    }

    /// Converts the error of a search in the background to the type that the service uses. As long
    /// as the reason for the error is the same, the result has the same text.
    #[must_use]
    pub fn in_background(&self) -> LookError {
        match self {
            Absent::Silent { why, .. } => {
                LookError::Unclear { says: why.clone(), hint: self.hint() }
            }
            _ => self.in_service(),
        }
    }

    /// Returns the error and its causes as text. A long text is cut off, because users can choose
    /// parts of it, such as the path of a socket.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        cut(&with_causes(self))
    }

    /// Returns true if the process of the machine does not exist.
    pub(crate) const fn is_gone(&self) -> bool {
        matches!(
            self,
            Absent::NotHere { .. }
                | Absent::Untouchable(ThreadError::Gone { .. })
                | Absent::NoVcpus(FindError::NoProcess { .. })
        )
    }

    /// Returns true if the machine is not running or not ready yet. A later search may find it.
    #[must_use]
    pub fn is_yet_to_come(&self) -> bool {
        match self {
            Absent::NoVcpus(FindError::NotFound { pid }) => has_just_begun(*pid),
            Absent::NotHere { .. }
            | Absent::Empty { .. }
            | Absent::Untouchable(ThreadError::Gone { .. })
            | Absent::NoVcpus(FindError::NoProcess { .. })
            | Absent::Group(CgroupError::NoSuchGroup { .. } | CgroupError::NoSuchUnit { .. }) => {
                true
            }
            _ => false,
        }
    }
}
