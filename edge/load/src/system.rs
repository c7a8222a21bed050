//! Tasks of a VM with devices, as a real process. Each task is a thread. The operating system, disk
//! and network are those of this host, with their real costs.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use rustix::event::{PollFd, PollFlags};
use slackline_scenario::io::DeviceStep;
use slackline_scenario::{Purpose, Step, Stream, Task};
use slackline_units::{DomId, Time};

use crate::clock::{monotonic, thread_time};
use crate::disk::Disk;
use crate::done::{LoadResults, TransferCounter};
use crate::end::End;
use crate::job::{Note, Ports, Reporter};
use crate::task::{TaskContext, Worker};
use crate::{LoadError, Options, net, outside};

/// Parameters of a system with devices.
#[derive(Clone, Debug)]
pub struct SystemParameters {
    /// Tasks of the system, one thread each.
    pub tasks: Vec<Task>,
    /// Seed of all random draws.
    pub seed: u64,
    /// Domain (VM) of the tasks. The random draws of a task depend on the domain, the seed and the
    /// number of the task.
    pub domain: DomId,
    /// Maximum number of connections that wait to be accepted.
    pub connections: usize,
    /// Kinds of clients that connect to the system.
    pub from: SystemClients,
    /// Port on which the system listens. Zero for any free port.
    pub port: u16,
    /// Address of the file server for the tasks. `None` if the system starts its own file server.
    pub file_server: Option<SocketAddr>,
    /// Folder for the temporary file that the tasks read.
    pub folder: PathBuf,
}

/// Kinds of clients for which a system listens. A system also listens if one of its own tasks
/// accepts requests or sends a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemClients {
    /// True if clients send HTTP requests or pings. Pings that no task waits for are answered at
    /// once.
    pub requests: bool,
    /// True if clients send a stream to the system, which discards it.
    pub inward: bool,
    /// True if clients receive a stream from the system.
    pub outward: bool,
}

/// Runs the tasks. When everything is set up, calls `ready` once with the ports.
///
/// # Errors
/// If the system cannot listen on a port, if a file or a thread cannot be created, or if a task
/// cannot continue.
pub fn serve(
    serving: &SystemParameters,
    options: Options,
    ready: &mut dyn FnMut(Ports),
) -> Result<LoadResults, LoadError> {
    let began = monotonic();
    let origin = options.start.unwrap_or(began);
    let at = options.limit.map_or(Time::NEVER, |limit| origin.after(limit));
    let end = End::of_many(at, options.stop)?;
    let notes = Reporter::new(options.jobs)?;
    let has = |wanted: fn(&DeviceStep) -> bool| {
        let mut steps = serving.tasks.iter().flat_map(|task| &task.program.steps);
        steps.any(|step| matches!(step, Step::Device(step) if wanted(step)))
    };
    let accepts = has(|step| matches!(step, DeviceStep::Accept));
    let reads = has(|step| matches!(step, DeviceStep::Read { .. }));
    let asks = has(|step| matches!(step, DeviceStep::Ask { .. }));
    let sends = has(|step| matches!(step, DeviceStep::Send { .. }));
    let (from, port, waiting) = (serving.from, serving.port, serving.connections);
    let maybe = |wanted: bool| wanted.then(|| net::listener(port, waiting)).transpose();
    let requests = (accepts || from.requests).then(|| net::requests(port, waiting)).transpose()?;
    let (inward, outward) = (maybe(from.inward)?, maybe(sends || from.outward)?);
    let own_files = (asks && serving.file_server.is_none()).then(|| net::listener(0, waiting));
    let own_files = own_files.transpose()?;
    let of = |listener: &Option<TcpListener>| listener.as_ref().map_or(Ok(0), net::port_of);
    let tcp = requests.as_ref().map_or(Ok(0), |(tcp, _)| net::port_of(tcp))?;
    let ports = Ports { requests: tcp, inward: of(&inward)?, outward: of(&outward)? };
    let file_server = match &own_files {
        Some(files) => Some(net::here(net::port_of(files)?)),
        None => serving.file_server,
    };
    let disk = reads.then(|| Disk::new(&serving.folder)).transpose()?;
    let is_direct = disk.as_ref().map(|disk| disk.is_direct);
    let shared =
        TaskContext { end: &end, notes: &notes, requests, outward, disk, file_server, origin };
    // A background thread serves pings that no task waits for, and streams.
    let pings = shared.requests.as_ref().filter(|_| !accepts).map(|(_, udp)| udp);
    let beside = BackgroundSockets { pings, inward: inward.as_ref(), files: own_files.as_ref() };
    let mut tell = || {
        ready(ports);
        notes.report(Note::Ready(ports))
    };
    let mut done = run(serving, &shared, &beside, &mut tell)?;
    done.elapsed = monotonic().since(began.max(origin));
    done.is_direct = is_direct;
    done.dropped = notes.dropped();
    Ok(done)
}

