//! The front end of a system: what it shares with the driver, and what it has to do for its devices
//! before all tasks.

use std::collections::VecDeque;

use slackline_scenario::System;
use slackline_units::Span;

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

/// What a system shares with the driver, and knows of its connections.
pub(super) struct Frontend<'a> {
    pub(super) spec: &'a System,
    /// It was told to look and has not yet.
    pub(super) is_told: bool,
    /// What the driver has handed over.
    pub(super) received: VecDeque<Packet>,
    /// It is at work on one of these.
    is_receiving: bool,
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
    /// Requests that wait for a task, and tasks that wait for a request.
    pub(super) requests: VecDeque<Packet>,
    pub(super) acceptors: VecDeque<u16>,
    /// By task: the request it has taken.
    pub(super) taken: Vec<Option<Packet>>,
    pub(super) connections: usize,
    /// Streams of which the last packet has not been acknowledged.
    pub(super) lagging: Vec<usize>,
    /// Bytes received or delivered since that was last told.
    pub(super) moved: u64,
    /// How much the driver has told to wait for it.
    told: u32,
}

impl<'a> Frontend<'a> {
    pub(super) fn new(spec: &'a System) -> Frontend<'a> {
        Frontend {
            spec,
            is_told: false,
            received: VecDeque::new(),
            is_receiving: false,
            out: VecDeque::new(),
            ring: VecDeque::new(),
            driver_knows: false,
            asking: VecDeque::new(),
            reads: VecDeque::new(),
            read: VecDeque::new(),
            requests: VecDeque::new(),
            acceptors: VecDeque::new(),
            taken: vec![None; spec.tasks.len()],
            connections: 0,
            lagging: Vec::new(),
            moved: 0,
            told: 0,
        }
    }

    /// How much waits that the driver has done for it, if that is not what was asked for last. What
    /// it is at work on waits until it is known whom it wakes.
    pub(super) fn news(&mut self) -> Option<u32> {
        let items = self.received.len() + usize::from(self.is_receiving) + self.read.len();
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        (std::mem::replace(&mut self.told, items) != items).then_some(items)
    }

    /// What has to be done next, and what that costs.
    #[inline(always)]
    fn choose(&mut self) -> Option<(Duty, Span)> {
        let costs = &self.spec.costs;
        if std::mem::take(&mut self.is_told) && !costs.event.is_zero() {
            return Some((Duty::Event, costs.event));
        }
        if let Some(packet) = self.received.pop_front() {
            self.is_receiving = true;
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
                frontend.is_receiving = false;
                if self.driver.tells {
                    context.systems.effects.pending_changed(id);
                }
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
                self.tell_driver(id, context);
            }
            Duty::AskDisk => {
                let (task, bytes) = frontend.asking.pop_front().expect("a task asks");
                frontend.reads.push_back(DiskRead { system: id, task, bytes });
                self.tell_driver(id, context);
            }
            Duty::ReadDone => {
                let read = frontend.read.pop_front().expect("something was read");
                frontend.moved += read.bytes;
                if self.driver.tells {
                    context.systems.effects.pending_changed(id);
                }
                self.tell_moved(id, context);
                context.go_on(TaskOf { system: id, task: read.task }, Cause::Io, self);
            }
            _ => {}
        }
    }
}
