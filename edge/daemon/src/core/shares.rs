//! Conversion of reservations for the session: parameters of the scheduling policy, and requests
//! for places without threads.

use slackline_live::session::{JoinTarget, Request, RequestedId};
use slackline_policy::{RawValue, Values, find};
use slackline_service::Terms;
use slackline_units::{DomId, Span};

use super::POLICY;

/// Period of the front process's reservation. A request waits at most this long until the process
/// runs.
pub(super) const FRONT_PERIOD: Span = Span::from_ms(2);

/// Returns the request with which a place joins the session if it has no thread.
pub(super) fn empty_place((domain, name, terms): (DomId, &str, &Terms), number: u16) -> Request {
    Request {
        who: JoinTarget::Nobody,
        name: format!("{name}.{number}"),
        domain: name.to_owned(),
        called: RequestedId::As(domain, number),
        share: share(terms),
        cpus: None,
    }
}

/// Returns a reservation as parameters of the scheduling policy. Period and slice are adapted so
/// that the slices of each second add up to the reserved share.
pub(super) fn share(terms: &Terms) -> Values {
    let terms = terms.in_each_second();
    let each = terms.each();
    let phase = terms.phase().map_or_else(|| "none".to_owned(), |phase| phase.to_string());
    let spread = if terms.by_use() { "use" } else { "even" };
    values((each.slice(), each.period()), terms.exact(), &phase, spread)
}

/// Returns parameters for a work-conserving reservation of `slice` in every `period`.
pub(super) fn slice_in(slice: Span, period: Span) -> Values {
    values((slice, period), false, "none", "even")
}

fn values((slice, period): (Span, Span), exact: bool, phase: &str, spread: &str) -> Values {
    let policy = find(POLICY).expect("the policy of the session is built in");
    let (slice, period) = (slice.to_string(), period.to_string());
    let given = [
        ("slice", RawValue::Text(&slice)),
        ("period", RawValue::Text(&period)),
        ("exact", RawValue::Flag(exact)),
        ("phase", RawValue::Text(phase)),
        ("spread", RawValue::Text(spread)),
    ];
    let share = Values::read(policy.share_fields, given.into_iter());
    share.expect("every reservation is valid in the policy's parameters")
}
