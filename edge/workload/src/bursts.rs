//! Burst models. A burst model decides at which times in an interval a VM is runnable, if only the
//! mean use in the interval is known.

use std::str::FromStr;

use slackline_scenario::{Draw, Purpose, Stream};
use slackline_units::Span;

/// Number of millionths in the number one.
const MILLION: u128 = 1_000_000;

/// Assumption about the times in an interval at which a VM is runnable. Each model gives the same
/// amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstModel {
    /// Jobs of equal length at equal distances. The jobs of different VMs begin at different times.
    /// This is the assumption with the least contention.
    Even,
    /// Jobs of exponential length at random times, drawn from the seed. Alone on its CPU, a VM
    /// completes each job before the next job is ready.
    Random,
    /// One job at the start of the interval, for all VMs at the same time. This is the assumption
    /// with the most contention.
    Block,
}

impl BurstModel {
    /// Names of all models.
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

/// Generator of the jobs of one vCPU, one interval after another.
#[derive(Debug)]
pub(crate) struct Bursts {
    model: BurstModel,
    interval: Span,
    burst: Span,
    stream: Stream,
    /// Delay of each job of the model `even` after the start of its burst, in thousandths of the
    /// burst's idle time.
    delay: u64,
    /// Number of intervals so far.
    count: u64,
}

impl Bursts {
    /// Creates the generator for the VM with the number `vm`.
    pub(crate) fn new(
        model: BurstModel,
        (interval, burst): (Span, Span),
        (vm, seed): (u64, u64),
    ) -> Bursts {
        // Multiples of the golden ratio are spread evenly, however many VMs there are.
        let delay = vm * 618 % 1_000;
        let stream = Stream::new(seed, vm, Purpose::Work);
        Bursts { model, interval, burst: burst.min(interval), stream, delay, count: 0 }
    }

    /// Returns an upper limit of the number of jobs in an interval. In the model `random` there is
    /// no limit, and the result is the mean number of jobs in a busy interval.
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
                    let work = due - done;
                    let idle = (end - begin).left_after(work);
                    push(jobs, start + begin + idle / 1_000 * self.delay, work);
                    (begin, done) = (end, due);
                }
            }
            BurstModel::Random => self.draw(start, work, jobs),
        }
    }

    /// Draws jobs that follow each other without overlap, and the idle times between them.
    fn draw(&mut self, start: Span, work: Span, jobs: &mut Vec<Job>) {
        let length = Draw::Exponential { mean: self.burst };
        let idle = Draw::Uniform { least: Span::ZERO, most: self.interval - work };
        let mut rest = work;
        let mut lengths = Vec::new();
        while !rest.is_zero() {
            let one = self.stream.draw(&length).max(Span::from_us(1)).min(rest);
            lengths.push(one);
            rest -= one;
        }
        let mut pauses: Vec<Span> = lengths.iter().map(|_| self.stream.draw(&idle)).collect();
        pauses.sort_unstable();
        let mut done = Span::ZERO;
        for (pause, length) in pauses.into_iter().zip(lengths) {
            jobs.push((start + pause + done, length));
            done += length;
        }
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
    use slackline_units::Span;

    use super::{BurstModel, Bursts, part};

    const MODELS: [BurstModel; 3] = [BurstModel::Even, BurstModel::Random, BurstModel::Block];

    proptest! {
        #[test]
        fn burst_model_jobs_add_up_to_work_of_each_interval(
            model in prop::sample::select(MODELS.to_vec()),
            uses in prop::collection::vec(0_u64..=1_000_000, 1..6),
            interval in 1_u64..3_000, burst in 1_u64..500, vm in 0_u64..50, seed: u64,
        ) {
            let interval = Span::from_ms(interval);
            let mut bursts = Bursts::new(model, (interval, Span::from_ms(burst)), (vm, seed));
            for (number, &ppm) in (0..).zip(&uses) {
                let mut jobs = Vec::new();
                bursts.extend(ppm, &mut jobs);
                let work = jobs.iter().fold(Span::ZERO, |sum, &(_, work)| sum + work);
                prop_assert_eq!(work, part(interval, ppm));
                // Alone on its CPU, the VM completes each job before the next job is ready, and
                // within the interval.
                let mut free = interval * number;
                for (at, work) in jobs {
                    prop_assert!(at >= free && !work.is_zero());
                    free = at + work;
                }
                prop_assert!(free <= interval * (number + 1));
            }
        }
    }

    #[test]
    fn even_burst_model_spaces_jobs_equally_within_each_busy_interval() {
        let (interval, burst) = (Span::from_ms(25), Span::from_ms(10));
        let mut bursts = Bursts::new(BurstModel::Even, (interval, burst), (0, 1));
        let mut jobs = Vec::new();
        bursts.extend(500_000, &mut jobs);
        bursts.extend(0, &mut jobs);
        bursts.extend(500_000, &mut jobs);
        let ms = |at: u64, tenths: u64| (Span::from_ms(at), Span::from_us(tenths * 100));
        assert_eq!(jobs, [ms(0, 50), ms(10, 50), ms(20, 25), ms(50, 50), ms(60, 50), ms(70, 25)]);
    }

    #[test]
    fn even_burst_model_starts_jobs_of_vms_at_different_times() {
        let first = |vm| {
            let spans = (Span::from_secs(1), Span::from_ms(100));
            let mut jobs = Vec::new();
            Bursts::new(BurstModel::Even, spans, (vm, 1)).extend(200_000, &mut jobs);
            jobs[0].0
        };
        let mut starts = [0, 1, 2, 3].map(first);
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] > Span::from_ms(9)), "{starts:?}");
    }
}
