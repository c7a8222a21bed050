//! What guests tell.

use std::path::Path;
use std::sync::Arc;

use super::{JoinId, Session, SessionError};
use crate::agents::{AgentError, Heard};
use crate::dispatcher::Dispatcher;

/// Why an agent cannot be heard.
#[derive(Debug, thiserror::Error)]
pub enum HearError {
    /// Nobody can be where it is said to be.
    #[error(transparent)]
    Nowhere(#[from] AgentError),
    /// There can be no thread that hears it.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl Session {
    /// The agent of these vCPUs of one guest, in the order in which their guest counts them, is
    /// heard from now on, whenever it listens at this socket: what it tells is told to the policy.
    /// It claims no longer than [`LEASE`](crate::agents::LEASE) what it does not tell again.
    ///
    /// # Errors
    /// When nobody can be there.
    pub fn hear(&mut self, ids: &[JoinId], name: &str, path: &Path) -> Result<(), HearError> {
        let vcpus = ids.iter().map(|id| id.vcpu()).collect();
        let is_first = self.agents.is_empty();
        self.agents.add(name.into(), path, vcpus)?;
        if is_first {
            let agents = Arc::clone(&self.agents);
            let hears = move |machine: &_| agents.listen(machine);
            let dispatcher = Dispatcher::start_beside(Arc::clone(&self.machine), hears);
            self.dispatchers.push(dispatcher.map_err(SessionError::from)?);
        }
        Ok(())
    }

    /// What came of the agents until now.
    #[must_use]
    pub fn heard(&self) -> Vec<Heard> {
        self.agents.heard()
    }
}
