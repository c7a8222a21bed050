//! Messages for the daemon's web page: the login, and the timeline of the last seconds.

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
    /// Address of the web page on this host. Absent if the page is only served over TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// Session of a browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PageSession {
    /// Role of the principal that has the session. Only an operator, administrator or tenant may
    /// change reservations.
    pub role: Role,
    /// Time until the session expires, in nanoseconds.
    pub lasts_ns: u64,
    /// Secret that each request of the web page sends in a header. Present only in the answer to a
    /// login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Timeline of the last seconds, as columns of equal length: which vCPUs ran on which CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeline {
    /// Number of the first column, counted from the start of the daemon.
    pub first: u64,
    /// Length of time that a column covers, in nanoseconds.
    pub step_ns: u64,
    /// Numbers of the CPUs in the kernel. The columns refer to a CPU by its position in this list.
    pub cpus: Vec<u32>,
    /// Names of the vCPUs. The columns refer to a vCPU by its position in this list. The first name
    /// represents all other threads.
    pub vcpus: Vec<String>,
    /// Complete columns from `first` on, oldest first.
    pub columns: Vec<TimelineColumn>,
}

/// A column of the timeline: the vCPUs that ran during the time that it covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TimelineColumn {
    /// Entries with a CPU, a vCPU, and the part of the column for which the vCPU ran on the CPU, in
    /// thousandths.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<u32>>))]
    pub ran: Vec<TimelineRun>,
    /// Entries with a vCPU and the number of its deadline misses that were found during the column.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<u32>>))]
    pub missed: Vec<(u32, u32)>,
}

/// Position of a CPU in [`Timeline::cpus`], position of a vCPU in [`Timeline::vcpus`], and part of
/// the column in thousandths.
pub type TimelineRun = (u32, u32, u32);
