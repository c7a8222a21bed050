//! Slices by weight under exact admission. The time that fixed slices leave on a CPU is divided
//! among the vCPUs with a weight, in proportion to their weights. The slice of such a vCPU is set
//! when its period begins, and stays fixed until the period ends, even if weights change meanwhile.
//! Slices shrink at once only if a reservation needs the capacity. Xen recomputes all slices at
//! every change. [Xen 3.0, §6.9]
//!
//! Slices that grew at once would promise more CPU time than there is:
//!
//! - A vCPU that leaves may have used more CPU time than the fluid rate gives it so far. This
//!   excess would be given out a second time if another slice grew at once. So a slice that was
//!   given up stays taken until its zero-lag time (`zero_lag`).
//! - When a vCPU joins, the slices of other vCPUs must shrink, but these vCPUs may already have
//!   used more than their new slices. So an old slice stays taken until its period ends, and the
//!   newcomer gets only time that is free.

use alloc::vec::Vec;

use slackline_units::{CpuId, Reservation, Span, Time, VcpuId};

use super::terms::WEIGHT_PERIOD;
use super::{Sedf, SedfServer};
use crate::Moment;

/// A slice per 100 ms that a vCPU with a weight gave up. The slice becomes free when the vCPU's
/// entitlement at the fluid rate equals the CPU time that it used.
#[derive(Debug)]
struct ReleasedSlice {
    cpu: CpuId,
    slice: Span,
    /// Time at which the slice is free: the vCPU's entitlement at the fluid rate then equals the
    /// CPU time that it used.
    until: Time,
}

/// Slices that vCPUs with a weight gave up and that are not free yet. These vCPUs have used more
/// CPU time than the fluid rate gives them so far.
#[derive(Debug, Default)]
pub(super) struct ReleasedSlices(Vec<ReleasedSlice>);

impl ReleasedSlices {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Frees all slices that were given up on a CPU, because the CPU is quiescent.
    pub(super) fn rest(&mut self, cpu: CpuId) {
        self.0.retain(|given_up| given_up.cpu != cpu);
    }

    /// Returns the sum of the slices per 100 ms that were given up on a CPU and are not free at
    /// `now`.
    fn on(&mut self, cpu: CpuId, now: Time) -> Span {
        self.0.retain(|given_up| given_up.until > now);
        let here = self.0.iter().filter(|given_up| given_up.cpu == cpu);
        here.map(|given_up| given_up.slice).sum()
    }
}

impl Sedf {
    /// Records that a vCPU with a weight gave up its slice. `left` is the part that it keeps, and
    /// `advance` is its usage in excess of the fluid rate.
    pub(super) fn give_up(&mut self, now: Time, before: (CpuId, Span), left: Span, advance: Span) {
        let (cpu, slice) = before;
        let Ok(rate) = Reservation::new(slice, WEIGHT_PERIOD) else { return };
        let until = now.after(rate.time_for(advance));
        self.leavings.0.push(ReleasedSlice { cpu, slice: slice.left_after(left), until });
    }

    /// Sets the slice of a vCPU with a weight when its period begins. The slice is the vCPU's part
    /// by weight, or less if the slices of other vCPUs do not leave that much.
    pub(super) fn set_slice(&mut self, at: &Moment, vcpu: VcpuId) {
        let SedfServer { cpu, terms, .. } = self.servers[vcpu];
        if terms.weight == 0 || !self.rules.keeps_slices() {
            return;
        }
        let left = self.left(at.now(), cpu);
        let others = self.weighted(at, cpu).filter(|&other| other != vcpu);
        let tally = &self.cpus[cpu.index()].tally;
        let taken = |other: VcpuId| {
            let SedfServer { by_weight, terms, .. } = self.servers[other];
            let part = tally.part_of(left, terms.weight);
            if self.may_change(at, other) { by_weight.min(part) } else { by_weight }
        };
        let taken: Span = others.map(taken).sum();
        let part = tally.part_of(left, terms.weight);
        let slice = part.min(left.left_after(taken)).max(Span::from_ns(1));
        self.servers[vcpu].by_weight = slice;
    }

    /// Updates the slices of vCPUs with a weight after the reservations on a CPU have changed.
    /// Slices that may change now (`may_change`) are set again. Other slices shrink, but only if
    /// the slices together exceed the time that reservations leave.
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

    /// Returns true if the slice of a vCPU with a weight may change now. The vCPU must have no
    /// excess over the fluid rate, and its period must begin now or have ended while it was
    /// blocked.
    fn may_change(&self, at: &Moment, vcpu: VcpuId) -> bool {
        let server = &self.servers[vcpu];
        let begins = server.deadline == Time::NEVER || server.begin() == at.now();
        let is_over = !at.is_awake(vcpu) && server.deadline <= at.now();
        (begins || is_over) && self.advance(at.now(), vcpu).is_zero()
    }

    /// Returns the vCPUs on a CPU that have a weight in place of a fixed slice.
    fn weighted(&self, at: &Moment, cpu: CpuId) -> impl Iterator<Item = VcpuId> {
        at.members().filter(move |&vcpu| {
            let server = self.servers.get(vcpu);
            server.is_some_and(|server| server.cpu == cpu && server.terms.weight > 0)
        })
    }

    /// Returns the time in 100 ms that is free for the slices of vCPUs with a weight. A slice that
    /// was given up is not free while the usage of its vCPU exceeds the fluid rate.
    fn left(&mut self, now: Time, cpu: CpuId) -> Span {
        let held: Span = self.holds.beyond(cpu, now, |slice| slice.over(WEIGHT_PERIOD)).sum();
        let held = held + self.leavings.on(cpu, now);
        self.cpus[cpu.index()].tally.left().left_after(held)
    }
}
