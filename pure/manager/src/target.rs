//! Target of a VM: the share that suits its goals, from its demand in one round.

use slackline_demand::DemandCounts;
use slackline_units::{CpuShare, Span};

use crate::input::VmRound;

/// Addition to the demand that a reservation must cover, in millionths of this demand. Demand
/// varies from round to round, so a reservation of exactly the last demand would be too small.
const HEADROOM_PPM: u64 = 30_000;

/// Demand of a period, in millionths of the period, from which the VM counts as never blocked in
/// this period.
const FULL_PPM: u64 = 950_000;

/// Step of shares, in millionths of a CPU: every share is a multiple of this step.
const STEP_PPM: u64 = 1_000;

/// Returns the smallest CPU time such that at most `allowed` periods have a demand above it.
#[must_use]
pub fn quantile(demand: &DemandCounts, allowed: u64) -> Span {
    let mut above = 0;
    for (&amount, &count) in demand.iter().rev() {
        above += count;
        if above > allowed {
            return amount;
        }
    }
    Span::ZERO
}

/// Returns the share that suits the goals of a VM.
///
/// If the VM demands more than can be measured, the target is at least 1.5 times the present share,
/// up to the VM's ceiling. This is assumed of a VM with a goal for missed periods in two cases:
///
/// - The VM missed more than half of its periods.
/// - The VM missed more than a third of its periods, although the measured demand that its goal
///   covers fits its reservation.
///
/// Returns the present share of a VM without goals.
#[must_use]
pub fn target(vm: &VmRound) -> CpuShare {
    let goals = vm.goals;
    if goals == Default::default() || vm.period.is_zero() || vm.periods() == 0 {
        return vm.share;
    }
    let mut most = goals.at_least.unwrap_or(CpuShare::NONE).ppm().into();
    if goals.misses_ppm.is_some() {
        let covered = parts(quantile(&vm.demand, vm.allowed()), vm.period);
        // The demand of a VM that never blocked is unknown. It is assumed to be at most twice the
        // present share.
        let twice = u64::from(vm.share.ppm()) * 2;
        let covered = if covered >= FULL_PPM { covered.min(twice) } else { covered };
        most = (covered + covered * HEADROOM_PPM / 1_000_000).max(most);
        let has_hidden_demand = covered <= vm.share.ppm().into() && vm.misses > vm.periods() / 3;
        if vm.misses > vm.periods() / 2 || has_hidden_demand {
            most = most.max(u64::from(vm.share.ppm()) * 3 / 2);
        }
    }
    if let Some(wanted) = goals.use_ppm.filter(|wanted| *wanted > 0) {
        let mean = parts(vm.demanded(), vm.period * vm.periods());
        most = most.max(mean * 1_000_000 / u64::from(wanted));
    }
    let stepped = most.div_ceil(STEP_PPM) * STEP_PPM;
    vm.within(CpuShare::from_ppm(u32::try_from(stepped).unwrap_or(u32::MAX)))
}

/// Returns `part` in millionths of `whole`, rounded up. `whole` must not be zero.
fn parts(part: Span, whole: Span) -> u64 {
    let ppm = (u128::from(part.ns()) * 1_000_000).div_ceil(u128::from(whole.ns()));
    u64::try_from(ppm).unwrap_or(u64::MAX)
}
