//! Properties of proofs for random task sets.

use proptest::prelude::*;
use slackline_units::Reservation;

use super::*;
use crate::generate::{Deadlines, SetDraws, SetRecipe, task_set};
use crate::search::smallest_slice;

/// Recipe of small task sets, for which the tests can check every instant.
fn recipe(scheduler: TaskScheduler) -> SetRecipe {
    SetRecipe {
        periods_us: (1_000, 20_000),
        deadlines: Deadlines::Constrained,
        scheduler,
        ..SetRecipe::default()
    }
}

/// Returns true if the tasks meet all deadlines up to `until` in the worst phase of the supply.
/// Tests each instant, without the points of a proof.
fn meets_by_definition(tasks: &TaskSet, reservation: Reservation, until: Span) -> bool {
    let supply = PeriodicSupply::of(reservation);
    let us = Span::from_us;
    let times = |until: Span| (1..=until / us(1)).map(us);
    match tasks.scheduler() {
        TaskScheduler::Edf => {
            times(until).all(|time| tasks.demand_in(time) <= supply.least_in(time))
        }
        TaskScheduler::Fixed => (0..tasks.tasks().len()).all(|index| {
            let (higher, of) = tasks.tasks().split_at(index);
            let requested = |time| -> Span {
                higher.iter().map(|task| task.requested_in(time)).sum::<Span>() + of[0].work()
            };
            times(of[0].deadline()).any(|time| requested(time) <= supply.least_in(time))
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn proven_slice_meets_all_deadlines_unlike_next_smaller_slice(
        seed in any::<u64>(),
        is_edf in any::<bool>(),
        divisor in 1u64..6,
    ) {
        let scheduler = if is_edf { TaskScheduler::Edf } else { TaskScheduler::Fixed };
        let tasks = task_set(&mut SetDraws::new(seed), &recipe(scheduler)).unwrap();
        let period = Span::from_us(tasks.shortest_period() / Span::from_us(divisor));
        let Ok(fit) = smallest_slice(&tasks, period, Span::from_us(1)) else {
            let all = Reservation::new(period, period).unwrap();
            prop_assert!(prove(&tasks, all).is_err());
            return Ok(());
        };
        prop_assert!(fit.proof.is_valid(&tasks, fit.reservation));
        prop_assert!(meets_by_definition(&tasks, fit.reservation, Span::from_ms(200)));
        let Some((below, refutation)) = fit.below else { return Ok(()) };
        prop_assert!(!fit.proof.is_valid(&tasks, below));
        if let Some(within) = refutation.misses_within() {
            prop_assert!(!meets_by_definition(&tasks, below, within));
        }
    }
}

#[test]
fn schedulability_proof_that_lacks_a_demand_point_is_invalid() {
    let ms = Span::from_ms;
    let task = |(work, period)| PeriodicTask::new(ms(work), ms(period), ms(period)).unwrap();
    let tasks = [(1, 4), (2, 6), (3, 13)].map(task).to_vec();
    let tasks = TaskSet::new(tasks, TaskScheduler::Edf).unwrap();
    let fit = smallest_slice(&tasks, Span::from_us(500), Span::from_us(1)).unwrap();
    let Proof::Demand { points, busy } = &fit.proof else { panic!("the guest has EDF") };
    assert!(points.len() > 2, "{points:?}");
    for left_out in 0..points.len() {
        let mut points = points.clone();
        points.remove(left_out);
        let proof = Proof::Demand { points, busy: *busy };
        assert!(!proof.is_valid(&tasks, fit.reservation), "without point {left_out}");
    }
    let short = Proof::Demand { points: Vec::new(), busy: Span::from_ns(1) };
    assert!(!short.is_valid(&tasks, fit.reservation));
}
