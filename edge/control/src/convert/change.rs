//! Conversion of a change request from the wire format.

use slackline_service::{self as service, Amount, Name, Refusal};
use slackline_units as units;

use super::{bad, both, each_of, problem, read_binding, read_name};
use crate::problem::Problem;
use crate::requests::Change;

/// Maximum length of the reason for a change, in bytes.
const LONGEST_WHY: usize = 256;

/// Converts a change of the parameters or of the binding of a reservation.
pub(super) fn changed_terms(
    name: &str,
    change: &Change,
    if_revision: Option<u64>,
    each: impl FnOnce(&Name) -> Option<units::Reservation>,
) -> Result<service::Request, Problem> {
    let name = read_name(name)?;
    if let Some(text) = change.binding.clone() {
        if *change != (Change { binding: change.binding.clone(), ..Change::default() }) {
            let detail = "`for` cannot be combined with other changes".to_owned();
            return Err(bad(detail, "change `for` in a request of its own"));
        }
        let binding = read_binding(&text)?;
        return Ok(service::Request::Rebind { name, binding, if_revision });
    }
    let why = reason(change)?;
    let amount = changed(change, || each(&name), &name)?;
    let Change { exact, vcpus, .. } = *change;
    let (phase, until) = (change.phase.map(|it| it.0), change.until.map(|it| it.0));
    let enforce = change.enforce.map(Into::into);
    Ok(service::Request::Change {
        name,
        amount,
        exact,
        phase,
        vcpus,
        until,
        enforce,
        why,
        if_revision,
    })
}

/// Checks and returns the reason for a change. `None` if the change gives no reason.
///
/// # Errors
/// If the reason is empty, too long or contains control characters, or if the change contains
/// nothing else.
fn reason(change: &Change) -> Result<Option<String>, Problem> {
    let Some(why) = &change.why else { return Ok(None) };
    let length = why.len();
    if !(1..=LONGEST_WHY).contains(&length) || why.chars().any(char::is_control) {
        let detail = format!(
            "cannot use `why` of {length} bytes: it must have 1 to {LONGEST_WHY} bytes and no \
             control characters"
        );
        return Err(bad(detail, "write the reason in one line of at most 256 bytes"));
    }
    if *change == (Change { why: change.why.clone(), ..Change::default() }) {
        let detail = "cannot use `why` alone: the request has no change to explain".to_owned();
        return Err(bad(detail, "add a new parameter, such as `slice`"));
    }
    Ok(Some(why.clone()))
}

/// Returns the new slice and period. A value that the change does not contain is taken from the
/// current reservation.
fn changed(
    change: &Change,
    each: impl FnOnce() -> Option<units::Reservation>,
    name: &Name,
) -> Result<Option<Amount>, Problem> {
    let Change { slice, period, cpu, .. } = *change;
    let (slice, period) = (slice.map(|it| it.0), period.map(|it| it.0));
    let now = || {
        let unknown = || problem(&Refusal::NoSuchReservation { name: name.clone() });
        each().ok_or_else(unknown)
    };
    Ok(Some(match (slice, period, cpu) {
        (Some(_), _, Some(_)) => return Err(both()),
        (Some(slice), Some(period), None) => each_of(slice, period)?,
        (Some(slice), None, None) => each_of(slice, now()?.period())?,
        (None, Some(period), None) => each_of(now()?.slice(), period)?,
        (None, period, Some(share)) => {
            let period = period.map_or_else(|| now().map(units::Reservation::period), Ok)?;
            Amount::Together { share: share.0, period: Some(period) }
        }
        (None, None, None) => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use slackline_units::{CpuShare, Span};

    use super::*;
    use crate::link::Request;
    use crate::problem::Kind;

    fn each(slice: u64, period: u64) -> units::Reservation {
        units::Reservation::new(Span::from_ms(slice), Span::from_ms(period)).unwrap()
    }

    fn change(text: &str, now: Option<units::Reservation>) -> Result<Option<Amount>, Problem> {
        let change = serde_json::from_str(text).unwrap();
        let request = Request::Change { name: "web".into(), change, if_revision: Some(3) };
        match request.in_service(|_| now, Span::ZERO)? {
            Some(service::Request::Change { amount, if_revision: Some(3), .. }) => Ok(amount),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reservation_change_without_slice_or_period_keeps_old_value() {
        let now = Some(each(2, 10));
        let to = |text| change(text, now).unwrap();
        assert_eq!(to(r#"{"slice":"3ms"}"#), Some(Amount::Each(each(3, 10))));
        assert_eq!(to(r#"{"period":"20ms"}"#), Some(Amount::Each(each(2, 20))));
        let half = CpuShare::from_ppm(500_000);
        let together = Amount::Together { share: half, period: Some(Span::from_ms(10)) };
        assert_eq!(to(r#"{"cpu":"50%"}"#), Some(together));
        assert_eq!(to(r#"{"exact":true}"#), None);
        assert_eq!(to(r#"{"phase":"none"}"#), None);
        assert_eq!(change(r#"{"slice":"3ms"}"#, None).unwrap_err().kind, Kind::NoSuchReservation);
        let error = change(r#"{"slice":"30ms"}"#, now).unwrap_err();
        assert_eq!(error.detail, "a slice of 30ms does not fit into a period of 10ms");
        assert_eq!(change(r#"{"slice":"3ms","cpu":"1cpu"}"#, now).unwrap_err().kind, Kind::Bad);
    }

    #[test]
    fn change_request_with_invalid_reason_or_without_change_is_refused() {
        let now = Some(each(2, 10));
        let with = |why: &str| {
            let text = serde_json::json!({ "slice": "3ms", "why": why }).to_string();
            change(&text, now).map(|_| ())
        };
        assert_eq!(with("31 misses in 30 s"), Ok(()));
        assert_eq!(with(&"w".repeat(256)), Ok(()));
        for bad in [String::new(), "w".repeat(257), "two\nlines".into(), "\u{1b}[2J".into()] {
            let problem = with(&bad).unwrap_err();
            assert_eq!(problem.kind, Kind::Bad);
            assert!(problem.detail.contains(&format!("{} bytes", bad.len())), "{}", problem.detail);
        }
        let alone = change(r#"{"why":"because"}"#, now).unwrap_err();
        assert!(alone.detail.contains("the request has no change"), "{}", alone.detail);
    }
}
