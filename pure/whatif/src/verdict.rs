//! Comparison of a recording with the simulation of that recording.

use slackline_units::{Reservation, Span};

use crate::form::Form;
use crate::measure::{Measures, SHARE_PPM};

/// Largest accepted difference between the recorded and the simulated share under ordinary
/// scheduling, in millionths of a CPU. This difference is also accepted for a vCPU that uses slack
/// on a live host, because ordinary scheduling divides the slack there.
pub const ORDINARY_SHARE_PPM: u64 = 10_000;
/// Largest accepted distance between the confidence intervals of the recorded and the simulated p99
/// wait, in percent of the recorded wait.
pub const WAIT_PERCENT: u64 = 20;
/// Largest absolute difference between the recorded and the simulated p99 wait that is always
/// accepted.
const WAIT_FLOOR: Span = Span::from_us(50);
/// Minimum number of wakes for which the [gate](crate::Gate) compares p99 waits. With fewer wakes,
/// p99 is the longest wait.
const WAKES: u64 = 100;

/// Divisor of a period. For counts of missed periods, a p99 wait is accepted if it differs from the
/// recorded p99 wait by at most the period divided by this number.
const WAIT_OF_PERIOD: u64 = 20;
/// Divisor of the recorded share. For counts of missed periods, a share is accepted if it differs
/// from the recorded share by at most the recorded share divided by this number.
const SHARE_OF_RECORDED: u64 = 50;

/// Comparison of a recording with its simulation in one form.
#[derive(Clone, Debug)]
pub struct FormGate {
    /// Form of the simulation: open or closed.
    pub form: Form,
    /// One row for each vCPU.
    pub rows: Vec<GateRow>,
}

/// Largest differences between a recording and its simulation that the [gate](crate::Gate) accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// A scheduler with reservations. The gate judges shares and waits.
    Reserved,
    /// A vCPU that uses slack on a live host. The kernel divides slack, so the [gate](crate::Gate)
    /// accepts the share error of ordinary scheduling. Waits are judged as for a vCPU that uses no
    /// slack.
    Slack,
    /// Ordinary scheduling, about which a recording contains less information than about
    /// reservations. So the [gate](crate::Gate) judges only shares. Waits are shown, but not
    /// judged.
    Ordinary,
}

impl Tolerance {
    /// Returns the largest accepted difference between the recorded and the simulated share of a
    /// vCPU, in millionths of a CPU.
    #[must_use]
    pub const fn share_ppm(self) -> u64 {
        match self {
            Tolerance::Reserved => SHARE_PPM,
            Tolerance::Slack | Tolerance::Ordinary => ORDINARY_SHARE_PPM,
        }
    }

    /// Returns true if the [gate](crate::Gate) judges waits as well as shares.
    #[must_use]
    pub const fn judges_waits(self) -> bool {
        !matches!(self, Tolerance::Ordinary)
    }
}

/// Recorded and simulated results of one vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateRow {
    /// Results in the second half of the recording.
    pub recorded: Measures,
    /// Simulated results in the second half of the recording. `None` if the vCPU is not simulated.
    pub simulated: Option<Measures>,
    /// Largest differences that the [gate](crate::Gate) accepts for this vCPU.
    pub tolerance: Tolerance,
    /// Difference between the shares in two parts of a recording that can be due to chance on a
    /// live host, in millionths of a CPU. The [gate](crate::Gate) accepts a difference of this size
    /// in addition to `tolerance`. Zero for a recording of a simulated host.
    pub chance_ppm: u64,
}

impl GateRow {
    /// Returns the difference between recorded and simulated share, in millionths of a CPU.
    #[must_use]
    pub fn share_error_ppm(&self) -> u64 {
        let simulated = self.simulated.as_ref().map_or(0, |it| it.share_ppm);
        simulated.abs_diff(self.recorded.share_ppm)
    }

    /// Returns the largest accepted difference between the recorded and the simulated share, in
    /// millionths of a CPU.
    fn accepted_share_ppm(&self) -> u64 {
        let exact = self.tolerance.share_ppm();
        exact.saturating_add(self.chance_ppm).min(ORDINARY_SHARE_PPM.max(exact))
    }

    /// Returns true if the recorded and the simulated share are close enough. They may differ by at
    /// most 0.1 percentage points plus [`chance_ppm`](Self::chance_ppm), but by no more than one
    /// percentage point. Under ordinary scheduling, or if the vCPU used slack on a live host, they
    /// may differ by one percentage point.
    #[must_use]
    pub fn has_share(&self) -> bool {
        self.simulated.is_some() && self.share_error_ppm() <= self.accepted_share_ppm()
    }

    /// Returns true if the recorded and the simulated p99 wait are close enough. The p99 of a few
    /// hundred wakes depends on the few longest waits, so each p99 is known only as an interval.
    /// The distance between the two intervals may be 50 us, or 20 % of the nearer bound of the
    /// recorded interval if that is more. Also true if the recording has too few wakes for a
    /// comparison.
    #[must_use]
    pub fn has_wait(&self) -> bool {
        self.has_wait_within(WAIT_FLOOR)
    }

    /// Returns true if the intervals of the recorded and the simulated p99 wait are close enough.
    /// Their distance may be `ignored`, or 20 % of the nearer bound of the recorded interval if
    /// that is more.
    fn has_wait_within(&self, ignored: Span) -> bool {
        let Some(simulated) = &self.simulated else { return false };
        let recorded = self.recorded.wait_p99_interval.filter(|_| self.recorded.wakes >= WAKES);
        let Some((least, most)) = recorded else { return true };
        let (simulated_least, simulated_most) = simulated.wait_p99_interval.unwrap_or_default();
        let is_near = |recorded: Span, distance: Span| {
            distance <= ignored || distance.ns() <= recorded.ns() / 100 * WAIT_PERCENT
        };
        is_near(least, least.left_after(simulated_most))
            && is_near(most, simulated_least.left_after(most))
    }

