//! Choice of the CPUs that the daemon schedules, and of the CPUs on which the daemon's own threads
//! run.

use slackline_linux::sys::{online_cpus, own_tid, set_affinity};
use slackline_units::{CpuId, CpuSet};

use super::ServeError;

/// Returns the CPUs that the daemon schedules. These are the requested CPUs or, by default, all
/// CPUs but the first, which remains for other processes. If the host has a single CPU, the default
/// is this CPU.
///
/// # Errors
/// If `asked` is empty or contains a CPU that is not online, or if the online CPUs are unreadable.
pub(super) fn managed_cpus(asked: Option<&[CpuId]>) -> Result<Vec<CpuId>, ServeError> {
    let unreadable = |source| ServeError::Unreadable { what: "the list of online CPUs", source };
    let online = online_cpus().map_err(unreadable)?;
    let Some(asked) = asked else {
        let all: Vec<CpuId> = online.iter().collect();
        return Ok(if all.len() > 1 { all[1..].to_vec() } else { all });
    };
    let not_there: Vec<CpuId> =
        asked.iter().copied().filter(|cpu| !online.contains(*cpu)).collect();
    if not_there.is_empty() && !asked.is_empty() {
        Ok(asked.to_vec())
    } else {
        Err(ServeError::NoSuchCpus { cpus: not_there })
    }
}

/// Moves the calling thread, and all threads that it starts later, to the CPUs that the daemon does
/// not schedule. Returns true if at least one CPU is not scheduled by the daemon.
pub(super) fn live_elsewhere(managed: &[CpuId]) -> bool {
    let Ok(online) = online_cpus() else { return false };
    let managed: CpuSet = managed.iter().copied().collect();
    let elsewhere = online.without(&managed);
    if !elsewhere.is_empty() {
        // If the kernel refuses, the core shares CPUs with vCPUs. It has a real-time priority
        // there.
        let _ = set_affinity(own_tid(), &elsewhere);
    }
    !elsewhere.is_empty()
}

/// Formats the numbers of CPUs as a list: `0, 2`.
pub(super) fn listed(cpus: &[CpuId]) -> String {
    cpus.iter().map(|cpu| cpu.index().to_string()).collect::<Vec<_>>().join(", ")
}
