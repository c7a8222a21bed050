//! The network card, the wire, and the disk: what takes time outside all CPUs.

use std::collections::VecDeque;

use slackline_scenario::Stream;
use slackline_scenario::io;
use slackline_scenario::io::SEGMENT;
use slackline_units::{Span, Time};

use super::packet::Packet;

/// Bytes of Ethernet, IP and TCP headers, preamble and gap around the data.
const AROUND: u64 = 90;
const SECOND: u64 = 1_000_000_000;

/// Whether the card will interrupt when a packet comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupts {
    On,
    /// It waits for more packets before it does.
    Held,
    /// Somebody takes packets from it without being told.
    Off,
}

/// The card, and both directions of its wire.
pub(super) struct Nic {
    pub(super) spec: io::Nic,
    /// What has come and waits to be taken.
    pub(super) ring: VecDeque<Packet>,
    pub(super) interrupts: Interrupts,
    in_free: Time,
    out_free: Time,
    /// How long a packet without data is on the wire, and one that is full of it.
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

    /// When a packet that is sent to the host now has left its sender.
    pub(super) fn wire_in(&mut self, packet: Packet, now: Time) -> Time {
        self.in_free = self.in_free.max(now).after(self.time_on_wire(packet));
        self.in_free
    }

    /// When a packet that the host sends now has left it.
    pub(super) fn wire_out(&mut self, packet: Packet, now: Time) -> Time {
        self.out_free = self.out_free.max(now).after(self.time_on_wire(packet));
        self.out_free
    }
}

/// A read of a task: the system, the task and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskRead {
    pub(super) system: u16,
    pub(super) task: u16,
    pub(super) bytes: u64,
}

/// The disk: one request after the other.
pub(super) struct Disk {
    pub(super) spec: io::Disk,
    draws: Stream,
    waiting: VecDeque<DiskRead>,
    busy: Option<DiskRead>,
    /// What has been read and waits to be taken.
    pub(super) done: VecDeque<DiskRead>,
}

impl Disk {
    pub(super) fn new(spec: io::Disk, draws: Stream) -> Disk {
        let (waiting, done) = (VecDeque::new(), VecDeque::new());
        Disk { spec, draws, waiting, busy: None, done }
    }

    /// A request; when it will be done if it begins now.
    pub(super) fn ask(&mut self, read: DiskRead, now: Time) -> Option<Time> {
        self.waiting.push_back(read);
        if self.busy.is_some() { None } else { self.begin(now) }
    }

    /// The request in work is done; when the next will be.
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
