//! Snapshot: the numbers that `slackline top` shows at one moment.

use slackline_units::Span;

/// Numbers of all VMs and CPUs that one screen shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Origin and policy, e.g. `host web1, policy edf`.
    pub title: String,
    /// Position in a recording, e.g. `12.0 s of 60.0 s`, or the time that the numbers cover.
    pub time: String,
    /// Numbers of the CPUs on which VMs are scheduled.
    pub cpus: Vec<CpuLine>,
    /// VMs, or the vCPUs of a recording.
    pub rows: Vec<VmRow>,
    /// Lines about the selected row: culprits of its waiting time.
    pub details: Vec<String>,
    /// Message in place of fresh numbers, e.g. that the daemon does not answer.
    pub problem: Option<String>,
}

/// Numbers of a scheduled CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuLine {
    /// Number of the CPU.
    pub cpu: u32,
    /// CPU time used by VMs, in millionths of the CPU. `None` if the source does not know it.
    pub used_ppm: Option<u64>,
    /// CPU time reserved, in millionths of the CPU. `None` in a recording.
    pub reserved_ppm: Option<u64>,
    /// Part of the CPU that can be reserved, in millionths. `None` in a recording.
    pub capacity_ppm: Option<u64>,
    /// Overhead of scheduling, in millionths of the CPU. `None` if it was not measured.
    pub overhead_ppm: Option<u64>,
}

/// Numbers of a VM or vCPU over the last interval. `None` is a number that the source does not
/// have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmRow {
    /// Name of the reservation, VM or vCPU.
    pub name: String,
    /// State, e.g. `active`. Empty in a recording.
    pub state: String,
    /// CPU time of each vCPU per period.
    pub slice: Option<Span>,
    /// Period of the reservation.
    pub period: Option<Span>,
    /// True for a hard limit.
    pub is_exact: bool,
    /// CPU time reserved for all vCPUs, in millionths of a CPU.
    pub reserved_ppm: Option<u64>,
    /// CPU time used, in millionths of a CPU. XenMon's *gotten*.
    pub used_ppm: Option<u64>,
    /// Time runnable but not running, in millionths of the interval. CPU ready, XenMon's *waited*.
    pub ready_ppm: Option<u64>,
    /// Time blocked, in millionths of the interval. XenMon's *blocked*.
    pub blocked_ppm: Option<u64>,
    /// Dispatches per second, in thousandths. XenMon's *execution count*.
    pub dispatches_milli: Option<u64>,
    /// Periods that ended with less than the slice.
    pub missed: Option<u64>,
    /// Periods at whose end a slice was due.
    pub deadlines: Option<u64>,
    /// Largest culprit of the waiting time.
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
