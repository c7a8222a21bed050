//! HTTP endpoints of the API. Each endpoint in this file sends at most one request to the core
//! process.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, MatchedPath, Path, Query, Request as Sent, State};
use axum::http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use serde::Deserialize;
use slackline_control::link::{Answer, Request};
#[cfg(feature = "openapi")]
use slackline_control::{
    AppliedChange, Apply, Change, Event, Health, Host, Machine, Reservation, Room,
};
use slackline_control::{
    GangWord, Kind, LONGEST_LIST, Length, NAME, PAGE, Problem, ReservationParameters, name_hint,
};
use slackline_service::{Key, Name, Verb};

use super::Front;
use super::body::{self, No, Reply, query};
use super::caller::Caller;
use super::{accounts, events, grants, metrics, page, plans, recordings, timeline};

/// OpenAPI description that is stored in the repository. Within a version, only additions to it are
/// allowed.
pub const STORED: &str = include_str!("../../openapi.json");

/// Maximum length of the filter text in a request to list VMs, in bytes.
const LONGEST_TEXT: usize = 256;

/// Default number of events on a page of the log.
const LOG: usize = 100;

type Shared = State<Arc<Front>>;
type Who = Extension<Caller>;
type Named = Result<Path<String>, PathRejection>;
type Asking<T> = Result<Query<T>, QueryRejection>;

pub(super) fn router(front: &Arc<Front>) -> Router {
    let one = get(show).put(reserve).patch(change).delete(release);
    let page = if front.has_page { page::routes() } else { Router::new() };
    page.route("/v1/host", get(host))
        .route("/v1/page", post(page::make_code))
        .route("/v1/session", get(page::session).delete(page::log_out))
        .route("/v1/timeline", get(timeline::timeline))
        .route("/v1/machines", get(machines))
        .route("/v1/reservations", get(list))
        .route("/v1/reservations/{name}", one)
        .route("/v1/reservations/{name}/pause", post(pause))
        .route("/v1/reservations/{name}/resume", post(resume))
        .route("/v1/apply", post(apply))
        .route("/v1/undo", post(plans::undo))
        .route("/v1/plan", get(plans::plan))
        .route("/v1/gangs", post(gang))
        .route("/v1/room", get(room))
        .route("/v1/access", get(grants::access).post(grants::migrate_access))
        .route("/v1/access/{whom}", put(grants::grant).delete(grants::revoke))
        .route("/v1/events", get(events::events))
        .route("/v1/log", get(log))
        .route("/v1/why/{name}", get(recordings::why))
        .route("/v1/incidents", get(recordings::incidents))
        .route("/v1/incidents/{id}", get(recordings::incident))
        .route("/v1/recordings", post(recordings::save))
        .route("/v1/predictions", get(recordings::predictions).post(recordings::predict))
        .route("/v1/whatif", post(recordings::whatif))
        .route("/v1/history/{name}", get(accounts::history))
        .route("/v1/openapi.json", get(api))
        .route("/metrics", get(scrape))
        .route("/health", get(health))
        .fallback(body::no_such_page)
        .method_not_allowed_fallback(body::wrong_method)
        // Bodies are read with our own size limit, so that a refusal states the limit.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(remember_route))
        .with_state(Arc::clone(front))
}

/// Returns the router for the loopback address for metrics.
pub(super) fn metrics_router(front: &Arc<Front>) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .fallback(only_metrics)
        .method_not_allowed_fallback(body::wrong_method)
        .layer(from_fn(remember_route))
        .with_state(Arc::clone(front))
}

/// Refuses each request to the loopback address for metrics that is not for the metrics.
async fn only_metrics() -> No {
    let problem = Problem::new(Kind::NoSuchPage, "this address serves only /metrics, without TLS");
    No(problem.hinting("use the socket of the daemon for all other requests"))
}

/// Adds the route of a request to its response, so that the metrics can count requests by route.
async fn remember_route(request: Sent, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    response
}

impl Front {
    pub(super) async fn ask(
        &self,
        caller: &Caller,
        key: Option<&Key>,
        request: Request,
    ) -> Result<Answer, No> {
        self.link.ask(caller.asks(key, request), caller.until).await.map_err(No)
    }

