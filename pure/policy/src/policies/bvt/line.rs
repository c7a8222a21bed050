//! Queues of the runnable vCPUs of a CPU.
//!
//! A vCPU whose effective time equals its actual time is in the first queue; most vCPUs are. A vCPU
//! that warps is in a second queue by effective time and in a third queue by actual time.

use slackline_units::{CpuId, VcpuId, VirtualTime};

use super::{Bvt, Source};
use crate::Moment;

impl<S: Source> Bvt<S> {
    /// Returns the earliest actual time of all vCPUs queued on `cpu`.
    #[inline]
    pub(super) fn earliest(&self, cpu: CpuId) -> Option<VirtualTime> {
        let plain = self.order.first(plain(cpu)).map(|((actual, _), _)| actual);
        if self.actuals.is_empty(cpu.index()) {
            return plain;
        }
        lower(plain, self.actuals.first(cpu.index()).map(|(actual, _)| actual))
    }

    /// Returns the earliest actual time of all vCPUs queued on `cpu`, except `but`.
    pub(super) fn earliest_but(&self, cpu: CpuId, but: VcpuId) -> Option<VirtualTime> {
        let plain = self.order.first_but(plain(cpu), but).map(|((actual, _), _)| actual);
        let shifted = self.actuals.first_but(cpu.index(), but).map(|(actual, _)| actual);
        lower(plain, shifted)
    }

    /// Returns the first vCPU in the queue of `cpu` that may be picked for `cpu`.
    pub(super) fn first(&self, at: &Moment, cpu: CpuId) -> Option<VcpuId> {
        self.first_that(cpu, |vcpu| at.is_eligible(vcpu, cpu)).map(|(_, vcpu)| vcpu)
    }

    /// Returns the first vCPU in the queue of `cpu` for which `holds` is true.
    #[inline]
    pub(super) fn first_that(
        &self,
        cpu: CpuId,
        holds: impl Fn(VcpuId) -> bool,
    ) -> Option<((VirtualTime, i64), VcpuId)> {
        let plain = self.order.first_that(plain(cpu), &holds);
        if self.order.is_empty(shifted(cpu)) {
            return plain;
        }
        lower(plain, self.order.first_that(shifted(cpu), &holds))
    }

    /// Returns the first vCPU in the queue of `cpu` other than `but`.
    #[inline]
    pub(super) fn first_but(
        &self,
        cpu: CpuId,
        but: VcpuId,
    ) -> Option<((VirtualTime, i64), VcpuId)> {
        let plain = self.order.first_but(plain(cpu), but);
        if self.order.is_empty(shifted(cpu)) {
            return plain;
        }
        lower(plain, self.order.first_but(shifted(cpu), but))
    }

    /// Moves a queued vCPU to the position that its clock now gives it, behind vCPUs with equal
    /// effective times.
    #[inline]
    pub(super) fn requeue(&mut self, cpu: CpuId, vcpu: VcpuId) {
        if self.order.queue_of(vcpu).is_some() {
            self.enqueue_last(cpu, vcpu);
        }
    }

    /// Queues a vCPU behind vCPUs with the same effective time.
    pub(super) fn enqueue_last(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let line = &mut self.lines[cpu.index()];
        line.tail += 1;
        let tail = line.tail;
        self.enqueue(vcpu, tail);
    }

    /// Puts a runnable vCPU into the queues of its CPU, by its clock. `place` orders vCPUs with
    /// equal effective times. If the vCPU is queued already, moves it.
    pub(super) fn enqueue(&mut self, vcpu: VcpuId, place: i64) {
        let clock = &mut self.clocks[vcpu];
        let (cpu, actual) = (clock.cpu, clock.actual);
        let effective = clock.read(&self.rules, actual);
        clock.effective = effective;
        let (is_shifted, key) = (effective != actual, (effective, place));
        self.dequeue(vcpu);
        if is_shifted {
            self.order.insert(shifted(cpu), key, vcpu);
            self.actuals.insert(cpu.index(), actual, vcpu);
        } else {
            self.order.insert(plain(cpu), key, vcpu);
        }
    }

    pub(super) fn dequeue(&mut self, vcpu: VcpuId) {
        self.order.remove(vcpu);
        self.actuals.remove(vcpu);
    }
}

/// Returns the lesser value of two options. An absent value counts as greater than all others.
#[inline]
fn lower<T: Ord>(this: Option<T>, that: Option<T>) -> Option<T> {
    match (this, that) {
        (Some(this), Some(that)) => Some(this.min(that)),
        (this, that) => this.or(that),
    }
}

/// Index of the queue of vCPUs whose effective time is their actual time.
fn plain(cpu: CpuId) -> usize {
    2 * cpu.index()
}

/// Index of the queue of vCPUs whose effective time differs from their actual time.
fn shifted(cpu: CpuId) -> usize {
    2 * cpu.index() + 1
}
