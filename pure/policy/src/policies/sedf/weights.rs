//! Slices by weight, where every promise is kept: one is set as its period begins and holds until
//! that ends, however the weights change meanwhile.
//!
//! Were it to grow at once as another vCPU leaves, what that one had in advance would be handed out
//! a second time; were a newcomer to have its part at once, so would be what those who must make
//! room for it have had. So what a slice was stays taken until its period is over, or until it has
//! been earned where it was given up (`hold`), and nobody has more than is free. Only where a
//! reservation needs the room slices shrink at once. The real scheduler sets all slices anew at
//! every change. [Xen 3.0, §6.9]

use alloc::vec::Vec;

use slackline_units::{CpuId, Reservation, Span, Time, VcpuId};

use super::terms::WEIGHT_PERIOD;
use super::{Sedf, Server};
use crate::Moment;

/// Time in each period that was given up and is not free yet.
#[derive(Debug)]
struct GivenUp {
    cpu: CpuId,
    slice: Span,
    until: Time,
}

/// Slices by weight that were given up.
#[derive(Debug, Default)]
pub(super) struct Leavings(Vec<GivenUp>);

impl Leavings {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nobody on a CPU waits for what was had in advance.
    pub(super) fn rest(&mut self, cpu: CpuId) {
        self.0.retain(|given_up| given_up.cpu != cpu);
    }

    /// What was given up on a CPU and has not been earned by now.
    fn on(&mut self, cpu: CpuId, now: Time) -> Span {
        self.0.retain(|given_up| given_up.until > now);
        let here = self.0.iter().filter(|given_up| given_up.cpu == cpu);
        here.map(|given_up| given_up.slice).sum()
    }
}

impl Sedf {
    /// Somebody has this slice by weight no more, of which so much has been had in advance; a part
    /// of it may be its own still.
    pub(super) fn give_up(&mut self, now: Time, before: (CpuId, Span), left: Span, advance: Span) {
        let (cpu, slice) = before;
        let Ok(rate) = Reservation::new(slice, WEIGHT_PERIOD) else { return };
        let until = now.after(rate.time_for(advance));
        self.leavings.0.push(GivenUp { cpu, slice: slice.left_after(left), until });
    }

    /// A period of a vCPU begins: its slice, if that goes by weight, is its part of what there is,
    /// or what others have left of it.
    pub(super) fn set_slice(&mut self, at: &Moment, vcpu: VcpuId) {
        let Server { cpu, terms, .. } = self.servers[vcpu];
        if terms.weight == 0 || !self.rules.keeps_slices() {
            return;
        }
        let left = self.left(at.now(), cpu);
        let others = self.weighted(at, cpu).filter(|&other| other != vcpu);
        let tally = &self.cpus[cpu.index()].tally;
        let taken = |other: VcpuId| {
            let Server { by_weight, terms, .. } = self.servers[other];
            let part = tally.part_of(left, terms.weight);
            if self.may_change(at, other) { by_weight.min(part) } else { by_weight }
        };
        let taken: Span = others.map(taken).sum();
        let part = tally.part_of(left, terms.weight);
        let slice = part.min(left.left_after(taken)).max(Span::from_ns(1));
        self.servers[vcpu].by_weight = slice;
    }

    /// What is promised on a CPU has changed. A slice by weight of which nothing has been had in
    /// advance follows at once; the others do if they leave too little for reservations.
    pub(super) fn set_slices(&mut self, at: &Moment, cpu: CpuId) {
        if !self.rules.keeps_slices() || !self.cpus[cpu.index()].tally.has_weights() {
            return;
        }
        let left = self.left(at.now(), cpu);
        let all: Vec<VcpuId> = self.weighted(at, cpu).collect();
        let taken: Span = all.iter().map(|&vcpu| self.servers[vcpu].by_weight).sum();
        let has_to = taken > left;
        for &vcpu in &all {
            if has_to || self.may_change(at, vcpu) {
                let weight = self.servers[vcpu].terms.weight;
                let part = self.cpus[cpu.index()].tally.part_of(left, weight);
                let server = &mut self.servers[vcpu];
                server.by_weight = server.by_weight.min(part).max(Span::from_ns(1));
            }
        }
        for vcpu in all {
            if self.may_change(at, vcpu) {
                self.set_slice(at, vcpu);
            }
        }
    }

    /// Whether nothing of the current slice has been had, nor is owed.
    fn may_change(&self, at: &Moment, vcpu: VcpuId) -> bool {
        let server = &self.servers[vcpu];
        let begins = server.deadline == Time::NEVER || server.begin() == at.now();
        let is_over = !at.is_awake(vcpu) && server.deadline <= at.now();
        (begins || is_over) && self.advance(at.now(), vcpu).is_zero()
    }

    /// Those on a CPU whose slices go by weight.
    fn weighted(&self, at: &Moment, cpu: CpuId) -> impl Iterator<Item = VcpuId> {
        at.members().filter(move |&vcpu| {
            let server = self.servers.get(vcpu);
            server.is_some_and(|server| server.cpu == cpu && server.terms.weight > 0)
        })
    }

    /// What there is for weights on a CPU: what was given up there is not free yet.
    fn left(&mut self, now: Time, cpu: CpuId) -> Span {
        let held: Span = self.holds.beyond(cpu, now, |slice| slice.over(WEIGHT_PERIOD)).sum();
        let held = held + self.leavings.on(cpu, now);
        self.cpus[cpu.index()].tally.left().left_after(held)
    }
}
