//! Requests for grants of access to the daemon, and the answers to them.

use serde::{Deserialize, Serialize};
use slackline_service as service;

use crate::times::Share;

/// Role of a user or remote client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May list reservations and VMs, and see available capacity.
    Viewer,
    /// May make and change its own reservations. Reservations of other owners are shown as "another
    /// VM".
    Tenant,
    /// May make reservations, change, pause and release the reservations of all owners, and read
    /// the log.
    Operator,
    /// May do everything, including granting access.
    Administrator,
}

impl Role {
    /// All roles, from the role with the fewest rights to the role with the most rights.
    pub const ALL: [Role; 4] = [Role::Viewer, Role::Tenant, Role::Operator, Role::Administrator];

    /// Returns a phrase that states what a user or client with this role may do to reservations of
    /// other owners.
    #[must_use]
    pub const fn to_others(self) -> &'static str {
        match self {
            Role::Viewer => "may see the names and CPU use of all VMs, and change nothing",
            Role::Tenant => {
                "may change only its own reservations; sees VMs of other users as \"another VM\""
            }
            Role::Operator => {
                "may change, pause and release reservations of all owners, and see the log"
            }
            Role::Administrator => "may do everything with the VMs of all users, and grant access",
        }
    }

    /// Returns the word that stands for the role in JSON and options.
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

/// Access that an administrator grants to a local user or a remote client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Role of the user or client. For a local user, this role replaces the role from the user's
    /// groups.
    pub role: Role,
    /// Limit on the total CPU of all reservations of this user or client. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// Limit on the number of reservations of this user or client. Default: the daemon's limit for
    /// each user and client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<u16>,
    /// Uids of other users for whose VMs this user or client may also reserve CPU time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<u32>,
    /// Number of days after which the role of this grant expires. The limits of the grant remain in
    /// force after the expiry. Default: the role never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
    /// Certificate of a remote client as PEM. If it is absent, the daemon creates a token for the
    /// client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

/// Access of a local user or a remote client, as the daemon reports it to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Access {
    /// User or client: `uid N` for a local user, or `@NAME` for a remote client.
    pub principal: String,
    /// Way in which the user or client is identified: `socket`, `token` or `certificate`.
    pub by: String,
    /// Role that was granted to the user or client.
    pub role: Role,
    /// Limit on the total CPU of all reservations of this user or client, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// The limit on total CPU in millionths of a CPU. Absent if there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ppm: Option<u32>,
    /// Limit on the number of reservations of this user or client, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<u16>,
    /// Uids of other users for whose VMs this user or client may also reserve CPU time.
    pub users: Vec<u32>,
    /// Time at which access was granted, in nanoseconds since 1970.
    pub made_ns: u64,
    /// Time at which the role expires, in nanoseconds since 1970. Absent if the role never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ns: Option<u64>,
    /// New token of a remote client. The token is shown only in this answer, because the daemon
    /// stores only the hash of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}
