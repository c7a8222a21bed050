//! Choice of the vCPU that precedes others by its urgency claim, and the limit of its timeslice.

use slackline_units::{CpuId, CpuSet, Pending, Span, Tasks, Time, VcpuHint, VcpuId};

use crate::Moment;

use super::{ClaimEnd, ClaimSource, Claimant, Claims, told};
use crate::policies::credit::order::Claim;
use crate::policies::credit::rules::Rotation;
use crate::policies::credit::{Credit, PassReason};

impl Claims {
    /// Returns the CPU time that a vCPU may use until the answer of its VM to I/O counts as late.
    /// `None` if guests report their claims, or if the vCPU does I/O for other VMs.
    fn time_to_answer(&self, vcpu: VcpuId) -> Option<Span> {
        let Claimant { domain, is_driver, .. } = self.vcpus[vcpu];
        let ClaimSource::Inferred(within) = self.belief.tell else { return None };
        (!is_driver).then(|| self.domains[domain].habit.left(within))
    }

    /// Charges CPU time of a vCPU to the record of how quickly its VM answers I/O. Returns the row
    /// of the VM if its urgency claim has changed. `None` otherwise.
    #[inline]
    fn run(&mut self, now: Time, vcpu: VcpuId, ran: Span) -> Option<usize> {
        let ClaimSource::Inferred(within) = self.belief.tell else { return None };
        self.charged(now, vcpu);
        let domain = self.vcpus[vcpu].domain;
        let household = &mut self.domains[domain];
        let before = household.waiting(&self.belief);
        household.habit.run(ran, household.pending > 0, within);
        (household.waiting(&self.belief) != before).then_some(domain)
    }
}

impl Credit {
    /// Handles a report of a guest or a driver VM. Most reports count from the next pass on
    /// [Paper 3.2]. A pass is requested at once in two cases: the claim by which a vCPU runs before
    /// others became less urgent, or a VM of a live host became more urgent (`listen_to_driver`).
    pub(in crate::policies::credit) fn listen(
        &mut self,
        at: &Moment,
        vcpu: VcpuId,
        told: &VcpuHint,
    ) -> CpuSet {
        match told {
            VcpuHint::Tasks(tasks) => self.listen_to_guest(at.now(), vcpu, tasks),
            VcpuHint::Pending(pending) => self.listen_to_driver(at, vcpu, pending),
        }
        self.requested
    }

    /// Handles the report of a guest about its tasks.
    #[inline]
    fn listen_to_guest(&mut self, now: Time, vcpu: VcpuId, tasks: &Tasks) {
        let Some(claims) = &mut self.claims else { return };
        if claims.belief.tell != ClaimSource::Guest {
            return;
        }
        let Claimant { domain, runnable, .. } = claims.vcpus[vcpu];
        let household = &mut claims.domains[domain];
        let before = household.waiting(&claims.belief);
        household.heard.hear(now, tasks, &claims.belief);
        let is_news = household.waiting(&claims.belief) != before;
        let is_driver = claims.vcpus[vcpu].is_driver;
        let wants = if is_driver { Claim::HIGHEST } else { told::runnable(tasks) };
        if is_news {
            claims.vcpus[vcpu].runnable = wants;
            self.consider_domain(domain);
        } else if wants != runnable {
            claims.vcpus[vcpu].runnable = wants;
            self.consider(vcpu);
        }
    }

    /// Handles the report of a driver VM about the I/O that is pending for a VM. The driver VM
    /// itself gets the highest urgency claim. A VM that reports its own I/O does not count as a
    /// driver VM: on a live host, devices report on behalf of each VM. On such a host no driver
    /// vCPU wakes or blocks, so the report itself requests a pass if it makes the VM's claim more
    /// urgent.
    fn listen_to_driver(&mut self, at: &Moment, driver: VcpuId, told: &Pending) {
        let domain = self.domains.row_of(told.domain);
        let Some(claims) = &mut self.claims else { return };
        let claimant = &mut claims.vcpus[driver];
        let is_for_itself = domain == Some(claimant.domain);
        if !is_for_itself && !core::mem::replace(&mut claimant.is_driver, true) {
            claimant.runnable = Claim::HIGHEST;
            self.consider(driver);
        }
        let Some(domain) = domain else { return };
        let Some(claims) = &mut self.claims else { return };
        let ran = match claims.belief.tell {
            ClaimSource::Guest => Span::ZERO,
            ClaimSource::Inferred(_) => claims.ran(at, domain),
        };
        let Claims { belief, domains, .. } = &mut **claims;
        let household = &mut domains[domain];
        let before = household.waiting(belief);
        let items = core::mem::replace(&mut household.pending, told.items);
        if let ClaimSource::Inferred(_) = belief.tell {
            household.habit.hear(ran, (items, told.items), told.asked);
        } else {
            let is_for_others = household.heard.mean(&told.tasks);
            if told.items > 0 && (items == 0 || is_for_others) {
                household.heard.reckon(at.now(), belief);
            }
        }
        let waiting = household.waiting(belief);
        if waiting != before {
            self.consider_domain(domain);
        }
        if is_for_itself && waiting < before {
            self.ask_for(domain);
        }
    }

