//! Limits of the CPU time of a process to a share of a CPU. A limit is enforced by a mechanism of
//! [`slackline_live::mechanism`], or by a program that the user names.
//!
//! [`LimitedProcess::apply`] puts a limit on a running process, or returns the reason why this is
//! not possible. Dropping the returned value removes the limit. If this process dies, its keeper (a
//! child process) removes the limit. Before each change, the keeper receives the state to restore.
//!
//! The effect of a limit is measured from outside by a [`Sampler`](slackline_live::meter::Sampler),
//! in the same way for every kind of limit.

mod command;
mod own;

use std::fmt;

use slackline_units::{CpuId, CpuShare, Enforcement, Reservation, Span};
use thiserror::Error;

pub use command::CommandLine;

use slackline_fence::{Fence, FenceError, GiveBackError, KeeperCommand};
use slackline_linux::cgroup::Version;
use slackline_linux::sys::Tid;
use slackline_linux::thread::{ThreadError, ThreadRef};
use slackline_live::mechanism::{
    Bound, Demand, EnforceTarget, KernelMechanism, MechanismError, kernel_mechanism, quota_of,
    usual_quota_period,
};
use slackline_live::session::{RequestError, SessionError};

/// Means by which a process is limited: a mechanism of the kernel, a program or Slackline's
/// dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitInterface {
    /// `SCHED_DEADLINE` of the kernel, for processes with a single thread.
    Deadline,
    /// CFS quota of the kernel, which limits all threads of the process together. It uses this
    /// version of cgroups. If `None`, it uses the version that has the controller `cpu`.
    Quota(Option<Version>),
    /// A program that the user names, such as `cpulimit`.
    Command(CommandLine),
    /// Slackline's dispatcher on this CPU: a reservation under `edf` with a hard limit. The limit
    /// applies to all threads of the process together.
    Slackline(CpuId),
}

impl LimitInterface {
    /// Returns the name that users see.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            LimitInterface::Deadline => "deadline",
            LimitInterface::Quota(None) => "quota",
            LimitInterface::Quota(Some(Version::V1)) => "quota-v1",
            LimitInterface::Quota(Some(Version::V2)) => "quota-v2",
            LimitInterface::Command(_) => "command",
            LimitInterface::Slackline(_) => "slackline",
        }
    }

    /// Returns true if users select the interface by this name. The dispatcher can be selected by
    /// two names.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        let is_dispatcher = matches!(self, LimitInterface::Slackline(_));
        self.name() == name || is_dispatcher && name == Enforcement::Dispatcher.name()
    }

    /// Returns the default period for a limit to `share` of a CPU.
    ///
    /// A quota has a period of 100 ms, the kernel's default. If the share is so small that the
    /// quota would fall below the kernel's minimum, the period is longer. All other means have 10
    /// ms.
    #[must_use]
    pub fn usual_period(&self, share: CpuShare) -> Span {
        match self {
            LimitInterface::Quota(_) => usual_quota_period(share),
            LimitInterface::Deadline
            | LimitInterface::Command(_)
            | LimitInterface::Slackline(_) => Span::from_ms(10),
        }
    }

    /// Returns the mechanism of the kernel that enforces the limit. `None` if Slackline or a
    /// program enforces the limit.
    fn of_kernel(&self) -> Option<&'static dyn KernelMechanism> {
        match self {
            LimitInterface::Deadline => kernel_mechanism(Enforcement::Deadline),
            LimitInterface::Quota(None) => kernel_mechanism(Enforcement::Quota),
            LimitInterface::Quota(Some(version)) => Some(quota_of(*version)),
            LimitInterface::Command(_) | LimitInterface::Slackline(_) => None,
        }
    }
}

impl fmt::Display for LimitInterface {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitInterface::Command(command) => write!(out, "command `{command}`"),
            _ => out.write_str(self.name()),
        }
    }
}

/// Reason why a process cannot be limited, or is no longer limited.
#[derive(Debug, Error)]
pub enum LimitError {
    /// The requested share is zero, or is more than one CPU.
    #[error(
        "cannot limit a process to {share} every {period}: the share must be above 0 and at most \
         1cpu"
    )]
    NoTarget {
        /// Requested share of a CPU.
        share: CpuShare,
        /// Period of the limit.
        period: Span,
    },
    /// The mechanism cannot express the limit, or this host does not allow it.
    #[error(transparent)]
    Mechanism(#[from] MechanismError),
    /// The process has ended or cannot be opened.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The process cannot be registered with its keeper, which would restore it.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The user's command does not contain `{pid}` or `{percent}`.
    #[error("the command `{command}` does not contain {missing}")]
    BadCommand {
        /// Command as the user wrote it.
        command: String,
        /// Missing variable, `{pid}` or `{percent}`.
        missing: &'static str,
    },
    /// The command could not be started.
    #[error("cannot start `{command}`: {source}")]
    NotStarted {
        /// Command as the user wrote it.
        command: String,
        /// Error of the kernel.
        source: std::io::Error,
    },
    /// The command has ended by itself, so the process is no longer limited.
    #[error("`{command}` ended by itself ({how})")]
    Ended {
        /// Command as the user wrote it.
        command: String,
        /// Exit code or signal, in words.
        how: String,
    },
    /// Undoing some changes to the process failed.
    #[error("cannot remove the limit: {}", errors.iter().map(ToString::to_string)
        .collect::<Vec<_>>().join("; "))]
    NotGivenBack {
        /// Errors of the changes that could not be undone.
        errors: Vec<GiveBackError>,
    },
    /// Slackline's dispatcher cannot start, or has ended.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Slackline's dispatcher does not accept the process.
    #[error(transparent)]
    NotJoined(RequestError),
}

