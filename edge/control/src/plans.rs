//! Applied plans and their canaries.

use serde::{Deserialize, Serialize};

use crate::predictions::Prediction;
use crate::times::Length;

/// Request to change one VM of a list first, and to watch this VM. If its measured values agree
/// with its prediction, the other changes follow. Otherwise the VM gets its old parameters back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Canary {
    /// Time for which the first VM is watched, from 1 s to 10 min.
    pub watch: Length,
    /// Revision of the host for which the list was made. Default: any revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Predictions for vCPUs. Only a VM that has a prediction can be changed first.
    pub predictions: Vec<Prediction>,
}

/// The caller's last applied list or change, which `POST /v1/undo` undoes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AppliedPlan {
    /// Stage of the plan: `watching`, `done`, `undone` or `stopped`.
    pub stage: String,
    /// Reason why the plan was undone or stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Name of the VM that was changed first and is being watched. Absent if no VM is being
    /// watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// Changes of the plan to reservations: those already made and those still to be made.
    pub changes: Vec<PlannedChange>,
}

/// Change that a plan makes to one reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlannedChange {
    /// Name of the reservation.
    pub name: String,
    /// Parameters and binding before the plan, as text. Absent if the plan creates the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Parameters and binding after the plan, as text. Absent if the plan releases the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// True if the change is in force.
    pub is_done: bool,
    /// Revision of the reservation after the change. Absent if the change is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}
