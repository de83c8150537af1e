//! Checks of the Streamable HTTP transport.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Check, Outcome, Verdict, check, compact_json, error_code};
use crate::{
    probe::{Conn, Probe},
    wire::{HttpResponse, ProbeError, parse},
};

const LEGACY_HTTP: &str = "basic/transports#streamable-http";
const MODERN_HTTP: &str = "basic/transports/streamable-http";
const PAGE: (&str, &str) = (LEGACY_HTTP, MODERN_HTTP);
const SESSIONS: (&str, &str) = ("basic/transports#session-management", MODERN_HTTP);

pub(super) const CHECKS: &[Check] = &[
    check!(
        "http/content-type",
        Http,
        Must,
        Since("2025-03-26"),
        Http,
        PAGE,
        "A request is answered as `application/json` or `text/event-stream`.",
        "Say with `Content-Type` which of both it is.",
        content_type
    ),
    check!(
        "http/notification-accepted",
        Http,
        Must,
        Since("2025-03-26"),
        Http,
        PAGE,
        "A notification is answered with 202 and no body, or refused with the status of an error.",
        "Answer what needs no answer with 202.",
        accepted
    ),
    check!(
        "http/origin",
        Http,
        Must,
        Since("2025-03-26"),
        Http,
        ("basic/transports#security-warning", MODERN_HTTP),
        "A request from a web page of another origin is refused, since 2025-11-25 with 403.",
        "Compare `Origin` with those that you allow, and answer others with 403.",
        origin
    ),
    check!(
        "http/get",
        Http,
        Must,
        LegacySince("2025-03-26"),
        Http,
        PAGE,
        "GET opens a stream, or is answered with 405.",
        "Answer GET with 405 where you have no stream for it.",
        get
    ),
    check!(
        "http/session-id",
        Http,
        Must,
        LegacySince("2025-03-26"),
        Http,
        SESSIONS,
        "A session's id has visible ASCII characters only.",
        "Make ids of letters and digits.",
        session_id
    ),
    check!(
        "http/session-required",
        Http,
        Should,
        LegacySince("2025-03-26"),
        Http,
        SESSIONS,
        "A request without the session's id is served, where none is needed, or answered with 400.",
        "Answer requests other than `initialize` that name no session with 400, if you need one.",
        session_required
    ),
    check!(
        "http/session-unknown",
        Http,
        Should,
        LegacySince("2025-03-26"),
        Http,
        SESSIONS,
        "A request with an id that is no session's is answered with 404.",
        "Answer unknown ids with 404, so that clients begin anew.",
        session_unknown
    ),
    check!(
        "http/session-ended",
        Http,
        Must,
        LegacySince("2025-03-26"),
        Http,
        SESSIONS,
        "DELETE ends a session, whose id is answered with 404 from then on, or is answered with 405.",
        "Forget a session that was ended.",
        session_ended
    ),
    check!(
        "http/version-header",
        Http,
        Must,
        LegacySince("2025-06-18"),
        Http,
        ("basic/transports#protocol-version-header", MODERN_HTTP),
        "A request with a version in its header that is not supported is answered with 400.",
        "Check `MCP-Protocol-Version`.",
        version_header
    ),
    check!(
        "http/header-mismatch",
        Http,
        Must,
        Modern,
        Http,
        (LEGACY_HTTP, "basic/transports/streamable-http#server-validation"),
        "Headers that say another thing than the body are answered with 400 and -32020.",
        "Compare `MCP-Protocol-Version`, `Mcp-Method` and `Mcp-Name` with the body.",
        header_mismatch
    ),
    check!(
        "http/version-mismatch",
        Http,
        Must,
        Modern,
        Http,
        (LEGACY_HTTP, "basic/transports/streamable-http#protocol-version-header"),
        "A version in the header that is not the one in the body is answered with 400.",
        "Compare `MCP-Protocol-Version` with the protocol version in `_meta`.",
        version_mismatch
    ),
    check!(
        "http/name-mismatch",
        Http,
        Must,
        Modern,
        Http,
        (LEGACY_HTTP, "basic/transports/streamable-http#server-validation"),
        "A tool's name in the header that is not the one in the body is answered with 400 and -32020.",
        "Compare `Mcp-Name` with `params.name`, or with `params.uri` for resources.",
        name_mismatch
    ),
    check!(
        "http/header-missing",
        Http,
        Must,
        Modern,
        Http,
        (LEGACY_HTTP, "basic/transports/streamable-http#server-validation"),
        "A request without `Mcp-Method` is answered with 400.",
        "Refuse requests whose headers are not complete.",
        header_missing
    ),
    check!(
        "http/no-session",
        Http,
        Should,
        Modern,
        Http,
        (LEGACY_HTTP, MODERN_HTTP),
        "No session is begun.",
        "Do not answer with `Mcp-Session-Id`: the revision has no sessions.",
        no_session
    ),
    check!(
        "http/method-status",
        Http,
        Must,
        Modern,
        Http,
        (LEGACY_HTTP, MODERN_HTTP),
        "A method that does not exist is answered with 404.",
        "Send -32601 with the status 404.",
        method_status
    ),
    check!(
        "http/version-status",
        Http,
        Must,
        Modern,
        Http,
        (LEGACY_HTTP, "basic/transports/streamable-http#protocol-version-header"),
        "A version that the server does not have is answered with 400.",
        "Send -32022 with the status 400.",
        version_status
    ),
    check!(
        "http/event-ids",
        Http,
        Must,
        LegacySince("2025-03-26"),
        Http,
        ("basic/transports#resumability-and-redelivery", MODERN_HTTP),
        "Where events have ids, each id is there once in the session.",
        "Number events over all streams of the session, or write the stream into the id.",
        event_ids
    ),
    check!(
        "http/resumed-stream",
        Http,
        Must,
        LegacySince("2025-03-26"),
        Http,
        ("basic/transports#resumability-and-redelivery", MODERN_HTTP),
        "A stream that is resumed has no message of another stream.",
        "Replay what came after `Last-Event-ID` on the stream with that event, and nothing else.",
        resumed
    ),
    check!(
        "http/parse-status",
        Http,
        Should,
        Since("2025-03-26"),
        Http,
        PAGE,
        "What is no JSON is answered with 400.",
        "Answer bodies that cannot be read with 400.",
        parse_status
    ),
];