    /// Records that a vCPU has blocked. If all vCPUs of its VM are blocked, the VM counts as having
    /// answered its I/O.
    pub(in crate::policies::credit) fn rest(&mut self, at: &Moment, vcpu: VcpuId) {
        let Some(claims) = &mut self.claims else { return };
        let Claims { belief, domains, vcpus, .. } = &mut **claims;
        let domain = vcpus[vcpu].domain;
        let household = &mut domains[domain];
        let is_awake = |&vcpu: &VcpuId| at.is_awake(vcpu);
        if belief.tell == ClaimSource::Guest || household.vcpus.iter().any(is_awake) {
            return;
        }
        let before = household.waiting(belief);
        household.habit.rest();
        if household.waiting(belief) != before {
            self.consider_domain(domain);
        }
    }

    /// Updates the urgency claims of all vCPUs of a VM. Called after a report, and after the VM's
    /// time to precede others was used up or renewed.
    #[inline(never)]
    fn consider_domain(&mut self, domain: usize) {
        for index in 0.. {
            let Some(vcpu) = self.of_domain(domain, index) else { return };
            self.consider(vcpu);
        }
    }

    /// Returns the vCPU of a VM at an index. `None` if the index is beyond the last vCPU.
    #[inline]
    fn of_domain(&self, domain: usize, index: usize) -> Option<VcpuId> {
        self.claims.as_ref()?.domains[domain].vcpus.get(index).copied()
    }

    /// Updates the urgency claim of a vCPU.
    fn consider(&mut self, vcpu: VcpuId) {
        let Some(claims) = &mut self.claims else { return };
        let Claimant { domain, runnable, ahead, .. } = claims.vcpus[vcpu];
        let effective = runnable.min(claims.domains[domain].waiting(&claims.belief));
        claims.vcpus[vcpu].effective = effective;
        let counted = claims.counted(vcpu);
        let ends =
            claims.belief.ends == ClaimEnd::Claim && ahead.is_some_and(|ahead| effective > ahead);
        self.queues.set_claim(vcpu, counted);
        if ends {
            self.request_all(self.vcpus[vcpu].on, PassReason::Over);
        }
    }

    /// Returns the vCPU that runs before `in_turn`, the next vCPU in the queue of a CPU, with its
    /// claim. This is the queued vCPU with the most urgent claim, of the vCPUs whose claims count.
    /// `None` if `in_turn` runs in the order of the queue. A boosted vCPU is never preceded
    /// [Paper 3.4]. The result is `in_turn` itself if its own claim is the most urgent and its
    /// timeslice counts against the limit of its VM (`are_turns_paid_for`).
    pub(in crate::policies::credit) fn ahead_of(
        &self,
        at: &Moment,
        cpu: CpuId,
        in_turn: VcpuId,
    ) -> Option<(VcpuId, Claim)> {
        let is_reordered = self.queues.is_reordered(self.vcpus[in_turn].class);
        if !is_reordered || self.queues.list_of(in_turn) != Some(cpu) {
            return None;
        }
        let may = |vcpu| at.is_eligible(vcpu, cpu) && !self.is_broke(vcpu);
        let (claim, vcpu) = self.queues.most_urgent(cpu, may)?;
        let is_ahead = match vcpu == in_turn {
            true => self.claims.as_ref().is_some_and(|claims| claims.are_turns_paid_for()),
            false => claim < self.queues.claim(in_turn),
        };
        is_ahead.then_some((vcpu, claim))
    }

