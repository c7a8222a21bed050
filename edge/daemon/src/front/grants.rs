//! HTTP endpoints for grants of access.

use std::sync::{Arc, PoisonError};

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request as Sent, State};
use slackline_control::link::{Answer, Request};
#[cfg(feature = "openapi")]
use slackline_control::{Access, Problem};
use slackline_control::{Grant, Kind};
use slackline_service::Verb;

use super::Front;
use super::body::{self, No, Reply};
use super::caller::Caller;
use super::tls::certificate_in;

type Shared = State<Arc<Front>>;
type Who = Extension<Caller>;
type Named = Result<Path<String>, PathRejection>;

impl Front {
    async fn change_access(&self, caller: &Caller, request: Request) -> Reply {
        match self.ask(caller, None, request).await? {
            Answer::Access(all) => all.first().map(body::json).ok_or_else(No::bug),
            _ => Err(No::bug()),
        }
    }
}

/// Lists the grants of users and remote clients. Administrators only.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/access", responses(
    (status = 200, body = Vec<Access>), (status = "default", body = Problem))))]
pub(super) async fn access(State(front): Shared, Extension(caller): Who) -> Reply {
    caller.may(Verb::Access)?;
    match front.ask(&caller, None, Request::ListAccess).await? {
        Answer::Access(all) => Ok(body::json(&all)),
        _ => Err(No::bug()),
    }
}

/// Adds or replaces the grant of a local user or a remote client. Administrators only.
///
/// The grant of a local user replaces the role from the user's groups. A local user who is in none
/// of the groups that give access gets no access by a grant. A remote client is identified by its
/// certificate, or by a new token that only the answer to this request contains.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/v1/access/{whom}", request_body = Grant,
    params(("whom" = String, Path, description = "number of a user, or name of a remote client")),
    responses(
    (status = 200, body = Access), (status = "default", body = Problem))))]
pub(super) async fn grant(
    State(front): Shared,
    Extension(caller): Who,
    whom: Named,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Access)?;
    let whom = principal_name(whom)?;
    let example = r#"{"role":"operator","cpu":"1.5cpu","machines":4,"users":[64055]}"#;
    let mut grant: Grant = body::read(sent, caller.until, example).await?;
    if let Some(pem) = &grant.certificate {
        let known = certificate_in(pem);
        let wrong = || {
            No::bad("the certificate is not PEM", "begin the text with -----BEGIN CERTIFICATE-----")
        };
        grant.certificate = Some(known.ok_or_else(wrong)?);
    }
    front.change_access(&caller, Request::Grant { whom, grant }).await
}

/// Gives the role tenant to members of the group `slackline` that have no grant. With a ledger of
/// an older version, these members are operators until this request. Administrators only.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/access", responses(
    (status = 200, body = Vec<Access>), (status = "default", body = Problem))))]
pub(super) async fn migrate_access(
    State(front): Shared,
    Extension(caller): Who,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Access)?;
    body::read_nothing(sent, caller.until).await?;
    match front.ask(&caller, None, Request::MigrateAccess).await? {
        Answer::Access(all) => Ok(body::json(&all)),
        _ => Err(No::bug()),
    }
}

/// Removes the grant of a principal, and ends the principal's sessions of the web page.
/// Administrators only.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/v1/access/{whom}",
    params(("whom" = String, Path, description = "number of a user, or name of a remote client")),
    responses(
    (status = 200, body = Access), (status = "default", body = Problem))))]
pub(super) async fn revoke(
    State(front): Shared,
    Extension(caller): Who,
    whom: Named,
    sent: Sent,
) -> Reply {
    caller.may(Verb::Access)?;
    let whom = principal_name(whom)?;
    body::read_nothing(sent, caller.until).await?;
    let user = whom.parse::<u32>().ok();
    let revoked = front.change_access(&caller, Request::Revoke { whom }).await;
    // A user without a grant may have sessions too.
    let is_permitted = match &revoked {
        Ok(_) => true,
        Err(No(problem)) => problem.kind == Kind::NoSuchReservation,
    };
    if let Some(user) = user.filter(|_| is_permitted) {
        front.sessions.lock().unwrap_or_else(PoisonError::into_inner).end_of_user(user);
    }
    revoked
}

fn principal_name(path: Named) -> Result<String, No> {
    let wrong = || No::bad("the user is not UTF-8 text", "write the path as /v1/access/1000");
    path.map(|Path(text)| text).map_err(|_| wrong())
}
