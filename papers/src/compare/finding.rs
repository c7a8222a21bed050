//! Tests of single comparisons. Each returns a verdict with its reason.

use slackline_experiments::OverSeeds;

use super::{Case, Finding, Verdict};
use crate::comparison::{Formula, Test};
use crate::numbers::digits;
use crate::published::{PrintedValue, ValueSource};
use crate::statistics::rank_correlation;
use crate::tolerance::Tolerance;

/// Compares a measured number with a published number.
pub(super) fn number(case: &Case<'_>, cases: &[Case<'_>]) -> Finding {
    let (PrintedValue::Number(theirs), Some(ours)) = (&case.value.is, case.ours()) else {
        return unknown();
    };
    let off = difference(&case.value.unit, ours.median, *theirs);
    let tolerance = case.tolerance;
    let is_allowed = tolerance.holds(ours.median, *theirs, 0.0);
    let is_far = tolerance.is_too_far(ours.median, *theirs, 0.0);
    if is_allowed && !is_far {
        return (Verdict::Reproduced, format!("{off}, within {tolerance}"));
    }
    if Tolerance::Exact.holds(ours.median, *theirs, case.value.give) {
        return (Verdict::Reproduced, format!("{off}, within {}", Tolerance::Exact));
    }
    let more = match is_allowed {
        true => {
            format!("within {tolerance}, but off by more than {} %", Tolerance::FURTHEST_PERCENT)
        }
        false => format!("which exceeds {tolerance}"),
    };
    if case.spec.by.is_some() || !case.against.is_empty() {
        let neutral = if case.spec.by == Some(Formula::Ratio) { 1.0 } else { 0.0 };
        let same = (ours.median - neutral) * (theirs - neutral) > 0.0;
        let times = (ours.median - neutral) / (theirs - neutral);
        return match same {
            true if is_like_size(times) => {
                (Verdict::SameShape, format!("{off}, {more}; same direction"))
            }
            true => {
                let times = digits(times);
                (
                    Verdict::Differs,
                    format!("{off}: same direction, but {times} times the published size"),
                )
            }
            false => (Verdict::Differs, format!("{off}, and in the opposite direction")),
        };
    }
    let others = cases.iter().filter(|other| !std::ptr::eq(*other, case));
    let mut pairs = 0;
    for other in others {
        let (PrintedValue::Number(their_other), Some(our_other)) = (&other.value.is, other.ours())
        else {
            continue;
        };
        let gives = case.value.give + other.value.give;
        if tolerance.holds(*their_other, *theirs, gives) {
            continue; // The published values are too close to tell apart.
        }
        pairs += 1;
        if (our_other.median - ours.median) * (their_other - theirs) <= 0.0 {
            let which = if their_other > theirs { "lower" } else { "higher" };
            let id = &other.value.id;
            return (
                Verdict::Differs,
                format!("{off}, and not {which} than {id}, unlike the published value"),
            );
        }
    }
    match pairs {
        0 if is_allowed => (Verdict::SameShape, format!("{off}, {more}")),
        0 => (
            Verdict::Differs,
            format!("{off}, {more}, and no other value to compare the order with"),
        ),
        _ => (Verdict::SameShape, format!("{off}, {more}; the order of the values agrees")),
    }
}

/// Describes the difference between a measured and a published number with this unit.
fn difference(unit: &str, ours: f64, theirs: f64) -> String {
    if unit == "%" || theirs == 0.0 {
        return format!("{} points off", digits((ours - theirs).abs()));
    }
    let error = (ours - theirs) / theirs * 100.0;
    let which = if error < 0.0 { "less" } else { "more" };
    format!("{} % {which} than published", digits(error.abs()))
}

/// Returns true if `times` is from 0.5 to 2. `times` is the ratio of the measured to the published
/// difference between two points. Outside this range, only the sign of the difference agrees.
fn is_like_size(times: f64) -> bool {
    (0.5..=2.0).contains(&times)
}

