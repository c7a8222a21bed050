//! Plans: what a principal changed last, so that it can be undone, and how far a canary is.
//!
//! A plan with a canary changes one VM first. The service watches this VM for a stated time, and
//! compares it with the prediction. Then it changes the rest, or restores the first VM. Each stage
//! is written to the ledger in the commit that makes its changes.

use slackline_units::{Span, Time};

use crate::name::Name;
use crate::principal::{Principal, Role};
use crate::row::Row;

/// Longest time for which a canary is watched.
pub const LONGEST_WATCH: Span = Span::from_secs(600);

/// Shortest time for which a canary is watched.
pub const SHORTEST_WATCH: Span = Span::from_secs(1);

/// Time between the change of a canary and the begin of its watch.
pub(crate) const SETTLING: Span = Span::from_ms(500);

/// Largest accepted distance of a canary's share from its prediction, in millionths of a CPU.
pub const SHARE_LIMIT_PPM: u64 = 20_000;

/// Prediction for a VM: intervals whose ends are included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmPrediction {
    /// Name of the reservation.
    pub name: Name,
    /// Share of all vCPUs together, in millionths of a CPU.
    pub share_ppm: (u64, u64),
    /// Largest predicted number of missed deadlines within `length`. `None` without a prediction.
    pub missed: Option<u64>,
    /// Time that the prediction covers.
    pub length: Span,
}

/// CPU time of a VM since the service started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredVm {
    /// Time in which the VM was present.
    pub present: Span,
    /// CPU time of all vCPUs together.
    pub used: Span,
    /// Number of deadlines, missed or not.
    pub deadlines: u64,
    /// Number of missed deadlines.
    pub missed: u64,
}

/// Change of a plan to one reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStep {
    /// The reservation before. `None` if the plan makes it.
    pub before: Option<Row>,
    /// The reservation after. `None` if the plan releases it.
    pub after: Option<Row>,
    /// True if the change was made. `after` then has its revision.
    pub is_done: bool,
}

/// Stage of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanStage {
    /// The first VM is changed and watched.
    Watching {
        /// Prediction for the first VM.
        prediction: VmPrediction,
        /// Time for which it is watched.
        watch: Span,
    },
    /// All changes are made.
    Done,
    /// The first VM has its old parameters again. Says why.
    Undone(String),
    /// A person has changed the first VM, so the service leaves the rest. Says in which way.
    Stopped(String),
}

impl PlanStage {
    /// Returns the stage in a word, such as `watching`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            PlanStage::Watching { .. } => "watching",
            PlanStage::Done => "done",
            PlanStage::Undone(_) => "undone",
            PlanStage::Stopped(_) => "stopped",
        }
    }
}

/// Plan of a principal, or a single change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Principal that asked for it.
    pub principal: Principal,
    /// Role that the principal had then.
    pub role: Role,
    /// Users whose VMs the principal could reserve for, besides its own.
    pub users: Vec<u32>,
    /// Number of the event with which it began. Plans of a higher number are newer.
    pub since: u64,
    /// Changes to all reservations.
    pub steps: Vec<PlanStep>,
    /// Stage that the plan has reached.
    pub stage: PlanStage,
}

/// Watch of a canary, which a restart begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    /// Time of the next look at the canary.
    pub(crate) due: Time,
    /// Numbers at the begin of the watch. `None` until then.
    pub(crate) begin: Option<MeasuredVm>,
}

impl PlanStep {
    /// Returns the name of the reservation. `None` if there is none before and after.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.after.as_ref().or(self.before.as_ref()).map(|row| &row.name)
    }

    /// Follows a change by the service itself, such as another VM of the same name.
    fn follow(&mut self, before: &Row, after: &Row) -> bool {
        let known = if self.is_done { &mut self.after } else { &mut self.before };
        let Some(known) = known.as_mut().filter(|known| known.revision == before.revision) else {
            return false;
        };
        if known.name != before.name {
            return false;
        }
        *known = after.clone();
        true
    }
}

impl Plan {
    /// Follows a change by the service itself. Returns true if it concerns the plan.
    pub(crate) fn follow(&mut self, before: &Row, after: &Row) -> bool {
        self.steps.iter_mut().any(|step| step.follow(before, after))
    }

