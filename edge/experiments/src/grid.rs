//! Execution of many runs on all cores: every case with every seed.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::prelude::*;
use thiserror::Error;

/// Progress of a grid of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridProgress {
    /// Number of completed runs.
    pub runs: usize,
    /// Total number of runs.
    pub of: usize,
}

/// Function that is called after each run, on any thread, with the progress. The function can stop
/// the runs.
pub type Watch<'a> = dyn Fn(GridProgress) -> ControlFlow<()> + Sync + 'a;

/// Reason why a grid of runs has no complete results.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GridError<E> {
    /// A run failed. If several runs failed, this is the first failed run in the order of cases and
    /// seeds.
    #[error("{error}")]
    Run {
        /// Index of the case whose run failed.
        case: usize,
        /// Seed of the failed run.
        seed: u64,
        /// Error of the failed run.
        error: E,
    },
    /// The function `watch` stopped the runs.
    #[error("stopped after {} of {} runs", .0.runs, .0.of)]
    Stopped(GridProgress),
}

/// Runs every case with every seed. Results are ordered by case, then by seed. They do not depend
/// on the number of cores.
///
/// # Errors
/// If a run fails, or `watch` stops the runs before all are complete.
pub fn run<C: Sync, T: Send, E: Send>(
    cases: &[C],
    seeds: &[u64],
    watch: &Watch<'_>,
    one: impl Fn(&C, u64) -> Result<T, E> + Sync,
) -> Result<Vec<Vec<T>>, GridError<E>> {
    let some = run_some(cases, seeds, watch, |case, seed| one(case, seed).map(Some))?;
    let runs = some.iter().flatten().flatten().count();
    let all = some.into_iter().map(|case| case.into_iter().collect());
    let stopped = GridProgress { runs, of: cases.len() * seeds.len() };
    all.collect::<Option<_>>().ok_or(GridError::Stopped(stopped))
}

/// Runs every case with every seed as [`run`] does, but also returns incomplete results. A result
/// is `None` if `watch` stopped the grid before that run, or if the function `one` returned `None`
/// for that run.
///
/// # Errors
/// If a run fails.
pub fn run_some<C: Sync, T: Send, E: Send>(
    cases: &[C],
    seeds: &[u64],
    watch: &Watch<'_>,
    one: impl Fn(&C, u64) -> Result<Option<T>, E> + Sync,
) -> Result<Vec<Vec<Option<T>>>, GridError<E>> {
    let of = cases.len() * seeds.len();
    let (done, failed, stopped) =
        (AtomicUsize::new(0), AtomicUsize::new(of), AtomicBool::new(false));
    let run_nth = |nth: usize| {
        // Runs that come before the failed run still take place, because one of them may fail too.
        if stopped.load(Ordering::Relaxed) || nth > failed.load(Ordering::Relaxed) {
            return None;
        }
        let result = one(&cases[nth / seeds.len()], seeds[nth % seeds.len()]);
        if result.is_err() {
            failed.fetch_min(nth, Ordering::Relaxed);
        }
        let runs = done.fetch_add(1, Ordering::Relaxed) + 1;
        if watch(GridProgress { runs, of }).is_break() {
            stopped.store(true, Ordering::Relaxed);
        }
        Some(result)
    };
    // Runs are distributed one at a time, because some cases take a hundred times as long as
    // others.
    let results: Vec<Option<Result<Option<T>, E>>> =
        (0..of).into_par_iter().with_max_len(1).map(run_nth).collect();
    let mut all = Vec::with_capacity(of);
    for (nth, result) in results.into_iter().enumerate() {
        let (case, seed) = (nth / seeds.len(), seeds[nth % seeds.len()]);
        let result = result.transpose().map_err(|error| GridError::Run { case, seed, error })?;
        all.push(result.flatten());
    }
    let mut all = all.into_iter();
    Ok(cases.iter().map(|_| all.by_ref().take(seeds.len()).collect()).collect())
}

/// A [`Watch`] that never stops the runs.
pub fn to_the_end(_: GridProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiment_grid_results_follow_order_of_cases_and_seeds() {
        let one = |case: &u64, seed| Ok::<u64, ()>(case * 10 + seed);
        let found = run(&[1, 2, 3], &[7, 5], &to_the_end, one);
        assert_eq!(found, Ok(vec![vec![17, 15], vec![27, 25], vec![37, 35]]));
        assert_eq!(run(&[1, 2], &[], &to_the_end, one), Ok(vec![vec![], vec![]]));
        assert_eq!(run(&[], &[1], &to_the_end, one), Ok(vec![]));
    }

    #[test]
    fn failed_experiment_grid_returns_failure_of_the_first_failing_case() {
        let cases: Vec<u64> = (0..40).collect();
        let one = |case: &u64, seed| match (case, seed) {
            (17, 2) | (5, 3) | (39, 1) => Err(*case),
            _ => Ok(()),
        };
        for _ in 0..20 {
            let found = run(&cases, &[1, 2, 3], &to_the_end, one);
            assert_eq!(found, Err(GridError::Run { case: 5, seed: 3, error: 5 }));
        }
    }

    #[test]
    fn experiment_grid_reports_progress_per_run_and_can_be_stopped() {
        let seen = AtomicUsize::new(0);
        let count = |_| {
            seen.fetch_add(1, Ordering::Relaxed);
            ControlFlow::Continue(())
        };
        let one = |_: &u64, _| Ok::<(), ()>(());
        assert!(run(&[0; 30], &[1, 2], &count, one).is_ok());
        assert_eq!(seen.into_inner(), 60);
        let found = run(&[0; 1_000], &[1, 2], &|_| ControlFlow::Break(()), one);
        let Err(GridError::Stopped(GridProgress { runs, of })) = found else { panic!("{found:?}") };
        assert!((1..2_000).contains(&runs) && of == 2_000, "{runs} of {of}");
    }

    #[test]
    fn experiment_grid_that_is_stopped_returns_the_completed_results() {
        let one = |case: &u64, seed| Ok::<_, ()>((seed != 7).then_some(case + seed));
        let found = run_some(&[10, 20], &[1, 7], &to_the_end, one);
        assert_eq!(found, Ok(vec![vec![Some(11), None], vec![Some(21), None]]));
        let found = run_some(&[0; 1_000], &[1, 2], &|_| ControlFlow::Break(()), one).unwrap();
        let done = found.iter().flatten().flatten().count();
        assert!((1..2_000).contains(&done) && found.len() == 1_000, "{done}");
    }

    #[test]
    fn experiment_grid_stopped_after_its_last_run_returns_all_results() {
        let at_the_end = |done: GridProgress| match done.runs == done.of {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let found = run(&[1, 2], &[1], &at_the_end, |case: &u64, _| Ok::<u64, ()>(*case));
        assert_eq!(found, Ok(vec![vec![1], vec![2]]));
    }
}
