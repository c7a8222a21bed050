//! Connections, and the reaction of both ends to each packet.
//!
//! A connection for one answer begins with `Open`, `Opened`, `Confirmed` and `Request`. The data
//! follows: three packets at first, and two more for each packet that is acknowledged (slow
//! start). Every packet but the last is acknowledged separately. `Close` and `Closed` end the
//! connection. A lost packet is sent again.
//!
//! A stream has at most its window in flight. Its receiver acknowledges every second packet, and
//! the last packet when no more arrive.

use slackline_scenario::io::{Direction, SEGMENT};
use slackline_trace::Record;
use slackline_units::{ClientId, Span, Time};

use super::frontend::IoRecipient;
use super::packet::{Packet, PacketMessage};
use super::{Context, Io};
use crate::guest::{Cause, SystemId, TaskOf};
use crate::queue::Event;

/// Number of packets of an answer that are sent before the first acknowledgement.
const FIRST: u32 = 3;
/// Number of packets sent after each acknowledgement.
const THEN: u32 = 2;
/// Delay until a lost packet is sent again. If the packet opens a connection, the client decides
/// the delay instead.
const AGAIN: Span = Span::from_ms(200);
/// Client number of a connection on which a task of a guest sends a request to a server outside the
/// host.
pub(super) const A_TASK: usize = usize::MAX;

/// State of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Generation of the connection's number, which changes when a connection opens or ends.
    pub(super) turn: u32,
    pub(super) system: SystemId,
    /// Number of the connection's client. `A_TASK` if a task of a guest sends requests to a server
    /// outside the host.
    pub(super) client: usize,
    /// Task of the guest that sent the request, or that answered the request.
    pub(super) task: u16,
    /// True while the client still waits for the answer on this connection.
    pub(super) is_wanted: bool,
    /// True if the guest counts this connection among its open connections.
    pub(super) is_accepted: bool,
    /// Time at which the client sent its request.
    pub(super) began: Time,
    /// Number of packets of the answer that are not sent yet.
    unsent: u32,
    /// Number of packets of the answer that have not arrived yet.
    pub(super) expected: u32,
    /// Time that a server outside the host takes to answer a task's request.
    pub(super) wait: Span,
}

/// All connections, by number. The number of a connection that has ended is reused.
#[derive(Default)]
pub(super) struct Flows {
    flows: Vec<Flow>,
    free: Vec<u32>,
}

impl Flows {
    pub(super) fn open(&mut self, client: usize, system: SystemId, began: Time) -> Packet {
        let flow = Flow {
            turn: 0,
            system,
            client,
            task: 0,
            is_wanted: true,
            is_accepted: false,
            began,
            unsent: 0,
            expected: 0,
            wait: Span::ZERO,
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.flows.push(flow);
            u32::try_from(self.flows.len() - 1).expect("the number of connections fits in 32 bits")
        });
        let place = &mut self.flows[number as usize];
        let turn = place.turn + 1;
        *place = Flow { turn, ..flow };
        Packet { flow: number, turn, says: PacketMessage::Open }
    }

    pub(super) fn close(&mut self, number: u32) {
        self.flows[number as usize].turn += 1;
        self.free.push(number);
    }

    /// Returns true if the connection of a packet still exists.
    pub(super) fn is_current(&self, packet: Packet) -> bool {
        self.flows[packet.flow as usize].turn == packet.turn
    }

    /// Returns the operating system that receives a packet: the system of the connection that has,
    /// or had last, the packet's connection number. If the packet's own connection has ended, that
    /// system drops the packet.
    pub(super) fn system(&self, packet: Packet) -> SystemId {
        self.flows[packet.flow as usize].system
    }

    pub(super) fn of(&mut self, packet: Packet) -> &mut Flow {
        &mut self.flows[packet.flow as usize]
    }
}

impl Packet {
    pub(super) fn saying(self, says: PacketMessage) -> Packet {
        Packet { says, ..self }
    }
}

/// Returns the number of packets that carry this number of bytes.
pub(super) fn packets(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(SEGMENT)).unwrap_or(u32::MAX)
}

