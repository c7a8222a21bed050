//! Requests that several of the test modules send.

use slackline_service::{Amount, Principal, Request, Role, WantedMechanism};
use slackline_units::{Reservation, Span, WallTime};

/// Principal and role of a caller. `None` if the caller has no role.
pub(crate) type Who = (Principal, Option<Role>);

/// The user root, who is an administrator.
pub(crate) const ROOT: Who = (Principal::User(0), Some(Role::Administrator));

/// Returns a request to reserve `slice_ms` in each 10 ms, as a hard limit, for one vCPU of a VM.
/// `until` is the end time, if any.
pub(crate) fn reserve(
    name: &str,
    binding: &str,
    slice_ms: u64,
    until: Option<WallTime>,
) -> Request {
    let each = Reservation::new(Span::from_ms(slice_ms), Span::from_ms(10));
    Request::Reserve {
        name: name.parse().expect("a name"),
        amount: Amount::Each(each.expect("less than a period")),
        exact: true,
        phase: None,
        vcpus: Some(1),
        binding: Some(binding.parse().expect("a binding")),
        user: None,
        until,
        enforce: WantedMechanism::default(),
    }
}
