//! Plans: the last changes of each principal, which can be undone. Also the progress of plans with
//! a canary.
//!
//! A plan with a canary changes one VM first. The service watches this VM for a given time, and
//! compares it with its prediction. Then the service makes the other changes of the plan, or
//! restores the first VM. Each stage is written to the ledger in the commit of its changes.

use slackline_units::{Span, Time};

use crate::name::Name;
use crate::principal::{Principal, Role};
use crate::row::Row;

/// Longest time for which a canary is watched.
pub const LONGEST_WATCH: Span = Span::from_secs(600);

/// Shortest time for which a canary is watched.
pub const SHORTEST_WATCH: Span = Span::from_secs(1);

/// Maximum size of one plan in the ledger, in bytes.
pub const PLAN_BYTES: usize = 4 << 20;

/// Maximum size of all plans in the ledger together, in bytes.
pub const PLANS_BYTES: usize = 16 << 20;

/// Delay between the change of a canary and the beginning of its watch.
pub(crate) const SETTLING: Span = Span::from_ms(500);

/// Largest allowed difference between a canary's share and its prediction, in millionths of a CPU.
pub const SHARE_LIMIT_PPM: u64 = 20_000;

/// Prediction of the share and the missed deadlines of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmPrediction {
    /// Name of the reservation.
    pub name: Name,
    /// Smallest and largest predicted share of all vCPUs together, in millionths of a CPU. The
    /// interval includes both values.
    pub share_ppm: (u64, u64),
    /// Largest predicted number of missed deadlines within `length`. `None` if misses are not
    /// predicted.
    pub missed: Option<u64>,
    /// Length of time that the prediction covers.
    pub length: Span,
}

/// Measurement of a VM: its CPU time and deadlines since the service started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredVm {
    /// Time for which the VM was present.
    pub present: Span,
    /// CPU time that all vCPUs together have used.
    pub used: Span,
    /// Number of deadlines, both met and missed.
    pub deadlines: u64,
    /// Number of missed deadlines.
    pub missed: u64,
}

/// Change that a plan makes to one reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStep {
    /// The reservation before the plan. `None` if the plan makes the reservation.
    pub before: Option<Row>,
    /// The reservation after the plan. `None` if the plan releases the reservation.
    pub after: Option<Row>,
    /// True if the change was made. In that case, `after` has the new revision.
    pub is_done: bool,
}

/// Stage of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanStage {
    /// The first VM was changed, and is being watched.
    Watching {
        /// Prediction for the first VM.
        prediction: VmPrediction,
        /// Time for which the first VM is watched.
        watch: Span,
    },
    /// All changes of the plan were made.
    Done,
    /// The first VM has its old parameters again. The text gives the reason.
    Undone(String),
    /// A user has changed the first VM, so the service makes no more changes of the plan. The text
    /// describes the user's change.
    Stopped(String),
}

impl PlanStage {
    /// Returns the word for the stage, such as `watching`.
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

/// Plan of a principal. A change of a single reservation is a plan with one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Principal that asked for the plan.
    pub principal: Principal,
    /// Role of the principal when it asked for the plan.
    pub role: Role,
    /// Other users for whose VMs the principal could reserve when it asked for the plan.
    pub users: Vec<u32>,
    /// Number of the event with which the plan began. A newer plan has a higher number.
    pub since: u64,
    /// Changes of the plan, one for each reservation.
    pub steps: Vec<PlanStep>,
    /// Stage that the plan has reached.
    pub stage: PlanStage,
}

/// Watch of a canary. After a restart of the service, the watch begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    /// Time at which the canary is next compared with its prediction.
    pub(crate) due: Time,
    /// Measurement at the beginning of the watch. `None` before the watch has begun.
    pub(crate) begin: Option<MeasuredVm>,
}

impl PlanStep {
    /// Returns an upper bound for the bytes that a change from `before` to `after` takes in the
    /// ledger.
    pub(crate) fn stored_bytes(before: Option<&Row>, after: Option<&Row>) -> usize {
        64 + [before, after].into_iter().flatten().map(Row::stored_bytes).sum::<usize>()
    }

