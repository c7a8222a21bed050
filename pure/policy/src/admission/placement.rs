//! Placement of a vCPU that is bound to one CPU, for all policies that bind vCPUs.
//!
//! A policy says which CPUs can take the vCPU and which of two CPUs is better. These rules are
//! common to all policies:
//! - Only CPUs that the affinity allows are candidates.
//! - A bound vCPU stays on its CPU if the vCPU's affinity allows the CPU and the CPU has enough
//!   capacity.
//! - Of equally good CPUs the CPU with the lowest number is chosen.

use alloc::vec::Vec;
use core::cmp::Ordering;

use slackline_units::{CpuId, CpuSet};

/// Rule that chooses among the CPUs that can take a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// The best CPU: by default the CPU with the most available capacity.
    Spread,
    /// The first CPU that can take the vCPU.
    Pack,
    /// The best CPU. If no CPU can take the whole vCPU, a policy that splits vCPUs splits the vCPU
    /// over several CPUs.
    Split,
}

/// Request to place a vCPU.
pub(crate) struct Request<F, B> {
    /// Affinity of the vCPU: at least one CPU.
    pub(crate) allowed: CpuSet,
    /// CPU to which the vCPU is bound now. `None` for a newcomer.
    pub(crate) home: Option<CpuId>,
    /// Returns true if a CPU can take the vCPU.
    pub(crate) fits: F,
    /// Compares two CPUs. The better CPU compares as less.
    pub(crate) compare: B,
}

impl<F: Fn(CpuId) -> bool, B: Fn(CpuId, CpuId) -> Ordering> Request<F, B> {
    /// Returns the CPU that takes the vCPU. If no CPU can take the vCPU, the error is the best CPU
    /// that the affinity allows.
    pub(crate) fn place(&self, packing: Packing) -> Result<CpuId, CpuId> {
        let can = |cpu: &CpuId| self.allowed.contains(*cpu) && (self.fits)(*cpu);
        if let Some(home) = self.home.filter(can) {
            return Ok(home);
        }
        let mut fitting = self.allowed.iter().filter(can);
        let chosen = match packing {
            Packing::Spread | Packing::Split => self.best(fitting),
            Packing::Pack => fitting.next(),
        };
        chosen.ok_or_else(|| self.best(self.allowed.iter()).expect("affinity is not empty"))
    }

    fn best(&self, cpus: impl Iterator<Item = CpuId>) -> Option<CpuId> {
        cpus.min_by(|&this, &that| (self.compare)(this, that).then(this.cmp(&that)))
    }
}

/// Number of vCPUs bound to each CPU. The CPU with the fewest takes the next vCPU.
#[derive(Clone, Debug)]
pub(crate) struct Population(Vec<usize>);

impl Population {
    /// Creates counts of zero for `cpus` CPUs.
    pub(crate) fn new(cpus: usize) -> Population {
        Population(alloc::vec![0; cpus])
    }

    /// Binds a newcomer and returns its CPU.
    pub(crate) fn join(&mut self, allowed: CpuSet) -> CpuId {
        let cpu = self.place(allowed, None);
        self.0[cpu.index()] += 1;
        cpu
    }

    /// Applies a new affinity to a vCPU that is bound to `home`. The vCPU stays if the affinity
    /// allows `home` and migrates otherwise. Returns the CPU to which the vCPU is bound then.
    pub(crate) fn stay_or_move(&mut self, home: CpuId, allowed: CpuSet) -> CpuId {
        let cpu = self.place(allowed, Some(home));
        self.count_move(home, cpu);
        cpu
    }

    /// Records that a vCPU migrated.
    pub(crate) fn count_move(&mut self, from: CpuId, to: CpuId) {
        self.0[from.index()] -= 1;
        self.0[to.index()] += 1;
    }

    /// Removes a vCPU that is bound to `home`.
    pub(crate) fn leave(&mut self, home: CpuId) {
        self.0[home.index()] -= 1;
    }

    fn place(&self, allowed: CpuSet, home: Option<CpuId>) -> CpuId {
        let count = |cpu: CpuId| self.0[cpu.index()];
        let compare = |this, that| count(this).cmp(&count(that));
        let request = Request { allowed, home, fits: |_| true, compare };
        request.place(Packing::Spread).expect("a population has no limit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(numbers: &[usize]) -> CpuSet {
        numbers.iter().map(|&number| CpuId::new(number)).collect()
    }

    /// Places a vCPU that needs a capacity of 5. The five CPUs have available capacities of 3, 5,
    /// 9, 5 and 9. Returns the number of the chosen CPU. If no allowed CPU has enough capacity, the
    /// error is the allowed CPU with the most capacity.
    fn place(packing: Packing, home: Option<usize>, allowed: &[usize]) -> Result<usize, usize> {
        const ROOM: [u32; 5] = [3, 5, 9, 5, 9];
        let room = |cpu: CpuId| ROOM[cpu.index()];
        let placed = Request {
            allowed: cpus(allowed),
            home: home.map(CpuId::new),
            fits: |cpu| room(cpu) >= 5,
            compare: |this, that| room(that).cmp(&room(this)),
        }
        .place(packing);
        placed.map(CpuId::index).map_err(CpuId::index)
    }

    #[test]
    fn placement_chooses_lowest_numbered_of_equally_free_cpus() {
        assert_eq!(place(Packing::Spread, None, &[0, 1, 2, 3, 4]), Ok(2));
        assert_eq!(place(Packing::Spread, None, &[0, 3, 4]), Ok(4));
        assert_eq!(place(Packing::Pack, None, &[0, 1, 2, 3, 4]), Ok(1));
    }

    #[test]
    fn vcpu_keeps_its_cpu_if_affinity_and_capacity_allow() {
        assert_eq!(place(Packing::Spread, Some(3), &[0, 1, 2, 3, 4]), Ok(3));
        assert_eq!(place(Packing::Spread, Some(3), &[0, 1]), Ok(1));
        assert_eq!(place(Packing::Pack, Some(0), &[0, 2, 3]), Ok(2));
    }

    #[test]
    fn refused_placement_returns_allowed_cpu_with_most_available_capacity() {
        assert_eq!(place(Packing::Spread, None, &[0]), Err(0));
        assert_eq!(place(Packing::Pack, Some(1), &[0]), Err(0));
    }

    #[test]
    fn vcpu_without_reservation_is_placed_on_cpu_with_fewest_vcpus() {
        let mut population = Population::new(3);
        let all = CpuSet::first_n(3);
        let joined = [all, all, all, cpus(&[1, 2]), all].map(|allowed| population.join(allowed));
        assert_eq!(joined.map(CpuId::index), [0, 1, 2, 1, 0]);
        population.leave(CpuId::new(1));
        population.leave(CpuId::new(1));
        assert_eq!(population.stay_or_move(CpuId::new(0), all), CpuId::new(0));
        assert_eq!(population.stay_or_move(CpuId::new(0), cpus(&[1, 2])), CpuId::new(1));
        population.count_move(CpuId::new(2), CpuId::new(0));
        assert_eq!(population.join(all), CpuId::new(2));
    }
}
