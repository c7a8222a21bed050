//! Who asks, and for what.

use slackline_control::link::Request;
use slackline_control::{Kind, Problem};
use slackline_service::{Key, Role, Verb};
use tokio::time::Instant;

/// Who asks, and until when there must be an answer.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) uid: u32,
    /// Those of his groups that give a right.
    pub(super) gids: Vec<u32>,
    pub(super) role: Role,
    pub(super) until: Instant,
}

/// A question for the core.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) uid: u32,
    pub(super) gids: Vec<u32>,
    pub(super) key: Option<String>,
    pub(super) request: Request,
}

impl Caller {
    /// He asks for this.
    pub(super) fn asks(&self, key: Option<&Key>, request: Request) -> Asked {
        let key = key.map(ToString::to_string);
        Asked { uid: self.uid, gids: self.gids.clone(), key, request }
    }

    /// Nothing, if he may; the core looks again.
    pub(super) fn may(&self, verb: Verb) -> Result<(), Problem> {
        if self.role.may(verb) {
            return Ok(());
        }
        let detail = format!("`{verb}` is not for a {:?}", self.role).to_lowercase();
        Err(Problem::new(Kind::NotAllowed, detail))
    }
}
