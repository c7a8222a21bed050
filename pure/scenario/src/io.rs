#![doc = include_str!("io/page.md")]

pub(crate) mod quantity;
mod read;

use slackline_units::{CpuId, Span, TaskId, Time};

use crate::Draw;

pub(crate) use read::{cost, read};

/// Help page about devices, with every key.
pub const PAGE: &str = include_str!("io/page.md");

/// Devices, their driver domain, and the clients on the network.
#[derive(Clone, Debug)]
pub struct Io {
    /// Domain that drives the devices for the others.
    pub driver: Driver,
    /// The network card and its wire.
    pub nic: Nic,
    /// The disk of the host.
    pub disk: Disk,
    /// Clients on the network, in the order of the file.
    pub clients: Vec<Client>,
}

/// The domain that drives the devices, and its costs.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Index in the scenario's domains.
    pub domain: usize,
    /// Costs of its work for devices.
    pub costs: Costs,
    /// Number of packets that it hands over at once, at least one.
    pub batch: usize,
}

/// CPU time for each piece of work for devices. Zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Cost of an interrupt.
    pub interrupt: Span,
    /// Cost of an event notification.
    pub event: Span,
    /// Cost of a received packet.
    pub receive: Span,
    /// Cost of a sent packet.
    pub send: Span,
    /// Cost of a disk request.
    pub request: Span,
    /// Cost of finding no work before it blocks.
    pub idle: Span,
    /// Greatest deviation of each cost, in millionths of it, at most all of it.
    pub noise_ppm: u32,
}

/// The network card and its wire.
#[derive(Clone, Copy, Debug)]
pub struct Nic {
    /// Bits per second in each direction. Not zero.
    pub bits_per_second: u64,
    /// Number of packets that can wait in it.
    pub ring: usize,
    /// Time that an interrupt waits for more packets.
    pub coalesce: Span,
    /// CPU time that an interrupt takes from the running vCPU.
    pub interrupt: Span,
    /// CPU that it interrupts. `None` for the CPU on which the driver domain ran last.
    pub cpu: Option<CpuId>,
}

/// The disk of the host.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Bytes a second, once it is there; not zero.
    pub bytes_per_second: u64,
    /// Time of a seek.
    pub seek: Draw,
    /// CPU time that an interrupt takes from the running vCPU.
    pub interrupt: Span,
    /// CPU that it interrupts. `None` for the CPU on which the driver domain ran last.
    pub cpu: Option<CpuId>,
}

/// A step of a program that needs a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// Waits for a request from a client, and takes it.
    Accept,
    /// Answers the request that was taken last.
    Answer {
        /// Number of bytes of the answer.
        bytes: u64,
    },
    /// Reads from the disk, and waits for the data.
    Read {
        /// Number of consecutive bytes to read.
        bytes: u64,
    },
    /// Asks a server on the network, and waits for its answer.
    Ask {
        /// Number of bytes of the answer.
        bytes: u64,
        /// Time from the departure of the question to the arrival of the answer.
        wait: Draw,
    },
    /// Puts data into the stream to the client. Waits while there is no room.
    Send {
        /// Number of bytes to send.
        bytes: u64,
    },
}

/// A client on the network.
#[derive(Clone, Debug)]
pub struct Client {
    /// Index of the domain that it talks to.
    pub to: usize,
    /// Delay of a packet in one direction.
    pub delay: Draw,
    /// Time at which it begins. If the domain joins later, it begins then.
    pub from: Time,
    /// Time at which it stops sending requests and data. `None` if it never stops.
    pub until: Option<Time>,
    /// Id of the tasks of the domain that its requests are for. `None` if any task may take them.
    pub task: Option<TaskId>,
    /// Behaviour of the client.
    pub kind: ClientKind,
}

/// Behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Sends requests at its own pace, whatever becomes of them, as httperf does.
    Open {
        /// Time from one new connection to the next.
        every: Draw,
        /// Time after which it gives a connection up.
        timeout: Span,
        /// Time after which it tries again to connect.
        retry: Span,
    },
    /// Sends the next request after an answer, as ab does.
    Closed {
        /// Number of connections at once.
        at_once: u32,
        /// Time from an answer to the next request in its place. May be zero.
        think: Draw,
    },
    /// Sends one packet and waits for the answer.
    Ping {
        /// Shortest time from one question to the next.
        every: Span,
    },
    /// Sends packets at its own pace, whatever becomes of them.
    Pings {
        /// Time from one packet to the next.
        every: Draw,
        /// Event that completes a packet.
        ends: PingEnds,
    },
    /// Has one TCP stream, as ttcp and iperf do.
    Stream {
        /// Direction of the data.
        way: Direction,
        /// Maximum number of bytes that are sent and not acknowledged.
        window: u64,
        /// Shortest time from one packet of this client to the next.
        gap: Span,
    },
}

/// Event that completes a packet of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingEnds {
    /// The answer has arrived.
    Answered,
    /// The system has taken the packet from its ring. It sends no answer.
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
