//! Ways of limiting a process to a share of a CPU, one file a way.
//!
//! [`Limited::apply`] puts a limit on a process that is there, or says why this host cannot.
//! Dropping what it returns takes the limit off again. Should we die instead, in whatever way, our
//! keeper does it: before anything is touched it knows what there is to undo.
//!
//! What comes of a limit is measured from outside, for all ways alike, by a [`Sampler`].

mod command;
mod deadline;
mod own;
mod quota;
mod sample;

use std::fmt;

use slackline_units::{CpuId, CpuShare, Reservation, Span};
use thiserror::Error;

pub use command::CommandLine;
pub use sample::{Sample, SampleError, Sampler};

use slackline_fence::{Fence, FenceError, GiveBackError, KeeperCommand};
use slackline_linux::cgroup::{CgroupError, Version};
use slackline_linux::step::ActError;
use slackline_linux::sys::Tid;
use slackline_linux::thread::{ThreadError, ThreadRef};
use slackline_live::session::{RequestError, SessionError};

/// A way of limiting a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// The kernel's `SCHED_DEADLINE`. Acts on the one thread of a process.
    Deadline,
    /// The kernel's CFS quota, in a cgroup of this version. Acts on the process.
    Quota(Version),
    /// A program that the user names.
    Command(CommandLine),
    /// Slackline's own dispatcher on this CPU: an exact reservation under `edf`. Acts on the
    /// process.
    Slackline(CpuId),
}

impl Way {
    /// What people call it, the same from version to version.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Way::Deadline => "deadline",
            Way::Quota(Version::V1) => "quota-v1",
            Way::Quota(Version::V2) => "quota-v2",
            Way::Command(_) => "command",
            Way::Slackline(_) => "slackline",
        }
    }

    /// The period that suits this way and this share, when nobody asks for another.
    ///
    /// A quota has 100 ms, the kernel's own default, or longer where a share is so small that its
    /// quota would fall below the kernel's least. The others have 10 ms.
    #[must_use]
    pub fn usual_period(&self, share: CpuShare) -> Span {
        match self {
            Way::Quota(_) => quota::usual_period(share),
            Way::Deadline | Way::Command(_) | Way::Slackline(_) => Span::from_ms(10),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Command(command) => write!(out, "command `{command}`"),
            _ => out.write_str(self.name()),
        }
    }
}

/// Why a limit cannot be put on a process, or no longer holds.
#[derive(Debug, Error)]
pub enum LimitError {
    /// The share is nothing, or more than a CPU.
    #[error("cannot limit to {share} every {period}: a share is above 0 and at most 1cpu")]
    NoTarget {
        /// What was asked for.
        share: CpuShare,
        /// How often.
        period: Span,
    },
    /// The share is too small for the kernel at this period.
    #[error(
        "cannot limit to {share} every {period}: {slice} is below the kernel's minimum of {least}"
    )]
    TooFine {
        /// What was asked for.
        share: CpuShare,
        /// How often.
        period: Span,
        /// The time that comes to.
        slice: Span,
        /// The least there is.
        least: Span,
    },
    /// The kernel takes no such period.
    #[error("cannot use a period of {period}: it must be from {shortest} to {longest}")]
    BadPeriod {
        /// What was asked for.
        period: Span,
        /// The kernel's limits.
        shortest: Span,
        /// As above.
        longest: Span,
    },
    /// The way acts on one thread, and the process has several.
    #[error("cannot limit process {pid} by `deadline`: it has {count} threads, and 1 is possible")]
    ManyThreads {
        /// The process.
        pid: Tid,
        /// How many.
        count: usize,
    },
    /// The process cannot be referred to.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// It cannot be held.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The kernel refused.
    #[error("{error}: {cause}", cause = cause_of(error))]
    Refused {
        /// What.
        error: ActError,
    },
    /// There can be no group.
    #[error("{error}{}", colon_cause(error))]
    Group {
        /// Why.
        error: CgroupError,
    },
    /// The online CPUs cannot be read.
    #[error("cannot read the list of online CPUs: {source}")]
    NoCpus {
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The command does not say whom or how much to limit.
    #[error("`{command}` does not contain {missing}")]
    BadCommand {
        /// The command.
        command: String,
        /// `{pid}` or `{percent}`.
        missing: &'static str,
    },
    /// The command could not be started.
    #[error("cannot start `{command}`: {source}")]
    NotStarted {
        /// The command.
        command: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The command has ended by itself, so that the limit holds no longer.
    #[error("`{command}` ended by itself ({how})")]
    Ended {
        /// The command.
        command: String,
        /// How.
        how: String,
    },
    /// Something could not be given back.
    #[error("cannot remove the limit: {}", errors.iter().map(ToString::to_string)
        .collect::<Vec<_>>().join("; "))]
    NotGivenBack {
        /// What.
        errors: Vec<GiveBackError>,
    },
    /// Slackline's own dispatcher does not run, or no longer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// It does not take the process.
    #[error(transparent)]
    NotJoined(RequestError),
}