impl Io<'_> {
    /// Handles a packet that a guest has received.
    pub(super) fn receive(&mut self, id: SystemId, packet: Packet, context: &mut Context<'_, '_>) {
        if !self.flows.is_current(packet) {
            return;
        }
        let frontend = &mut self.frontends[usize::from(id)];
        let flow = self.flows.of(packet);
        match packet.says {
            PacketMessage::Open if frontend.connections >= frontend.spec.connections => {
                self.lose(packet, context);
            }
            PacketMessage::Open => {
                frontend.connections += 1;
                flow.is_accepted = true;
                self.send(id, packet.saying(PacketMessage::Opened), context);
            }
            PacketMessage::Request => self.ask_task(id, packet, context),
            PacketMessage::Ping if self.clients[flow.client].wants_no_answer() => {
                let by = self.clients[flow.client].wants();
                let is_wanted = frontend.is_wanted(by);
                self.answered(packet, context);
                if is_wanted {
                    self.ask_task(id, packet, context);
                }
            }
            PacketMessage::Ping if frontend.taken.is_empty() => {
                self.send(id, packet.saying(PacketMessage::Pong), context);
            }
            PacketMessage::Ping => self.ask_task(id, packet, context),
            PacketMessage::Ack => self.send_data(id, (packet, THEN), context),
            PacketMessage::Close => {
                if std::mem::take(&mut flow.is_accepted) {
                    frontend.connections -= 1;
                }
                self.send(id, packet.saying(PacketMessage::Closed), context);
            }
            PacketMessage::Told => {
                frontend.moved += SEGMENT;
                flow.expected -= 1;
                if flow.expected == 0 {
                    let task = flow.task;
                    self.flows.close(packet.flow);
                    context.go_on(TaskOf { system: id, task }, Cause::Io, self);
                }
            }
            PacketMessage::Stream => self.receive_stream(id, packet, context),
            PacketMessage::StreamAck(count) => self.acknowledged(id, (packet, count), context),
            _ => {}
        }
    }

    /// Returns the recipient, inside the guest, of a packet that arrives. `None` if the packet is
    /// for the operating system itself.
    pub(super) fn recipient(&mut self, packet: Packet) -> Option<IoRecipient> {
        if !self.flows.is_current(packet) {
            return None;
        }
        let &mut Flow { client, task, .. } = self.flows.of(packet);
        match packet.says {
            PacketMessage::Told => Some(IoRecipient::Task(task)),
            PacketMessage::Request | PacketMessage::Ping => {
                Some(IoRecipient::Takes(self.clients[client].wants()))
            }
            PacketMessage::StreamAck(_) => {
                self.clients[client].stream.waiting.map(IoRecipient::Task)
            }
            _ => None,
        }
    }

    /// Hands a request to a task that waits for a request. If no task waits, queues the request.
    fn ask_task(&mut self, id: SystemId, packet: Packet, context: &mut Context<'_, '_>) {
        let by = self.clients[self.flows.of(packet).client].wants();
        let frontend = &mut self.frontends[usize::from(id)];
        frontend.requests.push_back((packet, by));
        if let Some(task) = frontend.take_taker(by) {
            context.go_on(TaskOf { system: id, task }, Cause::Io, self);
        }
    }

    /// Sends a packet of an operating system. Sending costs the system a work item, except for a
    /// driver domain with a send cost of zero.
    pub(super) fn send(&mut self, id: SystemId, packet: Packet, context: &mut Context<'_, '_>) {
        let frontend = &mut self.frontends[usize::from(id)];
        if id == self.driver.system && frontend.spec.costs.send.is_zero() {
            self.put_on_wire(packet, context);
        } else {
            frontend.out.push_back(packet);
        }
    }

    /// Sends the answer of a task to a client's request.
    pub(super) fn answer(
        &mut self,
        TaskOf { system: id, task }: TaskOf,
        (request, bytes): (Packet, u64),
        context: &mut Context<'_, '_>,
    ) {
        if !self.flows.is_current(request) {
            return;
        }
        self.flows.of(request).task = task;
        if request.says == PacketMessage::Ping {
            self.send(id, request.saying(PacketMessage::Pong), context);
            return;
        }
        let flow = self.flows.of(request);
        flow.unsent = packets(bytes);
        flow.expected = flow.unsent;
        self.send_data(id, (request, FIRST), context);
    }

    fn send_data(
        &mut self,
        id: SystemId,
        (packet, most): (Packet, u32),
        context: &mut Context<'_, '_>,
    ) {
        let flow = self.flows.of(packet);
        let count = flow.unsent.min(most);
        flow.unsent -= count;
        for _ in 0..count {
            self.send(id, packet.saying(PacketMessage::Data), context);
        }
    }

    /// Handles a packet that has reached a client or server outside the host.
    pub(super) fn reach(&mut self, packet: Packet, context: &mut Context<'_, '_>) {
        if !self.flows.is_current(packet) {
            return;
        }
        match packet.says {
            PacketMessage::Opened if self.flows.of(packet).is_wanted => {
                self.emit(packet.saying(PacketMessage::Confirmed), context);
                self.emit(packet.saying(PacketMessage::Request), context);
            }
            PacketMessage::Data => {
                let flow = self.flows.of(packet);
                flow.expected -= 1;
                if flow.expected > 0 {
                    self.emit(packet.saying(PacketMessage::Ack), context);
                } else if std::mem::take(&mut flow.is_wanted) {
                    self.answered(packet, context);
                    self.emit(packet.saying(PacketMessage::Close), context);
                }
            }
            PacketMessage::Closed => self.flows.close(packet.flow),
            PacketMessage::Pong => self.answered(packet, context),
            PacketMessage::Ask => {
                let flow = self.flows.of(packet);
                let then = context.now.after(flow.wait);
                for _ in 0..flow.expected {
                    let told = self.flights.add(packet.saying(PacketMessage::Told));
                    context.queue.push(then, Event::Emit, told);
                }
            }
            PacketMessage::Stream => self.take_stream(packet, context),
            PacketMessage::StreamAck(count) => self.pump(packet, count, context),
            _ => {}
        }
    }

    /// Handles a client that has received its complete answer.
    fn answered(&mut self, packet: Packet, context: &mut Context<'_, '_>) {
        let flow = self.flows.of(packet);
        let vcpu = context.systems.first(flow.system);
        let tasks = &self.frontends[usize::from(flow.system)].spec.tasks;
        let task = tasks.get(usize::from(flow.task)).and_then(|task| task.id);
        let (released, deadline, done) = (flow.began, Time::NEVER, context.now);
        let client = flow.client;
        let by = u16::try_from(client).ok().map(ClientId::new);
        context.systems.record(Record::Job { vcpu, task, client: by, released, deadline, done });
        self.ask_again(client, packet, context);
    }

    /// Drops a packet on its way to a guest. The sender sends the packet again later.
    pub(super) fn lose(&mut self, packet: Packet, context: &mut Context<'_, '_>) {
        if !self.flows.is_current(packet) {
            return;
        }
        let client = self.flows.of(packet).client;
        let again =
            if packet.says == PacketMessage::Open { self.clients[client].retry() } else { AGAIN };
        context.queue.push(context.now.after(again), Event::Emit, self.flights.add(packet));
    }

    /// Returns the delay of this packet between the host's wire and the client or server outside
    /// the host.
    #[inline(always)]
    pub(super) fn delay_of(&mut self, packet: Packet) -> Span {
        match self.flows.of(packet).client {
            A_TASK => Span::ZERO,
            client => self.clients[client].delay(),
        }
    }

    /// Sends a packet from a client or server outside the host.
    pub(super) fn emit(&mut self, packet: Packet, context: &mut Context<'_, '_>) {
        let sent = self.nic.wire_in(packet, context.now);
        let there = sent.after(self.delay_of(packet));
        context.queue.push(there, Event::Arrive, self.flights.add(packet));
    }

    /// Handles a packet of a client's stream that a guest has received.
    fn receive_stream(&mut self, id: SystemId, packet: Packet, context: &mut Context<'_, '_>) {
        let client = self.flows.of(packet).client;
        let stream = &mut self.clients[client].stream;
        stream.unacknowledged += 1;
        let count = stream.unacknowledged;
        let frontend = &mut self.frontends[usize::from(id)];
        frontend.moved += SEGMENT;
        if count >= 2 {
            stream.unacknowledged = 0;
            self.send(id, packet.saying(PacketMessage::StreamAck(count)), context);
        } else {
            frontend.lagging.push(client);
        }
    }

    /// Acknowledges all stream packets that are not acknowledged yet, because no more packets have
    /// arrived.
    pub(super) fn catch_up(&mut self, id: SystemId, context: &mut Context<'_, '_>) {
        while let Some(client) = self.frontends[usize::from(id)].lagging.pop() {
            let stream = &mut self.clients[client].stream;
            let count = std::mem::take(&mut stream.unacknowledged);
            if let (Some(packet), 1..) = (stream.packet, count) {
                self.send(id, packet.saying(PacketMessage::StreamAck(count)), context);
            }
        }
        self.tell_moved(id, context);
    }

    /// Records in the trace the bytes that a guest has received or delivered.
    pub(super) fn tell_moved(&mut self, id: SystemId, context: &mut Context<'_, '_>) {
        let frontend = &mut self.frontends[usize::from(id)];
        let bytes = std::mem::take(&mut frontend.moved);
        if bytes > 0 {
            let (at, vcpu) = (context.now, context.systems.first(id));
            context.systems.record(Record::Moved { at, vcpu, bytes });
        }
    }

    /// Handles the acknowledgement of stream packets that a guest sent.
    fn acknowledged(
        &mut self,
        id: SystemId,
        (packet, count): (Packet, u8),
        context: &mut Context<'_, '_>,
    ) {
        let client = self.flows.of(packet).client;
        self.clients[client].stream.outstanding -= u32::from(count);
        self.send_stream(id, client, context);
    }

    /// Sends packets of a guest's stream up to the limit of the window, and continues the task that
    /// waits for room in the stream.
    pub(super) fn send_stream(
        &mut self,
        id: SystemId,
        client: usize,
        context: &mut Context<'_, '_>,
    ) {
        loop {
            let stream = &mut self.clients[client].stream;
            let Some(packet) = stream.packet else { return };
            if stream.unsent < SEGMENT || stream.outstanding >= stream.window {
                break;
            }
            stream.unsent -= SEGMENT;
            stream.outstanding += 1;
            self.send(id, packet.saying(PacketMessage::Stream), context);
        }
        let stream = &mut self.clients[client].stream;
        let waiting = if stream.has_room() { stream.waiting.take() } else { None };
        if let Some(task) = waiting {
            context.go_on(TaskOf { system: id, task }, Cause::Io, self);
        }
    }

    /// Handles a packet of a guest's stream that reached the client. The client acknowledges every
    /// second packet, or every packet if the window is small.
    fn take_stream(&mut self, packet: Packet, context: &mut Context<'_, '_>) {
        let flow = self.flows.of(packet);
        let (id, client) = (flow.system, flow.client);
        let stream = &mut self.clients[client].stream;
        stream.unacknowledged += 1;
        self.frontends[usize::from(id)].moved += SEGMENT;
        if stream.unacknowledged >= 2 || stream.window < 4 {
            let count = std::mem::take(&mut stream.unacknowledged);
            self.emit(packet.saying(PacketMessage::StreamAck(count)), context);
            self.tell_moved(id, context);
        }
    }

    /// Returns the client to which the guest sends a stream. `None` if the guest sends none.
    pub(super) fn stream_out_of(&self, id: SystemId) -> Option<usize> {
        let out = |client: &super::Client<'_>| {
            client.system == id && client.stream_way() == Some(Direction::Out)
        };
        self.clients.iter().position(out)
    }
}
