//! Checks of the Streamable HTTP transport.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Check, Group, Outcome, SpecPages, compact_json, ensure, ensure_none, error_code, skip, skip_unless_offered,
};
use crate::{
    probe::{Probe, ProbeConnection},
    wire::{HttpResponse, parse},
};

const LEGACY_HTTP: &str = "basic/transports#streamable-http";
const MODERN_HTTP: &str = "basic/transports/streamable-http";
const PAGE: SpecPages = (LEGACY_HTTP, MODERN_HTTP);
const SESSIONS: &str = "basic/transports#session-management";

pub(super) const CHECKS: &[Check] = &[
    Check::new("http/content-type", Group::Http, |probe| Box::pin(check_content_type(probe)))
        .must("A request is answered as `application/json` or `text/event-stream`.")
        .advice("Set `Content-Type` to one of them.")
        .spec(PAGE),
    Check::new("http/notification-accepted", Group::Http, |probe| Box::pin(check_notification_accepted(probe)))
        .must("A notification is answered with 202 and no body, or refused with an error status.")
        .advice("Answer notifications with 202.")
        .spec(PAGE),
    Check::new("http/origin", Group::Http, |probe| Box::pin(check_origin(probe)))
        .must("A request from a web page of another origin is refused (with 403 from 2025-11-25 on).")
        .advice("Compare `Origin` with those that you allow, and answer others with 403.")
        .spec(("basic/transports#security-warning", MODERN_HTTP)),
    Check::new("http/get", Group::Http, |probe| Box::pin(check_get(probe)))
        .must("GET opens a stream, or is answered with 405.")
        .advice("Answer GET with 405 if you offer no stream.")
        .handshake_spec(LEGACY_HTTP),
    Check::new("http/session-id", Group::Http, |probe| Box::pin(check_session_id(probe)))
        .must("A session id has only visible ASCII characters.")
        .advice("Make ids of letters and digits.")
        .handshake_spec(SESSIONS),
    Check::new("http/session-required", Group::Http, |probe| Box::pin(check_session_required(probe)))
        .should("A request without a session id is answered with 400, or served if the server needs none.")
        .advice("Answer requests other than `initialize` that name no session with 400, if you need one.")
        .handshake_spec(SESSIONS),
    Check::new("http/session-unknown", Group::Http, |probe| Box::pin(check_session_unknown(probe)))
        .should("A request with an unknown session id is answered with 404.")
        .advice("Answer unknown ids with 404, so that clients start a new session.")
        .handshake_spec(SESSIONS),
    Check::new("http/session-ended", Group::Http, |probe| Box::pin(check_session_ended(probe)))
        .must("DELETE is answered with 405, or ends the session, whose id is then answered with 404.")
        .advice("Delete a session that was ended.")
        .handshake_spec(SESSIONS),
    Check::new("http/version-header", Group::Http, |probe| Box::pin(check_version_header(probe)))
        .must("A request with an unsupported version in its header is answered with 400.")
        .advice("Check `MCP-Protocol-Version`.")
        .handshake_spec("basic/transports#protocol-version-header")
        .since("2025-06-18"),
    Check::new("http/header-mismatch", Group::Http, |probe| Box::pin(check_header_mismatch(probe)))
        .must("A request whose headers contradict its body is answered with 400 and -32020.")
        .advice("Compare `MCP-Protocol-Version`, `Mcp-Method` and `Mcp-Name` with the body.")
        .stateless_spec("basic/transports/streamable-http#server-validation"),
    Check::new("http/version-mismatch", Group::Http, |probe| Box::pin(check_version_mismatch(probe)))
        .must("A request whose version differs between header and body is answered with 400.")
        .advice("Compare `MCP-Protocol-Version` with the protocol version in `_meta`.")
        .stateless_spec("basic/transports/streamable-http#protocol-version-header"),
    Check::new("http/name-mismatch", Group::Http, |probe| Box::pin(check_name_mismatch(probe)))
        .must("A call whose tool name differs between header and body is answered with 400 and -32020.")
        .advice("Compare `Mcp-Name` with `params.name`, or with `params.uri` for resources.")
        .stateless_spec("basic/transports/streamable-http#server-validation"),
    Check::new("http/header-missing", Group::Http, |probe| Box::pin(check_header_missing(probe)))
        .must("A request without `Mcp-Method` is answered with 400.")
        .advice("Refuse requests with missing headers.")
        .stateless_spec("basic/transports/streamable-http#server-validation"),
    Check::new("http/no-session", Group::Http, |probe| Box::pin(check_no_session(probe)))
        .should("The server does not start a session.")
        .advice("Do not answer with `Mcp-Session-Id`: the revision has no sessions.")
        .stateless_spec(MODERN_HTTP),
    Check::new("http/method-status", Group::Http, |probe| Box::pin(check_method_status(probe)))
        .must("An unknown method is answered with 404.")
        .advice("Send -32601 with the status 404.")
        .stateless_spec(MODERN_HTTP),
    Check::new("http/version-status", Group::Http, |probe| Box::pin(check_version_status(probe)))
        .must("An unsupported version is answered with 400.")
        .advice("Send -32022 with the status 400.")
        .stateless_spec("basic/transports/streamable-http#protocol-version-header"),
    Check::new("http/event-ids", Group::Http, |probe| Box::pin(check_event_ids(probe)))
        .must("If events have ids, each id is unique within the session.")
        .advice("Number events across all streams of the session, or include the stream in the id.")
        .handshake_spec("basic/transports#resumability-and-redelivery"),
    Check::new("http/resumed-stream", Group::Http, |probe| Box::pin(check_resumed_stream(probe)))
        .must("A resumed stream has no messages of other streams.")
        .advice("Replay only the events after `Last-Event-ID`, and only those of its stream.")
        .handshake_spec("basic/transports#resumability-and-redelivery"),
    Check::new("http/parse-status", Group::Http, |probe| Box::pin(check_parse_status(probe)))
        .should("Invalid JSON is answered with 400.")
        .advice("Answer bodies that cannot be read with 400.")
        .spec(PAGE),
];

