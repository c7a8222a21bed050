//! Refusals of requests in the format `application/problem+json` (RFC 9457).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::times::Length;

/// Kind of a refusal, which is the `type` of the problem in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The request is malformed.
    Bad,
    /// The role of the caller does not permit the request.
    NotAllowed,
    /// The caller is unknown: no user, group, token or certificate gives access.
    NotKnown,
    /// The path of the request leads to no known endpoint, file or incident.
    NoSuchPage,
    /// The reservation does not exist.
    NoSuchReservation,
    /// The VM does not exist, or several VMs match the binding.
    NoMachine,
    /// The HTTP endpoint does not support the request's method.
    WrongMethod,
    /// The request did not arrive in time.
    TooSlow,
    /// The VM already has another reservation, or the name belongs to another reservation.
    Exists,
    /// There is not enough available capacity.
    NoRoom,
    /// The request would exceed a limit in the grant of the reservation's owner.
    OverBudget,
    /// The reservation has changed since the revision that the request names.
    Stale,
    /// Reservations have changed since the plan was made or applied.
    Moved,
    /// The body of the request, or the answer, is too long.
    TooLarge,
    /// The caller has sent too many requests, or has too many connections.
    TooMany,
    /// The request cannot be carried out now. It can succeed later.
    NotNow,
    /// The daemon's core process did not answer in time. It is unknown whether the request was
    /// carried out.
    NotAnswered,
    /// The ledger could not be written, so the change was undone.
    NotDurable,
    /// This host does not support or permit the requested operation.
    HostCannot,
    /// A bug in Slackline.
    Bug,
}

impl Kind {
    /// All kinds, in the order of the enum.
    pub const ALL: [Kind; 20] = [
        Kind::Bad,
        Kind::NotAllowed,
        Kind::NotKnown,
        Kind::NoSuchPage,
        Kind::NoSuchReservation,
        Kind::NoMachine,
        Kind::WrongMethod,
        Kind::TooSlow,
        Kind::Exists,
        Kind::NoRoom,
        Kind::OverBudget,
        Kind::Stale,
        Kind::Moved,
        Kind::TooLarge,
        Kind::TooMany,
        Kind::NotNow,
        Kind::NotAnswered,
        Kind::NotDurable,
        Kind::HostCannot,
        Kind::Bug,
    ];

    /// Returns the word of the kind in JSON, the HTTP status, the meaning of the kind, and the exit
    /// code of a command that fails with this kind.
    #[must_use]
    pub fn about(self) -> (&'static str, u16, &'static str, u8) {
        match self {
            Kind::Bad => ("bad", 400, "malformed request", 2),
            Kind::NotAllowed => ("not-allowed", 403, "caller is not permitted to do this", 5),
            Kind::NotKnown => ("not-known", 401, "caller is unknown", 5),
            Kind::NoSuchPage => ("no-such-page", 404, "endpoint does not exist", 2),
            Kind::NoSuchReservation => {
                ("no-such-reservation", 404, "reservation does not exist", 2)
            }
            Kind::NoMachine => ("no-machine", 404, "VM does not exist, or several VMs match", 2),
            Kind::WrongMethod => ("wrong-method", 405, "endpoint does not support this method", 2),
            Kind::TooSlow => ("too-slow", 408, "request did not arrive in time", 3),
            Kind::Exists => ("exists", 409, "another reservation already has this name or VM", 2),
            Kind::NoRoom => ("no-room", 409, "not enough available capacity", 4),
            Kind::OverBudget => {
                ("over-budget", 403, "request exceeds a limit of the reservation's owner", 4)
            }
            Kind::Stale => ("stale", 412, "reservation was changed after the given revision", 2),
            Kind::Moved => ("moved", 409, "reservations have changed since the plan was made", 2),
            Kind::TooLarge => ("too-large", 413, "body or answer is too long", 2),
            Kind::TooMany => ("too-many", 429, "too many requests or connections", 3),
            Kind::NotNow => ("not-now", 503, "daemon cannot do this now", 3),
            Kind::NotAnswered => (
                "not-answered",
                504,
                "daemon's core process did not answer; the request may have taken effect",
                3,
            ),
            Kind::NotDurable => {
                ("not-durable", 507, "ledger could not be written; the request was undone", 3)
            }
            Kind::HostCannot => ("host-cannot", 503, "not possible on this host", 3),
            Kind::Bug => ("bug", 500, "bug in Slackline", 70),
        }
    }

