//! Snapshot of a source: its numbers at one moment.

use slackline_units::Span;

/// Numbers of all VMs and CPUs that are shown on the screen at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Origin of the numbers and the policy, such as `host web1, policy edf`.
    pub title: String,
    /// Position in a recording, such as `12.0 s of 60.0 s`, or the time that the numbers cover.
    pub time: String,
    /// Numbers of the CPUs on which VMs are scheduled.
    pub cpus: Vec<CpuLine>,
    /// Rows of the table: VMs, or the vCPUs of a recording.
    pub rows: Vec<VmRow>,
    /// Lines of details about the selected row: the culprits of its waiting time.
    pub details: Vec<String>,
    /// Message that is shown if there are no new numbers, for example because the daemon does not
    /// answer. `None` if the numbers are new.
    pub problem: Option<String>,
}

/// Numbers of a scheduled CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuLine {
    /// Number of the CPU.
    pub cpu: u32,
    /// CPU time used by VMs in the last interval, in millionths of the CPU. `None` if the source
    /// does not know it.
    pub used_ppm: Option<u64>,
    /// CPU time reserved, in millionths of the CPU. `None` if the source is a recording.
    pub reserved_ppm: Option<u64>,
    /// Part of the CPU that can be reserved, in millionths. `None` if the source is a recording.
    pub capacity_ppm: Option<u64>,
    /// Overhead of scheduling, in millionths of the CPU. `None` if it was not measured.
    pub overhead_ppm: Option<u64>,
}

/// Numbers of a VM or vCPU over the last interval. A number is `None` if the source does not have
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmRow {
    /// Name of the reservation, VM or vCPU.
    pub name: String,
    /// State of the reservation, such as `active`. Empty if the source is a recording.
    pub state: String,
    /// Slice: CPU time that is reserved for each vCPU per period.
    pub slice: Option<Span>,
    /// Period of the reservation.
    pub period: Option<Span>,
    /// True if the reservation is a hard limit.
    pub is_exact: bool,
    /// CPU time reserved for all vCPUs together, in millionths of a CPU.
    pub reserved_ppm: Option<u64>,
    /// CPU time used, in millionths of a CPU. XenMon calls it *gotten*.
    pub used_ppm: Option<u64>,
    /// Time runnable but not running (CPU ready), in millionths of the interval. XenMon calls it
    /// *waited*.
    pub ready_ppm: Option<u64>,
    /// Time blocked, in millionths of the interval. XenMon calls it *blocked*.
    pub blocked_ppm: Option<u64>,
    /// Dispatches per second, in thousandths. XenMon calls them *execution count*.
    pub dispatches_milli: Option<u64>,
    /// Number of periods in which the VM received less CPU time than it was entitled to.
    pub missed: Option<u64>,
    /// Number of deadlines: periods at whose end the VM was entitled to CPU time.
    pub deadlines: Option<u64>,
    /// Largest culprit: the cause of the largest part of the waiting time.
    pub culprit: Option<String>,
}

impl VmRow {
    /// Returns the CPU time used in millionths of the CPU time reserved.
    #[must_use]
    pub fn efficiency_ppm(&self) -> Option<u64> {
        let (used, reserved) = (u128::from(self.used_ppm?), u128::from(self.reserved_ppm?));
        u64::try_from((used * 1_000_000).checked_div(reserved)?).ok()
    }
}
