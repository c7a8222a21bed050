//! The cpusets of members: those they come with, and those of ours that keep them in place.

use slackline_units::{CpuId, CpuSet};

use super::request::{Request, Who};
use super::{Finding, RequestError, Session};
use slackline_linux::cgroup::Cpuset;
use slackline_linux::sys::{Tid, process_of};
use slackline_linux::thread::ThreadRef;

impl Session {
    /// Nothing is held on a CPU that its cpuset does not grant: it would never run there.
    pub(super) fn check_cpuset(&self, request: &Request) -> Result<(), RequestError> {
        let first = match &request.who {
            Who::Process(pid) | Who::Tree(pid) | Who::Wide(pid, _) => Some(*pid),
            Who::Group(place) => place.threads().ok().and_then(|tids| tids.first().copied()),
            Who::Thread(thread) => Some(thread.tid()),
            Who::Nobody => None,
        };
        let real: Vec<CpuId> = self.host.real_cpus().collect();
        let scheduled = match (&request.who, request.cpus) {
            (Who::Wide(_, cpus), _) => *cpus,
            (_, Some(cpus)) => cpus.iter().map(|cpu| real[cpu.index()]).collect(),
            (_, None) => real.into_iter().collect(),
        };
        let cpuset = first.and_then(|tid| Cpuset::of(process_of(tid).ok()?, tid).ok().flatten());
        match first.zip(cpuset) {
            Some((tid, Cpuset { group, cpus: allowed, .. }))
                if !scheduled.without(&allowed).is_empty() =>
            {
                // The cpuset can be one that another process of ours holds it by.
                if let Ok(thread) = ThreadRef::open(process_of(tid).unwrap_or(tid), tid) {
                    self.fence.refuse_held_elsewhere(&thread)?;
                }
                let cpuset = Some(group);
                let finding = Box::new(Finding::Cpus { tid, allowed, scheduled, cpuset });
                Err(RequestError::Elsewhere { finding })
            }
            _ => Ok(()),
        }
    }

    /// No call of a thread, or of its tree, leads to a CPU that is not scheduled, where the kernel
    /// can be told so.
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