impl LimitError {
    /// Returns one line of advice on how to correct the error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            LimitError::NoTarget { .. } => Some("write a share such as 0.05cpu".into()),
            LimitError::Mechanism(error) => error.hint(),
            LimitError::BadCommand { .. } => {
                Some("write e.g. cpulimit --pid={pid} --limit={percent}".into())
            }
            LimitError::NotStarted { .. } => {
                Some("install the program, or write its full path".into())
            }
            LimitError::Ended { .. } => Some("run the command by itself to see why".into()),
            LimitError::Session(error) => error.hint(),
            LimitError::NotJoined(error) => error.hint(),
            LimitError::NotGivenBack { .. } => {
                Some("try again with `slackline doctor --free`".into())
            }
            LimitError::Thread(_) | LimitError::Fence(_) => {
                Some("check this host with `slackline doctor`".into())
            }
        }
    }
}

/// Returns the reservation with this share of a CPU: a slice of share × period in every period.
///
/// # Errors
/// If the share is zero or more than one CPU, or if the slice would be zero.
pub fn target(share: CpuShare, period: Span) -> Result<Reservation, LimitError> {
    let none = || LimitError::NoTarget { share, period };
    let slice = u128::from(period.ns()) * u128::from(share.ppm()) / 1_000_000;
    let slice = Span::from_ns(u64::try_from(slice).map_err(|_| none())?);
    Reservation::new(slice, period).map_err(|_| none())
}

/// A process under a limit. Dropping this value removes the limit.
#[derive(Debug)]
pub struct LimitedProcess(Kind);

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // There is only one value.
enum Kind {
    /// Limit by the kernel. It lasts until the fence (keeper process and journal) restores the
    /// process.
    Kernel {
        fence: Fence,
    },
    Command(command::LimitCommand),
    Slackline(own::OwnLimit),
}

impl LimitedProcess {
    /// Limits a process to a share of a CPU. Only a quota limits threads that the process starts
    /// later.
    ///
    /// # Errors
    /// If this host or the process does not allow the limit. After an error all changes are undone.
    pub fn apply(
        way: &LimitInterface,
        pid: i32,
        target: Reservation,
        keeper: KeeperCommand,
    ) -> Result<LimitedProcess, LimitError> {
        let process = Tid::new(pid).ok_or_else(|| gone(pid))?;
        if let LimitInterface::Slackline(cpu) = way {
            let own = own::apply(*cpu, process, target, keeper)?;
            return Ok(LimitedProcess(Kind::Slackline(own)));
        }
        let thread = ThreadRef::open(process, process)?;
        let mut fence = Fence::start(keeper)?;
        if let LimitInterface::Command(command) = way {
            let running = command::apply(command, &thread, target, fence)?;
            return Ok(LimitedProcess(Kind::Command(running)));
        }
        if let Some(mechanism) = way.of_kernel() {
            let demand = Demand::Time(target, Bound::AtMost);
            mechanism.apply(&EnforceTarget::Tree(thread), demand, &mut fence)?;
        }
        Ok(LimitedProcess(Kind::Kernel { fence }))
    }

    /// Checks that the limit is still enforced. The caller must call this function regularly. A
    /// limit by the kernel cannot be checked, so it always counts as enforced.
    ///
    /// # Errors
    /// If the limiting program, the dispatcher or the process has ended.
    pub fn check(&mut self) -> Result<(), LimitError> {
        match &mut self.0 {
            Kind::Kernel { .. } => Ok(()),
            Kind::Command(running) => running.check(),
            Kind::Slackline(running) => running.check(),
        }
    }

    /// Removes the limit. Dropping does the same, but ignores errors.
    ///
    /// # Errors
    /// If a change could not be undone, or if the limit had already ended by itself.
    pub fn end(self) -> Result<(), LimitError> {
        let release = |fence: &mut Fence| {
            fence.release_all().map_err(|errors| LimitError::NotGivenBack { errors })
        };
        match self.0 {
            Kind::Slackline(running) => running.end(),
            Kind::Kernel { mut fence } => release(&mut fence),
            Kind::Command(mut running) => {
                running.end();
                release(&mut running.fence)
            }
        }
    }
}

fn gone(pid: i32) -> LimitError {
    let tid = Tid::new(pid.max(1)).expect("the process id is above zero");
    LimitError::Thread(ThreadError::Gone { pid: tid, tid })
}