    /// Returns the name of the reservation. `None` if both `before` and `after` are `None`.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.after.as_ref().or(self.before.as_ref()).map(|row| &row.name)
    }

    /// Updates the step after the service itself has changed the reservation, for example because
    /// another VM of the same name has started. Returns true if the step contained the row
    /// `before`, which is then replaced by `after`.
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
    /// Returns an upper bound for the bytes that the plan takes in the ledger.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        let text = match &self.stage {
            PlanStage::Undone(why) | PlanStage::Stopped(why) => why.len(),
            PlanStage::Watching { .. } | PlanStage::Done => 0,
        };
        let bytes =
            |step: &PlanStep| PlanStep::stored_bytes(step.before.as_ref(), step.after.as_ref());
        let steps: usize = self.steps.iter().map(bytes).sum();
        // JSON writes a control character of a text in six bytes.
        Plan::fixed_bytes(&self.users) + 6 * text + steps
    }

    /// Returns an upper bound for the bytes that a plan takes in the ledger apart from its changes.
    /// The plan's principal may reserve for `users`.
    pub(crate) const fn fixed_bytes(users: &[u32]) -> usize {
        512 + 11 * users.len()
    }

    /// Updates the plan after the service itself has changed a reservation from `before` to
    /// `after`. Returns true if a step of the plan has the row `before`.
    pub(crate) fn follow(&mut self, before: &Row, after: &Row) -> bool {
        self.steps.iter_mut().any(|step| step.follow(before, after))
    }

    /// Returns the first step, the prediction for its VM, and the time for which the VM is watched.
    /// `None` if no VM is being watched.
    pub(crate) fn watched(&self) -> Option<(&PlanStep, &VmPrediction, Span)> {
        let PlanStage::Watching { prediction, watch } = &self.stage else { return None };
        let first = self.steps.iter().find(|step| step.is_done)?;
        Some((first, prediction, *watch))
    }
}

impl VmPrediction {
    /// Compares the prediction with the change from the measurement `begin` to the measurement
    /// `end`.
    ///
    /// # Errors
    /// If the difference is too large. The error describes the difference.
    pub fn compare(&self, begin: MeasuredVm, end: MeasuredVm) -> Result<(), String> {
        let name = &self.name;
        let present = end.present.left_after(begin.present);
        if present.is_zero() {
            return Err(format!("{name} was absent"));
        }
        let used = u128::from(end.used.left_after(begin.used).ns());
        let share = used * 1_000_000 / u128::from(present.ns());
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let (least, most) = self.share_ppm;
        let distance = least.saturating_sub(share).max(share.saturating_sub(most));
        if distance > SHARE_LIMIT_PPM {
            let [share, least, most] = [share, least, most].map(percent);
            return Err(format!(
                "{name} received {share} % of a CPU, predicted were {least} to {most} %"
            ));
        }
        let missed = end.missed.saturating_sub(begin.missed);
        let deadlines = end.deadlines.saturating_sub(begin.deadlines);
        let Some(predicted) = self.missed else { return Ok(()) };
        let scaled = u128::from(predicted) * u128::from(present.ns());
        let scaled = scaled.div_ceil(u128::from(self.length.ns().max(1)));
        let predicted = u64::try_from(scaled).unwrap_or(u64::MAX);
        if exceeds_prediction(missed, predicted, deadlines) {
            return Err(format!(
                "{name} missed {missed} of {deadlines} deadlines, predicted were {predicted}"
            ));
        }
        Ok(())
    }
}

/// Returns true if `missed` is larger than the prediction and chance explain. This is so if three
/// conditions hold: the misses are more than twice the prediction, they exceed the prediction by at
/// least 3, and they exceed it by more than 0.5 % of the deadlines.
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
    fn canary_share_within_two_percentage_points_of_prediction_is_accepted() {
        assert_eq!(compare(2_800, 0, 0), Ok(()));
        assert_eq!(compare(3_300, 0, 0), Ok(()));
        let says = "web received 27.99 % of a CPU, predicted were 30.00 to 31.00 %";
        assert_eq!(compare(2_799, 0, 0), Err(says.into()));
        assert!(compare(3_301, 0, 0).is_err());
    }

    #[test]
    fn canary_fails_only_if_deadline_misses_clearly_exceed_prediction() {
        // With 1,000 deadlines, half a percent is 5 misses.
        assert_eq!(compare(3_000, 5, 0), Ok(()));
        let says = "web missed 6 of 1000 deadlines, predicted were 0";
        assert_eq!(compare(3_000, 6, 0), Err(says.into()));
        // A prediction of 20 misses in 20 s allows 10 misses in 10 s.
        assert_eq!(compare(3_000, 20, 20), Ok(()));
        assert!(compare(3_000, 21, 20).is_err());
        // With few deadlines, at least three more misses than predicted are needed.
        assert!(!exceeds_prediction(2, 0, 10) && exceeds_prediction(3, 0, 10));
    }

    #[test]
    fn canary_fails_if_the_watched_vm_is_absent() {
        let name = "web".parse().unwrap();
        let length = Span::from_secs(1);
        let prediction = VmPrediction { name, share_ppm: (0, 1_000_000), missed: None, length };
        let nothing = MeasuredVm::default();
        assert_eq!(prediction.compare(nothing, nothing), Err("web was absent".into()));
    }
}
