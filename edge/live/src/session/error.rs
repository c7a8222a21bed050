//! What can go wrong with one request, and with a session as a whole.

use std::io;

use slackline_host::policy::AdmitError;
use slackline_units::{CpuId, CpuSet, Span, VcpuId};
use thiserror::Error;

use super::{Finding, JoinId};
use crate::dispatcher::{DispatcherError, whose};
use crate::live_host::{LiveHostError, NotDone};
use slackline_fence::{FenceError, GiveBackError};
use slackline_linux::owned_cpus::NotOwned;
use slackline_linux::step::ActError;
use slackline_linux::sys::Tid;
use slackline_linux::thread::ThreadError;

/// Why a request was not done. Everything is as it was before it.
#[derive(Debug, Error)]
pub enum RequestError {
    /// Nobody has this id, or no longer.
    #[error("no vCPU {} has joined", id.vcpu())]
    Unknown {
        /// The id.
        id: JoinId,
    },
    /// Somebody is there already.
    #[error("vCPU {vcpu} has joined already")]
    Taken {
        /// What it was to be called.
        vcpu: VcpuId,
    },
    /// These are not CPUs of the session.
    #[error("cannot allow CPUs {cpus:?}: only CPUs 0 to {count}, exclusive, are scheduled")]
    NoSuchCpus {
        /// What was asked for.
        cpus: CpuSet,
        /// How many there are, counted from zero.
        count: usize,
    },
    /// There is no room for it.
    #[error("{0}")]
    Declined(AdmitError),
    /// The kernel tells nobody what threads do, and without that no promise is kept.
    #[error(
        "cannot reserve {slice} every {period}: context switches cannot be observed on this host \
         ({why})"
    )]
    Unwatched {
        /// What was to be promised,
        slice: Span,
        /// in every such time.
        period: Span,
        /// Why nothing can be seen.
        why: String,
    },
    /// Nothing would tell in time that an exact vCPU runs again after it blocked.
    #[error(
        "cannot hold exactly to {slice}: the kernel does not count what it uses ({why}), and \
         looking every {slice} would cost {look} each time, which is more than 1 % of a CPU"
    )]
    Unnoticed {
        /// Its slice.
        slice: Span,
        /// What a look takes.
        look: Span,
        /// Why the kernel does not count.
        why: io::Error,
    },
    /// A thread is gone or not ours to touch.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// A thread cannot be held.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// What a thread has used cannot be read.
    #[error("cannot read the CPU time of thread {tid}: {source}")]
    Unreadable {
        /// Whose.
        tid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused.
    #[error(transparent)]
    Refused(ActError),
    /// A target's cpuset does not grant the CPUs that are scheduled. Nothing has been touched.
    #[error("cannot hold it: {finding}")]
    Elsewhere {
        /// What was found.
        finding: Box<Finding>,
    },
    /// Another program has changed the threads, and that stands.
    #[error("cannot control its threads: {finding}")]
    Contested {
        /// What was found.
        finding: Box<Finding>,
    },
    /// Somebody who left could not be given back wholly. Closing the session tries again.
    #[error("cannot restore all threads: {}", listed(errors))]
    NotGivenBack {
        /// What.
        errors: Vec<GiveBackError>,
    },
    /// The session is over: [`poll`](super::Session::poll) and [`close`](super::Session::close)
    /// say why.
    #[error("the session is over")]
    Over,
    /// The host cannot go on, and the session is over.
    #[error(transparent)]
    Host(LiveHostError),
}

impl RequestError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            RequestError::Fence(FenceError::HeldElsewhere { .. }) => Some(
                "wait for that run, or use `slackline doctor --free` if it was killed".into(),
            ),
            RequestError::Thread(error) | RequestError::Fence(FenceError::Thread(error)) => {
                Some(error.hint().into())
            }
            RequestError::Unwatched { .. } => Some(
                "run as root, with perf_event_open permitted and tracefs mounted; see \
                 `slackline doctor`"
                    .into(),
            ),
            RequestError::Fence(FenceError::Stopped { pid }) => {
                Some(format!("continue it with `kill -CONT {pid}`"))
            }
            RequestError::Elsewhere { finding } => {
                let Finding::Cpus { allowed, .. } = &**finding else { return None };
                let cpus = allowed.iter().map(|cpu| cpu.index().to_string());
                let cpus = cpus.collect::<Vec<_>>().join(",");
                Some(format!("name CPUs of its cpuset, e.g. `--cpus {cpus}`"))
            }
            RequestError::Contested { .. } => Some("undo that change first".into()),
            RequestError::NotGivenBack { .. } => {
                Some("try again with `slackline doctor --free`".into())
            }
            RequestError::Host(error) if error.is_bug() => None,
            RequestError::Fence(FenceError::Budget { .. }) => Some(
                "reserve less, reduce real-time budgets of sibling cgroups, or move it to the root \
                 of the hierarchy `cpu`"
                    .into(),
            ),
            RequestError::Fence(FenceError::Group(error)) => {
                let usual = "check this host with `slackline doctor`";
                Some(error.hint().unwrap_or(usual).into())
            }
            RequestError::Fence(_)
            | RequestError::Unreadable { .. }
            | RequestError::Refused(_)
            | RequestError::Host(_) => {
                Some("check this host with `slackline doctor`".into())
            }
            RequestError::Unnoticed { .. } => {
                Some("reserve it as at-least, or with a longer slice and period".into())
            }
            RequestError::Unknown { .. }
            | RequestError::Taken { .. }
            | RequestError::NoSuchCpus { .. }
            | RequestError::Declined(_)
            | RequestError::Over => None,
        }
    }
}

