//! Agents: what guests tell of their tasks, and their devices of what waits for them, over Unix
//! sockets. It is checked, bounded, lapses, and is told to the host as what a vCPU says.
//!
//! One thread hears all of them, on CPUs that are not scheduled where there are any. It reads a
//! little at a time, and no more than may be told, so that whoever floods it fills only the buffer
//! of its own socket.

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
use crate::live_host::{At, LiveHost};

pub use hearing::{BAD_AT_MOST, Counts, LEASE, LEASE_AT_MOST, RATE};
use hearing::{Hearing, News};

/// How often an agent is looked for that is not there.
const AGAIN: Span = Span::from_ms(50);

/// How much is read at a time, in bytes.
const READ: usize = 1 << 12;

/// Why nobody can be heard there.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to an agent at {}: {source}", path.display())]
pub struct AgentError {
    /// The path of the socket.
    pub path: PathBuf,
    /// What is wrong with it.
    pub source: io::Error,
}

/// What came of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Whose it is.
    pub name: String,
    /// Where it listens.
    pub path: PathBuf,
    /// When the channel was first there; none if it never was.
    pub connected: Option<Time>,
    /// When what it claimed last lapsed, or it was taken to be silent, or hung up, if it was.
    pub lost: Option<Time>,
    /// How often.
    pub counts: Counts,
}

/// All agents of a session.
#[derive(Debug, Default)]
pub(crate) struct Agents(Mutex<Vec<Agent>>);

#[derive(Debug)]
struct Agent {
    heard: Heard,
    address: SocketAddrUnix,
    /// By number in the guest.
    vcpus: Vec<VcpuId>,
    socket: Option<Arc<OwnedFd>>,
    /// When it is looked for again.
    again: Time,
    hearing: Hearing,
}

/// What is to be told, of whom.
type Tell = (VcpuId, slackline_units::Told);

impl Agents {
    /// The agent of these vCPUs is heard from now on, whenever it is there.
    pub(crate) fn add(
        &self,
        name: String,
        path: &Path,
        vcpus: Vec<VcpuId>,
    ) -> Result<(), AgentError> {
        let address = SocketAddrUnix::new(path)
            .map_err(|error| AgentError { path: path.into(), source: error.into() })?;
        let count = u16::try_from(vcpus.len()).unwrap_or(u16::MAX);
        let heard = Heard {
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

    /// What came of each of them.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        let counted = |agent: &Agent| Heard { counts: agent.hearing.counts, ..agent.heard.clone() };
        self.all().iter().map(counted).collect()
    }

    /// This vCPU leaves: the agent of its guest, which leaves as a whole, is heard no more.
    pub(crate) fn remove(&self, vcpu: VcpuId) {
        for agent in self.all().iter_mut().filter(|agent| agent.vcpus.contains(&vcpu)) {
            agent.socket = None;
            agent.again = Time::NEVER;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Hears them until the host is over.
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

    /// Takes in what there is; says where to wait for more, and until when at most.
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

    /// A panic elsewhere leaves at worst one of them not heard.
    fn all(&self) -> MutexGuard<'_, Vec<Agent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Agent {
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

    /// Reads once, if more may be told; and sees what has lapsed.
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
            vcpu.map_or(At::Asleep, |&vcpu| host.is_at(vcpu))
        };
        self.hearing.look(now, at, news);
        let lost = |counts: Counts| [counts.lapsed, counts.silenced, counts.hung_up];
        if lost(before) != lost(self.hearing.counts) {
            self.heard.lost = Some(now);
        }
    }

    fn told(&self, one: &News) -> Option<Tell> {
        let vcpu = *self.vcpus.get(usize::from(one.vcpu))?;
        Some((vcpu, one.says.told(vcpu.domain())))
    }
}
