//! Messages of the page: its login, and columns of the picture of the last seconds.

use serde::{Deserialize, Serialize};

use crate::access::Role;

/// One-time code with which a browser starts a session for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PageCode {
    /// The code, which can be used once.
    pub code: String,
    /// Time until the code expires, in nanoseconds.
    pub lasts_ns: u64,
    /// Address of the page on this host. Absent if the page is served over TLS only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// Session of a browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PageSession {
    /// Role of the principal. Only an operator, administrator or tenant may change reservations.
    pub role: Role,
    /// Time until the session expires, in nanoseconds.
    pub lasts_ns: u64,
    /// Secret that each request of the page sends in a header. Only in the answer to a login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Columns of the picture of the last seconds. Each covers the same length of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeline {
    /// Number of the first column, counted from the start of the daemon.
    pub first: u64,
    /// Length of time that a column covers, in nanoseconds.
    pub step_ns: u64,
    /// Kernel's numbers of the CPUs, in the order of the numbers in the columns.
    pub cpus: Vec<u32>,
    /// Names of the vCPUs, in the order of the numbers in the columns. The first name stands for
    /// all other threads.
    pub vcpus: Vec<String>,
    /// Complete columns from `first` on, oldest first.
    pub columns: Vec<TimelineColumn>,
}

/// A column: which vCPUs ran on which CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TimelineColumn {
    /// CPU, vCPU and the part of the column in which the vCPU ran there, in thousandths.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<u32>>))]
    pub ran: Vec<TimelineRun>,
    /// vCPU and number of deadlines that were found missed in the column.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<u32>>))]
    pub missed: Vec<(u32, u32)>,
}

/// Number of a CPU, number of a vCPU, and part of the column in thousandths.
pub type TimelineRun = (u32, u32, u32);
