//! Where a vCPU goes that is bound to one CPU: for all policies that bind them.
//!
//! A policy says which CPUs can take the vCPU and which of two would be better for it. The rest is
//! the same everywhere: only those are asked on which it may run; one that is bound already stays
//! where it is, if it may and can; and of CPUs that are as good the one with the lowest number is
//! taken.

use alloc::vec::Vec;
use core::cmp::Ordering;

use slackline_units::{CpuId, CpuSet};

/// Which of the CPUs that can take a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// The best one: where nothing else is said, that with the most room left.
    Spread,
    /// The first.
    Pack,
    /// The best one; and if none can, several that can together, where a policy splits.
    Split,
}

/// A question where a vCPU should go.
pub(crate) struct Request<F, B> {
    /// Where it may run: at least one CPU.
    pub(crate) allowed: CpuSet,
    /// Where it is bound already.
    pub(crate) home: Option<CpuId>,
    /// Whether a CPU can take it.
    pub(crate) fits: F,
    /// The better one of two comes first.
    pub(crate) compare: B,
}

impl<F: Fn(CpuId) -> bool, B: Fn(CpuId, CpuId) -> Ordering> Request<F, B> {
    /// The CPU that takes the vCPU. Where none can, the error is the best one that may not.
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
        chosen.ok_or_else(|| self.best(self.allowed.iter()).expect("a vCPU may run somewhere"))
    }

    fn best(&self, cpus: impl Iterator<Item = CpuId>) -> Option<CpuId> {
        cpus.min_by(|&this, &that| (self.compare)(this, that).then(this.cmp(&that)))
    }
}

/// How many vCPUs are bound to each CPU, where the CPU with the fewest takes the next one.
#[derive(Clone, Debug)]
pub(crate) struct Population(Vec<usize>);

impl Population {
    /// Nobody yet on so many CPUs.
    pub(crate) fn new(cpus: usize) -> Population {
        Population(alloc::vec![0; cpus])
    }

    /// Binds one more.
    pub(crate) fn join(&mut self, allowed: CpuSet) -> CpuId {
        let cpu = self.place(allowed, None);
        self.0[cpu.index()] += 1;
        cpu
    }

    /// One that is bound may run on these CPUs from now on: it stays, or moves.
    pub(crate) fn stay_or_move(&mut self, home: CpuId, allowed: CpuSet) -> CpuId {
        let cpu = self.place(allowed, Some(home));
        self.count_move(home, cpu);
        cpu
    }

    /// One is bound to another CPU now.
    pub(crate) fn count_move(&mut self, from: CpuId, to: CpuId) {
        self.0[from.index()] -= 1;
        self.0[to.index()] += 1;
    }

    /// One is gone.
    pub(crate) fn leave(&mut self, home: CpuId) {
        self.0[home.index()] -= 1;
    }

    fn place(&self, allowed: CpuSet, home: Option<CpuId>) -> CpuId {
        let count = |cpu: CpuId| self.0[cpu.index()];
        let compare = |this, that| count(this).cmp(&count(that));
        let request = Request { allowed, home, fits: |_| true, compare };
        request.place(Packing::Spread).expect("every CPU takes any number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(numbers: &[usize]) -> CpuSet {
        numbers.iter().map(|&number| CpuId::new(number)).collect()
    }

    /// CPUs with so much room each, asked for this much.
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
    fn among_equals_the_lowest_number_is_taken() {
        assert_eq!(place(Packing::Spread, None, &[0, 1, 2, 3, 4]), Ok(2));
        assert_eq!(place(Packing::Spread, None, &[0, 3, 4]), Ok(4));
        assert_eq!(place(Packing::Pack, None, &[0, 1, 2, 3, 4]), Ok(1));
    }

    #[test]
    fn who_is_bound_stays_where_it_may_and_can() {
        assert_eq!(place(Packing::Spread, Some(3), &[0, 1, 2, 3, 4]), Ok(3));
        assert_eq!(place(Packing::Spread, Some(3), &[0, 1]), Ok(1));
        assert_eq!(place(Packing::Pack, Some(0), &[0, 2, 3]), Ok(2));
    }

    #[test]
    fn where_none_can_the_best_that_may_is_named() {
        assert_eq!(place(Packing::Spread, None, &[0]), Err(0));
        assert_eq!(place(Packing::Pack, Some(1), &[0]), Err(0));
    }

    #[test]
    fn the_cpu_with_the_fewest_takes_the_next_one() {
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
