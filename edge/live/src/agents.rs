//! Connections to agents, which report the tasks and the pending I/O of guests over Unix sockets.
//!
//! Reports are checked and limited in rate. A report expires if the agent does not repeat it. Valid
//! reports are passed to the live host as hints from vCPUs.
//!
//! One thread reads the reports of all agents, on unmanaged CPUs if there are any. The thread reads
//! at most 4 KiB from an agent at a time. It pauses reading from an agent that exceeds the
//! permitted rate of reports. Such an agent only fills the buffer of its own socket.

mod hearing;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use slackline_units::{Span, Time, VcpuId};

use crate::dispatcher::{DispatcherError, wait_for};
use crate::live_host::{LiveHost, VcpuActivity};

pub use hearing::{BAD_AT_MOST, Counts, LEASE, LEASE_AT_MOST, RATE};
use hearing::{Hearing, News};

/// Interval between attempts to connect to an agent that is not connected.
const AGAIN: Span = Span::from_ms(50);

/// Maximum number of bytes read from an agent at a time.
const READ: usize = 1 << 12;

/// Error of setting up the connection to an agent.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to an agent at {}: {source}", path.display())]
pub struct AgentError {
    /// Path of the socket.
    pub path: PathBuf,
    /// Error of the kernel.
    pub source: io::Error,
}

/// Statistics about the connection to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentStatistics {
    /// Name of the guest.
    pub name: String,
    /// Path of the socket on which the agent listens.
    pub path: PathBuf,
    /// Time of the run at which the session first connected to the agent. `None` if it has not
    /// connected yet.
    pub connected: Option<Time>,
    /// Time of the run at the latest loss: a claim (report of urgent tasks or pending I/O) lapsed,
    /// the agent became silent, or the agent closed the connection. `None` if there was no loss.
    pub lost: Option<Time>,
    /// Counts of frames, and of losses such as lapsed claims and closed connections.
    pub counts: Counts,
}

/// All agents of a session, behind a lock.
#[derive(Debug, Default)]
pub(crate) struct Agents(Mutex<Vec<Agent>>);

#[derive(Debug)]
struct Agent {
    heard: AgentStatistics,
    address: SocketAddrUnix,
    /// vCPUs of the guest. The index is the number of the vCPU in the guest.
    vcpus: Vec<VcpuId>,
    socket: Option<Arc<OwnedFd>>,
    /// Time of the next attempt to connect to the agent.
    again: Time,
    hearing: Hearing,
}

/// Hint for the policy, together with the vCPU from which the hint comes.
type Tell = (VcpuId, slackline_units::VcpuHint);

impl Agents {
    /// Adds the agent of the guest with these vCPUs. From now on the agent's reports are read
    /// whenever the agent can be reached.
    pub(crate) fn add(
        &self,
        name: String,
        path: &Path,
        vcpus: Vec<VcpuId>,
    ) -> Result<(), AgentError> {
        let address = SocketAddrUnix::new(path)
            .map_err(|error| AgentError { path: path.into(), source: error.into() })?;
        let count = u16::try_from(vcpus.len()).unwrap_or(u16::MAX);
        let heard = AgentStatistics {
            name,
            path: path.into(),
            connected: None,
            lost: None,
            counts: Counts::default(),
        };
        let (again, hearing) = (Time::START, Hearing::new(count));
        self.all().push(Agent { heard, address, vcpus, socket: None, again, hearing });
        Ok(())
    }

    /// Returns the statistics of each agent's connection.
    pub(crate) fn heard(&self) -> Vec<AgentStatistics> {
        let counted =
            |agent: &Agent| AgentStatistics { counts: agent.hearing.counts, ..agent.heard.clone() };
        self.all().iter().map(counted).collect()
    }

