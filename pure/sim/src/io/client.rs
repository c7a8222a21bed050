//! Simulated network clients, and the times at which they send requests. Clients are outside the
//! host and use none of its CPU time.

use std::collections::VecDeque;

use slackline_scenario::io;
use slackline_scenario::io::{ClientKind, Direction, PingEnds, SEGMENT};
use slackline_trace::Record;
use slackline_units::{ClientId, Span, TaskId, Time};

use super::flow::packets;
use super::packet::{Packet, PacketMessage};
use super::{Context, Io};
use crate::guest::SystemId;
use crate::queue::Event;

/// Default delay until a client that got no connection tries again.
const RETRY: Span = Span::from_secs(3);

/// State of a client outside the host.
pub(super) struct Client<'a> {
    spec: &'a io::Client,
    pub(super) system: SystemId,
    asks: slackline_scenario::Stream,
    delays: slackline_scenario::Stream,
    /// Connections with the time at which the client gives up each connection, earliest first.
    expiries: VecDeque<(Time, Packet)>,
    has_begun: bool,
    pub(super) stream: Stream,
}

/// A TCP stream, as seen from both ends.
pub(super) struct Stream {
    /// A packet of the stream, from which each further packet is copied. `None` until the stream
    /// begins.
    pub(super) packet: Option<Packet>,
    /// Maximum number of packets that are in flight or not acknowledged.
    pub(super) window: u32,
    pub(super) outstanding: u32,
    /// Number of packets received since the last acknowledgement.
    pub(super) unacknowledged: u8,
    /// Number of bytes that a task has added to the stream and that are not sent yet.
    pub(super) unsent: u64,
    /// Task that waits until the stream has room for more data.
    pub(super) waiting: Option<u16>,
    /// Earliest time at which the next packet can be sent.
    next: Time,
    /// True if an event for the time `next` is scheduled.
    is_pacing: bool,
}

impl Stream {
    /// Returns true if a task may add data to the stream. The unsent data can be as large as the
    /// data that can be in flight.
    pub(super) fn has_room(&self) -> bool {
        self.unsent < u64::from(self.window) * SEGMENT
    }
}

impl<'a> Client<'a> {
    pub(super) fn new(
        spec: &'a io::Client,
        system: SystemId,
        asks: slackline_scenario::Stream,
        delays: slackline_scenario::Stream,
    ) -> Client<'a> {
        let window = match spec.kind {
            ClientKind::Stream { window, .. } => packets(window / SEGMENT * SEGMENT).max(1),
            _ => 0,
        };
        let stream = Stream {
            packet: None,
            window,
            outstanding: 0,
            unacknowledged: 0,
            unsent: 0,
            waiting: None,
            next: Time::START,
            is_pacing: false,
        };
        Client { spec, system, asks, delays, expiries: VecDeque::new(), has_begun: false, stream }
    }

    pub(super) fn delay(&mut self) -> Span {
        self.delays.draw(&self.spec.delay)
    }

    /// Returns true if the client has stopped sending requests.
    fn is_over(&self, now: Time) -> bool {
        self.spec.until.is_some_and(|until| until <= now)
    }

    pub(super) fn retry(&self) -> Span {
        match self.spec.kind {
            ClientKind::Open { retry, .. } => retry,
            _ => RETRY,
        }
    }

    /// Returns true if the client's packets need no answer after the guest has received them.
    pub(super) fn wants_no_answer(&self) -> bool {
        matches!(self.spec.kind, ClientKind::Pings { ends: PingEnds::Received, .. })
    }

    /// Returns the task that must answer the client's requests. `None` if every task is allowed to
    /// answer them.
    pub(super) fn wants(&self) -> Option<TaskId> {
        self.spec.task
    }

    pub(super) fn stream_way(&self) -> Option<Direction> {
        match self.spec.kind {
            ClientKind::Stream { way, .. } => Some(way),
            _ => None,
        }
    }
}