/// Sockets that background threads serve: pings that no task waits for, incoming streams, and
/// requests for files.
struct BackgroundSockets<'a> {
    pings: Option<&'a UdpSocket>,
    inward: Option<&'a TcpListener>,
    files: Option<&'a TcpListener>,
}

type Body<'a> = Box<dyn FnOnce() -> Result<LoadResults, LoadError> + Send + 'a>;

/// Starts a thread for every task except the last, reports that all run, and runs the last task on
/// the calling thread.
fn run<'a>(
    serving: &'a SystemParameters,
    shared: &'a TaskContext<'a>,
    beside: &'a BackgroundSockets<'a>,
    tell: &mut dyn FnMut() -> Result<(), LoadError>,
) -> Result<LoadResults, LoadError> {
    let end = shared.end;
    let left = AtomicUsize::new(serving.tasks.len());
    let left = &left;
    let task = |(number, task): (usize, &'a Task)| -> Body<'a> {
        let entity = u64::from(serving.domain.number()) << 16 | number as u64;
        let draws = Stream::new(serving.seed, entity, Purpose::Task);
        Box::new(move || Worker::new(shared, (number, task), draws).through())
    };
    let mut tasks: Vec<Body<'_>> = serving.tasks.iter().enumerate().map(task).collect();
    let mut others: Vec<Body<'_>> = Vec::new();
    if beside.pings.is_some() || beside.inward.is_some() {
        others.push(Box::new(|| take_all(shared, beside)));
    }
    if let Some(files) = beside.files {
        others.push(Box::new(|| outside::serve_files(files, end).map(|()| LoadResults::default())));
    }
    let idle: Body<'_> = Box::new(|| {
        end.wait(&mut [], Time::NEVER)?;
        Ok(LoadResults::default())
    });
    let first = if tasks.is_empty() { others.pop().unwrap_or(idle) } else { tasks.remove(0) };
    let has_tasks = !serving.tasks.is_empty();
    // If a thread fails, or if the last task ends, all threads end.
    let ending = move |body: Body<'_>, is_task: bool| {
        let result = body();
        let was_last = is_task && left.fetch_sub(1, Ordering::Relaxed) == 1;
        if was_last || result.is_err() {
            end.is_here();
        }
        result
    };
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let rest = tasks.into_iter().map(|body| (body, true));
        for (body, is_task) in rest.chain(others.into_iter().map(|body| (body, false))) {
            match start(scope, move || ending(body, is_task)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    end.is_here();
                    return Err(error);
                }
            }
        }
        let told = tell();
        let mut result = told.and_then(|()| ending(first, has_tasks));
        if result.is_err() {
            end.is_here();
        }
        for thread in threads {
            let other = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if let Ok(done) = &mut result {
                match other {
                    Ok(other) => done.add(&other),
                    Err(error) => result = Err(error),
                }
            }
        }
        result
    })
}

fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, LoadError> {
    let thread = Builder::new().name("load".into()).spawn_scoped(scope, body);
    thread.map_err(|source| LoadError::NoThread { source })
}

/// Answers pings that no task waits for, and receives streams, until the load is over.
fn take_all(
    shared: &TaskContext<'_>,
    beside: &BackgroundSockets<'_>,
) -> Result<LoadResults, LoadError> {
    let before = thread_time();
    let mut done = LoadResults::default();
    let mut moved = TransferCounter::new(shared.notes);
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut data = vec![0; 1 << 18];
    loop {
        let beside_streams = beside.pings.map(AsFd::as_fd).into_iter();
        let beside_streams = beside_streams.chain(beside.inward.map(AsFd::as_fd));
        let fds = beside_streams.chain(streams.iter().map(AsFd::as_fd));
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        if shared.end.wait(&mut fds, Time::NEVER)? {
            break;
        }
        if let Some(udp) = beside.pings {
            let mut ping = [0; net::PING];
            while let Ok((net::PING, from)) = udp.recv_from(&mut ping) {
                done.asked += 1;
                let sent = udp.send_to(&ping, from).is_ok();
                done.answered += u64::from(sent);
                done.lost += u64::from(!sent);
            }
        }
        let mut received = 0;
        streams.retain_mut(|stream| {
            let (count, is_open) = take(stream, &mut data);
            received += count;
            is_open
        });
        done.received += received;
        moved.add(received)?;
        if let Some(listener) = beside.inward
            && let Ok((stream, _)) = listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            streams.push(stream);
        }
    }
    moved.tell()?;
    done.used = thread_time() - before;
    Ok(done)
}

/// Receives once. Returns the number of bytes, and false if the stream has ended.
fn take(stream: &mut TcpStream, data: &mut [u8]) -> (u64, bool) {
    match stream.read(data) {
        Ok(count) => (count as u64, count > 0),
        Err(error) => (0, error.kind() == std::io::ErrorKind::WouldBlock),
    }
}
