//! Why there is no machine.

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

/// Why there is no machine to be had.
#[derive(Debug, Error)]
pub enum Absent {
    /// There is none.
    #[error("there is no {binding}")]
    NotHere {
        /// What was looked for.
        binding: Binding,
    },
    /// There are several, and nothing says which is meant.
    #[error("{binding} is both process {first} and process {second}")]
    Several {
        /// What was looked for.
        binding: Binding,
        /// One.
        first: Tid,
        /// Another.
        second: Tid,
    },
    /// It is one that nobody may hold, or it is gone.
    #[error(transparent)]
    Untouchable(#[from] ThreadError),
    /// It is a virtual machine, and its vCPU threads are not there yet, or cannot be told.
    #[error(transparent)]
    NoVcpus(#[from] FindError),
    /// Only its monitor could tell which of its threads are vCPUs, and was not asked.
    #[error("the vCPU threads of {binding} are not known yet: they have no names")]
    NotAsked {
        /// What was looked for.
        binding: Binding,
    },
    /// Its monitor did not answer lately, so it was not asked again.
    #[error("the QMP monitor of {binding} did not answer, and is left alone for {} s more",
        left.as_secs() + 1)]
    Silent {
        /// What was looked for.
        binding: Binding,
        /// Time until it may be asked again.
        left: Duration,
    },
    /// The group is not there, or is one that cannot be held.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// The group is there, and nobody in it.
    #[error("{binding} has no processes")]
    Empty {
        /// What was looked for.
        binding: Binding,
    },
    /// Something cannot be read that must be.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// What.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// How old a virtual machine is at most that may still be starting its vCPU threads.
const STARTING: u64 = 5;

/// Whether a process is so young that its threads may be yet to come.
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
    /// What a person may do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Absent::NotHere { binding } if binding.kind() == BindingKind::Libvirt => {
                Some("check with `virsh list`; write guests of a session as `qemu:NAME`".to_owned())
            }
            Absent::NotHere { .. } => Some("list VMs with `slackline find`".to_owned()),
            Absent::Several { first, .. } => {
                Some(format!("name one by `uuid:UUID`, or by `pid:{first}`"))
            }
            Absent::Untouchable(error) => Some(error.hint().to_owned()),
            Absent::NoVcpus(error) => error.hint().map(str::to_owned),
            Absent::Silent { .. } => Some(
                "start QEMU with `-name NAME,debug-threads=on`, which needs no monitor".to_owned(),
            ),
            Absent::NotAsked { .. } => {
                Some("try again in some seconds, when its monitor has answered".to_owned())
            }
            Absent::Group(error) => error.hint().map(str::to_owned),
            Absent::Empty { .. } => Some("start a process in it first".to_owned()),
            Absent::Unreadable { .. } => Some("run as root".to_owned()),
        }
    }

    /// It in the service's words.
    #[must_use]
    pub fn in_service(&self) -> LookError {
        match self {
            _ if self.is_yet_to_come() => LookError::Absent,
            Absent::Untouchable(error) => LookError::Forbidden(error.to_string()),
            Absent::Group(error @ CgroupError::HoldsOurselves { .. }) => {
                LookError::Forbidden(error.to_string())
            }
            _ => LookError::Unclear { says: with_causes(self), hint: self.hint() },
        }
    }

    /// Whether it is only that the machine is not here, or not up yet: then it may come.
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

    /// Whether a virtual machine is here, and cannot be had.
    #[must_use]
    pub fn is_here(&self) -> bool {
        matches!(self, Absent::NoVcpus(_)) && !self.is_yet_to_come()
    }
}
