//! Unknown phases of changed reservations.
//!
//! A live host begins the periods of a reservation when it makes or changes the reservation. A
//! prediction does not know that time, so it does not know when these periods begin relative to
//! the periods of other VMs. The wait of a vCPU can depend on this. So the edited model is
//! simulated several times, with different phases of the changed reservations.

use slackline_policy::Values;
use slackline_units::{Reservation, Span};

use crate::model::{Model, ModelDomain, written};

/// Number of phases with which an edited model is simulated.
const PHASES: u64 = 3;

/// Maximum number of vCPUs for which other phases are simulated. The waits of more vCPUs depend
/// little on one phase, and their simulation takes longer.
const FEW_VCPUS: usize = 16;

/// An edited model with other phases.
pub(crate) struct OtherPhase {
    pub(crate) model: Model,
    /// Longest time by which a changed reservation begins later than in the recording.
    pub(crate) delay: Span,
}

impl Model {
    /// Returns the model with other phases of the reservations that edits made or changed. Empty
    /// for a recording of a simulated host, for many vCPUs, and if no edit changed a reservation.
    pub(crate) fn other_phases(&self) -> Vec<OtherPhase> {
        if !self.has_unknown_phase() || self.has_many_vcpus() {
            return Vec::new();
        }
        (1..PHASES).map(|nth| self.in_phase(nth)).collect()
    }

    /// Returns true if a prediction assumes that changed reservations keep their phase, although
    /// the live host gives them another phase. This is so for many vCPUs.
    #[must_use]
    pub fn assumes_phases(&self) -> bool {
        self.has_unknown_phase() && self.has_many_vcpus()
    }

    /// Returns true if an edit made or changed a reservation of a live host.
    fn has_unknown_phase(&self) -> bool {
        let is_changed = |domain: &ModelDomain| self.edited_period(domain).is_some();
        self.costs.fair.is_some() && self.domains.iter().any(is_changed)
    }

    fn has_many_vcpus(&self) -> bool {
        let vcpus = self.domains.iter().map(|domain| domain.vcpus.len());
        vcpus.sum::<usize>() > FEW_VCPUS
    }

    /// Returns the model in which each changed reservation begins later by the part `nth / PHASES`
    /// of its period.
    fn in_phase(&self, nth: u64) -> OtherPhase {
        let mut model = self.clone();
        let mut longest = Span::ZERO;
        for domain in &mut model.domains {
            let Some(period) = self.edited_period(domain) else { continue };
            let delay = period * nth / PHASES;
            let joined = domain.joined + delay;
            if domain.left.is_none_or(|left| joined < left) {
                domain.joined = joined;
                longest = longest.max(delay);
            }
        }
        OtherPhase { model, delay: longest }
    }

    /// Returns the period of a VM whose reservation an edit made or changed. `None` for other VMs,
    /// and for a VM without a reservation.
    fn edited_period(&self, domain: &ModelDomain) -> Option<Span> {
        let vcpu = domain.vcpus.iter().find(|vcpu| vcpu.is_changed || vcpu.is_rotated)?;
        let values = Values::read_written(self.spec.share_fields, &written(&vcpu.share)).ok()?;
        let promise = (self.spec.promise)(&values).ok()??;
        promise.phase.is_none().then(|| Reservation::period(promise.reservation))
    }
}
