//! Distributions of lengths of time, with three significant digits.

use hdrhistogram::Histogram;
use slackline_units::Span;

/// Distribution of lengths of time. Quantiles have three significant digits and are rounded up, but
/// `worst` is exact. With fewer than a hundred values, the 99th percentile equals `worst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Number of values, at least one.
    pub count: u64,
    /// Median. `None` if there is only one value.
    pub p50: Option<Span>,
    /// 90th percentile. `None` if there is only one value.
    pub p90: Option<Span>,
    /// 99th percentile. `None` if there is only one value.
    pub p99: Option<Span>,
    /// Longest of all values, exact.
    pub worst: Span,
    /// Mean of all values.
    pub mean: Span,
    /// Mean of the longest tenth of all values. `None` if there are fewer than ten values.
    pub worst_tenth: Option<Span>,
}

/// Distribution of the absolute errors of whole seconds, in millionths of the reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorDistribution {
    /// 99th percentile. `None` if there is only one second.
    pub p99_ppm: Option<u64>,
    /// Largest of the errors of all seconds.
    pub worst_ppm: u64,
    /// Number of whole seconds, at least one.
    pub seconds: u64,
}

/// Distribution of fractions of a whole, in millionths of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartDistribution {
    /// Median. `None` if there is only one value.
    pub p50_ppm: Option<u64>,
    /// 99th percentile. `None` if there is only one value.
    pub p99_ppm: Option<u64>,
    /// Largest of all the fractions.
    pub worst_ppm: u64,
}

/// Maximum number of values that a tally stores one by one, so that the results of short runs are
/// exact. With more values, the tally keeps a histogram. Even the smallest histogram takes twice
/// the memory of this many values.
const FEW: usize = 1024;

/// Significant digits of values in a histogram. Percentiles are at most a thousandth too high.
const DIGITS: u8 = 3;

/// Counter of values, from which a distribution is computed. It takes no memory before the first
/// value, and a bounded amount for any number of values.
#[derive(Clone, Debug)]
pub(crate) enum Tally {
    Few(Vec<u64>),
    Many(Box<Many>),
}

#[derive(Clone, Debug)]
pub(crate) struct Many {
    /// Histogram of the values. The count of each bucket saturates at 2^32 - 1 values.
    histogram: Histogram<u32>,
    count: u64,
    worst: u64,
    sum: u128,
}

/// Statistics of a tally, in the unit of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) count: u64,
    /// Median. `None` if there is only one value.
    pub(crate) p50: Option<u64>,
    pub(crate) p90: Option<u64>,
    pub(crate) p99: Option<u64>,
    pub(crate) worst: u64,
    pub(crate) mean: u64,
    /// Mean of the largest tenth of the values. `None` if there are fewer than ten values.
    pub(crate) worst_tenth: Option<u64>,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::Few(Vec::new())
    }
}

impl Tally {
    /// Counts a length of time.
    pub(crate) fn add(&mut self, span: Span) {
        self.add_value(span.ns());
    }

    /// Counts a value of any unit.
    pub(crate) fn add_value(&mut self, value: u64) {
        match self {
            Tally::Few(values) if values.len() < FEW => values.push(value),
            Tally::Few(values) => {
                let mut many = Box::new(Many::new());
                values.iter().for_each(|&value| many.add(value));
                many.add(value);
                *self = Tally::Many(many);
            }
            Tally::Many(many) => many.add(value),
        }
    }

    /// Returns the distribution of the values as lengths of time. `None` if the tally has no
    /// values.
    pub(crate) fn distribution(&self) -> Option<Distribution> {
        let Spread { count, p50, p90, p99, worst, mean, worst_tenth } = self.spread()?;
        let [p50, p90, p99, worst_tenth] =
            [p50, p90, p99, worst_tenth].map(|ns| ns.map(Span::from_ns));
        let [worst, mean] = [worst, mean].map(Span::from_ns);
        Some(Distribution { count, p50, p90, p99, worst, mean, worst_tenth })
    }

    /// Returns the distribution of the values as parts of a whole. `None` if the tally has no
    /// values.
    pub(crate) fn parts(&self) -> Option<PartDistribution> {
        let Spread { p50, p99, worst, .. } = self.spread()?;
        Some(PartDistribution { p50_ppm: p50, p99_ppm: p99, worst_ppm: worst })
    }

    /// Returns the distribution of the values as errors of whole seconds. `None` if the tally has
    /// no values.
    pub(crate) fn errors(&self) -> Option<ErrorDistribution> {
        let Spread { count, p99, worst, .. } = self.spread()?;
        Some(ErrorDistribution { p99_ppm: p99, worst_ppm: worst, seconds: count })
    }

