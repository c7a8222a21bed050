//! The operating system of a domain: what it does for its tasks, and which of them runs.
//!
//! Interrupts, events and packets are for its first vCPU and come before all tasks; tasks run on
//! any of its vCPUs, the most urgent first, those of one priority in turns.

use std::collections::VecDeque;

use slackline_scenario::{Domain, Purpose, Stream, io};
use slackline_units::{Span, VcpuId};

use super::Io;
use super::packet::Packet;
use super::task::Task;
use super::{SystemId, nic::DiskRead};
use crate::queue::Queue;

/// What a vCPU of a system does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    /// Looks at what it was told.
    Event,
    /// Takes a packet to whom it is for.
    Receive(Packet),
    /// Puts a packet in the ring it shares with the driver.
    Send,
    /// Puts a request for the disk in the ring.
    AskDisk,
    /// Takes what was read to who waits for it.
    ReadDone,
    Task(u16),
    /// Finds that there is nothing to do.
    Idle,
    /// The driver: looks why it was interrupted.
    Interrupt,
    /// The driver: looks why a guest told it to.
    Told,
    /// The driver: takes a packet from the card.
    Take(Packet),
    /// The driver: takes a packet from the ring of a guest to the card.
    Pass(SystemId),
    /// The driver: takes a request to the disk, or back.
    PassRead,
    TakeRead,
}

/// Something that a vCPU of a system does, and how long that takes, or takes until it is looked at
/// again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(super) doing: Doing,
    pub(crate) cost: Span,
}

/// A vCPU of a system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vcpu {
    pub(super) id: VcpuId,
    pub(super) item: Item,
    pub(super) is_asleep: bool,
    is_here: bool,
    /// It has just found that there is nothing to do.
    pub(super) has_idled: bool,
}

/// A system.
pub(super) struct System<'a> {
    pub(super) spec: &'a io::System,
    pub(super) vcpus: Vec<Vcpu>,
    noise: Stream,
    /// It was told to look and has not yet.
    pub(super) is_told: bool,
    /// What the driver has handed over.
    pub(super) received: VecDeque<Packet>,
    /// What is to be sent.
    pub(super) out: VecDeque<Packet>,
    /// What the driver is to send.
    pub(super) ring: VecDeque<Packet>,
    /// The driver knows that there is something in the ring.
    pub(super) driver_knows: bool,
    /// Tasks that ask for the disk; what the driver is to ask; what it has got.
    pub(super) asking: VecDeque<(u16, u64)>,
    pub(super) reads: VecDeque<DiskRead>,
    pub(super) read: VecDeque<DiskRead>,
    /// The number of its first task among those of all systems.
    pub(super) first_task: usize,
    pub(super) tasks: Vec<Task<'a>>,
    /// By priority, most urgent first.
    ready: Vec<VecDeque<u16>>,
    /// Requests that wait for a task, and tasks that wait for a request.
    pub(super) requests: VecDeque<Packet>,
    pub(super) acceptors: VecDeque<u16>,
    pub(super) connections: usize,
    /// Streams of which the last packet has not been acknowledged.
    pub(super) lagging: Vec<usize>,
    /// Bytes received or delivered since that was last told.
    pub(super) moved: u64,
}

