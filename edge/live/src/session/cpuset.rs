//! Cpusets of members (vCPUs that the session schedules). The session checks the cpuset that a
//! member already has when it joins, and creates cpusets that keep members on the managed CPUs.

use std::collections::BTreeSet;

use slackline_units::{CpuId, CpuSet};

use super::request::{JoinTarget, Request};
use super::{ForeignChange, RequestError, Session};
use slackline_linux::cgroup::{Cpuset, descendants};
use slackline_linux::sys::{Tid, process_of, read_of_thread};
use slackline_linux::thread::ThreadRef;

impl Session {
    /// Checks that the target can run on the requested CPUs: the cpusets of all its processes must
    /// allow these CPUs.
    ///
    /// # Errors
    /// [`RequestError::Elsewhere`] if a cpuset excludes one of these CPUs.
    pub(super) fn check_cpuset(&self, request: &Request) -> Result<(), RequestError> {
        let all = match &request.who {
            JoinTarget::Tree(pid) | JoinTarget::Wide(pid, _) => {
                // The request is refused later if the tree cannot be read.
                descendants(*pid).unwrap_or_else(|_| vec![*pid])
            }
            JoinTarget::Group(place) => {
                place.processes().or_else(|_| place.threads()).unwrap_or_default()
            }
            JoinTarget::Process(pid) => vec![*pid],
            JoinTarget::Thread(thread) => vec![thread.tid()],
            JoinTarget::Nobody => Vec::new(),
        };
        let real: Vec<CpuId> = self.host.real_cpus().collect();
        let scheduled = match (&request.who, request.cpus) {
            (JoinTarget::Wide(_, cpus), _) => *cpus,
            (_, Some(cpus)) => cpus.iter().map(|cpu| real[cpu.index()]).collect(),
            (_, None) => real.into_iter().collect(),
        };
        let mut known = BTreeSet::new();
        // Processes in the same cgroups have the same cpuset.
        let is_new = |tid: &Tid| {
            let groups = read_of_thread((*tid, *tid), "cgroup").unwrap_or_default();
            known.insert(groups)
        };
        let cpusets = all
            .into_iter()
            .filter(is_new)
            .filter_map(|tid| Some((tid, Cpuset::of(process_of(tid).ok()?, tid).ok().flatten()?)));
        let hinders = |cpuset: &Cpuset| !scheduled.without(&cpuset.cpus).is_empty();
        let mut hindering = cpusets.filter(|(_, cpuset)| hinders(cpuset));
        match hindering.next() {
            Some((tid, Cpuset { group, cpus: allowed, .. })) => {
                // Another Slackline process may have made the cpuset. Then the error names that
                // process.
                if let Ok(thread) = ThreadRef::open(process_of(tid).unwrap_or(tid), tid) {
                    self.fence.refuse_held_elsewhere(&thread)?;
                }
                let cpuset = Some(group);
                let finding = Box::new(ForeignChange::Cpus { tid, allowed, scheduled, cpuset });
                Err(RequestError::Elsewhere { finding })
            }
            None => Ok(()),
        }
    }

    /// Uses a cpuset to restrict a thread, or its process tree, to the managed CPUs and the CPUs in
    /// `wide`. With such a cpuset no system call of the thread can move it to another CPU. If no
    /// such cpuset can be made, does nothing.
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
