//! Random task sets: utilisations by UUniFast-discard, periods log-uniform.
//!
//! Sources: Bini and Buttazzo, Real-Time Systems 30 (2005), for UUniFast, and Davis and Burns,
//! RTSS 2009, for discarding. The generator is PCG-64, and powers are those of libm, so every
//! computer generates the same sets.

use std::ops::RangeInclusive;

use rand_core::Rng;
use rand_pcg::Pcg64;
use slackline_units::{CpuShare, Span};

use crate::{PeriodicTask, TaskScheduler, TaskSet};

/// Number of tries to draw utilisations of at most one CPU for each task. Drawing fails after that
/// number.
const MOST_TRIES: usize = 1000;

/// Stream of random numbers for task sets.
#[derive(Clone, Debug)]
pub struct SetDraws(Pcg64);

/// Kind of the deadlines of a random task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadlines {
    /// The deadline of each job is the next release of its task.
    Implicit,
    /// Each deadline is drawn between the work and the period of its task, and is at least half of
    /// the period.
    Constrained,
}

/// Description of random task sets.
#[derive(Clone, Debug, PartialEq)]
pub struct SetRecipe {
    /// Number of tasks, uniform in this range.
    pub tasks: RangeInclusive<u64>,
    /// Shortest and longest period in microseconds. Periods are log-uniform, in whole microseconds.
    pub periods_us: (u64, u64),
    /// Sum of the utilisations, uniform between these two numbers.
    pub utilisation: (f64, f64),
    /// Kind of the deadlines.
    pub deadlines: Deadlines,
    /// Scheduler of the guest. Under fixed priorities, the task with the shortest deadline has the
    /// highest priority.
    pub scheduler: TaskScheduler,
}

impl Default for SetRecipe {
    /// Returns the recipe of the project's own tests. It has 2 to 8 tasks, periods of 1 ms to 1 s,
    /// and a utilisation of 0.1 to 0.9.
    fn default() -> SetRecipe {
        SetRecipe {
            tasks: 2..=8,
            periods_us: (1_000, 1_000_000),
            utilisation: (0.1, 0.9),
            deadlines: Deadlines::Implicit,
            scheduler: TaskScheduler::Edf,
        }
    }
}

impl SetRecipe {
    /// Returns the recipe with `sum` as the sum of the utilisations.
    #[must_use]
    pub fn with_utilisation(self, sum: CpuShare) -> SetRecipe {
        let sum = f64::from(sum.ppm()) / 1e6;
        SetRecipe { utilisation: (sum, sum), ..self }
    }
}

impl SetDraws {
    /// Creates the stream of random numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> SetDraws {
        // An odd multiplier spreads seeds that differ only in a few low bits.
        let spread = u128::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        SetDraws(Pcg64::new(spread, 1))
    }

    /// Draws a number that is uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        const STEPS: f64 = (1u64 << 53) as f64;
        (self.0.next_u64() >> 11) as f64 / STEPS
    }

    /// Draws a whole number that is uniform in a range.
    pub fn whole(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let span = range.end() - range.start() + 1;
        range.start() + whole(self.unit() * span as f64).min(span - 1)
    }
}

/// Draws the utilisations of `tasks` tasks. Their sum is `total`, and all vectors with that sum are
/// equally likely. Vectors in which a task uses more than one CPU are discarded. `None` if 1,000
/// vectors in a row were discarded, or if there are no tasks.
pub fn uunifast_discard(draws: &mut SetDraws, tasks: usize, total: f64) -> Option<Vec<f64>> {
    let vector = |draws: &mut SetDraws| {
        let mut sum = total;
        let mut parts = Vec::with_capacity(tasks);
        for left in (1..tasks).rev() {
            let next = sum * libm::pow(draws.unit(), 1.0 / left as f64);
            parts.push(sum - next);
            sum = next;
        }
        parts.push(sum);
        parts
    };
    if tasks == 0 {
        return None;
    }
    (0..MOST_TRIES).map(|_| vector(draws)).find(|parts| parts.iter().all(|&part| part <= 1.0))
}

/// Draws a task set. The work of each job is a whole number of microseconds, at least one. `None`
/// if [`uunifast_discard`] finds no utilisations.
pub fn task_set(draws: &mut SetDraws, recipe: &SetRecipe) -> Option<TaskSet> {
    let tasks = usize::try_from(draws.whole(&recipe.tasks)).ok()?;
    let (least, most) = recipe.utilisation;
    let total = least + draws.unit() * (most - least);
    let parts = uunifast_discard(draws, tasks, total)?;
    let mut set = Vec::with_capacity(tasks);
    for part in parts {
        let (shortest, longest) = recipe.periods_us;
        let ratio = longest as f64 / shortest as f64;
        let period = whole(shortest as f64 * libm::pow(ratio, draws.unit())).max(shortest);
        let work = whole(part * period as f64).clamp(1, period);
        let deadline = match recipe.deadlines {
            Deadlines::Implicit => period,
            Deadlines::Constrained => draws.whole(&(work.max(period / 2)..=period)),
        };
        let us = Span::from_us;
        set.push(PeriodicTask::new(us(work), us(period), us(deadline)).ok()?);
    }
    if recipe.scheduler == TaskScheduler::Fixed {
        set.sort_by_key(|task| (task.deadline(), task.period()));
    }
    TaskSet::new(set, recipe.scheduler).ok()
}

/// Converts a number that is not negative to a whole number, rounded down.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // In the callers' ranges.
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uunifast_draws_utilisations_with_the_given_sum_and_equal_means() {
        let mut draws = SetDraws::new(7);
        let mut means = [0.0; 4];
        for _ in 0..2000 {
            let parts = uunifast_discard(&mut draws, 4, 0.8).unwrap();
            assert!((parts.iter().sum::<f64>() - 0.8).abs() < 1e-9);
            means.iter_mut().zip(&parts).for_each(|(mean, part)| *mean += part / 2000.0);
        }
        // The standard deviation of one utilisation is 0.155, so that of these means is 0.0035.
        assert!(means.iter().all(|mean| (mean - 0.2).abs() < 0.02), "{means:?}");
    }

    #[test]
    fn uunifast_discards_vectors_in_which_a_task_exceeds_one_cpu() {
        let mut draws = SetDraws::new(1);
        for _ in 0..200 {
            let parts = uunifast_discard(&mut draws, 3, 1.8).unwrap();
            assert!(parts.iter().all(|&part| (0.0..=1.0).contains(&part)), "{parts:?}");
        }
        assert_eq!(uunifast_discard(&mut draws, 3, 3.5), None);
        assert_eq!(uunifast_discard(&mut draws, 0, 0.5), None);
    }

    #[test]
    fn random_task_sets_obey_recipe_and_are_repeatable_by_seed() {
        let recipe = SetRecipe { deadlines: Deadlines::Constrained, ..SetRecipe::default() };
        let sets = |seed| {
            let mut draws = SetDraws::new(seed);
            (0..50).map(|_| task_set(&mut draws, &recipe).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(sets(3), sets(3));
        assert_ne!(sets(3), sets(4));
        for set in sets(5) {
            assert!((2..=8).contains(&set.tasks().len()));
            assert!(set.utilisation_ppm() <= 901_000, "{}", set.utilisation_ppm());
            for task in set.tasks() {
                assert!((1000..=1_000_000).contains(&(task.period() / Span::from_us(1))));
                assert!(task.deadline() * 2 + Span::from_us(1) >= task.period());
            }
        }
    }
}