impl Io<'_> {
    /// Starts a client when the domain it sends to has joined, or at the client's own start time if
    /// that is later.
    pub(super) fn start_client(&mut self, client: usize, context: &mut Context<'_, '_>) {
        let this = &mut self.clients[client];
        if this.spec.from > context.now {
            context.queue.push(this.spec.from, Event::Client, client);
            return;
        }
        this.has_begun = true;
        if let Ok(number) = u16::try_from(client) {
            let (at, vcpu) = (context.now, context.systems.first(this.system));
            let client = ClientId::new(number);
            context.systems.record(Record::ClientStarted { at, client, vcpu });
        }
        let this = &mut self.clients[client];
        match this.spec.kind {
            ClientKind::Open { every, .. } | ClientKind::Pings { every, .. } => {
                let first = context.now.after(this.asks.draw(&every));
                context.queue.push(first, Event::Client, client);
            }
            ClientKind::Closed { at_once, .. } => {
                for _ in 0..at_once {
                    self.open(client, context);
                }
            }
            ClientKind::Ping { .. } => self.act(client, context),
            ClientKind::Stream { way, .. } => {
                let system = this.system;
                let packet = self.flows.open(client, system, context.now);
                self.clients[client].stream.packet = Some(packet);
                match way {
                    Direction::In => self.pump(packet, 0, context),
                    Direction::Out => {
                        self.send_stream(system, client, context);
                        self.call_first(system, context);
                    }
                }
            }
        }
    }

    fn open(&mut self, client: usize, context: &mut Context<'_, '_>) -> Packet {
        let packet = self.flows.open(client, self.clients[client].system, context.now);
        self.emit(packet, context);
        packet
    }

    fn ping(&mut self, client: usize, context: &mut Context<'_, '_>) {
        let packet = self.flows.open(client, self.clients[client].system, context.now);
        self.emit(packet.saying(PacketMessage::Ping), context);
    }

    /// Handles the event of a client: the client starts, or sends its next request or packet.
    pub(super) fn act(&mut self, client: usize, context: &mut Context<'_, '_>) {
        if !self.clients[client].has_begun {
            return self.start_client(client, context);
        }
        if self.clients[client].is_over(context.now) {
            return;
        }
        match self.clients[client].spec.kind {
            ClientKind::Open { every, timeout, .. } => {
                let packet = self.open(client, context);
                let this = &mut self.clients[client];
                let until = context.now.after(timeout);
                if this.expiries.is_empty() {
                    context.queue.push(until, Event::Expire, client);
                }
                this.expiries.push_back((until, packet));
                let next = context.now.after(this.asks.draw(&every));
                context.queue.push(next, Event::Client, client);
            }
            ClientKind::Closed { .. } => {
                self.open(client, context);
            }
            ClientKind::Ping { .. } => self.ping(client, context),
            ClientKind::Pings { every, .. } => {
                self.ping(client, context);
                let next = context.now.after(self.clients[client].asks.draw(&every));
                context.queue.push(next, Event::Client, client);
            }
            ClientKind::Stream { .. } => {
                self.clients[client].stream.is_pacing = false;
                if let Some(packet) = self.clients[client].stream.packet {
                    self.pump(packet, 0, context);
                }
            }
        }
    }

    /// Gives up the connection for which a client has waited the longest.
    pub(super) fn expire(&mut self, client: usize, context: &mut Context<'_, '_>) {
        let this = &mut self.clients[client];
        let Some((_, packet)) = this.expiries.pop_front() else { return };
        if let Some(&(next, _)) = this.expiries.front() {
            context.queue.push(next, Event::Expire, client);
        }
        if !self.flows.is_current(packet) {
            return;
        }
        let flow = self.flows.of(packet);
        if !std::mem::take(&mut flow.is_wanted) {
            return; // The request was answered, and the connection is being closed.
        }
        if flow.is_accepted {
            self.emit(packet.saying(PacketMessage::Close), context);
        } else {
            self.flows.close(packet.flow);
        }
    }

    /// Lets a client that received its answer send the next request, if this kind of client waits
    /// for answers.
    pub(super) fn ask_again(
        &mut self,
        client: usize,
        packet: Packet,
        context: &mut Context<'_, '_>,
    ) {
        match self.clients[client].spec.kind {
            ClientKind::Closed { .. } if self.clients[client].is_over(context.now) => {}
            ClientKind::Closed { think, .. } => match self.clients[client].asks.draw(&think) {
                Span::ZERO => drop(self.open(client, context)),
                think => context.queue.push(context.now.after(think), Event::Client, client),
            },
            ClientKind::Ping { every } => {
                let next = self.flows.of(packet).began.after(every).max(context.now);
                self.flows.close(packet.flow);
                context.queue.push(next, Event::Client, client);
            }
            ClientKind::Pings { .. } => self.flows.close(packet.flow),
            ClientKind::Open { .. } | ClientKind::Stream { .. } => {}
        }
    }

    /// Sends packets from the client's end of a stream, up to the limits of window and pace.
    /// `acknowledged` is the number of packets acknowledged since the last call.
    pub(super) fn pump(&mut self, packet: Packet, acknowledged: u8, context: &mut Context<'_, '_>) {
        let client = self.flows.of(packet).client;
        let ClientKind::Stream { gap, .. } = self.clients[client].spec.kind else { return };
        self.clients[client].stream.outstanding -= u32::from(acknowledged);
        if self.clients[client].is_over(context.now) {
            return;
        }
        loop {
            let stream = &mut self.clients[client].stream;
            if stream.outstanding >= stream.window || stream.is_pacing {
                return;
            }
            if stream.next > context.now {
                stream.is_pacing = true;
                context.queue.push(stream.next, Event::Client, client);
                return;
            }
            stream.next = context.now.after(gap);
            stream.outstanding += 1;
            self.emit(packet.saying(PacketMessage::Stream), context);
        }
    }
}