    /// Sends a request that changes a reservation, and returns the changed reservation.
    async fn write(&self, caller: &Caller, headers: &HeaderMap, request: Request) -> Reply {
        let key = body::key(headers)?;
        match self.ask(caller, key.as_ref(), request).await? {
            Answer::Done { reservation, is_new } => {
                let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
                Ok(body::reservation(status, &reservation))
            }
            _ => Err(No::bug()),
        }
    }
}

/// Returns the reservation's name from the path of a request. If the name is invalid, refuses the
/// request.
fn name(path: Named) -> Result<String, No> {
    let Ok(Path(text)) = path else {
        return Err(No::bad("the name is not UTF-8 text", NAME));
    };
    checked(&text)
}

fn checked(text: &str) -> Result<String, No> {
    match text.parse::<Name>() {
        Ok(name) => Ok(name.to_string()),
        Err(error) => {
            let shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
            Err(No::bad(format!("the name `{shown}` {error}"), name_hint(&shown)))
        }
    }
}

/// Shows the host: its CPUs, and the capacity that is reserved on each of them.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/host", responses(
    (status = 200, body = Host), (status = "default", body = Problem))))]
pub(super) async fn host(State(front): Shared, Extension(caller): Who) -> Reply {
    match front.ask(&caller, None, Request::Host).await? {
        Answer::Host(host) => Ok(body::json(&host)),
        _ => Err(No::bug()),
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct Finding {
    /// Only VMs whose name or binding contains this text.
    text: Option<String>,
}

/// Lists the VMs of the host.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/machines", params(Finding), responses(
    (status = 200, body = Vec<Machine>), (status = "default", body = Problem))))]
pub(super) async fn machines(
    State(front): Shared,
    Extension(caller): Who,
    finding: Asking<Finding>,
) -> Reply {
    caller.may(Verb::Find)?;
    let text = query(finding)?.text;
    let length = text.as_ref().map_or(0, String::len);
    if length > LONGEST_TEXT {
        let detail =
            format!("the search text has {length} bytes; at most {LONGEST_TEXT} are allowed");
        return Err(No::bad(detail, "search for a shorter text"));
    }
    match front.ask(&caller, None, Request::Find { text }).await? {
        Answer::Machines(machines) => Ok(body::json(&machines)),
        _ => Err(No::bug()),
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct Paging {
    /// Name after which the page begins: the last name on the previous page. Default: the page
    /// begins with the first name.
    after: Option<String>,
}

/// Lists reservations in the order of their names, up to 500 per page.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/reservations", params(Paging), responses(
    (status = 200, body = Vec<Reservation>), (status = "default", body = Problem))))]
pub(super) async fn list(
    State(front): Shared,
    Extension(caller): Who,
    paging: Asking<Paging>,
) -> Reply {
    caller.may(Verb::List)?;
    let after = query(paging)?.after.as_deref().map(checked).transpose()?;
    let request = Request::List { name: None, after };
    match front.ask(&caller, None, request).await? {
        Answer::Reservations(all) => Ok(body::json(&all)),
        _ => Err(No::bug()),
    }
}

/// Shows one reservation by name.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/reservations/{name}", params(("name" = String, Path)), responses(
    (status = 200, body = Reservation), (status = "default", body = Problem))))]
pub(super) async fn show(State(front): Shared, Extension(caller): Who, path: Named) -> Reply {
    caller.may(Verb::List)?;
    let request = Request::List { name: Some(name(path)?), after: None };
    match front.ask(&caller, None, request).await? {
        Answer::Reservations(all) => match &all[..] {
            [one] => Ok(body::reservation(StatusCode::OK, one)),
            _ => Err(No::bug()),
        },
        _ => Err(No::bug()),
    }
}

/// Makes a reservation.
///
/// If the same user repeats the request, the answer has the status 200, and the request has no
/// second effect.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/v1/reservations/{name}", request_body = ReservationParameters,
    params(("name" = String, Path), ("Idempotency-Key" = Option<String>, Header)), responses(
    (status = 201, body = Reservation), (status = 200, body = Reservation),
    (status = "default", body = Problem))))]
pub(super) async fn reserve(
    State(front): Shared,
    Extension(caller): Who,
    path: Named,
    headers: HeaderMap,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Reserve)?;
    let name = name(path)?;
    body::without(&headers, &[IF_MATCH])?;
    if body::only(&headers, &IF_NONE_MATCH)?.is_some_and(|text| text != "*") {
        let hint = "leave the header out: PUT never replaces a reservation";
        return Err(No::bad("If-None-Match must be `*`", hint));
    }
    let example = r#"{"slice":"2ms","period":"10ms"} or {"cpu":"1.5cpu"}"#;
    let wanted: ReservationParameters = body::read(sent, caller.until, example).await?;
    front.write(&caller, &headers, Request::Reserve { name, wanted }).await
}

