//! The front end of a system: the state it shares with the driver, and its work for devices, which
//! comes before all tasks.

use std::collections::{BTreeMap, VecDeque};

use slackline_scenario::System;
use slackline_units::{DomId, Pending, Span, TASKS, TaskId};

use super::nic::DiskRead;
use super::packet::Packet;
use super::{Context, Io};
use crate::guest::{Cause, SystemId, TaskOf};

/// Work of the first vCPU of a system for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceWork {
    /// Handles an event that it was sent.
    Event,
    /// Takes a packet to its recipient.
    Receive(Packet),
    /// Puts a packet in the ring shared with the driver.
    Send,
    /// Puts a request for the disk in the ring.
    AskDisk,
    /// Takes data that was read to the task that waits for it.
    ReadDone,
    /// Driver only: handles an interrupt.
    Interrupt,
    /// Driver only: handles an event of a guest.
    Told,
    /// Driver only: takes a packet from the card.
    Take(Packet),
    /// Driver only: takes a packet from the ring of a guest to the card.
    Pass(SystemId),
    /// Driver only: takes a request to the disk, or data back from it.
    PassRead,
    TakeRead,
}

/// Recipient of I/O in a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum IoRecipient {
    /// The task that waits for it.
    Task(u16),
    /// The first task that takes a request. If set, only a task whose jobs carry this id.
    Takes(Option<TaskId>),
}

/// State that a system shares with the driver, and its connections.
pub(super) struct Frontend<'a> {
    pub(super) spec: &'a System,
    /// True if it was sent an event that it has not handled yet.
    pub(super) is_told: bool,
    /// Packets that the driver has handed over, with their recipients.
    received: VecDeque<(Packet, Option<IoRecipient>)>,
    /// Recipient of the packet that it is working on. `None` if it works on none.
    receiving: Option<Option<IoRecipient>>,
    /// Number of received packets and reads for each recipient.
    for_whom: BTreeMap<IoRecipient, u32>,
    /// Packets to be sent.
    pub(super) out: VecDeque<Packet>,
    /// Packets in the ring, for the driver to send.
    pub(super) ring: VecDeque<Packet>,
    /// True if the driver knows that the ring has entries.
    pub(super) driver_knows: bool,
    /// Tasks that request reads, requests for the driver, and data that was read.
    pub(super) asking: VecDeque<(u16, u64)>,
    pub(super) reads: VecDeque<DiskRead>,
    read: VecDeque<DiskRead>,
    /// Total number of packets and disk requests handed to the driver.
    asked: u32,
    /// Requests that wait for a task, and tasks that wait for a request.
    pub(super) requests: VecDeque<(Packet, Option<TaskId>)>,
    pub(super) acceptors: VecDeque<u16>,
    /// Request that each task has taken.
    pub(super) taken: Vec<Option<Packet>>,
    pub(super) connections: usize,
    /// Streams whose last packet is not acknowledged.
    pub(super) lagging: Vec<usize>,
    /// Bytes received or delivered since the last record of them.
    pub(super) moved: u64,
    /// Last hint of the driver about it.
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

    /// Returns how much finished I/O is pending for it and how much it has requested. `None` if
    /// that has not changed since the last call. A packet that it is working on is pending until it
    /// is known which task it wakes.
    pub(super) fn news(&mut self, domain: DomId) -> Option<Pending> {
        let items = self.received.len() + usize::from(self.receiving.is_some()) + self.read.len();
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let now = Pending { domain, items, asked: self.asked, tasks: self.tasks_meant() };
        let before = self.told.replace(now).unwrap_or(Pending::nothing(domain));
        (before != now).then_some(now)
    }

    /// Returns the tasks that the pending I/O would continue. A request without a waiting task has
    /// none.
    fn tasks_meant(&self) -> [Option<TaskId>; TASKS] {
        let mut meant = [None; TASKS];
        let mut free = meant.iter_mut();
        for (whom, &count) in &self.for_whom {
            let (known, takers) = match *whom {
                IoRecipient::Task(task) => (Some(task), None),
                IoRecipient::Takes(by) => (None, Some(self.takers(by).take(count as usize))),
            };
            let tasks = known.into_iter().chain(takers.into_iter().flatten());
            free.by_ref().zip(tasks).for_each(|(place, task)| *place = Some(TaskId::new(task)));
        }
        meant
    }

    /// Returns the tasks that wait for requests, longest first. With `by`, only those whose jobs
    /// carry this id.
    fn takers(&self, by: Option<TaskId>) -> impl Iterator<Item = u16> {
        let takes = move |task: &u16| by.is_none() || self.told_by(*task) == by;
        self.acceptors.iter().copied().filter(takes)
    }

    /// Returns true if a task waits for such a request.
    pub(super) fn is_wanted(&self, by: Option<TaskId>) -> bool {
        self.takers(by).next().is_some()
    }

    /// Returns the id that the jobs of a task carry.
    fn told_by(&self, task: u16) -> Option<TaskId> {
        self.spec.tasks.get(usize::from(task)).and_then(|task| task.id)
    }

    /// Hands over a packet from the driver, with its recipient if that is known.
    pub(super) fn hand_over(&mut self, packet: Packet, whom: Option<IoRecipient>) {
        self.received.push_back((packet, whom));
        self.is_for(whom);
    }

    /// Hands over data that was read.
    pub(super) fn hand_over_read(&mut self, read: DiskRead) {
        self.is_for(Some(IoRecipient::Task(read.task)));
        self.read.push_back(read);
    }

    /// Returns true if another packet may be handed over.
    pub(super) fn has_room(&self) -> bool {
        self.received.len() < self.spec.ring
    }

    fn is_for(&mut self, whom: Option<IoRecipient>) {
        if let Some(whom) = whom {
            *self.for_whom.entry(whom).or_default() += 1;
        }
    }

    /// Notes that one pending item of a recipient is taken.
    fn is_taken(&mut self, whom: Option<IoRecipient>) {
        let Some(whom) = whom else { return };
        if let Some(count) = self.for_whom.get_mut(&whom) {
            *count -= 1;
            if *count == 0 {
                self.for_whom.remove(&whom);
            }
        }
    }

    /// Takes the first request that a task may have. If there is none, the task waits for one.
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

    /// Takes out the task that has waited longest for such a request.
    pub(super) fn take_taker(&mut self, by: Option<TaskId>) -> Option<u16> {
        let taker = self.takers(by).next()?;
        self.acceptors.retain(|&task| task != taker);
        Some(taker)
    }

    /// Returns the next work for devices and its cost.
    #[inline(always)]
    fn choose(&mut self) -> Option<(DeviceWork, Span)> {
        let costs = &self.spec.costs;
        if std::mem::take(&mut self.is_told) && !costs.event.is_zero() {
            return Some((DeviceWork::Event, costs.event));
        }
        if let Some((packet, whom)) = self.received.pop_front() {
            self.receiving = Some(whom);
            return Some((DeviceWork::Receive(packet), costs.receive));
        }
        if !self.read.is_empty() {
            return Some((DeviceWork::ReadDone, costs.request));
        }
        if !self.out.is_empty() && self.ring.len() < self.spec.ring {
            return Some((DeviceWork::Send, costs.send));
        }
        if !self.asking.is_empty() && self.reads.len() < self.spec.ring {
            return Some((DeviceWork::AskDisk, costs.request));
        }
        None
    }
}

