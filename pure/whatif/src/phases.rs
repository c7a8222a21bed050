//! Unknown phases of changed reservations.
//!
//! A live host begins the periods of a reservation when it makes or changes the reservation. A
//! prediction does not know that time, so it does not know when these periods begin relative to
//! the periods of other VMs. The wait of a vCPU can depend on this. So the edited model is
//! simulated several times, with different phases of the changed reservations.

use slackline_demand::Demand;
use slackline_policy::Values;
use slackline_units::{Reservation, Span};

use crate::model::{Model, ModelDomain, ModelVcpu, written};

/// Number of phases with which an edited model is simulated.
const PHASES: u64 = 3;

/// Maximum number of vCPUs for which other phases are simulated. The waits of more vCPUs depend
/// little on one phase, and their simulation takes longer.
const FEW_VCPUS: usize = 16;

/// Maximum number of recorded jobs for which other phases are simulated. More jobs take too long.
const FEW_JOBS: usize = 50_000;

/// Divisor of the length of a recording without its warm-up. If other phases would delay a
/// reservation by more than this part of the length, they are not simulated, because too little of
/// the recording would remain.
const LATEST_OF_LENGTH: u64 = 10;

/// Edited model in which changed reservations begin later than in the recording, so that their
/// periods have other phases.
pub(crate) struct OtherPhase {
    pub(crate) model: Model,
    /// Largest of the delays of the changed reservations, compared with the recording.
    pub(crate) delay: Span,
}

impl Model {
    /// Returns copies of the model in which the reservations that edits made or changed have other
    /// phases. Empty if there are no such reservations, or if [`Model::assumes_phases`] returns
    /// true.
    pub(crate) fn other_phases(&self, demand: &Demand) -> Vec<OtherPhase> {
        if !self.has_unknown_phase() || self.assumes_phases(demand) {
            return Vec::new();
        }
        (1..PHASES).map(|nth| self.in_phase(nth)).collect()
    }

    /// Returns true if a prediction assumes that changed reservations keep their phase, although
    /// the live host gives them another phase. Other phases are not simulated in these cases:
    ///
    /// - There are more than 16 vCPUs, or more than 50,000 jobs.
    /// - Two thirds of the period of a changed reservation exceed a tenth of the recording without
    ///   its warm-up.
    /// - A vCPU may run on several CPUs. The order in which VMs join then decides where they are
    ///   placed.
    #[must_use]
    pub fn assumes_phases(&self, demand: &Demand) -> bool {
        let vcpus = self.domains.iter().flat_map(|domain| &domain.vcpus);
        let others = demand.others.competitors.iter().map(|(_, other)| other);
        let jobs = demand.vcpus.iter().chain(others).map(|stay| stay.jobs.len());
        let is_placed = |vcpu: &ModelVcpu| {
            self.cpus == 1 || vcpu.cpus.is_some_and(|cpus| cpus.iter().count() == 1)
        };
        let longest = self.length.left_after(self.warmup) / LATEST_OF_LENGTH;
        let is_late = |domain: &ModelDomain| {
            let period = self.edited_period(domain).unwrap_or(Span::ZERO);
            delay(period, PHASES - 1) > longest
        };
        self.has_unknown_phase()
            && (vcpus.clone().count() > FEW_VCPUS
                || jobs.sum::<usize>() > FEW_JOBS
                || self.domains.iter().any(is_late)
                || !vcpus.clone().all(is_placed))
    }

    /// Returns true if an edit made or changed a reservation of a live host.
    fn has_unknown_phase(&self) -> bool {
        let is_changed = |domain: &ModelDomain| self.edited_period(domain).is_some();
        self.costs.fair.is_some() && self.domains.iter().any(is_changed)
    }

    /// Returns the model in which each changed reservation begins later by `nth / PHASES` of its
    /// period. Recorded changes of its VM during this delay are made directly after the VM joins.
    fn in_phase(&self, nth: u64) -> OtherPhase {
        let mut model = self.clone();
        let end = self.begin + self.length;
        let mut longest = Span::ZERO;
        for domain in &mut model.domains {
            let Some(period) = self.edited_period(domain) else { continue };
            let joined = domain.joined.after(delay(period, nth));
            if joined >= domain.left.unwrap_or(end).min(end) {
                continue;
            }
            domain.joined = joined;
            longest = longest.max(delay(period, nth));
            let soon = joined.after(Span::from_ns(1));
            let vcpus = domain.vcpus.iter_mut();
            vcpus.flat_map(|vcpu| &mut vcpu.changes).for_each(|it| it.at = it.at.max(soon));
        }
        OtherPhase { model, delay: longest }
    }

    /// Returns the period of a VM whose reservation an edit made or changed. `None` for other VMs,
    /// for a VM without a reservation, and for a reservation with a fixed phase.
    fn edited_period(&self, domain: &ModelDomain) -> Option<Span> {
        let vcpu = domain.vcpus.iter().find(|vcpu| vcpu.is_changed || vcpu.is_rotated)?;
        let values = Values::read_written(self.spec.share_fields, &written(&vcpu.share)).ok()?;
        let promise = (self.spec.promise)(&values).ok()??;
        promise.phase.is_none().then(|| Reservation::period(promise.reservation))
    }
}

/// Returns the time by which the phase `nth` of a period is later than the recorded phase.
fn delay(period: Span, nth: u64) -> Span {
    period / PHASES * nth
}
