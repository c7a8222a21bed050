//! Description of a policy: name, parameters, help page, reservations and constructor.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuShare, Reservation, ReservationError, Span};

use crate::{Field, FieldError, Policy, Topology, Values};

/// Description of a policy. Users read its help page, and hosts construct the policy from it.
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
    /// Returns an error if the given policy parameters cannot be combined, else `None`. Callers
    /// that read parameters must check this. A policy that is built from conflicting parameters
    /// ignores those that it cannot obey.
    pub conflict: fn(&Values) -> Option<FieldError>,
    /// Returns the reservation that the parameters of a vCPU express. `None` if they reserve no
    /// slice per period.
    pub promise: fn(&Values) -> Result<Option<Promise>, ReservationError>,
    /// Returns true if the policy delivers every admitted slice in every period, with these
    /// parameters and on this host. The result is for a vCPU that stays runnable, whose periods are
    /// counted from its admission. The host is assumed to add no costs. Rules copied from a real
    /// scheduler can lack such a guarantee.
    pub keeps: fn(&Values, &Topology) -> bool,
    /// Returns the parameters that limit a vCPU to a share of a CPU, in every period if the policy
    /// has periods. The result contains field names and values as in a scenario. `None` if the
    /// policy has no limits.
    pub limit: Option<fn(CpuShare, Span) -> ShareText>,
    /// Field and value with which the vCPUs of a VM may borrow each other's unused budget, such as
    /// `spread` and `use`. With this field and value, users can state one total for all vCPUs of
    /// the VM. `None` if each vCPU has only its own slice.
    pub together: Option<(&'static str, &'static str)>,
    /// Returns the service vCPU that is charged for balancing, given the parameters and the host.
    /// `None` if the policy does not balance or balancing takes no CPU time.
    pub payer: Option<fn(&Values, &Topology) -> Option<BalancerVcpu>>,
    /// Constructs the policy for a host.
    pub build: fn(&Values, &Topology) -> Box<dyn Policy>,
}

/// Parameters as a scenario writes them: pairs of field name and the text after the `=`.
pub type ShareText = Vec<(&'static str, String)>;

/// Reservation of a vCPU, which metrics check and a live host enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Slice and period of the vCPU.
    pub reservation: Reservation,
    /// True if the slice is a hard limit.
    pub exact: bool,
    /// True if the vCPU gets no slack: it runs only while the policy has picked it for a CPU. Also
    /// true if the vCPU may exceed its slice only with unused budget of its siblings.
    pub bounded: bool,
    /// True if the vCPU may borrow unused budget of its siblings, up to the total reserved for the
    /// VM.
    pub by_use: bool,
    /// Time from each multiple of the period until a period of the vCPU starts, on the clock to
    /// which phases are aligned. `None` if the periods have no fixed phase.
    pub phase: Option<Span>,
}

/// A service vCPU of the policy itself, without a guest. It does work of the policy that takes CPU
/// time, such as balancing. A host that simulates the cost of this work admits the vCPU with the
/// given share.
#[derive(Clone, Debug, PartialEq)]
pub struct BalancerVcpu {
    /// Interval of the service vCPU's work. At each multiple of the interval the service vCPU wakes
    /// if it is blocked.
    pub every: Span,
    /// CPU on which the service vCPU runs.
    pub cpu: CpuId,
    /// Parameters with which the service vCPU joins.
    pub share: Values,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_help_pages_fit_80_columns_and_contain_parameters_placeholder() {
        for spec in crate::ALL {
            let lines = || spec.page.lines();
            assert_eq!(lines().filter(|line| *line == "{parameters}").count(), 1, "{}", spec.name);
            let wide = lines().find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "{}", spec.name);
        }
    }

    /// Policies whose limit does not reserve CPU time are skipped.
    #[test]
    fn vm_limit_parameters_set_hard_limit_in_every_reserving_policy() {
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
