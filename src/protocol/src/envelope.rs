//! The JSON-RPC envelope: the kind of a received message, and the position of its parts.
//!
//! Payloads are borrowed, checked and outlined in one linear pass over the text, but no values are built
//! (`EnvelopeMembers::scan`, with `serde_json` as the fallback). Parsing must never panic or recurse, whatever the
//! bytes are. The rules are in JSON-RPC 2.0, sections 4 to 6, and in 2026-07-28/basic/index, "Messages".

#![allow(
    clippy::result_large_err,
    reason = "a fault is created once and moved to the encoder, so its size does not matter"
)]

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{
    ErrorKind, McpError, RequestId,
    json::{self, scanner::Scanner},
    outline::{MemberSpans, Outline, OutlinedParams},
    params::{self, CallToolParams, Meta},
};

/// Limits on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of levels of nested arrays and objects in one message, including its own object.
    pub max_depth: usize,
    /// Maximum number of messages in a batch.
    pub max_batch: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_depth: 128, max_batch: 100 }
    }
}

/// A single message or a batch.
#[derive(Debug)]
pub enum Incoming<'a> {
    Single(Message<'a>),
    /// A JSON array, which is never empty. [`super::Rules::batches`] tells whether the revision has batches.
    Batch(Vec<Result<Message<'a>, EnvelopeError>>),
}

/// One JSON-RPC message.
#[derive(Debug)]
pub enum Message<'a> {
    Request(Request<'a>),
    Notification(Notification<'a>),
    Response(Response<'a>),
}

impl<'a> Message<'a> {
    /// Returns the parameters of a request or notification.
    pub fn params(&self) -> Option<&'a RawValue> {
        match self {
            Self::Request(request) => request.params,
            Self::Notification(notification) => notification.params,
            Self::Response(_) => None,
        }
    }
}

/// A message with `method` and `id`, which must be answered.
#[derive(Debug)]
pub struct Request<'a> {
    pub id: RequestId,
    pub method: Cow<'a, str>,
    /// A JSON object, if present.
    pub params: Option<&'a RawValue>,
    /// The positions of the members of `params`.
    pub outline: Outline,
}

impl Request<'_> {
    /// Returns `params` with the positions of its members. Absent `params` count as an empty object.
    pub fn outlined_params(&self) -> OutlinedParams<'_> {
        self.outline.params(self.params.map_or("{}", RawValue::get))
    }

    /// Reads `params._meta`.
    ///
    /// # Errors
    /// The errors of [`params::parse_meta`].
    pub fn meta(&self) -> Result<Meta<'_>, McpError> {
        params::meta_from_outline(self.outlined_params())
    }

    /// Reads `params` as those of `tools/call`.
    ///
    /// # Errors
    /// The errors of [`params::parse`].
    pub fn tool_call(&self) -> Result<CallToolParams<'_>, McpError> {
        CallToolParams::from_outline(self.params, self.outlined_params().object)
    }
}

/// A message with `method` and without `id`, which is never answered.
#[derive(Debug)]
pub struct Notification<'a> {
    pub method: Cow<'a, str>,
    /// A JSON object, if present.
    pub params: Option<&'a RawValue>,
}

/// A message with `result` or `error`.
#[derive(Debug)]
pub struct Response<'a> {
    /// `None` only with an error: the peer could not read the id of the request that it answers.
    pub id: Option<RequestId>,
    /// The `result`, or the `error` object.
    pub outcome: Result<&'a RawValue, &'a RawValue>,
}

/// The reason why received bytes are not a valid message.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvelopeError {
    pub error: McpError,
    /// The id of the rejected request, if it could be read.
    pub id: Option<RequestId>,
    /// `true` for a notification that is refused because it is nested too deep or its `params` are an array. It gets no
    /// response, except that HTTP answers every fault with a status and the error. A message without `id` that violates JSON-RPC
    /// itself is not a notification, and gets a response (JSON-RPC 2.0, section 5).
    pub is_notification: bool,
}

