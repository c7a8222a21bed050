//! Order of the CPUs by their next events.

use slackline_units::{CpuId, Time};

use crate::timer::Timer;

/// CPUs ordered by the time of their next event, as a tournament tree. Setting the time of a CPU
/// costs O(log CPUs), or nothing if the host has a single CPU.
pub(crate) struct Tournament {
    /// Winners of all matches of the tournament. The final is at index 1. The CPUs themselves start
    /// at index `leaves`.
    tree: Vec<((Time, Timer), CpuId)>,
    leaves: usize,
}

impl Tournament {
    pub(crate) fn new(cpus: usize) -> Tournament {
        let leaves = cpus.next_power_of_two();
        let cpu = |place: usize| CpuId::new((place % leaves).min(cpus - 1));
        let tree = (0..2 * leaves).map(|place| ((Time::NEVER, Timer::Limit), cpu(place))).collect();
        Tournament { tree, leaves }
    }

    #[inline]
    pub(crate) fn first(&self) -> CpuId {
        self.tree[1].1
    }

    /// Returns the time of the earliest event of all CPUs except this CPU. Compares only the
    /// entries beside this CPU's path to the root.
    pub(crate) fn first_but(&self, cpu: CpuId) -> Time {
        let up = |&place: &usize| Some(place / 2);
        let path = std::iter::successors(Some(self.leaves + cpu.index()), up);
        let rivals = path.take_while(|&place| place > 1).map(|place| self.tree[place ^ 1].0.0);
        rivals.min().unwrap_or(Time::NEVER)
    }

    pub(crate) fn set(&mut self, cpu: CpuId, first: (Time, Timer)) {
        let mut place = self.leaves + cpu.index();
        self.tree[place] = (first, cpu);
        while place > 1 {
            place /= 2;
            self.tree[place] = self.tree[2 * place].min(self.tree[2 * place + 1]);
        }
    }
}
