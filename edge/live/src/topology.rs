//! Topology of the host's CPUs, read from `/sys`.
//!
//! Levels (core, cache, node, socket) can be missing in `/sys`: containers hide directories, and
//! virtual machines report no caches. A missing level is taken to have the same groups of CPUs as
//! the next wider level. The one exception is the core level: if it is missing, each CPU counts as
//! a core.
//!
//! On some hosts the levels are not nested. One node may span two sockets if memory is interleaved,
//! and a virtual machine may report one cache for all of its sockets. Policies need nested groups.
//! So if the CPUs of a group belong to several groups of a wider level, the group is split.

use std::fs;
use std::path::Path;

use slackline_host::policy::{Groups, Level, Topology, TopologyError};
use slackline_units::{CpuId, CpuSet};

use slackline_linux::sys::cpu_list;

/// Directory of the kernel's files about CPUs and nodes.
const ROOT: &str = "/sys/devices/system";

/// Topology as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelTopology {
    pub(crate) topology: Topology,
    /// Levels that are missing in the kernel's report for at least one CPU.
    pub(crate) unsaid: Vec<Level>,
}

/// Returns the topology of these CPUs, numbered by their index in `real`. If the kernel's report is
/// inconsistent, each CPU counts as a core, and all CPUs are in one socket.
#[must_use]
pub fn of(real: &[CpuId]) -> Topology {
    look(real).map_or_else(|_| Topology::flat(real.len()), |seen| seen.topology)
}

/// Reads the topology of these CPUs.
///
/// # Errors
/// If the kernel's report is inconsistent. The error describes the inconsistency.
pub(crate) fn look(real: &[CpuId]) -> Result<KernelTopology, TopologyError> {
    arrange(real, &|path| fs::read_to_string(Path::new(ROOT).join(path)).ok())
}

/// Builds the topology from the texts of the kernel's files.
fn arrange(
    real: &[CpuId],
    read: &dyn Fn(&str) -> Option<String>,
) -> Result<KernelTopology, TopologyError> {
    let mut groups = Groups::default();
    let mut unsaid = Vec::new();
    let mut wider = vec![CpuSet::first_n(real.len()); real.len()];
    for level in Level::ALL.into_iter().rev() {
        let said: Vec<_> = real.iter().map(|&cpu| sharers(level, cpu, read)).collect();
        if said.iter().any(Option::is_none) {
            unsaid.push(level);
        }
        let group = |(cpu, said): (usize, &Option<Vec<usize>>)| match said {
            Some(said) => with_places(real, said, cpu).and(&wider[cpu]),
            None if level == Level::Core => CpuSet::one(CpuId::new(cpu)),
            None => wider[cpu],
        };
        wider = said.iter().enumerate().map(group).collect();
        let is_first = |&(cpu, group): &(usize, &CpuSet)| !wider[..cpu].contains(group);
        let distinct = wider.iter().enumerate().filter(is_first).map(|(_, &group)| group).collect();
        *match level {
            Level::Core => &mut groups.cores,
            Level::Cache => &mut groups.caches,
            Level::Node => &mut groups.nodes,
            Level::Socket => &mut groups.sockets,
        } = distinct;
    }
    Ok(KernelTopology { topology: Topology::new(real.len(), &groups)?, unsaid })
}

/// Converts CPU numbers of the kernel to indexes of managed CPUs. The index `cpu` is included even
/// if its number is not in `numbers`.
fn with_places(real: &[CpuId], numbers: &[usize], cpu: usize) -> CpuSet {
    let is_in = |&place: &usize| place == cpu || numbers.contains(&real[place].index());
    (0..real.len()).filter(is_in).map(CpuId::new).collect()
}

/// Returns the CPUs (kernel numbers) that are in the same group as `cpu` at the level `level`.
/// `None` if the kernel does not report the level.
fn sharers(level: Level, cpu: CpuId, read: &dyn Fn(&str) -> Option<String>) -> Option<Vec<usize>> {
    let number = cpu.index();
    let either = |new: &str, old: &str| {
        let file = |name: &str| read(&format!("cpu/cpu{number}/topology/{name}"));
        cpu_list(&file(new).or_else(|| file(old))?)
    };
    match level {
        Level::Core => either("core_cpus_list", "thread_siblings_list"),
        Level::Cache => last_level_cache(number, read),
        Level::Node => {
            let nodes = cpu_list(&read("node/online")?)?.into_iter();
            let mut nodes =
                nodes.filter_map(|node| cpu_list(&read(&format!("node/node{node}/cpulist"))?));
            nodes.find(|cpus| cpus.contains(&number))
        }
        Level::Socket => either("package_cpus_list", "core_siblings_list"),
    }
}