/// Applies a list of reservations. Either all of them are admitted, or nothing changes.
///
/// Reservations that are not in the list stay, unless `prune` releases them. A new reservation
/// waits for its VM. If the VM is running, the service finds it within a few seconds.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/apply", request_body = Apply, responses(
    (status = 200, body = Vec<AppliedChange>), (status = "default", body = Problem))))]
pub(super) async fn apply(
    State(front): Shared,
    Extension(caller): Who,
    headers: HeaderMap,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Apply)?;
    body::without(&headers, &[IF_MATCH, IF_NONE_MATCH])?;
    let example = r#"{"reservations":{"web":{"cpu":"30%"},"db":{"slice":"2ms"}}}"#;
    let list = body::read_up_to(sent, caller.until, example, LONGEST_LIST).await?;
    match front.ask(&caller, None, Request::Apply { list }).await? {
        Answer::Applied(changes) => Ok(body::json(&changes)),
        _ => Err(No::bug()),
    }
}

/// Reserves capacity for this host's member of a gang, starts the member, or ends its membership. A
/// gang is a set of VMs on several hosts.
///
/// The client that starts a gang asks all hosts to reserve capacity for their members. If all hosts
/// agree, the client asks all of them to start. Otherwise no member starts.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/gangs", request_body = GangWord,
    params(("Idempotency-Key" = Option<String>, Header)), responses(
    (status = 201, body = Reservation), (status = 200, body = Reservation),
    (status = "default", body = Problem))))]
pub(super) async fn gang(
    State(front): Shared,
    Extension(caller): Who,
    headers: HeaderMap,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Gang)?;
    body::without(&headers, &[IF_MATCH, IF_NONE_MATCH])?;
    let example = r#"{"hold":{"gang":"g","name":"web","wanted":{"slice":"2ms","phase":"0ms"}}}"#;
    let word: GangWord = body::read(sent, caller.until, example).await?;
    front.write(&caller, &headers, Request::Gang { word }).await
}

/// Changes a reservation. If a field is absent, its parameter stays unchanged.
#[cfg_attr(feature = "openapi", utoipa::path(
    patch, path = "/v1/reservations/{name}", request_body = Change,
    params(("name" = String, Path), ("Idempotency-Key" = Option<String>, Header),
    ("If-Match" = Option<String>, Header, description = "expected revision, in quotes")), responses(
    (status = 200, body = Reservation), (status = "default", body = Problem))))]
pub(super) async fn change(
    State(front): Shared,
    Extension(caller): Who,
    path: Named,
    headers: HeaderMap,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Change)?;
    let name = name(path)?;
    body::without(&headers, &[IF_NONE_MATCH])?;
    let if_revision = body::revision(&headers)?;
    let change = body::read(sent, caller.until, r#"{"slice":"3ms"}"#).await?;
    front.write(&caller, &headers, Request::Change { name, change, if_revision }).await
}

/// Ends a reservation. Its VM returns to ordinary scheduling.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/v1/reservations/{name}",
    params(("name" = String, Path), ("Idempotency-Key" = Option<String>, Header),
    ("If-Match" = Option<String>, Header, description = "expected revision, in quotes")), responses(
    (status = 200, body = Reservation), (status = "default", body = Problem))))]
pub(super) async fn release(
    State(front): Shared,
    Extension(caller): Who,
    path: Named,
    headers: HeaderMap,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Release)?;
    let (name, if_revision) = bare(path, &headers, sent, &caller).await?;
    front.write(&caller, &headers, Request::Release { name, if_revision }).await
}

/// Stops the vCPUs of a VM until the VM is resumed. The VM's capacity stays reserved.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/reservations/{name}/pause",
    params(("name" = String, Path), ("Idempotency-Key" = Option<String>, Header),
    ("If-Match" = Option<String>, Header, description = "expected revision, in quotes")), responses(
    (status = 200, body = Reservation), (status = "default", body = Problem))))]
pub(super) async fn pause(
    State(front): Shared,
    Extension(caller): Who,
    path: Named,
    headers: HeaderMap,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Pause)?;
    let (name, if_revision) = bare(path, &headers, sent, &caller).await?;
    front.write(&caller, &headers, Request::Pause { name, if_revision }).await
}

