//! Entry points of fuzzing: how each endpoint handles bytes from outside, with its invariants.
//!
//! Included by the targets of cargo-fuzz and by `tests/wire/fuzz_bounded.rs`. A violated invariant is a failed
//! assertion. Each entry point returns whether the input was accepted, so that the bounded run can check that it tries
//! both cases.

#![allow(dead_code, clippy::expect_used, clippy::panic)]

use countersign_protocol::{
    ErrorKind, McpError, Method, RequestId, Revision, arguments, cursor, encode,
    envelope::{EnvelopeError, Incoming, Limits, Message, parse},
    headers,
    json::{MemberEdit, edit, merge_meta},
    param_headers::{ParamHeader, annotated_params, check_params},
    params::{self, parse_meta},
};
use countersign_transports::lines::{Line, LineSplitter};
use serde::de::IgnoredAny;
use serde_json::{Value, value::RawValue};

const LIMITS: Limits = Limits { max_depth: 64, max_batch: 32 };

/// Parses one POST body, stdio line or text frame: the envelope, and the answers to it.
pub fn envelope(data: &[u8]) -> bool {
    let incoming = parse(data, &LIMITS);
    let is_json = std::str::from_utf8(data).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    match &incoming {
        Ok(_) => assert!(is_json, "accepted what is not JSON"),
        Err(fault) => {
            assert!(fault.error.kind == ErrorKind::Parse || is_json, "{fault:?} for what is not JSON");
            // A lone surrogate is the only valid JSON that is refused here.
            assert!(fault.error.kind != ErrorKind::Parse || !is_json || data.contains(&b'\\'), "{fault:?} for JSON");
            answer_fault(fault);
        }
    }
    let loose = parse(data, &Limits { max_depth: usize::MAX, max_batch: usize::MAX });
    assert!(loose.is_ok() || incoming.is_err(), "refused by looser limits alone");
    match &incoming {
        Ok(Incoming::Single(one)) => message(one),
        Ok(Incoming::Batch(members)) => {
            assert!(!members.is_empty() && members.len() <= LIMITS.max_batch);
            for member in members {
                match member {
                    Ok(one) => message(one),
                    Err(fault) => {
                        assert!(fault.error.kind != ErrorKind::Parse, "{fault:?} in a batch that was read");
                        answer_fault(fault);
                    }
                }
            }
        }
        Err(_) => {}
    }
    incoming.is_ok()
}

fn message(message: &Message<'_>) {
    match message {
        Message::Request(request) => {
            let again = encode::request(&request.id, &request.method, request.params.map(RawValue::get));
            match one_line(&again) {
                Message::Request(reread) => {
                    assert_eq!(reread.id.as_json(), request.id.as_json());
                    assert_eq!(reread.method, request.method);
                }
                other => panic!("a request became {other:?}"),
            }
            match one_line(&encode::result(&request.id, "{}")) {
                Message::Response(answer) => {
                    assert_eq!(answer.id.as_ref().map(RequestId::as_json), Some(request.id.as_json()));
                }
                other => panic!("an answer became {other:?}"),
            }
            for revision in Revision::ALL {
                if let Err(error) = Method::parse_request(&request.method, revision) {
                    answer(Some(&request.id), &error);
                }
            }
            let _ = typed(request.params);
        }
        Message::Notification(notification) => {
            let again = encode::notification(&notification.method, notification.params.map(RawValue::get));
            assert!(matches!(one_line(&again), Message::Notification(_)));
            let _ = typed(notification.params);
        }
        Message::Response(response) => {
            assert!(response.id.is_some() || response.outcome.is_err());
        }
    }
}

/// Parses a message that we wrote, which must be exactly one, on one line.
fn one_line(bytes: &[u8]) -> Message<'_> {
    assert!(!bytes.iter().any(|b| matches!(b, b'\n' | b'\r')), "a line break in a message");
    match parse(bytes, &Limits { max_depth: usize::MAX, max_batch: 1 }) {
        Ok(Incoming::Single(message)) => message,
        other => panic!("{} became {other:?}", String::from_utf8_lossy(bytes)),
    }
}

fn answer_fault(fault: &EnvelopeError) {
    let kinds = [ErrorKind::Parse, ErrorKind::InvalidRequest, ErrorKind::InvalidParams];
    assert!(kinds.contains(&fault.error.kind));
    assert!(fault.error.kind != ErrorKind::Parse || fault.id.is_none());
    assert_eq!(headers::http_status(&fault.error), 400);
    answer(fault.id.as_ref(), &fault.error);
}

