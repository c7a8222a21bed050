//! Errors of single requests to a session, and of sessions as a whole.

use std::io;

use slackline_host::policy::AdmitError;
use slackline_units::{CpuId, CpuSet, Span, VcpuId};
use thiserror::Error;

use super::{ForeignChange, JoinId};
use crate::dispatcher::{DispatcherError, whose};
use crate::live_host::{LiveHostError, NotDone};
use slackline_fence::{FenceError, GiveBackError};
use slackline_linux::owned_cpus::NotOwned;
use slackline_linux::step::ActError;
use slackline_linux::sys::Tid;
use slackline_linux::thread::ThreadError;

/// Reason why a request to a session failed. A failed request has changed nothing.
#[derive(Debug, Error)]
pub enum RequestError {
    /// No member of the session has this id, or the member has left.
    #[error("no vCPU {} has joined this session", id.vcpu())]
    Unknown {
        /// Id in the request.
        id: JoinId,
    },
    /// Another member of the session already has the requested id.
    #[error("vCPU {vcpu} has joined already")]
    Taken {
        /// Id of the vCPU in the request.
        vcpu: VcpuId,
    },
    /// The request names CPUs that the session does not schedule.
    #[error("cannot allow CPUs {cpus:?}: this session schedules {count} CPUs, numbered from 0")]
    NoSuchCpus {
        /// CPUs in the request.
        cpus: CpuSet,
        /// Number of CPUs of the session, which are counted from zero.
        count: usize,
    },
    /// There is not enough capacity available.
    #[error("{0}")]
    Declined(AdmitError),
    /// The kernel does not report context switches. Without such reports no reservation can be
    /// enforced.
    #[error(
        "cannot reserve {slice} every {period}: context switches cannot be observed on this host \
         ({why})"
    )]
    Unwatched {
        /// Slice in the request.
        slice: Span,
        /// Period in the request.
        period: Span,
        /// Reason why switches cannot be observed.
        why: String,
    },
    /// A hard limit cannot be enforced for this vCPU: no event would report in time that the vCPU
    /// runs although it counts as blocked.
    #[error(
        "cannot enforce a hard limit of {slice}: the kernel does not count the CPU time of this \
         vCPU ({why}), and a dispatcher pass of {look} every {slice} costs more than 1 % of a CPU"
    )]
    Unnoticed {
        /// Slice in the request, which is a hard limit.
        slice: Span,
        /// CPU time of a dispatcher pass.
        look: Span,
        /// Reason why the kernel does not count the CPU time of the vCPU.
        why: io::Error,
    },
    /// A thread of the target has exited, or must not be scheduled.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The fence refuses a thread: its original state cannot be recorded, or its journal entry
    /// cannot be written.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The CPU time of a thread cannot be read.
    #[error("cannot read the CPU time of thread {tid}: {source}")]
    Unreadable {
        /// Id of the thread.
        tid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel refused a change of a thread of the vCPU, such as its class or affinity.
    #[error(transparent)]
    Refused(ActError),
    /// The target's cpuset does not allow the CPUs on which it should be scheduled.
    #[error("cannot schedule the process or VM: {finding}")]
    Elsewhere {
        /// Description of the obstacle: cpuset and CPUs of the target.
        finding: Box<ForeignChange>,
    },
    /// The member is contested: another program has changed its threads, and the change is still in
    /// effect.
    #[error("cannot control the threads of the process or VM: {finding}")]
    Contested {
        /// Change that the other program made.
        finding: Box<ForeignChange>,
    },
    /// A member has left, but some of its threads could not be restored. Closing the session tries
    /// again.
    #[error("cannot restore all threads: {}", listed(errors))]
    NotGivenBack {
        /// Threads that could not be restored, with the errors.
        errors: Vec<GiveBackError>,
    },
    /// The session is over: [`poll`](super::Session::poll) and [`close`](super::Session::close)
    /// return the reason.
    #[error("the session is over")]
    Over,
    /// The live host cannot continue, so the session is over.
    #[error(transparent)]
    Host(LiveHostError),
}

impl RequestError {
    /// Returns one line of advice for the user. `None` if there is no advice for this error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            RequestError::Fence(FenceError::HeldElsewhere { .. }) => Some(
                "wait for the other run, or use `slackline doctor --free` if it was killed; if \
                 that process is the daemon, use `slackline change` or `slackline release`"
                    .into(),
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
                Some(format!("continue the process with `kill -CONT {pid}`"))
            }
            RequestError::Elsewhere { finding } => {
                let ForeignChange::Cpus { allowed, .. } = &**finding else { return None };
                let cpus = allowed.iter().map(|cpu| cpu.index().to_string());
                let cpus = cpus.collect::<Vec<_>>().join(",");
                Some(format!("name CPUs of the target's cpuset, e.g. `--cpus {cpus}`"))
            }
            RequestError::Contested { .. } => Some("undo the change of the other program".into()),
            RequestError::NotGivenBack { .. } => {
                Some("try again with `slackline doctor --free`".into())
            }
            RequestError::Host(error) if error.is_bug() => None,
            RequestError::Fence(FenceError::Budget { .. }) => Some(
                "reserve less, reduce real-time budgets of sibling cgroups, or move the target to \
                 the root of the hierarchy `cpu`"
                    .into(),
            ),
            RequestError::Fence(FenceError::Group(error)) => {
                let usual = "check this host with `slackline doctor`";
                Some(error.hint().unwrap_or(usual).into())
            }
            RequestError::Fence(_)
            | RequestError::Unreadable { .. }
            | RequestError::Refused(_)
            | RequestError::Host(_) => Some("check this host with `slackline doctor`".into()),
            RequestError::Unnoticed { .. } => {
                Some("reserve without the hard limit, or with a longer slice and period".into())
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

/// Reason why a session cannot be opened, or is over.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The session cannot schedule one of the CPUs, because another Slackline process schedules it.
    #[error(transparent)]
    Claim(#[from] NotOwned),
    /// The kernel refuses real-time scheduling.
    #[error("cannot use real-time scheduling: {source}")]
    NoRealTime {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel refuses to lock memory.
    #[error("cannot lock memory: {source}")]
    NoLockedMemory {
        /// Error of the kernel.
        source: io::Error,
    },
    /// A descriptor that the dispatchers need cannot be made.
    #[error("cannot set up the dispatchers: {source}")]
    NoDispatcher {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The fence cannot be set up, or its keeper process died and cannot be replaced.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The live host cannot continue.
    #[error(transparent)]
    Host(#[from] LiveHostError),
    /// A dispatcher panicked, which is a bug.
    #[error("the dispatcher of {} panicked", whose(*cpu))]
    Panicked {
        /// CPU of the dispatcher. `None` for a thread that schedules no CPU, such as the listener,
        /// which serves the unmanaged CPUs.
        cpu: Option<CpuId>,
    },
    /// At the end of the session, not all threads could be restored.
    #[error("cannot restore all threads: {}", listed(errors))]
    NotGivenBack {
        /// Threads that could not be restored, with the errors.
        errors: Vec<GiveBackError>,
    },
}

impl SessionError {
    /// Returns one line of advice for the user. `None` if there is no advice for this error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            SessionError::Claim(NotOwned::Taken { .. }) => Some(
                "choose other CPUs with --cpus, or wait for the run that uses them; if the daemon \
                 uses them, use `slackline reserve`"
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

    /// Returns true if the error is a bug in Slackline. Returns false if the host has caused the
    /// error.
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
