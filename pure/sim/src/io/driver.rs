//! The driver domain, which serves the network card, the disk and the rings shared with guests.
//!
//! Its first vCPU does one work item after the other, in this order of precedence:
//!
//! 1. the handler of an interrupt or event
//! 2. packets that have arrived
//! 3. completed disk reads
//! 4. disk requests and packets that guests send
//! 5. the domain's own devices and tasks
//!
//! The driver takes arrived packets up to a limit. Then it hands each guest its packets with a
//! single event. When no work is left, the vCPU blocks. The card does not interrupt while the
//! driver takes packets from it.

use std::collections::VecDeque;

use slackline_scenario::io;
use slackline_trace::{Record, Service};
use slackline_units::{CpuId, Span};

use super::frontend::DeviceWork;
use super::nic::{DiskRead, Interrupts};
use super::packet::Packet;
use super::{Context, Io};
use crate::guest::{InterruptTarget, SystemId};
use crate::queue::Event;

pub(super) struct Driver {
    pub(super) spec: io::Driver,
    /// Operating system of the driver domain.
    pub(super) system: SystemId,
    /// True if the driver domain reports pending I/O to the scheduler.
    pub(super) tells: bool,
    /// True if the driver was interrupted and has not handled the interrupt yet.
    is_interrupted: bool,
    /// True if a guest sent the driver an event that the driver has not handled yet.
    is_told: bool,
    /// Packets that the driver took from the card and has not handed to their guests yet.
    batch: Vec<Packet>,
    /// Guests whose rings have entries, in the order in which the driver serves the guests.
    calls: VecDeque<SystemId>,
    /// Disk request that the driver is passing to the disk, or completed read that it is passing
    /// to the guest.
    read: Option<DiskRead>,
    /// Work that the driver has done for each guest since the last record of such work in the
    /// trace.
    service: Vec<Service>,
    /// Guests for which `service` has work.
    served: Vec<SystemId>,
}

impl Driver {
    pub(super) fn new(
        spec: &io::Driver,
        (system, tells): (SystemId, bool),
        systems: usize,
    ) -> Driver {
        Driver {
            spec: spec.clone(),
            system,
            tells,
            is_interrupted: false,
            is_told: false,
            batch: Vec::with_capacity(spec.batch),
            calls: VecDeque::new(),
            read: None,
            service: vec![Service::default(); systems],
            served: Vec::new(),
        }
    }

    #[inline]
    fn service(&mut self, of: SystemId) -> &mut Service {
        let service = &mut self.service[usize::from(of)];
        if *service == Service::default() {
            self.served.push(of);
        }
        service
    }
}

