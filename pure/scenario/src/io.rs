#![doc = include_str!("io/page.md")]

pub(crate) mod quantity;
mod read;

use slackline_units::{CpuId, Span, TaskId, Time};

use crate::Draw;

pub(crate) use read::{cost, read};

/// Every key, for people.
pub const PAGE: &str = include_str!("io/page.md");

/// Devices, who drives them, and who is outside.
#[derive(Clone, Debug)]
pub struct Io {
    /// Who drives the devices for the others.
    pub driver: Driver,
    /// The network card.
    pub nic: Nic,
    /// The disk.
    pub disk: Disk,
    /// Who is outside, in the order of the file.
    pub clients: Vec<Client>,
}

/// The domain that drives the devices, and what that costs it.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Its index in the scenario's domains.
    pub domain: usize,
    /// What one of each costs.
    pub costs: Costs,
    /// How many packets are handed over at once; at least one.
    pub batch: usize,
}

/// What one of each costs; zero where nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// An interrupt.
    pub interrupt: Span,
    /// Being told to look.
    pub event: Span,
    /// A packet received.
    pub receive: Span,
    /// A packet sent.
    pub send: Span,
    /// A request to a disk.
    pub request: Span,
    /// Finding nothing to do, before it blocks.
    pub idle: Span,
    /// How far each may be off, in millionths of itself; at most all of it.
    pub noise_ppm: u32,
}

/// The network card and its wire.
#[derive(Clone, Copy, Debug)]
pub struct Nic {
    /// Bits a second, each way; not zero.
    pub bits_per_second: u64,
    /// How many packets can wait in it.
    pub ring: usize,
    /// How long an interrupt waits for more packets.
    pub coalesce: Span,
    /// What an interrupt takes from whoever runs.
    pub interrupt: Span,
    /// Where it interrupts; none for where the driver domain ran last.
    pub cpu: Option<CpuId>,
}

/// The disk.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Bytes a second, once it is there; not zero.
    pub bytes_per_second: u64,
    /// How long it takes to get there.
    pub seek: Draw,
    /// What an interrupt takes from whoever runs.
    pub interrupt: Span,
    /// Where it interrupts; none for where the driver domain ran last.
    pub cpu: Option<CpuId>,
}

/// One step of a program that needs a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// Wait for a request from outside, and take it.
    Accept,
    /// Answer the request that was taken last.
    Answer {
        /// With so many bytes.
        bytes: u64,
    },
    /// Read from the disk, and wait for it.
    Read {
        /// So many bytes, one after the other.
        bytes: u64,
    },
    /// Ask a server outside, and wait for its answer.
    Ask {
        /// How many bytes it answers.
        bytes: u64,
        /// How long it takes from the question's leaving to the answer's coming.
        wait: Draw,
    },
    /// Put data in the stream to the client outside; wait while there is no room.
    Send {
        /// So many bytes.
        bytes: u64,
    },
}

/// Somebody outside.
#[derive(Clone, Debug)]
pub struct Client {
    /// The domain that it talks to, as an index.
    pub to: usize,
    /// How long a packet takes, one way.
    pub delay: Draw,
    /// When it begins; if the domain joins later, then.
    pub from: Time,
    /// From when on it asks for nothing, and sends nothing of its own; none for never.
    pub until: Option<Time>,
    /// Which tasks of the domain its requests are for, by what their jobs are told by; none if any
    /// may take them.
    pub task: Option<TaskId>,
    /// What it does.
    pub kind: ClientKind,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Asks at its own pace, whatever becomes of it, as httperf does.
    Open {
        /// From one new connection to the next.
        every: Draw,
        /// When it gives a connection up.
        timeout: Span,
        /// When it tries again to connect.
        retry: Span,
    },
    /// Asks again when it has been answered, as ab does.
    Closed {
        /// How many connections at once.
        at_once: u32,
        /// Time from an answer to the next request in its place; zero for at once.
        think: Draw,
    },
    /// Sends one packet and waits for the answer.
    Ping {
        /// From one question to the next at least.
        every: Span,
    },
    /// Sends packets at its own pace, whatever becomes of them.
    Pings {
        /// From one to the next.
        every: Draw,
        /// When one is over.
        ends: PingEnds,
    },
    /// Has one TCP stream, as ttcp and iperf do.
    Stream {
        /// Where the data goes.
        way: Way,
        /// How many bytes may be on their way or not acknowledged.
        window: u64,
        /// From one packet of this client to the next at least.
        gap: Span,
    },
}

/// When a packet that wants an answer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingEnds {
    /// When the answer has come.
    Answered,
    /// When the system has taken it from its ring: nobody answers.
    Received,
}

/// Where data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Into the host.
    In,
    /// Out of it.
    Out,
}

/// How much data a full packet carries.
pub const SEGMENT: u64 = 1448;
