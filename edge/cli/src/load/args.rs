//! What `slackline load` is told: the keys of a scenario, as options.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use slackline_units::Span;

use crate::input::file;
use crate::parse::span;

#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(subcommand)]
    pub(crate) kind: Kind,
    /// End after so long.
    #[arg(long, global = true, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// The seed of the draws.
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Whose draws to make: a domain and a vCPU by number.
    #[arg(long, global = true, value_parser = who, default_value = "0.0", hide = true)]
    pub(crate) who: (u32, u16),
    /// When to begin, in nanoseconds of the monotonic clock.
    #[arg(long, global = true, hide = true)]
    pub(crate) start: Option<u64>,
    /// Print what came of it as JSON.
    #[arg(long, global = true, conflicts_with = "report_jobs")]
    pub(crate) json: bool,
    /// Write finished jobs to standard output, as `run` wants them.
    #[arg(long, global = true, hide = true)]
    pub(crate) report_jobs: bool,
}

/// The kinds. Lengths of time may be drawn: `4ms`, `uniform 1ms 3ms`, `exponential 4ms`.
#[derive(Debug, Subcommand)]
pub(crate) enum Kind {
    /// Use all the CPU time there is.
    Spin,
    /// Do a piece of work in every period.
    Periodic {
        /// How often work is released.
        #[arg(long)]
        period: String,
        /// How much CPU time each piece of work takes.
        #[arg(long)]
        work: String,
        /// How long after its release it must be done [default: the period].
        #[arg(long)]
        deadline: Option<String>,
    },
    /// Compute and sleep in turn.
    Interactive {
        /// How much CPU time to use at a time.
        #[arg(long)]
        compute: String,
        /// How long to sleep then.
        #[arg(long)]
        sleep: String,
    },
    /// Use a total of CPU time, then end.
    Batch {
        /// How much.
        #[arg(long)]
        total: String,
    },
    /// Compute, and give the rest of the turn away, over and over.
    Yield {
        /// How much CPU time to use at a time.
        #[arg(long)]
        compute: String,
    },
    /// Compute from instants of the monotonic clock on; those that pass meanwhile are left out.
    Clock {
        /// How far one instant is from the next.
        #[arg(long)]
        period: String,
        /// How much CPU time to use at a time.
        #[arg(long)]
        compute: String,
        /// How long after the multiples of the period the instants are [default: 0].
        #[arg(long)]
        offset: Option<String>,
    },
    /// Compute, exchange messages with the other nodes of a parallel program, wait for all of them,
    /// and so on: a node of it.
    Bsp {
        /// How much CPU time each round computes.
        #[arg(long)]
        compute: String,
        /// How much CPU time the exchange takes beside sending [default: none].
        #[arg(long)]
        exchange: Option<String>,
        /// Where this node is told that others have come: an address and a UDP port.
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: SocketAddr,
        /// Where another node listens; once for each.
        #[arg(long = "peer", value_name = "ADDRESS:PORT", required = true)]
        peers: Vec<SocketAddr>,
    },
    /// Run and block as recorded.
    Replay {
        /// A file of lines `run_ns,block_ns`, as `slackline show --runs` writes it; `-` is standard
        /// input.
        #[arg(long, value_parser = file)]
        file: PathBuf,
    },
    /// Be a guest under a policy that listens: one thread, `vcpu0`, computes for ever and answers
    /// pings before that; another is its devices. It tells of both (`slackline help agent`).
    Guest {
        /// How much CPU time each answer takes.
        #[arg(long, value_parser = span)]
        each: Span,
        /// The socket to tell at [default: it tells nothing].
        #[arg(long, value_name = "SOCKET")]
        agent: Option<PathBuf>,
        /// Tell that there is always something urgent to do.
        #[arg(long, requires = "agent")]
        lies: bool,
        #[command(flatten)]
        port: Port,
    },
    #[command(flatten)]
    Serving(Serving),
    #[command(flatten)]
    Client(Client),
    /// What the workload of a scenario says, step by step, as `run` hands it over.
    #[command(hide = true)]
    Steps {
        /// Where other nodes of a parallel program are; standard input is this one's socket.
        #[arg(long = "peer")]
        peers: Vec<SocketAddr>,
        /// The steps.
        steps: Vec<String>,
    },
    /// What the tasks of a domain say, as `run` hands them over.
    #[command(hide = true)]
    Tasks {
        /// Who talks to it.
        #[arg(long, value_delimiter = ',')]
        from: Vec<String>,
        #[arg(long)]
        connections: usize,
        /// The port of the server that it asks for files.
        #[arg(long)]
        files: Option<u16>,
        /// The tasks, each with its steps.
        tasks: Vec<String>,
    },
    /// What a client of a scenario says, as `run` hands it over.
    #[command(hide = true)]
    Caller {
        /// Its number, which says what it draws.
        #[arg(long)]
        number: u64,
        /// The port that it talks to.
        #[arg(long)]
        to: u16,
        /// After how long it asks for nothing more.
        #[arg(long, value_parser = span)]
        until: Option<Span>,
        /// The kind, and its numbers.
        client: String,
    },
    /// The server outside that tasks ask for files.
    #[command(hide = true)]
    Files,
}