impl From<NotDone> for RequestError {
    fn from(error: NotDone) -> RequestError {
        match error {
            NotDone::Declined(error) => RequestError::Declined(error),
            NotDone::Refused(error) => RequestError::Refused(error),
            NotDone::Unnoticed { slice, look, why } => RequestError::Unnoticed { slice, look, why },
            NotDone::Host(error) => RequestError::Host(error),
        }
    }
}

/// Why there can be no session, or it is over.
#[derive(Debug, Error)]
pub enum SessionError {
    /// A CPU is not ours to schedule.
    #[error(transparent)]
    Claim(#[from] NotOwned),
    /// Real-time scheduling is refused.
    #[error("cannot use real-time scheduling: {source}")]
    NoRealTime {
        /// What the kernel said.
        source: io::Error,
    },
    /// Memory cannot be locked.
    #[error("cannot lock memory: {source}")]
    NoLockedMemory {
        /// What the kernel said.
        source: io::Error,
    },
    /// A descriptor that the dispatchers need cannot be made.
    #[error("cannot set up the dispatchers: {source}")]
    NoDispatcher {
        /// What the kernel said.
        source: io::Error,
    },
    /// The fence cannot be set up, or its keeper not be replaced.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The host cannot go on.
    #[error(transparent)]
    Host(#[from] LiveHostError),
    /// A dispatcher panicked: a bug.
    #[error("the dispatcher of {} panicked", whose(*cpu))]
    Panicked {
        /// Of which CPU; none is those that are not managed.
        cpu: Option<CpuId>,
    },
    /// Something could not be given back.
    #[error("cannot restore all threads: {}", listed(errors))]
    NotGivenBack {
        /// What.
        errors: Vec<GiveBackError>,
    },
}

impl SessionError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            SessionError::Claim(NotOwned::Taken { .. }) => Some(
                "choose other CPUs with --cpus, wait for that run, or use `slackline reserve` if \
                 it is the daemon"
                    .into(),
            ),
            SessionError::Claim(NotOwned::NotNoted { .. }) => {
                Some("run as root, with /run writable".into())
            }
            SessionError::NoRealTime { .. } if rustix::process::geteuid().is_root() => Some(
                "check the real-time budget of this cgroup or container with `slackline doctor`"
                    .into(),
            ),
            SessionError::NoRealTime { .. } | SessionError::NoLockedMemory { .. } => {
                Some("run as root, and check this host with `slackline doctor`".into())
            }
            SessionError::NotGivenBack { .. } => {
                Some("try again with `slackline doctor --free`".into())
            }
            SessionError::Host(error) if error.is_bug() => None,
            SessionError::Fence(_) | SessionError::NoDispatcher { .. } | SessionError::Host(_) => {
                Some("check this host with `slackline doctor`".into())
            }
            SessionError::Panicked { .. } => None,
        }
    }

    /// Whether this is a fault of ours, not of the machine.
    #[must_use]
    pub const fn is_bug(&self) -> bool {
        match self {
            SessionError::Host(error) => error.is_bug(),
            SessionError::Panicked { .. } => true,
            _ => false,
        }
    }
}

impl From<DispatcherError> for SessionError {
    fn from(error: DispatcherError) -> SessionError {
        match error {
            DispatcherError::NoRealTime { source } => SessionError::NoRealTime { source },
            DispatcherError::NotStarted { source } => SessionError::NoDispatcher { source },
            DispatcherError::Host(error) => SessionError::Host(error),
            DispatcherError::Panicked { cpu } => SessionError::Panicked { cpu },
        }
    }
}

fn listed(errors: &[GiveBackError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