impl EnvelopeError {
    fn not_json(message: impl Into<Cow<'static, str>>) -> Self {
        Self { error: McpError::new(ErrorKind::Parse, message), id: None, is_notification: false }
    }

    fn invalid_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self { error: McpError::new(ErrorKind::InvalidRequest, message), id: None, is_notification: false }
    }

    fn with_id(mut self, id: Option<RequestId>) -> Self {
        self.id = id;
        self
    }
}

/// Parses a message or a batch.
///
/// # Errors
/// `-32700` for text that is not JSON (not UTF-8, a byte order mark, trailing bytes, lone surrogates, `NaN`), `-32600`
/// for JSON that is not a message or exceeds a limit, `-32602` for `params` that are an array. Faults of the messages
/// in a batch are returned inside [`Incoming::Batch`].
pub fn parse<'a>(text: &'a [u8], limits: &Limits) -> Result<Incoming<'a>, EnvelopeError> {
    let text = std::str::from_utf8(text)
        .map_err(|e| EnvelopeError::not_json(format!("The message is not UTF-8 at byte {}", e.valid_up_to())))?;
    if let Some(members) = EnvelopeMembers::scan(text, limits.max_depth) {
        return build_message(text, members, limits).map(Incoming::Single);
    }
    parse_with_serde(text, limits)
}

/// Parses text that [`EnvelopeMembers::scan`] did not accept, and finds the error in it.
fn parse_with_serde<'a>(text: &'a str, limits: &Limits) -> Result<Incoming<'a>, EnvelopeError> {
    if json::has_lone_surrogate(text) {
        return Err(EnvelopeError::not_json("The message has an escape that is half of a surrogate pair"));
    }
    if text.starts_with('\u{feff}') {
        return Err(EnvelopeError::not_json("The message starts with a byte order mark"));
    }
    if text.trim_ascii().is_empty() {
        return Err(EnvelopeError::not_json("The message is empty"));
    }
    let value = serde_json::from_str::<&RawValue>(text)
        .map_err(|error| EnvelopeError::not_json(format!("The message is not JSON: {error}")))?
        .get();
    if value.starts_with('[') {
        parse_batch(value, limits).map(Incoming::Batch)
    } else {
        parse_message(value, limits).map(Incoming::Single)
    }
}

/// Parses the members of a JSON array.
fn parse_batch<'a>(array: &'a str, limits: &Limits) -> Result<Vec<Result<Message<'a>, EnvelopeError>>, EnvelopeError> {
    let max = limits.max_batch;
    let members: Vec<_> = json::elements(array).take(max.saturating_add(1)).collect();
    if members.is_empty() {
        return Err(EnvelopeError::invalid_request("A batch must not be empty"));
    }
    if members.len() > max {
        let mut fault = EnvelopeError::invalid_request(format!("A batch may have at most {max} members"));
        fault.error = fault.error.with("maxBatch", max);
        return Err(fault);
    }
    Ok(members.into_iter().map(|(_, member)| parse_message(member, limits)).collect())
}

/// Parses one message from a JSON value.
fn parse_message<'a>(value: &'a str, limits: &Limits) -> Result<Message<'a>, EnvelopeError> {
    if !value.starts_with('{') {
        return Err(EnvelopeError::invalid_request("A message must be a JSON object"));
    }
    build_message(value, EnvelopeMembers::read(value), limits)
}

