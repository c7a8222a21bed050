//! Those who are not there give way to those who are, in one step.

use slackline_units::{CpuId, CpuSet, CpuShare, Span};

use super::ids::JoinId;
use super::request::{GroupError, Prepared, Request};
use super::{RequestError, Session};
use crate::live_host::{Joining, NotDone};
use crate::vcpu_threads::{Body, VcpuThreads};

impl Session {
    /// Members who are nobody leave, and a group joins in their place, at one instant: nobody else
    /// gets what was promised them, and who is called as one of them was has its account.
    ///
    /// # Errors
    /// Which of the requests was not done, and why: then the members are there as before. One of
    /// whom that could not be, because others had its place in the meantime, is told as ended.
    pub fn replace(
        &mut self,
        members: &[JoinId],
        group: Vec<Request>,
    ) -> Result<Vec<JoinId>, GroupError> {
        let first = |error| GroupError { index: 0, error };
        let mut before = Vec::with_capacity(members.len());
        for &id in members {
            before.push(self.nobody(id).map_err(first)?);
        }
        let Prepared { ids, names, joining } = self.prepare_after(group, members)?;
        self.name(&ids, names);
        let replaced = self.host.replace(before, joining);
        let replaced = replaced.map_err(|error| first(self.not_done(error.into())))?;
        self.poke();
        match replaced {
            Ok(()) => {
                for &id in members {
                    self.members.remove(id);
                }
                self.have_joined(&ids);
                Ok(ids)
            }
            Err(not) => {
                let index = ids.iter().position(|id| id.vcpu() == not.vcpu).unwrap_or(0);
                self.discard(Prepared { ids, names: Vec::new(), joining: Vec::new() });
                let is_lost = |id: &JoinId| not.lost.contains(&id.vcpu());
                for id in members.iter().copied().filter(is_lost) {
                    self.members.remove(id);
                    self.lost.push(id);
                }
                Err(GroupError { index, error: self.not_done(not.why) })
            }
        }
    }

    /// The longest slice in every such period that would be promised now to one more who may run on
    /// these of the session's CPUs, or on all: exactly. None under a policy that has no limit.
    ///
    /// # Errors
    /// When these are none of its CPUs, or the session is over.
    pub fn room(&self, period: Span, cpus: Option<CpuSet>) -> Result<Option<Span>, RequestError> {
        if self.host.is_over() {
            return Err(RequestError::Over);
        }
        self.check_cpus(cpus)?;
        let allowed = cpus.unwrap_or_else(|| CpuSet::first_n(self.cpus));
        let room = self.host.room(period, allowed);
        room.map_err(|error| self.not_done(NotDone::from(error)))
    }

    /// Returns the sum of all reservations on a CPU of the session, without dispatch overhead.
    /// `None` under a policy that reserves no slices on single CPUs.
    ///
    /// # Errors
    /// If the session is over.
    pub fn reserved(&self, cpu: CpuId) -> Result<Option<CpuShare>, RequestError> {
        if self.host.is_over() {
            return Err(RequestError::Over);
        }
        let reserved = self.host.reserved(cpu);
        reserved.map_err(|error| self.not_done(NotDone::from(error)))
    }

    /// As a member who is nobody joins.
    fn nobody(&self, id: JoinId) -> Result<Joining, RequestError> {
        let row = self.row(id)?;
        if !row.is_nobody() {
            return Err(RequestError::Taken { vcpu: id.vcpu() });
        }
        let (body, exact) = (Body::Threads(Vec::new()), row.is_exact);
        let threads = VcpuThreads { vcpu: id.vcpu(), body, exact };
        let exact_slice = self.exact_slice(&row.share);
        Ok(Joining { threads, share: row.share.clone(), cpus: row.cpus, exact_slice })
    }
}
