//! Description of a policy: name, parameters, help page, reservations and constructor.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuShare, Reservation, ReservationError, Span};

use crate::{Field, FieldError, Policy, Topology, Values};

/// Description of a policy for users and hosts.
#[derive(Debug)]
pub struct Spec {
    /// Name that users type.
    pub name: &'static str,
    /// Summary of one line, for lists.
    pub summary: &'static str,
    /// Help page in plain text of at most 80 columns. The line `{parameters}` is replaced by the
    /// tables of parameters.
    pub page: &'static str,
    /// Parameters of the policy as a whole.
    pub policy_fields: &'static [Field],
    /// Parameters of each vCPU.
    pub share_fields: &'static [Field],
    /// Returns the error for policy parameters that cannot be combined, or `None`. Callers that
    /// read parameters must check it. A policy built from conflicting parameters omits what it
    /// cannot do.
    pub conflict: fn(&Values) -> Option<FieldError>,
    /// Returns the reservation that the parameters of a vCPU express. `None` if they reserve no
    /// slice per period.
    pub promise: fn(&Values) -> Result<Option<Promise>, ReservationError>,
    /// Returns true if a policy with these parameters on this host delivers every admitted slice in
    /// every period, provided that the host is exact. Periods count from admission, for vCPUs that
    /// stay runnable throughout. Rules copied from a real scheduler may give no such guarantee.
    pub keeps: fn(&Values, &Topology) -> bool,
    /// Returns parameters that limit a vCPU to a share of a CPU, per period if the policy has
    /// periods. They are field names and values as in a scenario. `None` if the policy has no
    /// limits.
    pub limit: Option<fn(CpuShare, Span) -> ShareText>,
    /// Field and value by which slices are shared among the vCPUs of a VM by use. With it users can
    /// give one total for the VM. `None` if each vCPU has only its own slice.
    pub together: Option<(&'static str, &'static str)>,
    /// Returns the service vCPU that pays for balancing, given the parameters and the host. `None`
    /// if the policy does not balance or balancing takes no CPU time.
    pub payer: Option<fn(&Values, &Topology) -> Option<BalancerVcpu>>,
    /// Constructs the policy for a host.
    pub build: fn(&Values, &Topology) -> Box<dyn Policy>,
}

/// Parameters as a scenario writes them: pairs of field name and the text after the `=`.
pub type ShareText = Vec<(&'static str, String)>;

/// Reservation of a vCPU, as metrics check it and a live host enforces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Slice and period of the vCPU.
    pub reservation: Reservation,
    /// True if the slice is a hard limit.
    pub exact: bool,
    /// True if the vCPU gets no slack: it may run only where it is picked. This also holds for a
    /// vCPU that may exceed its slice, but only with unused budget of its siblings.
    pub bounded: bool,
    /// True if the vCPU may borrow unused budget of its siblings, up to the total reserved for the
    /// VM.
    pub by_use: bool,
    /// Offset of its periods from whole periods of the clock. `None` if they have no fixed phase.
    pub phase: Option<Span>,
}

/// A service vCPU of the policy itself, without a guest. It does work of the policy, which takes
/// CPU time like any other. A host that simulates that cost admits it with this share.
#[derive(Clone, Debug, PartialEq)]
pub struct BalancerVcpu {
    /// Interval of its work. It wakes at each multiple of the interval at which it is blocked.
    pub every: Span,
    /// CPU on which it runs.
    pub cpu: CpuId,
    /// Parameters with which it joins.
    pub share: Values,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_help_page_has_one_parameters_line_and_fits_80_columns() {
        for spec in crate::ALL {
            let lines = || spec.page.lines();
            assert_eq!(lines().filter(|line| *line == "{parameters}").count(), 1, "{}", spec.name);
            let wide = lines().find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "{}", spec.name);
        }
    }

    /// Policies whose limit is not a reservation are skipped.
    #[test]
    fn limit_parameters_of_every_reserving_policy_make_a_hard_limit() {
        for spec in crate::ALL {
            let Some(limit) = spec.limit else { continue };
            let terms = limit(CpuShare::from_ppm(60_000), Span::from_ms(10));
            let words =
                terms.iter().map(|(name, value)| format!("{name}={}", value.trim_matches('"')));
            let words = words.collect::<Vec<_>>().join(" ");
            let share = Values::read_written(spec.share_fields, &words).unwrap();
            let Some(promise) = (spec.promise)(&share).unwrap() else { continue };
            assert!(promise.exact, "{}: {words}", spec.name);
            let had = (promise.reservation.slice(), promise.reservation.period());
            assert_eq!(had, (Span::from_us(600), Span::from_ms(10)), "{}", spec.name);
        }
    }
}
