//! Orders to the kernel: which vCPUs to make real-time, with which priorities, and which vCPUs to
//! stop. Only vCPUs whose class may have changed are considered.

use std::sync::Arc;

use slackline_host::NextInLine;
use slackline_host::policy::Entitlement;
use slackline_units::{CpuId, CpuSet, Span, VcpuId};

use super::decider::Decider;
use crate::vcpu_threads::Home;
use crate::way::{Assignment, Place};
use slackline_fence::Timeslice;

/// Maximum number of real-time vCPUs on a CPU, including the chosen vCPU. Each further vCPU would
/// cost a system call, and would run only if all vCPUs of higher priority blocked between two
/// passes.
const READY: usize = 4;

/// Default timeslice of `SCHED_RR`: the time for which a thread runs before the next thread of the
/// same priority.
const ROUND_ROBIN_QUANTUM: Span = Span::from_ms(100);

/// Least budget that a vCPU with a hard limit needs to run next if the chosen vCPU blocks.
///
/// No event reports a block to the dispatcher. So the next vCPU runs until the next pass, up to 1
/// ms later, even if its budget is exhausted long before. A vCPU with less budget than this
/// constant does not run until that pass.
const LEAST_REST: Span = Span::from_us(500);

/// Shortest period for which [`LEAST_REST`] applies. A vCPU with a shorter period may run next with
/// any budget left, because a wait of up to 1 ms could make it miss a deadline.
const LEAST_PERIOD: Span = Span::from_ms(10);

/// Returns the way in which the threads of a process tree use a timeslice of length `limit`. Only a
/// timeslice longer than the round-robin quantum is divided among several threads.
///
/// The kernel's round-robin quantum continues across timeslices. If it ended within a short
/// timeslice, an arbitrary thread would receive the remaining time.
fn timeslice_of(limit: Option<Span>) -> Timeslice {
    match limit {
        Some(limit) if limit <= ROUND_ROBIN_QUANTUM => Timeslice::Whole,
        _ => Timeslice::Shared,
    }
}

impl Decider {
    /// Returns the CPUs that have orders to carry out and whose dispatchers were not woken yet. The
    /// caller must wake these dispatchers.
    pub(super) fn call_others(&mut self) -> CpuSet {
        for vcpu in std::mem::take(&mut self.touched) {
            self.note_unbound(vcpu);
            let home = self.home(vcpu).and_then(Home::get).unwrap_or(CpuId::new(0));
            let pcpu = &mut self.pcpus.all[home.index()];
            pcpu.is_stale = true;
            pcpu.placed.push(vcpu);
        }
        let mut calls = CpuSet::NONE;
        for (index, pcpu) in self.pcpus.all.iter_mut().enumerate() {
            if pcpu.is_stale && !std::mem::replace(&mut pcpu.is_called, true) {
                calls.insert(CpuId::new(index));
            }
        }
        calls
    }

    /// Returns the new orders for the threads on a CPU. If nothing has changed on this CPU, there
    /// are no orders.
    pub(super) fn enact(&mut self, cpu: CpuId) -> Vec<Assignment> {
        let mut order = Vec::new();
        let mut touched = std::mem::take(&mut self.touched);
        let elsewhere =
            |vcpu: &VcpuId| self.home(*vcpu).and_then(Home::get).is_some_and(|home| home != cpu);
        let (others, mut own): (Vec<_>, Vec<_>) = touched.drain(..).partition(elsewhere);
        self.touched = others;
        own.iter().for_each(|&vcpu| self.note_unbound(vcpu));
        let pcpu = &mut self.pcpus.all[cpu.index()];
        if std::mem::take(&mut pcpu.is_stale) || !own.is_empty() {
            pcpu.placed.append(&mut own);
            self.number += 1;
            self.enact_on(cpu, &mut order);
        }
        order
    }

    fn enact_on(&mut self, cpu: CpuId, order: &mut Vec<Assignment>) {
        let mut in_line = std::mem::take(&mut self.in_line);
        self.host.in_line(cpu, READY, &mut in_line);
        // If the kernel refused an order for a vCPU, the same order would be refused again at once,
        // and so on forever.
        in_line.retain(|next| !self.pcpus.is_refused(next.vcpu));
        let mut staged = in_line.clone();
        let first = staged.first().map(|first| first.vcpu);
        staged.retain(|next| Some(next.vcpu) == first || self.may_follow(*next));
        let pcpu = &mut self.pcpus.all[cpu.index()];
        let turn = pcpu.turn.map(|(vcpu, _, entitlement)| (vcpu, entitlement));
        // While one vCPU pays the debt as an ordinary thread, no other vCPU is real-time. A
        // real-time vCPU would preempt the paying vCPU.
        pcpu.is_paying = !in_line.is_empty()
            && pcpu.fair_server.is_to_be_paid(pcpu.is_paying, in_line.len() > 1);
        pcpu.is_awaited = in_line.len() > 1;
        pcpu.ready = in_line.iter().skip(1).filter_map(|next| next.limit).min();
        let raised: &[NextInLine] = if pcpu.is_paying { &[] } else { &staged };
        let mut before = std::mem::take(&mut pcpu.placed);
        if let Some(home) = turn.and_then(|(vcpu, _)| self.home(vcpu)) {
            home.set(cpu);
        }
        for next in &in_line {
            if let Some(home) = self.home(next.vcpu).filter(|home| home.get().is_none()) {
                home.set(cpu);
            }
        }
        before.extend(turn.map(|(vcpu, _)| vcpu));
        if !self.unbound.is_empty() {
            self.bind(cpu, &mut before);
        }
        before.sort_unstable();
        before.dedup();
        // Demotions come first: before a vCPU is raised, the vCPU that it replaces must be demoted.
        for &vcpu in &before {
            if !raised.iter().any(|next| next.vcpu == vcpu) {
                let is_owed = staged.iter().any(|next| next.vcpu == vcpu);
                self.put_down((vcpu, cpu), turn, is_owed, order);
            }
        }
        for next in raised {
            if self.home(next.vcpu).and_then(Home::get) == Some(cpu) {
                self.assign(next.vcpu, Place::InLine, order);
                let assigned = order.iter_mut().rfind(|it| it.handle.vcpu == next.vcpu);
                assigned.into_iter().for_each(|it| it.timeslice = timeslice_of(next.limit));
            }
        }
        before.clear();
        before.extend(turn.map(|(vcpu, _)| vcpu));
        before.extend(in_line.iter().map(|next| next.vcpu));
        self.pcpus.all[cpu.index()].placed = before;
        self.in_line = in_line;
    }

