//! Statistics of a value over runs that differ only in their seeds.

/// Statistics of a value over all seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverSeeds {
    /// Lowest of all values.
    pub lowest: f64,
    /// Median. If the number of values is even, the median is the mean of the two middle values.
    pub median: f64,
    /// Highest of all values.
    pub highest: f64,
}

impl OverSeeds {
    /// Returns the statistics of some values. `None` if there are none.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<OverSeeds> {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let (lowest, highest) = (*numbers.first()?, *numbers.last()?);
        let (low, high) = (numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2]);
        Some(OverSeeds { lowest, median: f64::midpoint(low, high), highest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_four_values_is_midpoint_of_middle_two() {
        let of = |numbers: &[f64]| OverSeeds::of(numbers.iter().copied());
        let odd = OverSeeds { lowest: 1.0, median: 2.0, highest: 9.0 };
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(odd));
        let even = OverSeeds { lowest: 1.0, median: 3.0, highest: 9.0 };
        assert_eq!(of(&[4.0, 9.0, 1.0, 2.0]), Some(even));
        assert_eq!(of(&[]), None);
    }
}
