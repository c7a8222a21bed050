//! CPUs that `hold` takes if the user names no CPUs.

use slackline_linux::cgroup::Cpuset;
use slackline_linux::sys::online_cpus;
use slackline_live::session::{JoinTarget, OwnedCpus};
use slackline_units::{CpuId, CpuSet};

use super::{Amount, Target};
use crate::problem::Problem;

impl Target {
    /// Returns as many CPUs as the target needs: the CPUs with the highest numbers among those that
    /// the target's cpuset allows and that no other Slackline process schedules. If too few CPUs
    /// are free, returns the last CPUs of the cpuset, so that the refusal names the other process.
    /// Ignores a cpuset with fewer CPUs than the target needs.
    pub(super) fn default_cpus(&self, amount: Amount) -> Result<Vec<CpuId>, Problem> {
        let online = online_cpus()
            .map_err(|source| Problem::Unreadable { file: "the list of CPUs".into(), source })?;
        let needed = self.cpus_for(amount);
        let granted = self.granted_cpus().map(|granted| granted.and(&online));
        let granted = granted.filter(|granted| granted.iter().count() >= needed);
        let allowed: Vec<CpuId> = granted.unwrap_or(online).iter().collect();
        let is_taken = |cpu: CpuId| OwnedCpus::first_taken(&[cpu]).is_some();
        Ok(last_free(&allowed, needed, is_taken))
    }

    /// Returns the CPUs that the cpuset of the target's first thread allows. `None` if the thread
    /// has no cpuset or has ended.
    fn granted_cpus(&self) -> Option<CpuSet> {
        let (pid, tid) = match self.who.first()? {
            JoinTarget::Tree(pid) | JoinTarget::Process(pid) | JoinTarget::Wide(pid, _) => {
                (*pid, *pid)
            }
            JoinTarget::Thread(thread) => (thread.pid(), thread.tid()),
            JoinTarget::Group(place) => {
                let first = place.processes().ok()?.first().copied()?;
                (first, first)
            }
            JoinTarget::Nobody => return None,
        };
        Some(Cpuset::of(pid, tid).ok()??.cpus)
    }
}

/// Returns the last `needed` free CPUs of `allowed`. If fewer are free, returns the last `needed`
/// CPUs of `allowed`.
fn last_free(allowed: &[CpuId], needed: usize, is_taken: impl Fn(CpuId) -> bool) -> Vec<CpuId> {
    let free: Vec<CpuId> = allowed.iter().copied().filter(|&cpu| !is_taken(cpu)).collect();
    let cpus = if free.len() < needed { allowed } else { &free };
    cpus[cpus.len().saturating_sub(needed)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_command_uses_the_last_free_cpus_by_default() {
        let of = |needed: usize, taken: &[usize]| {
            let all = [0, 1, 2, 5].map(CpuId::new);
            let cpus = last_free(&all, needed, |cpu| taken.contains(&cpu.index()));
            cpus.iter().map(|cpu| cpu.index()).collect::<Vec<usize>>()
        };
        assert_eq!(of(1, &[]), [5]);
        assert_eq!(of(1, &[5, 2]), [1]);
        assert_eq!(of(2, &[2]), [1, 5]);
        assert_eq!(of(4, &[0]), [0, 1, 2, 5]);
        assert_eq!(of(1, &[0, 1, 2, 5]), [5]);
    }
}
