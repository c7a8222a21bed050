//! A process that behaves like a guest of a virtual machine.
//!
//! One thread is the vCPU. It runs an urgent server, and a busy task that never ends. The other
//! thread represents the devices: it receives packets and puts them in a ring, as a virtual machine
//! monitor does. A host that connects to the guest's socket receives reports with the state of both
//! tasks and the number of packets in the ring.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use slackline_units::frame::{Class, Frame, Says};
use slackline_units::{Span, TASKS, Time, Urgency};

use crate::clock::{monotonic, thread_time};
use crate::done::LoadResults;
use crate::end::End;
use crate::spin::{SpinEnd, Spinner};
use crate::{LoadError, Options, net};

/// Parameters of the guest.
#[derive(Clone, Debug)]
pub struct Guest {
    /// CPU time that the server uses for each request.
    pub each: Span,
    /// Port on which packets are received. Zero for any free port.
    pub port: u16,
    /// Unix socket on which the guest reports the states of its tasks. If `None`, the guest sends
    /// no reports.
    pub agent: Option<PathBuf>,
    /// True if the guest always reports its server as runnable, even while the server waits.
    pub lies: bool,
}

/// Name of the vCPU's thread, as Cloud Hypervisor names it.
const VCPU: &str = "vcpu0";
/// Time for which the busy task computes between two checks of the packet ring.
const LOOK: Span = Span::from_us(20);
/// Interval at which the guest repeats the report "the server is runnable" for as long as the
/// server stays runnable.
const AGAIN: Span = Span::from_ms(40);
/// Urgency that the guest reports for its server. It is the urgency of a task with `SCHED_FIFO` and
/// priority 50.
const SERVER: Urgency = Urgency(49);

/// Runs the guest to its end. `ready` is called once with the port on which the guest receives
/// packets.
///
/// # Errors
/// If a socket, another descriptor or a thread cannot be created, or if waiting with `poll` fails.
pub fn play(
    guest: &Guest,
    options: Options,
    ready: &mut dyn FnMut(u16),
) -> Result<LoadResults, LoadError> {
    let began = monotonic();
    let at = options.limit.map_or(Time::NEVER, |limit| began.after(limit));
    let end = End::of_many(at, options.stop)?;
    let socket = UdpSocket::bind(net::here(guest.port))
        .map_err(|source| LoadError::NoPort { port: guest.port, source })?;
    let network = |source| LoadError::Network { source };
    socket.set_nonblocking(true).map_err(network)?;
    let port = socket.local_addr().map_err(network)?.port();
    let listener = guest.agent.as_deref().map(listen).transpose()?;
    let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let kick = kick.map_err(|error| network(error.into()))?;
    let shared = GuestState {
        socket,
        kick,
        taken: AtomicU32::new(0),
        answered: AtomicU32::new(0),
        is_over: AtomicBool::new(false),
        host: Mutex::new(None),
        hosts: AtomicU32::new(0),
    };
    let (ring, requests) = channel();
    let done = std::thread::scope(|scope| {
        let vcpu = Vcpu::new(&shared, guest, requests);
        let vcpu = Builder::new().name(VCPU.into()).spawn_scoped(scope, move || vcpu.run());
        let vcpu = vcpu.map_err(|source| LoadError::NoThread { source })?;
        ready(port);
        let result = devices(&shared, listener.as_ref().map(|(socket, _)| socket), &ring, &end);
        shared.is_over.store(true, Ordering::Relaxed);
        let done = vcpu.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.map(|()| done)
    })?;
    Ok(LoadResults { elapsed: monotonic().since(began), ..done })
}

/// A received packet, and the address to which its answer is sent.
type Request = ([u8; net::PING], SocketAddr);

/// State shared by the vCPU thread and the device thread.
struct GuestState {
    socket: UdpSocket,
    /// Event descriptor with which the vCPU thread wakes the device thread after taking a packet.
    kick: OwnedFd,
    /// Number of packets that the vCPU thread has taken out of the ring.
    taken: AtomicU32,
    answered: AtomicU32,
    is_over: AtomicBool,
    /// Connection to the host that connected last. `None` if no host has connected. The field
    /// `hosts` counts all hosts that have connected so far.
    host: Mutex<Option<Arc<UnixStream>>>,
    hosts: AtomicU32,
}

