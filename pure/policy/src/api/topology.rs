//! Topology of a host: hardware threads of a core, cores of a last-level cache, caches of a NUMA
//! node, nodes of a socket.
//!
//! CPU numbers do not tell which CPUs share a core. On most hosts n and n + N/2 are the threads of
//! one core, on others n and n + 1 are. So each group is a set of CPUs. The groups of a level
//! partition all CPUs, and each group lies within one group of the next level.

use alloc::vec::Vec;
use core::fmt;

use slackline_units::{CpuId, CpuSet, Span};

/// Level of the topology, from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Execution units: the CPUs are hardware threads of one core.
    Core,
    /// Last-level cache that the CPUs share.
    Cache,
    /// NUMA node: the CPUs share local memory.
    Node,
    /// Package: the CPUs are in one socket.
    Socket,
}

impl Level {
    /// All levels, the narrowest first.
    pub const ALL: [Level; 4] = [Level::Core, Level::Cache, Level::Node, Level::Socket];

    /// Returns the word for a group of this level, as in "a core".
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Core => "core",
            Level::Cache => "cache",
            Level::Node => "node",
            Level::Socket => "socket",
        }
    }
}

/// Groups of CPUs at each level of the topology, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Sets of CPUs that are threads of one core.
    pub cores: Vec<CpuSet>,
    /// Sets of CPUs that share a last-level cache.
    pub caches: Vec<CpuSet>,
    /// Sets of CPUs that belong to one NUMA node.
    pub nodes: Vec<CpuSet>,
    /// Sets of CPUs that belong to one socket.
    pub sockets: Vec<CpuSet>,
}

impl Groups {
    /// Returns the groups of one level.
    #[must_use]
    pub fn of(&self, level: Level) -> &[CpuSet] {
        match level {
            Level::Core => &self.cores,
            Level::Cache => &self.caches,
            Level::Node => &self.nodes,
            Level::Socket => &self.sockets,
        }
    }
}

/// Properties of the host for which a policy is built. A policy knows no other property of the
/// host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Groups that contain a CPU, indexed by CPU and then by level.
    groups: Vec<[CpuSet; Level::ALL.len()]>,
    /// CPU time of one dispatch. Zero if the host does not state it.
    dispatch: Span,
}

/// Reason why groups of CPUs do not form a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// A group of this level has no CPU.
    Empty(Level),
    /// A group of this level contains a CPU that the host does not have.
    Beyond(Level, CpuId),
    /// A CPU is in two groups of this level.
    Twice(Level, CpuId),
    /// A CPU is in no group of this level.
    Missing(Level, CpuId),
    /// Two CPUs share a group of one level, but no group of a wider level.
    Torn {
        /// Level of the group that the two CPUs share.
        level: Level,
        /// The two CPUs that share the group.
        cpus: (CpuId, CpuId),
        /// Wider level, at which the two CPUs are in different groups.
        wider: Level,
    },
}

impl fmt::Display for TopologyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopologyError::Empty(level) => write!(out, "a {} has no CPU", level.name()),
            TopologyError::Beyond(level, cpu) => {
                write!(out, "a {} contains {cpu}, which this host does not have", level.name())
            }
            TopologyError::Twice(level, cpu) => write!(out, "{cpu} is in two {}s", level.name()),
            TopologyError::Missing(level, cpu) => write!(out, "{cpu} is in no {}", level.name()),
            TopologyError::Torn { level, cpus: (one, other), wider } => {
                let (level, wider) = (level.name(), wider.name());
                write!(out, "{one} and {other} share a {level} but not a {wider}")
            }
        }
    }
}

impl core::error::Error for TopologyError {}

impl Topology {
    /// Returns a topology of `cpus` CPUs, each a core of its own, all in one socket.
    ///
    /// # Panics
    /// If `cpus` exceeds [`CpuId::LIMIT`].
    #[must_use]
    pub fn flat(cpus: usize) -> Topology {
        let all = CpuSet::first_n(cpus);
        let groups = |cpu| [CpuSet::one(cpu), all, all, all];
        let groups = (0..cpus).map(CpuId::new).map(groups).collect();
        Topology { groups, dispatch: Span::ZERO }
    }

    /// Returns the topology of the CPUs with numbers below `cpus`, with these groups.
    ///
    /// # Errors
    /// If a level is not a partition of the CPUs, or a group does not lie within one group of each
    /// wider level.
    ///
    /// # Panics
    /// If `cpus` exceeds [`CpuId::LIMIT`].
    pub fn new(cpus: usize, groups: &Groups) -> Result<Topology, TopologyError> {
        let groups_of = alloc::vec![Default::default(); cpus];
        let mut topology = Topology { groups: groups_of, dispatch: Span::ZERO };
        // Users may omit levels. An omitted level is filled in from cores or from a wider level.
        // Checking cores and sockets first makes the error name a level that the user wrote.
        for level in [Level::Core, Level::Socket, Level::Node, Level::Cache] {
            topology.set(level, groups.of(level))?;
        }
        for level in Level::ALL {
            // The widest first: CPUs that share no socket share no cache either.
            let wider = Level::ALL.into_iter().rev().take_while(|wider| *wider > level);
            for wider in wider {
                topology.check_within(level, wider)?;
            }
        }
        Ok(topology)
    }

