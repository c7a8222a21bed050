//! Gangs: the vCPUs of a VM with `gang = true` start and stop together where that takes no CPU time
//! from other VMs. Source: relaxed co-scheduling, so called since VMware ESX 3. VMware decides by
//! the progress of the vCPUs relative to each other, this module by timeslices.
//!
//! When a vCPU of a gang is chosen, its waiting siblings are *invited*: each to a CPU whose vCPU
//! does not precede it by class. The timeslice of an invited sibling ends with that of the first
//! vCPU. So all vCPUs of the gang stop together, and each CPU continues with its previous vCPU. CPU
//! time is charged as always, so credit and shares stay the same. If a sibling cannot run, or is
//! stopped early, the other vCPUs of the gang stop after the *skew*. They then go behind all vCPUs
//! of their class. A vCPU of the gang continues on a CPU where no vCPU of its class waits.
//!
//! Holds after every pass: no vCPU is invited to two CPUs, or to a CPU for which a sibling is
//! chosen.

use alloc::vec::Vec;
use core::cmp::Ordering;

use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use crate::{Moment, Values};

use super::rules::fields;
use super::runqueue::Class;
use super::{Credit, PassReason, nanoseconds};

/// Invitations of gang siblings to CPUs, and the state that gangs need.
pub(super) struct Gangs {
    /// For each CPU, the waiting vCPU of a gang that the next pass of the CPU should choose, so
    /// that it runs beside its siblings. `None` if no vCPU is invited to the CPU.
    invitations: Vec<Option<Invitation>>,
    /// CPUs to which a waiting vCPU of a gang is invited.
    spoken_for: CpuSet,
    /// CPUs whose timeslices were shortened, so that their timers are set too late.
    shortened: CpuSet,
    /// Time for which a vCPU of a gang may continue to run while a runnable sibling cannot run.
    skew: Span,
}

/// Invitation of a waiting vCPU of a gang to run on a CPU after the next pass of that CPU.
#[derive(Clone, Copy)]
struct Invitation {
    vcpu: VcpuId,
    /// Class at which the vCPU competes for the CPU.
    class: Class,
    /// End of the timeslice that the invited vCPU gets.
    ends: Time,
}

impl Gangs {
    /// Creates the state if the parameters select gangs. `None` otherwise.
    pub(super) fn read(values: &Values, cpus: usize) -> Option<Gangs> {
        let are_brought = values.choice(&fields::GANG) == "relaxed";
        are_brought.then(|| Gangs::new(cpus, values.span(&fields::SKEW)))
    }

    fn new(cpus: usize, skew: Span) -> Gangs {
        Gangs {
            invitations: alloc::vec![None; cpus],
            spoken_for: CpuSet::NONE,
            shortened: CpuSet::NONE,
            skew,
        }
    }

    /// Removes and returns the invitation to a CPU.
    fn take(&mut self, cpu: CpuId) -> Option<Invitation> {
        self.spoken_for.remove(cpu);
        self.invitations[cpu.index()].take()
    }

    /// Returns true if a vCPU is invited to a CPU.
    fn is_invited(&self, vcpu: VcpuId) -> bool {
        self.invitations.iter().flatten().any(|other| other.vcpu == vcpu)
    }

    /// Removes the invitation of a vCPU that leaves.
    pub(super) fn leave(&mut self, vcpu: VcpuId) {
        for cpu in self.spoken_for.iter() {
            if self.invitations[cpu.index()].is_some_and(|other| other.vcpu == vcpu) {
                self.take(cpu);
            }
        }
    }
}

impl Credit {
    /// Returns the vCPU that a pass of `cpu` chooses: the vCPU that is invited to `cpu`. If no vCPU
    /// is invited, or if `first` precedes the invited vCPU, returns `first`, the next vCPU in the
    /// list.
    #[inline]
    pub(super) fn or_invited(&mut self, at: &Moment, cpu: CpuId, first: VcpuId) -> VcpuId {
        match &mut self.gangs {
            None => first,
            Some(gangs) => match gangs.take(cpu) {
                None => first,
                Some(invitation) => self.accept(at, cpu, first, invitation),
            },
        }
    }