/// Builds the message from its members.
fn build_message<'a>(text: &str, members: EnvelopeMembers<'a>, limits: &Limits) -> Result<Message<'a>, EnvelopeError> {
    let id = match members.id {
        None => IdMember::Absent,
        Some(raw) if members.repeated.as_deref() != Some("id") => {
            RequestId::from_json(raw.get()).map_or(IdMember::Invalid, IdMember::Valid)
        }
        Some(_) => IdMember::Invalid,
    };
    let has_outcome = members.result.is_some() || members.error.is_some();
    // The answer to a faulty response has no id, because the peer could take it for the response to one of its own requests.
    // Only a message that may be a request is answered with its id.
    let fault_id = if members.method.is_none() && has_outcome { None } else { id.valid_id() };
    let invalid = |message: &'static str| Err(EnvelopeError::invalid_request(message).with_id(fault_id.clone()));

    if let Some(name) = members.repeated {
        return Err(EnvelopeError::invalid_request(format!("`{name}` is given more than once")).with_id(fault_id));
    }
    if !members.jsonrpc.is_some_and(is_version_two) {
        return invalid("`jsonrpc` must be \"2.0\"");
    }
    if matches!(id, IdMember::Invalid) && !(has_outcome && members.error.is_some() && members.id.is_some_and(is_null)) {
        return invalid("`id` must be a string or an integer");
    }
    let is_notification = members.method.is_some() && !has_outcome && matches!(id, IdMember::Absent);
    if !members.is_depth_checked && json::is_deeper_than(text, limits.max_depth) {
        let max = limits.max_depth;
        let mut fault =
            EnvelopeError::invalid_request(format!("The message is nested deeper than {max} levels")).with_id(fault_id);
        fault.error = fault.error.with("maxDepth", max);
        fault.is_notification = is_notification;
        return Err(fault);
    }
    let Some(method) = members.method else {
        return build_response(&members, id);
    };
    if has_outcome {
        return invalid("A message with `method` must not have `result` or `error`");
    }
    let Some(method) = json::string(method.get()) else {
        return invalid("`method` must be a string");
    };
    match members.params.map(|p| p.get().as_bytes()[0]) {
        None | Some(b'{') => {}
        Some(b'[') => {
            let error = McpError::new(ErrorKind::InvalidParams, "`params` must be an object, not an array");
            return Err(EnvelopeError { error: error.with("member", "params"), id: fault_id, is_notification });
        }
        Some(_) => return invalid("`params` must be an object"),
    }
    let params = members.params;
    Ok(match id {
        IdMember::Valid(id) => {
            let outline = members.outline;
            let outline = outline.or_else(|| params.map(|params| Outline::new(params.get()))).unwrap_or_default();
            Message::Request(Request { id, method, params, outline })
        }
        IdMember::Absent | IdMember::Invalid => Message::Notification(Notification { method, params }),
    })
}

/// Builds a response from the members of a message without `method`.
fn build_response<'a>(members: &EnvelopeMembers<'a>, id: IdMember) -> Result<Message<'a>, EnvelopeError> {
    let outcome = match (members.result, members.error) {
        (Some(_), Some(_)) => {
            return Err(EnvelopeError::invalid_request("A response must not have both `result` and `error`"));
        }
        (None, None) => return Err(EnvelopeError::invalid_request("`method` is missing").with_id(id.valid_id())),
        (Some(result), None) => Ok(result),
        (None, Some(error)) if error.get().starts_with('{') => Err(error),
        (None, Some(_)) => return Err(EnvelopeError::invalid_request("`error` must be an object")),
    };
    match (id, outcome) {
        (IdMember::Valid(id), outcome) => Ok(Message::Response(Response { id: Some(id), outcome })),
        (_, Err(error)) => Ok(Message::Response(Response { id: None, outcome: Err(error) })),
        (_, Ok(_)) => Err(EnvelopeError::invalid_request("A result must have the `id` of its request")),
    }
}

/// The `id` member of a message.
enum IdMember {
    Absent,
    Valid(RequestId),
    /// Null, a fraction, a container, a boolean or a duplicate member.
    Invalid,
}

impl IdMember {
    fn valid_id(&self) -> Option<RequestId> {
        match self {
            Self::Valid(id) => Some(id.clone()),
            Self::Absent | Self::Invalid => None,
        }
    }
}

fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

fn is_version_two(raw: &RawValue) -> bool {
    // The escaped spelling is legal too, although no known client uses it.
    raw.get() == "\"2.0\"" || json::string(raw.get()).is_some_and(|text| text == "2.0")
}

