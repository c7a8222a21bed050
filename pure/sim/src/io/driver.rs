//! The driver domain: serves the network card, the disk and the rings it shares with the guests.
//!
//! In this order, one item after the other: why it was interrupted or told to look, packets that
//! have come (so many at most, then each guest gets its own with one event), the disk, packets that
//! guests send, then its own system and tasks. When nothing is left it blocks. While it takes
//! packets from the card the card does not interrupt.

use std::collections::VecDeque;

use slackline_scenario::io;
use slackline_trace::{Record, Service};
use slackline_units::Span;

use super::nic::{DiskRead, Interrupts};
use super::packet::Packet;
use super::system::{Doing, Item};
use super::{Io, SystemId};
use crate::queue::{Event, Queue};

pub(super) struct Driver {
    pub(super) spec: io::Driver,
    /// Its own.
    pub(super) system: SystemId,
    /// It was interrupted, and has not yet looked why.
    is_interrupted: bool,
    /// A guest told it to look, and it has not yet.
    is_told: bool,
    /// Packets taken from the card, not yet handed over.
    batch: Vec<Packet>,
    /// Guests with something in their rings, in the order in which they are served.
    calls: VecDeque<SystemId>,
    /// What it takes to the disk, or back from it.
    read: Option<DiskRead>,
    /// By system: what was done for it, since that was last told.
    service: Vec<Service>,
    served: Vec<SystemId>,
}

impl Driver {
    pub(super) fn new(spec: &io::Driver, system: SystemId, systems: usize) -> Driver {
        Driver {
            spec: spec.clone(),
            system,
            is_interrupted: false,
            is_told: false,
            batch: Vec::with_capacity(spec.batch),
            calls: VecDeque::new(),
            read: None,
            service: vec![Service::default(); systems],
            served: Vec::new(),
        }
    }

    fn service(&mut self, of: SystemId) -> &mut Service {
        let service = &mut self.service[usize::from(of)];
        if *service == Service::default() {
            self.served.push(of);
        }
        service
    }
}

