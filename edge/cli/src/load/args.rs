//! Options of `slackline load`: the keys that workloads and clients have in a scenario.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use slackline_units::Span;

use crate::input::file;
use crate::parse::span;

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(subcommand)]
    pub(crate) kind: Kind,
    /// Stop after this time; clients then send no more requests [default: never].
    #[arg(long, global = true, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// Seed of random times.
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Domain and vCPU whose random stream is used, as `DOMAIN.NUMBER`.
    #[arg(long, global = true, value_parser = who, default_value = "0.0", hide = true)]
    pub(crate) who: (u32, u16),
    /// Start time in nanoseconds of the monotonic clock.
    #[arg(long, global = true, hide = true)]
    pub(crate) start: Option<u64>,
    /// Print the result as JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Report finished jobs on standard output, for `run`.
    #[arg(long, global = true, hide = true, conflicts_with = "json")]
    pub(crate) report_jobs: bool,
}

/// Kinds of workload. Times can be fixed or random: `4ms`, `uniform 1ms 3ms`, `exponential 4ms`.
#[derive(Debug, Subcommand)]
pub(crate) enum Kind {
    /// Compute all the time, without blocking.
    Spin,
    /// Compute once per period.
    Periodic {
        /// Time between releases, e.g. `16ms`.
        #[arg(long)]
        period: String,
        /// CPU time of each job, e.g. `3ms`.
        #[arg(long)]
        work: String,
        /// Deadline of each job after its release [default: the period].
        #[arg(long)]
        deadline: Option<String>,
        /// Time between releases in addition to the period, e.g. `exponential 20ms` [default: 0].
        #[arg(long)]
        gap: Option<String>,
        /// Delay of each release, e.g. `uniform 0s 2ms` [default: 0].
        #[arg(long)]
        jitter: Option<String>,
    },
    /// Compute and sleep alternately.
    Interactive {
        /// CPU time of each burst, e.g. `4ms`.
        #[arg(long)]
        compute: String,
        /// Time to sleep after each burst, e.g. `10ms`.
        #[arg(long)]
        sleep: String,
    },
    /// Use a total of CPU time, then exit.
    Batch {
        /// Total CPU time, e.g. `10s`.
        #[arg(long)]
        total: String,
    },
    /// Compute and yield the CPU alternately.
    Yield {
        /// CPU time of each burst, e.g. `1ms`.
        #[arg(long)]
        compute: String,
    },
    /// Compute at instants of the monotonic clock; skip instants that pass during a burst.
    Clock {
        /// Time between planned starts of bursts, e.g. `10ms`.
        #[arg(long)]
        period: String,
        /// CPU time of each burst, e.g. `1ms`.
        #[arg(long)]
        compute: String,
        /// Offset of the instants from multiples of the period [default: 0].
        #[arg(long)]
        offset: Option<String>,
    },
    /// Run one node of a bulk-synchronous parallel program: compute, exchange, wait.
    Bsp {
        /// CPU time of each round, e.g. `4ms`.
        #[arg(long)]
        compute: String,
        /// CPU time of each exchange, in addition to sending [default: none].
        #[arg(long)]
        exchange: Option<String>,
        /// UDP address of this node.
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: SocketAddr,
        /// UDP address of another node; repeatable.
        #[arg(long = "peer", value_name = "ADDRESS:PORT", required = true)]
        peers: Vec<SocketAddr>,
    },
    /// Run and block as recorded in a file.
    Replay {
        /// File of `run_ns,block_ns` lines from `show --runs`; `-` is standard input.
        #[arg(long, value_parser = file)]
        file: PathBuf,
    },
    /// Act as a guest with an agent, for policies such as `gaps`.
    ///
    /// The thread `vcpu0` has two tasks: an urgent server, which answers pings, and a task that
    /// computes forever. A second thread acts as the guest's devices. The agent reports both tasks
    /// and the number of waiting pings to the host (`slackline help agent`).
    Guest {
        /// CPU time of each answer, e.g. `200us`.
        #[arg(long, value_parser = span)]
        each: Span,
        /// Unix socket for the agent's reports [default: report nothing].
        #[arg(long, value_name = "SOCKET")]
        agent: Option<PathBuf>,
        /// Always report that the guest has an urgent task.
        #[arg(long, requires = "agent")]
        lies: bool,
        #[command(flatten)]
        port: Port,
    },
    #[command(flatten)]
    Serving(Serving),
    #[command(flatten)]
    Client(Client),
    /// Run a workload's steps, as `run` passes them.
    #[command(hide = true)]
    Steps {
        /// Address of another node; this node's socket is standard input.
        #[arg(long = "peer")]
        peers: Vec<SocketAddr>,
        /// Steps of the workload.
        steps: Vec<String>,
    },
    /// Run a domain's tasks, as `run` passes them.
    #[command(hide = true)]
    Tasks {
        /// Kinds of clients of the domain.
        #[arg(long, value_delimiter = ',')]
        from: Vec<String>,
        #[arg(long)]
        connections: usize,
        /// Port of the file server.
        #[arg(long)]
        files: Option<u16>,
        /// Tasks, each with its steps.
        tasks: Vec<String>,
    },
    /// Run a client of a scenario, as `run` passes it.
    #[command(hide = true)]
    Caller {
        /// Number of the client, which selects its random stream.
        #[arg(long)]
        number: u64,
        /// Port to send to.
        #[arg(long)]
        to: u16,
        /// Time after which the client sends nothing more.
        #[arg(long, value_parser = span)]
        until: Option<Span>,
        /// Kind of the client, with its parameters.
        client: String,
    },
    /// Run the file server that tasks read from over the network.
    #[command(hide = true)]
    Files,
}

