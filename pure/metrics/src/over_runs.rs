//! Mean and confidence interval of a number over several runs with different seeds.

/// Mean of a number over runs, with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverRuns {
    /// Number of runs, at least one.
    pub runs: u64,
    /// Mean, in thousandths of the number's unit.
    pub mean_thousandths: i128,
    /// Half of the 95 % confidence interval around the mean, in thousandths of the number's unit.
    /// For n runs it uses Student's t with n - 1 degrees of freedom. `None` if there is only one
    /// run, or if the sum overflows.
    pub half_width_thousandths: Option<u128>,
}

/// Student's t of 97.5 % for 1, 2, ... 30 degrees of freedom, in thousandths. Source: NIST/SEMATECH
/// e-Handbook of Statistical Methods, table 1.3.6.7.2.
const T: [u128; 30] = [
    12_706, 4_303, 3_182, 2_776, 2_571, 2_447, 2_365, 2_306, 2_262, 2_228, 2_201, 2_179, 2_160,
    2_145, 2_131, 2_120, 2_110, 2_101, 2_093, 2_086, 2_080, 2_074, 2_069, 2_064, 2_060, 2_056,
    2_052, 2_048, 2_045, 2_042,
];

impl OverRuns {
    /// Returns the mean and confidence interval of a number, given its value in each run. `None` if
    /// there are no runs.
    #[must_use]
    pub fn of(numbers: &[i64]) -> Option<OverRuns> {
        let count = i128::try_from(numbers.len()).ok().filter(|&count| count > 0)?;
        let thousandths = || numbers.iter().map(|&number| i128::from(number) * 1_000);
        let mean_thousandths = rounded(thousandths().sum(), count);
        // The square of a duration of some months, in thousandths of a nanosecond, can overflow.
        let mut squares = thousandths().map(|number| {
            let off = number.abs_diff(mean_thousandths);
            off.checked_mul(off)
        });
        let sum = squares.try_fold(0_u128, |sum, square| sum.checked_add(square?));
        let freedom = numbers.len() - 1;
        let half_width_thousandths = (freedom > 0).then_some(sum).flatten().map(|sum| {
            let runs = count.unsigned_abs();
            let variance_of_mean = sum / freedom as u128 / runs;
            // Beyond the table, the real value of t is lower by less than 4 %. So the interval is
            // never too narrow.
            variance_of_mean.isqrt() * T[freedom.min(T.len()) - 1] / 1_000
        });
        Some(OverRuns {
            runs: count.unsigned_abs().try_into().unwrap_or(u64::MAX),
            mean_thousandths,
            half_width_thousandths,
        })
    }
}

/// Returns `sum` divided by `by`, rounded to the nearest integer.
fn rounded(sum: i128, by: i128) -> i128 {
    (2 * sum + by * sum.signum()) / (2 * by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_interval_equals_textbook_value() {
        // The mean is 13 and the standard deviation sqrt(10). So the half width is 2.776 * sqrt(10
        // / 5) = 3.926.
        let over = OverRuns::of(&[9, 11, 13, 15, 17]).unwrap();
        assert_eq!((over.runs, over.mean_thousandths), (5, 13_000));
        assert_eq!(over.half_width_thousandths, Some(3_925));
        assert_eq!(OverRuns::of(&[-3, -4]).unwrap().mean_thousandths, -3_500);
        assert_eq!(OverRuns::of(&[-3, 3]).unwrap().mean_thousandths, 0);
    }

    #[test]
    fn confidence_interval_needs_two_results_and_vanishes_for_equal_results() {
        assert_eq!(OverRuns::of(&[7]).unwrap().half_width_thousandths, None);
        assert_eq!(OverRuns::of(&[7; 40]).unwrap().half_width_thousandths, Some(0));
        assert_eq!(OverRuns::of(&[]), None);
    }
}
