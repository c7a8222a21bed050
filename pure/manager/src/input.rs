//! Inputs of a round: measurements and goals of each VM, and predictions.

use slackline_demand::DemandCounts;
use slackline_service::Name;
use slackline_units::{CpuShare, Span};

/// Goals of a VM. The manager does not change the reservation of a VM without goals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goals {
    /// Goal for missed periods: the VM should miss at most this fraction of its periods, in
    /// millionths. `None` if the VM has no such goal.
    pub misses_ppm: Option<u32>,
    /// Desired minimum of the reservation. If capacity is scarce, the manager may reserve less, but
    /// never less than the VM's floor. `None` if no minimum is desired.
    pub at_least: Option<CpuShare>,
    /// Part of the reservation that the VM should use, in millionths of the reservation. Not zero.
    /// `None` if the VM has no goal for the use of its reservation.
    pub use_ppm: Option<u32>,
}

/// Measurements, goals and limits of a VM in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRound {
    /// Name of the reservation.
    pub name: Name,
    /// Period of the reservation.
    pub period: Span,
    /// Reserved share of a CPU.
    pub share: CpuShare,
    /// Floor: the manager never reserves less than this share of a CPU.
    pub floor: CpuShare,
    /// Ceiling: the manager never reserves more than this share of a CPU.
    pub ceiling: CpuShare,
    /// Priority of the VM. A rise of a VM with a higher priority is more urgent. If capacity is
    /// scarce, the manager may reduce reservations of VMs with a lower priority for this rise.
    pub priority: u8,
    /// Goals of the VM.
    pub goals: Goals,
    /// Map from an amount of CPU time to the number of periods of this round that demanded exactly
    /// this amount.
    pub demand: DemandCounts,
    /// Number of missed periods in this round. A job that is done more than `n` and at most `n + 1`
    /// periods after it became ready misses `n` periods.
    pub misses: u64,
    /// CPU time received in this round.
    pub received: Span,
}

/// Measurements of one round, and the capacity that can be reserved.
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
    /// Largest number of periods that the VM is predicted to miss.
    pub misses: u64,
    /// Number of periods that the prediction covers.
    pub periods: u64,
    /// Smallest and largest share that the VM is predicted to receive, in millionths of a CPU.
    pub share_ppm: (u64, u64),
    /// Length of the time that the prediction covers.
    pub length: Span,
}

/// Source of the manager's predictions.
pub trait Predictor {
    /// Returns the prediction for each VM of the round, in the order of the round. The prediction
    /// is the result of the last seconds if the VMs had had the shares `shares`. `None` if no
    /// prediction is possible, or if admission refuses the shares.
    fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>>;
}

impl Round {
    /// Returns the reserved shares of all VMs of the round.
    #[must_use]
    pub fn shares(&self) -> Vec<CpuShare> {
        self.vms.iter().map(|vm| vm.share).collect()
    }

    /// Returns the share of a CPU that can still be reserved.
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

    /// Returns the number of periods that the VM may miss by its goal. Zero if the VM has no goal
    /// for missed periods.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        self.periods() * u64::from(self.goals.misses_ppm.unwrap_or(0)) / 1_000_000
    }

    /// Returns the share `at_least` of the VM's goals, limited to the floor and ceiling. The floor
    /// if the VM has no such goal.
    #[must_use]
    pub fn least(&self) -> CpuShare {
        self.within(self.goals.at_least.unwrap_or(CpuShare::NONE))
    }

    /// Returns `share`, limited to the floor and ceiling of the VM. If the floor is above the
    /// ceiling, the floor wins.
    #[must_use]
    pub fn within(&self, share: CpuShare) -> CpuShare {
        share.min(self.ceiling).max(self.floor)
    }
}

/// Returns the larger of two numbers of periods: those that were missed, and those that demanded
/// more than the reservation.
pub(crate) fn short_periods(vm: &VmRound) -> u64 {
    uncovered(vm, vm.share).max(vm.misses)
}

/// Returns the number of periods that demanded more than the share `share`.
pub(crate) fn uncovered(vm: &VmRound, share: CpuShare) -> u64 {
    let slice = u128::from(vm.period.ns()) * u128::from(share.ppm()) / 1_000_000;
    let above = vm.demand.iter().filter(|(amount, _)| u128::from(amount.ns()) > slice);
    above.map(|(_, count)| count).sum()
}
