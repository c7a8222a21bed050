//! Statistics that combine several numbers into one.

use slackline_experiments::OverSeeds;

/// Returns the mean of the known statistics, with the range of all known statistics. `None` if no
/// statistic is known.
pub(crate) fn mean(stats: &[Option<OverSeeds>]) -> Option<OverSeeds> {
    let known: Vec<OverSeeds> = stats.iter().flatten().copied().collect();
    let sum: f64 = known.iter().map(|stat| stat.median).sum();
    let first = known.first()?;
    let lowest = known.iter().map(|stat| stat.lowest).fold(first.lowest, f64::min);
    let highest = known.iter().map(|stat| stat.highest).fold(first.highest, f64::max);
    Some(OverSeeds { median: sum / known.len() as f64, lowest, highest })
}

/// Returns the statistic with the largest median. `None` if a statistic is unknown or no statistic
/// is given.
pub(crate) fn largest(stats: &[Option<OverSeeds>]) -> Option<OverSeeds> {
    let known: Vec<OverSeeds> = stats.iter().copied().collect::<Option<_>>()?;
    known.into_iter().max_by(|a, b| a.median.total_cmp(&b.median))
}

/// Returns the limit up to which a number stays small: the last position before the first position
/// at which the absolute number exceeds `at_most` or is unknown. At equal positions, the worst
/// number counts.
pub(crate) fn reach(places: &[(f64, Option<f64>)], at_most: f64) -> Option<f64> {
    let small = |number: Option<f64>| number.is_some_and(|number| number.abs() <= at_most);
    let first_large = places.iter().find(|(_, number)| !small(*number)).map(|(place, _)| *place);
    let mut reached = None;
    for &(place, _) in places.iter().take_while(|(place, _)| Some(*place) != first_large) {
        reached = Some(place);
    }
    reached
}

/// Returns Spearman's rank correlation. Equal numbers share the mean of their ranks. `None` if all
/// numbers of one series are equal, or if the series differ in length.
pub(crate) fn rank_correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() != b.len() || a.is_empty() {
        return None;
    }
    let (a, b) = (ranks(a), ranks(b));
    let middle = (a.len() as f64 + 1.0) / 2.0;
    let products = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum()
    };
    let size = (products(&a, &a) * products(&b, &b)).sqrt();
    (size > 0.0).then(|| products(&a, &b) / size)
}

fn ranks(numbers: &[f64]) -> Vec<f64> {
    let rank = |number: &f64| {
        let below = numbers.iter().filter(|other| *other < number).count() as f64;
        let equal = numbers.iter().filter(|other| *other == number).count() as f64;
        below + (equal + 1.0) / 2.0
    };
    numbers.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiment_maximum_is_none_if_any_point_has_no_value() {
        let of = |median| Some(OverSeeds { median, lowest: median - 1.0, highest: 9.0 });
        assert_eq!(largest(&[of(2.0), of(5.0), of(3.0)]), of(5.0));
        assert_eq!(largest(&[of(2.0), None]), None);
        assert_eq!(largest(&[]), None);
    }

    #[test]
    fn range_within_tolerance_ends_before_first_excessive_or_missing_error() {
        let places = [(10.0, Some(0.0)), (20.0, Some(0.9)), (30.0, Some(4.0)), (40.0, Some(0.0))];
        assert_eq!(reach(&places, 1.0), Some(20.0));
        assert_eq!(reach(&places, 5.0), Some(40.0));
        assert_eq!(reach(&[(10.0, Some(0.0)), (20.0, None)], 1.0), Some(10.0));
        // Of several numbers at one place the worst counts.
        assert_eq!(reach(&[(10.0, Some(0.0)), (10.0, Some(2.0))], 1.0), None);
        assert_eq!(reach(&[(10.0, Some(-2.0))], 1.0), None);
        assert_eq!(reach(&[], 1.0), None);
    }

    #[test]
    fn rank_correlation_of_equal_opposite_and_tied_series_is_exact() {
        let close = |found: Option<f64>, wanted: f64| {
            assert!(found.is_some_and(|found| (found - wanted).abs() < 1e-9), "{found:?}");
        };
        close(rank_correlation(&[1.0, 2.0, 3.0], &[10.0, 200.0, 300.0]), 1.0);
        close(rank_correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0);
        // The ranks are 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
        close(rank_correlation(&[0.0, 3.0, 3.0, 5.0], &[1.0, 2.0, 3.0, 4.0]), 0.948_683_298);
        assert_eq!(rank_correlation(&[1.0, 1.0], &[1.0, 2.0]), None);
        assert_eq!(rank_correlation(&[1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn mean_over_experiment_omits_points_without_value() {
        let stat = |median| Some(OverSeeds { median, lowest: median - 1.0, highest: median + 1.0 });
        let mean = mean(&[stat(1.0), None, stat(4.0)]).expect("two are known");
        assert_eq!((mean.median, mean.lowest, mean.highest), (2.5, 0.0, 5.0));
        assert_eq!(super::mean(&[None]), None);
    }
}
