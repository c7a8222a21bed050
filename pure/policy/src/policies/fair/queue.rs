//! Queue of one CPU: virtual times, deadlines and lag of its entities.

use alloc::vec::Vec;

use slackline_units::{Span, VcpuId};

/// Weight with which the virtual time of an entity passes as fast as real time.
const USUAL: u64 = 1024;

/// Entities (vCPUs) that compete for one CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct FairQueue {
    entities: Vec<Entity>,
    /// Average of the virtual times when the queue last became empty, in ns at weight `USUAL`.
    base: i64,
    /// Lag of vCPUs that are not in the queue, by slot: the virtual time, in ns at weight `USUAL`,
    /// by which the vCPU was behind the average when it left. Negative if it was ahead.
    lags: Vec<i64>,
}

/// An entity: a vCPU that wants the CPU, or a vCPU that has blocked and is delayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entity {
    vcpu: VcpuId,
    weight: u64,
    slice: Span,
    /// True if the vCPU blocked while its virtual time was ahead of the average.
    is_delayed: bool,
    /// Virtual time of the entity, in ns at weight `USUAL`.
    runtime: i64,
    /// Virtual time at which the slice of the entity is used.
    deadline: i64,
}

impl Entity {
    pub(super) fn new(vcpu: VcpuId, weight: u64, slice: Span) -> Entity {
        Entity { vcpu, weight, slice, is_delayed: false, runtime: 0, deadline: 0 }
    }

    /// Converts real time to the virtual time of this entity.
    fn virtual_time(&self, time: Span) -> i64 {
        let time = u128::from(time.ns()) * u128::from(USUAL) / u128::from(self.weight.max(1));
        i64::try_from(time).unwrap_or(i64::MAX / 8)
    }
}

impl FairQueue {
    /// Returns the number of entities in the queue.
    pub(super) fn len(&self) -> usize {
        self.entities.len()
    }

    /// Adds an entity with the lag that its vCPU had when the vCPU left. A delayed entity of the
    /// vCPU stays at its place and is no longer delayed.
    pub(super) fn enter(&mut self, mut entity: Entity) {
        let average = self.average();
        if let Some(known) = self.find(entity.vcpu) {
            if core::mem::take(&mut known.is_delayed) {
                known.runtime = known.runtime.max(average);
            }
            return;
        }
        let lag = self.take_lag(entity.vcpu);
        let weights: i128 = self.entities.iter().map(|it| i128::from(it.weight)).sum();
        let own = i128::from(entity.weight);
        // When the entity enters, it moves the average towards itself and would lose a part of its
        // lag. So the lag is enlarged first.
        let behind = if weights > 0 { i128::from(lag) * (weights + own) / weights } else { 0 };
        entity.runtime = average.saturating_sub(i64::try_from(behind).unwrap_or(0));
        entity.deadline = entity.runtime.saturating_add(entity.virtual_time(entity.slice));
        self.entities.push(entity);
    }

    /// Handles the block of a vCPU: removes its entity, or marks the entity as delayed if the
    /// entity is ahead of the average.
    pub(super) fn leave(&mut self, vcpu: VcpuId, tick: Span) {
        let average = self.average();
        match self.find(vcpu) {
            Some(entity) if entity.runtime > average => entity.is_delayed = true,
            _ => self.leave_with_lag(vcpu, tick),
        }
    }

    /// Removes the entity of a vCPU, and stores the vCPU's lag. The lag is limited to two slices or
    /// a tick, whichever is longer. The lag of a delayed entity becomes zero.
    pub(super) fn leave_with_lag(&mut self, vcpu: VcpuId, tick: Span) {
        let average = self.average();
        let Some(entity) = self.find(vcpu).copied() else { return };
        let limit = entity.virtual_time((entity.slice * 2).max(tick));
        let lag = average.saturating_sub(entity.runtime).clamp(-limit, limit);
        self.keep_lag(vcpu, if entity.is_delayed { 0 } else { lag });
        self.remove(vcpu, average);
    }

    /// Removes the entity of a vCPU, and drops the vCPU's lag.
    pub(super) fn forget(&mut self, vcpu: VcpuId) {
        let average = self.average();
        self.take_lag(vcpu);
        self.remove(vcpu, average);
    }

