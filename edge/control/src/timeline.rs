//! Messages for the daemon's web page: the login, and the timeline of the last seconds.

use serde::{Deserialize, Serialize};

use crate::access::Role;

/// One-time code with which a browser starts a session for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PageCode {
    /// Text of the code, which can be used once.
    pub code: String,
    /// Time until the code expires, in nanoseconds.
    pub lasts_ns: u64,
    /// URL of the web page on this host. Absent if the page is served only over TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// Session of a browser on the daemon's web page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PageSession {
    /// Role of the principal to whom the session belongs. With any role but viewer, the page can
    /// change reservations.
    pub role: Role,
    /// Time until the session expires, in nanoseconds.
    pub lasts_ns: u64,
    /// Secret that the web page must send in a header of each request. Present only in the answer
    /// to a login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Timeline of the last seconds: which vCPUs ran on which CPUs. The timeline consists of columns,
/// each of which covers an equal length of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeline {
    /// Number of the first column, counted from the start of the daemon.
    pub first: u64,
    /// Length of time that a column covers, in nanoseconds.
    pub step_ns: u64,
    /// Numbers of the CPUs in the kernel. A column names a CPU by its position in this list.
    pub cpus: Vec<u32>,
    /// Names of the vCPUs. A column names a vCPU by its position in this list. The first name
    /// stands for all threads that are not vCPUs of this list.
    pub vcpus: Vec<String>,
    /// Complete columns, oldest first. The first of them has the number `first`.
    pub columns: Vec<TimelineColumn>,
}

/// A column of the timeline: the vCPUs that ran in one short interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TimelineColumn {
    /// Runs in the column's time. Each entry has a CPU (position in [`Timeline::cpus`]), a vCPU
    /// (position in [`Timeline::vcpus`]), and the part of that time for which the vCPU ran there,
    /// in thousandths.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<u32>>))]
    pub ran: Vec<TimelineRun>,
    /// Deadline misses that were found in the column's time. Each entry has a vCPU (position in
    /// [`Timeline::vcpus`]) and its number of misses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<u32>>))]
    pub missed: Vec<(u32, u32)>,
}

/// A run of a vCPU on a CPU in a column: position of the CPU in [`Timeline::cpus`], position of the
/// vCPU in [`Timeline::vcpus`], and part of the column's time in thousandths.
pub type TimelineRun = (u32, u32, u32);
