//! Predictions about changes that were applied, and the results that were measured afterwards.

use serde::{Deserialize, Serialize};

/// Prediction for one vCPU: intervals whose ends are included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// Name of the vCPU.
    pub vcpu: String,
    /// Length of the time that it is about, in nanoseconds. It is watched for at most 30 s.
    pub length_ns: u64,
    /// CPU time received, in millionths of one CPU.
    pub share_ppm: (u64, u64),
    /// Number of deadlines missed in that time. Absent without a reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<(u64, u64)>,
    /// 99th percentile of the time from a wake until it ran. Absent with few wakes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_p99_ns: Option<(u64, u64)>,
}

/// Prediction that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PredictionRecord {
    /// Time at which it was applied, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Prediction as it was applied.
    pub prediction: Prediction,
    /// Measured results. Absent while it is watched, or if the vCPU left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<PredictionOutcome>,
}

/// Measured results of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PredictionOutcome {
    /// Length of the time that was measured, in nanoseconds.
    pub length_ns: u64,
    /// CPU time received, in millionths of one CPU.
    pub share_ppm: u64,
    /// Number of deadlines missed. Absent without a reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
    /// 99th percentile of the time from a wake until it ran. Absent with few wakes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_p99_ns: Option<u64>,
}

impl PredictionRecord {
    /// Returns the distance of the measured share from the predicted interval, in millionths of a
    /// CPU. `None` if there is no result.
    #[must_use]
    pub fn share_error_ppm(&self) -> Option<u64> {
        let (least, most) = self.prediction.share_ppm;
        let came = self.outcome?.share_ppm;
        Some(least.saturating_sub(came).max(came.saturating_sub(most)))
    }
}
