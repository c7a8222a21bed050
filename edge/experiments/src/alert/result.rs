//! Results of an allocation error test: errors by target share and seed, and statistics of these
//! errors.

use slackline_metrics::AllocationErrors;
use slackline_units::CpuShare;

use crate::over_seeds::OverSeeds;

/// Results of one case, or of one mechanism on this host.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// Text of the case, as users write it.
    pub name: String,
    /// Policy or host that enforced the limit.
    pub limiter: Limiter,
    /// Runs in order of seed, then of target.
    pub runs: Vec<DomainErrors>,
}

/// Enforcer of the limit: a simulated policy or this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limiter {
    /// A simulated policy with this name.
    Policy(&'static str),
    /// This host, with one of its mechanisms.
    Host,
}

/// Errors of one domain at one target share, in millionths of the target.
#[derive(Clone, Debug)]
pub struct DomainErrors {
    /// Target share to which the domain was limited.
    pub target: CpuShare,
    /// Seed of the run. Zero if the run used no random numbers.
    pub seed: u64,
    /// Error of each second in millionths: (CPU time used - target) / target.
    pub seconds: Vec<i64>,
    /// Error over all seconds together, in millionths.
    pub average: i64,
}

/// Converts millionths to percent.
#[must_use]
pub fn percent(ppm: i64) -> f64 {
    ppm as f64 / 1e4
}

impl CaseResult {
    /// Returns the target shares in ascending order.
    #[must_use]
    pub fn targets(&self) -> Vec<CpuShare> {
        let mut targets: Vec<CpuShare> = self.runs.iter().map(|run| run.target).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    fn seeds(&self) -> Vec<u64> {
        let mut seeds: Vec<u64> = self.runs.iter().map(|run| run.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        seeds
    }

    /// Returns the errors of all seconds at the target shares that `wanted` selects. If `seed` is
    /// `None`, errors with every seed are returned.
    #[must_use]
    pub fn errors(&self, seed: Option<u64>, wanted: impl Fn(CpuShare) -> bool) -> AllocationErrors {
        let is_wanted =
            |run: &&DomainErrors| seed.is_none_or(|seed| run.seed == seed) && wanted(run.target);
        self.runs.iter().filter(is_wanted).flat_map(|run| run.seconds.iter().copied()).collect()
    }

    /// Computes a number from the errors with each seed, and returns the statistics of these
    /// numbers over the seeds. `None` if no seed has a number.
    #[must_use]
    pub fn over_seeds(
        &self,
        wanted: impl Fn(CpuShare) -> bool,
        number: impl Fn(&AllocationErrors) -> Option<f64>,
    ) -> Option<OverSeeds> {
        let of_seed = |seed| number(&self.errors(Some(seed), &wanted));
        OverSeeds::of(self.seeds().into_iter().filter_map(of_seed))
    }

    /// Returns statistics of the error of whole runs at a target share, over the seeds. `None` if
    /// there are no runs.
    #[must_use]
    pub fn averages(&self, target: CpuShare) -> Option<OverSeeds> {
        let runs = self.runs.iter().filter(|run| run.target == target);
        OverSeeds::of(runs.map(|run| percent(run.average)))
    }

    /// Returns two counts: seconds with a negative error, and seconds with a positive error.
    #[must_use]
    pub fn signs(&self) -> (usize, usize) {
        let errors = self.runs.iter().flat_map(|run| &run.seconds);
        let under = errors.clone().filter(|&&error| error < 0).count();
        (under, errors.filter(|&&error| error > 0).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alert_allocation_errors_can_be_selected_by_seed_and_target() {
        let run = |ppm, seed, seconds: &[i64]| DomainErrors {
            target: CpuShare::from_ppm(ppm),
            seed,
            seconds: seconds.to_vec(),
            average: seconds.iter().sum::<i64>() / 2,
        };
        let runs = vec![
            run(10_000, 1, &[-100_000, 300_000]),
            run(20_000, 1, &[0, 0]),
            run(10_000, 2, &[-200_000, 100_000]),
            run(20_000, 2, &[10_000, 0]),
        ];
        let result = CaseResult { name: "it".into(), limiter: Limiter::Host, runs };
        assert_eq!(result.targets(), [10_000, 20_000].map(CpuShare::from_ppm));
        assert_eq!(result.signs(), (2, 3));
        let largest = result.over_seeds(|_| true, |errors| errors.largest().map(percent));
        assert_eq!(largest, Some(OverSeeds { lowest: 10.0, median: 20.0, highest: 30.0 }));
        let averages = result.averages(CpuShare::from_ppm(10_000));
        assert_eq!(averages, Some(OverSeeds { lowest: -5.0, median: 2.5, highest: 10.0 }));
        let small = |target: CpuShare| target.ppm() < 20_000;
        assert_eq!(result.errors(None, small).sorted(), [-200_000, -100_000, 100_000, 300_000]);
    }
}