/// Compares several measured numbers with one published number.
pub(super) fn all_near(case: &Case<'_>, theirs: f64) -> Finding {
    let medians = case.stats.iter().map(|stat| stat.map(|stat| stat.median));
    let Some(medians) = medians.collect::<Option<Vec<f64>>>() else { return unknown() };
    let off = medians.iter().map(|ours| (ours - theirs).abs()).fold(0.0, f64::max);
    let near = |&ours: &f64| case.tolerance.holds(ours, theirs, case.value.give);
    let far = |&ours: &f64| case.tolerance.is_too_far(ours, theirs, case.value.give);
    let best = if medians.iter().any(far) { Verdict::SameShape } else { Verdict::Reproduced };
    let says = format!("off by at most {}, tolerance: {}", digits(off), case.tolerance);
    seen(medians.iter().all(near), best, says)
}

/// Minimum rank correlation at which two series count as having the same order.
const SAME_ORDER: f64 = 0.8;

/// Compares a measured series with a published series of which only the order has a meaning.
pub(super) fn ranked(case: &Case<'_>, theirs: &[f64]) -> Finding {
    let Some(ours) = case.series() else { return unknown() };
    match rank_correlation(&ours, theirs) {
        Some(found) => {
            let says =
                format!("rank correlation {}, at least {SAME_ORDER} is required", digits(found));
            seen(found >= SAME_ORDER, Verdict::SameShape, says)
        }
        None if ours.len() == theirs.len() => {
            (Verdict::Differs, "all measured values are equal".to_owned())
        }
        None => (
            Verdict::Differs,
            format!("{} measured values, {} published values", ours.len(), theirs.len()),
        ),
    }
}

/// Tests if all measured numbers are within a published range.
pub(super) fn inside(case: &Case<'_>, (low, high): (f64, f64)) -> Finding {
    let Some(series) = case.series() else { return unknown() };
    let lowest = series.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = series.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ours = format!("measured {} to {}", digits(lowest), digits(highest));
    let is_in = |tolerance: Tolerance| {
        let below = lowest >= low || tolerance.holds(lowest, low, case.value.give);
        below && (highest <= high || tolerance.holds(highest, high, case.value.give))
    };
    match (is_in(case.tolerance), case.value.read) {
        (true, ValueSource::Plot) => {
            let says = format!(
                "{ours}: within the range of the plot's axis; the plot's values cannot be read"
            );
            (Verdict::NothingToCompare, says)
        }
        (true, _) => {
            let give = case.value.give;
            let is_far = lowest < low && case.tolerance.is_too_far(lowest, low, give)
                || highest > high && case.tolerance.is_too_far(highest, high, give);
            let best = if is_far { Verdict::SameShape } else { Verdict::Reproduced };
            (best, format!("{ours}: within the published range, tolerance: {}", case.tolerance))
        }
        (false, _) => (Verdict::Differs, format!("{ours}: not within the published range")),
    }
}

