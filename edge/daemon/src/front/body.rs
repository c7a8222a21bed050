//! Readers of request bodies and headers within limits, and writers of answers.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request};
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE, ETAG, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as _, Frame, SizeHint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use slackline_control::{Kind, LONGEST_BODY, Problem, Reservation};
use slackline_service::Key;
use tokio::time::{Instant, timeout_at};

use super::patience::Busy;

/// Maximum nesting depth of JSON in a request. No valid request needs more than five levels.
const DEEPEST: usize = 16;

/// A refusal of a request, which is sent as an HTTP response.
#[derive(Debug)]
pub(super) struct No(pub(super) Problem);

/// Result of an HTTP endpoint: a response or a refusal.
pub(super) type Reply = Result<Response, No>;

impl From<Problem> for No {
    fn from(problem: Problem) -> No {
        No(problem)
    }
}

impl No {
    /// Returns a refusal of a malformed request.
    pub(super) fn bad(detail: impl Into<String>, hint: impl Into<String>) -> No {
        No(Problem::new(Kind::Bad, detail).hinting(hint))
    }

    /// Returns the refusal for a bug: the answer of the core process has the wrong type for the
    /// request.
    pub(super) fn bug() -> No {
        No(Problem::new(
            Kind::Bug,
            "the answer of the daemon's core process does not match the request",
        ))
    }

    /// Returns the refusal as the bytes of an HTTP response, for a connection that is closed
    /// afterwards.
    pub(super) fn raw(&self) -> Vec<u8> {
        let No(problem) = self;
        let body = json_text(problem);
        let reason = StatusCode::from_u16(problem.status).ok().and_then(|it| it.canonical_reason());
        format!(
            "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            problem.status,
            reason.unwrap_or("Refused"),
            body.len()
        )
        .into_bytes()
    }
}

impl IntoResponse for No {
    fn into_response(self) -> Response {
        let No(problem) = self;
        let status = StatusCode::from_u16(problem.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, json_text(&problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match problem.kind {
            Kind::TooMany | Kind::NotNow => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // The rest of the body is not read, so the connection cannot be reused.
            Kind::TooSlow | Kind::TooLarge => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

fn json_text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("string keys serialize to JSON")
}

/// Returns a response with a JSON body.
pub(super) fn json<T: Serialize>(value: &T) -> Response {
    let mut response = json_text(value).into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Returns a response with a reservation, and its revision as `ETag` for `If-Match`.
pub(super) fn reservation(status: StatusCode, reservation: &Reservation) -> Response {
    let mut response = json(reservation);
    *response.status_mut() = status;
    if let Ok(revision) = HeaderValue::try_from(format!("\"{}\"", reservation.revision)) {
        response.headers_mut().insert(ETAG, revision);
    }
    response
}

/// Parses the JSON body of a request.
pub(super) async fn read<T: DeserializeOwned>(
    request: Request,
    until: Instant,
    example: &str,
) -> Result<T, No> {
    read_up_to(request, until, example, LONGEST_BODY).await
}

/// Parses the JSON body of a request, up to a maximum number of bytes.
pub(super) async fn read_up_to<T: DeserializeOwned>(
    request: Request,
    until: Instant,
    example: &str,
    longest: usize,
) -> Result<T, No> {
    let bytes = whole(request, until, longest).await?;
    let deepest = deepest(&bytes);
    if deepest > DEEPEST {
        let detail =
            format!("the request body is {deepest} levels deep; at most {DEEPEST} are allowed");
        return Err(No::bad(detail, format!("write the body as {example}")));
    }
    serde_json::from_slice(&bytes).map_err(|error| {
        let detail = format!("cannot parse the request body: {error}");
        No::bad(detail, format!("write the body as {example}"))
    })
}

/// Checks that the body of a request is empty.
pub(super) async fn read_nothing(request: Request, until: Instant) -> Result<(), No> {
    let bytes = whole(request, until, LONGEST_BODY).await?;
    match bytes.trim_ascii() {
        b"" | b"{}" => Ok(()),
        more => {
            let detail = format!(
                "the request body has {} bytes, but this request takes no body",
                more.len()
            );
            Err(No::bad(detail, "send the request without a body"))
        }
    }
}

/// Reads the whole body of a request. The body must be complete at the time `until`, and have at
/// most `longest` bytes.
async fn whole(request: Request, until: Instant, longest: usize) -> Result<Vec<u8>, No> {
    let too_large = || {
        let detail = format!("the request body has more than {longest} bytes, the maximum");
        No(Problem::new(Kind::TooLarge, detail))
    };
    let mut body = request.into_body();
    if body.size_hint().lower() > u64::try_from(longest).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let Ok(frame) = timeout_at(until, frame).await else {
            let detail = format!("only {} bytes of the request body arrived in time", bytes.len());
            return Err(No(Problem::new(Kind::TooSlow, detail)));
        };
        match frame {
            None => return Ok(bytes),
            Some(Err(error)) => {
                let detail = format!("cannot receive the request body: {error}");
                return Err(No::bad(detail, "send the request again"));
            }
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    if bytes.len() + data.len() > longest {
                        return Err(too_large());
                    }
                    bytes.extend_from_slice(&data);
                }
            }
        }
    }
}

/// Returns the nesting depth: the largest number of brackets that are open at the same time,
/// outside of strings.
fn deepest(json: &[u8]) -> usize {
    let (mut open, mut deepest, mut in_text, mut is_escaped) = (0_usize, 0, false, false);
    for &byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => {
                open += 1;
                deepest = deepest.max(open);
            }
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Returns the parsed query of a request.
pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, No> {
    query
        .map(|Query(query)| query)
        .map_err(|error| No::bad(error.body_text(), "see the parameters in /v1/openapi.json"))
}

/// Returns the idempotency key of a request, if the request has a key.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<Key>, No> {
    let name = HeaderName::from_static("idempotency-key");
    let Some(text) = only(headers, &name)? else { return Ok(None) };
    let key = text.parse::<Key>();
    key.map(Some).map_err(|error| {
        No::bad(format!("Idempotency-Key {error}"), "use 1 to 64 visible ASCII characters")
    })
}

/// Returns the revision in the header `If-Match`. `None` if the header is absent or accepts any
/// revision.
pub(super) fn revision(headers: &HeaderMap) -> Result<Option<u64>, No> {
    let Some(text) = only(headers, &axum::http::header::IF_MATCH)? else { return Ok(None) };
    if text == "*" {
        return Ok(None);
    }
    let number = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let number = number.and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| {
        let detail = format!("If-Match: {} is not a revision", text.escape_debug());
        No::bad(detail, "write the revision of the reservation in quotes, as If-Match: \"3\"")
    })
}

/// Refuses a request that has one of the conditional headers in `names`. Its endpoint does not
/// support these headers.
pub(super) fn without(headers: &HeaderMap, names: &[HeaderName]) -> Result<(), No> {
    match names.iter().find(|name| headers.contains_key(*name)) {
        None => Ok(()),
        Some(name) => {
            let detail = format!("this endpoint does not support the header {name}");
            let hint =
                "leave the header out, or see the headers of the endpoint in /v1/openapi.json";
            Err(No::bad(detail, hint))
        }
    }
}

/// Returns the value of a header. `None` if the header is missing. If the header occurs twice,
/// refuses the request.
pub(super) fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, No> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(No::bad(format!("the header {name} is given twice"), "send the header once"));
    }
    let text = first.map(|value| value.to_str()).transpose();
    text.map_err(|_| No::bad(format!("the header {name} is not ASCII"), "send the header in ASCII"))
}