    /// Returns the distinct values in ascending order. Each value comes with the number of values
    /// up to and including this value.
    pub(crate) fn steps(&self) -> Vec<(Span, u64)> {
        let mut steps: Vec<(Span, u64)> = Vec::new();
        let mut add = |value: u64, count: u64| match steps.last_mut() {
            Some((last, below)) if last.ns() == value => *below += count,
            last => {
                let below = last.map_or(0, |&mut (_, below)| below);
                steps.push((Span::from_ns(value), below + count));
            }
        };
        match self {
            Tally::Few(values) => {
                let mut values = values.clone();
                values.sort_unstable();
                values.into_iter().for_each(|value| add(value, 1));
            }
            Tally::Many(many) => {
                for place in many.histogram.iter_recorded() {
                    let value = place.value_iterated_to().min(many.worst);
                    add(value, u64::from(place.count_at_value()));
                }
            }
        }
        steps
    }

    /// Returns the interval in which the 99th percentile lies with about 95 % confidence. The 99th
    /// percentile depends on few values: of 250 values, only two are larger than the 99th
    /// percentile. `None` with fewer than two values.
    ///
    /// The number of values up to the true percentile has a binomial distribution, with a variance
    /// of 0.0099 per value. The interval is 1.96 standard deviations wide on each side.
    pub(crate) fn p99_interval(&self) -> Option<(Span, Span)> {
        let steps = self.steps();
        let count = steps.last().map(|&(_, count)| count).filter(|&count| count > 1)?;
        let rank = (count * 99).div_ceil(100);
        // 38,032 is 1.96 * 1.96 * 0.0099 in millionths.
        let squared = (u128::from(count) * 38_032).div_ceil(1_000_000);
        let margin = u64::try_from(squared.isqrt()).unwrap_or(count) + 1;
        let at = |rank: u64| steps.iter().find(|&&(_, up_to)| up_to >= rank).map(|&(span, _)| span);
        let lower = rank.saturating_sub(margin).max(1);
        at(lower).zip(at((rank + margin).min(count)))
    }

    fn spread(&self) -> Option<Spread> {
        match self {
            Tally::Few(values) if values.is_empty() => None,
            Tally::Few(values) => {
                let mut values = values.clone();
                values.sort_unstable();
                let has = values.len() > 1;
                let rank = |percent: usize| (values.len() * percent).div_ceil(100) - 1;
                let at = |percent| has.then(|| values[rank(percent)]);
                let (count, worst) = (values.len() as u64, values[values.len() - 1]);
                let mean = |values: &[u64]| {
                    let sum: u128 = values.iter().copied().map(u128::from).sum();
                    u64::try_from(sum / values.len() as u128)
                        .expect("a mean is at most the largest value")
                };
                let tenth = values.len() / 10;
                let worst_tenth = (tenth > 0).then(|| mean(&values[values.len() - tenth..]));
                let mean = mean(&values);
                let [p50, p90, p99] = [50, 90, 99].map(at);
                Some(Spread { count, p50, p90, p99, worst, mean, worst_tenth })
            }
            Tally::Many(many) => {
                let Many { histogram, count, worst, sum } = &**many;
                let (count, worst) = (*count, *worst);
                let mean = u64::try_from(sum / u128::from(count))
                    .expect("a mean is at most the largest value");
                let worst_tenth = Some(many.worst_tenth());
                // The upper end of a bucket may exceed the largest value in the bucket.
                let at = |quantile| Some(histogram.value_at_quantile(quantile).min(worst));
                let [p50, p90, p99] = [0.5, 0.9, 0.99].map(at);
                Some(Spread { count, p50, p90, p99, worst, mean, worst_tenth })
            }
        }
    }
}

impl Many {
    fn new() -> Many {
        let histogram = Histogram::new(DIGITS).expect("three digits are supported");
        Many { histogram, count: 0, worst: 0, sum: 0 }
    }

    fn add(&mut self, value: u64) {
        self.histogram.record(value).expect("the histogram resizes itself");
        self.count += 1;
        self.worst = self.worst.max(value);
        self.sum += u128::from(value);
    }

