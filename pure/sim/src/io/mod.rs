//! Devices behind a driver domain, the systems that use them, and who is outside.
//!
//! A system (the operating system of a domain) does one item after the other, each for a cost: it
//! looks at what it was told, receives a packet, sends one, lets a task compute. What an item does
//! to the world happens when it is over. The driver domain is a system with more items: those that
//! serve the devices and the rings it shares with the others. Whoever has nothing to do blocks, and
//! is woken by an event of another domain, by an interrupt, or by a timer.
//!
//! How often the driver domain is dispatched decides what such a host can do: each packet that a
//! guest sends wakes it at once, and whether it then serves one packet or a hundred is for the
//! scheduler to say. So every wake is told at the instant at which it happens, before the one that
//! caused it goes on.

mod client;
mod driver;
mod flow;
mod nic;
mod packet;
mod system;
mod task;

use slackline_scenario::{Purpose, Scenario, Stream, io};
use slackline_trace::Record;
use slackline_units::{Span, Time, VcpuId};

use crate::queue::{Event, Queue};
use client::Client;
use driver::Driver;
use flow::Flows;
use nic::{Disk, Nic};
use packet::Flights;
use system::{Doing, System};

pub(crate) use system::Item;

/// A system, by its place among them.
type SystemId = u16;

/// A vCPU of a system: which of which.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    system: SystemId,
    number: u16,
}

/// What must be done outside of the devices, in this order.
#[derive(Default)]
pub(crate) struct Effects {
    /// For the trace.
    pub(crate) records: Vec<Record>,
    /// CPU time that an interrupt takes from whoever runs where this vCPU ran last.
    pub(crate) stolen: Vec<(VcpuId, Span)>,
    /// Who has something else to do now: asleep, or at work on something less urgent.
    pub(crate) alerted: Vec<VcpuId>,
}

impl Effects {
    /// Whether there are any.
    #[inline]
    pub(crate) fn are_due(&self) -> bool {
        !(self.records.is_empty() && self.stolen.is_empty() && self.alerted.is_empty())
    }

    fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    fn steal(&mut self, from: VcpuId, span: Span) {
        self.stolen.push((from, span));
    }

    fn alert(&mut self, vcpu: VcpuId) {
        self.alerted.push(vcpu);
    }
}

/// Everything that has to do with devices.
pub(crate) struct Io<'a> {
    now: Time,
    driver: Driver,
    nic: Nic,
    disk: Disk,
    systems: Vec<System<'a>>,
    /// By domain.
    system_of: Vec<Option<SystemId>>,
    /// Every task: its system and its number there.
    tasks: Vec<(SystemId, u16)>,
    clients: Vec<Client<'a>>,
    flows: Flows,
    flights: Flights,
    pub(crate) effects: Effects,
}

