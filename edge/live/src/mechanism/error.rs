//! Reasons why a mechanism cannot express a demand, or cannot enforce it on this host.

use std::path::PathBuf;

use slackline_fence::FenceError;
use slackline_linux::cgroup::{CgroupError, Version};
use slackline_linux::step::ActError;
use slackline_linux::sys::Tid;
use slackline_linux::thread::ThreadError;
use slackline_units::{CpuId, CpuShare, Enforcement, Span};
use thiserror::Error;

/// Reason why a mechanism refuses a demand.
#[derive(Debug, Error)]
pub enum MechanismError {
    /// The slice is shorter than the kernel's minimum.
    #[error(
        "cannot limit a process to {share} every {period}: {slice} is below the kernel's minimum \
         of {least}"
    )]
    TooFine {
        /// Requested share of a CPU.
        share: CpuShare,
        /// Requested length of the period.
        period: Span,
        /// Slice that follows from share and period: share × period.
        slice: Span,
        /// Minimum slice that the kernel allows.
        least: Span,
    },
    /// The kernel does not allow this period.
    #[error("cannot use a period of {period}: it must be from {shortest} to {longest}")]
    BadPeriod {
        /// Requested length of the period.
        period: Span,
        /// Shortest period that the kernel allows.
        shortest: Span,
        /// Longest period that the kernel allows.
        longest: Span,
    },
    /// The mechanism acts on one thread, and the process has several threads.
    #[error("cannot limit process {pid} by `deadline`: it has {count} threads, not 1")]
    ManyThreads {
        /// Process to be limited.
        pid: Tid,
        /// Number of threads of the process.
        count: usize,
    },
    /// The mechanism acts on one thread, and the process has started other processes.
    #[error(
        "cannot limit process {pid} by `deadline`: it has started {count} other processes, which \
         would have no limit"
    )]
    Children {
        /// Process to be limited.
        pid: Tid,
        /// Number of descendants of the process.
        count: usize,
    },
    /// The mechanism acts on one thread, and a command may start other threads.
    #[error("cannot limit a command by `deadline`: processes that it starts would have no limit")]
    Command,
    /// The target is a cgroup of another program.
    #[error(
        "cannot use `{mechanism}` for cgroup {}: another program made it and may set its limits",
        group.display()
    )]
    ForeignGroup {
        /// Folder of the cgroup.
        group: PathBuf,
        /// Mechanism of the request.
        mechanism: Enforcement,
    },
    /// The mechanism can only limit CPU time, and the demand asks for a guarantee.
    #[error("cannot guarantee CPU time by `{mechanism}`: it {does}")]
    NoFloor {
        /// Mechanism of the request.
        mechanism: Enforcement,
        /// Effect of the mechanism, as a verb phrase.
        does: &'static str,
    },
    /// The mechanism always sets a hard limit, and the demand allows the target to use slack.
    #[error(
        "cannot let the target use slack with the mechanism `deadline`: the kernel throttles the \
         thread after each slice"
    )]
    NoSlack,
    /// The mechanism has weights, and the demand has a slice instead of a weight.
    #[error("cannot use `weight`: the request has a slice and a period, not a weight")]
    NoWeight,
    /// The mechanism has slices, and the demand is a weight.
    #[error("cannot use a weight with `{mechanism}`: it has slices and periods, not weights")]
    NotByWeight {
        /// Mechanism of the request.
        mechanism: Enforcement,
    },
    /// The mechanism needs a cgroup for a single vCPU thread. Slackline cannot make such a cgroup
    /// in version 2.
    #[error(
        "cannot limit single vCPU threads by `{mechanism}`: that needs cgroups of version 1, and \
         this host has only {version}"
    )]
    NoThreads {
        /// Mechanism of the request.
        mechanism: Enforcement,
        /// Version of the cgroup hierarchy.
        version: Version,
    },
    /// The kernel requires that a deadline thread may run on all CPUs, but a cpuset forbids some
    /// CPUs to this thread.
    #[error(
        "cannot set SCHED_DEADLINE for thread {tid}: it may run on {allowed} CPUs, and the kernel \
         requires all {online}"
    )]
    NotEverywhere {
        /// Thread to be limited.
        tid: Tid,
        /// Number of CPUs on which the thread may run.
        allowed: usize,
        /// Number of CPUs that are online.
        online: usize,
    },
    /// The kernel has too little free deadline bandwidth.
    #[error("cannot reserve {asked} by `deadline`: {free} of {limit} are free, {why}")]
    NoBandwidth {
        /// Requested share of a CPU.
        asked: CpuShare,
        /// Share that is free.
        free: CpuShare,
        /// Largest sum of shares that the kernel admits.
        limit: CpuShare,
        /// Shares that are reserved already, in words.
        why: String,
    },
    /// The kernel refused for lack of bandwidth, and the free bandwidth could not be read.
    #[error("cannot reserve {asked} by `deadline`: the kernel's bandwidth is exhausted")]
    Busy {
        /// Requested share of a CPU.
        asked: CpuShare,
    },
    /// Another Slackline process schedules CPUs on which the deadline thread could run. The
    /// admission of that process does not count the thread.
    #[error(
        "cannot enforce CPU time by `deadline`: the thread would run before the vCPUs that another \
         slackline{} schedules on CPU {}",
        process(*by),
        cpu.index()
    )]
    OtherScheduler {
        /// Number of the CPU in the kernel.
        cpu: CpuId,
        /// Process id of the other program. `None` if it is not known.
        by: Option<u32>,
    },
    /// The thread has exited, or Slackline must not schedule it.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The process cannot be registered with the fence, so it could not be restored.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The kernel refused a change to the process.
    #[error("{error}: {cause}", cause = cause_of(error))]
    Refused {
        /// Change that was refused, with the kernel's reason.
        error: ActError,
    },
    /// No cgroup for the process can be created or set up.
    #[error("{error}{}", colon_cause(error))]
    Group {
        /// Reason of the failure.
        error: CgroupError,
    },
    /// The online CPUs cannot be read.
    #[error("cannot read the list of online CPUs: {source}")]
    NoCpus {
        /// Error of the kernel.
        source: std::io::Error,
    },
}

