//! HTTP endpoint of the history: the CPU time that a reservation received, by hour or day.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use slackline_control::NAME;
use slackline_control::link::{Answer, Request};
#[cfg(feature = "openapi")]
use slackline_control::{Account, Problem};
use slackline_service::Verb;
use slackline_units::Span;

use super::Front;
use super::body::{self, No, Reply, query};
use super::caller::Caller;

/// Default start of the history, given as the time before now.
const SINCE: Span = Span::from_secs(24 * 3600);

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct Accounting {
    /// First hour or day: a time before now such as `7d`, or nanoseconds since 1970. Default:
    /// `24h`. To get the next page, pass the end of the last entry.
    since: Option<String>,
    /// Time covered by one entry of the history: `hour` or `day`. Default: `hour`.
    by: Option<HistoryStep>,
}

/// Time covered by one entry of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum HistoryStep {
    Hour,
    Day,
}

/// Shows the CPU time that a reservation received by hour or day, oldest first, up to 1,000
/// entries.
///
/// Entries are kept for 400 days, in at most 64 MiB. If the hours need more space, the oldest hours
/// are merged into days. If that is not enough, the oldest days are deleted. Reservations that have
/// ended are included.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/history/{name}", params(("name" = String, Path), Accounting), responses(
    (status = 200, body = Vec<Account>), (status = "default", body = Problem))))]
pub(super) async fn history(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    asking: Result<Query<Accounting>, QueryRejection>,
) -> Reply {
    caller.may(Verb::Log)?;
    let Accounting { since, by } = query(asking)?;
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ns = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
    let since_ns = since
        .as_deref()
        .map_or(Some(now_ns.saturating_sub(SINCE.ns())), |text| start(text, now_ns));
    let wrong =
        || No::bad("`since` is not a time", "write `since` as `7d`, or as nanoseconds since 1970");
    let since_ns = since_ns.ok_or_else(wrong)?;
    let Ok(Path(name)) = path else {
        return Err(No::bad("the name is not UTF-8 text", NAME));
    };
    let request = Request::History { name, since_ns, by_day: by == Some(HistoryStep::Day) };
    match front.ask(&caller, None, request).await? {
        Answer::History(accounts) => Ok(body::json(&accounts)),
        _ => Err(No::bug()),
    }
}

/// Parses the parameter for the start of the history: a time before now, or nanoseconds since 1970.
/// Returns nanoseconds since 1970, or `None` if the text is invalid.
fn start(text: &str, now_ns: u64) -> Option<u64> {
    let ago = || Some(now_ns.saturating_sub(text.parse::<Span>().ok()?.ns()));
    text.parse().ok().or_else(ago)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_query_starts_at_duration_before_now_or_absolute_time() {
        let hour = 3_600_000_000_000;
        assert_eq!(start("2h", 5 * hour), Some(3 * hour));
        assert_eq!(start("7d", 5 * hour), Some(0));
        assert_eq!(start("7200000000000", 5 * hour), Some(2 * hour));
        assert_eq!([start("yesterday", 0), start("", 0), start("-1h", 0)], [None; 3]);
    }
}