/// Resumes a paused VM.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/reservations/{name}/resume",
    params(("name" = String, Path), ("Idempotency-Key" = Option<String>, Header),
    ("If-Match" = Option<String>, Header, description = "expected revision, in quotes")), responses(
    (status = 200, body = Reservation), (status = "default", body = Problem))))]
pub(super) async fn resume(
    State(front): Shared,
    Extension(caller): Who,
    path: Named,
    headers: HeaderMap,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Resume)?;
    let (name, if_revision) = bare(path, &headers, sent, &caller).await?;
    front.write(&caller, &headers, Request::Resume { name, if_revision }).await
}

/// Checks that a request has no body. Returns the name of its reservation, and the revision in its
/// header `If-Match`, if there is one.
async fn bare(
    path: Named,
    headers: &HeaderMap,
    sent: Sent,
    caller: &Caller,
) -> Result<(String, Option<u64>), No> {
    let name = name(path)?;
    body::without(headers, &[IF_NONE_MATCH])?;
    let if_revision = body::revision(headers)?;
    body::read_nothing(sent, caller.until).await?;
    Ok((name, if_revision))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct ForPeriod {
    /// Period of the reservation for which capacity is sought, with a unit, such as `10ms`.
    period: Length,
}

/// Shows the available capacity of each CPU: the largest slice that the CPU would admit now.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/room", params(ForPeriod), responses(
    (status = 200, body = Room), (status = "default", body = Problem))))]
pub(super) async fn room(
    State(front): Shared,
    Extension(caller): Who,
    asking: Asking<ForPeriod>,
) -> Reply {
    caller.may(Verb::Room)?;
    let ForPeriod { period } = query(asking)?;
    match front.ask(&caller, None, Request::Room { period }).await? {
        Answer::Room(room) => Ok(body::json(&room)),
        _ => Err(No::bug()),
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct Logging {
    /// Only events of this reservation.
    name: Option<String>,
    /// Only events with a lower number than this.
    before: Option<u64>,
    /// Maximum number of events, 1 to 500. Default: 100.
    limit: Option<usize>,
}

/// Lists events, newest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/log", params(Logging), responses(
    (status = 200, body = Vec<Event>), (status = "default", body = Problem))))]
pub(super) async fn log(
    State(front): Shared,
    Extension(caller): Who,
    logging: Asking<Logging>,
) -> Reply {
    caller.may(Verb::Log)?;
    let Logging { name, before, limit } = query(logging)?;
    let limit = limit.unwrap_or(LOG);
    if !(1..=PAGE).contains(&limit) {
        return Err(No::bad(
            format!("cannot use the limit {limit}: it must be from 1 to {PAGE}"),
            "use a smaller limit, and get earlier events with `before`",
        ));
    }
    let name = name.as_deref().map(checked).transpose()?;
    match front.ask(&caller, None, Request::Log { name, before, limit }).await? {
        Answer::Events(events) => Ok(body::json(&events)),
        _ => Err(No::bug()),
    }
}

/// Returns this OpenAPI description.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/openapi.json", responses((status = 200))))]
pub(super) async fn api() -> Response {
    let mut response = STORED.into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Returns all metrics, for Prometheus.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/metrics", responses(
    (status = 200, content((String = "text/plain"), (String = "application/openmetrics-text"))),
    (status = "default", body = Problem))))]
pub(super) async fn scrape(
    State(front): Shared,
    Extension(caller): Who,
    asked: HeaderMap,
) -> Reply {
    caller.may(Verb::List)?;
    match front.ask(&caller, None, Request::Numbers).await? {
        Answer::Numbers(numbers) => {
            metrics::page(*numbers, &front.served, &asked).map_err(|error| {
                No(Problem::new(Kind::Bug, format!("cannot write the metrics: {error}")))
            })
        }
        _ => Err(No::bug()),
    }
}

/// Checks the health of the daemon. The status is 200 if the daemon has no problem, and otherwise
/// 503.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/health", responses(
    (status = 200, body = Health), (status = 503, body = Health))))]
pub(super) async fn health(State(front): Shared, Extension(caller): Who) -> Reply {
    match front.ask(&caller, None, Request::Health).await? {
        Answer::Health(health) => {
            let mut response = body::json(&health);
            if !health.good {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            Ok(response)
        }
        _ => Err(No::bug()),
    }
}
