//! Scores of a managed run.

use slackline_units::{CpuShare, Span};

use super::{ManagedRound, ManagedRun};

/// Smallest change of the needed share that counts as a step, in percent of the larger value.
const STEP_PERCENT: u64 = 20;

/// Number of rounds for which the needed share must stay at its new value after a step.
const STEADY: usize = 6;

/// Largest difference between two needed shares in steady demand, in percent of the larger value.
const STEADY_PERCENT: u64 = 10;

/// Number of rounds after a change in which a change in the opposite direction counts as a
/// reversal.
const REVERSAL: usize = 10;

/// Largest difference, in percent, between a settled share and the last value of that share before
/// the next step of the demand.
const SETTLED_PERCENT: u64 = 10;

/// Scores of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Number of jobs. There is one job in each period that has demand.
    pub jobs: u64,
    /// Number of late jobs.
    pub misses: u64,
    /// Over-reservation: part of the reserved CPU time that was not used, in millionths.
    pub over_ppm: u64,
    /// Number of changed reservations.
    pub changes: u64,
    /// Number of changes in the opposite direction of the previous change, while demand was steady.
    pub reversals: u64,
    /// Number of rounds, summed over all VMs.
    pub vm_rounds: u64,
    /// Number of rounds from each step of the demand until the share has settled. The first round
    /// with the settled share counts too, because the manager can still undo the change in that
    /// round. `None` if the share has not settled before the next step.
    pub settled: Vec<Option<u64>>,
}

impl Score {
    /// Returns the sum of this score and the score of another run.
    #[must_use]
    pub fn and(mut self, other: &Score) -> Score {
        let weight = (self.vm_rounds + other.vm_rounds).max(1);
        self.over_ppm =
            (self.over_ppm * self.vm_rounds + other.over_ppm * other.vm_rounds) / weight;
        self.jobs += other.jobs;
        self.misses += other.misses;
        self.changes += other.changes;
        self.reversals += other.reversals;
        self.vm_rounds += other.vm_rounds;
        self.settled.extend(&other.settled);
        self
    }

    /// Returns the largest number of rounds until a share has settled. `None` if one share has not
    /// settled, or if there was no step.
    #[must_use]
    pub fn slowest(&self) -> Option<u64> {
        let all: Option<Vec<u64>> = self.settled.iter().copied().collect();
        all?.into_iter().max()
    }
}

/// Computes the scores of a run. `round` is the length of a round.
#[must_use]
pub fn score(run: &ManagedRun, round: Span) -> Score {
    let mut score = Score::default();
    let (mut reserved, mut unused) = (0_u128, 0_u128);
    for it in &run.rounds {
        score.jobs += it.jobs.iter().sum::<u64>();
        score.misses += it.misses.iter().sum::<u64>();
        for (share, used) in it.shares.iter().zip(&it.used) {
            let share = u128::from(share.ppm()) * u128::from(round.ns()) / 1_000_000;
            reserved += share;
            unused += share.saturating_sub(u128::from(used.ns()));
        }
    }
    score.over_ppm = u64::try_from(unused * 1_000_000 / reserved.max(1)).unwrap_or(u64::MAX);
    for vm in 0..run.names.len() {
        let of = |of: fn(&ManagedRound) -> &Vec<CpuShare>| -> Vec<u64> {
            run.rounds.iter().map(|round| u64::from(of(round)[vm].ppm())).collect()
        };
        let (shares, needs) = (of(|round| &round.shares), of(|round| &round.needs));
        score.vm_rounds += shares.len() as u64;
        score.changes += shares.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64;
        score.reversals += reversals(&shares, &needs);
        score.settled.extend(settled(&shares, &needs));
    }
    score
}

/// Returns true if two values differ by more than this percentage of the larger.
fn differ(one: u64, other: u64, percent: u64) -> bool {
    one.abs_diff(other) * 100 > one.max(other) * percent
}

fn reversals(shares: &[u64], needs: &[u64]) -> u64 {
    let mut count = 0;
    let mut last: Option<(usize, bool)> = None;
    for at in 1..shares.len() {
        if shares[at] == shares[at - 1] {
            continue;
        }
        let rises = shares[at] > shares[at - 1];
        if let Some((before, rose)) = last.filter(|(before, _)| at - before <= REVERSAL) {
            // The share of a round depends on the demand of the previous rounds.
            let span = &needs[before.saturating_sub(2)..at];
            let (least, most) = (span.iter().min(), span.iter().max());
            let is_steady =
                least.zip(most).is_some_and(|(&one, &other)| !differ(one, other, STEADY_PERCENT));
            count += u64::from(rose != rises && is_steady);
        }
        last = Some((at, rises));
    }
    count
}

fn settled(shares: &[u64], needs: &[u64]) -> Vec<Option<u64>> {
    let is_step = |at: usize| differ(needs[at], needs[at - 1], STEP_PERCENT);
    let mut all = Vec::new();
    for at in (1..needs.len()).filter(|&at| is_step(at)) {
        let end = (at + 1..needs.len()).find(|&at| is_step(at)).unwrap_or(needs.len());
        let is_steady = needs[at..end].iter().all(|&it| !differ(it, needs[at], STEADY_PERCENT));
        if end - at < STEADY || !is_steady {
            continue;
        }
        let last = shares[end - 1];
        let open = (at..end).rev().find(|&at| differ(shares[at], last, SETTLED_PERCENT));
        // The first round with the final share is the canary's round, and counts as well.
        all.push(match open {
            None => Some(0),
            Some(open) if open + 2 < end => Some((open + 1 - at) as u64 + 1),
            Some(_) => None,
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_score_counts_share_reversals_only_while_demand_is_steady() {
        let shares = [30, 40, 40, 30, 30, 40];
        assert_eq!(reversals(&shares, &[25; 6]), 2);
        assert_eq!(reversals(&shares, &[25, 25, 40, 25, 25, 40]), 0);
    }

    #[test]
    fn settling_time_after_a_demand_step_includes_the_canary_round() {
        let needs = [20, 20, 40, 40, 40, 40, 40, 40, 40, 40];
        let shares = [25, 25, 25, 40, 45, 45, 45, 45, 45, 45];
        assert_eq!(settled(&shares, &needs), [Some(3)]);
        let shares = [25, 25, 45, 45, 45, 45, 45, 45, 45, 45];
        assert_eq!(settled(&shares, &needs), [Some(0)]);
        let shares = [25, 25, 25, 25, 25, 25, 25, 25, 25, 45];
        assert_eq!(settled(&shares, &needs), [None]);
    }
}
