//! Relays between clients and QEMU guests. All data for a guest passes through its relay, so the
//! relay knows whether data is pending for the guest. On an unmodified host there is no other
//! source of this information.
//!
//! Data counts as pending from the moment at which the relay reads it from the client until the
//! guest sends something, for at most [`WAITS`]. If the guest sends something, it has run and has
//! received the earlier data. The relay does not interpret the data. The relay was tested only with
//! virtio-serial ports. In each direction, the relay reads more data only after it has forwarded
//! all earlier data. So a client that sends too much only fills the buffers of its own socket.

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
use slackline_units::{Pending, Span, Time, VcpuHint, VcpuId};

use crate::dispatcher::{DispatcherError, wait_for};
use crate::live_host::LiveHost;

pub use waiting::WAITS;
use waiting::Waiting;

/// Interval between attempts of a relay to connect to its guest, while the guest is not connected.
const AGAIN: Span = Span::from_ms(50);
/// Maximum number of bytes that a relay reads from a socket at a time.
const READ: usize = 1 << 16;

/// Error of setting up a relay between clients and a guest.
#[derive(Debug, thiserror::Error)]
#[error("cannot run a relay at {}: {source}", path.display())]
pub struct RelayError {
    /// Path of the socket.
    pub path: PathBuf,
    /// Error of the kernel.
    pub source: io::Error,
}

/// Statistics of a relay between clients and a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayStatistics {
    /// Name of the guest.
    pub name: String,
    /// Path of the guest's socket, on which its virtual machine monitor listens.
    pub guest: PathBuf,
    /// Time of the run at which the relay first connected to the guest's socket. `None` if it has
    /// not connected yet.
    pub connected: Option<Time>,
    /// Number of times that the relay read data for the guest from a client.
    pub inward: u64,
    /// Number of times that the relay read data from the guest.
    pub outward: u64,
    /// Number of times that the guest did not answer pending data within [`WAITS`].
    pub unanswered: u64,
}

/// State that a relay's thread shares with the session.
#[derive(Debug)]
pub(crate) struct RelayState {
    pub(crate) vcpu: VcpuId,
    /// True if the guest has left the session.
    is_gone: AtomicBool,
    relayed: Mutex<RelayStatistics>,
}

impl RelayState {
    /// Ends the relay, because the guest has left the session.
    pub(crate) fn end(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Returns the statistics of the relay so far.
    pub(crate) fn relayed(&self) -> RelayStatistics {
        self.relayed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// State of a running relay, with its sockets.
pub(crate) struct Relay {
    shared: Arc<RelayState>,
    relayed: RelayStatistics,
    address: SocketAddrUnix,
    listener: Listener,
    guest: Option<OwnedFd>,
    outside: Option<OwnedFd>,
    /// Data from the client that was not forwarded to the guest yet.
    inward: Vec<u8>,
    /// Data from the guest that was not forwarded to the client yet.
    outward: Vec<u8>,
    /// Time of the next attempt to connect to the guest.
    again: Time,
    waiting: Waiting,
}

/// A listening socket with the path of its file. The file is removed when this value is dropped.
struct Listener(UnixListener, PathBuf);

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.1);
    }
}

/// Result of reading from one of the relay's two connections.
enum ReadOutcome {
    /// Data was read from the socket.
    Some,
    /// No data has arrived on the socket yet.
    None,
    /// The guest or the client has closed the connection.
    Gone,
}

impl Relay {
    /// Creates a relay to the guest of a vCPU. Clients connect to the socket `outside`. If a socket
    /// file already exists at that path, it is removed first.
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
        let relayed =
            RelayStatistics { name, guest, connected, inward: 0, outward: 0, unanswered: 0 };
        let is_gone = AtomicBool::new(false);
        let shared = RelayState { vcpu, is_gone, relayed: Mutex::new(relayed.clone()) };
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

    pub(crate) fn shared(&self) -> Arc<RelayState> {
        Arc::clone(&self.shared)
    }

    /// Forwards data in both directions until the run is over or the guest has left.
    pub(crate) fn run(mut self, host: &LiveHost) -> Result<(), DispatcherError> {
        let vcpu = self.shared.vcpu;
        while !host.is_over() && !self.shared.is_gone.load(Ordering::Relaxed) {
            let told = |now, waiting: &mut Waiting| match waiting.news(now) {
                Some((items, asked)) => {
                    let nothing = Pending::nothing(vcpu.domain());
                    host.tell(vcpu, &VcpuHint::Pending(Pending { items, asked, ..nothing }))
                }
                None => Ok(()),
            };
            let now = host.now();
            self.come_and_go(now);
            // New data is reported before it is forwarded, so that the policy can give the guest a
            // CPU before the data arrives.
            self.take_in(now);
            told(now, &mut self.waiting)?;
            self.hand_on();
            told(host.now(), &mut self.waiting)?;
            self.count();
            let until = self.waiting.due().map_or(now + AGAIN, |due| due.min(now + AGAIN));
            wait_for(&mut self.polled(), until.since(host.now()));
        }
        Ok(())
    }

    /// Connects to the guest if there is no connection to it, and accepts a client if no client is
    /// connected.
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

    /// Reads new data from the client and from the guest. In each direction, reads only if all
    /// earlier data was forwarded.
    fn take_in(&mut self, now: Time) {
        if let (Some(guest), true) = (&self.guest, self.outward.is_empty()) {
            match taken_in(guest, &mut self.outward) {
                ReadOutcome::Some => {
                    self.relayed.outward += 1;
                    self.waiting.answered();
                }
                ReadOutcome::None => {}
                ReadOutcome::Gone => self.part(),
            }
        }
        if let (Some(outside), true, true) =
            (&self.outside, self.guest.is_some(), self.inward.is_empty())
        {
            match taken_in(outside, &mut self.inward) {
                ReadOutcome::Some => {
                    self.relayed.inward += 1;
                    self.waiting.came(now);
                }
                ReadOutcome::None => {}
                ReadOutcome::Gone => self.outside = None,
            }
        }
    }

    /// Forwards the data that was read. Data from a guest is dropped while no client is connected.
    fn hand_on(&mut self) {
        if let Some(guest) = &self.guest
            && handed_on(guest, &mut self.inward).is_err()
        {
            self.part();
        }
        match &self.outside {
            Some(outside) if handed_on(outside, &mut self.outward).is_err() => self.outside = None,
            Some(_) => {}
            None => self.outward.clear(),
        }
    }

    /// Handles the end of the guest's connection. Drops pending data, and closes the client's
    /// connection so that the client notices.
    fn part(&mut self) {
        (self.guest, self.outside) = (None, None);
        self.inward.clear();
        self.outward.clear();
        self.waiting.gone();
    }

    /// Copies the statistics to the state that the session can read.
    fn count(&mut self) {
        self.relayed.unanswered = self.waiting.unanswered;
        let mut relayed = self.shared.relayed.lock().unwrap_or_else(PoisonError::into_inner);
        relayed.clone_from(&self.relayed);
    }

    /// Returns the descriptors to wait for. Leaves out a connection that need neither be read nor
    /// written at present: if its peer had closed it, each wait would end immediately.
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

fn taken_in(from: &OwnedFd, into: &mut Vec<u8>) -> ReadOutcome {
    let mut bytes = [0; READ];
    match rustix::io::read(from, &mut bytes) {
        Ok(count @ 1..) => {
            into.extend_from_slice(&bytes[..count]);
            ReadOutcome::Some
        }
        Err(Errno::AGAIN | Errno::INTR) => ReadOutcome::None,
        Ok(0) | Err(_) => ReadOutcome::Gone,
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
