//! Probes of the CPUs: number, cores, topology and frequency.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rustix::thread::{CpuSet, sched_getaffinity};
use slackline_host::policy::Level;
use slackline_units::CpuId;

use crate::topology::{self, KernelTopology};

use super::probe::{Host, ProbeError, Verdict, read, read_if_there, read_list};

const DIRECTORY: &str = "/sys/devices/system/cpu";

pub(super) fn cpus(_: &Host) -> Result<Verdict, ProbeError> {
    let names = read(format!("{DIRECTORY}/online"))?;
    let online = read_list(format!("{DIRECTORY}/online"))?;
    let isolated = read_if_there(format!("{DIRECTORY}/isolated"))?.unwrap_or_default();
    let isolated =
        if isolated.is_empty() { "none isolated".into() } else { format!("{isolated} isolated") };
    let own =
        sched_getaffinity(None).map_err(ProbeError::tried("read the affinity of this process"))?;
    let ours = (0..CpuSet::MAX_CPU).filter(|&cpu| own.is_set(cpu)).count();
    let found = format!("{} online ({names}), {isolated}", online.len());
    let verdict = if ours < online.len() {
        Verdict::limited(format!("{found}; this process may use only {ours} of them"))
            .hint("start Slackline outside of `taskset` and cpusets")
    } else if online.iter().any(|&cpu| cpu >= CpuId::LIMIT) {
        Verdict::limited(format!("{found}; Slackline supports the first {} CPUs", CpuId::LIMIT))
            .hint("use the CPUs with the lowest numbers")
    } else if online.len() == 1 {
        Verdict::limited(found)
            .hint("use a host with more CPUs: all other programs wait while a VM runs")
    } else {
        Verdict::good(found)
    };
    let count = u64::try_from(online.len()).unwrap_or(u64::MAX);
    Ok(verdict.figure("cpus_online", count))
}

pub(super) fn smt(_: &Host) -> Result<Verdict, ProbeError> {
    let Some(active) = read_if_there(format!("{DIRECTORY}/smt/active"))? else {
        return Ok(Verdict::good("this kernel reports no shared cores"));
    };
    if active != "1" {
        return Ok(Verdict::good("each CPU is a core of its own, as the kernel reports"));
    }
    let siblings = read_if_there(format!("{DIRECTORY}/cpu0/topology/thread_siblings_list"))?;
    let siblings = siblings.map(|list| format!(" (CPUs {list} are one core)")).unwrap_or_default();
    Ok(Verdict::limited(format!("CPUs share cores{siblings}"))
        .hint("for exact speed, leave siblings idle, or write `off` to smt/control in sysfs"))
}

/// Probes the topology of the CPUs whose number is below [`CpuId::LIMIT`].
pub(super) fn topology(_: &Host) -> Result<Verdict, ProbeError> {
    let online = read_list(format!("{DIRECTORY}/online"))?;
    let cpus: Vec<CpuId> =
        online.into_iter().filter(|&cpu| cpu < CpuId::LIMIT).map(CpuId::new).collect();
    let KernelTopology { topology, unsaid } = match topology::look(&cpus) {
        Ok(seen) => seen,
        Err(error) => {
            let found =
                format!("the kernel's topology is inconsistent, so it is not used: {error}");
            return Ok(Verdict::unknown(found));
        }
    };
    let count = |level| topology.groups(level).count();
    let number = |level: Level| {
        let (count, name) = (count(level), level.name());
        format!("{count} {name}{}", if count == 1 { "" } else { "s" })
    };
    let mut found = Level::ALL.map(number).join(", ");
    for level in &unsaid {
        let _ = write!(found, "; the kernel does not report which CPUs share a {}", level.name());
    }
    let verdict = if unsaid.is_empty() { Verdict::good(found) } else { Verdict::limited(found) };
    let figures = Level::ALL.into_iter().zip(["cores", "caches", "nodes", "sockets"]);
    Ok(figures.fold(verdict, |verdict, (level, name)| {
        verdict.figure(name, u64::try_from(count(level)).unwrap_or(u64::MAX))
    }))
}

pub(super) fn governor(_: &Host) -> Result<Verdict, ProbeError> {
    let mut governors = BTreeMap::<String, usize>::new();
    for cpu in read_list(format!("{DIRECTORY}/online"))? {
        let path = format!("{DIRECTORY}/cpu{cpu}/cpufreq/scaling_governor");
        if let Some(name) = read_if_there(path)? {
            *governors.entry(name).or_default() += 1;
        }
    }
    if governors.is_empty() {
        return Ok(Verdict::good("this host does not change CPU frequencies"));
    }
    let list: Vec<String> =
        governors.iter().map(|(name, cpus)| format!("{name} on {cpus} CPUs")).collect();
    let found = list.join(", ");
    let steady = governors.keys().all(|name| name == "performance");
    Ok(if steady {
        Verdict::good(found)
    } else {
        Verdict::limited(found)
            .hint("set the governor by `cpupower frequency-set --governor performance`")
    })
}
