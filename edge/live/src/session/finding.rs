//! Changes to the scheduling of members' threads that the session did not make, and the messages
//! that describe them to users.

use std::fmt;
use std::path::PathBuf;

use slackline_units::{CpuId, CpuSet};

use slackline_linux::sys::{Scheduling, Tid};

/// A change to a thread of a member, made by another program or by the thread itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignChange {
    /// The affinity of a thread is no longer the affinity that the session set.
    Cpus {
        /// Id of the thread.
        tid: Tid,
        /// CPUs on which the thread may run now.
        allowed: CpuSet,
        /// Managed CPUs, which the session schedules.
        scheduled: CpuSet,
        /// Cpuset that restricts the thread to `allowed`. `None` if the thread's own affinity was
        /// changed.
        cpuset: Option<PathBuf>,
    },
    /// The scheduling class or priority of a thread is no longer what the session set.
    Class {
        /// Id of the thread.
        tid: Tid,
        /// Class and priority of the thread now.
        class: Scheduling,
    },
    /// A thread was moved to another cgroup.
    Moved {
        /// Id of the thread.
        tid: Tid,
        /// Cgroup of the thread now.
        group: PathBuf,
    },
    /// A cgroup that contains a thread has been frozen.
    Frozen {
        /// Id of the thread.
        tid: Tid,
        /// Path of the cgroup.
        group: PathBuf,
    },
    /// The cgroup with which Slackline had frozen a thread has been thawed.
    Thawed {
        /// Id of the thread.
        tid: Tid,
        /// Path of the cgroup.
        group: PathBuf,
    },
    /// A cgroup that contains a thread has got a new limit of CPU time.
    Limited {
        /// Id of the thread.
        tid: Tid,
        /// Path of the cgroup.
        group: PathBuf,
        /// Limit of CPU time, as the kernel writes it: CPU time and period, in microseconds.
        limit: String,
    },
    /// A process has been stopped by a signal.
    Stopped {
        /// Id of the process.
        pid: Tid,
    },
    /// The kernel has refused to restore or resume a thread.
    Refused {
        /// Description of the refused change, with the error of the kernel.
        order: String,
    },
}

impl fmt::Display for ForeignChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForeignChange::Cpus { tid, allowed, scheduled, cpuset } => {
                let (allowed, scheduled) = (listed(allowed), listed(scheduled));
                write!(
                    out,
                    "thread {tid} may run only on CPU {allowed}, but Slackline schedules CPU \
                     {scheduled}"
                )?;
                let cpuset = cpuset.as_ref();
                cpuset.map_or(Ok(()), |group| write!(out, " (cpuset {})", group.display()))
            }
            ForeignChange::Class { tid, class } => {
                write!(out, "thread {tid} was set to scheduling class {}", class_name(*class))
            }
            ForeignChange::Moved { tid, group } => {
                write!(out, "thread {tid} was moved to cgroup {}", group.display())
            }
            ForeignChange::Frozen { tid, group } => {
                write!(out, "thread {tid} is frozen by cgroup {}", group.display())
            }
            ForeignChange::Thawed { tid, group } => {
                let group = group.display();
                write!(out, "cgroup {group} of thread {tid} was thawed after Slackline froze it")
            }
            ForeignChange::Limited { tid, group, limit } => {
                let group = group.display();
                write!(out, "thread {tid} is limited to `{limit}` us by cgroup {group}")
            }
            ForeignChange::Stopped { pid } => write!(out, "process {pid} is stopped by a signal"),
            ForeignChange::Refused { order } => write!(out, "the kernel refused a change: {order}"),
        }
    }
}

/// Formats CPUs as a list, such as `0, 2`.
fn listed(cpus: &CpuSet) -> String {
    let numbers = cpus.iter().map(CpuId::index).map(|cpu| cpu.to_string());
    numbers.collect::<Vec<_>>().join(", ")
}

fn class_name(class: Scheduling) -> String {
    match class {
        Scheduling::Other { nice } => format!("SCHED_OTHER, nice {nice}"),
        Scheduling::Batch { nice } => format!("SCHED_BATCH, nice {nice}"),
        Scheduling::Idle => "SCHED_IDLE".into(),
        Scheduling::Fifo { priority } => format!("SCHED_FIFO, priority {priority}"),
        Scheduling::RoundRobin { priority } => format!("SCHED_RR, priority {priority}"),
        Scheduling::Deadline { .. } => "SCHED_DEADLINE".into(),
        Scheduling::Unknown { policy, .. } => format!("class {policy}"),
    }
}
