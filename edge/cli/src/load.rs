//! Command `slackline load`, which runs a workload or a client as a real process.

pub(crate) mod args;
mod show;
pub(crate) mod words;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackline_experiments::{file_bytes, input_bytes};
use slackline_load::client::{ClientTask, ask};
use slackline_load::guest::Guest;
use slackline_load::outside::file_server;
use slackline_load::system::{SystemClients, SystemParameters, serve};
use slackline_load::{LoadError, LoadResults, Node, Options, jobs_on};
use slackline_scenario::{Domain, NamedFile, Program, Purpose, Scenario, Stream};
use slackline_units::{DomId, Time, VcpuId};

use crate::input;
use crate::problem::Problem;
use crate::signals::{cannot_set_up, stop_signal};
use crate::terminal;
use args::{Kind, LoadArgs, PingTo};

/// Descriptor on which finished jobs are reported: standard output.
const STANDARD_OUTPUT: u32 = 1;

/// Role of the load process: a program, a system with devices, a client and so on.
enum ProcessRole {
    Program(Program, Option<Node>),
    Serving(SystemParameters),
    Guest(Guest),
    Asking(ClientTask),
    Files,
}

pub(crate) fn load(args: &LoadArgs) -> Result<(), Problem> {
    let part = part(args)?;
    let jobs = args.report_jobs.then(|| jobs_on(STANDARD_OUTPUT)).transpose()?;
    let options = Options {
        start: args.start.map(Time::from_ns),
        limit: args.length,
        jobs,
        ..Options::default()
    };
    match part {
        ProcessRole::Program(program, node) => compute(args, &program, Options { node, ..options }),
        ProcessRole::Serving(serving) => with_devices(args, options, |options| {
            Ok(serve(&serving, options, &mut |ports| {
                let ports = [ports.requests, ports.inward, ports.outward];
                for port in ports.into_iter().filter(|&port| port > 0 && !args.report_jobs) {
                    terminal::tell(&format!("listening on 127.0.0.1:{port}\n"));
                }
            })?)
        }),
        ProcessRole::Guest(guest) => with_devices(args, options, |options| {
            Ok(slackline_load::guest::play(&guest, options, &mut |port| {
                if !args.report_jobs {
                    terminal::tell(&format!("listening on 127.0.0.1:{port}\n"));
                }
            })?)
        }),
        ProcessRole::Asking(mut asking) => {
            // Requests sent before the end are still answered.
            asking.until = asking.until.or(args.length);
            let options = Options { limit: None, ..options };
            with_devices(args, options, |options| Ok(ask(&asking, options)?))
        }
        ProcessRole::Files => Ok(file_server(options)?),
    }
}

/// Runs a program that needs no devices.
fn compute(args: &LoadArgs, program: &Program, options: Options) -> Result<(), Problem> {
    let (domain, number) = args.who;
    let vcpu = VcpuId::new(0, DomId::new(domain), number);
    let draws = Stream::of_vcpu(args.seed, vcpu, Purpose::Work);
    let report = slackline_load::run(program, draws, options)?;
    if args.json {
        return terminal::print(&show::program_json(&report));
    }
    if !args.report_jobs {
        let (used, elapsed, jobs) = (report.used, report.elapsed, report.jobs);
        terminal::tell(&format!("used {used} of CPU time in {elapsed}, finished {jobs} jobs\n"));
    }
    Ok(())
}

