//! Conversion of reservations for the session. This module converts a reservation to parameters of
//! the scheduling policy, and makes the requests for places that have no thread.

use slackline_live::session::{JoinTarget, Request, RequestedId};
use slackline_policy::{RawValue, Values, find};
use slackline_service::Terms;
use slackline_units::{DomId, Span};

use super::POLICY;

/// Period of the front process's reservation. After a request arrives, the front process runs
/// within this time.
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

/// Returns a reservation as parameters of the scheduling policy. Slice and period are adapted so
/// that the slices within each second add up to the reserved share.
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

/// Returns true if a changed reservation can be admitted without a check of deadline threads,
/// because it demands no more than before. Its period must not become shorter. If a dispatcher
/// enforces the reservation, its share and number of vCPUs must not grow. If the kernel enforces
/// it, its slice must not become longer. The slices and periods compared are those that are
/// enforced, because the daemon can divide a long period into shorter periods.
pub(super) fn needs_no_more(terms: Terms, before: Terms) -> bool {
    let (new, old) = (terms.in_each_second().each(), before.in_each_second().each());
    let is_less = match terms.enforcement().is_of_kernel() {
        true => new.slice() <= old.slice(),
        false => terms.is_within(before),
    };
    is_less && new.period() >= old.period()
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

#[cfg(test)]
mod tests {
    use slackline_units::{Enforcement, Reservation};

    use super::*;

    fn terms(slice_us: u64, period_ms: u64) -> Terms {
        let each = Reservation::new(Span::from_us(slice_us), Span::from_ms(period_ms));
        Terms::new(each.expect("less than the period"), true, 1).expect("valid terms")
    }

    /// 50 ms in each 101 ms is enforced as 25 ms in each 50.5 ms.
    #[test]
    fn dispatcher_change_to_shorter_enforced_period_needs_capacity_check() {
        let before = terms(50_000, 100);
        for less in [terms(50_000, 100), terms(40_000, 100), terms(50_000, 200)] {
            assert!(needs_no_more(less, before), "{less}");
        }
        for more in [terms(50_000, 101), terms(51_000, 100), terms(1_000, 99)] {
            assert!(!needs_no_more(more, before), "{more}");
        }
    }

    /// A slice of 2 ms in each second is enforced as 1 ms in each 500 ms. A slice of 1.9 ms in each
    /// second is enforced without division.
    #[test]
    fn deadline_change_to_longer_enforced_slice_needs_capacity_check() {
        let by_kernel = |slice_us| {
            let by_kernel = terms(slice_us, 1_000).enforced_by(Enforcement::Deadline);
            by_kernel.expect("a hard limit with a short period")
        };
        assert!(!needs_no_more(by_kernel(1_900), by_kernel(2_000)));
        assert!(needs_no_more(by_kernel(1_000), by_kernel(2_000)));
    }
}
