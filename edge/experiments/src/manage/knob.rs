//! The parameters by which a policy gives a VM a share.

use slackline_policy::{FieldError, Spec, Values};
use slackline_units::{CpuShare, Span};

/// Period of each VM under a policy that has no periods.
const USUAL_PERIOD: Span = Span::from_ms(10);

/// Parameters of one VM that decide its share, and the way to change that share.
#[derive(Clone, Debug)]
pub(super) struct Knob {
    spec: &'static Spec,
    values: Values,
    pub(super) period: Span,
}

impl Knob {
    /// Creates the knob of a VM. Also returns the present share of the VM. `None` if the VM has no
    /// share that can be changed under this policy.
    pub(super) fn new(spec: &'static Spec, values: Values) -> Option<(Knob, CpuShare)> {
        if let Ok(Some(promise)) = (spec.promise)(&values) {
            let period = promise.reservation.period();
            return Some((Knob { spec, values, period }, promise.reservation.share()));
        }
        let cap = values.iter().find(|(field, _)| field.name == "cap")?.1.to_string();
        let share = cap.trim_matches('"').parse().unwrap_or(CpuShare::ONE);
        Some((Knob { spec, values, period: USUAL_PERIOD }, share))
    }

    /// Returns the fields and values that give the VM a share.
    pub(super) fn settings(&self, share: CpuShare) -> Vec<(&'static str, String)> {
        let has_slice = self.spec.share_fields.iter().find(|field| field.name == "slice");
        match (has_slice, self.spec.limit) {
            (Some(slice), _) => vec![(slice.name, slice_of(share, self.period).to_string())],
            (None, Some(limit)) => {
                let plain = |value: String| value.trim_matches('"').to_owned();
                let pairs = limit(share, self.period).into_iter();
                pairs.map(|(field, value)| (field, plain(value))).collect()
            }
            (None, None) => Vec::new(),
        }
    }

    /// Returns all parameters of the VM, changed to this share.
    ///
    /// # Errors
    /// If the policy does not accept the share.
    pub(super) fn with_share(&self, share: CpuShare) -> Result<Values, FieldError> {
        self.with(&self.settings(share))
    }

    /// Returns all parameters of the VM, changed to this share and without a hard limit.
    ///
    /// # Errors
    /// If the policy does not accept the share.
    pub(super) fn without_limit(&self, share: CpuShare) -> Result<Values, FieldError> {
        let mut settings = self.settings(share);
        let known = |name: &str| self.spec.share_fields.iter().find(|field| field.name == name);
        for (name, value) in [("exact", "false"), ("extra", "true"), ("cap", "none")] {
            if let Some(field) = known(name) {
                settings.push((field.name, value.into()));
            }
        }
        self.with(&settings)
    }

    fn with(&self, settings: &[(&'static str, String)]) -> Result<Values, FieldError> {
        let mut text = self.values.to_string();
        for (field, value) in settings {
            text = format!("{text} {field}={value}");
        }
        Values::read_written(self.spec.share_fields, &text)
    }
}

/// Returns the slice of a share, rounded up to a nanosecond.
#[must_use]
pub fn slice_of(share: CpuShare, period: Span) -> Span {
    let ns = (u128::from(period.ns()) * u128::from(share.ppm())).div_ceil(1_000_000);
    Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX).max(1))
}
