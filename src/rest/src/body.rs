//! Reads JSON bodies: limited in size and time, an object, with known members only.
//!
//! A [`Submission`] checks the sender, then the id in the path, and then the body, so that errors reveal nothing to a
//! caller without a credential.

use std::sync::Arc;

use actix_web::{FromRequest, HttpMessage as _, HttpRequest, dev::Payload, http::header::ContentLength, web};
use futures_util::{StreamExt as _, future::LocalBoxFuture};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Problem, caller, path_id, path_name};
use countersign_domain::{changes::visible, principal::Principal};
use countersign_protocol::{ErrorKind, McpError};
use countersign_review::MAX_COMMENT_BYTES;
use countersign_runtime::large_messages::offload;

/// Maximum size in bytes of a body whose largest member is a comment.
pub const MAX_BODY_BYTES: usize = 64 * 1024;
/// Maximum size in bytes of a body with the arguments of a call.
pub const MAX_ARGUMENTS_BYTES: usize = 2 << 20;

/// The body of an endpoint.
pub trait Body: DeserializeOwned + Send + 'static {
    /// The name of the object that the path's id names, and the kind of the error if there is none.
    const NOT_FOUND: (&'static str, ErrorKind) = ("Change", ErrorKind::ChangeNotFound);
    /// `true` if only a principal who may decide can send it.
    const NEEDS_REVIEWER: bool = true;
    /// The maximum size in bytes; `None` allows as many as a request of an agent (`transports.http.max_body`).
    const MAX_BYTES: Option<usize> = Some(MAX_BODY_BYTES);
}

/// A body with its sender, and with the id or the name in the path.
pub struct Submission<B> {
    pub principal: Arc<Principal>,
    /// The `{id}` of the path, or else its `{name}`.
    pub path_parameter: String,
    pub body: B,
}

impl<B: Body> FromRequest for Submission<B> {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let rules = BodyRules { not_found: B::NOT_FOUND, needs_reviewer: B::NEEDS_REVIEWER, max_bytes: B::MAX_BYTES };
        let received = receive(rules, request.clone(), payload.take());
        Box::pin(async move {
            let Submission { principal, path_parameter, body } = received.await?;
            Ok(Self { principal, path_parameter, body: parse_json(body).await? })
        })
    }
}

/// The rules of a [`Body`] that are checked before it is parsed.
struct BodyRules {
    not_found: (&'static str, ErrorKind),
    needs_reviewer: bool,
    max_bytes: Option<usize>,
}

/// Checks the sender and the path of a request, and reads its body. All types of bodies share the code of this function.
async fn receive(rules: BodyRules, request: HttpRequest, payload: Payload) -> Result<Submission<Vec<u8>>, Problem> {
    let caller = caller::authenticate(&request)?;
    let principal = if rules.needs_reviewer { caller.require_reviewer()? } else { &caller.principal };
    let path_parameter = match request.match_info().get("id") {
        Some(_) => path_id(&request)
            .ok_or_else(|| {
                let (object, kind) = rules.not_found;
                Problem::new(kind, format!("{object} not found"))
            })?
            .to_owned(),
        None => path_name(&request),
    };
    let max = rules.max_bytes.unwrap_or(caller::access_data(&request)?.http.max_body);
    let body = read_json_text(max, &request, payload).await?;
    Ok(Submission { principal: Arc::clone(principal), path_parameter, body })
}

/// The end of the time that a request may take. Its body shares it, because a body that comes too late is the fault of the client
/// (408) and not of the gateway (504).
#[derive(Clone, Copy)]
pub struct RequestDeadline(pub Instant);

/// Reads and checks a body of at most [`MAX_BODY_BYTES`].
///
/// # Errors
/// 415 for another media type (which also refuses cross-site forms) or a `Content-Encoding`, 413 `TOO_LARGE`, 408 `TIMEOUT`,
/// 400 `PARSE_ERROR` for a body that is not JSON, 422 `VALIDATION_FAILED` for JSON of another shape.
pub async fn read_json<T: DeserializeOwned + Send + 'static>(
    request: &HttpRequest,
    payload: web::Payload,
) -> Result<T, Problem> {
    parse_json(read_json_text(MAX_BODY_BYTES, request, payload.into_inner()).await?).await
}

