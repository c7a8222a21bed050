//! HTTP pages of the flight recorder.

use axum::Extension;
use axum::extract::{Request as Sent, State};
use serde::Deserialize;
use slackline_control::Length;
use slackline_control::link::{Answer, Request};
#[cfg(feature = "openapi")]
use slackline_control::{Incident, Problem, Recording, Why};
use slackline_service::Verb;

use super::body::{self, No, Reply, query};
use super::pages::{Asking, Named, Shared, Who, name};

/// Shows who kept a VM from running in the last minute.
///
/// A tenant sees only its own VMs by name.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/why/{name}", params(("name" = String, Path)), responses(
    (status = 200, body = Why), (status = "default", body = Problem))))]
pub(super) async fn why(State(front): Shared, Extension(caller): Who, path: Named) -> Reply {
    caller.may(Verb::List)?;
    match front.ask(&caller, None, Request::Why { name: name(path)? }).await? {
        Answer::Why(why) => Ok(body::json(&why)),
        _ => Err(No::bug()),
    }
}

/// Lists the recordings of missed deadlines, newest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/incidents", responses(
    (status = 200, body = Vec<Incident>), (status = "default", body = Problem))))]
pub(super) async fn incidents(State(front): Shared, Extension(caller): Who) -> Reply {
    caller.may(Verb::List)?;
    match front.ask(&caller, None, Request::Incidents).await? {
        Answer::Incidents(incidents) => Ok(body::json(&incidents)),
        _ => Err(No::bug()),
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct Since {
    /// Length of time until now, such as `30s`.
    since: Length,
}

/// Saves what the flight recorder has, on the daemon's host. Administrators only.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/recordings", params(Since), responses(
    (status = 200, body = Recording), (status = "default", body = Problem))))]
pub(super) async fn save(
    State(front): Shared,
    Extension(caller): Who,
    asking: Asking<Since>,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Access)?;
    let Since { since } = query(asking)?;
    body::read_nothing(sent, caller.until).await?;
    match front.ask(&caller, None, Request::Record { since }).await? {
        Answer::Recording(recording) => Ok(body::json(&recording)),
        _ => Err(No::bug()),
    }
}