/// Work that needs devices.
#[derive(Debug, Subcommand)]
pub(crate) enum Serving {
    /// Answer requests of HTTP on a port of the loopback, and pings.
    WebServer {
        /// How much CPU time each request takes.
        #[arg(long)]
        each: String,
        /// How much data answers it, as `10KiB`.
        #[arg(long)]
        response: String,
        /// How many connections can wait [default: 400].
        #[arg(long)]
        connections: Option<u64>,
        /// How many requests are worked on at once [default: 1].
        #[arg(long)]
        processes: Option<u64>,
        /// How much is read from the disk for each.
        #[arg(long)]
        read: Option<String>,
        #[command(flatten)]
        folder: Folder,
        #[command(flatten)]
        port: Port,
    },
    /// Answer pings on a port of the loopback, and requests with one byte.
    Echo {
        /// How much CPU time each takes.
        #[arg(long)]
        each: String,
        #[command(flatten)]
        port: Port,
    },
    /// Read from a file, past the cache where that is possible. It is made, and has no name.
    DiskRead {
        /// How much CPU time to use for each block.
        #[arg(long)]
        each: String,
        /// How much to read at a time, as `128KiB`.
        #[arg(long)]
        block: String,
        /// How many read at once [default: 1].
        #[arg(long)]
        readers: Option<u64>,
        #[command(flatten)]
        folder: Folder,
    },
    /// Send to whoever takes a stream from a port of the loopback (`iperf --way out`).
    Send {
        /// How much CPU time to use for each block.
        #[arg(long)]
        each: String,
        /// How much to send at a time, as `8KiB`.
        #[arg(long)]
        block: String,
        #[command(flatten)]
        port: Port,
    },
    /// Take what streams bring to a port of the loopback (`iperf --way in`).
    Sink {
        #[command(flatten)]
        port: Port,
    },
    /// Compute in bursts between reads from a file server on the network, which is in it.
    Compile {
        /// How many jobs at once [default: 1].
        #[arg(long)]
        jobs: Option<u64>,
        /// How much CPU time to use for each read.
        #[arg(long)]
        each: String,
        /// How much to read at a time, as `8KiB`.
        #[arg(long)]
        read: String,
        /// How long the server takes to answer [default: no time].
        #[arg(long)]
        wait: Option<String>,
        /// After how much CPU time all is compiled [default: never].
        #[arg(long)]
        total: Option<String>,
    },
}

/// Who is outside.
#[derive(Debug, Subcommand)]
pub(crate) enum Client {
    /// Send requests of HTTP at their own pace, whatever becomes of them. With --length, no more
    /// are sent then.
    Httperf {
        /// How many new connections a second, on average.
        #[arg(long)]
        rate: u64,
        /// When one is given up [default: 5s].
        #[arg(long)]
        timeout: Option<String>,
        #[command(flatten)]
        to: To,
        #[command(flatten)]
        count: Count,
    },
    /// Send requests of HTTP, so many at once, each when one has been answered.
    Ab {
        /// How many.
        #[arg(long)]
        at_once: u64,
        #[command(flatten)]
        to: To,
        #[command(flatten)]
        count: Count,
    },
    /// Send one packet and wait until it comes back; or send packets at a rate.
    Ping {
        /// From one to the next at least [default: no time].
        #[arg(long)]
        every: Option<String>,
        /// So many a second on average, whatever becomes of them.
        #[arg(long, conflicts_with = "every")]
        rate: Option<u64>,
        /// The port of the loopback to talk to, or the path of a Unix socket.
        #[arg(long, value_name = "PORT", value_parser = ping_to)]
        to: PingTo,
        #[command(flatten)]
        count: Count,
    },
    /// Have one TCP stream.
    #[command(visible_alias = "iperf")]
    Ttcp {
        /// Where the data goes: `in` to a `sink`, or `out` of a `send` [default: in].
        #[arg(long)]
        way: Option<String>,
        /// How much may be on its way, as `64KiB`.
        #[arg(long)]
        window: String,
        /// From one packet to the next at least, if it sends [default: no time].
        #[arg(long)]
        gap: Option<String>,
        #[command(flatten)]
        to: To,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Port {
    /// The port to listen on [default: one that is free; it is told].
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
pub(crate) struct Folder {
    /// Where to make the file that is read [default: where temporary files are].
    #[arg(long)]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct To {
    /// The port of the loopback to talk to.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) to: u16,
}

/// Where pings go.
#[derive(Clone, Debug)]
pub(crate) enum PingTo {
    Port(u16),
    Socket(PathBuf),
}

fn ping_to(text: &str) -> Result<PingTo, String> {
    if text.contains('/') {
        return Ok(PingTo::Socket(text.into()));
    }
    let port = text.parse().ok().filter(|&port| port > 0).map(PingTo::Port);
    port.ok_or_else(|| "neither a port, 1 to 65535, nor a path with a `/` in it".into())
}

#[derive(Debug, Args)]
pub(crate) struct Count {
    /// How many to send [default: no end].
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

fn who(text: &str) -> Result<(u32, u16), String> {
    let parts = text
        .split_once('.')
        .and_then(|(domain, number)| Some((domain.parse().ok()?, number.parse().ok()?)));
    parts.ok_or_else(|| "write it as DOMAIN.NUMBER".into())
}