    /// Gives a CPU to a vCPU that precedes others by its urgency claim. While the vCPU runs, it
    /// stays in the queue only if `stands_in_line` is true.
    pub(in crate::policies::credit) fn go_ahead(
        &mut self,
        at: &Moment,
        cpu: CpuId,
        (vcpu, claim): (VcpuId, Claim),
    ) {
        // The vCPU may have an unfinished timeslice of its own. This run does not use it up.
        let mut limit = self.within_bounds(vcpu, self.rules.slice);
        if let Some(claims) = &mut self.claims {
            claims.begin(vcpu, Some(claim));
            limit = claims.left(vcpu).map_or(limit, |left| limit.min(left));
            limit = claims.time_to_answer(vcpu).map_or(limit, |left| limit.min(left));
        }
        if !self.stands_in_line(vcpu) {
            self.queues.remove(vcpu);
        }
        self.give(at, cpu, (vcpu, limit));
    }

    /// Returns true if a vCPU stays in its queue while it runs. That is so if the vCPU runs ahead
    /// of others by its urgency claim, and the rules let such a vCPU keep its place or continue its
    /// timeslice later (`rotation = "turn"`).
    #[inline]
    pub(in crate::policies::credit) fn stands_in_line(&self, vcpu: VcpuId) -> bool {
        self.claims.as_ref().is_some_and(|claims| {
            claims.is_ahead(vcpu)
                && (claims.keeps_places() || self.rules.rotation == Rotation::Turn)
        })
    }

    /// Returns true if a vCPU that precedes others by its urgency claim loses its place in the
    /// queue when a pass for the reason `why` ends its timeslice.
    pub(in crate::policies::credit) fn loses_place(&self, why: PassReason) -> bool {
        why != PassReason::Preempted
            && !self.claims.as_ref().is_some_and(|claims| claims.keeps_places())
    }

    /// Charges a vCPU for a run. If the vCPU preceded others by its urgency claim, the run also
    /// counts against the CPU time for which its VM may do so.
    #[inline]
    pub(in crate::policies::credit) fn charge_claim(&mut self, now: Time, vcpu: VcpuId, ran: Span) {
        let given_up = self.claims.as_mut().and_then(|claims| claims.run(now, vcpu, ran));
        if let Some(domain) = given_up {
            self.consider_domain(domain);
        }
        let spent = self.claims.as_mut().and_then(|claims| claims.spend(vcpu, ran));
        if let Some(domain) = spent {
            self.consider_domain(domain);
        }
    }

    /// Grants all VMs, at an accounting of credit, CPU time in which they may precede others by
    /// their urgency claims.
    pub(in crate::policies::credit) fn renew_claims(&mut self, at: &Moment) {
        let (cpus, since) = (self.cpus.len(), at.now().since(self.accounted));
        let again = self.claims.as_mut().map(|claims| claims.renew(cpus, since));
        for domain in again.into_iter().flatten() {
            self.consider_domain(domain);
            self.ask_for(domain);
        }
    }

    /// Requests a pass on each CPU where a vCPU of this VM would run before the chosen vCPU. Called
    /// when the VM may precede others again. So a VM that always claims urgency uses up its time to
    /// precede others early, before other VMs need the CPU. Does nothing if a pass would cost the
    /// running vCPU its place in the queue.
    fn ask_for(&mut self, domain: usize) {
        if self.rules.rotation != Rotation::Turn {
            return;
        }
        for index in 0.. {
            let Some(vcpu) = self.of_domain(domain, index) else { return };
            if let Some(cpu) = self.claims_more_on(vcpu) {
                self.request(cpu, PassReason::Preempted);
            }
        }
    }

    /// Returns the CPU on which a pass would let a vCPU run by its urgency claim. A waiting vCPU
    /// must have a more urgent claim than the vCPU chosen for its CPU. A chosen vCPU must have a
    /// claim, and must have been chosen in the order of the queue. `None` if there is no such CPU.
    fn claims_more_on(&self, vcpu: VcpuId) -> Option<CpuId> {
        let cpu = self.vcpus[vcpu].on.or(self.queues.list_of(vcpu))?;
        let chosen = self.cpus[cpu.index()].chosen?;
        let is_reordered = self.queues.is_reordered(self.vcpus[chosen].class);
        let claim = self.queues.claim(vcpu);
        let claims_more = match chosen == vcpu {
            true => claim != Claim::NONE && !self.claims.as_ref()?.is_ahead(vcpu),
            false => claim < self.queues.claim(chosen),
        };
        (is_reordered && claims_more).then_some(cpu)
    }
}
