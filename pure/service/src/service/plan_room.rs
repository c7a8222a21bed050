//! Limits on the number and the size of the stored plans. A plan in progress is never dropped.

use crate::answer::AppliedChange;
use crate::input::ClientRequest;
use crate::plan::{LONGEST_WATCH, PLAN_BYTES, PLANS_BYTES, Plan, PlanStep};
use crate::principal::Role;
use crate::refusal::Refusal;

use super::Service;

/// Maximum number of principals whose last plan is kept. The plan of one more principal replaces
/// the oldest plan.
const MOST_PLANS: usize = 200;

/// Part of [`PLANS_BYTES`], in bytes, that is kept free for administrators' plans with a canary.
const KEPT_BYTES: usize = PLAN_BYTES;

impl Service {
    /// Checks that a plan with these changes may be stored. A plan with a canary stays in progress
    /// for a time, so it must also fit beside the other plans in progress.
    ///
    /// # Errors
    /// If the plan is too large, or if the plans in progress would be too large or too many.
    pub(super) fn check_plan_room(
        &self,
        asked: &ClientRequest,
        changes: &[AppliedChange],
        has_canary: bool,
    ) -> Result<(), Refusal> {
        let changes = changes.iter().filter(|change| change.before != change.after);
        let step = |change: &AppliedChange| {
            PlanStep::stored_bytes(change.before.as_ref(), change.after.as_ref())
        };
        let bytes = Plan::fixed_bytes(&asked.users) + changes.map(step).sum::<usize>();
        if bytes > PLAN_BYTES {
            return Err(Refusal::LargePlan { bytes, most: PLAN_BYTES });
        }
        if !has_canary {
            return Ok(());
        }
        let watched = self.plans.values().filter(|plan| plan.watched().is_some());
        let (number, all) =
            watched.fold((1, bytes), |(number, all), plan| (number + 1, all + plan.stored_bytes()));
        let is_administrator = asked.role == Some(Role::Administrator);
        let most = if is_administrator { PLANS_BYTES } else { PLANS_BYTES - KEPT_BYTES };
        let again = LONGEST_WATCH;
        if all > most {
            let why = format!(
                "cannot watch this plan now: the plans in progress would have {all} bytes, and at \
                 most {most} are allowed"
            );
            return Err(Refusal::NotNow { why, again });
        }
        if number > MOST_PLANS {
            let why = format!(
                "cannot watch this plan now: {number} plans would be in progress, and at most \
                 {MOST_PLANS} are allowed"
            );
            return Err(Refusal::NotNow { why, again });
        }
        Ok(())
    }

    /// Drops the oldest plans until all plans are within the limits. Plans in progress are not
    /// dropped. The commit that adds the newest plan also deletes the dropped plans from the
    /// ledger.
    pub(super) fn drop_surplus_plans(&mut self) {
        let mut bytes: usize = self.plans.values().map(Plan::stored_bytes).sum();
        while self.plans.len() > MOST_PLANS || bytes > PLANS_BYTES {
            let idle = self.plans.values().filter(|plan| plan.watched().is_none());
            let Some(oldest) = idle.min_by_key(|plan| plan.since) else { return };
            bytes -= oldest.stored_bytes();
            self.drop_plan(oldest.principal);
        }
    }
}
