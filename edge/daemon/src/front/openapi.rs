//! OpenAPI description of the HTTP endpoints.

use utoipa::OpenApi;

use super::{accounts, events, grants, page, pages, plans, recordings, timeline};

#[derive(OpenApi)]
#[openapi(
    info(title = "Slackline", description = "Reservations of CPU time for the VMs of this host."),
    paths(
        pages::host,
        pages::machines,
        pages::list,
        pages::show,
        pages::reserve,
        pages::apply,
        plans::undo,
        plans::plan,
        pages::change,
        pages::release,
        pages::pause,
        pages::resume,
        pages::gang,
        pages::room,
        pages::log,
        recordings::why,
        recordings::incidents,
        recordings::incident,
        recordings::save,
        recordings::predict,
        recordings::predictions,
        recordings::whatif,
        accounts::history,
        grants::access,
        grants::migrate_access,
        grants::grant,
        grants::revoke,
        pages::api,
        pages::scrape,
        pages::health,
        events::events,
        page::make_code,
        page::session,
        page::log_out,
        timeline::timeline,
    )
)]
struct Api;

/// Returns the OpenAPI description as JSON, generated from the code.
///
/// # Panics
/// If the description cannot be written as JSON.
#[must_use]
pub fn built() -> String {
    let mut text = Api::openapi().to_pretty_json().expect("string keys serialize to JSON");
    text.push('\n');
    text
}
