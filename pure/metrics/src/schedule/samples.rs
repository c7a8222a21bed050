//! Histograms of lengths of time. A run is divided into [`BLOCKS`] parts of equal length
//! (*blocks*), and each block has its own histogram.

use slackline_units::Span;

use super::BLOCKS;

/// Number of bits of a length that a histogram keeps, after the leading bit. So 16 steps cover each
/// doubling of the length.
const BITS: u32 = 4;

/// Number of steps in the histogram of one block.
const STEPS: usize = (64 - BITS as usize + 1) << BITS;

/// Histograms of the samples of a run, one for each of the run's [`BLOCKS`] blocks.
#[derive(Clone, Debug)]
pub(crate) struct Samples {
    /// For each block, the steps that have samples, each with the number of its samples. A list is
    /// not longer than the number of samples, so a small trace with many VMs needs little memory
    /// and time.
    blocks: Vec<Vec<(usize, u32)>>,
}

/// Samples of several blocks together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    /// Number of samples in each step. The list ends with the longest sample.
    counts: Vec<u32>,
    count: u64,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples { blocks: vec![Vec::new(); BLOCKS] }
    }
}

impl Samples {
    pub(crate) fn add(&mut self, block: usize, length: Span) {
        let (steps, step) = (&mut self.blocks[block], step_of(length.ns()));
        match steps.binary_search_by_key(&step, |(step, _)| *step) {
            Ok(at) => steps[at].1 = steps[at].1.saturating_add(1),
            Err(at) => steps.insert(at, (step, 1)),
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.blocks.iter().flatten().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Returns the samples of the given blocks together. A block that is given several times counts
    /// several times.
    pub(crate) fn of(&self, blocks: impl Iterator<Item = usize>) -> Histogram {
        let mut sum = Histogram::default();
        for &(step, count) in blocks.flat_map(|block| &self.blocks[block]) {
            if sum.counts.len() <= step {
                sum.counts.resize(step + 1, 0);
            }
            sum.counts[step] = sum.counts[step].saturating_add(count);
            sum.count += u64::from(count);
        }
        sum
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(*count);
        }
        self.count += other.count;
    }

    /// Returns the length, in nanoseconds, that `percent` of the samples do not exceed. The result
    /// is at most 1/16 too low. `None` if there are no samples.
    pub(crate) fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (step, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return Some(least_of(step));
            }
        }
        None
    }
}

/// Returns the histogram step of a length. Each nanosecond below 16 ns is one step. From 16 ns on,
/// each doubling of the length has 16 steps.
fn step_of(ns: u64) -> usize {
    let bits = 64 - ns.leading_zeros();
    if bits <= BITS {
        return usize::try_from(ns).unwrap_or(0);
    }
    let shift = bits - BITS - 1;
    let step = (u64::from(shift + 1) << BITS) + ((ns >> shift) & ((1 << BITS) - 1));
    usize::try_from(step).unwrap_or(STEPS).min(STEPS - 1)
}

/// Returns the smallest length that belongs to a step.
fn least_of(step: usize) -> u64 {
    let step = step as u64;
    let (shift, rest) = (step >> BITS, step & ((1 << BITS) - 1));
    match shift {
        0 => rest,
        _ => ((1 << BITS) | rest) << (shift - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_step_lower_bound_is_within_a_sixteenth_of_value() {
        let mut last = 0;
        for ns in (0..64).map(|bit| 1_u64 << bit).flat_map(|ns| [ns, ns + ns / 3, ns + ns / 2]) {
            let least = least_of(step_of(ns));
            assert!(least <= ns && ns - least <= ns / 16, "{ns}: {least}");
            assert!(step_of(ns) >= last, "{ns}");
            last = step_of(ns);
        }
    }

    #[test]
    fn merged_histogram_percentile_is_within_a_sixteenth_of_exact_value() {
        let mut samples = Samples::default();
        for ns in 1..=100_u64 {
            samples.add(usize::from(ns % 2 == 0), Span::from_ns(ns * 1_000));
        }
        let both = samples.of(0..2);
        let near = |found: Option<u64>, ns: u64| {
            let found = found.expect("samples");
            assert!(found <= ns && found >= ns - ns / 16, "{found} and not {ns}");
        };
        near(both.percentile(50), 50_000);
        near(both.percentile(99), 99_000);
        assert_eq!(samples.of(2..3).percentile(50), None);
    }
}
