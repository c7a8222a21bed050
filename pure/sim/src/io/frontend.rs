//! Front end of a guest: the state that its operating system shares with the driver domain, and its
//! work for devices, which precedes all tasks.

use std::collections::{BTreeMap, VecDeque};

use slackline_scenario::System;
use slackline_units::{DomId, Pending, Span, TASKS, TaskId};

use super::nic::DiskRead;
use super::packet::Packet;
use super::{Context, Io};
use crate::guest::{Cause, SystemId, TaskOf};

/// Work that the first vCPU of an operating system does for its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceWork {
    /// Handles an event that another domain sent to this domain.
    Event,
    /// Takes a packet to the task it is for.
    Receive(Packet),
    /// Puts a packet in the ring shared with the driver domain.
    Send,
    /// Puts a disk request in the ring shared with the driver domain.
    AskDisk,
    /// Takes data that was read from disk to the task that waits for it.
    ReadDone,
    /// Driver domain only: handles an interrupt.
    Interrupt,
    /// Driver domain only: handles an event that a guest sent.
    Told,
    /// Driver domain only: takes a packet from the network card.
    Take(Packet),
    /// Driver domain only: takes a packet from the ring of a guest to the network card.
    Pass(SystemId),
    /// Driver domain only: takes a guest's disk request from the ring to the disk.
    PassRead,
    /// Driver domain only: takes data that was read from disk to the guest.
    TakeRead,
}

/// Recipient of a packet or of read data in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum IoRecipient {
    /// The task that waits for this packet or data.
    Task(u16),
    /// The next task that waits for any request. With an id, only a task whose jobs carry that id
    /// takes the request.
    Takes(Option<TaskId>),
}

