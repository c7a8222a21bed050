//! What is refused, as RFC 9457 wants it: `application/problem+json`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::times::Length;

/// What kind of refusal it is: the `type` of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The request is not what it should be.
    Bad,
    /// Who asks may not.
    NotAllowed,
    /// Nobody knows who asks.
    NotKnown,
    /// There is no such page.
    NoSuchPage,
    /// There is no such reservation.
    NoSuchReservation,
    /// There is no such machine, or several.
    NoMachine,
    /// The page does not know this method.
    WrongMethod,
    /// The request did not come within its time.
    TooSlow,
    /// There is such a reservation already, or one of that machine.
    Exists,
    /// It does not fit beside what is promised.
    NoRoom,
    /// Its owner may not have so much.
    OverBudget,
    /// It has been changed since.
    Stale,
    /// The body is longer than any request is.
    TooLarge,
    /// Who asks has asked too often, or has too many connections.
    TooMany,
    /// It cannot be done now; perhaps later.
    NotNow,
    /// The core did not answer in time. What was asked for may be done or not.
    NotAnswered,
    /// It could not be written down, so it was taken back.
    NotDurable,
    /// This host does not let us.
    HostCannot,
    /// A fault of ours.
    Bug,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 19] = [
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
        Kind::TooLarge,
        Kind::TooMany,
        Kind::NotNow,
        Kind::NotAnswered,
        Kind::NotDurable,
        Kind::HostCannot,
        Kind::Bug,
    ];

    /// Its word, its HTTP status, what it means, and the exit code of a command that meets it.
    #[must_use]
    pub fn about(self) -> (&'static str, u16, &'static str, u8) {
        match self {
            Kind::Bad => ("bad", 400, "the request is wrong", 2),
            Kind::NotAllowed => ("not-allowed", 403, "not allowed", 5),
            Kind::NotKnown => ("not-known", 401, "who asks is not known here", 5),
            Kind::NoSuchPage => ("no-such-page", 404, "there is no such page", 2),
            Kind::NoSuchReservation => {
                ("no-such-reservation", 404, "there is no such reservation", 2)
            }
            Kind::NoMachine => ("no-machine", 404, "there is no such machine, or several", 2),
            Kind::WrongMethod => ("wrong-method", 405, "the page does not know this method", 2),
            Kind::TooSlow => ("too-slow", 408, "the request did not come in time", 3),
            Kind::Exists => ("exists", 409, "there is one already, and it is another", 2),
            Kind::NoRoom => ("no-room", 409, "it does not fit beside what is promised", 4),
            Kind::OverBudget => ("over-budget", 403, "more than its owner may have", 4),
            Kind::Stale => ("stale", 412, "it has been changed since", 2),
            Kind::TooLarge => ("too-large", 413, "longer than any request is", 2),
            Kind::TooMany => ("too-many", 429, "too often, or too much at once", 3),
            Kind::NotNow => ("not-now", 503, "not now; perhaps later", 3),
            Kind::NotAnswered => {
                ("not-answered", 504, "the core did not answer; it may be done or not", 3)
            }
            Kind::NotDurable => {
                ("not-durable", 507, "it could not be written down, and was taken back", 3)
            }
            Kind::HostCannot => ("host-cannot", 503, "this host does not let us", 3),
            Kind::Bug => ("bug", 500, "a fault of ours", 70),
        }
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.about().0
    }
}

/// What was asked for where it did not fit, and what would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NoRoom {
    /// CPU time that was asked for, for each vCPU in every period.
    pub asked_slice: Length,
    /// The same.
    pub asked_slice_ns: u64,
    /// The period that was asked for.
    pub asked_period: Length,
    /// The same.
    pub asked_period_ns: u64,
    /// What was promised already, in millionths of a CPU.
    pub promised_ppm: u32,
    /// What may be promised, in millionths of a CPU.
    pub capacity_ppm: u32,
    /// The largest slice of that period that fits; `0s` is none.
    pub largest: Length,
    /// The same.
    pub largest_ns: u64,
}

/// What its owner would have had, and may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OverBudget {
    /// CPU over all of its reservations together, in millionths of a CPU.
    CpuPpm {
        /// With what was asked for.
        asked: u32,
        /// At most.
        most: u32,
    },
    /// Reservations.
    Machines {
        /// With the one that was asked for.
        asked: u64,
        /// At most.
        most: u16,
    },
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Of which kind.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// What this kind means.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong here, with both numbers where there are two.
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// `no-room`: the numbers.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Box<NoRoom>>,
    /// `over-budget`: the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<OverBudget>>,
    /// `stale`: the revision there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

impl Problem {
    /// One of a kind, with what is wrong here.
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

    /// The same with what to do about it.
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
    fn a_kind_is_written_as_it_is_taught() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
            assert!((400..600).contains(&kind.about().1), "{kind:?}");
        }
        let problem = Problem::new(Kind::Stale, "revision 3 was expected, 4 is there");
        let text = serde_json::to_string(&Problem { revision: Some(4), ..problem }).unwrap();
        let begin = r#"{"type":"stale","title":"it has been changed since","status":412,"#;
        let end = r#""detail":"revision 3 was expected, 4 is there","revision":4}"#;
        assert_eq!(text, format!("{begin}{end}"));
    }
}
