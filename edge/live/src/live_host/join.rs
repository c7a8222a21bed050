//! Joining and leaving of vCPUs, and changes of their parameters.

use std::sync::{Arc, MutexGuard};

use slackline_host::VcpuTerms;
use slackline_host::policy::Values;
use slackline_trace::{Record, Sink};
use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span, Time, VcpuId};

use super::decider::{Decider, NewcomerVcpu, Vcpu};
use super::{LiveHost, LiveHostError, NewcomerThreads, NotDone};
use crate::vcpu_threads::{Body, Home, Meter, UsedClock, VcpuThreads};
use crate::way::{HeldThreads, VcpuHandle};
use slackline_linux::sys::Tid;

/// Parameters of a vCPU that is about to join.
#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) threads: VcpuThreads,
    pub(crate) share: Values,
    /// CPUs on which the vCPU may run. If `None`, the vCPU may run on all managed CPUs.
    pub(crate) cpus: Option<CpuSet>,
    /// Reservation of the vCPU, if the reservation is a hard limit. The vCPU's threads can then be
    /// stopped. `None` if the vCPU has no hard limit.
    pub(crate) hard_limit: Option<Reservation>,
}

/// Result of adding a group of vCPUs. The error names the vCPU that could not join, and the reason.
pub(crate) type GroupJoined = Result<(), (VcpuId, NotDone)>;

/// Error of replacing vCPUs by a group of other vCPUs.
#[derive(Debug)]
pub(crate) struct NotReplaced {
    /// vCPU that could not join, so that no vCPU of its group was added.
    pub(crate) vcpu: VcpuId,
    /// Reason why the vCPU could not join.
    pub(crate) why: NotDone,
    /// Replaced vCPUs that had left and could not join again, so their reservations are lost.
    pub(crate) lost: Vec<VcpuId>,
}

impl LiveHost {
    /// Adds groups of vCPUs in one scheduling decision. If a vCPU of a group cannot join, no vCPU
    /// of that group is added. Returns the result of each group, in order.
    pub(crate) fn join(
        &self,
        groups: Vec<Vec<Joining>>,
    ) -> Result<Vec<GroupJoined>, LiveHostError> {
        self.note_wanted()?;
        let mut decider = self.observe()?;
        let mut results = Vec::with_capacity(groups.len());
        for group in groups {
            match self.join_group(&mut decider, group) {
                Err((_, NotDone::Host(error))) => return Err(error),
                result => results.push(result),
            }
        }
        self.finish(decider)?;
        Ok(results)
    }

    /// Replaces the vCPUs `before` by the vCPUs of `group`, in one scheduling decision. A vCPU of
    /// `before` holds a reservation but has no thread yet. If the group cannot join, the vCPUs of
    /// `before` join again with their old parameters.
    pub(crate) fn replace(
        &self,
        before: Vec<Joining>,
        group: Vec<Joining>,
    ) -> Result<Result<(), NotReplaced>, LiveHostError> {
        self.note_wanted()?;
        let mut decider = self.observe()?;
        for one in &before {
            self.take_out(&mut decider, one.threads.vcpu)?;
        }
        let result = match self.join_group(&mut decider, group) {
            Ok(()) => Ok(()),
            Err((_, NotDone::Host(error))) => return Err(error),
            Err((vcpu, why)) => {
                let mut lost = Vec::new();
                for one in before {
                    let vcpu = one.threads.vcpu;
                    match self.join_one(&mut decider, one) {
                        Err(NotDone::Host(error)) => return Err(error),
                        Err(_) => lost.push(vcpu),
                        Ok(()) => {}
                    }
                }
                Err(NotReplaced { vcpu, why, lost })
            }
        };
        self.finish(decider)?;
        Ok(result)
    }

    /// Returns the largest slice that one more vCPU with this period could reserve, if its affinity
    /// is `allowed`. `None` if the policy has no reservations or admits any slice.
    pub(crate) fn room(
        &self,
        period: Span,
        allowed: CpuSet,
    ) -> Result<Option<Span>, LiveHostError> {
        let mut decider = self.observe()?;
        let room = decider.room(period, allowed);
        self.finish(decider)?;
        room
    }

    /// Returns the sum of all reservations on a CPU, without dispatch overhead. `None` if the
    /// policy does not reserve slices on single CPUs.
    pub(crate) fn reserved(&self, cpu: CpuId) -> Result<Option<CpuShare>, LiveHostError> {
        let decider = self.observe()?;
        let reserved = decider.reserved(cpu);
        self.finish(decider)?;
        Ok(reserved)
    }

    fn join_group(&self, decider: &mut Decider, group: Vec<Joining>) -> GroupJoined {
        let mut joined = Vec::new();
        for one in group {
            let vcpu = one.threads.vcpu;
            if let Err(error) = self.join_one(decider, one) {
                decider.records.record(&Record::Declined { at: decider.now, vcpu });
                for before in joined {
                    let left = self.take_out(decider, before);
                    left.map_err(|error| (before, error.into()))?;
                }
                return Err((vcpu, error));
            }
            joined.push(vcpu);
        }
        Ok(())
    }

