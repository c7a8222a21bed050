//! Which CPUs can help each other, directly or through others. [Diestelhorst §4.2.3]

use alloc::vec::Vec;

use slackline_units::CpuSet;

use super::Load;

/// The places of CPUs in `loads` that belong together, in order; groups by their first. Two CPUs do
/// if there is one that those on both may run on: a CPU may run on itself.
pub(crate) fn groups(loads: &[Load]) -> Vec<Vec<usize>> {
    let all: CpuSet = loads.iter().map(|load| load.cpu).collect();
    let joins_all = |load: &Load| all.without(&load.reach).is_empty();
    if loads.iter().any(joins_all) {
        return alloc::vec![(0..loads.len()).collect()];
    }
    let mut union = Union::new(loads.len());
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

/// Disjoint sets of places.
struct Union(Vec<usize>);

impl Union {
    fn new(places: usize) -> Union {
        Union((0..places).collect())
    }

    /// The place that stands for a set, halving the way to it.
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

    /// Where those on each CPU may run.
    fn grouped(reach: &[&[usize]]) -> Vec<Vec<usize>> {
        let load = |(cpu, reach): (usize, &&[usize])| {
            let mut load = Load::empty(CpuId::new(cpu), SAMPLE);
            load.reach.add(&reach.iter().map(|&cpu| CpuId::new(cpu)).collect());
            load
        };
        let loads: Vec<Load> = reach.iter().enumerate().map(load).collect();
        groups(&loads)
    }

    /// Figures 4.1 to 4.3: all together, two islands, and two islands with a bridge.
    #[test]
    fn cpus_whose_maps_meet_are_a_group() {
        assert_eq!(grouped(&[&[0, 1, 2, 3], &[], &[2], &[3]]), [vec![0, 1, 2, 3]]);
        let islands: [&[usize]; 4] = [&[0, 1], &[0, 1], &[2, 3], &[2, 3]];
        assert_eq!(grouped(&islands), [vec![0, 1], vec![2, 3]]);
        assert_eq!(grouped(&[&[0, 1], &[0, 1, 3], &[2, 3], &[2, 3]]), [vec![0, 1, 2, 3]]);
    }

    /// Hole 4: a CPU that has nobody is still one that others may go to.
    #[test]
    fn an_empty_cpu_is_in_the_group_of_those_who_may_go_there() {
        assert_eq!(grouped(&[&[0, 2], &[], &[], &[1, 3]]), [vec![0, 2], vec![1, 3]]);
    }

    /// By paths, on random hosts.
    #[test]
    fn groups_are_what_paths_connect() {
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