/// Sends a message with its usual headers, changed by `other`; a value of `None` removes a header.
async fn post(conn: &mut Conn, message: &Value, other: &[(&str, Option<&str>)]) -> Result<HttpResponse, ProbeError> {
    let mut headers = conn.http().map(|http| http.headers_for(message)).unwrap_or_default();
    for (name, value) in other {
        headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        headers.extend(value.map(|value| ((*name).to_owned(), value.to_owned())));
    }
    conn.post("POST", &headers, &message.to_string()).await
}

fn harmless_request(probe: &Probe) -> Value {
    let method = if probe.is_modern() { "server/discover" } else { "ping" };
    probe.message(Some(&5.into()), method, Value::Null)
}

fn describe(answer: &HttpResponse) -> String {
    format!("it answers HTTP {} {}", answer.status, compact_json(&json!(answer.body)))
}

fn last_message(answer: &HttpResponse) -> Value {
    answer.messages().last().and_then(|text| parse(text)).unwrap_or_default()
}

async fn content_type(probe: Probe) -> Outcome {
    let answer = post(&mut probe.open().await?, &harmless_request(&probe), &[]).await?;
    let kind = answer.header("content-type").unwrap_or_default().to_ascii_lowercase();
    let fits = kind.starts_with("application/json") || kind.starts_with("text/event-stream");
    Ok(Verdict::holds_if(fits, || format!("it answers as {kind:?}")))
}

async fn accepted(probe: Probe) -> Outcome {
    // A notification that every server knows.
    let params = json!({ "requestId": "check-none", "reason": "check" });
    let message = probe.message(None, "notifications/cancelled", params);
    let answer = post(&mut probe.open().await?, &message, &[]).await?;
    let accepted = answer.status == 202 && answer.body.is_empty();
    Ok(Verdict::holds_if(accepted || (400..500).contains(&answer.status), || describe(&answer)))
}

async fn origin(probe: Probe) -> Outcome {
    let answer =
        post(&mut probe.open().await?, &harmless_request(&probe), &[("Origin", Some("https://evil.example"))]).await?;
    // The status was specified later than the refusal itself.
    let refused =
        if &*probe.revision < "2025-11-25" { (400..500).contains(&answer.status) } else { answer.status == 403 };
    Ok(Verdict::holds_if(refused, || describe(&answer)))
}