/// The raw members of an envelope. Other members are skipped, because JSON-RPC allows them.
#[derive(Default)]
struct EnvelopeMembers<'a> {
    jsonrpc: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
    /// The name of a duplicate member, with which two readers could read two different messages. If several members are
    /// duplicated, `id` takes precedence.
    repeated: Option<Cow<'a, str>>,
    /// The outline of `params`, if it was already built.
    outline: Option<Outline>,
    /// `true` if the nesting depth was already checked.
    is_depth_checked: bool,
}

impl<'a> EnvelopeMembers<'a> {
    /// Reads the object `text`, checks its depth and outlines `params` in one pass, or returns `None` if the fallback must read
    /// the text.
    ///
    /// This parser accepts nearly every message. It rejects text that is not JSON, escaped names, and nesting deeper than
    /// [`Scanner::check_value`] follows; the caller then uses `serde_json`, which also reports the error. The parser must
    /// accept nothing that `serde_json` rejects or reads differently.
    ///
    /// A request of 506 bytes costs 4,500 instructions here and 19,200 with `serde_json`; its response of 414 bytes costs
    /// 3,200 and 13,000 (counted with valgrind for this function alone). The difference is 40 % of the instructions of a
    /// whole proxied stateless call (`scripts/bench instructions`).
    fn scan(text: &'a str, max_depth: usize) -> Option<Self> {
        // The number of levels that a member may have, one less than the whole message.
        let levels = u64::BITS.min(u32::try_from(max_depth).unwrap_or(u64::BITS)).checked_sub(1)?;
        let mut members = Self { is_depth_checked: true, ..Self::default() };
        let mut scanner = Scanner::new(text);
        scanner.skip_space();
        scanner.check_object(|scanner, key, _| {
            let start = scanner.position();
            if key == "params" && scanner.peek() == b'{' {
                members.outline = Some(outline_params(scanner, levels.checked_sub(1)?)?);
            } else {
                scanner.check_value(levels)?;
            }
            let Some(slot) = members.slot(key) else { return Some(()) };
            // A duplicate member is rejected here; the fallback reports it.
            slot.replace(json::trusted_raw_value(scanner.text_since(start)?)?).is_none().then_some(())
        })?;
        scanner.skip_space();
        (scanner.position() == text.len()).then_some(members)
    }

    /// Reads an object that is known to be JSON.
    fn read(object: &'a str) -> Self {
        let mut members = Self::default();
        for member in json::members(object) {
            let Some(slot) = members.slot(&member.key) else { continue };
            let is_repeated = std::mem::replace(slot, json::trusted_raw_value(member.value)).is_some();
            if is_repeated && members.repeated.as_deref() != Some("id") {
                members.repeated = Some(member.key);
            }
        }
        members
    }

    /// Returns the field that holds a member's value, or `None` for members that JSON-RPC does not define.
    fn slot(&mut self, key: &str) -> Option<&mut Option<&'a RawValue>> {
        Some(match key {
            "jsonrpc" => &mut self.jsonrpc,
            "id" => &mut self.id,
            "method" => &mut self.method,
            "params" => &mut self.params,
            "result" => &mut self.result,
            "error" => &mut self.error,
            _ => return None,
        })
    }
}

/// Scans `params`, whose values may have `levels` levels of nesting, and outlines it.
fn outline_params(scanner: &mut Scanner<'_>, levels: u32) -> Option<Outline> {
    let params_start = scanner.position();
    let mut outline = MemberSpans::default();
    scanner.check_object(|scanner, key, key_start| {
        let value_start = scanner.position();
        if key == "_meta" {
            outline.begin_meta();
        }
        if key == "_meta" && scanner.peek() == b'{' {
            let levels = levels.checked_sub(1)?;
            // Offsets of members of `_meta` are relative to its own text.
            scanner.check_object(|scanner, key, key_start| {
                let start = scanner.position() - value_start;
                scanner.check_value(levels)?;
                let end = scanner.position() - value_start;
                outline.add_meta_member(key_start - value_start, key.len(), start..end);
                Some(())
            })?;
        } else {
            scanner.check_value(levels)?;
        }
        let value = value_start - params_start..scanner.position() - params_start;
        outline.add_member(key, key_start - params_start, value);
        Some(())
    })?;
    Some(outline.finish())
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