impl<'a> System<'a> {
    pub(super) fn new(
        spec: &'a io::System,
        domain: &'a Domain,
        (seed, first_task): (u64, usize),
    ) -> System<'a> {
        let vcpu = |&id: &VcpuId| Vcpu {
            id,
            item: Item { doing: Doing::Nothing, cost: Span::ZERO },
            is_asleep: false,
            is_here: false,
            has_idled: false,
        };
        let mut levels: Vec<u8> = spec.tasks.iter().map(|task| task.priority).collect();
        levels.sort_unstable_by(|a, b| b.cmp(a));
        levels.dedup();
        let number = u64::from(domain.id.number());
        let task = |(index, task): (usize, &'a io::Task)| {
            let level = levels.iter().position(|&level| level == task.priority);
            let draws = Stream::new(seed, number << 16 | index as u64, Purpose::Task);
            Task::new(task, level.expect("a level each"), draws)
        };
        System {
            spec,
            vcpus: domain.vcpus.iter().map(vcpu).collect(),
            noise: Stream::new(seed, number, Purpose::Noise),
            is_told: false,
            received: VecDeque::new(),
            out: VecDeque::new(),
            ring: VecDeque::new(),
            driver_knows: false,
            asking: VecDeque::new(),
            reads: VecDeque::new(),
            read: VecDeque::new(),
            first_task,
            tasks: spec.tasks.iter().enumerate().map(task).collect(),
            ready: vec![VecDeque::new(); levels.len()],
            requests: VecDeque::new(),
            acceptors: VecDeque::new(),
            connections: 0,
            lagging: Vec::new(),
            moved: 0,
        }
    }

    /// Whom events and records of the system are about.
    pub(super) fn first(&self) -> VcpuId {
        self.vcpus[0].id
    }

    pub(super) fn is_here(&self) -> bool {
        self.vcpus[0].is_here
    }

    pub(super) fn begin_vcpu(&mut self, number: u16) {
        let vcpu = &mut self.vcpus[usize::from(number)];
        vcpu.is_here = true;
        vcpu.is_asleep = false;
    }

    pub(super) fn end_vcpu(&mut self, number: u16) {
        self.vcpus[usize::from(number)].is_here = false;
    }

    /// A cost, as it comes out this time.
    #[inline]
    fn vary(&mut self, cost: Span) -> Span {
        self.noise.vary(cost, self.spec.costs.noise_ppm)
    }

    /// A cost that differs by up to so many millionths, as it comes out this time.
    #[inline]
    pub(super) fn vary_by(&mut self, cost: Span, ppm: u32) -> Span {
        self.noise.vary(cost, ppm)
    }

    /// Makes a vCPU look at something more urgent; itself, if anything has to be done about that.
    pub(super) fn alert(&mut self, number: usize) -> Option<VcpuId> {
        let vcpu = &mut self.vcpus[number];
        let must = vcpu.is_here && (vcpu.is_asleep || matches!(vcpu.item.doing, Doing::Task(_)));
        vcpu.is_asleep &= !must;
        must.then_some(vcpu.id)
    }

    /// What a vCPU does next; if nothing, it finds that out once, which takes `idle` more than the
    /// system's own.
    #[inline(always)]
    pub(super) fn choose(&mut self, number: usize, idle: Span) -> Option<Item> {
        let kernel = if number == 0 { self.choose_kernel() } else { None };
        if kernel.is_some() { kernel } else { self.choose_task(number, idle) }
    }

    /// What the kernel has to do before all tasks.
    #[inline(always)]
    fn choose_kernel(&mut self) -> Option<Item> {
        let costs = &self.spec.costs;
        if std::mem::take(&mut self.is_told) && !costs.event.is_zero() {
            return Some(Item { doing: Doing::Event, cost: self.vary(costs.event) });
        }
        if let Some(packet) = self.received.pop_front() {
            return Some(Item { doing: Doing::Receive(packet), cost: self.vary(costs.receive) });
        }
        if !self.read.is_empty() {
            return Some(Item { doing: Doing::ReadDone, cost: self.vary(costs.request) });
        }
        if !self.out.is_empty() && self.ring.len() < self.spec.ring {
            return Some(Item { doing: Doing::Send, cost: self.vary(costs.send) });
        }
        if !self.asking.is_empty() && self.reads.len() < self.spec.ring {
            return Some(Item { doing: Doing::AskDisk, cost: self.vary(costs.request) });
        }
        None
    }

    #[inline]
    fn choose_task(&mut self, number: usize, idle: Span) -> Option<Item> {
        if let Some(task) = self.ready.iter_mut().find_map(VecDeque::pop_front) {
            let cost = self.tasks[usize::from(task)].stretch().min(self.spec.quantum);
            return Some(Item { doing: Doing::Task(task), cost });
        }
        let idle = idle + self.spec.costs.idle;
        let has_idled = std::mem::take(&mut self.vcpus[number].has_idled);
        if idle.is_zero() || has_idled {
            return None;
        }
        self.vcpus[number].has_idled = true;
        Some(Item { doing: Doing::Idle, cost: self.vary(idle) })
    }

    /// Who is preempted or has more to do right away comes before the others of its priority.
    pub(super) fn ready_first(&mut self, task: u16) {
        self.ready[self.tasks[usize::from(task)].level].push_front(task);
    }

    pub(super) fn ready_last(&mut self, task: u16) {
        self.ready[self.tasks[usize::from(task)].level].push_back(task);
    }

    /// Which vCPU should look because this task has become ready; none if whoever is free next will
    /// find it.
    pub(super) fn place(&mut self, task: u16) -> Option<VcpuId> {
        let level = self.tasks[usize::from(task)].level;
        let asleep = self.vcpus.iter().position(|vcpu| vcpu.is_here && vcpu.is_asleep);
        if let Some(number) = asleep {
            return self.alert(number);
        }
        let least = |vcpu: &Vcpu| match vcpu.item.doing {
            Doing::Task(other) => self.tasks[usize::from(other)].level,
            _ => 0,
        };
        let (number, runs) = self
            .vcpus
            .iter()
            .map(least)
            .enumerate()
            .max_by_key(|&(number, level)| (level, std::cmp::Reverse(number)))?;
        if runs > level { self.alert(number) } else { None }
    }

    /// Puts the task of a vCPU aside, with so much left of its stretch; whether there was one.
    pub(super) fn put_aside(&mut self, number: usize, left: Span) -> bool {
        let item = &mut self.vcpus[number].item;
        let Doing::Task(task) = item.doing else { return false };
        item.doing = Doing::Nothing;
        let used = item.cost.left_after(left);
        self.tasks[usize::from(task)].used(used);
        self.ready_first(task);
        true
    }
}

impl Io<'_> {
    /// The kernel of a system has done something.
    #[inline(always)]
    pub(super) fn finish_kernel(&mut self, id: SystemId, doing: Doing, queue: &mut Queue) {
        let system = &mut self.systems[usize::from(id)];
        match doing {
            Doing::Receive(packet) => {
                self.receive(id, packet, queue);
                let system = &self.systems[usize::from(id)];
                if system.received.is_empty() {
                    self.catch_up(id, queue);
                }
            }
            Doing::Send => {
                let packet = system.out.pop_front().expect("something was to be sent");
                if id == self.driver.system {
                    self.put_on_wire(packet, queue);
                    return;
                }
                system.ring.push_back(packet);
                self.tell_driver(id);
            }
            Doing::AskDisk => {
                let (task, bytes) = system.asking.pop_front().expect("a task asks");
                system.reads.push_back(DiskRead { system: id, task, bytes });
                self.tell_driver(id);
            }
            Doing::ReadDone => {
                let read = system.read.pop_front().expect("something was read");
                system.moved += read.bytes;
                self.tell_moved(id);
                self.go_on_with_task(id, read.task, queue);
            }
            _ => {}
        }
    }
}