/// How long a stream without events is read.
const QUIET_STREAM_LIMIT: Duration = Duration::from_millis(700);

async fn get(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let mut headers = conn.http().map(|http| http.headers_for(&Value::Null)).unwrap_or_default();
    headers.retain(|(name, _)| !matches!(name.as_str(), "Accept" | "Content-Type"));
    headers.push(("Accept".to_owned(), "text/event-stream".to_owned()));
    let answer = conn.listen(&headers, QUIET_STREAM_LIMIT).await?;
    let streams = answer.status == 200 && answer.is_stream();
    Ok(Verdict::holds_if(streams || answer.status == 405, || describe(&answer)))
}

/// Opens a connection with a session, if the server has sessions.
async fn open_session(probe: &Probe) -> Result<Result<(Conn, String), Verdict>, ProbeError> {
    let mut conn = probe.open().await?;
    Ok(match conn.http().and_then(|http| http.session.clone()) {
        Some(session) => Ok((conn, session)),
        None => Err(Verdict::Skipped("it has no sessions".to_owned())),
    })
}

async fn session_id(probe: Probe) -> Outcome {
    match open_session(&probe).await? {
        Err(verdict) => Ok(verdict),
        Ok((_, id)) => {
            Ok(Verdict::holds_if(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), || format!("it is {id:?}")))
        }
    }
}

async fn session_required(probe: Probe) -> Outcome {
    match open_session(&probe).await? {
        Err(verdict) => Ok(verdict),
        Ok((mut conn, _)) => {
            let answer = post(&mut conn, &harmless_request(&probe), &[("Mcp-Session-Id", None)]).await?;
            Ok(Verdict::holds_if(answer.status == 400 || answer.status < 300, || describe(&answer)))
        }
    }
}

async fn session_unknown(probe: Probe) -> Outcome {
    match open_session(&probe).await? {
        Err(verdict) => Ok(verdict),
        Ok((mut conn, _)) => {
            let answer =
                post(&mut conn, &harmless_request(&probe), &[("Mcp-Session-Id", Some("check-no-such-session"))])
                    .await?;
            Ok(Verdict::holds_if(answer.status == 404, || describe(&answer)))
        }
    }
}

async fn session_ended(probe: Probe) -> Outcome {
    match open_session(&probe).await? {
        Err(verdict) => Ok(verdict),
        Ok((mut conn, _)) => {
            let headers = conn.http().map(|http| http.headers_for(&Value::Null)).unwrap_or_default();
            let answer = conn.post("DELETE", &headers, "").await?;
            if answer.status == 405 {
                return Ok(Verdict::Holds);
            }
            if answer.status >= 300 {
                return Ok(Verdict::Fails(describe(&answer)));
            }
            let after = post(&mut conn, &harmless_request(&probe), &[]).await?;
            Ok(Verdict::holds_if(after.status == 404, || describe(&after)))
        }
    }
}

async fn version_header(probe: Probe) -> Outcome {
    let answer =
        post(&mut probe.open().await?, &harmless_request(&probe), &[("MCP-Protocol-Version", Some("1999-12-31"))])
            .await?;
    Ok(Verdict::holds_if(answer.status == 400, || describe(&answer)))
}

async fn header_mismatch(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let answer = post(&mut conn, &harmless_request(&probe), &[("Mcp-Method", Some("tools/list"))]).await?;
    let holds = answer.status == 400 && error_code(&last_message(&answer)) == Some(-32020);
    Ok(Verdict::holds_if(holds, || describe(&answer)))
}

async fn version_mismatch(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let answer = post(&mut conn, &harmless_request(&probe), &[("MCP-Protocol-Version", Some("2099-01-01"))]).await?;
    // The server chooses which of the two versions it checks first, and so the code.
    Ok(Verdict::holds_if(answer.status == 400, || describe(&answer)))
}

