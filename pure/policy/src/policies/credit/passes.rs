//! Scheduling passes: they choose the vCPU of a CPU, enter waiting vCPUs in lists, and request
//! preemption.

use slackline_units::{CpuId, CpuSet, Span, VcpuId};

use crate::Moment;

use super::rules::{Boost, ClassChange, CreditRules, Park, Placement, Rotation, Sampling};
use super::runqueue::{Class, RunQueues};
use super::{Credit, PassReason, Vcpu, nanoseconds};

impl Vcpu {
    /// Sets the class of a vCPU, and moves the vCPU in its list if the class has changed.
    #[inline]
    pub(super) fn set_class(
        &mut self,
        vcpu: VcpuId,
        class: Class,
        queues: &mut RunQueues,
        rules: &CreditRules,
    ) {
        if core::mem::replace(&mut self.class, class) != class {
            queues.change(vcpu, class, rules.changes);
        }
    }

    /// Charges the vCPU for a run. Returns the class that the vCPU has afterwards.
    #[inline]
    pub(super) fn pay(&mut self, ran: Span, rules: &CreditRules) -> Class {
        self.paid += ran;
        if rules.sampling == Sampling::Exact {
            self.credit = self.credit.saturating_sub(nanoseconds(ran));
        }
        let mut class = self.class;
        if class == Class::Boost && rules.boost == Boost::Exact {
            self.boost = self.boost.left_after(ran);
            class = if self.boost.is_zero() { Class::Under } else { class };
        }
        let is_over = self.credit < 0 && rules.changes == ClassChange::Now;
        if is_over { class.min(Class::Over) } else { class }
    }
}

impl Credit {
    /// Runs a scheduling pass: chooses the vCPU that runs on a CPU and the end of its timeslice.
    pub(super) fn decide(&mut self, at: &Moment, cpu: CpuId) {
        let why = self.cpus[cpu.index()].why;
        let is_marked = self.rules.changes == ClassChange::Tick;
        if is_marked {
            self.queues.put_mark(cpu);
        }
        let before = self.put_back(at, cpu, why);
        match self.next(at, cpu) {
            Some(vcpu) => {
                if before.is_none() {
                    self.free.remove(cpu);
                }
                let vcpu = self.or_invited(at, cpu, vcpu);
                match self.ahead_of(at, cpu, vcpu) {
                    Some(claim) => self.go_ahead(at, cpu, claim),
                    None => self.take(at, cpu, vcpu),
                }
                self.bring_siblings(at, cpu, vcpu);
            }
            None => {
                if is_marked {
                    self.queues.take_mark(cpu);
                }
                self.free.insert(cpu);
                self.cpus[cpu.index()].until = at.now().after(self.rules.slice);
            }
        }
        if let Some(before) = before {
            self.offer_returned_budget(at, before);
        }
        match before {
            Some(before) if self.vcpus[before].is_moving => self.move_away(at, before),
            Some(before) => {
                self.offer(at, before);
                self.stop_siblings(at, before, why);
            }
            None => {}
        }
    }

    /// Takes the chosen vCPU from a CPU and returns the vCPU. Puts the vCPU into its list if it is
    /// runnable and not parked.
    #[inline(always)]
    pub(super) fn put_back(&mut self, at: &Moment, cpu: CpuId, why: PassReason) -> Option<VcpuId> {
        let vcpu = self.cpus[cpu.index()].chosen.take()?;
        self.set_class_on(cpu, Class::Idle);
        let mut stands = self.stands_in_line(vcpu);
        if stands && self.loses_place(why) {
            self.queues.remove(vcpu);
            stands = false;
        }
        let this = &mut self.cpus[cpu.index()];
        let keeps_turns = self.rules.rotation == Rotation::Turn;
        let account = &mut self.vcpus[vcpu];
        account.on = None;
        if !stands {
            account.turn = self.rules.slice;
        }
        let mut goes_on = false;
        if why == PassReason::Preempted && !stands {
            let left = this.turn_ends.since(at.now());
            goes_on = keeps_turns && !left.is_zero();
            account.turn = if goes_on { left } else { account.turn };
        }
        if account.held != 0 {
            self.domains.take_back(account, at.now().since(this.from));
        }
        let has_gone = !at.is_awake(vcpu) || account.is_moving;
        if !has_gone && self.domains.is_broke(account.domain) {
            account.is_parked = true;
        }
        let waits = !has_gone && !account.is_parked;
        if stands || !waits {
            if stands && !waits {
                self.queues.remove(vcpu);
            }
            return Some(vcpu);
        }
        let (class, credit) = (account.class, account.credit);
        let is_owed = keeps_turns && why == PassReason::Over && credit > self.rules.period;
        if goes_on || is_owed && self.is_owed_most(cpu, credit) {
            self.queues.push_first(cpu, class, vcpu);
        } else {
            self.queues.push(cpu, class, vcpu);
        }
        Some(vcpu)
    }

