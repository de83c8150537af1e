//! HTTP responses of the MCP endpoints: JSON bodies, statuses, and the `Accept` header.

use std::borrow::Cow;

use actix_web::{
    HttpMessage as _, HttpRequest, HttpResponse,
    http::{
        StatusCode,
        header::{self, HeaderValue},
    },
};
use bytes::Bytes;

use countersign_exchange::context::WireResponse;
use countersign_protocol::{ErrorKind, McpError, RequestId, Revision};

/// The media types that a client accepts by its `Accept` header. A client without the header accepts both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedMedia {
    pub json: bool,
    pub sse: bool,
}

impl AcceptedMedia {
    pub fn from_request(request: &HttpRequest) -> Self {
        let values = request.headers().get_all(header::ACCEPT).as_slice();
        // Nearly every client sends the example value of the specification.
        if values.is_empty() || matches!(values, [value] if value == "application/json, text/event-stream") {
            return Self { json: true, sse: true };
        }
        let mut accepts = Self { json: false, sse: false };
        for range in values.iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let is_refused = parts.any(|p| {
                p.split_once('=').is_some_and(|(name, value)| {
                    name.trim().eq_ignore_ascii_case("q") && value.trim().parse::<f32>() == Ok(0.0)
                })
            });
            if is_refused {
                continue;
            }
            accepts.json |= ["*/*", "application/*", "application/json"].iter().any(|m| media.eq_ignore_ascii_case(m));
            accepts.sse |= ["*/*", "text/*", "text/event-stream"].iter().any(|m| media.eq_ignore_ascii_case(m));
        }
        accepts
    }
}

/// Returns `true` if the `Content-Type` is JSON.
pub fn is_json(request: &HttpRequest) -> bool {
    request.content_type().eq_ignore_ascii_case("application/json")
}

/// Returns `true` if the body has a `Content-Encoding`. The gateway decodes none.
pub fn is_encoded(request: &HttpRequest) -> bool {
    let mut all = request.headers().get_all(header::CONTENT_ENCODING);
    all.any(|coding| !coding.is_empty() && !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Creates the error of a body that [`is_encoded`], which is refused with 415.
pub fn unsupported_encoding() -> McpError {
    McpError::new(ErrorKind::InvalidRequest, "Content-Encoding is not supported; send the body without it")
}

/// Returns a response whose body is a JSON-RPC message.
pub fn json(status: StatusCode, body: Bytes) -> HttpResponse {
    HttpResponse::build(status).insert_header((header::CONTENT_TYPE, JSON)).body(body)
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Returns the error response with the HTTP status that belongs to the kind of the error.
pub fn refusal(error: &McpError, revision: Revision) -> HttpResponse {
    error_with_status(error.kind.status(), None, error, revision)
}

/// Returns the error response with this HTTP status. `id` is `None` if the id of the request is unknown.
pub fn error_with_status(status: u16, id: Option<&RequestId>, error: &McpError, revision: Revision) -> HttpResponse {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    response_for(status, WireResponse::error(id, error, revision))
}

/// Returns the response whose body is one JSON-RPC answer.
pub fn response_for(status: StatusCode, answer: WireResponse) -> HttpResponse {
    let mut response = json(status, answer.bytes);
    set_challenge(&mut response, answer.challenge);
    if let Some(seconds) = answer.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Adds the challenge of an error ([`McpError::challenge`]), which [`crate::protected_resource`] completes.
pub(crate) fn set_challenge(response: &mut HttpResponse, challenge: Option<Cow<'static, str>>) {
    if let Some(challenge) = challenge.and_then(|challenge| HeaderValue::from_str(&challenge).ok()) {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
}

/// Refuses an HTTP method of a request to `/mcp`. `allow` is the `Allow` header.
pub fn method_not_allowed(reason: &'static str, allow: &'static str) -> HttpResponse {
    let error = McpError::new(ErrorKind::InvalidRequest, reason);
    let mut response = error_with_status(405, None, &error, Revision::MODERN);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn accept_header_is_parsed_as_media_ranges() {
        let accepted = |value: &str| {
            let accepts = AcceptedMedia::from_request(
                &TestRequest::default().insert_header((header::ACCEPT, value)).to_http_request(),
            );
            (accepts.json, accepts.sse)
        };
        assert_eq!(accepted("application/json, text/event-stream"), (true, true));
        assert_eq!(accepted("application/json"), (true, false));
        assert_eq!(accepted("TEXT/Event-Stream;q=0.9"), (false, true));
        assert_eq!(accepted("*/*"), (true, true));
        assert_eq!(accepted("text/html"), (false, false));
        assert_eq!(accepted("application/json;q=0, text/event-stream"), (false, true));
        let none = AcceptedMedia::from_request(&TestRequest::default().to_http_request());
        assert_eq!(none, AcceptedMedia { json: true, sse: true });
    }
}