/// Workloads that use devices.
#[derive(Debug, Subcommand)]
pub(crate) enum Serving {
    /// Answer HTTP requests and pings on a loopback port.
    WebServer {
        /// CPU time of each request, e.g. `1ms`.
        #[arg(long)]
        each: String,
        /// Size of each response, e.g. `10KiB`.
        #[arg(long)]
        response: String,
        /// Number of connections that can wait [default: 400].
        #[arg(long)]
        connections: Option<u64>,
        /// Number of requests processed at once [default: 1].
        #[arg(long)]
        processes: Option<u64>,
        /// Data read from disk per request [default: none].
        #[arg(long)]
        read: Option<String>,
        #[command(flatten)]
        folder: Folder,
        #[command(flatten)]
        port: Port,
    },
    /// Answer pings on a loopback port, and answer requests with one byte.
    Echo {
        /// CPU time of each answer, e.g. `200us`.
        #[arg(long)]
        each: String,
        #[command(flatten)]
        port: Port,
    },
    /// Read an unnamed temporary file, bypassing the page cache if possible.
    DiskRead {
        /// CPU time per block, e.g. `100us`.
        #[arg(long)]
        each: String,
        /// Block size, e.g. `128KiB`.
        #[arg(long)]
        block: String,
        /// Number of concurrent readers [default: 1].
        #[arg(long)]
        readers: Option<u64>,
        #[command(flatten)]
        folder: Folder,
    },
    /// Send to every TCP client on a loopback port, e.g. `iperf --way out`.
    Send {
        /// CPU time per block, e.g. `100us`.
        #[arg(long)]
        each: String,
        /// Size of each block, e.g. `8KiB`.
        #[arg(long)]
        block: String,
        #[command(flatten)]
        port: Port,
    },
    /// Receive TCP streams on a loopback port, e.g. from `iperf --way in`.
    Sink {
        #[command(flatten)]
        port: Port,
    },
    /// Compute in bursts between reads from a built-in network file server.
    Compile {
        /// Number of concurrent jobs [default: 1].
        #[arg(long)]
        jobs: Option<u64>,
        /// CPU time per read, e.g. `5ms`.
        #[arg(long)]
        each: String,
        /// Size of each read, e.g. `8KiB`.
        #[arg(long)]
        read: String,
        /// Response time of the file server [default: 0].
        #[arg(long)]
        wait: Option<String>,
        /// Total CPU time of the compilation [default: no limit].
        #[arg(long)]
        total: Option<String>,
    },
}

/// Kinds of network client that `slackline load` can run. A client sends requests to a server
/// outside its own process.
#[derive(Debug, Subcommand)]
pub(crate) enum Client {
    /// Send HTTP requests at a rate, independent of the answers.
    Httperf {
        /// New connections per second, on average.
        #[arg(long)]
        rate: u64,
        /// Timeout of each request [default: 5s].
        #[arg(long)]
        timeout: Option<String>,
        #[command(flatten)]
        to: PortArgs,
        #[command(flatten)]
        count: Count,
    },
    /// Keep a number of HTTP requests outstanding.
    Ab {
        /// Number of outstanding requests.
        #[arg(long)]
        at_once: u64,
        /// Time from an answer to the next request, e.g. `exponential 1s` [default: 0].
        #[arg(long)]
        think: Option<String>,
        #[command(flatten)]
        to: PortArgs,
        #[command(flatten)]
        count: Count,
    },
    /// Send pings one by one, or at a rate.
    Ping {
        /// Minimum time between two pings; each ping waits for the answer to the previous ping
        /// [default: 0].
        #[arg(long)]
        every: Option<String>,
        /// Pings per second on average, independent of the answers.
        #[arg(long, conflicts_with = "every")]
        rate: Option<u64>,
        /// Loopback port or path of a Unix socket.
        #[arg(long, value_name = "PORT", value_parser = ping_to)]
        to: PingTo,
        #[command(flatten)]
        count: Count,
    },
    /// Send or receive one TCP stream.
    #[command(visible_alias = "iperf")]
    Ttcp {
        /// Direction: `in` sends to a `sink`, `out` receives from a `send` [default: in].
        #[arg(long)]
        way: Option<String>,
        /// Maximum data in flight, e.g. `64KiB`.
        #[arg(long)]
        window: String,
        /// Minimum time between packets sent [default: 0].
        #[arg(long)]
        gap: Option<String>,
        #[command(flatten)]
        to: PortArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Port {
    /// Port to listen on [default: a free port, which is printed].
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
pub(crate) struct Folder {
    /// Folder of the temporary file [default: the system's].
    #[arg(long)]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PortArgs {
    /// Loopback port to connect to.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) to: u16,
}

/// Destination of pings: a loopback port, or a socket.
#[derive(Clone, Debug)]
pub(crate) enum PingTo {
    Port(u16),
    Socket(PathBuf),
}

/// Parses the destination of pings: a text with `/` is the path of a socket.
fn ping_to(text: &str) -> Result<PingTo, String> {
    if text.contains('/') {
        return Ok(PingTo::Socket(text.into()));
    }
    let port = text.parse().ok().filter(|&port| port > 0).map(PingTo::Port);
    port.ok_or_else(|| "write a port from 1 to 65535, or a path that contains `/`".into())
}

#[derive(Debug, Args)]
pub(crate) struct Count {
    /// Number of requests or pings to send [default: no limit].
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

/// Parses the id of a vCPU, `DOMAIN.NUMBER`.
fn who(text: &str) -> Result<(u32, u16), String> {
    let parts = text
        .split_once('.')
        .and_then(|(domain, number)| Some((domain.parse().ok()?, number.parse().ok()?)));
    parts.ok_or_else(|| "write DOMAIN.NUMBER, e.g. 0.1".into())
}
