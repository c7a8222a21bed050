//! Answers that the flight recorder gives to clients.

use serde::{Deserialize, Serialize};

/// Causes of the waiting time of a VM. For each vCPU, the times of all causes add up to its waiting
/// time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Culprits {
    /// Format of the answer: `slackline-why-1`.
    pub format: String,
    /// Name of the VM.
    pub name: String,
    /// Length of the recording, in nanoseconds. A vCPU that joined or left during the recording was
    /// recorded for a shorter time.
    pub length_ns: u64,
    /// Causes of the waiting time of each vCPU.
    pub vcpus: Vec<VcpuCulprits>,
    /// Intervals of the recording in which events were lost.
    pub gaps: Vec<Gap>,
}

impl Culprits {
    /// Returns the length of the time in which a vCPU of this answer was recorded, in nanoseconds.
    #[must_use]
    pub fn recorded_ns(&self, vcpu: &VcpuCulprits) -> u64 {
        vcpu.length_ns.unwrap_or(self.length_ns)
    }
}

/// Causes of the waiting time of one vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VcpuCulprits {
    /// Name of the vCPU.
    pub vcpu: String,
    /// Length of the time in which the vCPU was recorded, in nanoseconds. The other times of the
    /// vCPU are parts of this time. Absent in answers of older daemons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_ns: Option<u64>,
    /// Time for which the vCPU ran on a CPU, in nanoseconds.
    pub ran_ns: u64,
    /// Time in which the vCPU did not run because it waited for a CPU, was throttled or was paused,
    /// in nanoseconds.
    pub waited_ns: u64,
    /// Causes of the waiting time, the largest first.
    pub culprits: Vec<CulpritTime>,
    /// CPU times as the kernel counted them, beside the times from the recording. Absent unless the
    /// request asked for them.
    #[serde(default)]
    pub check: Option<KernelCheck>,
}

/// CPU time and CPU ready (time on run queues) of a vCPU in one interval. Each is given as the
/// kernel counted it, and as computed from the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KernelCheck {
    /// CPU time of the vCPU as the kernel counted it, in nanoseconds.
    pub kernel_used_ns: u64,
    /// CPU ready (time on run queues) of the vCPU as the kernel counted it, in nanoseconds.
    pub kernel_ready_ns: u64,
    /// CPU time of the vCPU from the recording, in nanoseconds.
    pub used_ns: u64,
    /// CPU ready (time on run queues) of the vCPU from the recording, in nanoseconds.
    pub ready_ns: u64,
}

/// Time for which one culprit made a vCPU wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CulpritTime {
    /// Kind of the culprit: `vm-reserved`, `vm-beyond`, `own-vm`, `process`, `kernel`,
    /// `hypervisor`, `late-timer`, `dispatcher`, `exhausted`, `paused` or `unexplained`.
    pub kind: String,
    /// Description of the culprit as text.
    pub says: String,
    /// Time for which the vCPU waited because of the culprit, in nanoseconds.
    pub waited_ns: u64,
    /// Name of the VM, if the culprit is a VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// Name of the process, if the culprit is a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Systemd unit or cgroup of the process, if the culprit is a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of the kernel thread or kernel activity, if the culprit is the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Interval in which events of a CPU were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gap {
    /// Number of the CPU on which events were lost.
    pub cpu: u32,
    /// Start of the gap, in nanoseconds since the start of the daemon or of the recorded run.
    pub from_ns: u64,
    /// End of the gap, in nanoseconds since the start of the daemon or of the recorded run.
    pub to_ns: u64,
    /// Lower bound for the number of lost events.
    pub events: u64,
}

/// Recording of a missed deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Incident {
    /// Number of the incident.
    pub id: u64,
    /// Time at which the daemon noticed the missed deadline, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Name of the reservation that missed a deadline.
    pub name: String,
    /// Number of deadlines that the reservation missed in the incident.
    pub missed: u64,
    /// Size of the recording in bytes.
    pub bytes: u64,
    /// File of the recording on the daemon's host. Absent for a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// Recording that the flight recorder saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Recording {
    /// File on the daemon's host. The client that asked for the recording must move the file away.
    pub file: String,
    /// Length of the recording, in nanoseconds. It may be less than the requested length.
    pub length_ns: u64,
}
