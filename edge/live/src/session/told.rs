//! What guests tell, and what is told of them by what goes through here.

use std::path::Path;
use std::sync::Arc;

use super::{JoinId, Session, SessionError};
use crate::agents::{AgentError, Heard};
use crate::dispatcher::Dispatcher;
use crate::relay::{Relay, RelayError, Relayed};

/// Why an agent cannot be heard, or nothing handed on.
#[derive(Debug, thiserror::Error)]
pub enum HearError {
    /// Nobody can be where it is said to be.
    #[error(transparent)]
    Nowhere(#[from] AgentError),
    /// There can be no such way between a guest and others.
    #[error(transparent)]
    NoWay(#[from] RelayError),
    /// There can be no thread that does it.
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
            let hears = move |host: &_| agents.listen(host);
            let dispatcher = Dispatcher::start_beside(Arc::clone(&self.host), hears);
            self.dispatchers.push(dispatcher.map_err(SessionError::from)?);
        }
        Ok(())
    }

    /// What others send to the guest of a vCPU goes through here from now on: to `guest`, where
    /// whoever runs it listens, from `outside`, where others come. What waits for its domain is
    /// told to the policy.
    ///
    /// # Errors
    /// When nobody can be there.
    pub fn relay(
        &mut self,
        id: JoinId,
        name: &str,
        (guest, outside): (&Path, &Path),
    ) -> Result<(), HearError> {
        let relay = Relay::new(name.into(), id.vcpu(), (guest, outside))?;
        self.relays.push(relay.shared());
        let works = move |host: &_| relay.run(host);
        let dispatcher = Dispatcher::start_beside(Arc::clone(&self.host), works);
        self.dispatchers.push(dispatcher.map_err(SessionError::from)?);
        Ok(())
    }

    /// What has gone through relays until now.
    #[must_use]
    pub fn relayed(&self) -> Vec<Relayed> {
        self.relays.iter().map(|relay| relay.relayed()).collect()
    }

    /// What came of the agents until now.
    #[must_use]
    pub fn heard(&self) -> Vec<Heard> {
        self.agents.heard()
    }
}
