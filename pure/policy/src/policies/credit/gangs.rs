//! Gangs: the vCPUs of a domain that asks for it run together or not at all, as far as that takes
//! nothing from others. Source: what is called relaxed co-scheduling, since VMware ESX 3; ours is
//! by turns rather than by how far one has come ahead of another.
//!
//! Whoever of a gang is chosen brings its waiting siblings along: each is *invited* to a CPU where
//! nobody runs who comes before it by class, and its turn ends when that of the first ends. So they
//! are stopped together too, and each CPU goes on with whom it had. All is paid for as always, so
//! no account and no share is another one. Where a sibling that wants to run cannot come along, or
//! is stopped before the others, those stop soon: after the skew they go behind all of their class.
//! If nobody of it waits there they go on.
//!
//! Holds after every pass: nobody is invited to two CPUs, or to one for which a sibling is chosen.

use alloc::vec::Vec;
use core::cmp::Ordering;

use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use crate::{Moment, Values};

use super::rules::fields;
use super::runqueue::Class;
use super::{Credit, Why, nanoseconds};

/// Who is invited where.
pub(super) struct Gangs {
    /// By CPU: who is to have it at its next pass.
    invitations: Vec<Option<Invitation>>,
    /// The CPUs to which somebody is invited.
    spoken_for: CpuSet,
    /// The CPUs whose turns end earlier than they have been told.
    shortened: CpuSet,
    /// For so long one may run while a sibling that wants to cannot.
    skew: Span,
}

/// To have a CPU at its next pass.
#[derive(Clone, Copy)]
struct Invitation {
    vcpu: VcpuId,
    /// As if it were of this class.
    class: Class,
    /// Until when.
    ends: Time,
}

impl Gangs {
    /// If siblings are brought along at all by these parameters.
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

    /// Whoever is invited to a CPU is so no longer.
    fn take(&mut self, cpu: CpuId) -> Option<Invitation> {
        self.spoken_for.remove(cpu);
        self.invitations[cpu.index()].take()
    }

    fn is_invited(&self, vcpu: VcpuId) -> bool {
        self.invitations.iter().flatten().any(|other| other.vcpu == vcpu)
    }

    /// A vCPU is gone.
    pub(super) fn leave(&mut self, vcpu: VcpuId) {
        for cpu in self.spoken_for.iter() {
            if self.invitations[cpu.index()].is_some_and(|other| other.vcpu == vcpu) {
                self.take(cpu);
            }
        }
    }
}

impl Credit {
    /// Whom a pass chooses that would choose `first`: whoever is invited, if `first` does not come
    /// before it.
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