    /// Gives a CPU to `vcpu`, which is first in the order of the list, for a timeslice.
    #[inline(always)]
    pub(super) fn take(&mut self, at: &Moment, cpu: CpuId, vcpu: VcpuId) {
        self.queues.remove(vcpu);
        if let Some(claims) = &mut self.claims {
            claims.begin(vcpu, None);
        }
        let limit = self.turn(vcpu);
        self.give(at, cpu, (vcpu, limit));
    }

    /// Gives a CPU to a vCPU from now on, for at most `limit`.
    #[inline(always)]
    pub(super) fn give(&mut self, at: &Moment, cpu: CpuId, (vcpu, limit): (VcpuId, Span)) {
        let account = &mut self.vcpus[vcpu];
        account.on = Some(cpu);
        account.paid = Span::ZERO;
        let (class, home) = (account.class, account.home);
        if self.domains.is_capped(account.domain) {
            let held = nanoseconds(limit);
            account.held += held;
            self.domains.hand_out(account.domain, held);
        }
        let now = at.now();
        let this = &mut self.cpus[cpu.index()];
        this.chosen = Some(vcpu);
        this.from = now;
        this.turn_ends = now.after(account.turn);
        this.until = now.after(limit);
        self.set_class_on(cpu, class);
        if home != cpu {
            self.move_home(vcpu, cpu);
        }
    }

    /// Returns the length of a vCPU's timeslice if the timeslice starts now.
    #[inline]
    pub(super) fn turn(&self, vcpu: VcpuId) -> Span {
        self.within_bounds(vcpu, self.vcpus[vcpu].turn)
    }

    /// Limits a timeslice to the rest of the vCPU's boost and to the vCPU's part of its VM's
    /// budget.
    #[inline]
    pub(super) fn within_bounds(&self, vcpu: VcpuId, mut turn: Span) -> Span {
        let account = &self.vcpus[vcpu];
        if account.class == Class::Boost && self.rules.boost == Boost::Exact {
            turn = turn.min(account.boost);
        }
        if self.domains.is_capped(account.domain) {
            turn = turn.min(self.portion(account.domain));
        }
        turn
    }

    /// Returns the vCPU that a pass on this CPU chooses. Usually it is the first vCPU in the CPU's
    /// own list.
    #[inline(always)]
    fn next(&self, at: &Moment, cpu: CpuId) -> Option<VcpuId> {
        match self.queues.first(cpu) {
            Some((vcpu, class))
                if (class > Class::Over || self.cpus.len() == 1)
                    && at.is_eligible(vcpu, cpu)
                    && !self.is_broke(vcpu) =>
            {
                Some(vcpu)
            }
            _ => self.best(at, cpu),
        }
    }

