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

/// A system, by its place among them.
type SystemId = u16;

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
    /// Whether nothing need be done.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        self.records.is_empty() && self.stolen.is_empty() && self.alerted.is_empty()
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

    /// Whether a vCPU is one of a system.
    #[inline]
    pub(crate) fn owns(&self, vcpu: VcpuId) -> bool {
        self.system_of[vcpu.domain().number() as usize].is_some()
    }

    #[inline]
    fn system_id(&self, vcpu: VcpuId) -> SystemId {
        let system = self.system_of[vcpu.domain().number() as usize];
        system.expect("only vCPUs of systems are asked about")
    }

    /// A vCPU of a system joins: it will be woken once, to find out what there is to do.
    pub(crate) fn join(&mut self, vcpu: VcpuId, now: Time, queue: &mut Queue) {
        self.now = now;
        let id = self.system_id(vcpu);
        self.systems[usize::from(id)].begin_vcpu(vcpu.number());
        if vcpu.number() != 0 {
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
    pub(crate) fn leave(&mut self, vcpu: VcpuId) {
        let id = self.system_id(vcpu);
        self.systems[usize::from(id)].end_vcpu(vcpu.number());
    }

    /// The run is over.
    pub(crate) fn end(&mut self, now: Time) {
        self.now = now;
        self.tell_service();
        (0..).take(self.systems.len()).for_each(|id| self.tell_moved(id));
    }

    /// Something has happened outside of all CPUs.
    pub(crate) fn happen(&mut self, event: Event, now: Time, queue: &mut Queue) {
        self.now = now;
        match event {
            Event::Arrive(flight) => {
                let packet = self.flights.take(flight);
                self.arrive(packet, queue);
            }
            Event::Reach(flight) => {
                let packet = self.flights.take(flight);
                self.reach(packet, queue);
            }
            Event::Emit(flight) => {
                let packet = self.flights.take(flight);
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
            Event::Client(client) => self.act(client, queue),
            Event::Expire(client) => self.expire(client, queue),
            Event::Task(place) => {
                let (system, task) = self.tasks[place];
                self.go_on_with_task(system, task, queue);
            }
            Event::Wake(_) | Event::Allow(_) | Event::Tick => unreachable!("not of devices"),
        }
    }

    /// What a vCPU was doing is over.
    pub(crate) fn finish(&mut self, vcpu: VcpuId, now: Time, queue: &mut Queue) {
        self.now = now;
        let (id, number) = (self.system_id(vcpu), usize::from(vcpu.number()));
        let system = &mut self.systems[usize::from(id)];
        let doing = std::mem::replace(&mut system.vcpus[number].doing, Doing::Nothing);
        let cost = system.vcpus[number].cost;
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
            | Doing::PassRead(_)
            | Doing::TakeRead(_) => self.finish_driver(doing, cost, queue),
        }
    }

    /// What a vCPU does next, and how long that takes; none if there is nothing: then it blocks.
    pub(crate) fn next(&mut self, vcpu: VcpuId, now: Time) -> Option<Span> {
        self.now = now;
        let (id, number) = (self.system_id(vcpu), usize::from(vcpu.number()));
        let chosen = self.choose(id, number);
        if chosen.is_none() && id == self.driver.system && number == 0 {
            self.tell_service();
        }
        let this = &mut self.systems[usize::from(id)].vcpus[number];
        let Some((doing, cost)) = chosen else {
            this.is_asleep = true;
            return None;
        };
        this.has_idled &= doing == Doing::Idle;
        this.doing = doing;
        this.cost = cost;
        Some(cost)
    }

    fn choose(&mut self, id: SystemId, number: usize) -> Option<(Doing, Span)> {
        if number == 0 {
            if id == self.driver.system {
                let chosen = self.choose_service();
                if chosen.is_some() {
                    return chosen;
                }
            }
            let chosen = self.systems[usize::from(id)].choose_kernel();
            if chosen.is_some() {
                return chosen;
            }
        }
        let is_driver = id == self.driver.system && number == 0;
        let idle = if is_driver { self.driver.spec.costs.idle } else { Span::ZERO };
        self.systems[usize::from(id)].choose_task(number, idle)
    }

    /// A vCPU that is at work is told to look at something more urgent; `left` is what is left of
    /// its work. Whether it has put that aside.
    pub(crate) fn put_aside(&mut self, vcpu: VcpuId, left: Span) -> bool {
        let id = self.system_id(vcpu);
        self.systems[usize::from(id)].put_aside(usize::from(vcpu.number()), left)
    }

    /// Whether a vCPU of a system is to be woken: it is said once.
    pub(crate) fn has_work(&self, vcpu: VcpuId) -> bool {
        let system = &self.systems[usize::from(self.system_id(vcpu))];
        !system.vcpus[usize::from(vcpu.number())].is_asleep
    }

    /// Tells the first vCPU of a system, where interrupts and events go, to look.
    fn alert(&mut self, id: SystemId) {
        let system = &mut self.systems[usize::from(id)];
        if let Some(vcpu) = system.alert(0) {
            self.effects.alerted.push(vcpu);
        }
    }
}