/// Returns the CPUs that share the last-level cache of a CPU. Instruction caches are ignored.
/// `None` if the kernel does not report caches.
fn last_level_cache(cpu: usize, read: &dyn Fn(&str) -> Option<String>) -> Option<Vec<usize>> {
    let file = |index, name| read(&format!("cpu/cpu{cpu}/cache/index{index}/{name}"));
    let level = |index| file(index, "level").and_then(|text| text.trim().parse::<u32>().ok());
    let levels = (0..).map_while(|index| Some((level(index)?, index)));
    let holds_data = |&(_, index): &(u32, usize)| {
        file(index, "type").is_none_or(|kind| kind.trim() != "Instruction")
    };
    let (_, index) = levels.filter(holds_data).max()?;
    cpu_list(&file(index, "shared_cpu_list")?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A simulated host: the texts of its files in `/sys`, by path. The files describe the core,
    /// the socket and the last-level cache of each CPU, and all nodes.
    struct Host(BTreeMap<String, String>);

    impl Host {
        fn new(cpus: &[[&str; 3]], nodes: &[&str]) -> Host {
            let mut files = BTreeMap::new();
            let mut put = |path: String, text: &str| files.insert(path, format!("{text}\n"));
            for (cpu, [core, cache, socket]) in cpus.iter().enumerate() {
                put(format!("cpu/cpu{cpu}/topology/core_cpus_list"), core);
                put(format!("cpu/cpu{cpu}/topology/package_cpus_list"), socket);
                let own = cpu.to_string();
                let caches = [
                    ("1", "Data", own.as_str()),
                    ("1", "Instruction", &own),
                    ("3", "Unified", cache),
                ];
                for (index, (level, kind, shared)) in caches.into_iter().enumerate() {
                    let cache = format!("cpu/cpu{cpu}/cache/index{index}");
                    put(format!("{cache}/level"), level);
                    put(format!("{cache}/type"), kind);
                    put(format!("{cache}/shared_cpu_list"), shared);
                }
            }
            for (node, cpus) in nodes.iter().enumerate() {
                put(format!("node/node{node}/cpulist"), cpus);
            }
            put("node/online".into(), &format!("0-{}", nodes.len() - 1));
            Host(files)
        }

        fn without(mut self, part: &str) -> Host {
            self.0.retain(|path, _| !path.contains(part));
            self
        }

        fn arrange(&self, real: &[usize]) -> KernelTopology {
            let real: Vec<CpuId> = real.iter().map(|&cpu| CpuId::new(cpu)).collect();
            arrange(&real, &|path| self.0.get(path).cloned()).unwrap()
        }
    }

    fn groups(topology: &Topology, level: Level) -> Vec<Vec<usize>> {
        let numbers = |group: CpuSet| group.iter().map(CpuId::index).collect();
        topology.groups(level).map(numbers).collect()
    }

    /// Returns the files of a host with two sockets. Each socket has one node, one cache and two
    /// cores, and each core has two hardware threads.
    fn two_sockets() -> Host {
        let cores = ["0,4", "1,5", "2,6", "3,7"];
        let halves = ["0-1,4-5", "2-3,6-7"];
        let cpu = |cpu: usize| [cores[cpu % 4], halves[cpu % 4 / 2], halves[cpu % 4 / 2]];
        Host::new(&[0, 1, 2, 3, 4, 5, 6, 7].map(cpu), &halves)
    }

    #[test]
    fn topology_finds_core_siblings_with_non_adjacent_cpu_numbers() {
        let seen = two_sockets().arrange(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let cores = [[0, 4], [1, 5], [2, 6], [3, 7]];
        assert_eq!(groups(&seen.topology, Level::Core), cores);
        for level in [Level::Cache, Level::Node, Level::Socket] {
            assert_eq!(groups(&seen.topology, level), [[0, 1, 4, 5], [2, 3, 6, 7]]);
        }
        assert_eq!(seen.unsaid, []);
    }

    #[test]
    fn topology_given_to_the_policy_contains_only_managed_cpus() {
        let seen = two_sockets().arrange(&[6, 1, 2]);
        assert_eq!(groups(&seen.topology, Level::Core), [vec![0, 2], vec![1]]);
        assert_eq!(groups(&seen.topology, Level::Socket), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn topology_level_missing_in_sysfs_equals_next_wider_level() {
        let host = two_sockets().without("cache/").without("node/");
        let seen = host.arrange(&[0, 1, 2, 3]);
        assert_eq!(groups(&seen.topology, Level::Cache), [[0, 1], [2, 3]]);
        assert_eq!(seen.unsaid, [Level::Node, Level::Cache]);
        let nothing = Host(BTreeMap::new()).arrange(&[0, 1, 2]);
        assert_eq!(nothing.topology, Topology::flat(3));
    }

    #[test]
    fn topology_is_also_read_from_sysfs_files_of_older_kernels() {
        let mut old = BTreeMap::new();
        for (path, text) in two_sockets().0 {
            let path = path.replace("core_cpus_list", "thread_siblings_list");
            old.insert(path.replace("package_cpus_list", "core_siblings_list"), text);
        }
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(Host(old).arrange(&all), two_sockets().arrange(&all));
    }

    /// The kernel of a virtual machine reports that each CPU is a separate socket, and that all
    /// CPUs share one node and one cache.
    #[test]
    fn cache_group_reported_across_sockets_is_split_by_socket() {
        let cpus = [["0", "0-1", "0"], ["1", "0-1", "1"]];
        let seen = Host::new(&cpus, &["0-1"]).arrange(&[0, 1]);
        for level in Level::ALL {
            assert_eq!(groups(&seen.topology, level), [[0], [1]]);
        }
    }

    #[test]
    fn host_topology_that_is_inconsistent_is_refused() {
        let cpus = [["0-1", "0-2", "0-2"], ["1-2", "0-2", "0-2"], ["2", "0-2", "0-2"]];
        let host = Host::new(&cpus, &["0-2"]);
        let real = [0, 1, 2].map(CpuId::new);
        let seen = arrange(&real, &|path| host.0.get(path).cloned());
        assert_eq!(seen, Err(TopologyError::Twice(Level::Core, CpuId::new(1))));
    }
}