    /// Returns the word that stands for the kind in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.about().0
    }
}

/// Requested CPU time and available capacity, as details of a refusal of kind `no-room`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NoRoom {
    /// Requested CPU time of each vCPU per period.
    pub asked_slice: Length,
    /// The requested slice in nanoseconds.
    pub asked_slice_ns: u64,
    /// Requested period, in which each vCPU would receive the slice once.
    pub asked_period: Length,
    /// The requested period in nanoseconds.
    pub asked_period_ns: u64,
    /// Share that is already reserved on the CPU with the most available capacity, in millionths of
    /// a CPU.
    pub promised_ppm: u32,
    /// Share that can be reserved in total on the CPU with the most available capacity, in
    /// millionths of a CPU.
    pub capacity_ppm: u32,
    /// Largest slice that a CPU would admit with the requested period. `0s` if no slice fits.
    pub largest: Length,
    /// The largest slice in nanoseconds.
    pub largest_ns: u64,
}

/// Limit and requested amount of a refusal of kind `over-budget`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OverBudget {
    /// The limit applies to the total CPU of the owner's reservations. Both numbers are in
    /// millionths of a CPU.
    CpuPpm {
        /// Total CPU that the reservations of the owner would have if the request were granted.
        asked: u32,
        /// Limit on the total CPU of the owner's reservations.
        most: u32,
    },
    /// The limit applies to the number of the owner's reservations.
    Machines {
        /// Number of reservations that the owner would have if the request were granted.
        asked: u64,
        /// Limit on the number of the owner's reservations.
        most: u16,
    },
}

/// Refusal of a request: the reason why the service did not carry it out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Kind of the refusal.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// Meaning of the kind of refusal, as a short text.
    pub title: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Description of the problem with this request, with the numbers that led to the refusal.
    pub detail: String,
    /// Advice on what to do about the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Requested CPU time and available capacity. Present only for the kind `no-room`.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Box<NoRoom>>,
    /// Limit and requested amount. Present only for the kind `over-budget`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<OverBudget>>,
    /// Current revision of the reservation (kind `stale` or `moved`) or of the host (kind `moved`).
    /// Absent for other kinds, and if the moved reservation no longer exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

impl Problem {
    /// Creates a problem of this kind. `detail` describes the problem with this request.
    #[must_use]
    pub fn new(kind: Kind, detail: impl Into<String>) -> Problem {
        let (_, status, title, _) = kind.about();
        Problem {
            kind,
            title: title.into(),
            status,
            detail: detail.into(),
            hint: None,
            room: None,
            budget: None,
            revision: None,
        }
    }

    /// Returns the problem with `hint` as advice on what to do.
    #[must_use]
    pub fn hinting(self, hint: impl Into<String>) -> Problem {
        Problem { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_kind_has_json_name_and_http_error_status() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
            assert!((400..600).contains(&kind.about().1), "{kind:?}");
        }
        let problem = Problem::new(Kind::Stale, "revision 3 was expected, 4 is there");
        let text = serde_json::to_string(&Problem { revision: Some(4), ..problem }).unwrap();
        let begin =
            r#"{"type":"stale","title":"reservation was changed after the given revision","#;
        let end = r#""status":412,"detail":"revision 3 was expected, 4 is there","revision":4}"#;
        assert_eq!(text, format!("{begin}{end}"));
    }
}
