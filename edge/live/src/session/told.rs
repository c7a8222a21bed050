//! Agents in guests, and relays to guests.

use std::path::Path;
use std::sync::Arc;

use super::{JoinId, Session, SessionError};
use crate::agents::{AgentError, Heard};
use crate::dispatcher::Dispatcher;
use crate::relay::{Relay, RelayError, Relayed};

/// Error of setting up an agent or a relay.
#[derive(Debug, thiserror::Error)]
pub enum HearError {
    /// The agent's socket path is not a possible one.
    #[error(transparent)]
    Nowhere(#[from] AgentError),
    /// The relay's sockets cannot be set up.
    #[error(transparent)]
    NoWay(#[from] RelayError),
    /// The thread for it cannot be started.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl Session {
    /// Reads the agent of these vCPUs of one guest from now on, whenever it listens on this socket.
    /// `ids` is in the guest's order of its CPUs. Reports go to the policy as hints. A claim that
    /// is not repeated lapses after [`LEASE`](crate::agents::LEASE).
    ///
    /// # Errors
    /// If the path cannot be a socket, or the thread cannot be started.
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

    /// Relays data between clients and the guest of a vCPU from now on. The hypervisor listens at
    /// `guest`, clients connect at `outside`. Data pending for the domain is reported to the
    /// policy.
    ///
    /// # Errors
    /// If one of the sockets cannot be set up, or the thread cannot be started.
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

    /// Returns the statistics of all relays so far.
    #[must_use]
    pub fn relayed(&self) -> Vec<Relayed> {
        self.relays.iter().map(|relay| relay.relayed()).collect()
    }

    /// Returns the statistics of all agents so far.
    #[must_use]
    pub fn heard(&self) -> Vec<Heard> {
        self.agents.heard()
    }
}
