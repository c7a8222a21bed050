//! Cpusets of members: those in which they are when they join, and those that the session creates
//! to keep members on their CPUs.

use slackline_units::{CpuId, CpuSet};

use super::request::{JoinTarget, Request};
use super::{ForeignChange, RequestError, Session};
use slackline_linux::cgroup::Cpuset;
use slackline_linux::sys::{Tid, process_of};
use slackline_linux::thread::ThreadRef;

impl Session {
    /// Checks that the cpuset of a target allows the CPUs on which it should run. Otherwise it
    /// would never run there.
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
                // The cpuset may be our own, by which another process of ours holds the target.
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

    /// Restricts a thread, or its process tree, to the managed CPUs and those in `wide` with a
    /// cpuset. Then no system call of the thread can move it elsewhere. Does nothing if the kernel
    /// does not support cpusets.
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
