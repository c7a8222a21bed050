//! Who may do what: as it is asked for, and as it is shown.

use serde::{Deserialize, Serialize};
use slackline_service as service;

use crate::times::Share;

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look.
    Viewer,
    /// All about its own reservations. Those of others are shown as "another VM".
    Tenant,
    /// All about reservations.
    Operator,
    /// All there is.
    Administrator,
}

impl Role {
    /// All of them, least first.
    pub const ALL: [Role; 4] = [Role::Viewer, Role::Tenant, Role::Operator, Role::Administrator];

    /// What a principal of this role may do to others, in a sentence.
    #[must_use]
    pub const fn to_others(self) -> &'static str {
        match self {
            Role::Viewer => "may see the names and CPU use of all VMs, and change nothing",
            Role::Tenant => {
                "may change its own reservations only; those of others are \"another VM\" to it"
            }
            Role::Operator => {
                "may change, pause and release the reservations of all, and see the log"
            }
            Role::Administrator => "may do everything, also to VMs of all users, and grant access",
        }
    }

    /// It in a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        service::Role::from(self).word()
    }
}

impl From<Role> for service::Role {
    fn from(role: Role) -> service::Role {
        match role {
            Role::Viewer => service::Role::Viewer,
            Role::Tenant => service::Role::Tenant,
            Role::Operator => service::Role::Operator,
            Role::Administrator => service::Role::Administrator,
        }
    }
}

impl From<service::Role> for Role {
    fn from(role: service::Role) -> Role {
        match role {
            service::Role::Viewer => Role::Viewer,
            service::Role::Tenant => Role::Tenant,
            service::Role::Operator => Role::Operator,
            service::Role::Administrator => Role::Administrator,
        }
    }
}

/// What somebody is to be let do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// What he may do, instead of what his groups let him.
    pub role: Role,
    /// So much CPU over all of his reservations together; as much as there is unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// So many reservations; any number unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<u16>,
    /// The users, by number, whose machines he may have besides his own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<u32>,
    /// For so many days; for ever unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
    /// For who comes from elsewhere: his certificate, as PEM. Without one he is given a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Access {
    /// Who: `uid N`, or `@NAME` who comes from elsewhere.
    pub principal: String,
    /// How he is known: `socket`, `token` or `certificate`.
    pub by: String,
    /// What he may do.
    pub role: Role,
    /// How much CPU his reservations may have together, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// The same in millionths of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ppm: Option<u32>,
    /// How many reservations he may have, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<u16>,
    /// The users whose machines he may have besides his own.
    pub users: Vec<u32>,
    /// Since when, in nanoseconds since 1970.
    pub made_ns: u64,
    /// Until when, if not for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ns: Option<u64>,
    /// The token that was made for him. It is shown this once, and kept by nobody here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}
