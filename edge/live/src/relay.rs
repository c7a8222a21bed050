//! Relays: what goes from others to a guest of QEMU, and back, goes through here, byte by byte, so
//! that it is known what waits for the guest. A stock host does not know that otherwise.
//!
//! Something waits from when it is on its way to the guest until the guest sends something, or for
//! [`WAITS`]: a guest that has sent has run, and what came before that is in its hands. What its
//! bytes mean is nobody's concern here; only ports of virtio-serial were tried. Whoever sends much
//! fills only the buffers of their own socket: of each direction so much is taken in as can be
//! handed on.

mod waiting;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use slackline_units::{Pending, Span, Time, Told, VcpuId};

use crate::dispatcher::{DispatcherError, wait_for};
use crate::live_host::LiveHost;

pub use waiting::WAITS;
use waiting::Waiting;

/// How often a guest is looked for that is not there.
const AGAIN: Span = Span::from_ms(50);
/// How much is taken in at a time, in bytes.
const READ: usize = 1 << 16;

/// Why nothing can be handed on there.
#[derive(Debug, thiserror::Error)]
#[error("cannot run a relay at {}: {source}", path.display())]
pub struct RelayError {
    /// The path of the socket.
    pub path: PathBuf,
    /// What is wrong with it.
    pub source: io::Error,
}

/// What has gone through a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// To whom.
    pub name: String,
    /// Where whoever runs it listens.
    pub guest: PathBuf,
    /// When that was first there; none if it never was.
    pub connected: Option<Time>,
    /// How often something went to the guest.
    pub inward: u64,
    /// How often something came from it.
    pub outward: u64,
    /// How often what waited was not answered within [`WAITS`].
    pub unanswered: u64,
}

/// What a relay and its session both have.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) vcpu: VcpuId,
    is_gone: AtomicBool,
    relayed: Mutex<Relayed>,
}

impl Shared {
    /// The guest leaves.
    pub(crate) fn end(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// What has gone through.
    pub(crate) fn relayed(&self) -> Relayed {
        self.relayed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A relay at work.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    relayed: Relayed,
    address: SocketAddrUnix,
    listener: Listener,
    guest: Option<OwnedFd>,
    outside: Option<OwnedFd>,
    /// What has been taken in and not handed on.
    inward: Vec<u8>,
    outward: Vec<u8>,
    /// When the guest is looked for again.
    again: Time,
    waiting: Waiting,
}

/// A socket that is there as long as this is.
struct Listener(UnixListener, PathBuf);

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.1);
    }
}

/// What became of taking something in.
enum Taken {
    Some,
    None,
    /// The other end has gone.
    Gone,
}