async fn read_json_text(max: usize, request: &HttpRequest, payload: Payload) -> Result<Vec<u8>, Problem> {
    Problem::check_json_headers(request)?;
    read_bytes(max, request, payload).await
}

/// Reads a form of at most [`MAX_BODY_BYTES`], as pairs of names and values.
///
/// # Errors
/// 413 `TOO_LARGE`, 408 `TIMEOUT`.
pub async fn read_form(request: &HttpRequest, payload: web::Payload) -> Result<Vec<(String, String)>, Problem> {
    let body = read_bytes(MAX_BODY_BYTES, request, payload.into_inner()).await?;
    Ok(url::form_urlencoded::parse(&body).into_owned().collect())
}

fn too_large(max: usize) -> Problem {
    Problem::new(ErrorKind::TooLarge, format!("the body is larger than {max} bytes"))
}

async fn read_bytes(max: usize, request: &HttpRequest, payload: Payload) -> Result<Vec<u8>, Problem> {
    if request.get_header::<ContentLength>().is_some_and(|length| length.into_inner() > max) {
        return Err(too_large(max));
    }
    // Every route has a deadline.
    let deadline = request.extensions().get::<RequestDeadline>().map_or_else(Instant::now, |deadline| deadline.0);
    let read_result = tokio::time::timeout_at(deadline, read_chunks(max, payload)).await;
    read_result.map_err(|_| Problem::request_timeout())?
}

