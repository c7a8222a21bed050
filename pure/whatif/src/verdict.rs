//! Comparison of a recording with its own simulation.

use slackline_units::Span;

use crate::form::Form;
use crate::measure::Measures;

/// Largest accepted difference between the recorded and the simulated share, in millionths of a
/// CPU.
pub const SHARE_PPM: u64 = 1_000;
/// Largest difference of a share under ordinary scheduling, in millionths of a CPU.
pub const ORDINARY_SHARE_PPM: u64 = 10_000;
/// Largest accepted difference between the recorded and the simulated p99 wait, in percent of the
/// recorded p99 wait.
pub const WAIT_PERCENT: u64 = 20;
/// Largest difference between two p99 waits that is ignored.
const WAIT_FLOOR: Span = Span::from_us(50);
/// Minimum number of wakes for which the gate compares p99 waits. With fewer wakes, p99 is the
/// longest wait.
const WAKES: u64 = 100;

/// Comparison of a recording with its simulation in one form.
#[derive(Clone, Debug)]
pub struct FormGate {
    /// Form of the simulation: open or closed.
    pub form: Form,
    /// One row for each vCPU.
    pub rows: Vec<GateRow>,
    /// Recorded results of each vCPU, from the end of the warm-up to the end of the recording.
    pub whole: Vec<Measures>,
}

/// Differences of a simulation from its recording that the gate accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// A scheduler with reservations: shares and waits are judged.
    Reserved,
    /// Ordinary scheduling, of which a recording tells less: shares are judged, waits are stated.
    Ordinary,
}

impl Tolerance {
    /// Returns the largest difference of a share, in millionths of a CPU.
    #[must_use]
    pub const fn share_ppm(self) -> u64 {
        match self {
            Tolerance::Reserved => SHARE_PPM,
            Tolerance::Ordinary => ORDINARY_SHARE_PPM,
        }
    }

    /// Returns true if waits are judged.
    #[must_use]
    pub const fn judges_waits(self) -> bool {
        matches!(self, Tolerance::Reserved)
    }
}

/// Recorded and simulated results of one vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateRow {
    /// Results in the second half of the recording.
    pub recorded: Measures,
    /// Simulated results in the second half of the recording. `None` if the vCPU is not simulated.
    pub simulated: Option<Measures>,
    /// Differences that the gate accepts.
    pub tolerance: Tolerance,
}

impl GateRow {
    /// Returns the difference between recorded and simulated share, in millionths of a CPU.
    #[must_use]
    pub fn share_error_ppm(&self) -> u64 {
        let simulated = self.simulated.as_ref().map_or(0, |it| it.share_ppm);
        simulated.abs_diff(self.recorded.share_ppm)
    }

    /// Returns true if the recorded and the simulated share differ by at most 0.1 percentage
    /// points, or by one point under
    /// ordinary scheduling.
    #[must_use]
    pub fn has_share(&self) -> bool {
        self.simulated.is_some() && self.share_error_ppm() <= self.tolerance.share_ppm()
    }

    /// Returns true if the recorded and the simulated p99 wait differ by at most 20 % or 50 us, or
    /// cannot be compared.
    #[must_use]
    pub fn has_wait(&self) -> bool {
        let Some(simulated) = &self.simulated else { return false };
        let Some(recorded) = self.recorded.wait_p99.filter(|_| self.recorded.wakes >= WAKES) else {
            return true;
        };
        let error =
            Span::from_ns(recorded.ns().abs_diff(simulated.wait_p99.unwrap_or_default().ns()));
        error <= WAIT_FLOOR || error.ns() <= recorded.ns() / 100 * WAIT_PERCENT
    }

    /// Returns true if the simulation repeats the vCPU's recorded share and p99 wait.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.has_share() && (self.has_wait() || !self.tolerance.judges_waits())
    }
}

impl FormGate {
    /// Returns true if the results of all vCPUs pass the gate.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.rows.iter().all(GateRow::passes)
    }

    /// Returns the largest difference of any vCPU's share, in millionths of a CPU.
    #[must_use]
    pub fn worst_share_ppm(&self) -> u64 {
        self.rows.iter().map(GateRow::share_error_ppm).max().unwrap_or(0)
    }
}