impl Relay {
    /// Others find the guest of this vCPU at `outside` from now on. A socket that somebody left
    /// there is taken away.
    pub(crate) fn new(
        name: String,
        vcpu: VcpuId,
        (guest, outside): (&Path, &Path),
    ) -> Result<Relay, RelayError> {
        let address = SocketAddrUnix::new(guest)
            .map_err(|error| RelayError { path: guest.into(), source: error.into() })?;
        let cannot = |source| RelayError { path: outside.into(), source };
        if outside.symlink_metadata().is_ok_and(|it| it.file_type().is_socket()) {
            std::fs::remove_file(outside).map_err(cannot)?;
        }
        let listener = UnixListener::bind(outside).map_err(cannot)?;
        let listener = Listener(listener, outside.into());
        listener.0.set_nonblocking(true).map_err(cannot)?;
        let (guest, connected) = (guest.into(), None);
        let relayed = Relayed { name, guest, connected, inward: 0, outward: 0, unanswered: 0 };
        let is_gone = AtomicBool::new(false);
        let shared = Shared { vcpu, is_gone, relayed: Mutex::new(relayed.clone()) };
        Ok(Relay {
            shared: Arc::new(shared),
            relayed,
            address,
            listener,
            guest: None,
            outside: None,
            inward: Vec::new(),
            outward: Vec::new(),
            again: Time::START,
            waiting: Waiting::default(),
        })
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Hands on until the host is over, or the guest has left.
    pub(crate) fn run(mut self, host: &LiveHost) -> Result<(), DispatcherError> {
        let vcpu = self.shared.vcpu;
        while !host.is_over() && !self.shared.is_gone.load(Ordering::Relaxed) {
            let told = |now, waiting: &mut Waiting| match waiting.news(now) {
                Some((items, asked)) => {
                    let nothing = Pending::nothing(vcpu.domain());
                    host.tell(vcpu, &Told::Pending(Pending { items, asked, ..nothing }))
                }
                None => Ok(()),
            };
            let now = host.now();
            self.come_and_go(now);
            // It is told before it is handed on, so that the guest has a CPU when it is there.
            self.take_in(now);
            told(now, &mut self.waiting)?;
            self.hand_on(now);
            told(host.now(), &mut self.waiting)?;
            self.count();
            let until = self.waiting.due().map_or(now + AGAIN, |due| due.min(now + AGAIN));
            wait_for(&mut self.polled(), until.since(host.now()));
        }
        Ok(())
    }

    /// Looks for the guest, and lets others in: one at a time.
    fn come_and_go(&mut self, now: Time) {
        if self.guest.is_none() && self.again <= now {
            self.again = now + AGAIN;
            self.guest = connected(&self.address).ok();
            if self.guest.is_some() {
                self.relayed.connected.get_or_insert(now);
            }
        }
        if self.outside.is_none()
            && let Ok((stream, _)) = self.listener.0.accept()
        {
            self.outside = stream.set_nonblocking(true).is_ok().then(|| stream.into());
        }
    }

    /// Takes in what comes, where what came before has been handed on.
    fn take_in(&mut self, now: Time) {
        if let (Some(guest), true) = (&self.guest, self.outward.is_empty()) {
            match taken_in(guest, &mut self.outward) {
                Taken::Some => {
                    self.relayed.outward += 1;
                    self.waiting.answered(now);
                }
                Taken::None => {}
                Taken::Gone => self.part(now),
            }
        }
        if let (Some(outside), true, true) =
            (&self.outside, self.guest.is_some(), self.inward.is_empty())
        {
            match taken_in(outside, &mut self.inward) {
                Taken::Some => {
                    self.relayed.inward += 1;
                    self.waiting.came(now);
                }
                Taken::None => {}
                Taken::Gone => self.outside = None,
            }
        }
    }

    /// Hands on what has been taken in. What a guest says to nobody is lost.
    fn hand_on(&mut self, now: Time) {
        if let Some(guest) = &self.guest
            && handed_on(guest, &mut self.inward).is_err()
        {
            self.part(now);
        }
        match &self.outside {
            Some(outside) if handed_on(outside, &mut self.outward).is_err() => self.outside = None,
            Some(_) => {}
            None => self.outward.clear(),
        }
    }

    /// The guest has gone: so has what waited for it, and whoever was outside notices.
    fn part(&mut self, now: Time) {
        (self.guest, self.outside) = (None, None);
        self.inward.clear();
        self.outward.clear();
        self.waiting.gone(now);
    }

    fn count(&mut self) {
        self.relayed.unanswered = self.waiting.unanswered;
        let mut relayed = self.shared.relayed.lock().unwrap_or_else(PoisonError::into_inner);
        relayed.clone_from(&self.relayed);
    }

    /// For whom to wait: an end of which nothing is wanted now may have gone, and would be noticed
    /// again and again.
    fn polled(&self) -> Vec<PollFd<'_>> {
        let wants = |reads: bool, writes: bool| {
            let flag = |is: bool, flag| if is { flag } else { PollFlags::empty() };
            flag(reads, PollFlags::IN) | flag(writes, PollFlags::OUT)
        };
        let of_guest = wants(self.outward.is_empty(), !self.inward.is_empty());
        let may_read = self.guest.is_some() && self.inward.is_empty();
        let of_outside = wants(may_read, !self.outward.is_empty());
        let mut ends = vec![(self.guest.as_ref(), of_guest), (self.outside.as_ref(), of_outside)];
        ends.retain(|(_, wants)| !wants.is_empty());
        let ends = ends.into_iter().filter_map(|(end, wants)| Some((end?.as_fd(), wants)));
        let comes = self.outside.is_none().then(|| (self.listener.0.as_fd(), PollFlags::IN));
        ends.chain(comes).map(|(fd, wants)| PollFd::from_borrowed_fd(fd, wants)).collect()
    }
}

fn connected(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, address).map(|()| socket)
}

fn taken_in(from: &OwnedFd, into: &mut Vec<u8>) -> Taken {
    let mut bytes = [0; READ];
    match rustix::io::read(from, &mut bytes) {
        Ok(count @ 1..) => {
            into.extend_from_slice(&bytes[..count]);
            Taken::Some
        }
        Err(Errno::AGAIN | Errno::INTR) => Taken::None,
        Ok(0) | Err(_) => Taken::Gone,
    }
}

fn handed_on(to: &OwnedFd, bytes: &mut Vec<u8>) -> rustix::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    match rustix::net::send(to, bytes, rustix::net::SendFlags::NOSIGNAL) {
        Ok(count) => drop(bytes.drain(..count)),
        Err(Errno::AGAIN | Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
