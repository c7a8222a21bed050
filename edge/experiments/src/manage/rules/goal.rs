//! Rule of Neon's autoscaler: at the end of each round, the share becomes the load divided by the
//! goal. The rule has no memory. Neon changes shares in units of a quarter of a CPU. Here the unit
//! is a hundredth.

use slackline_units::CpuShare;

use super::{Changes, RuleInput, ShareRule, explained};

/// Wanted load, in percent of the share. This is Neon's default.
const GOAL_PERCENT: u128 = 90;

/// Unit of shares, in millionths of a CPU.
const UNIT: u128 = 10_000;

/// Rule that sets the share to the load divided by the goal, without a memory.
pub(crate) struct GoalRule;

impl ShareRule for GoalRule {
    fn round(&mut self, input: RuleInput<'_>) -> Changes {
        let length = u128::from(input.round.length.ns().max(1));
        let vms = input.round.vms.iter().zip(input.runnable).enumerate();
        let share = |runnable: u64| {
            let load = u128::from(runnable) * 1_000_000 / length;
            let units = (load * 100).div_ceil(GOAL_PERCENT * UNIT);
            CpuShare::from_ppm(u32::try_from(units * UNIT).unwrap_or(u32::MAX))
        };
        let managed = vms.filter(|(_, (vm, _))| vm.goals != Default::default());
        let changes = managed.map(|(index, (vm, runnable))| {
            let to = vm.within(share(runnable.ns()));
            (index, to, explained(&input, index, to))
        });
        changes.collect()
    }
}