/// State that a guest shares with the driver domain, and the guest's connections.
pub(super) struct Frontend<'a> {
    pub(super) spec: &'a System,
    /// True if the guest was sent an event that the guest has not handled yet.
    pub(super) is_told: bool,
    /// Packets that the driver domain has handed to the guest, with their recipients.
    received: VecDeque<(Packet, Option<IoRecipient>)>,
    /// Recipient of the packet that the guest is processing. `None` if the guest processes no
    /// packet. `Some(None)` if the recipient is not known.
    receiving: Option<Option<IoRecipient>>,
    /// Number of pending packets and completed reads for each recipient.
    for_whom: BTreeMap<IoRecipient, u32>,
    /// Packets that the guest has yet to put in the ring.
    pub(super) out: VecDeque<Packet>,
    /// Packets in the ring, for the driver domain to send.
    pub(super) ring: VecDeque<Packet>,
    /// True if the driver domain knows that the ring has entries.
    pub(super) driver_knows: bool,
    /// Disk reads that tasks have requested and that are not in the ring yet: task and number of
    /// bytes.
    pub(super) asking: VecDeque<(u16, u64)>,
    /// Disk requests in the ring, for the driver domain.
    pub(super) reads: VecDeque<DiskRead>,
    /// Completed disk reads that the guest has not handled yet.
    read: VecDeque<DiskRead>,
    /// Total number of packets and disk requests handed to the driver domain.
    asked: u32,
    /// Requests that wait for a task. With an id, only a task whose jobs carry that id takes the
    /// request.
    pub(super) requests: VecDeque<(Packet, Option<TaskId>)>,
    /// Tasks that wait for a request, longest wait first.
    pub(super) acceptors: VecDeque<u16>,
    /// Client request that each task has taken and not answered yet. `None` if there is none.
    pub(super) taken: Vec<Option<Packet>>,
    pub(super) connections: usize,
    /// Streams whose last received packet is not acknowledged yet.
    pub(super) lagging: Vec<usize>,
    /// Bytes received or delivered since they were last recorded in the trace.
    pub(super) moved: u64,
    /// Last report of the driver domain about this guest's pending I/O.
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

    /// Returns the amount of completed I/O that is pending for the guest, and the amount of I/O
    /// that the guest has requested. `None` if neither has changed since the last call. A packet
    /// that the guest is processing counts as pending until it is known which task the packet
    /// wakes.
    pub(super) fn news(&mut self, domain: DomId) -> Option<Pending> {
        let items = self.received.len() + usize::from(self.receiving.is_some()) + self.read.len();
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let now = Pending { domain, items, asked: self.asked, tasks: self.tasks_meant() };
        let before = self.told.replace(now).unwrap_or(Pending::nothing(domain));
        (before != now).then_some(now)
    }

    /// Returns the tasks that the pending I/O would continue. A request for which no task waits
    /// continues no task.
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

    /// Returns the tasks that wait for requests, longest wait first. If `by` is given, returns only
    /// tasks whose jobs carry that id.
    fn takers(&self, by: Option<TaskId>) -> impl Iterator<Item = u16> {
        let takes = move |task: &u16| by.is_none() || self.told_by(*task) == by;
        self.acceptors.iter().copied().filter(takes)
    }

    /// Returns true if a task waits for a request for the task id `by`. If `by` is `None`, returns
    /// true if any task waits for a request.
    pub(super) fn is_wanted(&self, by: Option<TaskId>) -> bool {
        self.takers(by).next().is_some()
    }

    /// Returns the id that the jobs of a task carry.
    fn told_by(&self, task: u16) -> Option<TaskId> {
        self.spec.tasks.get(usize::from(task)).and_then(|task| task.id)
    }

    /// Hands a packet from the driver domain to the guest, with its recipient if it is known.
    pub(super) fn hand_over(&mut self, packet: Packet, whom: Option<IoRecipient>) {
        self.received.push_back((packet, whom));
        self.is_for(whom);
    }

    /// Hands data that was read from disk to the guest.
    pub(super) fn hand_over_read(&mut self, read: DiskRead) {
        self.is_for(Some(IoRecipient::Task(read.task)));
        self.read.push_back(read);
    }

    /// Returns true if the driver domain can hand another packet to the guest.
    pub(super) fn has_room(&self) -> bool {
        self.received.len() < self.spec.ring
    }

    fn is_for(&mut self, whom: Option<IoRecipient>) {
        if let Some(whom) = whom {
            *self.for_whom.entry(whom).or_default() += 1;
        }
    }

    /// Records that one pending packet or read of a recipient has been taken.
    fn is_taken(&mut self, whom: Option<IoRecipient>) {
        let Some(whom) = whom else { return };
        if let Some(count) = self.for_whom.get_mut(&whom) {
            *count -= 1;
            if *count == 0 {
                self.for_whom.remove(&whom);
            }
        }
    }

    /// Takes the first request that a task is allowed to answer. If no request waits, the task
    /// waits for a request.
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

    /// Removes and returns the task that has waited the longest for a request for the task id `by`.
    pub(super) fn take_taker(&mut self, by: Option<TaskId>) -> Option<u16> {
        let taker = self.takers(by).next()?;
        self.acceptors.retain(|&task| task != taker);
        Some(taker)
    }

    /// Returns true if the guest can put a packet or a disk request in a ring now.
    fn can_send(&self) -> bool {
        !self.out.is_empty() && self.ring.len() < self.spec.ring
            || !self.asking.is_empty() && self.reads.len() < self.spec.ring
    }

    /// Returns the guest's next work for devices, and the cost of that work.
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
    /// Marks the pending I/O and the requests of a guest as possibly changed.
    pub(super) fn pending_changed(&self, id: SystemId, context: &mut Context<'_, '_>) {
        if self.driver.tells {
            context.systems.effects.pending_changed(id);
        }
    }

    /// Makes the first vCPU of a guest look for work if the guest can put something in a ring. Only
    /// the first vCPU puts entries in rings. When another vCPU or a client causes this work, the
    /// first vCPU can be blocked or run a task. Does nothing if the first vCPU is about to look for
    /// work anyway.
    pub(super) fn call_first(&self, id: SystemId, context: &mut Context<'_, '_>) {
        if self.frontends[usize::from(id)].can_send() {
            context.systems.alert(id);
        }
    }

    /// Returns the next work of a guest for its devices, and the cost of that work, varied at
    /// random.
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