impl Io<'_> {
    /// A packet has come to the card.
    pub(super) fn arrive(&mut self, packet: Packet, queue: &mut Queue) {
        if self.nic.ring.len() >= self.nic.spec.ring {
            self.lose(packet, queue);
            return;
        }
        self.nic.ring.push_back(packet);
        if self.nic.interrupts != Interrupts::On {
            return;
        }
        if self.nic.spec.coalesce.is_zero() {
            self.interrupt();
        } else {
            self.nic.interrupts = Interrupts::Held;
            queue.push(self.now.after(self.nic.spec.coalesce), Event::Interrupt, 0);
        }
    }

    /// The card interrupts.
    pub(super) fn interrupt(&mut self) {
        self.nic.interrupts = Interrupts::Off;
        self.interrupted(self.nic.spec.interrupt);
    }

    /// The disk interrupts.
    pub(super) fn disk_interrupt(&mut self) {
        self.interrupted(self.disk.spec.interrupt);
    }

    fn interrupted(&mut self, cost: Span) {
        self.driver.is_interrupted = true;
        if !cost.is_zero() {
            let driver = self.systems[usize::from(self.driver.system)].first();
            self.effects.steal(driver, cost);
        }
        self.alert(self.driver.system);
    }

    /// A guest has put something in one of its rings: the driver is told, unless it knows.
    pub(super) fn tell_driver(&mut self, guest: SystemId) {
        let system = &mut self.systems[usize::from(guest)];
        if std::mem::replace(&mut system.driver_knows, true) {
            return;
        }
        self.driver.calls.push_back(guest);
        self.driver.is_told = true;
        self.driver.service(guest).events += 1;
        self.alert(self.driver.system);
    }

    /// The driver has something for a guest: it is told, unless it knows.
    fn tell_guest(&mut self, guest: SystemId) {
        let system = &mut self.systems[usize::from(guest)];
        if std::mem::replace(&mut system.is_told, true) {
            return;
        }
        self.driver.service(guest).events += 1;
        self.alert(guest);
    }

    /// What the driver does next for others.
    #[inline(always)]
    pub(super) fn choose_service(&mut self) -> Option<Item> {
        let costs = self.driver.spec.costs;
        let driver = &mut self.driver;
        if std::mem::take(&mut driver.is_interrupted) && !costs.interrupt.is_zero() {
            return Some(Item {
                doing: Doing::Interrupt,
                cost: self.vary_service(costs.interrupt),
            });
        }
        if std::mem::take(&mut driver.is_told) && !costs.event.is_zero() {
            return Some(Item { doing: Doing::Told, cost: self.vary_service(costs.event) });
        }
        if self.nic.interrupts == Interrupts::Off {
            if let Some(packet) = self.nic.ring.pop_front() {
                return Some(Item {
                    doing: Doing::Take(packet),
                    cost: self.vary_service(costs.receive),
                });
            }
            self.nic.interrupts = Interrupts::On;
        }
        if let Some(read) = self.disk.done.pop_front() {
            self.driver.read = Some(read);
            return Some(Item { doing: Doing::TakeRead, cost: self.vary_service(costs.request) });
        }
        let guest = self.driver.calls.pop_front()?;
        let system = &mut self.systems[usize::from(guest)];
        if let Some(read) = system.reads.pop_front() {
            self.driver.read = Some(read);
            return Some(Item { doing: Doing::PassRead, cost: self.vary_service(costs.request) });
        }
        Some(Item { doing: Doing::Pass(guest), cost: self.vary_service(costs.send) })
    }

    #[inline(always)]
    fn vary_service(&mut self, cost: Span) -> Span {
        let ppm = self.driver.spec.costs.noise_ppm;
        self.systems[usize::from(self.driver.system)].vary_by(cost, ppm)
    }

    /// The driver has done something for others.
    #[inline(always)]
    pub(super) fn finish_driver(&mut self, doing: Doing, cost: Span, queue: &mut Queue) {
        match doing {
            Doing::Take(packet) => {
                let system = self.flows.system(packet);
                let service = self.driver.service(system);
                service.used += cost;
                service.received += 1;
                if system == self.driver.system {
                    self.receive(system, packet, queue);
                } else {
                    self.driver.batch.push(packet);
                }
                if self.nic.ring.is_empty() || self.driver.batch.len() >= self.driver.spec.batch {
                    self.hand_over(queue);
                }
            }
            Doing::Pass(guest) => {
                let service = self.driver.service(guest);
                service.used += cost;
                service.sent += 1;
                let ring = &mut self.systems[usize::from(guest)].ring;
                let packet = ring.pop_front().expect("there was a packet in the ring");
                self.put_on_wire(packet, queue);
                self.call_again(guest);
            }
            Doing::PassRead => {
                let Some(read) = self.driver.read.take() else { return };
                self.driver.service(read.system).used += cost;
                let done = self.disk.ask(read, self.now);
                queue.extend(done, Event::Disk);
                self.call_again(read.system);
            }
            Doing::TakeRead => {
                let Some(read) = self.driver.read.take() else { return };
                let service = self.driver.service(read.system);
                service.used += cost;
                service.requests += 1;
                self.systems[usize::from(read.system)].read.push_back(read);
                self.tell_guest(read.system);
            }
            _ => {}
        }
    }

    /// Puts a guest behind the others if there is more in its rings. Who waits for room in a ring
    /// is told when it is empty.
    fn call_again(&mut self, guest: SystemId) {
        let system = &mut self.systems[usize::from(guest)];
        if !system.ring.is_empty() || !system.reads.is_empty() {
            self.driver.calls.push_back(guest);
            return;
        }
        system.driver_knows = false;
        if !system.out.is_empty() || !system.asking.is_empty() {
            self.tell_guest(guest);
        }
    }

    /// Hands a batch of packets over, each guest's with one event.
    fn hand_over(&mut self, queue: &mut Queue) {
        let mut batch = std::mem::take(&mut self.driver.batch);
        for packet in batch.drain(..) {
            let id = self.flows.system(packet);
            let system = &mut self.systems[usize::from(id)];
            if !system.is_here() || system.received.len() >= system.spec.ring {
                self.lose(packet, queue);
                continue;
            }
            system.received.push_back(packet);
            self.tell_guest(id);
        }
        self.driver.batch = batch;
        if self.nic.ring.is_empty() {
            self.catch_up(self.driver.system, queue);
        }
    }

    /// The card sends a packet.
    pub(super) fn put_on_wire(&mut self, packet: Packet, queue: &mut Queue) {
        let sent = self.nic.wire_out(packet, self.now);
        let there = sent.after(self.delay_of(packet));
        queue.push(there, Event::Reach, self.flights.add(packet));
    }

    /// Tells the trace what the driver has done for whom.
    pub(super) fn tell_service(&mut self) {
        let by = self.systems[usize::from(self.driver.system)].first();
        while let Some(id) = self.driver.served.pop() {
            let service = std::mem::take(&mut self.driver.service[usize::from(id)]);
            let of = self.systems[usize::from(id)].first();
            self.effects.record(Record::Served { at: self.now, by, of, service });
        }
    }
}