    /// Returns the invited vCPU, and sets its timeslice to the rest of the gang's timeslice.
    /// Returns `first` if the invited vCPU can no longer run, or if `first` precedes it.
    #[inline(never)]
    fn accept(
        &mut self,
        at: &Moment,
        cpu: CpuId,
        first: VcpuId,
        Invitation { vcpu, class, ends }: Invitation,
    ) -> VcpuId {
        let waits = self.waits(vcpu) && at.is_eligible(vcpu, cpu) && !self.is_broke(vcpu);
        let turn = ends.since(at.now());
        let comes_before = match class.cmp(&self.vcpus[first].class) {
            Ordering::Less => false,
            Ordering::Equal => !self.is_owed_more(first, vcpu),
            Ordering::Greater => true,
        };
        if !waits || turn.is_zero() || !comes_before {
            return first;
        }
        self.vcpus[vcpu].turn = turn;
        vcpu
    }

    /// Returns true if the vCPU waits in a list and is chosen for no CPU.
    fn waits(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu].on.is_none() && self.queues.list_of(vcpu).is_some()
    }

    /// Invites the siblings of a vCPU that has been chosen for a CPU.
    #[inline]
    pub(super) fn bring_siblings(&mut self, at: &Moment, cpu: CpuId, vcpu: VcpuId) {
        if self.gangs.is_some() && self.domains[self.vcpus[vcpu].domain].is_gang {
            self.invite_siblings(at, cpu, vcpu);
        }
    }

    /// Invites each waiting sibling of `vcpu` to a CPU. If there is no CPU for a sibling, the
    /// timeslice of `vcpu` ends after the skew. The skew is the time for which a gang may run
    /// without a sibling.
    #[inline(never)] // Gangs are rare.
    fn invite_siblings(&mut self, at: &Moment, cpu: CpuId, vcpu: VcpuId) {
        let (row, ends) = (self.vcpus[vcpu].domain, self.cpus[cpu.index()].until);
        let mut taken = self.cpus_of(row);
        let mut stays_behind = false;
        for index in 0..self.domains[row].vcpus.len() {
            let sibling = self.domains[row].vcpus[index];
            let Some(gangs) = &self.gangs else { return };
            if !self.waits(sibling) || gangs.is_invited(sibling) {
                continue;
            }
            taken.add(&gangs.spoken_for);
            let class = self.class_beside(sibling, vcpu);
            let there = self.place_beside(at, (sibling, class), &taken);
            let Some(there) = there else {
                stays_behind = true;
                continue;
            };
            if let Some(gangs) = &mut self.gangs {
                let invitation = Invitation { vcpu: sibling, class, ends };
                gangs.invitations[there.index()] = Some(invitation);
                gangs.spoken_for.insert(there);
            }
            self.request(there, PassReason::Preempted);
        }
        if stays_behind && let Some(gangs) = &self.gangs {
            let soon = at.now().after(gangs.skew);
            let this = &mut self.cpus[cpu.index()];
            (this.until, this.turn_ends) = (this.until.min(soon), this.turn_ends.min(soon));
        }
    }

    /// Returns the CPUs for which vCPUs of the VM in this row are chosen.
    fn cpus_of(&self, row: usize) -> CpuSet {
        self.domains[row].vcpus.iter().filter_map(|&vcpu| self.vcpus[vcpu].on).collect()
    }

    /// Returns the class at which a waiting vCPU runs beside its gang sibling `other`. A vCPU
    /// without credit gets the sibling's class, unless it owes a whole timeslice. A smaller debt
    /// does not count, since the credit of two siblings differs a little from moment to moment.
    fn class_beside(&self, vcpu: VcpuId, other: VcpuId) -> Class {
        let (account, class) = (&self.vcpus[vcpu], self.vcpus[other].class.min(Class::Under));
        let is_close = account.credit > -nanoseconds(self.rules.slice);
        let own = account.class.min(Class::Under);
        if own == Class::Over && is_close { class.max(own) } else { own }
    }

    /// Returns the CPU on which `vcpu`, which waits, replaces the chosen vCPU. `None` if there is
    /// no such CPU. Leaves out the CPUs in `taken`. The chosen vCPU must have a lower class than
    /// `class`. Or it has the same class, is not owed more than `vcpu`, and is not within a gang's
    /// timeslice. Prefers a CPU whose chosen vCPU has the lowest class. Among these CPUs, prefers
    /// the home CPU of `vcpu`, then CPUs with higher numbers, then CPUs with lower numbers.
    fn place_beside(
        &self,
        at: &Moment,
        (vcpu, class): (VcpuId, Class),
        taken: &CpuSet,
    ) -> Option<CpuId> {
        let home = self.vcpus[vcpu].home;
        let allowed = at.allowed(vcpu).without(taken);
        (Class::Idle as usize..=class as usize).find_map(|there| {
            let cpus = self.by_class[there].and(&allowed);
            let is_equal = there == class as usize;
            let may = |cpu: &CpuId| {
                let chosen = self.cpus[cpu.index()].chosen;
                let is_owed = chosen.is_some_and(|chosen| self.is_owed_more(chosen, vcpu));
                !is_equal || !is_owed && !self.is_kept_by_gang(at, *cpu)
            };
            let own = Some(home).filter(|&home| cpus.contains(home));
            own.into_iter().chain(cpus.iter_after(home)).find(may)
        })
    }

    /// Returns true if `vcpu` has more than a period's credit and more credit than `than`, which is
    /// of the same class. Without this rule a vCPU that is due nearly a whole CPU could not make up
    /// for the timeslices of a gang.
    fn is_owed_more(&self, vcpu: VcpuId, than: VcpuId) -> bool {
        let credit = self.vcpus[vcpu].credit;
        credit > self.rules.period && credit > self.vcpus[than].credit
    }

    /// Returns true if a vCPU of a gang is within its timeslice on a CPU. No other gang may take
    /// such a CPU, or two gangs would preempt each other forever.
    fn is_kept_by_gang(&self, at: &Moment, cpu: CpuId) -> bool {
        let this = &self.cpus[cpu.index()];
        let is_of_gang = |vcpu: VcpuId| self.domains[self.vcpus[vcpu].domain].is_gang;
        this.until > at.now() && this.chosen.is_some_and(is_of_gang)
    }

    /// Shortens the timeslices of a gang after one of its vCPUs was preempted and waits. The
    /// shortened timeslices end after the skew, the time for which a gang may run without a
    /// sibling.
    #[inline]
    pub(super) fn stop_siblings(&mut self, at: &Moment, vcpu: VcpuId, why: PassReason) {
        if self.gangs.is_some()
            && why == PassReason::Preempted
            && self.domains[self.vcpus[vcpu].domain].is_gang
            && self.waits(vcpu)
        {
            self.shorten_siblings(at, vcpu);
        }
    }

    /// Limits the timeslices of the siblings of `vcpu` to the skew, the time for which a gang may
    /// run without a sibling.
    #[inline(never)] // Gangs are rare.
    fn shorten_siblings(&mut self, at: &Moment, vcpu: VcpuId) {
        let running = self.cpus_of(self.vcpus[vcpu].domain);
        let Some(gangs) = &mut self.gangs else { return };
        let soon = at.now().after(gangs.skew);
        for cpu in running.iter() {
            let this = &mut self.cpus[cpu.index()];
            if this.until > soon {
                (this.until, this.turn_ends) = (soon, soon);
                gangs.shortened.insert(cpu);
            }
        }
    }

    /// Returns, and clears, the CPUs to reschedule because their timeslices end earlier now.
    #[inline]
    pub(super) fn take_shortened(&mut self) -> CpuSet {
        self.gangs.as_mut().map_or(CpuSet::NONE, |gangs| core::mem::take(&mut gangs.shortened))
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;
    use crate::policies::credit::SPEC;
    use crate::policies::credit::rules::CreditRules;
    use crate::{Policy, RawValue, TimesliceEnd, Topology};

    fn vcpu(domain: u32, number: u16) -> VcpuId {
        VcpuId::new(u32::from(number), DomId::new(domain), number)
    }

    /// Builds a host of `others` + 1 CPUs. A vCPU of a gang has the first CPU, and each other CPU
    /// has a VM of its own. All are at the start of a timeslice. The siblings of the gang wait and
    /// are not boosted, and a pass of the first CPU is requested.
    fn gang(others: u16, siblings: u16) -> (Credit, Moment) {
        let fields = [("gang", RawValue::Text("relaxed"))];
        let values = Values::read(SPEC.policy_fields, fields.into_iter()).unwrap();
        let cpus = usize::from(others) + 1;
        let gangs = Gangs::read(&values, cpus);
        let rules = CreditRules::read(&values, "exact");
        let mut policy = Credit { gangs, ..Credit::new(rules, &Topology::flat(cpus), None) };
        let mut at = Moment::at_start(cpus);
        let rivals = (1..=others).map(|number| vcpu(number.into(), number));
        let siblings = (1..=siblings).map(|number| vcpu(0, others + number));
        let ids: Vec<VcpuId> = [vcpu(0, 0)].into_iter().chain(rivals).chain(siblings).collect();
        for &vcpu in &ids {
            let gang = [("gang", RawValue::Flag(vcpu.domain() == DomId::new(0)))];
            let share = Values::read(SPEC.share_fields, gang.into_iter()).unwrap();
            at.join(vcpu);
            policy.admit(&at, vcpu, &share).unwrap();
        }
        let (first, siblings) = ids.split_at(cpus);
        for (&vcpu, cpu) in first.iter().zip((0..cpus).map(CpuId::new)) {
            at.set_awake(vcpu, true);
            policy.on_wake(&at, vcpu);
            policy.prepare_pick(&at, cpu);
            at.occupy(cpu, vcpu);
            policy.on_start(&at, vcpu);
        }
        let turn = policy.rules.slice;
        at.advance(at.now().after(turn));
        for (&vcpu, cpu) in first.iter().zip((0..cpus).map(CpuId::new)) {
            policy.vcpus[vcpu].credit = nanoseconds(turn) + 1;
            policy.charge(&at, vcpu, turn);
            policy.on_timeslice_end(&at, vcpu, TimesliceEnd::Limit);
            policy.prepare_pick(&at, cpu);
            assert_eq!(policy.cpus[cpu.index()].chosen, Some(vcpu));
        }
        for &vcpu in siblings {
            at.set_awake(vcpu, true);
            policy.on_wake(&at, vcpu);
            policy.set_class(vcpu, Class::Under);
        }
        policy.request(CpuId::new(0), PassReason::Preempted);
        (policy, at)
    }

    /// Returns, for each CPU, the slot of the vCPU that is chosen after all CPUs have run a pass.
    fn chosen(mut policy: Credit, at: &Moment) -> Vec<Option<usize>> {
        for cpu in 0..policy.cpus.len() {
            policy.prepare_pick(at, CpuId::new(cpu));
        }
        policy.cpus.iter().map(|cpu| cpu.chosen.map(VcpuId::slot)).collect()
    }

    /// A gang sibling has no credit left, and the only other CPU runs a VM with credit. The sibling
    /// runs as if it had credit, unless it owes a whole timeslice.
    #[test]
    fn gang_sibling_without_credit_runs_unless_debt_reaches_one_timeslice() {
        for (beyond_a_turn, second) in [(0, 1), (1, 2)] {
            let (mut policy, at) = gang(1, 1);
            let turn = nanoseconds(policy.rules.slice);
            policy.vcpus[vcpu(0, 2)].credit = beyond_a_turn - turn;
            policy.set_class(vcpu(0, 2), Class::Over);
            assert_eq!(chosen(policy, &at), [Some(0), Some(second)]);
        }
    }

    /// The waiting gang sibling has credit for two periods. If the vCPU on the other CPU has as
    /// much, the sibling gets that CPU. If that vCPU has more credit, it keeps its CPU.
    #[test]
    fn vcpu_with_more_credit_than_waiting_gang_sibling_keeps_cpu() {
        for (more, second) in [(0, 2), (1, 1)] {
            let (mut policy, at) = gang(1, 1);
            let owed = 2 * policy.rules.period;
            policy.vcpus[vcpu(0, 2)].credit = owed;
            policy.vcpus[vcpu(1, 1)].credit = owed + more;
            assert_eq!(chosen(policy, &at), [Some(0), Some(second)]);
        }
    }

    #[test]
    fn gang_siblings_are_dispatched_simultaneously_on_separate_cpus() {
        let (mut policy, at) = gang(2, 2);
        // CPUs 1 and 2 are rescheduled at once. Neither waits for the pass of the other.
        let asked = policy.prepare_pick(&at, CpuId::new(0));
        assert_eq!(asked, [1, 2].map(CpuId::new).into_iter().collect());
        let mut chosen = chosen(policy, &at);
        chosen.sort_unstable();
        assert_eq!(chosen, [Some(0), Some(3), Some(4)]);
    }
}