impl<'a> Io<'a> {
    /// The devices of a scenario, if it has any.
    pub(crate) fn new(scenario: &'a Scenario) -> Option<Io<'a>> {
        let spec = scenario.io.as_ref()?;
        let (mut systems, mut system_of, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        for domain in &scenario.domains {
            let id = domain.system.as_ref().map(|system| {
                let id = SystemId::try_from(systems.len()).expect("10,000 systems at most");
                systems.push(System::new(system, domain, (scenario.seed, tasks.len())));
                tasks.extend((0..).map(|task| (id, task)).take(system.tasks.len()));
                id
            });
            system_of.push(id);
        }
        let mine = system_of[spec.driver.domain].expect("the driver has a system");
        let client = |(index, client): (usize, &'a io::Client)| {
            let system = system_of[client.to].expect("a client talks to a system");
            let stream = |purpose| Stream::new(scenario.seed, index as u64, purpose);
            Client::new(client, system, stream(Purpose::Client), stream(Purpose::Delay))
        };
        let clients = spec.clients.iter().enumerate().map(client).collect();
        Some(Io {
            now: Time::START,
            driver: Driver::new(&spec.driver, mine, systems.len()),
            nic: Nic::new(spec.nic),
            disk: Disk::new(spec.disk, Stream::new(scenario.seed, 0, Purpose::Disk)),
            systems,
            system_of,
            tasks,
            clients,
            flows: Flows::default(),
            flights: Flights::default(),
            effects: Effects::default(),
        })
    }

    /// Which vCPU of a system this is, if it is one.
    #[inline]
    pub(crate) fn seat(&self, vcpu: VcpuId) -> Option<Seat> {
        let system = self.system_of[vcpu.domain().number() as usize]?;
        Some(Seat { system, number: vcpu.number() })
    }

    /// A vCPU of a system joins: it will be woken once, to find out what there is to do.
    pub(crate) fn join(&mut self, seat: Seat, now: Time, queue: &mut Queue) {
        self.now = now;
        let Seat { system: id, number } = seat;
        self.systems[usize::from(id)].begin_vcpu(number);
        if number != 0 {
            return;
        }
        self.start_tasks(id, queue);
        for client in 0..self.clients.len() {
            if self.clients[client].system == id {
                self.start_client(client, queue);
            }
        }
    }

    /// A vCPU of a system leaves. With its first vCPU the system is gone.
    pub(crate) fn leave(&mut self, seat: Seat) {
        self.systems[usize::from(seat.system)].end_vcpu(seat.number);
    }

    /// The run is over.
    pub(crate) fn end(&mut self, now: Time) {
        self.now = now;
        self.tell_service();
        (0..).take(self.systems.len()).for_each(|id| self.tell_moved(id));
    }

    /// Something has happened outside of all CPUs.
    #[inline(always)]
    pub(crate) fn happen(&mut self, (event, about): (Event, usize), now: Time, queue: &mut Queue) {
        self.now = now;
        match event {
            Event::Arrive => {
                let packet = self.flights.take(about);
                self.arrive(packet, queue);
            }
            Event::Reach => {
                let packet = self.flights.take(about);
                self.reach(packet, queue);
            }
            Event::Emit => {
                let packet = self.flights.take(about);
                if self.flows.is_current(packet) {
                    self.emit(packet, queue);
                }
            }
            Event::Interrupt => self.interrupt(),
            Event::Disk => {
                let next = self.disk.finish(now);
                self.disk_interrupt();
                queue.extend(next, Event::Disk);
            }
            Event::Client => self.act(about, queue),
            Event::Expire => self.expire(about, queue),
            Event::Task => {
                let (system, task) = self.tasks[about];
                self.go_on_with_task(system, task, queue);
            }
            Event::Wake | Event::Allow | Event::Tick => unreachable!("not of devices"),
        }
    }

    /// What a vCPU is doing, which is over: it does nothing now.
    pub(crate) fn stop(&mut self, seat: Seat) -> Item {
        let item = &mut self.vcpu(seat).item;
        Item { doing: std::mem::replace(&mut item.doing, Doing::Nothing), cost: item.cost }
    }

    /// What a vCPU does from now on.
    pub(crate) fn begin(&mut self, seat: Seat, item: Item) {
        self.vcpu(seat).item = item;
    }

    fn vcpu(&mut self, seat: Seat) -> &mut system::Vcpu {
        &mut self.systems[usize::from(seat.system)].vcpus[usize::from(seat.number)]
    }

    /// What a vCPU did has been done.
    #[inline(always)]
    pub(crate) fn finish(&mut self, seat: Seat, item: Item, now: Time, queue: &mut Queue) {
        self.now = now;
        let id = seat.system;
        let Item { doing, cost } = item;
        match doing {
            Doing::Nothing | Doing::Idle => {}
            Doing::Event | Doing::Receive(_) | Doing::Send | Doing::AskDisk | Doing::ReadDone => {
                self.finish_kernel(id, doing, queue);
            }
            Doing::Task(task) => self.finish_task(id, (task, cost), queue),
            Doing::Interrupt
            | Doing::Told
            | Doing::Take(_)
            | Doing::Pass(_)
            | Doing::PassRead
            | Doing::TakeRead => self.finish_driver(doing, cost, queue),
        }
    }

    /// What a vCPU does next, and how long that takes; none if there is nothing: then it blocks.
    #[inline(always)]
    pub(crate) fn next(&mut self, seat: Seat, now: Time) -> Option<Item> {
        self.now = now;
        let is_driver = seat.system == self.driver.system && seat.number == 0;
        let service = if is_driver { self.choose_service() } else { None };
        let system = &mut self.systems[usize::from(seat.system)];
        let number = usize::from(seat.number);
        let chosen = match service {
            Some(_) => service,
            None => {
                let idle = if is_driver { self.driver.spec.costs.idle } else { Span::ZERO };
                system.choose(number, idle)
            }
        };
        let vcpu = &mut system.vcpus[number];
        let Some(item) = chosen else {
            vcpu.is_asleep = true;
            if is_driver {
                self.tell_service();
            }
            return None;
        };
        vcpu.has_idled &= item.doing == Doing::Idle;
        chosen
    }

    /// A vCPU that is at work is told to look at something more urgent; `left` is what is left of
    /// its work. Whether it has put that aside.
    pub(crate) fn put_aside(&mut self, seat: Seat, left: Span) -> bool {
        self.systems[usize::from(seat.system)].put_aside(usize::from(seat.number), left)
    }

    /// Whether a vCPU of a system is to be woken: it is said once.
    pub(crate) fn has_work(&self, seat: Seat) -> bool {
        !self.systems[usize::from(seat.system)].vcpus[usize::from(seat.number)].is_asleep
    }

    /// Tells the first vCPU of a system, where interrupts and events go, to look.
    fn alert(&mut self, id: SystemId) {
        let system = &mut self.systems[usize::from(id)];
        if let Some(vcpu) = system.alert(0) {
            self.effects.alert(vcpu);
        }
    }
}
