#![doc = include_str!("io/page.md")]

pub(crate) mod quantity;
mod read;

use slackline_units::{CpuId, Span, TaskId, Time};

use crate::Draw;

pub(crate) use read::{cost, read};

/// Text of the help page about devices, with every key.
pub const PAGE: &str = include_str!("io/page.md");

/// Devices, the domain that drives them, and the clients on the network.
#[derive(Clone, Debug)]
pub struct Io {
    /// Domain that drives the devices for the other domains.
    pub driver: Driver,
    /// The network card and its link.
    pub nic: Nic,
    /// The disk of the host.
    pub disk: Disk,
    /// Clients on the network, in the order of the file.
    pub clients: Vec<Client>,
}

/// The domain that drives the devices, with the costs of that work.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Index of the driver domain in the scenario's domains.
    pub domain: usize,
    /// Costs of the driver domain's work for devices.
    pub costs: Costs,
    /// Number of incoming packets that the driver domain hands to the guests at one time. At least
    /// one.
    pub batch: usize,
}

/// CPU time of each kind of work for devices. Zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// CPU time to find the reason of an interrupt.
    pub interrupt: Span,
    /// CPU time to find the reason of a notification by another domain.
    pub event: Span,
    /// CPU time to handle an incoming packet.
    pub receive: Span,
    /// CPU time to handle an outgoing packet.
    pub send: Span,
    /// CPU time of a disk request.
    pub request: Span,
    /// CPU time to find that there is no more work, before the vCPU blocks.
    pub idle: Span,
    /// Greatest deviation of each cost, in millionths of the cost. At most the whole cost.
    pub noise_ppm: u32,
}

/// The network card and its link.
#[derive(Clone, Copy, Debug)]
pub struct Nic {
    /// Speed of the link in bits per second, in each direction. Not zero.
    pub bits_per_second: u64,
    /// Number of packets that can wait in the network card.
    pub ring: usize,
    /// Time by which the card delays an interrupt, to combine the interrupts of several packets.
    pub coalesce: Span,
    /// CPU time that an interrupt takes from the running vCPU.
    pub interrupt: Span,
    /// CPU that the card interrupts. `None` if it interrupts the CPU on which the driver domain ran
    /// last.
    pub cpu: Option<CpuId>,
}

/// The disk of the host.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Speed of the disk after a seek, in bytes per second. Not zero.
    pub bytes_per_second: u64,
    /// Duration of a seek.
    pub seek: Draw,
    /// CPU time that an interrupt takes from the running vCPU.
    pub interrupt: Span,
    /// CPU that the disk interrupts. `None` if it interrupts the CPU on which the driver domain ran
    /// last.
    pub cpu: Option<CpuId>,
}

/// A step of a program that needs a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// Waits for a request from a client, and accepts it.
    Accept,
    /// Answers the request that was accepted last.
    Answer {
        /// Size of the answer in bytes.
        bytes: u64,
    },
    /// Reads from the disk, and waits for the data.
    Read {
        /// Number of consecutive bytes to read.
        bytes: u64,
    },
    /// Sends a question to a server on the network, and waits for the answer.
    Ask {
        /// Size of the answer in bytes.
        bytes: u64,
        /// Time from sending the question to the arrival of the answer.
        wait: Draw,
    },
    /// Writes data into the stream to the client. Waits while the window of the stream is full.
    Send {
        /// Number of bytes to send.
        bytes: u64,
    },
}

/// A client on the network.
#[derive(Clone, Debug)]
pub struct Client {
    /// Index of the domain with which the client communicates.
    pub to: usize,
    /// Delay of a packet in one direction.
    pub delay: Draw,
    /// Time at which the client starts. If the domain joins later, the client starts at the join.
    pub from: Time,
    /// Time at which the client stops sending requests and data. `None` if it never stops.
    pub until: Option<Time>,
    /// Id of the tasks that receive the client's requests. `None` if any task of the domain may
    /// take them.
    pub task: Option<TaskId>,
    /// Behaviour of the client.
    pub kind: ClientKind,
}

/// Behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Opens new connections at its own pace, whether requests are answered or not, as httperf
    /// does.
    Open {
        /// Time from one new connection to the next.
        every: Draw,
        /// Time after which the client gives up a connection.
        timeout: Span,
        /// Time after which the client tries again to connect.
        retry: Span,
    },
    /// Sends the next request only after the previous one is answered, as ab does.
    Closed {
        /// Number of connections that are open at one time.
        at_once: u32,
        /// Time from an answer to the next request on the same connection. May be zero.
        think: Draw,
    },
    /// Sends one packet and waits for the answer.
    Ping {
        /// Shortest time from one packet to the next.
        every: Span,
    },
    /// Sends packets at its own pace, whether they are answered or not.
    Pings {
        /// Time from one packet to the next.
        every: Draw,
        /// Event at which a packet counts as done.
        ends: PingEnds,
    },
    /// Has one TCP stream, as ttcp and iperf do.
    Stream {
        /// Direction in which the data flows.
        way: Direction,
        /// Maximum number of bytes that are sent and not acknowledged yet.
        window: u64,
        /// Shortest time from one packet of this client to the next.
        gap: Span,
    },
}

/// Event at which a packet of a client counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingEnds {
    /// The answer has arrived.
    Answered,
    /// The operating system has taken the packet from its ring. No answer is sent.
    Received,
}

/// Direction of a stream of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client into the host.
    In,
    /// From the host to the client.
    Out,
}

/// Number of data bytes in a full packet.
pub const SEGMENT: u64 = 1448;
