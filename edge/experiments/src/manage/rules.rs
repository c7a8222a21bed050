//! Rules that choose shares at the end of each round.

mod goal;
mod histogram;
mod hold;

use slackline_manager::{Manager, Pace, Predictor, Round};
use slackline_units::{CpuShare, Span};

pub(super) use goal::GoalRule;
pub(super) use histogram::HistogramRule;
pub(super) use hold::HoldRule;

/// Changes of one round: index of the VM, new share, and reason.
pub(super) type Changes = Vec<(usize, CpuShare, String)>;

/// Inputs of a rule at the end of a round.
pub(super) struct RuleInput<'a> {
    pub(super) round: &'a Round,
    /// Time for which each VM was runnable in the round.
    pub(super) runnable: &'a [Span],
    /// Share of each VM for the next round, chosen to suit the VM's demand in that round. Only the
    /// oracle is allowed to use these shares.
    pub(super) next: &'a [CpuShare],
    pub(super) predictor: &'a mut dyn Predictor,
}

/// Rule that chooses shares.
pub(super) trait ShareRule {
    fn round(&mut self, input: RuleInput<'_>) -> Changes;
}

/// Shares that never change.
pub(super) struct FixedShares;

impl ShareRule for FixedShares {
    fn round(&mut self, _: RuleInput<'_>) -> Changes {
        Changes::new()
    }
}

/// Shares that suit the demand of the next round. Only a simulation can know that demand.
pub(super) struct Oracle;

impl ShareRule for Oracle {
    fn round(&mut self, input: RuleInput<'_>) -> Changes {
        let next = input.next.iter().enumerate();
        next.map(|(vm, &share)| (vm, share, explained(&input, vm, share))).collect()
    }
}

/// The oracle, limited to demand that was seen before. No share exceeds the VM's largest needed
/// share of all earlier rounds by more than 3 %, the manager's headroom. The misses of this rule
/// are a bound for each rule that reserves nothing for demand that no round has shown.
#[derive(Default)]
pub(super) struct LimitedOracle {
    /// Largest needed share of each VM so far. The run begins with the initial shares.
    peaks: Vec<CpuShare>,
}

impl ShareRule for LimitedOracle {
    fn round(&mut self, input: RuleInput<'_>) -> Changes {
        if self.peaks.is_empty() {
            self.peaks = input.round.shares();
        }
        let limited = |(peak, &next): (&mut CpuShare, &CpuShare)| {
            let most = CpuShare::from_ppm(peak.ppm() + peak.ppm() * 3 / 100);
            *peak = next.max(*peak);
            next.min(most)
        };
        let shares = self.peaks.iter_mut().zip(input.next).map(limited).enumerate();
        shares.map(|(vm, share)| (vm, share, explained(&input, vm, share))).collect()
    }
}

/// Returns a sentence about a change. The sentence is used for rules that give no reasons.
pub(super) fn explained(input: &RuleInput<'_>, vm: usize, to: CpuShare) -> String {
    let vm = &input.round.vms[vm];
    let percent =
        |share: CpuShare| format!("{}.{}", share.ppm() / 10_000, share.ppm() / 1_000 % 10);
    format!("{vm} {from} to {to} %", vm = vm.name, from = percent(vm.share), to = percent(to))
}

/// The workload manager of this project.
#[derive(Default)]
pub(super) struct ManagerRule(Manager);

impl ManagerRule {
    pub(super) fn new(pace: Pace) -> ManagerRule {
        ManagerRule(Manager::new(pace))
    }
}

impl ShareRule for ManagerRule {
    fn round(&mut self, input: RuleInput<'_>) -> Changes {
        let Some(decision) = self.0.round(input.round, input.predictor) else {
            return Changes::new();
        };
        let vm = input.round.vms.iter().position(|vm| vm.name == decision.name);
        vm.map(|vm| (vm, decision.to, decision.to_string())).into_iter().collect()
    }
}