    /// Stands in a list and is chosen nowhere.
    fn waits(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu].on.is_none() && self.queues.list_of(vcpu).is_some()
    }

    /// Who has been chosen for a CPU brings its siblings along.
    #[inline]
    pub(super) fn bring_siblings(&mut self, at: &Moment, cpu: CpuId, vcpu: VcpuId) {
        if self.gangs.is_some() && self.domains[self.vcpus[vcpu].domain].is_gang {
            self.invite_siblings(at, cpu, vcpu);
        }
    }

    #[inline(never)] // Mostly there are no gangs.
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
            self.request(there, Why::Preempted);
        }
        if stays_behind && let Some(gangs) = &self.gangs {
            let soon = at.now().after(gangs.skew);
            let this = &mut self.cpus[cpu.index()];
            (this.until, this.turn_ends) = (this.until.min(soon), this.turn_ends.min(soon));
        }
    }

    /// The CPUs for which vCPUs of a domain are chosen.
    fn cpus_of(&self, row: usize) -> CpuSet {
        self.domains[row].vcpus.iter().filter_map(|&vcpu| self.vcpus[vcpu].on).collect()
    }

    /// As what class one comes along with another: who has no credit left as the other, for a turn.
    /// A little earlier or later each has what the others have.
    fn class_beside(&self, vcpu: VcpuId, other: VcpuId) -> Class {
        let (account, class) = (&self.vcpus[vcpu], self.vcpus[other].class.min(Class::Under));
        let is_close = account.credit > -nanoseconds(self.rules.slice);
        let own = account.class.min(Class::Under);
        if own == Class::Over && is_close { class.max(own) } else { own }
    }

    /// The CPU on which a waiting vCPU may run and nobody is who comes before it, of those with
    /// somebody of the lowest class its own if possible; none of those taken.
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

    /// Whether one of the same class is owed more than a period, and more than another: who is due
    /// nearly a whole CPU could not make up for the turns of a gang otherwise.
    fn is_owed_more(&self, vcpu: VcpuId, than: VcpuId) -> bool {
        let credit = self.vcpus[vcpu].credit;
        credit > self.rules.period && credit > self.vcpus[than].credit
    }

    /// Whether a gang is in mid-turn on a CPU: no other may come in between, or the two would do so
    /// in turn and for ever.
    fn is_kept_by_gang(&self, at: &Moment, cpu: CpuId) -> bool {
        let this = &self.cpus[cpu.index()];
        let is_of_gang = |vcpu: VcpuId| self.domains[self.vcpus[vcpu].domain].is_gang;
        this.until > at.now() && this.chosen.is_some_and(is_of_gang)
    }

    /// A vCPU of a gang has lost its CPU before its turn was over: where it cannot go on elsewhere,
    /// its siblings stop soon.
    #[inline]
    pub(super) fn stop_siblings(&mut self, at: &Moment, vcpu: VcpuId, why: Why) {
        if self.gangs.is_some()
            && why == Why::Preempted
            && self.domains[self.vcpus[vcpu].domain].is_gang
            && self.waits(vcpu)
        {
            self.shorten_siblings(at, vcpu);
        }
    }

    #[inline(never)] // Mostly there are no gangs.
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

    /// The CPUs to ask again because the turns there end earlier.
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
    use crate::policies::credit::rules::Rules;
    use crate::{Given, Policy, Topology, TurnEnd};

    fn vcpu(domain: u32, number: u16) -> VcpuId {
        VcpuId::new(u32::from(number), DomId::new(domain), number)
    }

    /// As many CPUs as others and one more: one of a gang has the first, each of the others one,
    /// and their next turns begin. Its siblings wait, not boosted; then the first CPU is to pass.
    fn gang(others: u16, siblings: u16) -> (Credit, Moment) {
        let fields = [("gang", Given::Text("relaxed"))];
        let values = Values::read(SPEC.policy_fields, fields.into_iter()).unwrap();
        let cpus = usize::from(others) + 1;
        let gangs = Gangs::read(&values, cpus);
        let rules = Rules::read(&values, "exact");
        let mut policy = Credit { gangs, ..Credit::new(rules, &Topology::flat(cpus), None) };
        let mut at = Moment::at_start(cpus);
        let rivals = (1..=others).map(|number| vcpu(number.into(), number));
        let siblings = (1..=siblings).map(|number| vcpu(0, others + number));
        let ids: Vec<VcpuId> = [vcpu(0, 0)].into_iter().chain(rivals).chain(siblings).collect();
        for &vcpu in &ids {
            let gang = [("gang", Given::Flag(vcpu.domain() == DomId::new(0)))];
            let share = Values::read(SPEC.share_fields, gang.into_iter()).unwrap();
            at.join(vcpu);
            policy.admit(&at, vcpu, &share).unwrap();
        }
        let (first, siblings) = ids.split_at(cpus);
        for (&vcpu, cpu) in first.iter().zip((0..cpus).map(CpuId::new)) {
            at.set_awake(vcpu, true);
            policy.wake(&at, vcpu);
            policy.pass(&at, cpu);
            at.occupy(cpu, vcpu);
            policy.start(&at, vcpu);
        }
        let turn = policy.rules.slice;
        at.advance(at.now().after(turn));
        for (&vcpu, cpu) in first.iter().zip((0..cpus).map(CpuId::new)) {
            policy.vcpus[vcpu].credit = nanoseconds(turn) + 1;
            policy.charge(&at, vcpu, turn);
            policy.turn_over(&at, vcpu, TurnEnd::Limit);
            policy.pass(&at, cpu);
            assert_eq!(policy.cpus[cpu.index()].chosen, Some(vcpu));
        }
        for &vcpu in siblings {
            at.set_awake(vcpu, true);
            policy.wake(&at, vcpu);
            policy.set_class(vcpu, Class::Under);
        }
        policy.request(CpuId::new(0), Why::Preempted);
        (policy, at)
    }

    /// Who is chosen for which CPU once all have passed, by slot.
    fn chosen(mut policy: Credit, at: &Moment) -> Vec<Option<usize>> {
        for cpu in 0..policy.cpus.len() {
            policy.pass(at, CpuId::new(cpu));
        }
        policy.cpus.iter().map(|cpu| cpu.chosen.map(VcpuId::slot)).collect()
    }

    /// A sibling has no credit left, and another domain, which has some, runs on the only other
    /// CPU. It comes along as if it had credit, unless it owes a turn.
    #[test]
    fn who_has_no_credit_comes_along_with_who_has_some_unless_it_owes_a_turn() {
        for (beyond_a_turn, second) in [(0, 1), (1, 2)] {
            let (mut policy, at) = gang(1, 1);
            let turn = nanoseconds(policy.rules.slice);
            policy.vcpus[vcpu(0, 2)].credit = beyond_a_turn - turn;
            policy.set_class(vcpu(0, 2), Class::Over);
            assert_eq!(chosen(policy, &at), [Some(0), Some(second)]);
        }
    }

    /// What the other is owed is a period's credit and more: as much as the sibling, or more.
    #[test]
    fn who_is_owed_more_than_a_sibling_stays() {
        for (more, second) in [(0, 2), (1, 1)] {
            let (mut policy, at) = gang(1, 1);
            let owed = 2 * policy.rules.period;
            policy.vcpus[vcpu(0, 2)].credit = owed;
            policy.vcpus[vcpu(1, 1)].credit = owed + more;
            assert_eq!(chosen(policy, &at), [Some(0), Some(second)]);
        }
    }

    #[test]
    fn all_siblings_come_along_each_to_a_cpu_of_its_own() {
        let (mut policy, at) = gang(2, 2);
        // Both are asked at once: neither waits for the other to be there.
        let asked = policy.pass(&at, CpuId::new(0));
        assert_eq!(asked, [1, 2].map(CpuId::new).into_iter().collect());
        let mut chosen = chosen(policy, &at);
        chosen.sort_unstable();
        assert_eq!(chosen, [Some(0), Some(3), Some(4)]);
    }
}
