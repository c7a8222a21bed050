//! Who asks, and for what.

use slackline_control::link::{Request, Who};
use slackline_control::{Kind, Problem};
use slackline_service::{Key, Role, Verb};
use tokio::time::Instant;

use super::limits::Owner;

/// Who asks, and until when there must be an answer.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) who: Who,
    /// Whose limits are his.
    pub(super) owner: Owner,
    pub(super) role: Role,
    pub(super) until: Instant,
}

/// A question for the core.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) who: Who,
    pub(super) key: Option<String>,
    pub(super) request: Request,
}

impl Caller {
    /// He asks for this.
    pub(super) fn asks(&self, key: Option<&Key>, request: Request) -> Asked {
        let key = key.map(ToString::to_string);
        Asked { who: self.who.clone(), key, request }
    }

    /// Whether he is a user of this machine: the core knows by itself what becomes of his rights.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.who, Who::User { .. })
    }

    /// Nothing, if he may; the core looks again.
    pub(super) fn may(&self, verb: Verb) -> Result<(), Problem> {
        if self.role.may(verb) {
            return Ok(());
        }
        let detail = format!("`{verb}` is not permitted for role {:?}", self.role).to_lowercase();
        let hint = "ask an administrator; roles are in `slackline help service`";
        Err(Problem::new(Kind::NotAllowed, detail).hinting(hint))
    }
}