    /// Returns true if a vCPU may run as soon as the vCPU before it in line blocks. Returns false
    /// for a vCPU with a hard limit and little budget left ([`LEAST_REST`]), unless its period is
    /// short.
    fn may_follow(&self, next: NextInLine) -> bool {
        let known = self.vcpus.get(next.vcpu.slot()).and_then(Option::as_ref);
        let hard_limit = known.and_then(|known| known.hard_limit);
        hard_limit.is_none_or(|limit| limit.period() < LEAST_PERIOD)
            || next.limit.is_none_or(|rest| rest >= LEAST_REST)
    }

    fn note_unbound(&mut self, vcpu: VcpuId) {
        let is_unbound = self.host.weighs_spare_time()
            && self.home(vcpu).is_some_and(|home| home.get().is_none())
            && !self.unbound.contains(&vcpu);
        self.unbound.extend(is_unbound.then_some(vcpu));
    }

    /// Pins to this CPU each vCPU that is in line to run on it and is not pinned yet. An unpinned
    /// vCPU would run on other CPUs too and receive its share there, so it would never be chosen.
    fn bind(&mut self, cpu: CpuId, bound: &mut Vec<VcpuId>) {
        let mut in_turn = Vec::new();
        self.host.in_turn(cpu, &mut in_turn);
        let unbound = std::mem::take(&mut self.unbound);
        for vcpu in unbound {
            let Some(home) = self.home(vcpu).filter(|home| home.get().is_none()) else { continue };
            if in_turn.iter().any(|next| next.vcpu == vcpu) {
                home.set(cpu);
                bound.push(vcpu);
            } else if self.host.moment().is_awake(vcpu) {
                self.unbound.push(vcpu);
            }
        }
    }

    /// Orders the new class of a vCPU that must no longer be real-time on this CPU. If the vCPU is
    /// pinned to another CPU, the dispatcher of that CPU gives the order instead.
    fn put_down(
        &mut self,
        (vcpu, cpu): (VcpuId, CpuId),
        turn: Option<(VcpuId, Entitlement)>,
        is_owed: bool,
        order: &mut Vec<Assignment>,
    ) {
        let Some(known) = self.vcpus.get(vcpu.slot()).and_then(Option::as_ref) else { return };
        if known.home.get().is_some_and(|home| home != cpu) {
            return;
        }
        let must_not = known.hard_limit.is_some() && self.host.moment().is_awake(vcpu);
        let place = match turn {
            _ if known.is_paused => known.stop_place(),
            _ if self.pcpus.is_refused(vcpu) => Place::Original,
            Some((chosen, Entitlement::Spare)) if chosen == vcpu => Place::Original,
            Some((chosen, _)) if chosen == vcpu => Place::First,
            _ if is_owed => Place::Original,
            // A vCPU that has not been chosen yet has no home, and may have used more than its
            // budget. The policy then does not choose it. Unless it is stopped, it would run on
            // without a limit.
            _ if must_not => known.stop_place(),
            // As an ordinary thread this vCPU would receive as much slack as the chosen vCPU.
            _ if self.host.weighs_spare_time() && known.home.get().is_some() => Place::Behind,
            _ => Place::Original,
        };
        self.assign(vcpu, place, order);
    }

    /// Appends an order for a vCPU to `order`. Does nothing while another program controls the
    /// vCPU's threads.
    pub(super) fn assign(&mut self, vcpu: VcpuId, place: Place, order: &mut Vec<Assignment>) {
        let now = self.monotonic();
        if self.get(vcpu).is_some_and(|known| known.is_left) {
            return;
        }
        if !place.is_stop() {
            self.note_let_go(vcpu);
        }
        let Some(known) = self.vcpus.get_mut(vcpu.slot()).and_then(Option::as_mut) else { return };
        known.runs_after_stop &= place.is_stop();
        if place.is_stop() {
            known.held_since.get_or_insert(self.now);
        } else if known.held_since.take().is_some() {
            // The kernel reported the stop as a block. Perhaps that event has not been read yet, so
            // events before this time are ignored.
            known.threads.values_mut().for_each(|it| it.since = it.since.max(now));
        }
        // A vCPU for which the kernel refused an order is not pinned.
        let home = known.home.get().filter(|_| !self.pcpus.is_refused(vcpu));
        let cpu = home.map(|home| self.pcpus.all[home.index()].real);
        let handle = Arc::clone(&known.handle);
        let front = if place == Place::InLine { known.front(now) } else { Vec::new() };
        let timeslice = Timeslice::Shared;
        order.push(Assignment { handle, number: self.number, cpu, place, front, timeslice });
    }

    fn home(&self, vcpu: VcpuId) -> Option<&Home> {
        let known = self.vcpus.get(vcpu.slot()).and_then(Option::as_ref);
        known.map(|known| &*known.home)
    }
}