async fn name_mismatch(probe: Probe) -> Outcome {
    if !probe.facts.offers("tools") {
        return Ok(Verdict::Skipped("it offers no tools".to_owned()));
    }
    let params = json!({ "name": "check_no_such_tool", "arguments": {} });
    let message = probe.message(Some(&5.into()), "tools/call", params);
    let answer = post(&mut probe.open().await?, &message, &[("Mcp-Name", Some("check_another_tool"))]).await?;
    let holds = answer.status == 400 && error_code(&last_message(&answer)) == Some(-32020);
    Ok(Verdict::holds_if(holds, || describe(&answer)))
}

async fn version_status(probe: Probe) -> Outcome {
    let mut message = harmless_request(&probe);
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let mut conn = probe.open().await?;
    let answer = post(&mut conn, &message, &[("MCP-Protocol-Version", Some("2099-01-01"))]).await?;
    Ok(Verdict::holds_if(answer.status == 400, || describe(&answer)))
}

/// Sends two requests in one session, and returns each id with its response.
async fn ping_streams(conn: &mut Conn, probe: &Probe) -> Result<Vec<(Value, HttpResponse)>, ProbeError> {
    let mut all = Vec::new();
    for id in ["check-stream-a", "check-stream-b"] {
        let message = probe.message(Some(&id.into()), "ping", Value::Null);
        all.push((json!(id), post(conn, &message, &[]).await?));
    }
    Ok(all)
}

async fn event_ids(probe: Probe) -> Outcome {
    let all = ping_streams(&mut probe.open().await?, &probe).await?;
    let ids: Vec<&String> =
        all.iter().flat_map(|(_, answer)| &answer.events).filter_map(|event| event.id.as_ref()).collect();
    if ids.is_empty() {
        return Ok(Verdict::Skipped("its events have no ids".to_owned()));
    }
    let mut seen = std::collections::HashSet::new();
    let twice = ids.iter().find(|id| !seen.insert(**id));
    Ok(twice.map_or(Verdict::Holds, |id| Verdict::Fails(format!("{id:?} is there twice"))))
}

async fn resumed(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let all = ping_streams(&mut conn, &probe).await?;
    let last = all.first().and_then(|(_, answer)| answer.events.iter().find_map(|event| event.id.clone()));
    let Some(last) = last else { return Ok(Verdict::Skipped("its events have no ids".to_owned())) };
    let mut headers = conn.http().map(|http| http.headers_for(&Value::Null)).unwrap_or_default();
    headers.retain(|(name, _)| !matches!(name.as_str(), "Accept" | "Content-Type"));
    headers.push(("Accept".to_owned(), "text/event-stream".to_owned()));
    headers.push(("Last-Event-ID".to_owned(), last.clone()));
    let answer = conn.listen(&headers, QUIET_STREAM_LIMIT).await?;
    if answer.status >= 400 {
        return Ok(Verdict::Skipped(format!("it resumes nothing: HTTP {}", answer.status)));
    }
    let messages: Vec<Value> = answer.messages().iter().filter_map(|text| parse(text)).collect();
    let foreign = messages.iter().find(|message| all.iter().skip(1).any(|(id, _)| message["id"] == *id));
    Ok(foreign
        .map_or(Verdict::Holds, |message| Verdict::Fails(format!("after {last:?} comes {}", compact_json(message)))))
}

async fn header_missing(probe: Probe) -> Outcome {
    let answer = post(&mut probe.open().await?, &harmless_request(&probe), &[("Mcp-Method", None)]).await?;
    Ok(Verdict::holds_if(answer.status == 400, || describe(&answer)))
}

async fn no_session(probe: Probe) -> Outcome {
    let answer = post(&mut probe.open().await?, &harmless_request(&probe), &[]).await?;
    let session = answer.header("mcp-session-id");
    Ok(Verdict::holds_if(session.is_none(), || format!("it begins the session {session:?}")))
}

async fn method_status(probe: Probe) -> Outcome {
    let message = probe.message(Some(&5.into()), "check/no-such-method", json!({}));
    let answer = post(&mut probe.open().await?, &message, &[]).await?;
    Ok(Verdict::holds_if(answer.status == 404, || describe(&answer)))
}

async fn parse_status(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let headers = conn.http().map(|http| http.headers_for(&harmless_request(&probe))).unwrap_or_default();
    let answer = conn.post("POST", &headers, r#"{"jsonrpc":"2.0","#).await?;
    Ok(Verdict::holds_if(answer.status == 400, || describe(&answer)))
}
