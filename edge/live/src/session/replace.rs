//! Replacement of members that have no threads by a group of members that have threads, in one
//! step.

use slackline_units::{CpuId, CpuSet, CpuShare, Span};

use super::ids::JoinId;
use super::request::{GroupError, PreparedGroup, Request};
use super::{RequestError, Session};
use crate::live_host::{Joining, NotDone};
use crate::vcpu_threads::{Body, VcpuThreads};

impl Session {
    /// Replaces members without threads ([`JoinTarget::Nobody`](super::JoinTarget::Nobody)) by a
    /// group, in one scheduling decision. So no other vCPU gets the capacity that the replaced
    /// members had. The policy accounts the use of CPU time by vCPU id. So a new vCPU with the id
    /// of a replaced member continues that member's account.
    ///
    /// # Errors
    /// If a vCPU of the group cannot join. The error has the request that failed and the reason.
    /// After an error the replaced members are present again, with their old parameters. A member
    /// that could not join again, because other vCPUs have taken its capacity in between, is
    /// reported as ended instead.
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
        let PreparedGroup { ids, names, joining } = self.prepare_after(group, members)?;
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
                self.discard(PreparedGroup { ids, names: Vec::new(), joining: Vec::new() });
                let is_lost = |id: &JoinId| not.lost.contains(&id.vcpu());
                for id in members.iter().copied().filter(is_lost) {
                    self.members.remove(id);
                    self.lost.push(id);
                }
                Err(GroupError { index, error: self.not_done(not.why) })
            }
        }
    }

    /// Returns the largest slice that one more vCPU with this period could reserve now, if it may
    /// run on the CPUs in `cpus`. If `cpus` is `None`, the vCPU may run on all CPUs. A slice of
    /// this length is admitted, and a longer slice is refused. `None` if the policy has no such
    /// limit.
    ///
    /// # Errors
    /// If the session does not schedule these CPUs, or is over.
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
    /// `None` if the policy does not reserve slices on single CPUs.
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

    /// Returns the parameters of a member without threads. If replacing the member fails, it joins
    /// again with these parameters.
    fn nobody(&self, id: JoinId) -> Result<Joining, RequestError> {
        let row = self.row(id)?;
        if !row.is_nobody() {
            return Err(RequestError::Taken { vcpu: id.vcpu() });
        }
        let threads = VcpuThreads { vcpu: id.vcpu(), body: Body::Threads(Vec::new()) };
        let hard_limit = self.hard_limit(&row.share);
        Ok(Joining { threads, share: row.share.clone(), cpus: row.cpus, hard_limit })
    }
}
