//! Predictions of applied plans, and the results that were measured afterwards.

use serde::{Deserialize, Serialize};

/// Prediction for one vCPU. Each predicted value is an interval, given by its lowest and its
/// highest value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// Name of the vCPU.
    pub vcpu: String,
    /// Length of the time that the prediction covers, in nanoseconds. The service compares at most
    /// 30 s of this time with measurements.
    pub length_ns: u64,
    /// Predicted share of the vCPU, in millionths of one CPU: lowest and highest value.
    pub share_ppm: (u64, u64),
    /// Predicted number of missed deadlines: lowest and highest value. Absent if the vCPU has no
    /// reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<(u64, u64)>,
    /// Predicted 99th percentile of the time from a wake of the vCPU until it runs, in nanoseconds:
    /// lowest and highest value. Absent if the vCPU rarely wakes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_p99_ns: Option<(u64, u64)>,
}

/// Prediction that an applied plan contained, and the results that were measured afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PredictionRecord {
    /// Time at which the plan was applied, in nanoseconds since 1970.
    pub at_ns: u64,
    /// The prediction that the applied plan contained.
    pub prediction: Prediction,
    /// Measured results. Absent while the measurement is in progress, or if the vCPU has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<PredictionOutcome>,
}

/// Measured results of one vCPU for which a prediction exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PredictionOutcome {
    /// Length of the measured time, in nanoseconds.
    pub length_ns: u64,
    /// Measured share of the vCPU, in millionths of one CPU.
    pub share_ppm: u64,
    /// Measured number of missed deadlines. Absent if the vCPU has no reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
    /// Measured 99th percentile of the time from a wake of the vCPU until it ran, in nanoseconds.
    /// Absent if the vCPU rarely woke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_p99_ns: Option<u64>,
}

impl PredictionRecord {
    /// Returns the distance of the measured share from the predicted interval, in millionths of a
    /// CPU. The distance is zero if the measured share is inside the interval. `None` if there is
    /// no measured result.
    #[must_use]
    pub fn share_error_ppm(&self) -> Option<u64> {
        let (least, most) = self.prediction.share_ppm;
        let came = self.outcome?.share_ppm;
        Some(least.saturating_sub(came).max(came.saturating_sub(most)))
    }
}
