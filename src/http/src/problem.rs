//! Problem documents (RFC 9457), the responses to refused requests outside the MCP endpoints.
//!
//! The text is for the client. Further details are logged where the error occurs.

use std::sync::Arc;

use actix_web::{
    HttpRequest, HttpResponse, HttpResponseBuilder, ResponseError,
    http::{
        StatusCode,
        header::{ALLOW, CACHE_CONTROL, HeaderValue, RETRY_AFTER, UPGRADE, X_CONTENT_TYPE_OPTIONS},
    },
};
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::Value;

use crate::answer;
use countersign_domain::changes::Change;
use countersign_protocol::{ErrorKind, McpError};

/// The media type of a problem document.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// An error of the HTTP endpoints: the gateway's own code, and an HTTP status that may be more specific.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Boxed to keep results small.
    pub error: Box<McpError>,
    status: StatusCode,
    allow: Option<&'static str>,
    /// The current change, if a decision was made on an outdated one.
    change: Option<Arc<Change>>,
}

impl Problem {
    pub fn new(kind: ErrorKind, detail: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        McpError::new(kind, detail).into()
    }

    /// Creates the problem of a request whose content is refused (`VALIDATION_FAILED`).
    pub fn invalid(reason: impl ToString) -> Self {
        Self::new(ErrorKind::ValidationFailed, reason.to_string())
    }

    /// Adds a member.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.error.data.insert(key.to_owned(), value.into());
        self
    }

    /// Adds the current change.
    #[must_use]
    pub fn with_change(self, change: Option<Arc<Change>>) -> Self {
        Self { change, ..self }
    }

    /// Creates the problem of an unknown path.
    pub fn not_found(path: &str) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is nothing at {:.100}", path.escape_default().to_string()))
    }

    /// Creates the problem of a method that the path does not support. `allow` is the `Allow` header.
    pub fn method_not_allowed(method: &str, allow: &'static str) -> Self {
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            allow: Some(allow),
            ..Self::new(ErrorKind::InvalidRequest, format!("this path does not take {method:.20}; it takes {allow}"))
        }
    }

    /// Checks that the headers of a request announce a body of JSON, which is not compressed.
    ///
    /// # Errors
    /// 415 for another media type or a `Content-Encoding`.
    pub fn check_json_headers(request: &HttpRequest) -> Result<(), Self> {
        let error = if !answer::is_json(request) {
            let message = "the body must be JSON, with Content-Type: application/json";
            McpError::new(ErrorKind::InvalidRequest, message)
        } else if answer::is_encoded(request) {
            answer::unsupported_encoding()
        } else {
            return Ok(());
        };
        Err(Self { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, ..error.into() })
    }

    /// Creates the problem of a body that did not arrive in time.
    pub fn request_timeout() -> Self {
        let problem = Self::new(ErrorKind::Timeout, "the body did not arrive in time");
        Self { status: StatusCode::REQUEST_TIMEOUT, ..problem }
    }

    /// Creates the problem of a path that supports WebSocket only.
    pub fn upgrade_required(reason: &str) -> Self {
        let problem = Self::new(ErrorKind::InvalidRequest, format!("this path is a WebSocket: {reason}"));
        Self { status: StatusCode::UPGRADE_REQUIRED, ..problem }
    }
}

/// The members of every document, which the data of an error cannot replace.
const MEMBERS: [&str; 6] = ["type", "title", "status", "detail", "code", "change"];

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_map(None)?;
        document.serialize_entry("type", "about:blank")?;
        // The status 499 has no reason in the registry.
        document.serialize_entry("title", self.status.canonical_reason().unwrap_or("Client Closed Request"))?;
        document.serialize_entry("status", &self.status.as_u16())?;
        document.serialize_entry("detail", &self.error.message)?;
        document.serialize_entry("code", self.error.kind.code())?;
        for (key, value) in self.error.data.iter().filter(|(key, _)| !MEMBERS.contains(&key.as_str())) {
            document.serialize_entry(key, value)?;
        }
        if let Some(change) = &self.change {
            document.serialize_entry("change", change)?;
        }
        document.end()
    }
}

impl From<McpError> for Problem {
    fn from(error: McpError) -> Self {
        let status = StatusCode::from_u16(error.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { error: Box::new(error), status, allow: None, change: None }
    }
}

impl std::error::Error for Problem {}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponseBuilder::new(self.status);
        response
            .content_type(MEDIA_TYPE)
            .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
            .insert_header((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")));
        if let Some(allow) = self.allow {
            response.insert_header((ALLOW, HeaderValue::from_static(allow)));
        }
        if let Some(seconds) = self.error.data.get("retryAfter").and_then(Value::as_u64) {
            response.insert_header((RETRY_AFTER, seconds));
        }
        if self.status == StatusCode::UPGRADE_REQUIRED {
            response.insert_header((UPGRADE, HeaderValue::from_static("websocket")));
        }
        // Serialization only fails for maps with other keys than strings.
        let mut response = response.body(serde_json::to_string(self).unwrap_or_default());
        answer::set_challenge(&mut response, self.error.challenge());
        response
    }
}

#[cfg(test)]
mod tests {
    use actix_web::{http::header::WWW_AUTHENTICATE, test::TestRequest};

    use super::*;

    #[test]
    fn extensions_cannot_replace_members_of_a_document() {
        let problem =
            Problem::new(ErrorKind::VersionConflict, "changed meanwhile").with("version", 7).with("status", 200);
        let document = serde_json::to_value(&problem).unwrap();
        assert_eq!(document["status"], 409);
        assert_eq!(document["title"], "Conflict");
        assert_eq!(document["code"], "VERSION_CONFLICT");
        assert_eq!(document["version"], 7);
        assert_eq!(document["type"], "about:blank");
    }

    #[test]
    fn headers_follow_the_status() {
        let response = Problem::new(ErrorKind::Unauthorized, "who?").error_response();
        assert_eq!(response.headers().get(WWW_AUTHENTICATE).unwrap(), "Bearer");
        assert_eq!(response.headers().get("content-type").unwrap(), MEDIA_TYPE);
        let response = Problem::method_not_allowed("PUT", "GET, HEAD").error_response();
        assert_eq!(
            (response.status().as_u16(), response.headers().get(ALLOW).unwrap().as_bytes()),
            (405, &b"GET, HEAD"[..])
        );
        let response = Problem::new(ErrorKind::RateLimited, "slow down").with("retryAfter", 3).error_response();
        assert_eq!(response.headers().get(RETRY_AFTER).unwrap(), "3");
        let text = TestRequest::default().insert_header(("content-type", "text/plain")).to_http_request();
        let problem = Problem::check_json_headers(&text).unwrap_err();
        assert_eq!(problem.error_response().status().as_u16(), 415);
    }

    #[test]
    fn every_kind_of_error_has_a_valid_status() {
        for kind in ErrorKind::ALL {
            assert_eq!(Problem::new(*kind, "x").status_code().as_u16(), kind.status());
        }
    }
}