/// Returns the answer to a request whose endpoint exists but does not support the method of the
/// request.
pub(super) async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let detail = format!("{} does not support {method}", path.escape_debug());
    let mut response =
        No(Problem::new(Kind::WrongMethod, detail).hinting("use a method of the Allow header"))
            .into_response();
    // The router adds the allowed methods.
    response.headers_mut().remove(ALLOW);
    response
}

/// Returns the answer to a request whose endpoint does not exist.
pub(super) async fn no_such_page(request: Request) -> No {
    let detail = format!("there is no endpoint {}", request.uri().path().escape_debug());
    No(Problem::new(Kind::NoSuchPage, detail).hinting("see the endpoints in /v1/openapi.json"))
}

/// Response body that keeps its connection marked as busy until the body is written.
pub(super) struct BusyBody {
    pub(super) body: Body,
    pub(super) _busy: Busy,
}

impl hyper::body::Body for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_within_json_strings_do_not_count_as_nesting() {
        assert_eq!(deepest(br#"{"a":[{"b":"[[[\"[["}]}"#), 3);
        assert_eq!(deepest(br#""\\"[[]"#), 2);
        assert_eq!(deepest(b"]]]["), 1);
        assert_eq!(deepest(&[b'['; 1000]), 1000);
    }

    #[test]
    fn request_with_invalid_precondition_or_idempotency_header_is_refused() {
        let headers = |pairs: &[(&'static str, &str)]| -> HeaderMap {
            let pair = |&(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            };
            pairs.iter().map(pair).collect()
        };
        assert_eq!(revision(&headers(&[("if-match", "\"7\"")])).unwrap(), Some(7));
        assert_eq!(revision(&headers(&[("if-match", "*")])).unwrap(), None);
        for wrong in ["7", "W/\"7\"", "\"7\", \"8\"", "\"-1\"", ""] {
            assert!(revision(&headers(&[("if-match", wrong)])).is_err(), "{wrong}");
        }
        let mut twice = headers(&[("idempotency-key", "a")]);
        twice.append("idempotency-key", HeaderValue::from_static("b"));
        assert!(key(&twice).is_err());
        assert!(key(&headers(&[("idempotency-key", "a b")])).is_err());
        assert!(without(&headers(&[("if-match", "*")]), &[axum::http::header::IF_MATCH]).is_err());
    }
}
