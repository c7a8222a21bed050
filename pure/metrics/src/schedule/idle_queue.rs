//! Time in which a vCPU waits for one CPU while another CPU is idle.

use slackline_units::{CpuId, Time};

/// Busy intervals and waits of a run, by CPU.
#[derive(Debug)]
pub(crate) struct IdleQueue {
    cpus: usize,
    /// Starts and ends of all intervals. Each entry has the time, the index of the CPU, and the
    /// change of the number of threads that run on the CPU or of vCPUs that wait for it.
    events: Vec<(Time, usize, Step)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Busy(i32),
    Waits(i32),
}

impl IdleQueue {
    pub(crate) fn new(cpus: usize) -> IdleQueue {
        IdleQueue { cpus, events: Vec::new() }
    }

    /// Records that a thread ran on a CPU from `from` to `to`.
    pub(crate) fn busy(&mut self, cpu: CpuId, from: Time, to: Time) {
        self.add(cpu, (from, to), Step::Busy);
    }

    /// Records that a vCPU waited from `from` to `to`, and then ran on the CPU `cpu`.
    pub(crate) fn waits(&mut self, cpu: CpuId, from: Time, to: Time) {
        self.add(cpu, (from, to), Step::Waits);
    }

    fn add(&mut self, cpu: CpuId, (from, to): (Time, Time), step: fn(i32) -> Step) {
        if from < to && cpu.index() < self.cpus {
            self.events.push((from, cpu.index(), step(1)));
            self.events.push((to, cpu.index(), step(-1)));
        }
    }

    /// Returns the intervals within a window in which a vCPU waited for one CPU while another CPU
    /// was idle. A wait for the idle CPU itself does not count, because that CPU is about to run
    /// the vCPU.
    pub(crate) fn intervals(mut self, (begin, end): (Time, Time)) -> Vec<(Time, Time)> {
        self.events.sort_unstable();
        let mut busy = vec![0_i32; self.cpus];
        let mut waits = vec![0_i32; self.cpus];
        let (mut idle, mut waiting) = (self.cpus, 0);
        let mut intervals: Vec<(Time, Time)> = Vec::new();
        let mut since = begin;
        for (at, cpu, step) in self.events {
            let at = at.max(begin).min(end);
            let is_queue = match idle {
                0 => false,
                1 => busy.iter().zip(&waits).any(|(&busy, &waits)| busy > 0 && waits > 0),
                _ => waiting > 0,
            };
            if is_queue && since < at {
                match intervals.last_mut() {
                    Some(last) if last.1 == since => last.1 = at,
                    _ => intervals.push((since, at)),
                }
            }
            since = at;
            match step {
                Step::Busy(change) => {
                    let was_idle = busy[cpu] == 0;
                    busy[cpu] += change;
                    match (was_idle, busy[cpu] == 0) {
                        (true, false) => idle -= 1,
                        (false, true) => idle += 1,
                        _ => {}
                    }
                }
                Step::Waits(change) => {
                    waits[cpu] += change;
                    waiting += change;
                }
            }
        }
        intervals
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::Span;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    #[test]
    fn wait_counts_as_imbalance_only_while_another_cpu_is_idle() {
        let (one, other) = (CpuId::new(0), CpuId::new(1));
        let mut queue = IdleQueue::new(2);
        queue.busy(one, at(0), at(10));
        queue.busy(other, at(0), at(4));
        queue.waits(one, at(2), at(10));
        assert_eq!(queue.intervals((at(0), at(20))), [(at(4), at(10))]);
        let mut queue = IdleQueue::new(2);
        queue.busy(one, at(0), at(10));
        queue.waits(other, at(2), at(3));
        assert_eq!(queue.intervals((at(0), at(20))), [], "the idle CPU runs it next");
    }
}