    /// Returns the mean of the largest tenth of the values, with the precision of the histogram's
    /// buckets.
    fn worst_tenth(&self) -> u64 {
        let tenth = self.count / 10;
        let below = self.count - tenth;
        let (mut seen, mut sum) = (0, 0_u128);
        for place in self.histogram.iter_recorded() {
            let count = u64::from(place.count_at_value());
            let counted = (seen + count).saturating_sub(below.max(seen));
            let value = place.value_iterated_to().min(self.worst);
            sum += u128::from(value) * u128::from(counted);
            seen += count;
        }
        u64::try_from(sum / u128::from(tenth)).unwrap_or(self.worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(values: impl IntoIterator<Item = u64>) -> Tally {
        let mut tally = Tally::default();
        values.into_iter().for_each(|value| tally.add_value(value));
        tally
    }

    #[test]
    fn quantiles_of_a_distribution_of_few_values_are_exact() {
        assert_eq!(tally([]).spread(), None);
        let of = |count, [p50, p90, p99]: [u64; 3], worst, (mean, worst_tenth)| Spread {
            count,
            p50: Some(p50),
            p90: Some(p90),
            p99: Some(p99),
            worst,
            mean,
            worst_tenth,
        };
        assert_eq!(tally([9, 7]).spread(), Some(of(2, [7, 9, 9], 9, (8, None))));
        let spread = Some(of(99, [50, 90, 99], 99, (50, Some(95))));
        assert_eq!(tally(1..=99).spread(), spread, "the p99 is the worst");
        let spread = Some(of(1000, [500, 900, 990], 1000, (500, Some(950))));
        assert_eq!(tally((1..=1000).rev()).spread(), spread);
    }

    #[test]
    fn distribution_of_a_single_value_reports_no_quantiles() {
        let (p50, p90, p99, worst_tenth) = (None, None, None, None);
        let spread = Spread { count: 1, p50, p90, p99, worst: 7, mean: 7, worst_tenth };
        assert_eq!(tally([7]).spread(), Some(spread));
    }

    #[test]
    fn large_sample_quantiles_are_overestimated_by_at_most_a_thousandth() {
        let spread = tally((1..=1_000_000).map(|value| value * 12_345)).spread().unwrap();
        let exact = [500_000, 900_000, 990_000].map(|rank| rank * 12_345);
        let found = [spread.p50, spread.p90, spread.p99].map(Option::unwrap);
        for (found, exact) in found.into_iter().zip(exact) {
            assert!(found >= exact && found - exact < exact / 1000, "{found} for {exact}");
        }
        assert_eq!((spread.count, spread.worst), (1_000_000, 12_345_000_000));
        assert_eq!(spread.mean, 1_000_001 * 12_345 / 2);
        let (tenth, exact) = (spread.worst_tenth.unwrap(), 1_900_001 * 12_345 / 2);
        assert!(tenth >= exact && tenth - exact < exact / 1000, "{tenth} for {exact}");
    }

    #[test]
    fn distribution_includes_zero_and_the_largest_64_bit_value() {
        let spread = tally((0..3000).map(|_| 0).chain([u64::MAX])).spread().unwrap();
        assert_eq!((spread.p50, spread.p99, spread.worst), (Some(0), Some(0), u64::MAX));
    }

    #[test]
    fn confidence_interval_of_99th_percentile_equals_hand_computed_ranks() {
        let interval = |count: u64| tally((1..=count).rev()).p99_interval();
        let expected = |lower, upper| Some((Span::from_ns(lower), Span::from_ns(upper)));
        assert_eq!((interval(0), interval(1)), (None, None));
        // The rank is 248, and the margin 1.96 * sqrt(250 * 0.0099), rounded up.
        assert_eq!(interval(250), expected(244, 250));
        assert_eq!(interval(1_000), expected(983, 997));
    }

    #[test]
    fn cumulative_distribution_ends_at_the_worst_value() {
        for values in [10_u64, 5_000] {
            let mut tally = Tally::default();
            (1..=values).for_each(|value| tally.add_value(value * 1_000 / 3));
            tally.add_value(1_000 / 3);
            let steps = tally.steps();
            assert_eq!(steps[0], (Span::from_ns(333), 2));
            assert_eq!(steps[steps.len() - 1], (Span::from_ns(values * 1_000 / 3), values + 1));
            assert!(steps.windows(2).all(|pair| pair[0] < pair[1] && pair[0].1 < pair[1].1));
            // Half of the values are at most the median.
            let median = tally.distribution().unwrap().p50.unwrap();
            let at_most = steps.iter().rfind(|&&(value, _)| value <= median).unwrap().1;
            assert!(at_most * 2 > values, "{at_most} of {values}");
        }
        assert_eq!(Tally::default().steps(), []);
    }
}
