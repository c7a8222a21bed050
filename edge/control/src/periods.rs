//! Demand and missed periods of VMs in a recording, measured and predicted.

use serde::{Deserialize, Serialize};

/// Measured and predicted periods of the VMs in a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecordedPeriods {
    /// Length of the measured time, in nanoseconds. The measured time is the second half of the
    /// recording.
    pub length_ns: u64,
    /// VMs with a reservation that were present when the recording ended.
    pub vms: Vec<VmPeriods>,
    /// Reason why nothing was predicted. Absent if there is a prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Periods of one VM. If the VM has several vCPUs, each value is the largest among the vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmPeriods {
    /// Name of the VM.
    pub name: String,
    /// Period of the VM's reservation, in nanoseconds.
    pub period_ns: u64,
    /// CPU time that the VM needed per measured period, as a distribution. Each entry has two
    /// numbers: a demand in nanoseconds, and the number of periods with this demand. Demands are
    /// rounded up to a thousandth of the period. For several vCPUs, the demands of each vCPU are
    /// sorted from the largest, and then `vm[n]` is the largest of all `vcpu[n]`.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<u64>>))]
    pub demand: Vec<(u64, u64)>,
    /// Number of measured periods at whose end work of an earlier period was still incomplete.
    pub misses: u64,
    /// CPU time that the VM received in the measured time, in nanoseconds.
    pub received_ns: u64,
    /// Predicted periods of the VM with the requested changes. Absent if nothing was predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<PredictedPeriods>,
}

/// Predicted periods of one VM. If the VM has several vCPUs, each value is the largest among the
/// vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PredictedPeriods {
    /// Predicted number of missed periods.
    pub misses: u64,
    /// Number of periods that the prediction covers: all periods of the recording.
    pub periods: u64,
    /// Predicted share of a CPU that the VM receives, in millionths.
    pub share_ppm: u64,
    /// Length of the time that the prediction covers, in nanoseconds.
    pub length_ns: u64,
}