impl Io<'_> {
    /// Handles a packet that arrives at the network card.
    pub(super) fn arrive(&mut self, packet: Packet, context: &mut Context<'_, '_>) {
        if self.nic.ring.len() >= self.nic.spec.ring {
            self.lose(packet, context);
            return;
        }
        self.nic.ring.push_back(packet);
        if self.nic.interrupts != Interrupts::On {
            return;
        }
        if self.nic.spec.coalesce.is_zero() {
            self.interrupt(context);
        } else {
            self.nic.interrupts = Interrupts::Held;
            context.queue.push(context.now.after(self.nic.spec.coalesce), Event::Interrupt, 0);
        }
    }

    /// Handles an interrupt of the network card.
    pub(super) fn interrupt(&mut self, context: &mut Context<'_, '_>) {
        self.nic.interrupts = Interrupts::Off;
        self.interrupted((self.nic.spec.interrupt, self.nic.spec.cpu), context);
    }

    /// Handles an interrupt of the disk.
    pub(super) fn disk_interrupt(&mut self, context: &mut Context<'_, '_>) {
        self.interrupted((self.disk.spec.interrupt, self.disk.spec.cpu), context);
    }

    fn interrupted(&mut self, (cost, cpu): (Span, Option<CpuId>), context: &mut Context<'_, '_>) {
        self.driver.is_interrupted = true;
        if !cost.is_zero() {
            let driver = InterruptTarget::OfVcpu(context.systems.first(self.driver.system));
            context.systems.effects.steal(cpu.map_or(driver, InterruptTarget::Cpu), cost);
        }
        context.systems.effects.signals_from = cpu;
        context.systems.alert(self.driver.system);
    }

    /// Sends the driver domain an event about a new entry in a guest's rings. Does nothing if the
    /// driver domain already knows that these rings have entries.
    pub(super) fn tell_driver(&mut self, guest: SystemId, context: &mut Context<'_, '_>) {
        let frontend = &mut self.frontends[usize::from(guest)];
        if std::mem::replace(&mut frontend.driver_knows, true) {
            return;
        }
        self.driver.calls.push_back(guest);
        self.driver.is_told = true;
        self.driver.service(guest).events += 1;
        context.systems.alert(self.driver.system);
    }

    /// Sends a guest an event about completed I/O, unless the guest has an unhandled event already.
    fn tell_guest(&mut self, guest: SystemId, context: &mut Context<'_, '_>) {
        self.pending_changed(guest, context);
        let frontend = &mut self.frontends[usize::from(guest)];
        if std::mem::replace(&mut frontend.is_told, true) {
            return;
        }
        self.driver.service(guest).events += 1;
        context.systems.alert(guest);
    }

    /// Returns the driver's next work for guests and devices, and the cost of that work, varied at
    /// random.
    #[inline(always)]
    pub(super) fn choose_service(
        &mut self,
        context: &mut Context<'_, '_>,
    ) -> Option<(DeviceWork, Span)> {
        let (duty, cost) = self.next_service()?;
        let Driver { system, spec, .. } = &self.driver;
        Some((duty, context.systems.vary(*system, cost, spec.costs.noise_ppm)))
    }

    /// Returns the driver's next work for guests and devices, and the cost of that work before
    /// random variation.
    #[inline(always)]
    fn next_service(&mut self) -> Option<(DeviceWork, Span)> {
        let driver = &mut self.driver;
        let costs = &driver.spec.costs;
        if std::mem::take(&mut driver.is_interrupted) && !costs.interrupt.is_zero() {
            return Some((DeviceWork::Interrupt, costs.interrupt));
        }
        if std::mem::take(&mut driver.is_told) && !costs.event.is_zero() {
            return Some((DeviceWork::Told, costs.event));
        }
        if self.nic.interrupts == Interrupts::Off {
            if let Some(packet) = self.nic.ring.pop_front() {
                return Some((DeviceWork::Take(packet), costs.receive));
            }
            self.nic.interrupts = Interrupts::On;
        }
        if let Some(read) = self.disk.done.pop_front() {
            driver.read = Some(read);
            return Some((DeviceWork::TakeRead, costs.request));
        }
        let guest = driver.calls.pop_front()?;
        if let Some(read) = self.frontends[usize::from(guest)].reads.pop_front() {
            driver.read = Some(read);
            return Some((DeviceWork::PassRead, costs.request));
        }
        Some((DeviceWork::Pass(guest), costs.send))
    }

    /// Applies the effects of work that the driver has completed for guests and devices.
    #[inline(always)]
    pub(super) fn finish_driver(
        &mut self,
        duty: DeviceWork,
        cost: Span,
        context: &mut Context<'_, '_>,
    ) {
        match duty {
            DeviceWork::Take(packet) => {
                let system = self.flows.system(packet);
                let service = self.driver.service(system);
                service.used += cost;
                service.received += 1;
                if system == self.driver.system {
                    self.receive(system, packet, context);
                } else {
                    self.driver.batch.push(packet);
                }
                if self.nic.ring.is_empty() || self.driver.batch.len() >= self.driver.spec.batch {
                    self.hand_over(context);
                }
            }
            DeviceWork::Pass(guest) => {
                let service = self.driver.service(guest);
                service.used += cost;
                service.sent += 1;
                let ring = &mut self.frontends[usize::from(guest)].ring;
                let packet = ring.pop_front().expect("the ring had a packet");
                self.put_on_wire(packet, context);
                self.call_again(guest, context);
            }
            DeviceWork::PassRead => {
                let Some(read) = self.driver.read.take() else { return };
                self.driver.service(read.system).used += cost;
                let done = self.disk.ask(read, context.now);
                context.queue.extend(done, Event::Disk);
                self.call_again(read.system, context);
            }
            DeviceWork::TakeRead => {
                let Some(read) = self.driver.read.take() else { return };
                let service = self.driver.service(read.system);
                service.used += cost;
                service.requests += 1;
                self.frontends[usize::from(read.system)].hand_over_read(read);
                self.tell_guest(read.system, context);
            }
            _ => {}
        }
    }

    /// Puts a guest at the end of the driver's queue if its rings have more entries. Otherwise
    /// sends the guest an event if the guest waits for room in a ring.
    fn call_again(&mut self, guest: SystemId, context: &mut Context<'_, '_>) {
        let frontend = &mut self.frontends[usize::from(guest)];
        if !frontend.ring.is_empty() || !frontend.reads.is_empty() {
            self.driver.calls.push_back(guest);
            return;
        }
        frontend.driver_knows = false;
        if !frontend.out.is_empty() || !frontend.asking.is_empty() {
            self.tell_guest(guest, context);
        }
    }

    /// Hands a batch of packets to the guests they are for, with one event for each guest.
    fn hand_over(&mut self, context: &mut Context<'_, '_>) {
        let mut batch = std::mem::take(&mut self.driver.batch);
        for packet in batch.drain(..) {
            let id = self.flows.system(packet);
            let recipient = self.recipient(packet);
            let frontend = &mut self.frontends[usize::from(id)];
            if !context.systems.is_here(id) || !frontend.has_room() {
                self.lose(packet, context);
                continue;
            }
            frontend.hand_over(packet, recipient);
            self.tell_guest(id, context);
        }
        self.driver.batch = batch;
        if self.nic.ring.is_empty() {
            self.catch_up(self.driver.system, context);
        }
    }

    /// Sends a packet from the network card.
    pub(super) fn put_on_wire(&mut self, packet: Packet, context: &mut Context<'_, '_>) {
        let sent = self.nic.wire_out(packet, context.now);
        let there = sent.after(self.delay_of(packet));
        context.queue.push(there, Event::Reach, self.flights.add(packet));
    }

    /// Records in the trace the work that the driver has done for each guest.
    pub(super) fn tell_service(&mut self, context: &mut Context<'_, '_>) {
        let by = context.systems.first(self.driver.system);
        while let Some(id) = self.driver.served.pop() {
            let service = std::mem::take(&mut self.driver.service[usize::from(id)]);
            let of = context.systems.first(id);
            context.systems.record(Record::Served { at: context.now, by, of, service });
        }
    }
}
