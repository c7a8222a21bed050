//! Test of both witnesses of `fit` for random task sets: the proof that a slice suffices, and the
//! trace in which a smaller slice misses a deadline. `cargo xtask fit` runs this test with 1,000
//! sets.

use rayon::prelude::*;
use slackline_experiments::fit::{MissWitness, NamedTasks, WorstPhase, miss_below};
use slackline_fit::generate::{Deadlines, SetDraws, SetRecipe, task_set};
use slackline_fit::search::{Fit, smallest_slice};
use slackline_fit::{Refutation, TaskScheduler};
use slackline_replay::Replay;
use slackline_trace::{Reader, Record};
use slackline_units::{Span, Time};

/// Environment variable with the number of task sets.
const SETS: &str = "SLACKLINE_FIT_SETS";

/// Default number of task sets, if the environment variable is not set.
const FEW_SETS: u64 = 40;

/// Step of the slices in the search.
const STEP: Span = Span::from_us(1);

/// Maximum length of the run that checks that the answer meets all deadlines.
const LONGEST_CHECK: Span = Span::from_secs(10);

/// A random task set with the period of its reservation.
struct Case {
    tasks: NamedTasks,
    period: Span,
}

/// Draws the task set of a seed. A set that misses deadlines with a whole CPU is replaced by
/// another.
fn case(seed: u64) -> (Case, Fit, u64) {
    let recipe = SetRecipe {
        deadlines: [Deadlines::Implicit, Deadlines::Constrained][usize::from(seed % 2 == 1)],
        scheduler: [TaskScheduler::Edf, TaskScheduler::Fixed][usize::from(seed / 2 % 2 == 1)],
        ..SetRecipe::default()
    };
    let mut draws = SetDraws::new(seed);
    // The period is from a quarter to one and a half of the shortest period of a task.
    let quarters = [1, 2, 4, 6][usize::try_from(seed / 4 % 4).unwrap()];
    let mut drawn_again = 0;
    loop {
        let set = task_set(&mut draws, &recipe).expect("the utilisation is below 1");
        let us = set.shortest_period() * quarters / Span::from_us(4);
        let (tasks, period) = (NamedTasks::numbered(&format!("set {seed}"), set), us);
        let case = Case { tasks, period: Span::from_us(period) };
        if let Ok(fit) = smallest_slice(&case.tasks.set, case.period, STEP) {
            return (case, fit, drawn_again);
        }
        drawn_again += 1;
    }
}

/// Checks that a replay of the trace makes the recorded decisions, and that a job in the trace
/// misses its deadline.
fn check_replay(witness: &MissWitness) {
    let mut bytes = Vec::new();
    let run = witness.phase.run(Some(&mut bytes)).expect("the run completes");
    assert_eq!(run, witness.run, "the run with a trace is the same");
    let mut trace = Reader::new(&bytes[..]).expect("a trace");
    let mut replay = Replay::new(trace.header()).expect("the trace has all events");
    trace.pass_to(&mut replay).expect("a whole trace");
    let replayed = replay.finish().expect("a whole run");
    assert!(replayed.difference.is_none() && replayed.broken.is_none(), "{replayed:?}");
    let mut records: Vec<Record> = Vec::new();
    Reader::new(&bytes[..]).expect("a trace").pass_to(&mut records).expect("a whole trace");
    let misses = |record: &Record| match *record {
        Record::Job { deadline, done, .. } => done > deadline,
        Record::Unfinished { .. } => true,
        _ => false,
    };
    assert!(records.iter().any(misses), "a job in the trace is late");
}

/// Kinds of witnesses that the answer for one task set has.
struct CaseResult {
    /// True if the answer has a proof, and a smaller slice has a trace with a missed deadline.
    has_both: bool,
    /// True if the slice of the trace is exactly one step below the answer.
    is_one_step: bool,
    /// Number of sets that were drawn first and replaced, because they miss deadlines with a whole
    /// CPU.
    drawn_again: u64,
}

/// Checks and returns the witnesses of a random task set. Panics if a witness is wrong.
fn check_witnesses(seed: u64) -> CaseResult {
    let (case, fit, drawn_again) = case(seed);
    let Case { tasks, .. } = &case;
    assert!(fit.proof.is_valid(&tasks.set, fit.reservation), "seed {seed}");
    let witness = miss_below(tasks, &fit).expect("the run completes");
    let within = fit.below.and_then(|(_, refutation)| refutation.misses_within());
    let length = within.unwrap_or(LONGEST_CHECK).min(LONGEST_CHECK);
    let run = WorstPhase::new(tasks, fit.reservation, length).run(None::<std::io::Sink>);
    let run = run.expect("the run completes");
    assert_eq!(run.first_miss, None, "seed {seed}: {} suffices by its proof", fit.reservation);
    let Some(witness) = witness else {
        if std::env::var_os(SETS).is_some() {
            println!("seed {seed}: no trace below {}: {:?}", fit.reservation, fit.below);
        }
        return CaseResult { has_both: false, is_one_step: false, drawn_again };
    };
    let slice = witness.reservation.slice();
    let is_one_step = slice + STEP >= fit.reservation.slice();
    let is_close = is_one_step || slice.ns() * 100 >= fit.reservation.slice().ns() * 99;
    assert!(is_close, "seed {seed}: {} is at most 1 % below {}", witness.reservation, slice);
    if let (true, Some(Refutation::Shortfall(short))) = (is_one_step, fit.below.map(|(_, of)| of)) {
        // The first deadline that the run misses is the first deadline at which demand exceeds
        // supply.
        let release = Time::START.after(slice);
        assert_eq!(witness.miss.deadline, release.after(short.within), "seed {seed}");
    }
    check_replay(&witness);
    CaseResult { has_both: true, is_one_step, drawn_again }
}

#[test]
fn slice_below_fitted_slice_fails_for_95_percent_of_sets() {
    let sets = std::env::var(SETS).ok().map_or(FEW_SETS, |text| text.parse().expect("a number"));
    let results: Vec<CaseResult> = (0..sets).into_par_iter().map(check_witnesses).collect();
    let both = results.iter().filter(|result| result.has_both).count() as u64;
    let one_step = results.iter().filter(|result| result.is_one_step).count();
    let drawn_again: u64 = results.iter().map(|result| result.drawn_again).sum();
    println!(
        "{both} of {sets} task sets have both witnesses, {one_step} of them with a trace one step \
         of {STEP} below the answer; {drawn_again} sets that miss deadlines with a whole CPU were \
         drawn again"
    );
    assert!(both * 100 >= sets * 95, "{both} of {sets}");
}
