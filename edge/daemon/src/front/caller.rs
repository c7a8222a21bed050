//! Caller of a request, and the request that the front process sends to the core process for it.

use slackline_control::link::{CallerIdentity, Request};
use slackline_control::{Kind, Problem};
use slackline_service::{Key, Role, Verb};
use tokio::time::Instant;

use super::limits::Owner;

/// Caller of an HTTP request, with the time limit for the answer.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) who: CallerIdentity,
    /// Principal whose limits apply to requests of the caller.
    pub(super) owner: Owner,
    pub(super) role: Role,
    pub(super) until: Instant,
    /// Key of the browser's session, if the request belongs to one.
    pub(super) session: Option<String>,
}

/// A request that the front process sends to the core process.
#[derive(Debug)]
pub(super) struct CoreRequest {
    pub(super) who: CallerIdentity,
    /// True if the front process takes the caller for an administrator. The core process decides.
    pub(super) is_of_administrator: bool,
    pub(super) key: Option<String>,
    pub(super) request: Request,
}

impl Caller {
    /// Returns a request to the core process on behalf of this caller, with an idempotency key if
    /// the client sent a key.
    pub(super) fn asks(&self, key: Option<&Key>, request: Request) -> CoreRequest {
        let key = key.map(ToString::to_string);
        let is_of_administrator = self.role == Role::Administrator;
        CoreRequest { who: self.who.clone(), is_of_administrator, key, request }
    }

    /// Checks that the caller's role allows `verb`. The core process checks the rights again.
    pub(super) fn may(&self, verb: Verb) -> Result<(), Problem> {
        if self.role.may(verb) {
            return Ok(());
        }
        let detail = format!("`{verb}` is not permitted for role {:?}", self.role).to_lowercase();
        let hint = "ask an administrator; roles are in `slackline help service`";
        Err(Problem::new(Kind::NotAllowed, detail).hinting(hint))
    }
}
