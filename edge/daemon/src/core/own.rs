//! The VMs that a tenant may see in answers of the flight recorder.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use slackline_units::Span;

/// Longest time from an event of a VM until an incident that contains this event is saved.
const SAVED_WITHIN: Span = Span::from_secs(3);

/// VMs of a tenant: the name of each reservation, and the time at which the reservation was made,
/// in nanoseconds since 1970. Before that time, the name may have belonged to another owner. If the
/// time is unknown, it is stored as [`u64::MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnVms(BTreeMap<String, u64>);

impl OwnVms {
    /// Creates the list of a tenant's VMs. Each item is the name of a reservation and the time at
    /// which the reservation was made. If that time is unknown, the tenant sees no past record
    /// under the name, because each such record may belong to an earlier owner.
    pub(super) fn new(all: impl Iterator<Item = (String, Option<SystemTime>)>) -> OwnVms {
        let since_1970 =
            |at: SystemTime| u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok();
        OwnVms(all.map(|(name, at)| (name, at.and_then(since_1970).unwrap_or(u64::MAX))).collect())
    }

    /// Returns the names of the reservations.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// Returns true if the tenant has a reservation with this name.
    pub(super) fn contains(&self, vm: &str) -> bool {
        self.0.contains_key(vm)
    }

    /// Returns the time at which a reservation was made, in nanoseconds since 1970. [`u64::MAX`] if
    /// that time is unknown. `None` if the tenant has no reservation with this name.
    pub(super) fn begun(&self, vm: &str) -> Option<u64> {
        self.0.get(vm).copied()
    }

    /// Returns true if an incident of the VM contains only events of the tenant's present
    /// reservation. `at_ns` is the wall-clock time at which the incident was saved.
    pub(super) fn has_incident(&self, vm: &str, at_ns: u64) -> bool {
        self.begun(vm).is_some_and(|begun| at_ns >= begun.saturating_add(SAVED_WITHIN.ns()))
    }

    /// Returns true if a prediction for a vCPU concerns the tenant's present reservation. `at_ns`
    /// is the wall-clock time at which the prediction was made.
    pub(super) fn has_prediction(&self, vcpu: &str, at_ns: u64) -> bool {
        let vm = vcpu.rsplit_once('.').map_or(vcpu, |(vm, _)| vm);
        [vm, vcpu].iter().any(|name| self.begun(name).is_some_and(|begun| at_ns >= begun))
    }
}

/// Returns true if the caller may see the vCPU named `vcpu`. `own` contains the caller's VMs. If it
/// is `None`, the caller may see all VMs.
pub(super) fn may_see(own: Option<&OwnVms>, vcpu: &str) -> bool {
    let vm = vcpu.rsplit_once('.').map_or(vcpu, |(vm, _)| vm);
    own.is_none_or(|own| own.contains(vm) || own.contains(vcpu))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tenant_sees_no_records_from_before_its_own_reservation() {
        let begun = UNIX_EPOCH + Duration::from_secs(100);
        let names = [("web", Some(begun)), ("db.1", Some(begun)), ("old", None)];
        let own = OwnVms::new(names.into_iter().map(|(name, at)| (name.to_owned(), at)));
        let seconds = |number: u64| number * 1_000_000_000;
        let incidents = [99, 100, 102, 103].map(|at| own.has_incident("web", seconds(at)));
        assert_eq!(incidents, [false, false, false, true]);
        let predictions = [99, 100].map(|at| own.has_prediction("web.0", seconds(at)));
        assert_eq!(predictions, [false, true]);
        assert!(own.has_prediction("db.1.0", seconds(100)));
        // The time of `old` is unknown.
        assert!(own.contains("old") && !own.has_incident("old", seconds(1_000)));
        assert!(!own.has_prediction("old.0", seconds(1_000)));
        assert!(!own.has_incident("other", seconds(1_000)) && !may_see(Some(&own), "other.0"));
        assert!(may_see(Some(&own), "web.0") && may_see(None, "other.0"));
    }
}
