//! A number of many runs that differ in their seeds.

/// A number over all seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverSeeds {
    /// The lowest.
    pub lowest: f64,
    /// The middle one; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The highest.
    pub highest: f64,
}

impl OverSeeds {
    /// Of all seeds together; none of none.
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
    fn the_middle_of_an_even_number_is_between_two() {
        let of = |numbers: &[f64]| OverSeeds::of(numbers.iter().copied());
        let odd = OverSeeds { lowest: 1.0, median: 2.0, highest: 9.0 };
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(odd));
        let even = OverSeeds { lowest: 1.0, median: 3.0, highest: 9.0 };
        assert_eq!(of(&[4.0, 9.0, 1.0, 2.0]), Some(even));
        assert_eq!(of(&[]), None);
    }
}