/// Sends a message with its usual headers, except for those in `changed_headers`. A value of `None` removes a header.
async fn post(
    conn: &mut ProbeConnection,
    message: &Value,
    changed_headers: &[(&str, Option<&str>)],
) -> Outcome<HttpResponse> {
    let mut headers = headers_for(conn, message);
    for (name, value) in changed_headers {
        headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        headers.extend(value.map(|value| ((*name).to_owned(), value.to_owned())));
    }
    Ok(conn.request_with_headers("POST", &headers, &message.to_string()).await?)
}

/// Sends a harmless request on a new connection, with its headers changed as by [`post`].
async fn post_harmless(probe: &Probe, changed_headers: &[(&str, Option<&str>)]) -> Outcome<HttpResponse> {
    post(&mut probe.connect_ready().await?, &probe.harmless_request(5), changed_headers).await
}

fn headers_for(conn: &mut ProbeConnection, message: &Value) -> Vec<(String, String)> {
    conn.http().map(|http| http.headers_for(message)).unwrap_or_default()
}

/// Returns the headers of a GET request that opens a stream.
fn stream_headers(conn: &mut ProbeConnection) -> Vec<(String, String)> {
    let mut headers = headers_for(conn, &Value::Null);
    headers.retain(|(name, _)| !matches!(name.as_str(), "Accept" | "Content-Type"));
    headers.push(("Accept".to_owned(), "text/event-stream".to_owned()));
    headers
}

/// Fails and quotes the answer unless the condition holds.
fn ensure_answer(holds: bool, answer: &HttpResponse) -> Outcome {
    ensure(holds, || format!("it answers HTTP {} {}", answer.status, compact_json(&json!(answer.body))))
}

fn ensure_status(answer: &HttpResponse, status: u16) -> Outcome {
    ensure_answer(answer.status == status, answer)
}

