//! Checks that the headers of a request agree with its body, on the HTTP endpoint of the stateless era.
//!
//! The functions take header values and need no HTTP library. The specification fixes the order of the checks
//! (2026-07-28/basic/transports/streamable-http, "Server Validation"; basic/index, "`_meta`").
//!
//! The steps are numbered as in the specification: step 3 checks `_meta` (`-32602`), step 4 the headers (`-32020`),
//! step 5 the version (`-32022`), step 6 the method (`-32601`, [`super::Method::parse_request`]) and step 7 the headers of the
//! tool's parameters.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{
    ErrorKind, McpError, Revision,
    envelope::{Message, Notification, Request},
    json, negotiate,
    params::{Meta, invalid_member, keys},
};

// The names of the headers in lower case. They are compared without regard to case.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
pub const METHOD: &str = "mcp-method";
pub const NAME: &str = "mcp-name";

/// The values of one header in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderField<'a> {
    Absent,
    One(&'a [u8]),
    /// The header has several lines, and two readers could use different lines.
    Repeated,
}

/// The headers of an HTTP request.
pub trait Headers {
    /// Returns the header `name`, which must be lower case. Header names are case-insensitive.
    fn field(&self, name: &str) -> HeaderField<'_>;
}

/// Name and value pairs, for tests and for transports that store headers as pairs.
impl<N: AsRef<str>, V: AsRef<[u8]>> Headers for [(N, V)] {
    fn field(&self, name: &str) -> HeaderField<'_> {
        let mut values = self.iter().filter(|(n, _)| n.as_ref().eq_ignore_ascii_case(name)).map(|(_, v)| v.as_ref());
        match (values.next(), values.next()) {
            (None, _) => HeaderField::Absent,
            (Some(value), None) => HeaderField::One(value),
            (Some(_), Some(_)) => HeaderField::Repeated,
        }
    }
}

/// Returns `true` if a message belongs to the stateless era, so that all checks apply: its `_meta` names a protocol
/// version, its version header names a stateless revision, or it has `Mcp-Method` and no version header of a handshake
/// revision.
pub fn is_modern(headers: &(impl Headers + ?Sized), meta: &Meta<'_>) -> bool {
    if meta.names_revision() {
        return true;
    }
    let version = match headers.field(PROTOCOL_VERSION) {
        HeaderField::One(value) => visible_ascii(value),
        HeaderField::Absent | HeaderField::Repeated => None,
    };
    match version {
        Some(version) if is_stateless_version(version) => true,
        Some(version) if Revision::parse(version).is_some() => false,
        _ => !matches!(headers.field(METHOD), HeaderField::Absent),
    }
}

/// Returns `true` for a date that is not before the first stateless revision, even if the gateway does not serve it.
fn is_stateless_version(version: &str) -> bool {
    let bytes = version.as_bytes();
    bytes.len() == 10
        && bytes.iter().enumerate().all(|(i, b)| if i == 4 || i == 7 { *b == b'-' } else { b.is_ascii_digit() })
        && version >= Revision::MODERN.as_str()
}

/// Runs steps 3 and 5 alone, for transports without headers (stdio, WebSocket), and returns the revision.
///
/// # Errors
/// `-32602` if `_meta` lacks the protocol version or the client's capabilities, `-32022` for a version that is not
/// served.
pub fn check_envelope(meta: &Meta<'_>) -> Result<Revision, McpError> {
    negotiate::stateless_revision(required_version(meta)?)
}

/// Runs steps 3 to 5 for a message on the HTTP endpoint, and returns its revision.
///
/// Notifications need no `_meta` and no headers in this revision, but those that are present must agree.
///
/// # Errors
/// In this order: `-32602` (`_meta`), `-32020` (headers), `-32022` (version). Also `-32600` for a response, because no
/// client of this era sends any.
pub fn check(headers: &(impl Headers + ?Sized), message: &Message<'_>, meta: &Meta<'_>) -> Result<Revision, McpError> {
    match message {
        Message::Request(request) => check_request(headers, request, meta),
        Message::Notification(notification) => check_notification(headers, notification, meta),
        Message::Response(_) => {
            Err(McpError::new(ErrorKind::InvalidRequest, "A client must not send responses in this revision"))
        }
    }
}

