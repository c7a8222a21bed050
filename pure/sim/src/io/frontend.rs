//! The front end of a system: what it shares with the driver, and what it has to do for its devices
//! before all tasks.

use std::collections::{BTreeMap, VecDeque};

use slackline_scenario::System;
use slackline_units::{DomId, Pending, Span, TASKS, TaskId};

use super::nic::DiskRead;
use super::packet::Packet;
use super::{Context, Io};
use crate::guest::{Cause, SystemId, TaskOf};

/// What the first vCPU of a system does for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
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

/// For whom in a system something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whom {
    /// For the task that waits for it.
    Task(u16),
    /// A request: for the first that takes one; of those whose jobs are told by that, if it says.
    Takes(Option<TaskId>),
}

/// What a system shares with the driver, and knows of its connections.
pub(super) struct Frontend<'a> {
    pub(super) spec: &'a System,
    /// It was told to look and has not yet.
    pub(super) is_told: bool,
    /// What the driver has handed over.
    received: VecDeque<(Packet, Option<Whom>)>,
    /// It is at work on one of these, and for whom that is.
    receiving: Option<Option<Whom>>,
    /// For whom all of that is, and what has been read: how much for each.
    for_whom: BTreeMap<Whom, u32>,
    /// What is to be sent.
    pub(super) out: VecDeque<Packet>,
    /// What the driver is to send.
    pub(super) ring: VecDeque<Packet>,
    /// The driver knows that there is something in the ring.
    pub(super) driver_knows: bool,
    /// Tasks that ask for the disk; what the driver is to ask; what it has got.
    pub(super) asking: VecDeque<(u16, u64)>,
    pub(super) reads: VecDeque<DiskRead>,
    read: VecDeque<DiskRead>,
    /// How much it has handed to the driver: packets to be sent, and requests to the disk.
    asked: u32,
    /// Requests that wait for a task, and tasks that wait for a request.
    pub(super) requests: VecDeque<(Packet, Option<TaskId>)>,
    pub(super) acceptors: VecDeque<u16>,
    /// By task: the request it has taken.
    pub(super) taken: Vec<Option<Packet>>,
    pub(super) connections: usize,
    /// Streams of which the last packet has not been acknowledged.
    pub(super) lagging: Vec<usize>,
    /// Bytes received or delivered since that was last told.
    pub(super) moved: u64,
    /// What the driver has told of it.
    told: Option<Pending>,
}

