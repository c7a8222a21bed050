//! Cpusets of members (vCPUs that the session schedules). The session checks the cpuset that a
//! member already has when it joins, and creates cpusets that keep members on the managed CPUs.

use slackline_units::{CpuId, CpuSet};

use super::request::{JoinTarget, Request};
use super::{ForeignChange, RequestError, Session};
use slackline_linux::cgroup::Cpuset;
use slackline_linux::sys::{Tid, process_of};
use slackline_linux::thread::ThreadRef;

impl Session {
    /// Checks that the cpuset of a target allows all CPUs on which the target should run.
    ///
    /// # Errors
    /// [`RequestError::Elsewhere`] if the cpuset excludes one of these CPUs.
    pub(super) fn check_cpuset(&self, request: &Request) -> Result<(), RequestError> {
        let first = match &request.who {
            JoinTarget::Process(pid) | JoinTarget::Tree(pid) | JoinTarget::Wide(pid, _) => {
                Some(*pid)
            }
            JoinTarget::Group(place) => place.threads().ok().and_then(|tids| tids.first().copied()),
            JoinTarget::Thread(thread) => Some(thread.tid()),
            JoinTarget::Nobody => None,
        };
        let real: Vec<CpuId> = self.host.real_cpus().collect();
        let scheduled = match (&request.who, request.cpus) {
            (JoinTarget::Wide(_, cpus), _) => *cpus,
            (_, Some(cpus)) => cpus.iter().map(|cpu| real[cpu.index()]).collect(),
            (_, None) => real.into_iter().collect(),
        };
        let cpuset = first.and_then(|tid| Cpuset::of(process_of(tid).ok()?, tid).ok().flatten());
        match first.zip(cpuset) {
            Some((tid, Cpuset { group, cpus: allowed, .. }))
                if !scheduled.without(&allowed).is_empty() =>
            {
                // Another Slackline process may have made the cpuset. Then the error names that
                // process.
                if let Ok(thread) = ThreadRef::open(process_of(tid).unwrap_or(tid), tid) {
                    self.fence.refuse_held_elsewhere(&thread)?;
                }
                let cpuset = Some(group);
                let finding = Box::new(ForeignChange::Cpus { tid, allowed, scheduled, cpuset });
                Err(RequestError::Elsewhere { finding })
            }
            _ => Ok(()),
        }
    }

    /// Uses a cpuset to restrict a thread, or its process tree, to the managed CPUs and the CPUs in
    /// `wide`. Then no system call of the thread can move it to another CPU. Does nothing if no
    /// such cpuset can be made.
    pub(super) fn keep_within(
        &mut self,
        tid: Tid,
        wide: Option<CpuSet>,
    ) -> Result<(), RequestError> {
        let real: CpuSet = self.host.real_cpus().collect();
        let mut cpus = wide.unwrap_or_default();
        cpus.add(&real);
        Ok(self.fenced(|fence| fence.keep_within(tid, cpus))?)
    }
}