async fn read_chunks(max: usize, mut payload: Payload) -> Result<Vec<u8>, Problem> {
    let mut body = Vec::new();
    while let Some(chunk) = payload.next().await {
        let chunk =
            chunk.map_err(|error| Problem::new(ErrorKind::InvalidRequest, format!("the body broke off: {error}")))?;
        if body.len() + chunk.len() > max {
            return Err(too_large(max));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

async fn parse_json<T: DeserializeOwned + Send + 'static>(body: Vec<u8>) -> Result<T, Problem> {
    offload(body.len(), move || parse(&body)).await?
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    check_object(body)?;
    serde_json::from_slice(body).map_err(|error| parse_problem(&error))
}

/// Checks that a text of JSON is an object, because derived deserializers accept an array as an object.
fn check_object(body: &[u8]) -> Result<(), Problem> {
    if body.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
        return Ok(());
    }
    serde_json::from_slice::<serde::de::IgnoredAny>(body).map_err(|error| parse_problem(&error))?;
    Err(Problem::invalid("the body must be a JSON object"))
}

fn parse_problem(error: &serde_json::Error) -> Problem {
    let kind = if error.is_data() { ErrorKind::ValidationFailed } else { ErrorKind::Parse };
    Problem::new(kind, shorten(&error.to_string()))
}

/// Shortens the message of the parser, which repeats names that the client chose.
fn shorten(message: &str) -> String {
    message.chars().take(400).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns the arguments of a call, or an empty object if the body has none.
///
/// # Errors
/// `VALIDATION_FAILED` if the arguments are not an object.
pub fn arguments_or_empty(arguments: Option<Box<RawValue>>) -> Result<Box<RawValue>, McpError> {
    match arguments {
        Some(arguments) if arguments.get().starts_with('{') => Ok(arguments),
        Some(_) => Err(McpError::new(ErrorKind::ValidationFailed, "`arguments` must be an object")),
        None => RawValue::from_string("{}".to_owned())
            .map_err(|error| McpError::new(ErrorKind::Internal, error.to_string())),
    }
}

/// Returns a comment as it is stored: `None` if it has no visible character.
///
/// # Errors
/// `VALIDATION_FAILED` over [`MAX_COMMENT_BYTES`].
pub fn normalize_comment(text: Option<String>) -> Result<Option<String>, Problem> {
    let text = visible::visible_comment(text);
    if text.as_ref().is_some_and(|text| text.len() > MAX_COMMENT_BYTES) {
        return Err(Problem::invalid(format!("comment is longer than {MAX_COMMENT_BYTES} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct VersionBody {
        version: u64,
    }

    #[test]
    fn invalid_bodies_are_refused_with_the_reason() {
        assert_eq!(parse::<VersionBody>(br#" {"version": 3} "#).unwrap().version, 3);
        for (text, kind, word) in [
            ("", ErrorKind::Parse, "EOF"),
            ("{", ErrorKind::Parse, "EOF"),
            ("{\"version\":1} x", ErrorKind::Parse, "trailing"),
            ("\u{feff}{\"version\":1}", ErrorKind::Parse, "expected"),
            ("{\"version\":NaN}", ErrorKind::Parse, "expected"),
            ("[1]", ErrorKind::ValidationFailed, "object"),
            ("null", ErrorKind::ValidationFailed, "object"),
            ("[", ErrorKind::Parse, "EOF"),
            ("{}", ErrorKind::ValidationFailed, "version"),
            ("{\"version\":1,\"versoin\":2}", ErrorKind::ValidationFailed, "versoin"),
            ("{\"version\":1,\"version\":2}", ErrorKind::ValidationFailed, "duplicate"),
            ("{\"version\":\"1\"}", ErrorKind::ValidationFailed, "string"),
            ("{\"version\":-1}", ErrorKind::ValidationFailed, "-1"),
            ("{\"version\":1.5}", ErrorKind::ValidationFailed, "1.5"),
            ("{\"version\":99999999999999999999999}", ErrorKind::ValidationFailed, "1e"),
        ] {
            let problem = parse::<VersionBody>(text.as_bytes()).unwrap_err();
            assert_eq!(problem.error.kind, kind, "{text}: {problem}");
            assert!(problem.error.message.contains(word), "{text}: {problem}");
        }
        assert_eq!(parse::<VersionBody>(b"\xff").unwrap_err().error.kind, ErrorKind::Parse);
        assert_eq!(parse::<VersionBody>("[".repeat(50_000).as_bytes()).unwrap_err().error.kind, ErrorKind::Parse);
        let long = format!("{{\"{}\": 1}}", "x".repeat(10_000));
        assert!(parse::<VersionBody>(long.as_bytes()).unwrap_err().error.message.len() < 500);
    }

    #[test]
    fn comments_are_limited_and_blank_ones_dropped() {
        assert_eq!(normalize_comment(Some(" \n".into())).unwrap(), None);
        assert_eq!(normalize_comment(Some("\u{3164}\u{200b}".into())).unwrap(), None);
        assert_eq!(normalize_comment(Some("fine".into())).unwrap().as_deref(), Some("fine"));
        normalize_comment(Some("x".repeat(MAX_COMMENT_BYTES + 1))).unwrap_err();
    }

    #[test]
    fn headers_are_checked_before_body_is_read() {
        let check = |headers: &[(&str, &str)]| {
            let request = actix_web::test::TestRequest::default();
            let request = headers.iter().fold(request, |request, header| request.append_header(*header));
            Problem::check_json_headers(&request.to_http_request()).map_err(|problem| problem.error.kind)
        };
        let json = ("content-type", "application/json");
        for headers in [
            &[json][..],
            &[("content-type", "Application/JSON ; charset=utf-8")],
            &[json, ("content-encoding", "Identity")],
        ] {
            assert_eq!(check(headers), Ok(()), "{headers:?}");
        }
        // Types that a form of another page can send without a preflight.
        for media in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp", ""]
        {
            assert_eq!(check(&[("content-type", media)]), Err(ErrorKind::InvalidRequest), "{media}");
        }
        assert_eq!(check(&[]), Err(ErrorKind::InvalidRequest));
        let gzip =
            actix_web::test::TestRequest::default().insert_header(json).insert_header(("content-encoding", "gzip"));
        let problem = Problem::check_json_headers(&gzip.to_http_request()).unwrap_err();
        assert!(problem.error.message.contains("Content-Encoding is not supported"), "{problem}");
    }

    #[actix::test]
    async fn announced_length_is_checked_before_body_is_read() {
        for (length, expected) in
            [("100", Ok(Vec::new())), ("101", Err(ErrorKind::TooLarge)), ("99999999999999", Err(ErrorKind::TooLarge))]
        {
            let request = actix_web::test::TestRequest::default().insert_header(("content-length", length));
            let outcome = read_bytes(100, &request.to_http_request(), Payload::None).await;
            assert_eq!(outcome.map_err(|problem| problem.error.kind), expected, "{length}");
        }
    }
}
