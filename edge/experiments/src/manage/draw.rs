//! Series of demand that are drawn from a seed.

use slackline_scenario::{Purpose, Stream};
use slackline_units::Span;

use super::series::Series;

/// Number of VMs of a drawn series.
const VMS: u64 = 4;

/// Number of rounds of a drawn series.
const ROUNDS: u64 = 60;

/// Largest sum of the demand of all VMs in a round, in millionths of a CPU.
const MOST: u64 = 760_000;

/// Smallest demand of a VM, in millionths of a CPU.
const LEAST: u64 = 10_000;

/// Name and period in milliseconds of each VM.
const PERIODS: [(&str, u64); 4] = [("web", 10), ("db", 20), ("app", 10), ("cache", 50)];

/// Draws the series of a seed. There are four kinds of series: steps, a daily wave, wandering
/// demand, and bursts. Four consecutive seeds give one series of each kind.
#[must_use]
pub fn drawn_series(seed: u64) -> Series {
    let kind = seed % 4;
    let mut stream = Stream::new(seed, kind, Purpose::Host);
    let mut columns = Vec::new();
    for _ in 0..VMS {
        let mean = 40_000 + number(&mut stream, 160_000);
        columns.push(match kind {
            0 => steps(&mut stream, mean),
            1 => wave(&mut stream, mean),
            2 => wandering(&mut stream, mean),
            _ => bursts(&mut stream, mean),
        });
    }
    let round = |round: usize| {
        let sum: u64 = columns.iter().map(|column| column[round].max(LEAST)).sum();
        let fitted = columns.iter().map(|column| match sum > MOST {
            true => column[round].max(LEAST) * MOST / sum,
            false => column[round].max(LEAST),
        });
        fitted.map(|ppm| u32::try_from(ppm).expect("a share is at most one CPU")).collect()
    };
    let word = ["steps", "daily waves", "wandering demand", "bursts"];
    let kind = usize::try_from(kind).expect("there are four kinds");
    Series {
        title: format!("drawn by seed {seed}: {}", word[kind]),
        vms: PERIODS.map(|(name, ms)| (name.to_owned(), Span::from_ms(ms))).to_vec(),
        rounds: (0..columns[0].len()).map(round).collect(),
    }
}

/// Draws a number below `bound`.
fn number(stream: &mut Stream, bound: u64) -> u64 {
    stream.pick(usize::try_from(bound.max(1)).expect("bounds are small")) as u64
}

/// Varies a demand by up to 3 %.
fn varied(stream: &mut Stream, ppm: u64) -> u64 {
    stream.vary(Span::from_ns(ppm), 30_000).ns()
}

/// Demand that keeps a level for 10 to 24 rounds. Each level is half to twice the mean.
fn steps(stream: &mut Stream, mean: u64) -> Vec<u64> {
    let mut column = Vec::new();
    while (column.len() as u64) < ROUNDS {
        let level = mean / 2 + number(stream, mean * 3 / 2);
        let length = 10 + number(stream, 15);
        column.extend((0..length).map(|_| varied(stream, level)));
    }
    first_rounds(column)
}

/// Returns the demand of the first [`ROUNDS`] rounds of a column.
fn first_rounds(column: Vec<u64>) -> Vec<u64> {
    column.into_iter().zip(0..ROUNDS).map(|(demand, _)| demand).collect()
}

/// Demand that rises and falls once, as a parabola between half and one and a half times the mean.
fn wave(stream: &mut Stream, mean: u64) -> Vec<u64> {
    let phase = number(stream, ROUNDS);
    let level = |round: u64| {
        let at = (round + phase) % ROUNDS;
        mean / 2 + mean * 4 * at * (ROUNDS - at) / (ROUNDS * ROUNDS)
    };
    (0..ROUNDS).map(|round| varied(stream, level(round))).collect()
}

/// Demand that changes by up to 8 % of the mean in each round, and returns to the mean.
fn wandering(stream: &mut Stream, mean: u64) -> Vec<u64> {
    let mut level = mean;
    let next = |_| {
        let step = number(stream, mean * 16 / 100);
        level = (level + step).saturating_sub(mean * 8 / 100);
        level = (level * 9 + mean) / 10;
        level
    };
    (0..ROUNDS).map(next).collect()
}

/// Demand with bursts of 3 to 8 rounds, of up to three times the mean.
fn bursts(stream: &mut Stream, mean: u64) -> Vec<u64> {
    let mut column = Vec::new();
    while (column.len() as u64) < ROUNDS {
        let (quiet, long) = (8 + number(stream, 12), 3 + number(stream, 6));
        let high = mean + number(stream, mean * 2);
        column.extend((0..quiet).map(|_| varied(stream, mean)));
        column.extend((0..long).map(|_| varied(stream, high)));
    }
    first_rounds(column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_demand_series_fit_one_cpu_and_differ_by_seed() {
        for seed in 0..40 {
            let series = drawn_series(seed);
            assert_eq!(series, drawn_series(seed));
            assert_ne!(series.rounds, drawn_series(seed + 4).rounds);
            assert_eq!(series.rounds.len() as u64, ROUNDS);
            let sums = series.rounds.iter().map(|round| round.iter().sum::<u32>());
            assert!(sums.max() <= Some(760_000), "{}", series.title);
            // The written series is exact to a tenth of a percent.
            let read = Series::read(&series.write()).expect("a written series can be read");
            assert_eq!((read.title, read.vms), (series.title, series.vms));
        }
    }
}