    /// Returns the vCPU that should run on a CPU: the first eligible vCPU in the CPU's own list. If
    /// that vCPU has no credit, the first vCPU with credit in the list of another CPU precedes it.
    #[inline(never)]
    pub(super) fn best(&self, at: &Moment, cpu: CpuId) -> Option<VcpuId> {
        let may = |vcpu| {
            // A vCPU that precedes others by its claim can be in a list while it runs.
            at.is_eligible(vcpu, cpu) && !self.is_broke(vcpu) && self.vcpus[vcpu].on.is_none()
        };
        let local = self.queues.ahead(cpu).find(|&(vcpu, _)| may(vcpu));
        match local {
            Some((vcpu, Class::Under | Class::Boost)) => Some(vcpu),
            Some((vcpu, class)) => self.stolen(cpu, class, may).or(Some(vcpu)),
            None => self.stolen(cpu, Class::Idle, may),
        }
    }

    /// Returns the first vCPU in the list of another CPU that has a higher class than `class` and
    /// for which `may` is true. `None` if there is no such vCPU.
    fn stolen(&self, cpu: CpuId, class: Class, may: impl Fn(VcpuId) -> bool) -> Option<VcpuId> {
        let class = class.max(Class::Idle);
        let mut others = self.queues.with_any_above(class);
        others.remove(cpu);
        let others = others.iter_after(cpu);
        // Xen stole nothing from idle CPUs, which would take their vCPUs themselves.
        let has_work = |peer: &CpuId| {
            self.rules.changes == ClassChange::Now || self.cpus[peer.index()].chosen.is_some()
        };
        others.filter(has_work).find_map(|peer| {
            let above = self.queues.ahead(peer).take_while(|&(_, other)| other > class);
            above.map(|(vcpu, _)| vcpu).find(|&vcpu| may(vcpu))
        })
    }

    /// Returns the class of the vCPU chosen for a CPU. `Idle` if no vCPU is chosen.
    pub(super) fn class_on(&self, cpu: CpuId) -> Class {
        let this = &self.cpus[cpu.index()];
        let class = |vcpu| self.vcpus[vcpu].class;
        debug_assert_eq!(this.class, this.chosen.map_or(Class::Idle, class), "on {cpu}");
        this.class
    }

    /// Records the class of the vCPU chosen for a CPU, or `Idle` if no vCPU is chosen.
    #[inline]
    pub(super) fn set_class_on(&mut self, cpu: CpuId, class: Class) {
        let before = core::mem::replace(&mut self.cpus[cpu.index()].class, class);
        if before != class {
            self.by_class[before as usize].remove(cpu);
            self.by_class[class as usize].insert(cpu);
        }
    }

    /// Handles a wake-up: the vCPU is boosted if it has credit, and enters the list of the CPU to
    /// which it belongs (its home CPU).
    pub(super) fn wake_up(&mut self, at: &Moment, vcpu: VcpuId) {
        if self.is_broke(vcpu) {
            self.vcpus[vcpu].is_parked = true;
        }
        let account = &mut self.vcpus[vcpu];
        if account.is_parked {
            return;
        }
        if self.rules.boost != Boost::Off && account.class >= Class::Under {
            account.class = Class::Boost;
            account.boost = self.rules.tick;
        }
        if self.rules.placement == Placement::Wake {
            self.find_home(at, vcpu);
        }
        self.enqueue(at, vcpu);
    }

    /// Puts a vCPU into the list of the CPU where it belongs, and requests passes on CPUs that may
    /// have to run it.
    pub(super) fn enqueue(&mut self, at: &Moment, vcpu: VcpuId) {
        let (home, class) = (self.vcpus[vcpu].home, self.vcpus[vcpu].class);
        self.queues.push(home, class, vcpu);
        let there = self.class_on(home);
        if there > Class::Idle || self.is_spoken_for(home) {
            let idle = self.idle(at, vcpu);
            match self.rules.changes {
                // One more pass suffices. If it takes another waiting vCPU, the pass requested for
                // that vCPU takes this one.
                ClassChange::Now => self.request_all(idle.first(), PassReason::Preempted),
                ClassChange::Tick => self.request_all(idle.iter(), PassReason::Preempted),
            }
        }
        if class > there {
            self.request(home, PassReason::Preempted);
        }
    }