/// Runs a load with devices, or a client. A load or client that a signal stops prints its report
/// too.
fn with_devices(
    args: &LoadArgs,
    options: Options,
    body: impl FnOnce(Options) -> Result<LoadResults, Problem>,
) -> Result<(), Problem> {
    if args.report_jobs {
        return body(options).map(drop);
    }
    let (stop, _raised) = stop_signal()?;
    let stopped = OwnedFd::from(stop.try_clone().map_err(cannot_set_up)?);
    let done = body(Options { stop: Some(stop.into()), ..options })?;
    let text = if args.json { show::json(&done) } else { show::line(&done) };
    terminal::say(&text)?;
    let mut fds = [PollFd::new(&stopped, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut fds, Some(&at_once)) {
        Ok(1..) => Err(Problem::Interrupted),
        _ => Ok(()),
    }
}

/// Returns the role that the arguments select.
fn part(args: &LoadArgs) -> Result<ProcessRole, Problem> {
    let mut keys = Keys::default();
    match &args.kind {
        Kind::Spin => keys.kind("spin"),
        Kind::Periodic { period, work, deadline, gap, jitter } => {
            keys.kind("periodic").text("period", period).text("work", work);
            keys.maybe("deadline", deadline.as_ref()).maybe("gap", gap.as_ref());
            keys.maybe("jitter", jitter.as_ref())
        }
        Kind::Interactive { compute, sleep } => {
            keys.kind("interactive").text("compute", compute).text("sleep", sleep)
        }
        Kind::Yield { compute } => keys.kind("yield").text("compute", compute),
        Kind::Clock { period, compute, offset } => {
            keys.kind("clock").text("period", period).text("compute", compute);
            keys.maybe("offset", offset.as_ref())
        }
        Kind::Bsp { compute, exchange, listen, peers } => {
            keys.kind("bsp").text("program", "load").text("compute", compute);
            keys.maybe("exchange", exchange.as_ref());
            let socket = UdpSocket::bind(listen);
            let socket = socket.map_err(|source| LoadError::NoSocket { at: *listen, source })?;
            let node = Some(node(socket, peers)?);
            return domain(&keys, None).map(|domain| ProcessRole::Program(domain.program, node));
        }
        Kind::Batch { total } => keys.kind("batch").text("total", total),
        Kind::Replay { file } => {
            keys.kind("replay").text("file", &file.display().to_string());
            let domain = domain(&keys, Some(&recorded(file)?))?;
            return Ok(ProcessRole::Program(domain.program, None));
        }
        Kind::Guest { each, agent, lies, port } => {
            let (each, port, agent, lies) = (*each, port.port, agent.clone(), *lies);
            return Ok(ProcessRole::Guest(Guest { each, port, agent, lies }));
        }
        Kind::Serving(kind) => return serving(args, kind),
        Kind::Client(kind) => return client(args, kind),
        Kind::Steps { peers, steps } => {
            let node = (!peers.is_empty()).then(|| node(own_socket()?, peers)).transpose()?;
            return Ok(ProcessRole::Program(words::program(steps)?, node));
        }
        Kind::Tasks { from, connections, files, tasks } => {
            return Ok(ProcessRole::Serving(SystemParameters {
                tasks: words::tasks(tasks)?,
                seed: args.seed,
                domain: DomId::new(args.who.0),
                connections: *connections,
                from: words::callers(from)?,
                port: 0,
                file_server: files.map(|port| ([127, 0, 0, 1], port).into()),
                folder: std::env::temp_dir(),
            }));
        }
        Kind::Caller { number, to, until, client } => {
            let draws = Stream::new(args.seed, *number, Purpose::Client);
            let (kind, until) = (words::client(client)?, *until);
            return Ok(ProcessRole::Asking(ClientTask {
                kind,
                port: *to,
                draws,
                until,
                socket: None,
                count: None,
            }));
        }
        Kind::Files => return Ok(ProcessRole::Files),
    };
    domain(&keys, None).map(|domain| ProcessRole::Program(domain.program, None))
}

/// Returns the socket that the parent process passed as standard input.
fn own_socket() -> Result<UdpSocket, Problem> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|source| LoadError::Network { source })?;
    Ok(UdpSocket::from(socket))
}

/// Returns a node of a parallel program. Checks that its peers are distinct, and that the node
/// itself is not among the peers.
fn node(socket: UdpSocket, others: &[SocketAddr]) -> Result<Node, Problem> {
    let own = socket.local_addr().map_err(|source| LoadError::Network { source })?;
    for (index, other) in others.iter().enumerate() {
        let message = match others[..index].contains(other) {
            true => format!("--peer {other} is given twice"),
            false if *other == own => format!("--peer {other} is the address of this node"),
            false => continue,
        };
        let hint = "name every other node once".to_owned();
        return Err(Problem::BadOption { message, hint: Some(hint) });
    }
    Ok(Node { socket, others: others.to_vec() })
}

fn serving(args: &LoadArgs, kind: &args::Serving) -> Result<ProcessRole, Problem> {
    let mut keys = Keys::default();
    let (mut listens_on, mut reads_in) = (0, None);
    match kind {
        args::Serving::WebServer { each, response, connections, processes, read, .. } => {
            keys.kind("web-server").text("each", each).text("response", response);
            keys.number("connections", *connections).number("processes", *processes);
            keys.maybe("read", read.as_ref())
        }
        args::Serving::Echo { each, .. } => keys.kind("echo").text("each", each),
        args::Serving::DiskRead { each, block, readers, .. } => {
            keys.kind("disk-read").text("each", each).text("block", block);
            keys.number("readers", *readers)
        }
        args::Serving::Send { each, block, .. } => {
            keys.kind("send").text("each", each).text("block", block)
        }
        args::Serving::Sink { .. } => keys.kind("sink"),
        args::Serving::Compile { jobs, each, read, wait, total } => {
            keys.kind("compile").number("jobs", *jobs).text("each", each).text("read", read);
            keys.maybe("wait", wait.as_ref()).maybe("total", total.as_ref())
        }
    };
    if let args::Serving::WebServer { folder, .. } | args::Serving::DiskRead { folder, .. } = kind {
        reads_in.clone_from(&folder.folder);
    }
    if let args::Serving::WebServer { port, .. }
    | args::Serving::Echo { port, .. }
    | args::Serving::Send { port, .. }
    | args::Serving::Sink { port } = kind
    {
        listens_on = port.port;
    }
    let domain = domain(&keys, None)?;
    let system = domain.system.expect("a load with devices has a system");
    let inward = matches!(kind, args::Serving::Sink { .. });
    Ok(ProcessRole::Serving(SystemParameters {
        tasks: system.tasks,
        seed: args.seed,
        domain: DomId::new(args.who.0),
        connections: system.connections,
        from: SystemClients { inward, ..SystemClients::default() },
        port: listens_on,
        file_server: None,
        folder: reads_in.unwrap_or_else(std::env::temp_dir),
    }))
}