fn ensure_header_mismatch(answer: &HttpResponse) -> Outcome {
    ensure_answer(answer.status == 400 && error_code(&answer.last_message()) == Some(-32020), answer)
}

async fn check_content_type(probe: Probe) -> Outcome {
    let answer = post_harmless(&probe, &[]).await?;
    let kind = answer.header("content-type").unwrap_or_default().to_ascii_lowercase();
    let is_known = kind.starts_with("application/json") || kind.starts_with("text/event-stream");
    ensure(is_known, || format!("the content type is {}", compact_json(&json!(kind))))
}

async fn check_notification_accepted(probe: Probe) -> Outcome {
    // Every server knows this notification.
    let params = json!({ "requestId": "check-none", "reason": "check" });
    let message = probe.message(None, "notifications/cancelled", params);
    let answer = post(&mut probe.connect_ready().await?, &message, &[]).await?;
    let is_accepted = answer.status == 202 && answer.body.is_empty();
    ensure_answer(is_accepted || (400..500).contains(&answer.status), &answer)
}

async fn check_origin(probe: Probe) -> Outcome {
    let answer = post_harmless(&probe, &[("Origin", Some("https://evil.example"))]).await?;
    // The status was specified later than the refusal itself.
    let is_refused =
        if &*probe.revision < "2025-11-25" { (400..500).contains(&answer.status) } else { answer.status == 403 };
    ensure_answer(is_refused, &answer)
}

/// The time for which a stream without events is read.
const QUIET_STREAM_LIMIT: Duration = Duration::from_millis(700);

async fn check_get(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let headers = stream_headers(&mut conn);
    let answer = conn.listen(&headers, QUIET_STREAM_LIMIT).await?;
    let is_stream = answer.status == 200 && answer.is_stream();
    ensure_answer(is_stream || answer.status == 405, &answer)
}

/// Opens a connection with a session, and skips the check if the server has no sessions.
async fn open_session(probe: &Probe) -> Outcome<(ProbeConnection, String)> {
    let mut conn = probe.connect_ready().await?;
    match conn.http().and_then(|http| http.session.clone()) {
        Some(session) => Ok((conn, session)),
        None => skip("it has no sessions"),
    }
}

async fn check_session_id(probe: Probe) -> Outcome {
    let (_, id) = open_session(&probe).await?;
    let is_visible_ascii = id.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    ensure(is_visible_ascii, || format!("the session id is {}", compact_json(&json!(id))))
}

async fn check_session_required(probe: Probe) -> Outcome {
    let (mut conn, _) = open_session(&probe).await?;
    let answer = post(&mut conn, &probe.harmless_request(5), &[("Mcp-Session-Id", None)]).await?;
    ensure_answer(answer.status == 400 || answer.status < 300, &answer)
}

async fn check_session_unknown(probe: Probe) -> Outcome {
    let (mut conn, _) = open_session(&probe).await?;
    let changed_headers = [("Mcp-Session-Id", Some("check-no-such-session"))];
    ensure_status(&post(&mut conn, &probe.harmless_request(5), &changed_headers).await?, 404)
}

async fn check_session_ended(probe: Probe) -> Outcome {
    let (mut conn, _) = open_session(&probe).await?;
    let headers = headers_for(&mut conn, &Value::Null);
    let answer = conn.request_with_headers("DELETE", &headers, "").await?;
    if answer.status == 405 {
        return Ok(());
    }
    ensure_answer(answer.status < 300, &answer)?;
    ensure_status(&post(&mut conn, &probe.harmless_request(5), &[]).await?, 404)
}

async fn check_version_header(probe: Probe) -> Outcome {
    ensure_status(&post_harmless(&probe, &[("MCP-Protocol-Version", Some("1999-12-31"))]).await?, 400)
}

async fn check_header_mismatch(probe: Probe) -> Outcome {
    ensure_header_mismatch(&post_harmless(&probe, &[("Mcp-Method", Some("tools/list"))]).await?)
}

