//! HTTP endpoints of the flight recorder.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request as Sent, State};
use serde::Deserialize;
use slackline_control::link::{Answer, Request};
#[cfg(feature = "openapi")]
use slackline_control::{Culprits, Incident, PredictionRecord, Problem, Recording, WhatIfAnswer};
use slackline_control::{Length, NAME, Prediction, WhatIf};
use slackline_service::Verb;

use super::Front;
use super::body::{self, No, Reply, query};
use super::caller::Caller;

/// Additional time for a request that asks for a prediction: the time limit of the worker, plus a
/// margin.
const PREDICTED_WITHIN: Duration = Duration::from_secs(12);

/// Shows the causes that kept a VM from running in the last minute.
///
/// A tenant sees only the names of its own VMs.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/why/{name}", params(("name" = String, Path)), responses(
    (status = 200, body = Culprits), (status = "default", body = Problem))))]
pub(super) async fn why(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Reply {
    caller.may(Verb::List)?;
    let not_text = |_| No::bad("the name is not UTF-8 text", NAME);
    let Path(name) = path.map_err(not_text)?;
    match front.ask(&caller, None, Request::Why { name }).await? {
        Answer::Why(why) => Ok(body::json(&why)),
        _ => Err(No::bug()),
    }
}

/// Lists the recordings of missed deadlines, newest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/incidents", responses(
    (status = 200, body = Vec<Incident>), (status = "default", body = Problem))))]
pub(super) async fn incidents(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
) -> Reply {
    caller.may(Verb::List)?;
    match front.ask(&caller, None, Request::Incidents).await? {
        Answer::Incidents(incidents) => Ok(body::json(&incidents)),
        _ => Err(No::bug()),
    }
}

/// Shows the causes that kept the VM of an incident from running.
///
/// A tenant sees only the names of its own VMs.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/incidents/{id}", params(("id" = u64, Path)), responses(
    (status = 200, body = Culprits), (status = "default", body = Problem))))]
pub(super) async fn incident(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<u64>, PathRejection>,
) -> Reply {
    caller.may(Verb::List)?;
    let no_number =
        |_| No::bad("the incident is not a number", "write a number from the list /v1/incidents");
    let Path(id) = path.map_err(no_number)?;
    match front.ask(&caller, None, Request::WhyIncident { id }).await? {
        Answer::Why(why) => Ok(body::json(&why)),
        _ => Err(No::bug()),
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct RecordingSince {
    /// Length of the recording, such as `30s`. The recording ends now.
    since: Length,
}

/// Saves the latest events of the flight recorder in a file on the daemon's host. Administrators
/// only.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/recordings", params(RecordingSince), responses(
    (status = 200, body = Recording), (status = "default", body = Problem))))]
pub(super) async fn save(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    asking: Result<Query<RecordingSince>, QueryRejection>,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Access)?;
    let RecordingSince { since } = query(asking)?;
    body::read_nothing(sent, caller.until).await?;
    match front.ask(&caller, None, Request::Record { since }).await? {
        Answer::Recording(recording) => Ok(body::json(&recording)),
        _ => Err(No::bug()),
    }
}

/// Makes the service compare the predictions of an applied plan with measurements.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/predictions", request_body = Vec<Prediction>, responses(
    (status = 200, body = Vec<PredictionRecord>), (status = "default", body = Problem))))]
pub(super) async fn predict(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Change)?;
    let example = r#"[{"vcpu":"web.0","length_ns":30000000000,"share_ppm":[100000,110000]}]"#;
    let predictions: Vec<Prediction> = body::read(sent, caller.until, example).await?;
    match front.ask(&caller, None, Request::Predict(predictions)).await? {
        Answer::Predictions(all) => Ok(body::json(&all)),
        _ => Err(No::bug()),
    }
}

/// Lists the newest 500 predictions of applied plans with the measured results. The oldest of them
/// comes first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/predictions", responses(
    (status = 200, body = Vec<PredictionRecord>), (status = "default", body = Problem))))]
pub(super) async fn predictions(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
) -> Reply {
    caller.may(Verb::List)?;
    match front.ask(&caller, None, Request::Predictions).await? {
        Answer::Predictions(all) => Ok(body::json(&all)),
        _ => Err(No::bug()),
    }
}

/// Predicts how the VMs would have run in the last seconds with other parameters, another policy or
/// other VMs.
///
/// The answer is the output of `slackline whatif --since --json`, with the revision of the
/// reservations and the largest shares that admission would accept. A caller can have one
/// prediction at a time. A tenant gets the numbers of its own VMs only.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/whatif", request_body = WhatIf, responses(
    (status = 200, body = WhatIfAnswer), (status = "default", body = Problem))))]
pub(super) async fn whatif(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    sent: Sent,
) -> Reply {
    caller.may(Verb::List)?;
    let example = r#"{"since":"10s","set":[{"name":"web","slice":"3ms","period":"10ms"}]}"#;
    let asked: WhatIf = body::read(sent, caller.until, example).await?;
    let patient = Caller { until: caller.until + PREDICTED_WITHIN, ..caller };
    match front.ask(&patient, None, Request::Whatif(asked)).await? {
        Answer::Whatif(answer) => Ok(body::json(&answer)),
        _ => Err(No::bug()),
    }
}