impl<'a> Frontend<'a> {
    pub(super) fn new(spec: &'a System) -> Frontend<'a> {
        Frontend {
            spec,
            is_told: false,
            received: VecDeque::new(),
            receiving: None,
            for_whom: BTreeMap::new(),
            out: VecDeque::new(),
            ring: VecDeque::new(),
            driver_knows: false,
            asking: VecDeque::new(),
            reads: VecDeque::new(),
            read: VecDeque::new(),
            asked: 0,
            requests: VecDeque::new(),
            acceptors: VecDeque::new(),
            taken: vec![None; spec.tasks.len()],
            connections: 0,
            lagging: Vec::new(),
            moved: 0,
            told: None,
        }
    }

    /// What waits for it that the driver has done, and how much it has asked for, if that is not
    /// what it was when this was asked last. What it is at work on waits until it is known whom it
    /// wakes.
    pub(super) fn news(&mut self, domain: DomId) -> Option<Pending> {
        let items = self.received.len() + usize::from(self.receiving.is_some()) + self.read.len();
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let now = Pending { domain, items, asked: self.asked, tasks: self.tasks_meant() };
        let before = self.told.replace(now).unwrap_or(Pending::nothing(domain));
        (before != now).then_some(now)
    }

    /// The tasks that what waits would let go on. A request for which no task waits is for none.
    fn tasks_meant(&self) -> [Option<TaskId>; TASKS] {
        let mut meant = [None; TASKS];
        let mut free = meant.iter_mut();
        for (whom, &count) in &self.for_whom {
            let (known, takers) = match *whom {
                Whom::Task(task) => (Some(task), None),
                Whom::Takes(by) => (None, Some(self.takers(by).take(count as usize))),
            };
            let tasks = known.into_iter().chain(takers.into_iter().flatten());
            free.by_ref().zip(tasks).for_each(|(place, task)| *place = Some(TaskId::new(task)));
        }
        meant
    }

    /// The tasks that wait for requests, first first: all, or those whose jobs are told by that.
    fn takers(&self, by: Option<TaskId>) -> impl Iterator<Item = u16> {
        let takes = move |task: &u16| by.is_none() || self.told_by(*task) == by;
        self.acceptors.iter().copied().filter(takes)
    }

    /// Whether a task waits for such a request.
    pub(super) fn is_wanted(&self, by: Option<TaskId>) -> bool {
        self.takers(by).next().is_some()
    }

    /// What the jobs of a task are told by.
    fn told_by(&self, task: u16) -> Option<TaskId> {
        self.spec.tasks.get(usize::from(task)).and_then(|task| task.id)
    }

    /// The driver hands a packet over, which is for somebody, if that is known.
    pub(super) fn hand_over(&mut self, packet: Packet, whom: Option<Whom>) {
        self.received.push_back((packet, whom));
        self.is_for(whom);
    }

    /// The driver hands over what was read.
    pub(super) fn hand_over_read(&mut self, read: DiskRead) {
        self.is_for(Some(Whom::Task(read.task)));
        self.read.push_back(read);
    }

    /// Whether another packet may be handed over.
    pub(super) fn has_room(&self) -> bool {
        self.received.len() < self.spec.ring
    }

    fn is_for(&mut self, whom: Option<Whom>) {
        if let Some(whom) = whom {
            *self.for_whom.entry(whom).or_default() += 1;
        }
    }

    /// Something that was for somebody does not wait any more.
    fn is_taken(&mut self, whom: Option<Whom>) {
        let Some(whom) = whom else { return };
        if let Some(count) = self.for_whom.get_mut(&whom) {
            *count -= 1;
            if *count == 0 {
                self.for_whom.remove(&whom);
            }
        }
    }

    /// A task wants a request: takes the first that it may have; if none is there it waits for one.
    pub(super) fn take_request(&mut self, task: u16) -> Option<Packet> {
        let told_by = self.told_by(task);
        let may = |&(_, by): &(Packet, Option<TaskId>)| by.is_none() || by == told_by;
        let place = self.requests.iter().position(may);
        let request = place.and_then(|place| self.requests.remove(place));
        if request.is_none() {
            self.acceptors.push_back(task);
        }
        request.map(|(packet, _)| packet)
    }

    /// Takes the task out that has waited longest for such a request.
    pub(super) fn take_taker(&mut self, by: Option<TaskId>) -> Option<u16> {
        let taker = self.takers(by).next()?;
        self.acceptors.retain(|&task| task != taker);
        Some(taker)
    }

    /// What has to be done next, and what that costs.
    #[inline(always)]
    fn choose(&mut self) -> Option<(Duty, Span)> {
        let costs = &self.spec.costs;
        if std::mem::take(&mut self.is_told) && !costs.event.is_zero() {
            return Some((Duty::Event, costs.event));
        }
        if let Some((packet, whom)) = self.received.pop_front() {
            self.receiving = Some(whom);
            return Some((Duty::Receive(packet), costs.receive));
        }
        if !self.read.is_empty() {
            return Some((Duty::ReadDone, costs.request));
        }
        if !self.out.is_empty() && self.ring.len() < self.spec.ring {
            return Some((Duty::Send, costs.send));
        }
        if !self.asking.is_empty() && self.reads.len() < self.spec.ring {
            return Some((Duty::AskDisk, costs.request));
        }
        None
    }
}

impl Io<'_> {
    /// What waits for a system may not be what it was, or it has asked for something.
    pub(super) fn pending_changed(&self, id: SystemId, context: &mut Context<'_, '_>) {
        if self.driver.tells {
            context.systems.effects.pending_changed(id);
        }
    }

    /// What a system has to do next for its devices, and how long that takes.
    #[inline(always)]
    pub(super) fn choose_frontend(
        &mut self,
        id: SystemId,
        context: &mut Context<'_, '_>,
    ) -> Option<(Duty, Span)> {
        let frontend = &mut self.frontends[usize::from(id)];
        let (duty, cost) = frontend.choose()?;
        Some((duty, context.systems.vary(id, cost, frontend.spec.costs.noise_ppm)))
    }

    /// A system has done something for its devices.
    #[inline(always)]
    pub(super) fn finish_frontend(
        &mut self,
        id: SystemId,
        duty: Duty,
        context: &mut Context<'_, '_>,
    ) {
        let frontend = &mut self.frontends[usize::from(id)];
        match duty {
            Duty::Receive(packet) => {
                let whom = frontend.receiving.take();
                frontend.is_taken(whom.flatten());
                self.pending_changed(id, context);
                self.receive(id, packet, context);
                if self.frontends[usize::from(id)].received.is_empty() {
                    self.catch_up(id, context);
                }
            }
            Duty::Send => {
                let packet = frontend.out.pop_front().expect("something was to be sent");
                if id == self.driver.system {
                    self.put_on_wire(packet, context);
                    return;
                }
                frontend.ring.push_back(packet);
                frontend.asked = frontend.asked.wrapping_add(1);
                self.pending_changed(id, context);
                self.tell_driver(id, context);
            }
            Duty::AskDisk => {
                let (task, bytes) = frontend.asking.pop_front().expect("a task asks");
                frontend.reads.push_back(DiskRead { system: id, task, bytes });
                frontend.asked = frontend.asked.wrapping_add(1);
                self.pending_changed(id, context);
                self.tell_driver(id, context);
            }
            Duty::ReadDone => {
                let read = frontend.read.pop_front().expect("something was read");
                frontend.moved += read.bytes;
                frontend.is_taken(Some(Whom::Task(read.task)));
                self.pending_changed(id, context);
                self.tell_moved(id, context);
                context.go_on(TaskOf { system: id, task: read.task }, Cause::Io, self);
            }
            _ => {}
        }
    }
}
