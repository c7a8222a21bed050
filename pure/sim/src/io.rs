//! Devices behind a driver domain, the rings that guests share with it, and the clients and servers
//! outside the host.
//!
//! A simulated operating system does one work item after the other, each with a cost. This module
//! chooses the items for devices: to handle an event, to receive a packet, to send a packet. The
//! driver domain has further items, which serve the devices and the rings of the guests. A vCPU
//! without work blocks. An event of another domain, an interrupt or a timer wakes it.
//!
//! The throughput of such a host depends on how often the driver domain is dispatched. Each packet
//! that a guest sends wakes the driver domain immediately. The scheduler decides if the driver
//! domain then serves one packet or a hundred. So every wake is reported at the instant at which it
//! happens, before the vCPU that caused it continues.

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

/// Simulated operating systems that can have work for devices.
pub(crate) type Systems<'a> = guest::Systems<'a, DeviceWork>;
/// State that handlers of device events read and change.
type Context<'c, 'a> = guest::Context<'c, 'a, DeviceWork>;

/// State of all devices and of the clients outside.
pub(crate) struct Io<'a> {
    driver: Driver,
    nic: Nic,
    disk: Disk,
    /// Front end of each simulated operating system.
    frontends: Vec<Frontend<'a>>,
    clients: Vec<Client<'a>>,
    flows: Flows,
    flights: Flights,
}

impl<'a> Io<'a> {
    /// Returns the devices of a scenario. `None` if the scenario has no devices.
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

    /// Starts the clients that send to a domain which has joined.
    pub(crate) fn join(&mut self, id: SystemId, context: &mut Context<'_, '_>) {
        for client in 0..self.clients.len() {
            if self.clients[client].system == id {
                self.start_client(client, context);
            }
        }
    }

    /// Records the counts that are not yet in the trace, at the end of the run.
    pub(crate) fn end(&mut self, context: &mut Context<'_, '_>) {
        self.tell_service(context);
        (0..).take(self.frontends.len()).for_each(|id| self.tell_moved(id, context));
    }

    /// Handles an event that did not happen on a CPU, such as a client's request or an arriving
    /// packet.
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
                unreachable!("this event does not concern devices")
            }
        }
    }

    /// Returns the amount of completed I/O that is pending for a guest, and the driver vCPU that
    /// reports it. `None` if the amount has not changed since the last report.
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

    /// Returns the next work for devices. Only the first vCPU of a system has such work, because
    /// interrupts, events and packets go to this vCPU.
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
