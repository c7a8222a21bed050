//! The network card, its wire, and the disk. Their transfers take time, but no CPU time.

use std::collections::VecDeque;

use slackline_scenario::Stream;
use slackline_scenario::io;
use slackline_scenario::io::SEGMENT;
use slackline_units::{Span, Time};

use super::packet::Packet;

/// Bytes that surround the data of each packet: Ethernet, IP and TCP headers, preamble and gap.
const AROUND: u64 = 90;
const SECOND: u64 = 1_000_000_000;

/// State of the network card's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupts {
    On,
    /// The card waits for more packets before it interrupts.
    Held,
    /// The driver takes packets from the card without interrupts.
    Off,
}

/// State of the network card and of both directions of its wire.
pub(super) struct Nic {
    pub(super) spec: io::Nic,
    /// Packets that have arrived and wait until the driver takes them.
    pub(super) ring: VecDeque<Packet>,
    pub(super) interrupts: Interrupts,
    /// Time from which the incoming direction of the wire is free. The next field is the same for
    /// the outgoing direction.
    in_free: Time,
    out_free: Time,
    /// Time on the wire of a packet without data. The next field is the same for a full packet.
    empty: Span,
    full: Span,
}

impl Nic {
    pub(super) fn new(spec: io::Nic) -> Nic {
        let ring = VecDeque::with_capacity(spec.ring);
        let (in_free, out_free) = (Time::START, Time::START);
        let on_wire = |bytes| Span::from_ns(bytes * 8 * SECOND / spec.bits_per_second);
        let (empty, full) = (on_wire(AROUND), on_wire(AROUND + SEGMENT));
        Nic { spec, ring, interrupts: Interrupts::On, in_free, out_free, empty, full }
    }

    #[inline]
    fn time_on_wire(&self, packet: Packet) -> Span {
        if packet.has_data() { self.full } else { self.empty }
    }

    /// Returns the time at which the sender has completely sent a packet that begins to travel to
    /// the host now.
    pub(super) fn wire_in(&mut self, packet: Packet, now: Time) -> Time {
        self.in_free = self.in_free.max(now).after(self.time_on_wire(packet));
        self.in_free
    }

    /// Returns the time at which a packet that the host sends now has completely left the host.
    pub(super) fn wire_out(&mut self, packet: Packet, now: Time) -> Time {
        self.out_free = self.out_free.max(now).after(self.time_on_wire(packet));
        self.out_free
    }
}

/// Read request of a task: system, task and number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskRead {
    pub(super) system: u16,
    pub(super) task: u16,
    pub(super) bytes: u64,
}

/// The disk, which serves one request at a time.
pub(super) struct Disk {
    pub(super) spec: io::Disk,
    draws: Stream,
    waiting: VecDeque<DiskRead>,
    busy: Option<DiskRead>,
    /// Completed requests that wait until the driver takes them.
    pub(super) done: VecDeque<DiskRead>,
}

impl Disk {
    pub(super) fn new(spec: io::Disk, draws: Stream) -> Disk {
        let (waiting, done) = (VecDeque::new(), VecDeque::new());
        Disk { spec, draws, waiting, busy: None, done }
    }

    /// Adds a request. If the disk is idle, starts the request and returns the time at which it
    /// will be complete. Otherwise returns `None`.
    pub(super) fn ask(&mut self, read: DiskRead, now: Time) -> Option<Time> {
        self.waiting.push_back(read);
        if self.busy.is_some() { None } else { self.begin(now) }
    }

    /// Completes the current request and starts the next request. Returns the time at which the
    /// next request will be complete.
    pub(super) fn finish(&mut self, now: Time) -> Option<Time> {
        self.done.extend(self.busy.take());
        self.begin(now)
    }

    fn begin(&mut self, now: Time) -> Option<Time> {
        let read = self.waiting.pop_front()?;
        self.busy = Some(read);
        let (bytes, rate) = (u128::from(read.bytes), u128::from(self.spec.bytes_per_second));
        let transfer = u64::try_from(bytes * u128::from(SECOND) / rate).unwrap_or(u64::MAX);
        let transfer = Span::from_ns(transfer);
        Some(now.after(self.draws.draw(&self.spec.seek)).after(transfer))
    }
}