fn process(by: Option<u32>) -> String {
    by.map_or_else(String::new, |pid| format!(", process {pid},"))
}

fn cause_of(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| "no reason given".into(), ToString::to_string)
}

fn colon_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(String::new, |cause| format!(": {cause}"))
}

impl From<CgroupError> for MechanismError {
    fn from(error: CgroupError) -> MechanismError {
        MechanismError::Group { error }
    }
}

impl MechanismError {
    /// Returns true if this host cannot enforce the demand. Returns false if the mechanism cannot
    /// enforce it on any host.
    #[must_use]
    pub const fn is_of_host(&self) -> bool {
        matches!(
            self,
            MechanismError::NotEverywhere { .. }
                | MechanismError::NoBandwidth { .. }
                | MechanismError::Busy { .. }
                | MechanismError::NoThreads { .. }
                | MechanismError::OtherScheduler { .. }
                | MechanismError::Thread(_)
                | MechanismError::Fence(_)
                | MechanismError::Refused { .. }
                | MechanismError::Group { .. }
                | MechanismError::NoCpus { .. }
        )
    }

    /// Returns one line of advice on how to correct the error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            MechanismError::TooFine { share, least, .. } => {
                let period = least.ns().saturating_mul(1_000_000) / u64::from(share.ppm().max(1));
                return Some(format!("use a period of {} or more", Span::from_ns(period)));
            }
            MechanismError::BadPeriod { shortest, longest, .. } => {
                return Some(format!("use a period from {shortest} to {longest}"));
            }
            MechanismError::ManyThreads { .. } => {
                "limit the process by `quota`, or each vCPU of a VM with `--vcpus`"
            }
            MechanismError::Children { .. } => "use `--enforce dispatcher` for a process tree",
            MechanismError::Command => {
                "use `--enforce dispatcher`, or start the program and name it by `--pid`"
            }
            MechanismError::ForeignGroup { .. } => {
                "use `--enforce dispatcher`, or `systemctl set-property UNIT CPUQuota=20%`"
            }
            MechanismError::NoFloor { .. } => {
                "add `--at-most` for a limit only, or use `--enforce dispatcher`"
            }
            MechanismError::NoSlack => "drop `--at-least`, or use `--enforce dispatcher`",
            MechanismError::NoWeight => "write e.g. `--enforce weight --weight 300`",
            MechanismError::NotByWeight { .. } => "use `--enforce weight`, or write a slice",
            MechanismError::NoThreads { .. } => {
                "drop `--vcpus`: the limit then includes the emulator's own threads"
            }
            MechanismError::NotEverywhere { .. } => {
                "remove the cpuset, or make it a partition: `echo root > cpuset.cpus.partition`"
            }
            MechanismError::NoBandwidth { .. } | MechanismError::Busy { .. } => {
                "reserve less, or use `--enforce dispatcher`"
            }
            MechanismError::OtherScheduler { .. } => {
                "use `slackline reserve --enforce deadline` if that process is the daemon, else \
                 wait until it ends"
            }
            MechanismError::Group { error: CgroupError::NotEnabled { .. } } => {
                "use `quota-v1` if version 1 is mounted, or write +cpu to cgroup.subtree_control \
                 of the root"
            }
            MechanismError::Group {
                error: CgroupError::NotMounted { version: Version::V1, .. },
            } => "mount version 1 by `mount -t cgroup -o cpu none DIRECTORY` on an empty directory",
            MechanismError::Group {
                error: CgroupError::NotMounted { version: Version::V2, .. },
            } => "mount version 2 by `mount -t cgroup2 none DIRECTORY` on an empty directory",
            MechanismError::Thread(_)
            | MechanismError::Fence(_)
            | MechanismError::Refused { .. }
            | MechanismError::Group { .. }
            | MechanismError::NoCpus { .. } => "check this host with `slackline doctor`",
        };
        Some(text.into())
    }
}
