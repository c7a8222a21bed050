//! Connections: what both ends make of a packet.
//!
//! A connection for one answer: `Open`, `Opened`, `Confirmed` and `Request` together, then the
//! data, three packets at first and two for each that is acknowledged (slow start, every packet but
//! the last is acknowledged by itself), then `Close` and `Closed`. A packet that is lost comes
//! again.
//! A stream keeps at most its window on the way; its receiver acknowledges every second packet, and
//! the last when there is no more.

use slackline_scenario::io::{SEGMENT, Way};
use slackline_trace::Record;
use slackline_units::{Span, Time};

use super::packet::{Packet, Says};
use super::{Io, SystemId};
use crate::queue::{Event, Queue};

/// How many packets of an answer are sent before the first is acknowledged.
const FIRST: u32 = 3;
/// How many follow when one is acknowledged.
const THEN: u32 = 2;
/// When a packet that was lost comes again; one that opens a connection takes its client's time.
const AGAIN: Span = Span::from_ms(200);
/// The client of a connection on which a task asks a server outside.
pub(super) const A_TASK: usize = usize::MAX;

/// A connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) turn: u32,
    pub(super) system: SystemId,
    /// Who is outside; `A_TASK` for the server that a task asks.
    pub(super) client: usize,
    pub(super) task: u16,
    /// The client still waits for the answer.
    pub(super) is_wanted: bool,
    /// The system has it among its connections.
    pub(super) is_accepted: bool,
    /// When the client asked.
    pub(super) began: Time,
    /// Packets of the answer that have not been sent, and those that have not come.
    unsent: u32,
    expected: u32,
}

/// All connections, by a small number; memory is used again.
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
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.flows.push(flow);
            u32::try_from(self.flows.len() - 1).expect("fewer connections than that")
        });
        let place = &mut self.flows[number as usize];
        let turn = place.turn + 1;
        *place = Flow { turn, ..flow };
        Packet { flow: number, turn, says: Says::Open }
    }

    pub(super) fn close(&mut self, number: u32) {
        self.flows[number as usize].turn += 1;
        self.free.push(number);
    }

    /// Whether the connection of a packet is still there.
    pub(super) fn is_current(&self, packet: Packet) -> bool {
        self.flows[packet.flow as usize].turn == packet.turn
    }

    /// Whose packet it is, even if its connection is gone: the number has not been used for another
    /// system's then, or it is for nobody.
    pub(super) fn system(&self, packet: Packet) -> SystemId {
        self.flows[packet.flow as usize].system
    }

    pub(super) fn of(&mut self, packet: Packet) -> &mut Flow {
        &mut self.flows[packet.flow as usize]
    }
}

impl Packet {
    pub(super) fn saying(self, says: Says) -> Packet {
        Packet { says, ..self }
    }
}

/// How many packets carry so many bytes.
pub(super) fn packets(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(SEGMENT)).unwrap_or(u32::MAX)
}