/// Runs [`check`] for a request.
///
/// # Errors
/// The errors of [`check`].
pub fn check_request(
    headers: &(impl Headers + ?Sized),
    request: &Request<'_>,
    meta: &Meta<'_>,
) -> Result<Revision, McpError> {
    let version = required_version(meta)?;
    check_equal(PROTOCOL_VERSION, single_value(headers, PROTOCOL_VERSION)?, version)?;
    check_equal(METHOD, single_value(headers, METHOD)?, &request.method)?;
    if let Some(key) = mirrored_name_key(&request.method) {
        let body = request.outlined_params().object.unique_member(key)?.and_then(json::string);
        match (headers.field(NAME), body) {
            // There is nothing to compare. The handler reports the missing member.
            (HeaderField::Absent, None) => {}
            (HeaderField::Absent, Some(_)) => return Err(mismatch(NAME, "is missing")),
            (_, None) => return Err(mismatch(NAME, &format!("is present, but `params.{key}` is missing"))),
            (_, Some(body)) => {
                if decode_value(NAME, single_value(headers, NAME)?)? != body {
                    return Err(mismatch(NAME, "differs from the body"));
                }
            }
        }
    }
    negotiate::stateless_revision(version)
}

fn check_notification(
    headers: &(impl Headers + ?Sized),
    notification: &Notification<'_>,
    meta: &Meta<'_>,
) -> Result<Revision, McpError> {
    let header = match headers.field(PROTOCOL_VERSION) {
        HeaderField::Absent => None,
        _ => Some(visible_text(PROTOCOL_VERSION, single_value(headers, PROTOCOL_VERSION)?)?),
    };
    let body = meta.protocol_version.as_deref();
    if header.is_some() && body.is_some() && header != body {
        return Err(mismatch(PROTOCOL_VERSION, "differs from the body"));
    }
    if !matches!(headers.field(METHOD), HeaderField::Absent) {
        check_equal(METHOD, single_value(headers, METHOD)?, &notification.method)?;
    }
    match body.or(header) {
        Some(version) => negotiate::stateless_revision(version),
        None => Ok(Revision::MODERN),
    }
}

/// Returns the HTTP status for an error on the stateless endpoint.
///
/// The specification fixes it for the errors of these checks. An error from a handler is sent with status 200, because from
/// another status a client could conclude that the server belongs to the other era.
pub fn http_status(error: &McpError) -> u16 {
    match error.kind {
        ErrorKind::Parse
        | ErrorKind::InvalidRequest
        | ErrorKind::HeaderMismatch
        | ErrorKind::MissingCapability
        | ErrorKind::UnsupportedVersion => 400,
        // Malformed `params` or `_meta` are detected before the handler runs.
        ErrorKind::InvalidParams if is_envelope_error(error) => 400,
        ErrorKind::MethodNotFound => 404,
        ErrorKind::Unauthorized => 401,
        ErrorKind::TooLarge => 413,
        _ => 200,
    }
}

fn is_envelope_error(error: &McpError) -> bool {
    let member = error.data.get("member").and_then(|member| member.as_str());
    member.is_some_and(|member| matches!(member, "params" | "_meta") || member.starts_with("_meta."))
}

/// Returns the protocol version, after checking that `_meta` has all required members.
fn required_version<'m>(meta: &'m Meta<'_>) -> Result<&'m str, McpError> {
    let missing = |key| invalid_member(key, "is missing");
    let version = meta.protocol_version.as_deref().ok_or_else(|| missing(keys::PROTOCOL_VERSION))?;
    if meta.client_capabilities.is_none() {
        return Err(missing(keys::CLIENT_CAPABILITIES));
    }
    Ok(version)
}

