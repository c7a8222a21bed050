//! Groups of CPUs between which vCPUs can migrate, directly or by way of other CPUs of the group.
//! [Diestelhorst §4.2.3]

use alloc::vec::Vec;

use slackline_units::CpuSet;

use super::BalancerCpu;

/// Returns groups of CPUs as indices into `loads`. Indices within a group ascend, and groups are
/// ordered by their first index. The reach of a CPU is the CPU itself and the CPUs to which its
/// vCPUs may migrate. Two CPUs are in one group if their reaches have a CPU in common, or if a
/// chain of such pairs connects them.
pub(crate) fn groups(loads: &[BalancerCpu]) -> Vec<Vec<usize>> {
    let all: CpuSet = loads.iter().map(|load| load.cpu).collect();
    let joins_all = |load: &BalancerCpu| all.without(&load.reach).is_empty();
    if loads.iter().any(joins_all) {
        return alloc::vec![(0..loads.len()).collect()];
    }
    let mut union = DisjointSets::new(loads.len());
    let mut places = [usize::MAX; slackline_units::CpuId::LIMIT];
    for (place, load) in loads.iter().enumerate() {
        places[load.cpu.index()] = place;
    }
    for (place, load) in loads.iter().enumerate() {
        for cpu in load.reach.and(&all).iter() {
            union.join(place, places[cpu.index()]);
        }
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut of_root = alloc::vec![usize::MAX; loads.len()];
    for place in 0..loads.len() {
        let root = union.root(place);
        if of_root[root] == usize::MAX {
            of_root[root] = groups.len();
            groups.push(Vec::new());
        }
        groups[of_root[root]].push(place);
    }
    groups
}

/// Disjoint sets of indices (union-find).
struct DisjointSets(Vec<usize>);

impl DisjointSets {
    fn new(places: usize) -> DisjointSets {
        DisjointSets((0..places).collect())
    }

    /// Returns the representative of the set that contains `place`. Halves the path to the
    /// representative, for later calls.
    fn root(&mut self, mut place: usize) -> usize {
        while self.0[place] != place {
            self.0[place] = self.0[self.0[place]];
            place = self.0[place];
        }
        place
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        let (low, high) = (one.min(other), one.max(other));
        self.0[high] = low;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use slackline_units::{CpuId, CpuSet};

    use super::*;
    use crate::balance::SAMPLE;

    /// Returns the groups, given the CPUs that the vCPUs of each CPU may run on.
    fn grouped(reach: &[&[usize]]) -> Vec<Vec<usize>> {
        let load = |(cpu, reach): (usize, &&[usize])| {
            let mut load = BalancerCpu::empty(CpuId::new(cpu), SAMPLE);
            load.reach.add(&reach.iter().map(|&cpu| CpuId::new(cpu)).collect());
            load
        };
        let loads: Vec<BalancerCpu> = reach.iter().enumerate().map(load).collect();
        groups(&loads)
    }

    /// Figures 4.1 to 4.3 of the thesis: all CPUs connected, two separate groups, and two groups
    /// that count as one because a vCPU may run in both.
    #[test]
    fn balancer_puts_cpus_connected_by_vcpu_affinities_into_one_group() {
        assert_eq!(grouped(&[&[0, 1, 2, 3], &[], &[2], &[3]]), [vec![0, 1, 2, 3]]);
        let islands: [&[usize]; 4] = [&[0, 1], &[0, 1], &[2, 3], &[2, 3]];
        assert_eq!(grouped(&islands), [vec![0, 1], vec![2, 3]]);
        assert_eq!(grouped(&[&[0, 1], &[0, 1, 3], &[2, 3], &[2, 3]]), [vec![0, 1, 2, 3]]);
    }

    /// Hole 4 of [balancer] (see the head of `balance`): vCPUs may migrate to a CPU without vCPUs.
    #[test]
    fn empty_cpu_joins_group_of_vcpus_allowed_to_migrate_there() {
        assert_eq!(grouped(&[&[0, 2], &[], &[], &[1, 3]]), [vec![0, 2], vec![1, 3]]);
    }

    /// Compares the groups with transitive closure on random hosts.
    #[test]
    fn cpu_groups_of_balancer_are_connected_components_of_vcpu_affinities() {
        use proptest::prelude::*;
        let reach = prop::collection::vec(prop::collection::vec(0..24_usize, 0..3), 24);
        proptest!(|(reach in reach)| {
            let mut joined: Vec<CpuSet> = (0..24).map(|cpu| CpuSet::one(CpuId::new(cpu))).collect();
            for _ in 0..24 {
                for (cpu, reach) in reach.iter().enumerate() {
                    for &other in reach {
                        let both: CpuSet = joined[cpu].iter().chain(joined[other].iter()).collect();
                        for member in both.iter() {
                            joined[member.index()] = both;
                        }
                    }
                }
            }
            let reach: Vec<&[usize]> = reach.iter().map(Vec::as_slice).collect();
            for group in grouped(&reach) {
                let group: CpuSet = group.into_iter().map(CpuId::new).collect();
                for cpu in group.iter() {
                    prop_assert_eq!(joined[cpu.index()], group);
                }
            }
        });
    }
}