fn answer(id: Option<&RequestId>, error: &McpError) {
    for revision in Revision::ALL {
        let bytes = encode::error(id, error, revision);
        assert!(bytes.len() < 4096 + id.map_or(0, |id| id.as_json().len()), "an error that echoes its cause");
        match one_line(&bytes) {
            Message::Response(response) => {
                assert_eq!(response.id.as_ref().map(RequestId::as_json), id.map(RequestId::as_json));
                assert!(response.outcome.is_err());
            }
            other => panic!("an error became {other:?}"),
        }
    }
}

/// Parses `params` as those of every method.
pub fn params(data: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(data).is_ok_and(|raw| typed(Some(raw)))
}

/// Returns `true` if they are valid params of any method that requires some.
fn typed(raw: Option<&RawValue>) -> bool {
    fn refusal<T>(read: Result<T, McpError>) -> bool {
        match read {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::InvalidParams);
                answer(None, &error);
                false
            }
        }
    }
    let mut accepted = false;
    accepted |= refusal(params::parse::<params::InitializeParams<'_>>(raw));
    accepted |= refusal(params::parse::<params::CallToolParams<'_>>(raw));
    accepted |= refusal(params::parse::<params::ResourceUriParams<'_>>(raw));
    accepted |= refusal(params::parse::<params::GetPromptParams<'_>>(raw));
    accepted |= refusal(params::parse::<params::CompleteParams<'_>>(raw));
    accepted |= refusal(params::parse::<params::SetLevelParams>(raw));
    accepted |= refusal(params::parse::<params::ListenParams<'_>>(raw));
    accepted |= refusal(params::parse::<params::CancelledParams>(raw));
    match params::parse::<params::ListParams<'_>>(raw) {
        Ok(list) => refusal(list.cursor.map_or(Ok(0), |text| cursor::start_offset("tools", &text, 0))),
        Err(error) => refusal::<()>(Err(error)),
    };
    match parse_meta(raw) {
        Ok(meta) => {
            refusal(meta.log_level());
            refusal(meta.client_info())
        }
        Err(error) => refusal::<()>(Err(error)),
    };
    if let Some(raw) = raw {
        unique_keys(raw);
        spliced(raw.get());
    }
    accepted
}

/// Checks that accepted arguments mean the same to every reader: the tree has as many members as the text.
fn unique_keys(raw: &RawValue) {
    let verdict = arguments::check(raw, 64);
    // The tree refuses numbers beyond the range of a double.
    let Ok(tree) = serde_json::from_str::<Value>(raw.get()) else { return };
    match verdict {
        Ok(()) => {
            let colons = |text: &str| {
                let (mut count, mut in_string, mut escaped) = (0, false, false);
                for byte in text.bytes() {
                    match byte {
                        _ if escaped => escaped = false,
                        b'\\' => escaped = true,
                        b'"' => in_string = !in_string,
                        b':' if !in_string => count += 1,
                        _ => {}
                    }
                }
                count
            };
            assert_eq!(colons(raw.get()), members(&tree), "a repeated key went unseen");
            assert!(arguments::canonical_text_hash(raw.get()).len() == 71);
            // Any JSON may come as a schema; headers that are found in it can be sent.
            for param in annotated_params(&tree).into_iter().flatten() {
                assert!(param.header.is_ascii() && param.header.len() > "Mcp-Param-".len() && !param.path.is_empty());
            }
        }
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::InvalidParams);
            answer(None, &error);
        }
    }
}

fn members(tree: &Value) -> usize {
    match tree {
        Value::Array(items) => items.iter().map(members).sum(),
        Value::Object(object) => object.len() + object.values().map(members).sum::<usize>(),
        _ => 0,
    }
}

/// Checks that splicing into an object equals setting the members in a tree.
fn spliced(text: &str) {
    let set = edit(text, &[("resultType", MemberEdit::Set("\"complete\"")), ("ttlMs", MemberEdit::Set("0"))]);
    let merged = merge_meta(text, &[("io.modelcontextprotocol/serverInfo", MemberEdit::Set("{}"))]);
    let Ok(tree) = serde_json::from_str::<Value>(text) else { return };
    let (mut with_members, mut with_meta) = (tree.clone(), tree);
    if let (Value::Object(a), Value::Object(b)) = (&mut with_members, &mut with_meta) {
        a.insert("resultType".into(), "complete".into());
        a.insert("ttlMs".into(), 0.into());
        let meta = b.entry("_meta").or_insert(Value::Null);
        if !meta.is_object() {
            *meta = Value::Object(serde_json::Map::new());
        }
        meta["io.modelcontextprotocol/serverInfo"] = Value::Object(serde_json::Map::new());
    }
    assert_eq!(serde_json::from_str::<Value>(&set).expect("JSON"), with_members);
    assert_eq!(serde_json::from_str::<Value>(&merged).expect("JSON"), with_meta);
}

/// Parses one HTTP POST: header lines, an empty line, the body. Runs the stateless endpoint's header checks as the
/// transport does.
pub fn headers(data: &[u8]) -> bool {
    let mut fields: Vec<(String, &[u8])> = Vec::new();
    let mut rest = data;
    while let Some(end) = rest.iter().position(|b| *b == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        if line.is_empty() || fields.len() >= 32 {
            break;
        }
        let Some(colon) = line.iter().position(|b| *b == b':') else { continue };
        fields.push((String::from_utf8_lossy(&line[..colon]).into_owned(), &line[colon + 1..]));
    }
    let Ok(Incoming::Single(message)) = parse(rest, &LIMITS) else { return false };
    let verdict = parse_meta(message.params()).and_then(|meta| {
        if !headers::is_modern(&fields[..], &meta) {
            return Ok(false);
        }
        let revision = headers::check(&fields[..], &message, &meta)?;
        assert_eq!(revision, Revision::MODERN);
        if let Message::Request(request) = &message {
            // An accepted request has the same values in both places.
            let method = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(headers::METHOD)).expect("a header");
            assert_eq!(method.1.trim_ascii(), request.method.as_bytes());
            assert!(meta.client_capabilities.is_some());
            Method::parse_request(&request.method, revision)?;
            param_headers(
                &fields,
                params::parse(request.params).ok().and_then(|call: params::CallToolParams<'_>| call.arguments),
            )?;
        }
        Ok(true)
    });
    if let Err(error) = &verdict {
        let number = error.number(Revision::MODERN);
        assert!([-32600, -32601, -32602, -32020, -32022].contains(&number), "{error}");
        assert!(headers::http_status(error) >= 400 || error.kind == ErrorKind::InvalidParams, "{error}");
        answer(None, error);
    }
    verdict == Ok(true)
}

/// Runs step 7 of the header checks, for a tool with one argument of each kind that a header may mirror.
fn param_headers(fields: &[(String, &[u8])], arguments: Option<&RawValue>) -> Result<(), McpError> {
    let annotated = [("Region", "region"), ("Count", "count"), ("Dry", "dry")].map(|(header, name)| ParamHeader {
        header: format!("Mcp-Param-{header}"),
        path: vec!["mirrored".to_owned(), name.to_owned()],
    });
    let arguments = arguments.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    check_params(fields, &annotated, arguments.as_ref())?;
    for param in &annotated {
        let argument =
            arguments.as_ref().and_then(|tree| tree.get("mirrored")?.get(&param.path[1])).unwrap_or(&Value::Null);
        let mirrored = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(&param.header)).count();
        assert!(mirrored == usize::from(!argument.is_null()) || !(argument.is_string() || argument.is_null()));
    }
    Ok(())
}

/// Reads a stream of lines as stdio and the attach socket do. Line ends do not depend on how the bytes arrive, no line
/// exceeds the limit, and each is a message of its own.
pub fn lines(data: &[u8]) -> bool {
    // Nearly every line hits the small limit, and few hit the large one.
    let _ = framed(data, 24);
    let mut accepted = 0;
    for line in framed(data, 512) {
        if let Line::Message(line) = line {
            accepted += usize::from(envelope(&line));
        }
    }
    accepted > 0
}

fn framed(data: &[u8], max: usize) -> Vec<Line> {
    let in_chunks_of = |chunk: usize| {
        let (mut splitter, mut lines) = (LineSplitter::new(max), Vec::new());
        for bytes in data.chunks(chunk) {
            splitter.push(bytes);
            while let Some(line) = splitter.next_line() {
                lines.push(line);
            }
        }
        lines.extend(splitter.take_rest());
        lines
    };
    let whole = in_chunks_of(data.len().max(1));
    for chunk in [1, 7, max + 1] {
        assert_eq!(in_chunks_of(chunk), whole, "lines in chunks of {chunk}");
    }
    for line in &whole {
        if let Line::Message(line) = line {
            assert!(line.len() <= max && !line.contains(&b'\n') && !line.is_empty());
        }
    }
    whole
}

/// Reads one text frame. Invalid UTF-8 never gets past the frame.
pub fn websocket(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok_and(|text| envelope(text.as_bytes()))
}
