//! What somebody asks for beside a share: to run nowhere for a while, or only on some CPUs.

use slackline_host::{Fact, Terms};
use slackline_trace::{Record, Sink};
use slackline_units::{CpuSet, Time, VcpuId};

use super::decider::{Decider, broken};
use super::{MachineError, NotDone};

impl Decider {
    /// Whether a vCPU gets what it is promised and no more.
    pub(crate) fn set_exact(&mut self, vcpu: VcpuId, is_exact: bool) {
        if let Some(subject) = self.subjects.get_mut(vcpu.slot()).and_then(Option::as_mut) {
            subject.exact = is_exact;
        }
    }

    /// A vCPU does not run until it is resumed. It is stopped before the host hears of it: what it
    /// uses until it stops is still its own.
    pub(crate) fn pause(&mut self, vcpu: VcpuId, due: Time) -> Result<(), NotDone> {
        self.observe()?;
        let slot = vcpu.slot();
        let Some(subject) = self.subjects.get(slot).and_then(Option::as_ref) else {
            return Ok(());
        };
        if !self.paused[slot] {
            subject.stop().map_err(NotDone::Refused)?;
            self.held_back[slot] = true;
            self.paused[slot] = true;
            if self.host.moment().is_awake(vcpu) {
                self.step(self.last, &[], Fact::Paused(vcpu)).map_err(broken)?;
            }
            self.enact()?;
        }
        let at = self.now();
        self.records.record(&Record::Changed { due, at, vcpu });
        Ok(())
    }

    /// A vCPU that is paused goes on where it was. One that had work is let go when it is its turn;
    /// of one that slept is not known what woke it since, until it is let go.
    pub(crate) fn resume(&mut self, vcpu: VcpuId, due: Time) -> Result<(), NotDone> {
        self.observe()?;
        let slot = vcpu.slot();
        if self.paused.get(slot).is_some_and(|&paused| paused) && self.any_awake(vcpu) {
            self.paused[slot] = false;
            self.step(self.last, &[], Fact::Woke(vcpu)).map_err(broken)?;
        } else if self.paused.get(slot).is_some_and(|&paused| paused) {
            self.let_go(vcpu)?;
            self.paused[slot] = false;
            self.look_who_wakes(vcpu)?;
        }
        // Whoever is asked or not: its threads are no longer as the last orders left them.
        for index in 0..self.pcpus.all.len() {
            self.pcpus.all[index].is_stale = true;
        }
        self.enact()?;
        let at = self.now();
        self.records.record(&Record::Changed { due, at, vcpu });
        Ok(())
    }

    fn look_who_wakes(&mut self, vcpu: VcpuId) -> Result<(), MachineError> {
        let Some(subject) = &mut self.subjects[vcpu.slot()] else { return Ok(()) };
        for member in &mut subject.members {
            member.is_awake = member.is_runnable()?;
        }
        if self.any_awake(vcpu) {
            self.step(self.last, &[], Fact::Woke(vcpu)).map_err(broken)?;
        }
        Ok(())
    }

    /// The terms of a vCPU change, and with them where it may run. Its threads are there before it
    /// is decided anew who runs where, and back where they were if that is declined.
    pub(super) fn move_to(
        &mut self,
        vcpu: VcpuId,
        terms: Terms<'_>,
        cpus: CpuSet,
    ) -> Result<(), NotDone> {
        let slot = vcpu.slot();
        let home = self.homes[slot];
        if home.is_some_and(|home| cpus.contains(home)) {
            return Ok(self.step(self.last, &[], Fact::TermsChanged(vcpu, terms))?);
        }
        let real = self.real_cpus(cpus);
        let subject = self.subjects[slot].as_ref();
        let before = subject.map_or(Ok(Vec::new()), |subject| subject.confine(real));
        let before = before.map_err(NotDone::Refused)?;
        if let Err(fault) = self.step(self.last, &[], Fact::TermsChanged(vcpu, terms)) {
            if let Some(subject) = &self.subjects[slot] {
                subject.put_back(&before);
            }
            return Err(fault.into());
        }
        self.homes[slot] = None;
        Ok(())
    }

    /// The CPUs of this machine that are those of the host.
    pub(super) fn real_cpus(&self, cpus: CpuSet) -> CpuSet {
        cpus.iter().map(|cpu| self.pcpus.all[cpu.index()].real).collect()
    }
}
