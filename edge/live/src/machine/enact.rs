//! What has been ordered, told to the kernel: who is real-time and how urgent, who is stopped.

use slackline_host::policy::Entitlement;
use slackline_units::{CpuId, VcpuId};

use super::MachineError;
use super::decider::Decider;
use crate::fence::Held;
use crate::vcpu_threads::Member;
use crate::way::ActError;
use crate::way::priority::Ladder;

/// How many are kept ready below the chosen one. More would cost a call each and help only if all
/// before them slept at once.
const READY: usize = 4;

/// Where somebody stands who is not real-time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before all ordinary threads: whoever makes up for what it missed, which is not for the time
    /// of real-time threads, or pays what the kernel keeps of the CPU for others than those.
    First,
    /// Where it was before it was ours.
    Original,
    /// It has had its due, and more only if it may.
    Beyond,
}

impl Decider {
    /// Tells the kernel what has been ordered, for each CPU that it concerns.
    pub(super) fn enact(&mut self) -> Result<(), MachineError> {
        for index in 0..self.pcpus.all.len() {
            if self.pcpus.all[index].is_stale {
                self.pcpus.all[index].is_stale = false;
                self.enact_on(CpuId::new(index))?;
            }
        }
        Ok(())
    }

    fn enact_on(&mut self, cpu: CpuId) -> Result<(), MachineError> {
        let mut in_line = std::mem::take(&mut self.in_line);
        self.host.in_line(cpu, &mut in_line);
        let pcpu = &mut self.pcpus.all[cpu.index()];
        let turn = pcpu.turn;
        // Only where nobody is real-time: the others would come before the one that pays.
        pcpu.is_paying = in_line.len() == 1
            && if pcpu.is_paying {
                pcpu.fair_server.owed().is_some()
            } else {
                pcpu.fair_server.is_due()
            };
        let raised = if pcpu.is_paying { 0 } else { READY };
        if let Some((vcpu, ..)) = turn {
            self.homes[vcpu.slot()] = Some(cpu);
        }
        for next in &in_line {
            self.homes[next.vcpu.slot()].get_or_insert(cpu);
        }
        // Down first: whoever comes up must not meet the one it follows on its way.
        let mut result = Ok(());
        for slot in 0..self.subjects.len() {
            let Some(vcpu) = self.subjects[slot].as_ref().map(|subject| subject.vcpu) else {
                continue;
            };
            let is_due = in_line.iter().take(raised).any(|next| next.vcpu == vcpu);
            // One that has not been chosen yet has no home, and may have used more than its due: it
            // would never be chosen, and if nobody kept it from running it never would stop.
            if self.homes[slot].is_none_or(|home| home == cpu) && !is_due {
                let is_owed = in_line.iter().any(|next| next.vcpu == vcpu);
                let place = match turn {
                    Some((chosen, _, Entitlement::Spare)) if chosen == vcpu => Place::Original,
                    Some((chosen, ..)) if chosen == vcpu => Place::First,
                    _ if is_owed => Place::Original,
                    _ => Place::Beyond,
                };
                result = result.and(self.put_down(vcpu, place));
            }
        }
        let mut ladder = Ladder::new(READY);
        for next in in_line.iter().take(raised) {
            if self.homes[next.vcpu.slot()] == Some(cpu) {
                result = result.and(self.put_up(next.vcpu, &mut ladder));
            }
        }
        self.pcpus.all[cpu.index()].is_awaited = in_line.len() > 1;
        self.pcpus.all[cpu.index()].ready =
            in_line.iter().take(READY).skip(1).filter_map(|next| next.limit).min();
        self.in_line = in_line;
        result
    }

    /// Makes a subject real-time.
    fn put_up(&mut self, vcpu: VcpuId, ladder: &mut Ladder) -> Result<(), MachineError> {
        let Some(subject) = &mut self.subjects[vcpu.slot()] else { return Ok(()) };
        let priority = ladder.next(subject.priority);
        subject.priority = Some(priority);
        let real = self.homes[vcpu.slot()].map(|home| self.pcpus.all[home.index()].real);
        self.act(vcpu, |member| {
            if let Some(real) = real {
                member.held.pin(real)?;
            }
            member.held.raise(priority)
        })?;
        self.let_go(vcpu)
    }

    /// Gives a subject back to ordinary scheduling, or keeps it from running if it must not have
    /// more than its due. Then a single thread stays real-time: it stops at once, and nothing need
    /// be done to it but to let it go. Of several the one that stops them has to get to run first.
    fn put_down(&mut self, vcpu: VcpuId, place: Place) -> Result<(), MachineError> {
        let real = self.homes[vcpu.slot()].map(|home| self.pcpus.all[home.index()].real);
        let Some(subject) = &mut self.subjects[vcpu.slot()] else { return Ok(()) };
        let is_exact = subject.exact;
        let is_stopped = is_exact && place == Place::Beyond && self.host.moment().is_awake(vcpu);
        let stays = is_stopped && subject.members.len() == 1;
        if !stays {
            subject.priority = None;
        }
        self.act(vcpu, |member| {
            if let Some(real) = real {
                member.held.pin(real)?;
            }
            match place {
                _ if stays => Ok(()),
                Place::First => member.held.favour(),
                Place::Original | Place::Beyond => member.held.lower(),
            }
        })?;
        if is_stopped {
            self.held_back[vcpu.slot()] = true;
            self.act_on_first(vcpu, Held::hold_back)
        } else if self.paused[vcpu.slot()] || (is_exact && place == Place::Beyond) {
            Ok(())
        } else {
            self.let_go(vcpu)
        }
    }

    pub(super) fn let_go(&mut self, vcpu: VcpuId) -> Result<(), MachineError> {
        if !std::mem::replace(&mut self.held_back[vcpu.slot()], false) {
            return Ok(());
        }
        self.act_on_first(vcpu, Held::let_go)
    }

    /// Stopping a process stops all its threads: one order is enough.
    pub(super) fn act_on_first(
        &mut self,
        vcpu: VcpuId,
        order: fn(&Held) -> Result<(), ActError>,
    ) -> Result<(), MachineError> {
        let mut is_first = true;
        self.act(vcpu, |member| {
            if std::mem::replace(&mut is_first, false) { order(&member.held) } else { Ok(()) }
        })
    }

    /// Does something to each thread of a subject; one that has ended is noted, not an error.
    fn act(
        &mut self,
        vcpu: VcpuId,
        mut order: impl FnMut(&mut Member) -> Result<(), ActError>,
    ) -> Result<(), MachineError> {
        let Some(subject) = &mut self.subjects[vcpu.slot()] else { return Ok(()) };
        for member in &mut subject.members {
            match order(member) {
                Ok(()) => {}
                Err(ActError::Gone { .. } | ActError::GivenBack { .. }) => {
                    if !self.gone.contains(&vcpu) {
                        self.gone.push(vcpu);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
