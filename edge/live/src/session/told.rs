//! Connections of a session to agents in guests, and relays to guests.

use std::path::Path;
use std::sync::Arc;

use super::{JoinId, Session, SessionError};
use crate::agents::{AgentError, AgentStatistics};
use crate::dispatcher::Dispatcher;
use crate::relay::{Relay, RelayError, RelayStatistics};

/// Error of connecting to an agent or of setting up a relay.
#[derive(Debug, thiserror::Error)]
pub enum HearError {
    /// The given path cannot be the path of a socket.
    #[error(transparent)]
    Nowhere(#[from] AgentError),
    /// The relay's sockets cannot be set up.
    #[error(transparent)]
    NoWay(#[from] RelayError),
    /// The thread that serves agents or relays cannot be started.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl Session {
    /// Starts reading reports from the agent of a guest. The session connects to the agent whenever
    /// the agent listens on the socket `path`. `ids` has the guest's vCPUs, in the order in which
    /// the guest numbers its CPUs. Reports are passed to the policy as hints. A report of urgent
    /// tasks or of pending I/O expires after [`LEASE`](crate::agents::LEASE) if the agent does not
    /// repeat it.
    ///
    /// # Errors
    /// If `path` cannot be the path of a socket, or the thread that reads reports cannot be
    /// started.
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

    /// Starts relaying data between clients and the guest of a vCPU. The guest's virtual machine
    /// monitor listens on the socket `guest`, and clients connect to the socket `outside`. The
    /// amount of data pending for the guest is reported to the policy.
    ///
    /// # Errors
    /// If one of the sockets cannot be set up, or the relay's thread cannot be started.
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

    /// Returns the current statistics of all relays.
    #[must_use]
    pub fn relayed(&self) -> Vec<RelayStatistics> {
        self.relays.iter().map(|relay| relay.relayed()).collect()
    }

    /// Returns the current statistics of the connections to all agents.
    #[must_use]
    pub fn heard(&self) -> Vec<AgentStatistics> {
        self.agents.heard()
    }
}
