//! Burst models: when a VM is runnable in an interval of which only the mean use is known.

use std::str::FromStr;

use slackline_scenario::{Draw, Stream};
use slackline_units::Span;

/// Number of millionths in the number one.
const MILLION: u128 = 1_000_000;

/// Assumption about the times in an interval at which a VM is runnable. Each model gives the same
/// amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstModel {
    /// Jobs of equal length at equal distances: the kindest assumption.
    Even,
    /// Jobs of exponential length at random times, drawn from the seed.
    Random,
    /// One job at the start of the interval: the harshest assumption.
    Block,
}

impl BurstModel {
    /// All models, with their names in their order.
    pub const NAMES: [&'static str; 3] = ["even", "random", "block"];

    /// Returns the name of the model on the command line and in a scenario.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BurstModel::Even => "even",
            BurstModel::Random => "random",
            BurstModel::Block => "block",
        }
    }
}

impl FromStr for BurstModel {
    type Err = String;

    fn from_str(text: &str) -> Result<BurstModel, String> {
        match text {
            "even" => Ok(BurstModel::Even),
            "random" => Ok(BurstModel::Random),
            "block" => Ok(BurstModel::Block),
            _ => Err(format!(
                "there is no burst model `{text}`; there are {}",
                BurstModel::NAMES.join(", ")
            )),
        }
    }
}

/// A job: the time from the start of the run at which it is ready, and its CPU time.
pub(crate) type Job = (Span, Span);

/// Writes the jobs of one vCPU, interval by interval.
#[derive(Debug)]
pub(crate) struct Bursts {
    model: BurstModel,
    interval: Span,
    burst: Span,
    stream: Stream,
    /// Number of intervals so far.
    count: u64,
}

impl Bursts {
    pub(crate) fn new(model: BurstModel, interval: Span, burst: Span, stream: Stream) -> Bursts {
        Bursts { model, interval, burst: burst.min(interval), stream, count: 0 }
    }

    /// Returns an upper limit of the number of jobs of an interval, in all models but `random`, and
    /// the mean number of a busy interval in `random`.
    pub(crate) fn most_jobs(interval: Span, burst: Span) -> u64 {
        interval.ns().div_ceil(burst.ns().max(1)).max(1)
    }

    /// Adds the jobs of the next interval, in which the vCPU used `ppm` millionths of a CPU.
    pub(crate) fn extend(&mut self, ppm: u64, jobs: &mut Vec<Job>) {
        let start = self.interval * self.count;
        self.count += 1;
        let work = part(self.interval, ppm);
        match self.model {
            BurstModel::Block => push(jobs, start, work),
            BurstModel::Even => {
                let mut begin = Span::ZERO;
                let mut done = Span::ZERO;
                while begin < self.interval {
                    // Rounding is spread over the interval, so that its sum is exact.
                    let end = (begin + self.burst).min(self.interval);
                    let due = part(end, ppm);
                    push(jobs, start + begin, due - done);
                    (begin, done) = (end, due);
                }
            }
            BurstModel::Random => self.draw(start, work, jobs),
        }
    }

    fn draw(&mut self, start: Span, work: Span, jobs: &mut Vec<Job>) {
        let length = Draw::Exponential { mean: self.burst };
        let last = self.interval - Span::from_ns(1);
        let at = Draw::Uniform { least: Span::ZERO, most: last };
        let mut rest = work;
        let mut drawn = Vec::new();
        while !rest.is_zero() {
            let one = self.stream.draw(&length).max(Span::from_us(1)).min(rest);
            drawn.push((start + self.stream.draw(&at), one));
            rest -= one;
        }
        drawn.sort_unstable();
        jobs.append(&mut drawn);
    }
}

fn push(jobs: &mut Vec<Job>, at: Span, work: Span) {
    if !work.is_zero() {
        jobs.push((at, work));
    }
}

/// Returns `ppm` millionths of a duration, rounded down.
fn part(of: Span, ppm: u64) -> Span {
    let ns = u128::from(of.ns()) * u128::from(ppm) / MILLION;
    Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slackline_scenario::{Purpose, Stream};
    use slackline_units::Span;

    use super::{BurstModel, Bursts, part};

    const MODELS: [BurstModel; 3] = [BurstModel::Even, BurstModel::Random, BurstModel::Block];

    proptest! {
        #[test]
        fn each_burst_model_gives_exactly_the_work_of_every_interval(
            model in prop::sample::select(MODELS.to_vec()),
            uses in prop::collection::vec(0_u64..=1_000_000, 1..6),
            interval in 1_u64..3_000, burst in 1_u64..500, seed: u64,
        ) {
            let interval = Span::from_ms(interval);
            let stream = Stream::new(seed, 0, Purpose::Work);
            let mut bursts = Bursts::new(model, interval, Span::from_ms(burst), stream);
            let mut last = Span::ZERO;
            for (number, &ppm) in (0..).zip(&uses) {
                let mut jobs = Vec::new();
                bursts.extend(ppm, &mut jobs);
                let work = jobs.iter().fold(Span::ZERO, |sum, &(_, work)| sum + work);
                prop_assert_eq!(work, part(interval, ppm));
                for (at, work) in jobs {
                    prop_assert!(at >= interval * number && at < interval * (number + 1));
                    prop_assert!(at >= last && !work.is_zero());
                    last = at;
                }
            }
        }
    }

    #[test]
    fn even_jobs_of_half_a_cpu_begin_at_every_multiple_of_the_burst() {
        let stream = Stream::new(1, 0, Purpose::Work);
        let (interval, burst) = (Span::from_ms(25), Span::from_ms(10));
        let mut bursts = Bursts::new(BurstModel::Even, interval, burst, stream);
        let mut jobs = Vec::new();
        bursts.extend(500_000, &mut jobs);
        bursts.extend(0, &mut jobs);
        bursts.extend(500_000, &mut jobs);
        let ms = |at: u64, tenths: u64| (Span::from_ms(at), Span::from_us(tenths * 100));
        assert_eq!(jobs, [ms(0, 50), ms(10, 50), ms(20, 25), ms(50, 50), ms(60, 50), ms(70, 25)]);
    }
}
