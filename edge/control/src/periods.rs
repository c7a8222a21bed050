//! Demand and missed periods of VMs in a recording, measured and predicted.

use serde::{Deserialize, Serialize};

/// Periods of the VMs of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecordedPeriods {
    /// Length of the measured time in nanoseconds: the second half of the recording.
    pub length_ns: u64,
    /// VMs that have a reservation, and were present when the recording ended.
    pub vms: Vec<VmPeriods>,
    /// Reason why nothing is predicted. Absent if there is a prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Periods of one VM. For a VM with several vCPUs, all values are those of the most demanding vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmPeriods {
    /// Name of the VM.
    pub name: String,
    /// Period of its reservation, in nanoseconds.
    pub period_ns: u64,
    /// Demand of a period in nanoseconds, rounded up to a thousandth of the period, and number of
    /// measured periods with that demand. For any n, the nth largest demand is the largest of the
    /// nth largest demands of the vCPUs.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<u64>>))]
    pub demand: Vec<(u64, u64)>,
    /// Number of measured periods that ended with incomplete work of an earlier period.
    pub misses: u64,
    /// CPU time received in the measured time, in nanoseconds.
    pub received_ns: u64,
    /// Prediction with the requested changes. Absent if nothing is predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<PredictedPeriods>,
}

/// Predicted periods of one VM, with the values of its most demanding vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PredictedPeriods {
    /// Number of missed periods.
    pub misses: u64,
    /// Number of predicted periods: those of the whole recording.
    pub periods: u64,
    /// Share received, in millionths of a CPU.
    pub share_ppm: u64,
    /// Length of the predicted time, in nanoseconds.
    pub length_ns: u64,
}