/// Builds the headers that [`check_request`] requires, for a request that arrived without headers.
pub fn for_request<'r>(request: &'r Request<'_>, meta: &'r Meta<'_>) -> Vec<(&'static str, Cow<'r, str>)> {
    let name =
        mirrored_name_key(&request.method).and_then(|key| json::string(request.outlined_params().object.member(key)?));
    let name = name.map(|name| (NAME, Cow::Owned(encode_value(&name).into_owned())));
    let version = meta.protocol_version.as_deref().map(|version| (PROTOCOL_VERSION, Cow::Borrowed(version)));
    [version, Some((METHOD, Cow::Borrowed(&*request.method))), name].into_iter().flatten().collect()
}

/// Returns the member of `params` that the header `Mcp-Name` mirrors, for the methods that have one.
fn mirrored_name_key(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        // The tasks extension.
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

fn single_value<'h>(headers: &'h (impl Headers + ?Sized), name: &str) -> Result<&'h [u8], McpError> {
    match headers.field(name) {
        HeaderField::One(value) => Ok(value),
        HeaderField::Absent => Err(mismatch(name, "is missing")),
        HeaderField::Repeated => Err(mismatch(name, "is given more than once")),
    }
}

fn check_equal(name: &str, header: &[u8], body: &str) -> Result<(), McpError> {
    if visible_text(name, header)? == body { Ok(()) } else { Err(mismatch(name, "differs from the body")) }
}

fn visible_text<'h>(name: &str, header: &'h [u8]) -> Result<&'h str, McpError> {
    visible_ascii(header).ok_or_else(|| mismatch(name, "has characters that a header must not have"))
}

/// Creates the `-32020` error. The values are not echoed: either side may be hostile, and each knows its own value.
pub(super) fn mismatch(name: &str, problem: &str) -> McpError {
    McpError::new(ErrorKind::HeaderMismatch, format!("Header mismatch: {} {problem}", canonical_name(name)))
        .with("header", canonical_name(name))
}

/// Returns the header name as the specification spells it.
fn canonical_name(name: &str) -> Cow<'_, str> {
    match name {
        PROTOCOL_VERSION => Cow::Borrowed("MCP-Protocol-Version"),
        METHOD => Cow::Borrowed("Mcp-Method"),
        NAME => Cow::Borrowed("Mcp-Name"),
        other => Cow::Borrowed(other),
    }
}

/// Returns the header value without surrounding whitespace, or `None` if it has other characters than visible ASCII, spaces
/// and tabs.
fn visible_ascii(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value.trim_ascii()).ok()?;
    text.bytes().all(|b| matches!(b, b'\t' | b' '..=b'~')).then_some(text)
}

/// Encodes a value for a header: unchanged if possible, else in the Base64 form
/// (2026-07-28/basic/transports/streamable-http, "Value Encoding").
pub fn encode_value(value: &str) -> Cow<'_, str> {
    let is_marked = value.starts_with("=?base64?") && value.ends_with("?=");
    // Whitespace around a value is not part of it.
    let is_plain = visible_ascii(value.as_bytes()) == Some(value);
    if is_plain && !is_marked {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("=?base64?{}?=", STANDARD.encode(value)))
}

/// Decodes the Base64 form of a value. The markers are case-sensitive; other values are returned unchanged.
///
/// # Errors
/// `-32020` for characters that a header must not have, and for a marked value that is not Base64 of UTF-8 text.
pub(crate) fn decode_value<'a>(name: &str, value: &'a [u8]) -> Result<Cow<'a, str>, McpError> {
    let text = visible_text(name, value)?;
    let Some(inner) = text.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Ok(Cow::Borrowed(text));
    };
    STANDARD
        .decode(inner)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .map(Cow::Owned)
        .ok_or_else(|| mismatch(name, "is marked as Base64 and cannot be decoded"))
}

#[cfg(test)]
mod tests;