    /// Returns and drops the lag of a vCPU that is not in the queue.
    pub(super) fn take_lag(&mut self, vcpu: VcpuId) -> i64 {
        self.lags.get_mut(vcpu.slot()).map(core::mem::take).unwrap_or(0)
    }

    /// Stores the lag of a vCPU that is not in the queue.
    pub(super) fn keep_lag(&mut self, vcpu: VcpuId, lag: i64) {
        while self.lags.len() <= vcpu.slot() {
            self.lags.push(0);
        }
        self.lags[vcpu.slot()] = lag;
    }

    pub(super) fn charge(&mut self, vcpu: VcpuId, ran: Span) {
        if let Some(entity) = self.find(vcpu) {
            entity.runtime = entity.runtime.saturating_add(entity.virtual_time(ran));
        }
    }

    /// Changes weight and slice of an entity. The entity gets a new deadline.
    pub(super) fn change(&mut self, vcpu: VcpuId, weight: u64, slice: Span) {
        if let Some(entity) = self.find(vcpu) {
            (entity.weight, entity.slice) = (weight, slice);
            entity.deadline = entity.runtime.saturating_add(entity.virtual_time(slice));
        }
    }

    /// Returns true if an entity has used its slice.
    pub(super) fn has_used_slice(&mut self, vcpu: VcpuId) -> bool {
        self.find(vcpu).is_none_or(|entity| entity.runtime >= entity.deadline)
    }

    /// Begins a new slice of an entity, with a new deadline.
    pub(super) fn renew(&mut self, vcpu: VcpuId) {
        if let Some(entity) = self.find(vcpu) {
            entity.deadline = entity.runtime.saturating_add(entity.virtual_time(entity.slice));
        }
    }

    /// Returns the vCPU to run. Delayed entities with an earlier deadline leave the queue.
    pub(super) fn choose(
        &mut self,
        tick: Span,
        is_eligible: impl Fn(VcpuId) -> bool,
    ) -> Option<VcpuId> {
        loop {
            let average = self.average();
            let candidates =
                self.entities.iter().filter(|it| it.is_delayed || is_eligible(it.vcpu));
            let first = candidates.min_by_key(|it| it.rank(average))?;
            let (vcpu, is_delayed) = (first.vcpu, first.is_delayed);
            if !is_delayed {
                return Some(vcpu);
            }
            self.leave_with_lag(vcpu, tick);
        }
    }

    /// Returns the first vCPU in order that is not delayed and for which `holds` returns true.
    pub(super) fn first(&self, holds: impl Fn(VcpuId) -> bool) -> Option<VcpuId> {
        let average = self.average();
        let runnable = self.entities.iter().filter(|it| !it.is_delayed && holds(it.vcpu));
        runnable.min_by_key(|it| it.rank(average)).map(|it| it.vcpu)
    }

    fn find(&mut self, vcpu: VcpuId) -> Option<&mut Entity> {
        self.entities.iter_mut().find(|entity| entity.vcpu == vcpu)
    }

    fn remove(&mut self, vcpu: VcpuId, average: i64) {
        self.entities.retain(|entity| entity.vcpu != vcpu);
        if self.entities.is_empty() {
            self.base = average;
        }
    }

    /// Returns the average of the virtual times of the entities, weighted by their weights.
    fn average(&self) -> i64 {
        let Some(first) = self.entities.first() else { return self.base };
        let (mut sum, mut weights) = (0_i128, 0_i128);
        for entity in &self.entities {
            sum += (i128::from(entity.runtime) - i128::from(first.runtime))
                * i128::from(entity.weight);
            weights += i128::from(entity.weight);
        }
        let average = i128::from(first.runtime) + sum.div_euclid(weights.max(1));
        i64::try_from(average).unwrap_or(first.runtime)
    }
}

impl Entity {
    /// Returns the key by which entities are ordered: eligible entities first, then by deadline.
    fn rank(&self, average: i64) -> (bool, i64, VcpuId) {
        (self.runtime > average, self.deadline, self.vcpu)
    }
}