    /// Returns the idle CPUs that the vCPU's affinity allows. CPUs with a requested pass are left
    /// out, except with `changes = "tick"`: in Xen they counted as idle.
    pub(super) fn idle(&self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let idle = match self.rules.changes {
            ClassChange::Now => self.free.without(&self.requested),
            ClassChange::Tick => self.free,
        };
        if idle.is_empty() { idle } else { idle.and(&at.allowed(vcpu)) }
    }

    /// Takes a vCPU from its list or its CPU because the vCPU blocks or leaves the policy. The part
    /// of its VM's budget that the vCPU has not used returns to the VM.
    pub(super) fn retire(&mut self, at: &Moment, vcpu: VcpuId) {
        match self.vcpus[vcpu].on {
            Some(cpu) => {
                self.put_back(at, cpu, PassReason::Over);
            }
            None => self.queues.remove(vcpu),
        }
        if core::mem::take(&mut self.vcpus[vcpu].is_moving) {
            self.find_home(at, vcpu);
        }
        let slice = self.rules.slice;
        let account = &mut self.vcpus[vcpu];
        account.turn = slice;
        let held = core::mem::take(&mut account.held);
        self.domains.give_back(account.domain, held);
        if self.rules.park == Park::Budget {
            account.is_parked = false;
        }
    }

    /// Sets the class of a vCPU, as `set_class` does. This copy is not inlined, for call sites that
    /// run rarely.
    #[inline(never)]
    pub(super) fn reclass(&mut self, vcpu: VcpuId, class: Class) {
        self.set_class(vcpu, class);
    }

    /// Sets the class of a vCPU.
    #[inline]
    pub(super) fn set_class(&mut self, vcpu: VcpuId, class: Class) {
        let account = &mut self.vcpus[vcpu];
        account.set_class(vcpu, class, &mut self.queues, &self.rules);
        account.on.into_iter().for_each(|cpu| self.set_class_on(cpu, class));
    }

    /// Makes the CPU where a vCPU runs best its home: the CPU in whose list it waits.
    pub(super) fn find_home(&mut self, at: &Moment, vcpu: VcpuId) {
        let home = self.better_cpu(at, vcpu);
        self.move_home(vcpu, home);
    }

    /// Makes `to` the home CPU of a vCPU.
    #[inline]
    pub(super) fn move_home(&mut self, vcpu: VcpuId, to: CpuId) {
        let from = core::mem::replace(&mut self.vcpus[vcpu].home, to);
        if from != to {
            self.population.count_move(from, to);
        }
    }

    /// Returns the CPU where a vCPU runs best: its home CPU, or an idle CPU that has more idle
    /// neighbours. With placement at wake-up, a vCPU whose home is busy gets an idle CPU. If no CPU
    /// is idle, the vCPU gets a CPU that runs a vCPU of a lower class. Source: section 7.4 of the
    /// reference on Credit, item 5.
    pub(super) fn better_cpu(&self, at: &Moment, vcpu: VcpuId) -> CpuId {
        let (home, allowed) = (self.vcpus[vcpu].home, at.allowed(vcpu));
        let cyclic = |from: CpuId, set: &CpuSet| set.iter_after(from).next();
        let mut idle = self.idle(at, vcpu);
        let at_home = allowed.contains(home);
        let mut best = if at_home { home } else { cyclic(home, &allowed).unwrap_or(home) };
        if self.rules.placement == Placement::Wake && !idle.contains(best) {
            match cyclic(best, &idle) {
                Some(cpu) => best = cpu,
                None => return self.least_urgent(at, vcpu, best),
            }
        }
        idle.insert(best);
        let mut left = idle;
        left.remove(best);
        if self.is_flat {
            return best; // No CPU has more idle neighbours than another.
        }
        while let Some(next) = cyclic(best, &left) {
            let shares_socket = self.topology.socket_of(best).contains(next);
            let group = |cpu| match shares_socket {
                true => self.topology.core_of(cpu),
                false => self.topology.socket_of(cpu),
            };
            let of_next = group(next).and(&idle);
            if of_next.len() > group(best).and(&idle).len() {
                best = next;
                left.remove(best);
            } else {
                of_next.iter().for_each(|cpu| left.remove(cpu));
            }
        }
        best
    }
}
