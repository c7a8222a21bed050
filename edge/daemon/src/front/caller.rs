//! Caller of an HTTP request, and the request to the core process that the front process makes for
//! the caller.

use slackline_control::link::{CallerIdentity, Request};
use slackline_control::{Kind, Problem};
use slackline_service::{Key, Role, Verb};
use tokio::time::Instant;

use super::limits::Owner;

/// Caller of an HTTP request, with the time at which the answer must be complete.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) who: CallerIdentity,
    /// Principal whose limits apply to requests of the caller.
    pub(super) owner: Owner,
    pub(super) role: Role,
    pub(super) until: Instant,
    /// Key of the browser's session. `None` if the request belongs to no session.
    pub(super) session: Option<String>,
}

/// A request that the front process sends to the core process.
#[derive(Debug)]
pub(super) struct CoreRequest {
    pub(super) who: CallerIdentity,
    /// True if the front process assumes that the caller is an administrator. Only the core process
    /// decides on the caller's rights.
    pub(super) is_of_administrator: bool,
    pub(super) key: Option<String>,
    pub(super) request: Request,
}

impl Caller {
    /// Returns a request to the core process for this caller. If the client sent an idempotency
    /// key, the request contains the key.
    pub(super) fn asks(&self, key: Option<&Key>, request: Request) -> CoreRequest {
        let key = key.map(ToString::to_string);
        let is_of_administrator = self.role == Role::Administrator;
        CoreRequest { who: self.who.clone(), is_of_administrator, key, request }
    }

    /// Checks that the caller's role allows `verb`. The core process checks the rights a second
    /// time.
    ///
    /// This check always allows a local user's requests about grants of access. The front process
    /// knows only the role from the user's groups, and only the core knows if a grant makes the
    /// user an administrator.
    pub(super) fn may(&self, verb: Verb) -> Result<(), Problem> {
        let is_local = matches!(self.who, CallerIdentity::User { .. });
        if self.role.may(verb) || is_local && verb == Verb::Access {
            return Ok(());
        }
        let detail = format!("`{verb}` is not permitted for role {:?}", self.role).to_lowercase();
        let hint = "ask an administrator; roles are in `slackline help service`";
        Err(Problem::new(Kind::NotAllowed, detail).hinting(hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_process_refuses_access_requests_only_from_remote_callers() {
        let (owner, role, until) = (Owner::User(5001), Role::Operator, Instant::now());
        let who = CallerIdentity::User { uid: 5001, gids: vec![990] };
        let local = Caller { who, owner, role, until, session: None };
        assert_eq!(local.may(Verb::Access), Ok(()));
        let remote = Caller { who: CallerIdentity::Token(String::new()), ..local };
        assert!(remote.may(Verb::Access).is_err() && remote.may(Verb::Log).is_ok());
    }
}
