//! Answers that the flight recorder gives to clients.

use serde::{Deserialize, Serialize};

/// Culprits of the waiting time of a VM. The times of a vCPU add up to its waiting time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Culprits {
    /// Format of the answer: `slackline-why-1`.
    pub format: String,
    /// Name of the VM.
    pub name: String,
    /// Length of the recording, in nanoseconds.
    pub length_ns: u64,
    /// Culprits of each vCPU.
    pub vcpus: Vec<VcpuCulprits>,
    /// Gaps of the recording.
    pub gaps: Vec<Gap>,
}

/// Culprits of one vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VcpuCulprits {
    /// Name of the vCPU.
    pub vcpu: String,
    /// Time that the vCPU was on CPUs.
    pub ran_ns: u64,
    /// Time in which the vCPU was runnable or kept from running, and did not run.
    pub waited_ns: u64,
    /// Culprits, the largest first.
    pub culprits: Vec<CulpritTime>,
    /// The kernel's own numbers beside those of the recording. Absent if it was not asked.
    #[serde(default)]
    pub check: Option<KernelCheck>,
}

/// Numbers of the kernel and of the recording for the same interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KernelCheck {
    /// CPU time as the kernel counted it.
    pub kernel_used_ns: u64,
    /// CPU ready as the kernel counted it: time on run queues.
    pub kernel_ready_ns: u64,
    /// CPU time as it was recorded.
    pub used_ns: u64,
    /// Time on run queues as it was recorded.
    pub ready_ns: u64,
}

/// Waiting time of one culprit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CulpritTime {
    /// `vm-reserved`, `vm-beyond`, `own-vm`, `process`, `kernel`, `hypervisor`, `late-timer`,
    /// `dispatcher`, `exhausted`, `paused` or `unexplained`.
    pub kind: String,
    /// The culprit as a text.
    pub says: String,
    /// Time that the vCPU waited because of it.
    pub waited_ns: u64,
    /// Name of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// Name of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Systemd unit or cgroup of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of the kernel thread, or the work of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Interval in which events of a CPU were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gap {
    /// CPU of the recording.
    pub cpu: u32,
    /// Start, in nanoseconds since the start of the run.
    pub from_ns: u64,
    /// End, in nanoseconds since the start of the run.
    pub to_ns: u64,
    /// Minimum number of events lost.
    pub events: u64,
}

/// Recording of a missed deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Incident {
    /// Number of the incident.
    pub id: u64,
    /// Time at which the miss was noticed, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Name of the reservation.
    pub name: String,
    /// Number of deadlines missed.
    pub missed: u64,
    /// Size of the recording.
    pub bytes: u64,
    /// File of the recording on the daemon's host. Absent for a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// Recording that was saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Recording {
    /// File on the daemon's host. Whoever asked moves it away.
    pub file: String,
    /// Length of the recording, in nanoseconds. It may be less than was asked for.
    pub length_ns: u64,
}
