//! Devices behind a driver domain, the rings that systems share with it, and the clients and
//! servers outside.
//!
//! A system does one item after the other, each with a cost. Items for devices are chosen here: it
//! handles an event, receives a packet, sends a packet. The driver domain is a system with further
//! items: those that serve the devices and the rings of the guests. A system without work blocks.
//! It is woken by an event of another domain, by an interrupt or by a timer.
//!
//! The throughput of such a host depends on how often the driver domain is dispatched. Each packet
//! that a guest sends wakes it at once. Whether it then serves one packet or a hundred is up to the
//! scheduler. So every wake is reported at the instant at which it happens, before its cause
//! continues.

mod client;
mod driver;
mod flow;
mod frontend;
mod nic;
mod packet;
mod steps;

use slackline_scenario::io::DeviceStep;
use slackline_scenario::{Purpose, Scenario, Stream, io};
use slackline_units::{Span, VcpuHint, VcpuId};

use crate::guest::{self, Devices, Seat, SystemId, TaskOf, TaskStep};
use crate::queue::Event;
use client::Client;
use driver::Driver;
use flow::Flows;
use frontend::Frontend;
use nic::{Disk, Nic};
use packet::Flights;

pub(crate) use frontend::DeviceWork;

/// Systems that may have work for devices.
pub(crate) type Systems<'a> = guest::Systems<'a, DeviceWork>;
/// Instant at which something happens to these systems.
type Context<'c, 'a> = guest::Context<'c, 'a, DeviceWork>;

/// State of all devices and of the clients outside.
pub(crate) struct Io<'a> {
    driver: Driver,
    nic: Nic,
    disk: Disk,
    /// Front end of each system.
    frontends: Vec<Frontend<'a>>,
    clients: Vec<Client<'a>>,
    flows: Flows,
    flights: Flights,
}

impl<'a> Io<'a> {
    /// Returns the devices of a scenario. `None` if it has none.
    pub(crate) fn new(scenario: &'a Scenario, systems: &Systems<'_>) -> Option<Io<'a>> {
        let spec = scenario.io.as_ref()?;
        let with_systems = scenario.domains.iter().filter_map(|domain| domain.system.as_ref());
        let mine = systems.of_domain(spec.driver.domain).expect("the driver domain has a system");
        let client = |(index, client): (usize, &'a io::Client)| {
            let system = systems.of_domain(client.to).expect("a client talks to a system");
            let stream = |purpose| Stream::new(scenario.seed, index as u64, purpose);
            Client::new(client, system, stream(Purpose::Client), stream(Purpose::Delay))
        };
        let clients = spec.clients.iter().enumerate().map(client).collect();
        Some(Io {
            driver: Driver::new(&spec.driver, (mine, systems.tells(mine)), systems.count()),
            nic: Nic::new(spec.nic),
            disk: Disk::new(spec.disk, Stream::new(scenario.seed, 0, Purpose::Disk)),
            frontends: with_systems.map(Frontend::new).collect(),
            clients,
            flows: Flows::default(),
            flights: Flights::default(),
        })
    }

    /// Starts the clients of a system that has joined.
    pub(crate) fn join(&mut self, id: SystemId, context: &mut Context<'_, '_>) {
        for client in 0..self.clients.len() {
            if self.clients[client].system == id {
                self.start_client(client, context);
            }
        }
    }

    /// Records the remaining counts at the end of the run.
    pub(crate) fn end(&mut self, context: &mut Context<'_, '_>) {
        self.tell_service(context);
        (0..).take(self.frontends.len()).for_each(|id| self.tell_moved(id, context));
    }

    /// Handles an event outside of all CPUs.
    #[inline(always)]
    pub(crate) fn happen(&mut self, (event, about): (Event, usize), context: &mut Context<'_, '_>) {
        match event {
            Event::Arrive => {
                let packet = self.flights.take(about);
                self.arrive(packet, context);
            }
            Event::Reach => {
                let packet = self.flights.take(about);
                self.reach(packet, context);
            }
            Event::Emit => {
                let packet = self.flights.take(about);
                if self.flows.is_current(packet) {
                    self.emit(packet, context);
                }
            }
            Event::Interrupt => self.interrupt(context),
            Event::Disk => {
                let next = self.disk.finish(context.now);
                self.disk_interrupt(context);
                context.queue.extend(next, Event::Disk);
            }
            Event::Client => self.act(about, context),
            Event::Expire => self.expire(about, context),
            Event::Wake
            | Event::Allow
            | Event::Tick
            | Event::FairTick
            | Event::Interfere
            | Event::Task => {
                unreachable!("not of devices")
            }
        }
    }

    /// Returns the hint of how much finished I/O is pending for a system, and the driver vCPU that
    /// reports it. `None` if it has not changed.
    pub(crate) fn pending(
        &mut self,
        id: SystemId,
        systems: &Systems<'_>,
    ) -> Option<(VcpuId, VcpuHint)> {
        let pending = self.frontends[usize::from(id)].news(systems.first(id).domain())?;
        Some((systems.first(self.driver.system), VcpuHint::Pending(pending)))
    }

    fn is_driver(&self, seat: Seat) -> bool {
        seat.system == self.driver.system && seat.number == 0
    }
}