/// Tests a published finding that has no number.
pub(super) fn finding(case: &Case<'_>, test: Test) -> Finding {
    let medians = |stats: &[Option<OverSeeds>]| -> Option<Vec<f64>> {
        stats.iter().map(|stat| stat.map(|stat| stat.median)).collect()
    };
    let (Some(ours), Some(against)) = (medians(&case.stats), medians(&case.against)) else {
        return unknown();
    };
    let tolerance = case.tolerance;
    let is_likeness = matches!(test, Test::Alike | Test::Same);
    if is_likeness && ours.iter().chain(&against).all(|&number| number == 0.0) {
        return (Verdict::NothingToCompare, "all measured values are zero".to_owned());
    }
    match test {
        Test::Alike | Test::Unlike => alike(&ours, &against, tolerance, test),
        Test::Zero => {
            let worst = ours.iter().map(|number| number.abs()).fold(0.0, f64::max);
            let good = worst <= tolerance.width(0.0);
            seen(good, Verdict::Reproduced, format!("at most {} away from zero", digits(worst)))
        }
        Test::Kept => {
            let worst = ours.iter().copied().fold(f64::INFINITY, f64::min);
            let good = worst >= -tolerance.width(0.0);
            seen(good, Verdict::Reproduced, format!("the lowest value is {}", digits(worst)))
        }
        Test::Negative => {
            let best = ours.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let good = best < -tolerance.width(0.0);
            seen(good, Verdict::SameShape, format!("the highest value is {}", digits(best)))
        }
        Test::Same => {
            let pairs = ours.iter().enumerate();
            let pairs = pairs.map(|(index, &ours)| (ours, against[index.min(against.len() - 1)]));
            let right = pairs.clone().filter(|&(a, b)| tolerance.holds(a, b, 0.0)).count();
            let of = ours.len();
            seen(right == of, Verdict::Reproduced, format!("holds at {right} of {of} points"))
        }
        Test::Higher | Test::Lower => {
            let other = |index: usize| against[index.min(against.len() - 1)];
            let is_right = |(index, &ours): (usize, &f64)| match test {
                Test::Higher => ours > other(index),
                _ => ours < other(index),
            };
            let right = ours.iter().enumerate().filter(|&pair| is_right(pair)).count();
            let of = ours.len();
            seen(right == of, Verdict::SameShape, format!("holds at {right} of {of} points"))
        }
        Test::Rising | Test::Falling => {
            let Some(ours) = case.series() else { return unknown() };
            let is_right = |pair: &&[f64]| match test {
                Test::Rising => pair[0] < pair[1],
                _ => pair[0] > pair[1],
            };
            let steps = ours.len().saturating_sub(1);
            let right = ours.windows(2).filter(is_right).count();
            seen(right == steps, Verdict::SameShape, format!("holds in {right} of {steps} steps"))
        }
        Test::First | Test::Second => nearer(&ours, &against, test),
        Test::Value | Test::Inside | Test::Ranked | Test::Lowest => unknown(),
    }
}

/// Tests if all measured numbers are nearer to one of the two numbers in `against` than to the
/// other. `test` states which of the two numbers must be nearer: the first or the second.
fn nearer(ours: &[f64], against: &[f64], test: Test) -> Finding {
    let &[first, second] = against else { return unknown() };
    if first == second {
        let says = format!("cannot tell which of two values is nearer: both are {first}");
        return (Verdict::Differs, says);
    }
    let is_first = |number: &&f64| (*number - first).abs() < (*number - second).abs();
    let right = ours.iter().filter(|number| is_first(number) == (test == Test::First)).count();
    let of = ours.len();
    let says = format!("nearer to the {} of two values at {right} of {of} points", test.name());
    seen(right == of, Verdict::SameShape, says)
}

/// Tests if measured numbers are alike: the highest exceeds the lowest by at most the tolerance,
/// applied to their mean.
fn alike(ours: &[f64], against: &[f64], tolerance: Tolerance, test: Test) -> Finding {
    let all = || ours.iter().chain(against).copied();
    let lowest = all().fold(f64::INFINITY, f64::min);
    let highest = all().fold(f64::NEG_INFINITY, f64::max);
    let mean = all().sum::<f64>() / all().count().max(1) as f64;
    let is_alike = highest - lowest <= tolerance.width(mean);
    let says = format!("{} to {}", digits(lowest), digits(highest));
    match test {
        Test::Unlike => seen(!is_alike, Verdict::SameShape, says),
        _ => seen(is_alike, Verdict::Reproduced, says),
    }
}

fn seen(good: bool, verdict: Verdict, says: String) -> Finding {
    if good { (verdict, says) } else { (Verdict::Differs, says) }
}

pub(super) fn unknown() -> Finding {
    (Verdict::Differs, "not measured here".to_owned())
}