    /// Sets the CPU time of one dispatch. No vCPU is charged for that time, so admission control
    /// adds the time of two dispatches per period to each reservation.
    #[must_use]
    pub fn with_dispatch(self, dispatch: Span) -> Topology {
        Topology { dispatch, ..self }
    }

    /// Returns the CPU time of one dispatch. Zero if the host does not state it.
    #[must_use]
    pub const fn dispatch(&self) -> Span {
        self.dispatch
    }

    /// Returns the number of CPUs. They are numbered from zero.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.groups.len()
    }

    /// Returns the group of this level that contains `cpu`.
    ///
    /// # Panics
    /// If the host has no such CPU.
    #[must_use]
    pub fn group_of(&self, level: Level, cpu: CpuId) -> CpuSet {
        self.groups[cpu.index()][level as usize]
    }

    /// Returns the CPUs that are threads of the same core as `cpu`, including `cpu`.
    #[must_use]
    pub fn core_of(&self, cpu: CpuId) -> CpuSet {
        self.group_of(Level::Core, cpu)
    }

    /// Returns the CPUs of the same socket as `cpu`, including `cpu`.
    #[must_use]
    pub fn socket_of(&self, cpu: CpuId) -> CpuSet {
        self.group_of(Level::Socket, cpu)
    }

    /// Returns all groups of a level, ordered by the first CPU of each.
    pub fn groups(&self, level: Level) -> impl Iterator<Item = CpuSet> {
        let by_cpu = self.groups.iter().map(move |groups| groups[level as usize]).enumerate();
        let is_first = |&(cpu, group): &(usize, CpuSet)| group.first() == Some(CpuId::new(cpu));
        by_cpu.filter(is_first).map(|(_, group)| group)
    }

    /// Returns all groups by level, the narrowest first. [`Topology::of_levels`] is the inverse.
    #[must_use]
    pub fn levels(&self) -> Vec<Vec<CpuSet>> {
        Level::ALL.map(|level| self.groups(level).collect()).into()
    }

    /// Returns the topology of the CPUs with numbers below `cpus`, with these groups by level, the
    /// narrowest level first. Without levels, each CPU is a core of its own, all in one socket.
    ///
    /// # Errors
    /// If [`Topology::new`] refuses the groups. A missing level counts as a level without groups.
    pub fn of_levels(cpus: usize, levels: &[Vec<CpuSet>]) -> Result<Topology, TopologyError> {
        if levels.is_empty() {
            return Ok(Topology::flat(cpus));
        }
        let level = |level: Level| levels.get(level as usize).cloned().unwrap_or_default();
        let [cores, caches, nodes, sockets] = Level::ALL.map(level);
        Topology::new(cpus, &Groups { cores, caches, nodes, sockets })
    }

    /// Sets the groups of a level. Fails if the groups are not a partition of the CPUs.
    fn set(&mut self, level: Level, groups: &[CpuSet]) -> Result<(), TopologyError> {
        for &group in groups {
            if group.is_empty() {
                return Err(TopologyError::Empty(level));
            }
            for cpu in group.iter() {
                let beyond = TopologyError::Beyond(level, cpu);
                let known = self.groups.get_mut(cpu.index()).ok_or(beyond)?;
                let place = &mut known[level as usize];
                if !place.is_empty() {
                    return Err(TopologyError::Twice(level, cpu));
                }
                *place = group;
            }
        }
        match self.groups.iter().position(|known| known[level as usize].is_empty()) {
            Some(cpu) => Err(TopologyError::Missing(level, CpuId::new(cpu))),
            None => Ok(()),
        }
    }

    fn check_within(&self, level: Level, wider: Level) -> Result<(), TopologyError> {
        for group in self.groups(level) {
            let first = group.first().expect("no group is empty");
            let beyond = group.without(&self.group_of(wider, first));
            if let Some(other) = beyond.first() {
                return Err(TopologyError::Torn { level, cpus: (first, other), wider });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    fn sets(groups: &[&[usize]]) -> Vec<CpuSet> {
        groups.iter().map(|group| group.iter().map(|&cpu| CpuId::new(cpu)).collect()).collect()
    }

    /// Returns two sockets of two cores of two threads. CPUs n and n + 4 are the threads of a core.
    fn spread() -> Groups {
        let halves = sets(&[&[0, 1, 4, 5], &[2, 3, 6, 7]]);
        Groups {
            cores: sets(&[&[0, 4], &[1, 5], &[2, 6], &[3, 7]]),
            caches: halves.clone(),
            nodes: halves.clone(),
            sockets: halves,
        }
    }

    #[test]
    fn topology_that_is_rebuilt_from_its_levels_is_unchanged() {
        let topology = Topology::new(8, &spread()).unwrap();
        assert_eq!(Topology::of_levels(8, &topology.levels()), Ok(topology.clone()));
        assert_eq!(Topology::of_levels(8, &[]), Ok(Topology::flat(8)));
        let narrow = &topology.levels()[..3];
        let missing = TopologyError::Missing(Level::Socket, CpuId::new(0));
        assert_eq!(Topology::of_levels(8, narrow), Err(missing));
    }

    #[test]
    fn topology_accepts_groups_of_nonadjacent_cpus_in_any_order() {
        let topology = Topology::new(8, &spread()).unwrap();
        let [core, socket] = [sets(&[&[1, 5]]), sets(&[&[0, 1, 4, 5]])];
        assert_eq!(topology.cpus(), 8);
        assert_eq!(topology.core_of(CpuId::new(5)), core[0]);
        assert_eq!(topology.socket_of(CpuId::new(5)), socket[0]);
        assert_eq!(topology.group_of(Level::Cache, CpuId::new(4)), socket[0]);
        let cores: Vec<CpuSet> = topology.groups(Level::Core).collect();
        assert_eq!(cores, spread().cores);
        let reversed = Groups { cores: spread().cores.into_iter().rev().collect(), ..spread() };
        assert_eq!(Topology::new(8, &reversed), Ok(topology), "the order does not matter");
    }

    #[test]
    fn flat_topology_has_one_socket_with_one_core_per_cpu() {
        let flat = Topology::flat(3);
        let all = sets(&[&[0, 1, 2]]);
        let groups = Groups {
            cores: sets(&[&[0], &[1], &[2]]),
            caches: all.clone(),
            nodes: all.clone(),
            sockets: all,
        };
        assert_eq!(Topology::new(3, &groups), Ok(flat));
    }

    #[test]
    fn topology_with_incomplete_or_overlapping_cpu_groups_is_refused() {
        let with = |cores: &[&[usize]]| Groups { cores: sets(cores), ..spread() };
        let cases: [(Groups, &str); 5] = [
            (with(&[&[0, 4], &[1, 5], &[2, 6], &[3]]), "cpu7 is in no core"),
            (with(&[&[0, 4], &[1, 5], &[2, 6], &[3, 7], &[4]]), "cpu4 is in two cores"),
            (
                with(&[&[0, 4], &[1, 5], &[2, 6], &[3, 7, 8]]),
                "a core contains cpu8, which this host does not have",
            ),
            (with(&[&[0, 4], &[], &[2, 6], &[3, 7]]), "a core has no CPU"),
            (
                with(&[&[0, 6], &[1, 5], &[2, 4], &[3, 7]]),
                "cpu0 and cpu6 share a core but not a socket",
            ),
        ];
        for (groups, says) in cases {
            let error = Topology::new(8, &groups).unwrap_err();
            assert_eq!(error.to_string(), says);
        }
        let crossed = Groups { sockets: sets(&[&[0, 2, 4, 6], &[1, 3, 5, 7]]), ..spread() };
        let error = Topology::new(8, &crossed).unwrap_err();
        assert_eq!(error.to_string(), "cpu0 and cpu1 share a cache but not a socket");
    }

    proptest! {
        /// Random topologies: each CPU has a label per level. CPUs are in the same group of a level
        /// if their labels of that level and of all wider levels are equal.
        #[test]
        fn topology_of_random_nested_cpu_groups_is_accepted_unchanged(
            labels in prop::collection::vec([0..3_u8, 0..3_u8, 0..3_u8, 0..3_u8], 1..40),
        ) {
            let labels_of = |cpu: usize, level: Level| &labels[cpu][level as usize..];
            let same = |a, b, level| labels_of(a, level) == labels_of(b, level);
            let groups = |level: Level| {
                let mut sets: Vec<CpuSet> = Vec::new();
                for cpu in 0..labels.len() {
                    let group = (0..labels.len()).filter(|&other| same(cpu, other, level));
                    let group: CpuSet = group.map(CpuId::new).collect();
                    if !sets.contains(&group) {
                        sets.push(group);
                    }
                }
                sets
            };
            let groups = Groups {
                cores: groups(Level::Core),
                caches: groups(Level::Cache),
                nodes: groups(Level::Node),
                sockets: groups(Level::Socket),
            };
            let topology = Topology::new(labels.len(), &groups).unwrap();
            for level in Level::ALL {
                for cpu in 0..labels.len() {
                    let group = topology.group_of(level, CpuId::new(cpu));
                    for other in 0..labels.len() {
                        prop_assert_eq!(group.contains(CpuId::new(other)), same(cpu, other, level));
                    }
                }
                prop_assert_eq!(topology.groups(level).count(), groups.of(level).len());
            }
        }
    }
}
