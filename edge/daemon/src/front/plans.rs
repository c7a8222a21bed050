//! HTTP endpoints of applied plans.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request as Sent, State};
use slackline_control::link::{Answer, Request};
#[cfg(feature = "openapi")]
use slackline_control::{AppliedChange, AppliedPlan, Problem};
use slackline_service::Verb;

use super::Front;
use super::body::{self, No, Reply};
use super::caller::Caller;

/// Undoes the caller's last applied list or change, as a whole.
///
/// The request is refused with status 409 if one of the changed reservations has changed again
/// since then. If the first VM of the list is still being watched, the rest of the list is not
/// applied.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/undo", responses(
    (status = 200, body = Vec<AppliedChange>), (status = "default", body = Problem))))]
pub(super) async fn undo(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Apply)?;
    body::read_nothing(sent, caller.until).await?;
    match front.ask(&caller, None, Request::Undo).await? {
        Answer::Applied(changes) => Ok(body::json(&changes)),
        _ => Err(No::bug()),
    }
}

/// Shows the caller's last applied list or change, with its stage. The answer is `null` if the
/// caller has applied nothing.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/plan", responses(
    (status = 200, body = Option<AppliedPlan>), (status = "default", body = Problem))))]
pub(super) async fn plan(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
) -> Reply {
    caller.may(Verb::List)?;
    match front.ask(&caller, None, Request::Plan).await? {
        Answer::Plan(plan) => Ok(body::json(&plan)),
        _ => Err(No::bug()),
    }
}