/// A socket file. The file is removed when this value is dropped.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens at a path. A socket file that already exists there is removed first.
fn listen(path: &Path) -> Result<(UnixListener, SocketFile), LoadError> {
    let no_agent = |source| LoadError::NoAgent { path: path.into(), source };
    if path.symlink_metadata().is_ok_and(|it| it.file_type().is_socket()) {
        std::fs::remove_file(path).map_err(no_agent)?;
    }
    let listener = UnixListener::bind(path).map_err(no_agent)?;
    listener.set_nonblocking(true).map_err(no_agent)?;
    Ok((listener, SocketFile(path.into())))
}

/// Sends the reports of one thread of the guest to the host.
struct ThreadReports<'a> {
    shared: &'a GuestState,
    host: Option<Arc<UnixStream>>,
    known: u32,
    sequence: u32,
    said: Option<(Says, Time)>,
}

impl ThreadReports<'_> {
    fn new(shared: &GuestState) -> ThreadReports<'_> {
        ThreadReports { shared, host: None, known: 0, sequence: 0, said: None }
    }

    /// Sends a report if it differs from the last report, or if it is time to repeat the last
    /// report.
    fn say(&mut self, says: Says) {
        let hosts = self.shared.hosts.load(Ordering::Acquire);
        if hosts != self.known {
            self.known = hosts;
            let host = self.shared.host.lock().unwrap_or_else(PoisonError::into_inner);
            self.host.clone_from(&host);
            self.said = None;
        }
        let Some(host) = &self.host else { return };
        let now = monotonic();
        let is_told = self
            .said
            .is_some_and(|(said, at)| said == says && (!says.claims() || now.since(at) < AGAIN));
        if is_told {
            return;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let frame = Frame { vcpu: 0, sequence: self.sequence, says };
        // A report that is not delivered expires and is repeated.
        let _ = rustix::io::write(&**host, &frame.to_bytes());
        self.said = Some((says, now));
    }
}

/// Runs the device thread: puts packets in the ring, and accepts connections from hosts.
fn devices(
    shared: &GuestState,
    listener: Option<&UnixListener>,
    ring: &Sender<Request>,
    end: &End,
) -> Result<(), LoadError> {
    let mut talk = ThreadReports::new(shared);
    let mut received: u32 = 0;
    loop {
        let items = received.wrapping_sub(shared.taken.load(Ordering::Acquire));
        let asked = shared.answered.load(Ordering::Relaxed);
        talk.say(Says::Pending { items, asked });
        let until = if items > 0 { monotonic().after(AGAIN) } else { Time::NEVER };
        let fds = [shared.socket.as_fd(), shared.kick.as_fd()].into_iter();
        let fds = fds.chain(listener.map(AsFd::as_fd));
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        if end.wait(&mut fds, until)? {
            return Ok(());
        }
        let _ = rustix::io::read(&shared.kick, &mut [0_u8; 8]);
        let mut ping = [0; net::PING];
        while let Ok((net::PING, from)) = shared.socket.recv_from(&mut ping) {
            received = received.wrapping_add(1);
            // The vCPU thread lives as long as this thread.
            let _ = ring.send((ping, from));
        }
        if let Some(Ok((host, _))) = listener.map(UnixListener::accept)
            && host.set_nonblocking(true).is_ok()
        {
            *shared.host.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(host));
            shared.hosts.fetch_add(1, Ordering::Release);
        }
    }
}

/// The vCPU thread, and the two tasks that it runs: an urgent server and a busy task.
struct Vcpu<'a> {
    shared: &'a GuestState,
    guest: &'a Guest,
    requests: Receiver<Request>,
    talk: ThreadReports<'a>,
    spinner: Spinner,
}