impl Io<'_> {
    /// A system makes something of a packet that it has received.
    pub(super) fn receive(&mut self, id: SystemId, packet: Packet, queue: &mut Queue) {
        if !self.flows.is_current(packet) {
            return;
        }
        let system = &mut self.systems[usize::from(id)];
        let flow = self.flows.of(packet);
        match packet.says {
            Says::Open if system.connections >= system.spec.connections => {
                self.lose(packet, queue);
            }
            Says::Open => {
                system.connections += 1;
                flow.is_accepted = true;
                self.send(id, packet.saying(Says::Opened), queue);
            }
            Says::Request => self.ask_task(id, packet, queue),
            Says::Ping if system.tasks.is_empty() => {
                self.send(id, packet.saying(Says::Pong), queue);
            }
            Says::Ping => self.ask_task(id, packet, queue),
            Says::Ack => self.send_data(id, (packet, THEN), queue),
            Says::Close => {
                if std::mem::take(&mut flow.is_accepted) {
                    system.connections -= 1;
                }
                self.send(id, packet.saying(Says::Closed), queue);
            }
            Says::Told => {
                system.moved += SEGMENT;
                flow.expected -= 1;
                if flow.expected == 0 {
                    let task = flow.task;
                    self.flows.close(packet.flow);
                    self.go_on_with_task(id, task, queue);
                }
            }
            Says::Stream => self.receive_stream(id, packet, queue),
            Says::StreamAck(count) => self.acknowledged(id, (packet, count), queue),
            _ => {}
        }
    }

    /// A request goes to a task that waits for one, or waits for a task.
    fn ask_task(&mut self, id: SystemId, packet: Packet, queue: &mut Queue) {
        let system = &mut self.systems[usize::from(id)];
        system.requests.push_back(packet);
        if let Some(task) = system.acceptors.pop_front() {
            self.go_on_with_task(id, task, queue);
        }
    }

    /// A system sends a packet: it costs it something, unless it is the driver and that is free.
    pub(super) fn send(&mut self, id: SystemId, packet: Packet, queue: &mut Queue) {
        let system = &mut self.systems[usize::from(id)];
        if id == self.driver.system && system.spec.costs.send.is_zero() {
            self.put_on_wire(packet, queue);
        } else {
            system.out.push_back(packet);
        }
    }

    /// A task answers a request.
    pub(super) fn answer(
        &mut self,
        id: SystemId,
        (request, bytes): (Packet, u64),
        queue: &mut Queue,
    ) {
        if !self.flows.is_current(request) {
            return;
        }
        if request.says == Says::Ping {
            self.send(id, request.saying(Says::Pong), queue);
            return;
        }
        let flow = self.flows.of(request);
        flow.unsent = packets(bytes);
        flow.expected = flow.unsent;
        self.send_data(id, (request, FIRST), queue);
    }

    fn send_data(&mut self, id: SystemId, (packet, most): (Packet, u32), queue: &mut Queue) {
        let flow = self.flows.of(packet);
        let count = flow.unsent.min(most);
        flow.unsent -= count;
        for _ in 0..count {
            self.send(id, packet.saying(Says::Data), queue);
        }
    }

    /// A packet has reached who is outside.
    pub(super) fn reach(&mut self, packet: Packet, queue: &mut Queue) {
        if !self.flows.is_current(packet) {
            return;
        }
        match packet.says {
            Says::Opened if self.flows.of(packet).is_wanted => {
                self.emit(packet.saying(Says::Confirmed), queue);
                self.emit(packet.saying(Says::Request), queue);
            }
            Says::Data => {
                let flow = self.flows.of(packet);
                flow.expected -= 1;
                if flow.expected > 0 {
                    self.emit(packet.saying(Says::Ack), queue);
                } else if std::mem::take(&mut flow.is_wanted) {
                    self.answered(packet, queue);
                    self.emit(packet.saying(Says::Close), queue);
                }
            }
            Says::Closed => self.flows.close(packet.flow),
            Says::Pong => self.answered(packet, queue),
            Says::Ask => {
                let flow = self.flows.of(packet);
                let task =
                    &mut self.systems[usize::from(flow.system)].tasks[usize::from(flow.task)];
                let (count, wait) = task.question();
                flow.expected = count;
                let then = self.now.after(wait);
                for _ in 0..count {
                    let told = self.flights.add(packet.saying(Says::Told));
                    queue.push(then, Event::Emit, told);
                }
            }
            Says::Stream => self.take_stream(packet, queue),
            Says::StreamAck(count) => self.pump(packet, count, queue),
            _ => {}
        }
    }

    /// A client has its answer.
    fn answered(&mut self, packet: Packet, queue: &mut Queue) {
        let flow = self.flows.of(packet);
        let vcpu = self.systems[usize::from(flow.system)].first();
        let (released, deadline, done) = (flow.began, Time::NEVER, self.now);
        self.effects.record(Record::Job { vcpu, task: None, released, deadline, done });
        let client = flow.client;
        self.ask_again(client, packet, queue);
    }

    /// A packet to the host got lost; its sender finds out and sends it again.
    pub(super) fn lose(&mut self, packet: Packet, queue: &mut Queue) {
        if !self.flows.is_current(packet) {
            return;
        }
        let client = self.flows.of(packet).client;
        let again = if packet.says == Says::Open { self.clients[client].retry() } else { AGAIN };
        queue.push(self.now.after(again), Event::Emit, self.flights.add(packet));
    }

    /// How long this packet takes from the wire to who is outside, or back.
    #[inline(always)]
    pub(super) fn delay_of(&mut self, packet: Packet) -> Span {
        match self.flows.of(packet).client {
            A_TASK => Span::ZERO,
            client => self.clients[client].delay(),
        }
    }

    /// Who is outside sends a packet.
    pub(super) fn emit(&mut self, packet: Packet, queue: &mut Queue) {
        let sent = self.nic.wire_in(packet, self.now);
        let there = sent.after(self.delay_of(packet));
        queue.push(there, Event::Arrive, self.flights.add(packet));
    }

    /// A packet of a stream has come to a system.
    fn receive_stream(&mut self, id: SystemId, packet: Packet, queue: &mut Queue) {
        let client = self.flows.of(packet).client;
        let stream = &mut self.clients[client].stream;
        stream.unacknowledged += 1;
        let count = stream.unacknowledged;
        let system = &mut self.systems[usize::from(id)];
        system.moved += SEGMENT;
        if count >= 2 {
            stream.unacknowledged = 0;
            self.send(id, packet.saying(Says::StreamAck(count)), queue);
        } else {
            system.lagging.push(client);
        }
    }

    /// Nothing more has come: what has not been acknowledged is.
    pub(super) fn catch_up(&mut self, id: SystemId, queue: &mut Queue) {
        while let Some(client) = self.systems[usize::from(id)].lagging.pop() {
            let stream = &mut self.clients[client].stream;
            let count = std::mem::take(&mut stream.unacknowledged);
            if let (Some(packet), 1..) = (stream.packet, count) {
                self.send(id, packet.saying(Says::StreamAck(count)), queue);
            }
        }
        self.tell_moved(id);
    }

    /// Tells the trace what data has come or gone.
    pub(super) fn tell_moved(&mut self, id: SystemId) {
        let system = &mut self.systems[usize::from(id)];
        let bytes = std::mem::take(&mut system.moved);
        if bytes > 0 {
            let (at, vcpu) = (self.now, system.first());
            self.effects.record(Record::Moved { at, vcpu, bytes });
        }
    }

    /// Packets of the stream that a system sends have come to the other side.
    fn acknowledged(&mut self, id: SystemId, (packet, count): (Packet, u8), queue: &mut Queue) {
        let client = self.flows.of(packet).client;
        self.clients[client].stream.outstanding -= u32::from(count);
        self.send_stream(id, client, queue);
    }

    /// A system sends what its window lets it, and lets the task go on that waits for room.
    pub(super) fn send_stream(&mut self, id: SystemId, client: usize, queue: &mut Queue) {
        loop {
            let stream = &mut self.clients[client].stream;
            let Some(packet) = stream.packet else { return };
            if stream.unsent < SEGMENT || stream.outstanding >= stream.window {
                break;
            }
            stream.unsent -= SEGMENT;
            stream.outstanding += 1;
            self.send(id, packet.saying(Says::Stream), queue);
        }
        let stream = &mut self.clients[client].stream;
        let waiting = if stream.has_room() { stream.waiting.take() } else { None };
        if let Some(task) = waiting {
            self.go_on_with_task(id, task, queue);
        }
    }

    /// A packet of a stream out has come; every second is acknowledged, or each of a small window.
    fn take_stream(&mut self, packet: Packet, queue: &mut Queue) {
        let flow = self.flows.of(packet);
        let (id, client) = (flow.system, flow.client);
        let stream = &mut self.clients[client].stream;
        stream.unacknowledged += 1;
        self.systems[usize::from(id)].moved += SEGMENT;
        if stream.unacknowledged >= 2 || stream.window < 4 {
            let count = std::mem::take(&mut stream.unacknowledged);
            self.emit(packet.saying(Says::StreamAck(count)), queue);
            self.tell_moved(id);
        }
    }

    /// Whether a client's stream goes that way.
    pub(super) fn stream_out_of(&self, id: SystemId) -> Option<usize> {
        let out = |client: &super::Client<'_>| {
            client.system == id && client.stream_way() == Some(Way::Out)
        };
        self.clients.iter().position(out)
    }
}