async fn check_version_mismatch(probe: Probe) -> Outcome {
    // The server chooses which of the two versions it checks first, and so the code.
    ensure_status(&post_harmless(&probe, &[("MCP-Protocol-Version", Some("2099-01-01"))]).await?, 400)
}

async fn check_name_mismatch(probe: Probe) -> Outcome {
    skip_unless_offered(&probe, "tools")?;
    let params = json!({ "name": "check_no_such_tool", "arguments": {} });
    let message = probe.message(Some(&5.into()), "tools/call", params);
    let changed_headers = [("Mcp-Name", Some("check_another_tool"))];
    ensure_header_mismatch(&post(&mut probe.connect_ready().await?, &message, &changed_headers).await?)
}

async fn check_version_status(probe: Probe) -> Outcome {
    let mut message = probe.harmless_request(5);
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let changed_headers = [("MCP-Protocol-Version", Some("2099-01-01"))];
    ensure_status(&post(&mut probe.connect_ready().await?, &message, &changed_headers).await?, 400)
}

/// Sends two requests in one session, and returns each id with its response.
async fn ping_twice(conn: &mut ProbeConnection, probe: &Probe) -> Outcome<Vec<(Value, HttpResponse)>> {
    let mut all = Vec::new();
    for id in ["check-stream-a", "check-stream-b"] {
        let message = probe.message(Some(&id.into()), "ping", Value::Null);
        all.push((json!(id), post(conn, &message, &[]).await?));
    }
    Ok(all)
}

async fn check_event_ids(probe: Probe) -> Outcome {
    let all = ping_twice(&mut probe.connect_ready().await?, &probe).await?;
    let ids: Vec<&String> =
        all.iter().flat_map(|(_, answer)| &answer.events).filter_map(|event| event.id.as_ref()).collect();
    if ids.is_empty() {
        return skip("its events have no ids");
    }
    let mut seen = std::collections::HashSet::new();
    let duplicate = ids.iter().find(|id| !seen.insert(**id));
    ensure_none(duplicate, |id| format!("the event id {} occurs twice", compact_json(&json!(id))))
}

async fn check_resumed_stream(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let all = ping_twice(&mut conn, &probe).await?;
    let last = all.first().and_then(|(_, answer)| answer.events.iter().find_map(|event| event.id.clone()));
    let Some(last) = last else { return skip("its events have no ids") };
    let mut headers = stream_headers(&mut conn);
    headers.push(("Last-Event-ID".to_owned(), last.clone()));
    let answer = conn.listen(&headers, QUIET_STREAM_LIMIT).await?;
    if answer.status >= 400 {
        return skip(format!("it does not resume streams: HTTP {}", answer.status));
    }
    let mut messages = answer.messages().into_iter().filter_map(|text| parse(&text));
    let foreign = messages.find(|message| all.iter().skip(1).any(|(id, _)| message["id"] == *id));
    ensure_none(foreign, |message| {
        format!("after the event {} it sends {}", compact_json(&json!(last)), compact_json(&message))
    })
}

async fn check_header_missing(probe: Probe) -> Outcome {
    ensure_status(&post_harmless(&probe, &[("Mcp-Method", None)]).await?, 400)
}

async fn check_no_session(probe: Probe) -> Outcome {
    let answer = post_harmless(&probe, &[]).await?;
    ensure_none(answer.header("mcp-session-id"), |session| {
        format!("it starts the session {}", compact_json(&json!(session)))
    })
}

async fn check_method_status(probe: Probe) -> Outcome {
    let message = probe.message(Some(&5.into()), "check/no-such-method", json!({}));
    ensure_status(&post(&mut probe.connect_ready().await?, &message, &[]).await?, 404)
}

async fn check_parse_status(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let headers = headers_for(&mut conn, &probe.harmless_request(5));
    ensure_status(&conn.request_with_headers("POST", &headers, r#"{"jsonrpc":"2.0","#).await?, 400)
}