impl<'a> Vcpu<'a> {
    fn new(shared: &'a GuestState, guest: &'a Guest, requests: Receiver<Request>) -> Vcpu<'a> {
        Vcpu { shared, guest, requests, talk: ThreadReports::new(shared), spinner: Spinner::new() }
    }

    fn run(mut self) -> LoadResults {
        let before = thread_time();
        let mut done = LoadResults::default();
        while !self.shared.is_over.load(Ordering::Relaxed) {
            let Ok((ping, from)) = self.requests.try_recv() else {
                self.say(false, done.asked > 0);
                self.compute(LOOK);
                continue;
            };
            done.asked += 1;
            self.say(true, true);
            self.shared.taken.fetch_add(1, Ordering::Release);
            let _ = rustix::io::write(&self.shared.kick, &1_u64.to_ne_bytes());
            self.compute(self.guest.each);
            let sent = self.shared.socket.send_to(&ping, from).is_ok();
            done.answered += u64::from(sent);
            done.lost += u64::from(!sent);
            self.shared.answered.fetch_add(1, Ordering::Relaxed);
        }
        done.used = thread_time() - before;
        done
    }

    /// Reports the guest's two tasks to the host: the server, and a task that is always runnable.
    /// `serves` is true if the server is runnable. `woken` is true if I/O caused the server's last
    /// wake-up. A guest that lies always reports the server as runnable.
    fn say(&mut self, serves: bool, woken: bool) {
        let serves = u8::from(serves || self.guest.lies);
        let class = |urgency, runnable, woken| {
            Some(Class { urgency, runnable, blocked: 1 - runnable, woken })
        };
        let mut classes = [None; TASKS];
        classes[0] = class(SERVER, serves, woken);
        classes[2] = class(Urgency::ORDINARY, 1, false);
        self.talk.say(Says::Classes(classes));
    }

    fn compute(&mut self, length: Span) {
        let due = thread_time() + length;
        // The end is never reached, so `spin` returns when the CPU time is used.
        let (SpinEnd::Due | SpinEnd::End) = self.spinner.spin(due, Time::NEVER);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The guest answers a ping. It reports three things in turn: a packet is pending, its server
    /// runs, and its server is blocked again after I/O woke it.
    #[test]
    fn load_process_acting_as_guest_answers_packets_and_reports_tasks() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent");
        let (agent, lies) = (Some(path.clone()), false);
        let guest = Guest { each: Span::from_us(50), port: 0, agent, lies };
        let (stop, stopped) = UnixStream::pair().expect("two sockets");
        let (tell, port) = channel();
        let options = Options { stop: Some(stopped.into()), ..Options::default() };
        let plays = std::thread::spawn(move || {
            play(&guest, options, &mut |port| tell.send(port).expect("the other side listens"))
        });
        let port = port.recv().expect("a port");
        let mut host = UnixStream::connect(&path).expect("the other side listens");
        host.set_read_timeout(Some(std::time::Duration::from_mins(1))).expect("a timeout");
        let mut next = || {
            let mut bytes = [0; slackline_units::frame::FRAME];
            host.read_exact(&mut bytes).expect("a frame");
            Frame::read(&bytes).expect("a frame").says
        };
        let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        // Both threads send a report before any packet arrives.
        let mut at_first = [next(), next()];
        at_first.sort_by_key(|says| matches!(says, Says::Classes(_)));
        assert_eq!(at_first[0], Says::Pending { items: 0, asked: 0 });
        let server = |says: &Says| match says {
            Says::Classes(classes) => classes[0].map(|it| (it.runnable, it.blocked, it.woken)),
            Says::Pending { .. } => None,
        };
        assert_eq!(server(&at_first[1]), Some((0, 1, false)));
        client.send_to(b"12345678", ("127.0.0.1", port)).expect("the datagram is sent");
        let mut answer = [0; 8];
        assert_eq!(client.recv(&mut answer).expect("an answer"), 8);
        assert_eq!(&answer, b"12345678");
        let (mut waits, mut serves) = (Vec::new(), Vec::new());
        while serves.last() != Some(&(0, 1, true)) || waits.last() == Some(&1) {
            match next() {
                Says::Pending { items, .. } => waits.push(items),
                says => serves.extend(server(&says)),
            }
        }
        // The device thread reports a pending packet only if the vCPU has not taken the packet yet.
        waits.dedup();
        serves.dedup();
        assert!([&[1, 0][..], &[0], &[]].contains(&&waits[..]), "{waits:?}");
        assert!(serves.ends_with(&[(1, 0, true), (0, 1, true)]), "{serves:?}");
        drop(stop);
        let done = plays.join().expect("no panic").expect("the guest runs");
        assert_eq!((done.asked, done.answered), (1, 1));
        assert!(!path.exists());
    }
}