    /// Returns true if the simulation repeats the vCPU's recorded share and p99 wait.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.has_share() && (self.has_wait() || !self.tolerance.judges_waits())
    }

    /// Returns true if the simulation is close enough to count missed periods. The shares may
    /// differ by a fiftieth of the recorded share, or by the tolerance of [`GateRow::has_share`] if
    /// that is larger. The p99 waits may differ by 20 % of the recorded wait, a twentieth of the
    /// period or 50 us, whichever is largest. This is true for every row that
    /// [passes](Self::passes).
    #[must_use]
    pub fn repeats_periods(&self) -> bool {
        let share_ppm = self.accepted_share_ppm().max(self.recorded.share_ppm / SHARE_OF_RECORDED);
        let period = self.recorded.reserved.map_or(Span::ZERO, Reservation::period);
        let ignored = WAIT_FLOOR.max(period / WAIT_OF_PERIOD);
        self.simulated.is_some()
            && self.share_error_ppm() <= share_ppm
            && (self.has_wait_within(ignored) || !self.tolerance.judges_waits())
    }
}

impl FormGate {
    /// Returns true if the results of all vCPUs pass the [gate](crate::Gate).
    #[must_use]
    pub fn passes(&self) -> bool {
        self.rows.iter().all(GateRow::passes)
    }

    /// Returns true if the simulation of every vCPU is close enough to count missed periods.
    #[must_use]
    pub fn repeats_periods(&self) -> bool {
        self.rows.iter().all(GateRow::repeats_periods)
    }

    /// Returns the largest difference between the recorded and the simulated share of a vCPU, in
    /// millionths of a CPU.
    #[must_use]
    pub fn worst_share_ppm(&self) -> u64 {
        self.rows.iter().map(GateRow::share_error_ppm).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the results of a vCPU that reserves 2 ms in each 10 ms.
    fn measures(share_ppm: u64, wait_p99: Span) -> Measures {
        let reserved = Reservation::new(Span::from_ms(2), Span::from_ms(10)).ok();
        Measures {
            name: "web".into(),
            reserved,
            share_ppm,
            uses_slack: false,
            deadlines: Some(500),
            misses: Some(0),
            wakes: 500,
            wait_p50: None,
            wait_p99: Some(wait_p99),
            wait_p99_interval: Some((wait_p99, wait_p99)),
            response_p50: None,
            response_p99: None,
        }
    }

    fn row(share_ppm: u64, wait_p99: Span) -> GateRow {
        GateRow {
            recorded: measures(200_000, Span::from_us(300)),
            simulated: Some(measures(share_ppm, wait_p99)),
            tolerance: Tolerance::Reserved,
            chance_ppm: 0,
        }
    }

    #[test]
    fn whatif_compares_nearest_bounds_of_p99_wait_confidence_intervals() {
        let us = Span::from_us;
        let with = |recorded, simulated| {
            let mut row = row(200_000, us(300));
            row.recorded.wait_p99_interval = Some(recorded);
            if let Some(measures) = &mut row.simulated {
                measures.wait_p99_interval = Some(simulated);
            }
            row.has_wait()
        };
        assert!(with((us(300), us(400)), (us(480), us(900))), "20 % of 400 us");
        assert!(!with((us(300), us(400)), (us(481), us(900))));
        assert!(with((us(300), us(400)), (us(100), us(240))), "20 % of 300 us");
        assert!(!with((us(300), us(400)), (us(100), us(239))));
        assert!(with((us(100), us(110)), (us(160), us(170))), "50 us");
        let mut few = row(200_000, us(900));
        few.recorded.wakes = 100;
        assert!(!few.has_wait(), "100 wakes are compared");
        few.recorded.wakes = 99;
        assert!(few.has_wait(), "99 wakes are not compared");
    }

    #[test]
    fn whatif_allows_share_error_of_one_percentage_point_with_slack() {
        let us = Span::from_us(300);
        let slack =
            |share_ppm, wait| GateRow { tolerance: Tolerance::Slack, ..row(share_ppm, wait) };
        assert!(slack(210_000, us).passes() && !slack(210_001, us).passes());
        assert!(!slack(200_000, Span::from_us(900)).passes(), "waits are judged");
        assert!(row(201_000, us).passes() && !row(201_001, us).passes());
    }

    #[test]
    fn live_share_may_differ_by_at_most_one_percentage_point() {
        let us = Span::from_us(300);
        let live = |share_ppm, chance_ppm| GateRow { chance_ppm, ..row(share_ppm, us) };
        assert!(live(203_000, 2_000).passes() && !live(203_001, 2_000).passes());
        assert!(live(210_000, 50_000).passes() && !live(210_001, 50_000).passes());
    }

    #[test]
    fn whatif_counts_missed_periods_only_if_simulation_is_close_enough() {
        let close = row(203_900, Span::from_us(790));
        assert!(close.repeats_periods() && !close.passes());
        assert!(!row(204_100, Span::from_us(300)).repeats_periods());
        assert!(!row(200_000, Span::from_us(810)).repeats_periods());
        let absent = GateRow { simulated: None, ..row(200_000, Span::from_us(300)) };
        assert!(!absent.repeats_periods());
    }
}