fn cause_of(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| "no reason given".into(), ToString::to_string)
}

fn colon_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(String::new, |cause| format!(": {cause}"))
}

impl LimitError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            LimitError::NoTarget { .. } => Some("write a share such as 0.05cpu".into()),
            LimitError::TooFine { share, least, .. } => {
                let period = least.ns().saturating_mul(1_000_000) / u64::from(share.ppm().max(1));
                Some(format!("use a period of {} or more", Span::from_ns(period)))
            }
            LimitError::BadPeriod { shortest, .. } => {
                Some(format!("use a period of {shortest} or more"))
            }
            LimitError::ManyThreads { .. } => Some("limit the process by a quota".into()),
            LimitError::Group { error: CgroupError::NotEnabled { .. } } => Some(
                "use `quota-v1` if version 1 is mounted, or write +cpu to \
                 cgroup.subtree_control of the root"
                    .into(),
            ),
            LimitError::Group { error: CgroupError::NotMounted { version, .. } } => {
                Some(match version {
                    Version::V1 => {
                        "mount it by `mount -t cgroup -o cpu none DIRECTORY` on an empty directory"
                            .into()
                    }
                    Version::V2 => {
                        "mount it by `mount -t cgroup2 none DIRECTORY` on an empty directory".into()
                    }
                })
            }
            LimitError::BadCommand { .. } => {
                Some("write e.g. cpulimit --pid={pid} --limit={percent}".into())
            }
            LimitError::NotStarted { .. } => Some("install it, or write its full path".into()),
            LimitError::Ended { .. } => Some("run the command by itself to see why".into()),
            LimitError::Session(error) => error.hint(),
            LimitError::NotJoined(error) => error.hint(),
            LimitError::NotGivenBack { .. } => {
                Some("try again with `slackline doctor --free`".into())
            }
            LimitError::Thread(_)
            | LimitError::Fence(_)
            | LimitError::Refused { .. }
            | LimitError::Group { .. }
            | LimitError::NoCpus { .. } => Some("check this host with `slackline doctor`".into()),
        }
    }
}

/// A share of a CPU in every period, as all ways take it.
///
/// # Errors
/// When the share is nothing or more than a CPU, or its part of a period is nothing.
pub fn target(share: CpuShare, period: Span) -> Result<Reservation, LimitError> {
    let none = || LimitError::NoTarget { share, period };
    let slice = u128::from(period.ns()) * u128::from(share.ppm()) / 1_000_000;
    let slice = Span::from_ns(u64::try_from(slice).map_err(|_| none())?);
    Reservation::new(slice, period).map_err(|_| none())
}

/// A process under a limit. Dropping it takes the limit off.
#[derive(Debug)]
pub struct Limited(Kind);

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // There is one at a time.
enum Kind {
    /// By the kernel, until the fence gives the process back.
    Kernel {
        fence: Fence,
    },
    Command(command::Running),
    Slackline(own::Running),
}

impl Limited {
    /// Puts the limit on. Threads that the process starts later are limited with it by a quota, and
    /// not by the others.
    ///
    /// # Errors
    /// When this host, or the process, does not allow it. Everything is then as it was.
    pub fn apply(
        way: &Way,
        pid: i32,
        target: Reservation,
        keeper: KeeperCommand,
    ) -> Result<Limited, LimitError> {
        let process = Tid::new(pid).ok_or_else(|| gone(pid))?;
        Ok(Limited(match way {
            Way::Slackline(cpu) => Kind::Slackline(own::apply(*cpu, process, target, keeper)?),
            _ => {
                let thread = ThreadRef::open(process, process)?;
                let mut fence = Fence::start(keeper)?;
                match way {
                    Way::Command(command) => {
                        Kind::Command(command::apply(command, &thread, target, fence)?)
                    }
                    Way::Quota(version) => {
                        quota::apply(*version, &thread, target, &mut fence)?;
                        Kind::Kernel { fence }
                    }
                    Way::Deadline | Way::Slackline(_) => {
                        deadline::apply(&thread, target, &mut fence)?;
                        Kind::Kernel { fence }
                    }
                }
            }
        }))
    }

    /// Whether the limit still holds, as far as that is ours to know. To be asked now and then.
    ///
    /// # Errors
    /// When the program that limits has ended, or the dispatcher has.
    pub fn check(&mut self) -> Result<(), LimitError> {
        match &mut self.0 {
            Kind::Kernel { .. } => Ok(()),
            Kind::Command(running) => running.check(),
            Kind::Slackline(running) => running.check(),
        }
    }

    /// Takes the limit off. Dropping does the same and keeps to itself what goes wrong.
    ///
    /// # Errors
    /// What could not be given back, or why the limit had ended before.
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
    let tid = Tid::new(pid.max(1)).expect("above zero");
    LimitError::Thread(ThreadError::Gone { pid: tid, tid })
}
