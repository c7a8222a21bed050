//! Inputs of a round: measurements and goals of each VM, and predictions.

use slackline_demand::DemandCounts;
use slackline_service::Name;
use slackline_units::{CpuShare, Span};

/// Goals of a VM. Without any, its reservation is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goals {
    /// Largest part of the periods that may be missed, in millionths.
    pub misses_ppm: Option<u32>,
    /// Smallest reservation. It is a wish, while a floor is never broken.
    pub at_least: Option<CpuShare>,
    /// Wanted use of the reservation, in millionths of the reservation. Not zero.
    pub use_ppm: Option<u32>,
}

/// A VM in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRound {
    /// Name of the reservation.
    pub name: Name,
    /// Period of the reservation.
    pub period: Span,
    /// Reserved share of a CPU.
    pub share: CpuShare,
    /// The manager reserves at least this share.
    pub floor: CpuShare,
    /// The manager reserves at most this share.
    pub ceiling: CpuShare,
    /// VMs with a higher priority are served first, and may take from those with a lower one.
    pub priority: u8,
    /// Goals of the VM.
    pub goals: Goals,
    /// Number of periods of this round by demand.
    pub demand: DemandCounts,
    /// Number of periods of this round at whose end the VM still waited for work of the period
    /// before.
    pub misses: u64,
    /// CPU time received in this round.
    pub received: Span,
}

/// One round: what was measured, and what can be reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Number of the round, counted from zero.
    pub number: u64,
    /// Length of the round.
    pub length: Span,
    /// Largest sum of all reservations that admission allows.
    pub capacity: CpuShare,
    /// VMs that the manager may change.
    pub vms: Vec<VmRound>,
}

/// Prediction for a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictedVm {
    /// Largest number of missed periods.
    pub misses: u64,
    /// Number of periods for which the prediction is made.
    pub periods: u64,
    /// Smallest and largest share that the VM would receive, in millionths of a CPU.
    pub share_ppm: (u64, u64),
    /// Time for which the prediction is made.
    pub length: Span,
}

/// Source of the manager's predictions.
pub trait Predictor {
    /// Returns the prediction for each VM of the round, in the same order, if the VMs had these
    /// shares over the last seconds. `None` if there is no prediction, or admission refuses the
    /// shares.
    fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>>;
}

impl Round {
    /// Returns the shares of all VMs.
    #[must_use]
    pub fn shares(&self) -> Vec<CpuShare> {
        self.vms.iter().map(|vm| vm.share).collect()
    }

    /// Returns the share that can still be reserved.
    #[must_use]
    pub fn room(&self) -> CpuShare {
        let reserved = self.vms.iter().fold(0, |sum: u32, vm| sum.saturating_add(vm.share.ppm()));
        self.capacity.less(CpuShare::from_ppm(reserved))
    }
}

impl VmRound {
    /// Returns the number of periods of the round.
    #[must_use]
    pub fn periods(&self) -> u64 {
        self.demand.values().sum()
    }

    /// Returns the CPU time that the VM demanded in the round.
    #[must_use]
    pub fn demanded(&self) -> Span {
        self.demand.iter().fold(Span::ZERO, |sum, (&amount, &count)| sum + amount * count)
    }

    /// Returns the number of periods that may be missed.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        self.periods() * u64::from(self.goals.misses_ppm.unwrap_or(0)) / 1_000_000
    }

    /// Returns the smallest share of the VM's goals, brought between floor and ceiling.
    #[must_use]
    pub fn least(&self) -> CpuShare {
        self.within(self.goals.at_least.unwrap_or(CpuShare::NONE))
    }

    /// Returns the share brought between floor and ceiling. The floor has precedence.
    #[must_use]
    pub fn within(&self, share: CpuShare) -> CpuShare {
        share.min(self.ceiling).max(self.floor)
    }
}

/// Returns the number of periods that missed, or that demanded more than the reservation.
pub(crate) fn short_periods(vm: &VmRound) -> u64 {
    uncovered(vm, vm.share).max(vm.misses)
}

/// Returns the number of periods that demanded more than a share.
pub(crate) fn uncovered(vm: &VmRound, share: CpuShare) -> u64 {
    let slice = u128::from(vm.period.ns()) * u128::from(share.ppm()) / 1_000_000;
    let above = vm.demand.iter().filter(|(amount, _)| u128::from(amount.ns()) > slice);
    above.map(|(_, count)| count).sum()
}