    /// Returns the first step if its VM is watched.
    pub(crate) fn watched(&self) -> Option<(&PlanStep, &VmPrediction, Span)> {
        let PlanStage::Watching { prediction, watch } = &self.stage else { return None };
        let first = self.steps.iter().find(|step| step.is_done)?;
        Some((first, prediction, *watch))
    }
}

impl VmPrediction {
    /// Compares a prediction with what came between two measurements.
    ///
    /// # Errors
    /// If it differs too much. Says in which way.
    pub fn compare(&self, begin: MeasuredVm, end: MeasuredVm) -> Result<(), String> {
        let name = &self.name;
        let present = end.present.left_after(begin.present);
        if present.is_zero() {
            return Err(format!("{name} was not there"));
        }
        let used = u128::from(end.used.left_after(begin.used).ns());
        let share = used * 1_000_000 / u128::from(present.ns());
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let (least, most) = self.share_ppm;
        let distance = least.saturating_sub(share).max(share.saturating_sub(most));
        if distance > SHARE_LIMIT_PPM {
            let [share, least, most] = [share, least, most].map(percent);
            return Err(format!("{name} received {share} %, not {least} to {most} % of a CPU"));
        }
        let missed = end.missed.saturating_sub(begin.missed);
        let deadlines = end.deadlines.saturating_sub(begin.deadlines);
        let Some(predicted) = self.missed else { return Ok(()) };
        let scaled = u128::from(predicted) * u128::from(present.ns());
        let scaled = scaled.div_ceil(u128::from(self.length.ns().max(1)));
        let predicted = u64::try_from(scaled).unwrap_or(u64::MAX);
        if exceeds_prediction(missed, predicted, deadlines) {
            return Err(format!(
                "{name} missed {missed} of {deadlines} deadlines, not {predicted}"
            ));
        }
        Ok(())
    }
}

/// Returns true if so many of the deadlines were missed that it is not chance: more than twice as
/// many as predicted, at least 3 more, and more by over 0.5 % of the deadlines.
#[must_use]
pub fn exceeds_prediction(missed: u64, predicted: u64, deadlines: u64) -> bool {
    let more = missed.saturating_sub(predicted);
    missed > predicted.saturating_mul(2)
        && more >= 3
        && u128::from(more) * 200 > u128::from(deadlines)
}

/// Formats millionths as percent with two digits.
fn percent(ppm: u64) -> String {
    format!("{}.{:02}", ppm / 10_000, ppm % 10_000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(used_ms: u64, missed: u64, predicted: u64) -> Result<(), String> {
        let prediction = VmPrediction {
            name: "web".parse().unwrap(),
            share_ppm: (300_000, 310_000),
            missed: Some(predicted),
            length: Span::from_secs(20),
        };
        let at = |present, used, deadlines, missed| MeasuredVm {
            present: Span::from_secs(present),
            used: Span::from_ms(used),
            deadlines,
            missed,
        };
        prediction.compare(at(5, 70, 9, 4), at(15, 70 + used_ms, 1_009, 4 + missed))
    }

    #[test]
    fn canary_share_may_be_two_points_beside_its_prediction() {
        assert_eq!(compare(2_800, 0, 0), Ok(()));
        assert_eq!(compare(3_300, 0, 0), Ok(()));
        let says = "web received 27.99 %, not 30.00 to 31.00 % of a CPU";
        assert_eq!(compare(2_799, 0, 0), Err(says.into()));
        assert!(compare(3_301, 0, 0).is_err());
    }

    #[test]
    fn canary_misses_count_if_they_are_twice_three_more_and_half_a_percent() {
        // 1,000 deadlines: half a percent is 5.
        assert_eq!(compare(3_000, 5, 0), Ok(()));
        let says = "web missed 6 of 1000 deadlines, not 0";
        assert_eq!(compare(3_000, 6, 0), Err(says.into()));
        // 20 in 20 s are 10 in 10 s.
        assert_eq!(compare(3_000, 20, 20), Ok(()));
        assert!(compare(3_000, 21, 20).is_err());
    }

    #[test]
    fn canary_without_its_vm_is_not_as_predicted() {
        let name = "web".parse().unwrap();
        let length = Span::from_secs(1);
        let prediction = VmPrediction { name, share_ppm: (0, 1_000_000), missed: None, length };
        let nothing = MeasuredVm::default();
        assert_eq!(prediction.compare(nothing, nothing), Err("web was not there".into()));
    }
}