fn client(args: &LoadArgs, kind: &args::Client) -> Result<ProcessRole, Problem> {
    let mut keys = Keys::default();
    let mut socket = None;
    let (port, count) = match kind {
        args::Client::Httperf { rate, timeout, to, count } => {
            keys.kind("httperf").number("rate", Some(*rate)).maybe("timeout", timeout.as_ref());
            (to.to, count.count)
        }
        args::Client::Ab { at_once, think, to, count } => {
            keys.kind("ab").number("at_once", Some(*at_once)).maybe("think", think.as_ref());
            (to.to, count.count)
        }
        args::Client::Ping { every, rate, to, count } => {
            keys.kind("ping").maybe("every", every.as_ref()).number("rate", *rate);
            let port = match to {
                PingTo::Port(port) => *port,
                PingTo::Socket(path) => {
                    socket = Some(path.clone());
                    0
                }
            };
            (port, count.count)
        }
        args::Client::Ttcp { way, window, gap, to } => {
            keys.kind("ttcp").maybe("way", way.as_ref()).text("window", window);
            keys.maybe("gap", gap.as_ref());
            (to.to, None)
        }
    };
    let text = format!(
        "{HEAD}[driver]\ndomain = \"load\"\n[[domain]]\nname = \"load\"\n\
         [[client]]\nto = \"load\"\n{}\n",
        keys.0.join("\n")
    );
    let mut io = scenario(&text, None)?.io.expect("the scenario has a driver");
    let kind = io.clients.remove(0).kind;
    let draws = Stream::new(args.seed, 0, Purpose::Client);
    Ok(ProcessRole::Asking(ClientTask { kind, port, socket, draws, until: None, count }))
}

/// Lines of a scenario's TOML, each a key with its value.
#[derive(Default)]
struct Keys(Vec<String>);

impl Keys {
    fn kind(&mut self, kind: &str) -> &mut Keys {
        self.text("kind", kind)
    }

    fn text(&mut self, key: &str, value: &str) -> &mut Keys {
        self.0.push(format!("{key} = {value:?}"));
        self
    }

    /// Adds a key if it has a value.
    fn maybe(&mut self, key: &str, value: Option<&String>) -> &mut Keys {
        if let Some(value) = value {
            self.text(key, value);
        }
        self
    }

    fn number(&mut self, key: &str, value: Option<u64>) -> &mut Keys {
        self.0.extend(value.map(|value| format!("{key} = {value}")));
        self
    }
}

/// First lines of a scenario that is generated to parse a workload.
const HEAD: &str = "title = \"load\"\nlength = \"1s\"\npolicy = { name = \"round-robin\" }\n";

/// Reads the file of the workload `replay`.
fn recorded(file: &Path) -> Result<NamedFile, Problem> {
    let bytes = match file == Path::new(input::STANDARD_INPUT) {
        true => input_bytes(std::io::stdin()),
        false => file_bytes(file),
    };
    let unreadable = |reason| Problem::BadOption {
        message: format!("cannot read {}: {reason}", file.display()),
        hint: Some("check the file name".into()),
    };
    bytes.map(Ok).map_err(unreadable)
}

/// Parses a workload with these keys as part of a generated scenario. So the keys have the same
/// meaning and the same error messages as in a scenario.
fn domain(keys: &Keys, file: Option<&NamedFile>) -> Result<Domain, Problem> {
    let work = keys.0.join(", ");
    // The domain has two vCPUs, since a node needs a peer.
    let domain = format!("[[domain]]\nname = \"load\"\nvcpus = 2\nwork = {{ {work} }}\n");
    let plain = ["spin", "periodic", "interactive", "batch", "replay", "yield", "clock", "bsp"];
    let is_plain = plain.iter().any(|kind| keys.0[0] == format!("kind = {kind:?}"));
    let driver = if is_plain { "" } else { "[driver]\ndomain = \"load\"\n" };
    let mut scenario = scenario(&format!("{HEAD}{driver}{domain}"), file)?;
    Ok(scenario.domains.remove(0))
}

fn scenario(text: &str, file: Option<&NamedFile>) -> Result<Scenario, Problem> {
    let scenario = Scenario::with_bytes(text, &|_| {
        file.cloned().unwrap_or_else(|| Err("the command line names no file".to_owned()))
    });
    scenario.map_err(|error| Problem::BadOption {
        message: error.kind.to_string(),
        hint: error.hint().or_else(|| Some("see `slackline load --help`".into())),
    })
}