    /// Removes the agent of the guest to which this vCPU belongs. All vCPUs of a guest leave
    /// together, so the agent is removed with the first of them.
    pub(crate) fn remove(&self, vcpu: VcpuId) {
        for agent in self.all().iter_mut().filter(|agent| agent.vcpus.contains(&vcpu)) {
            agent.socket = None;
            agent.again = Time::NEVER;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Reads the reports of all agents, and passes them to `host`, until the live host has ended
    /// its run.
    pub(crate) fn listen(&self, host: &LiveHost) -> Result<(), DispatcherError> {
        let mut tells = Vec::new();
        while !host.is_over() {
            let now = host.now();
            let (sockets, until) = self.round((now, host), &mut tells);
            for (vcpu, told) in tells.drain(..) {
                host.tell(vcpu, &told)?;
            }
            let mut fds: Vec<PollFd<'_>> = sockets
                .iter()
                .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
                .collect();
            wait_for(&mut fds, until.since(host.now()));
        }
        Ok(())
    }

    /// Reads once from every agent, and adds the resulting hints to `tells`. Returns the sockets to
    /// wait for, and the latest time at which the next call is due.
    fn round(
        &self,
        (now, host): (Time, &LiveHost),
        tells: &mut Vec<Tell>,
    ) -> (Vec<Arc<OwnedFd>>, Time) {
        let (mut sockets, mut until) = (Vec::new(), now + AGAIN);
        let mut news = Vec::new();
        for agent in self.all().iter_mut() {
            if agent.socket.is_none() && agent.again <= now {
                agent.look_for(now);
            }
            agent.take((now, host), &mut news);
            tells.extend(news.drain(..).filter_map(|one| agent.told(&one)));
            until = agent.hearing.lapses().map_or(until, |at| at.min(until));
            match agent.hearing.not_before(now) {
                Some(at) => until = until.min(at),
                None => sockets.extend(agent.socket.clone()),
            }
        }
        (sockets, until)
    }

    /// Locks the list of agents, even if another thread has panicked while it held the lock. At
    /// worst, the reports of one agent are missed.
    fn all(&self) -> MutexGuard<'_, Vec<Agent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Agent {
    /// Tries to connect to the agent, and sets the time of the next attempt.
    fn look_for(&mut self, now: Time) {
        self.again = now + AGAIN;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.and_then(|socket| connect(&socket, &self.address).map(|()| socket));
        if let Ok(socket) = socket {
            self.heard.connected.get_or_insert(now);
            self.socket = Some(Arc::new(socket));
        }
    }

    /// Reads once from the agent's socket, if the rate limit permits, and adds the reports to
    /// `news`. Then drops lapsed claims (reports of urgent tasks or of pending I/O).
    fn take(&mut self, (now, host): (Time, &LiveHost), news: &mut Vec<News>) {
        let before = self.hearing.counts;
        let mut bytes = [0; READ];
        if let Some(socket) = self.socket.clone()
            && self.hearing.not_before(now).is_none()
        {
            match rustix::io::read(&*socket, &mut bytes) {
                Ok(count @ 1..) => self.hearing.take(now, &bytes[..count], news),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Ok(0) | Err(_) => {
                    self.socket = None;
                    self.hearing.hang_up(news);
                }
            }
        }
        let vcpus = &self.vcpus;
        let at = |number| {
            let vcpu = vcpus.get(usize::from(number));
            vcpu.map_or(VcpuActivity::Asleep, |&vcpu| host.is_at(vcpu))
        };
        self.hearing.look(now, at, news);
        let lost = |counts: Counts| [counts.lapsed, counts.silenced, counts.hung_up];
        if lost(before) != lost(self.hearing.counts) {
            self.heard.lost = Some(now);
        }
    }

    /// Converts a report to a hint. `None` if the guest has no vCPU with the number in the report.
    fn told(&self, one: &News) -> Option<Tell> {
        let vcpu = *self.vcpus.get(usize::from(one.vcpu))?;
        Some((vcpu, one.says.told(vcpu.domain())))
    }
}