impl Io<'_> {
    /// Notes that the pending I/O or the requests of a system may have changed.
    pub(super) fn pending_changed(&self, id: SystemId, context: &mut Context<'_, '_>) {
        if self.driver.tells {
            context.systems.effects.pending_changed(id);
        }
    }

    /// Returns the next work of a system for its devices and its cost, varied at random.
    #[inline(always)]
    pub(super) fn choose_frontend(
        &mut self,
        id: SystemId,
        context: &mut Context<'_, '_>,
    ) -> Option<(DeviceWork, Span)> {
        let frontend = &mut self.frontends[usize::from(id)];
        let (duty, cost) = frontend.choose()?;
        Some((duty, context.systems.vary(id, cost, frontend.spec.costs.noise_ppm)))
    }

    /// Applies the effects of completed work for devices.
    #[inline(always)]
    pub(super) fn finish_frontend(
        &mut self,
        id: SystemId,
        duty: DeviceWork,
        context: &mut Context<'_, '_>,
    ) {
        let frontend = &mut self.frontends[usize::from(id)];
        match duty {
            DeviceWork::Receive(packet) => {
                let whom = frontend.receiving.take();
                frontend.is_taken(whom.flatten());
                self.pending_changed(id, context);
                self.receive(id, packet, context);
                if self.frontends[usize::from(id)].received.is_empty() {
                    self.catch_up(id, context);
                }
            }
            DeviceWork::Send => {
                let packet = frontend.out.pop_front().expect("a packet was to be sent");
                if id == self.driver.system {
                    self.put_on_wire(packet, context);
                    return;
                }
                frontend.ring.push_back(packet);
                frontend.asked = frontend.asked.wrapping_add(1);
                self.pending_changed(id, context);
                self.tell_driver(id, context);
            }
            DeviceWork::AskDisk => {
                let (task, bytes) = frontend.asking.pop_front().expect("a task requested a read");
                frontend.reads.push_back(DiskRead { system: id, task, bytes });
                frontend.asked = frontend.asked.wrapping_add(1);
                self.pending_changed(id, context);
                self.tell_driver(id, context);
            }
            DeviceWork::ReadDone => {
                let read = frontend.read.pop_front().expect("a read was complete");
                frontend.moved += read.bytes;
                frontend.is_taken(Some(IoRecipient::Task(read.task)));
                self.pending_changed(id, context);
                self.tell_moved(id, context);
                context.go_on(TaskOf { system: id, task: read.task }, Cause::Io, self);
            }
            _ => {}
        }
    }
}