    fn join_one(&self, decider: &mut Decider, joining: Joining) -> Result<(), NotDone> {
        let Joining { threads, share, cpus, hard_limit } = joining;
        let VcpuThreads { vcpu, body } = threads;
        let threads = match &body {
            Body::Threads(members) => {
                HeldThreads::Each(members.iter().map(|it| it.held.clone()).collect())
            }
            Body::Tree(tree) => HeldThreads::Tree(tree.clone()),
        };
        let handle = VcpuHandle::new(vcpu, threads);
        // If the kernel never allows such orders, joining fails here. An order that the kernel
        // refuses later is tried again.
        handle.try_real_time().map_err(NotDone::Refused)?;
        if let Some(cpus) = cpus {
            let real = decider.real_cpus(cpus);
            handle.confine(decider.number, real).map_err(NotDone::Refused)?;
        }
        if hard_limit.is_some() {
            self.notice_use(&handle, hard_limit)?;
        }
        let known = match body {
            Body::Threads(members) => {
                let clocks = members.into_iter().map(|member| {
                    let tid = member.held.thread().tid();
                    (tid, UsedClock::Kernel(member.held, member.clock), member.used)
                });
                self.known(clocks.collect(), vcpu)?
            }
            Body::Tree(tree) => self.known_tree(&tree, vcpu)?,
        };
        let vcpu = Vcpu::new(handle, known, hard_limit);
        self.join_known(decider, vcpu, VcpuTerms { share: &share, cpus })
    }

    /// Adds a vCPU for a test or bench. Its threads do not exist in the kernel.
    pub(crate) fn join_fed(
        &self,
        (handle, threads): (VcpuHandle, Vec<(Tid, UsedClock, Span)>),
        share: &Values,
        hard_limit: Option<Reservation>,
    ) -> Result<(), NotDone> {
        let decider = self.observe()?;
        let known = self.known(threads, handle.vcpu)?;
        self.finish_join(decider, Vcpu::new(handle, known, hard_limit), share)
    }

    /// Adds a process tree for a test or bench. Its threads do not exist in the kernel.
    pub(crate) fn join_fed_tree(
        &self,
        (handle, tids, clock): (VcpuHandle, &[Tid], UsedClock),
        share: &Values,
        (hard_limit, wide): (Option<Reservation>, Option<CpuSet>),
    ) -> Result<(), NotDone> {
        let decider = self.observe()?;
        let home = Arc::new(Home::none());
        let known = self.known_threads((tids, handle.vcpu), &home, &Meter::new(clock, Span::ZERO));
        let joined = NewcomerVcpu { home, known: known?, is_tree: true, wide };
        self.finish_join(decider, Vcpu::new(handle, joined, hard_limit), share)
    }

    fn finish_join(
        &self,
        mut decider: MutexGuard<'_, Decider>,
        vcpu: Vcpu,
        share: &Values,
    ) -> Result<(), NotDone> {
        let result = self.join_known(&mut decider, vcpu, share.into());
        self.finish(decider)?;
        result
    }

    fn join_known(
        &self,
        decider: &mut Decider,
        vcpu: Vcpu,
        terms: VcpuTerms<'_>,
    ) -> Result<(), NotDone> {
        let tids: Vec<Tid> = vcpu.threads.keys().copied().collect();
        let joined = decider.join(vcpu, terms);
        if joined.is_err() {
            tids.into_iter().for_each(|tid| self.unwatch(tid));
        }
        joined
    }

    /// Changes the parameters of a vCPU. On failure the old parameters stay in force. `due` is the
    /// time for which the change was requested; it is only recorded.
    pub(crate) fn change(
        &self,
        vcpu: VcpuId,
        terms: VcpuTerms<'_>,
        due: Time,
    ) -> Result<(), NotDone> {
        let mut decider = self.observe()?;
        let result = decider.change(vcpu, terms, due);
        self.finish(decider)?;
        result
    }

    /// Removes a vCPU. Its threads get no further orders.
    pub(crate) fn leave(&self, vcpu: VcpuId) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        let result = self.take_out(&mut decider, vcpu);
        self.finish(decider)?;
        result
    }

    fn take_out(&self, decider: &mut Decider, vcpu: VcpuId) -> Result<(), LiveHostError> {
        if let Some(left) = decider.leave(vcpu)? {
            left.handle.take_no_more_orders();
            left.threads.keys().for_each(|&tid| self.unwatch(tid));
        }
        self.unwatch_tree(vcpu);
        Ok(())
    }

    /// Requests the kernel's events of the threads and trees that are about to join.
    fn note_wanted(&self) -> Result<(), LiveHostError> {
        let NewcomerThreads { threads, trees } = std::mem::take(&mut *self.wanted());
        match &mut *self.perf() {
            Some(perf) if !(threads.is_empty() && trees.is_empty()) => {
                Ok(perf.add_all(&threads, trees)?)
            }
            _ => Ok(()),
        }
    }
}