impl Devices for Option<Io<'_>> {
    type Duty = DeviceWork;

    fn step(&mut self, of: TaskOf, step: DeviceStep, at: &mut Context<'_, '_>) -> TaskStep {
        self.as_mut().expect("only scenarios with devices have such a step").step(of, step, at)
    }

    #[inline(always)]
    fn choose(&mut self, seat: Seat, context: &mut Context<'_, '_>) -> Option<(DeviceWork, Span)> {
        self.as_mut()?.choose(seat, context)
    }

    #[inline(always)]
    fn finish(&mut self, seat: Seat, done: (DeviceWork, Span), context: &mut Context<'_, '_>) {
        if let Some(io) = self {
            io.finish(seat, done, context);
        }
    }

    #[inline(always)]
    fn idle(&self, seat: Seat) -> Span {
        self.as_ref().map_or(Span::ZERO, |io| io.idle(seat))
    }

    fn blocks(&mut self, seat: Seat, context: &mut Context<'_, '_>) {
        if let Some(io) = self {
            io.blocks(seat, context);
        }
    }
}

impl Devices for Io<'_> {
    type Duty = DeviceWork;

    fn step(&mut self, of: TaskOf, step: DeviceStep, at: &mut Context<'_, '_>) -> TaskStep {
        self.take_step(of, step, at)
    }

    /// Interrupts, events and packets go to the first vCPU of a system.
    #[inline(always)]
    fn choose(&mut self, seat: Seat, context: &mut Context<'_, '_>) -> Option<(DeviceWork, Span)> {
        if seat.number != 0 {
            return None;
        }
        let service = if self.is_driver(seat) { self.choose_service(context) } else { None };
        if service.is_some() { service } else { self.choose_frontend(seat.system, context) }
    }

    #[inline(always)]
    fn finish(
        &mut self,
        seat: Seat,
        (duty, cost): (DeviceWork, Span),
        context: &mut Context<'_, '_>,
    ) {
        match duty {
            DeviceWork::Event
            | DeviceWork::Receive(_)
            | DeviceWork::Send
            | DeviceWork::AskDisk
            | DeviceWork::ReadDone => {
                self.finish_frontend(seat.system, duty, context);
            }
            DeviceWork::Interrupt
            | DeviceWork::Told
            | DeviceWork::Take(_)
            | DeviceWork::Pass(_)
            | DeviceWork::PassRead
            | DeviceWork::TakeRead => self.finish_driver(duty, cost, context),
        }
    }

    #[inline(always)]
    fn idle(&self, seat: Seat) -> Span {
        if self.is_driver(seat) { self.driver.spec.costs.idle } else { Span::ZERO }
    }

    fn blocks(&mut self, seat: Seat, context: &mut Context<'_, '_>) {
        if self.is_driver(seat) {
            self.tell_service(context);
        }
    }
}
