//! Plain HTTP for clients without MCP: health, info, metrics, the tools, and a call as one POST with its arguments as the body.
//! Policy and results are the same as those of MCP.

use std::{borrow::Cow, sync::Arc};

use actix_web::{
    HttpRequest, HttpResponse,
    http::{StatusCode, header},
    web,
};
use serde_json::{Value, json, value::RawValue};

use super::{HeaderView, identify, identify_caller, read_body};
use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_exchange::{
    context::Exchange,
    facts::ClientFacts,
    reply::{RelatedChannel, Reply},
};
use countersign_http::{
    problem::Problem,
    protected_resource::{self, METADATA_PATH},
};
use countersign_protocol::{
    ErrorKind, McpError, RequestId, Revision,
    envelope::Request,
    headers::{HeaderField, Headers as _},
    json::quoted,
    outline::Outline,
    params::keys,
};
use countersign_provider::{AnswerError, ToolResult, text::content_text};
use countersign_session::{RequestScope, inbound};
use countersign_telemetry::metrics::Transport;

/// The revision whose formats this endpoint uses.
const REVISION: Revision = Revision::MODERN;

/// `GET /health`: 200 while the gateway can handle calls, else 503. It needs no credential, because probes have none.
pub async fn health(endpoint: web::Data<McpEndpoint>) -> HttpResponse {
    let health = endpoint.server.status.health();
    let status = if health["ready"] == true { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    HttpResponse::build(status).insert_header((header::CACHE_CONTROL, "no-store")).json(health)
}

/// `GET /info`.
pub async fn info(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> Result<HttpResponse, Problem> {
    identify(&endpoint, &request)?;
    Ok(HttpResponse::Ok().json(endpoint.server.status.info()))
}

/// `GET /metrics` (Prometheus text format 0.0.4).
pub async fn metrics(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> Result<HttpResponse, Problem> {
    identify(&endpoint, &request)?;
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8"))
        .body(endpoint.server.status.render_metrics()))
}

/// `GET /.well-known/oauth-protected-resource`, with or without the path of an endpoint: who issues access tokens for it. It
/// needs no credential (RFC 9728).
pub async fn resource_metadata(
    request: HttpRequest,
    endpoint: web::Data<McpEndpoint>,
) -> Result<HttpResponse, Problem> {
    let path = request.path().strip_prefix(METADATA_PATH).filter(|path| !path.is_empty()).unwrap_or("/mcp");
    let metadata = protected_resource::metadata(endpoint.sessions.authenticator.tokens(), path);
    let metadata = metadata.ok_or_else(|| Problem::not_found(request.path()))?;
    Ok(HttpResponse::Ok().insert_header((header::CACHE_CONTROL, "no-cache")).json(metadata))
}

/// `GET /tools`: the whole result of `tools/list`.
pub async fn tools(request: HttpRequest, endpoint: web::Data<McpEndpoint>) -> Result<HttpResponse, Problem> {
    let identity = identify_caller(&endpoint, &request)?;
    let table = endpoint.server.routing.routes.load();
    let tools: Vec<&str> = table.tools_for(&identity.principal).map(|route| route.list_entry(REVISION)).collect();
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "application/json"))
        .body(format!(r#"{{"tools":[{}]}}"#, tools.join(","))))
}

/// `POST /tools/{name}`: 200 with the result, 202 with the pending change, or a problem document.
pub async fn call(
    request: HttpRequest,
    name: web::Path<String>,
    payload: web::Payload,
    endpoint: web::Data<McpEndpoint>,
) -> Result<HttpResponse, Problem> {
    endpoint.check_open()?;
    let endpoint = endpoint.into_inner();
    let identity = identify(&endpoint, &request)?;
    let received = read_body(&request, payload.into_inner(), &endpoint).await;
    let (body, _reservation) = received.map_err(|error| match error.kind {
        ErrorKind::Timeout => Problem::request_timeout(),
        _ => error.into(),
    })?;
    if !body.is_empty() {
        // A page of another origin can post anything except JSON without a preflight request.
        Problem::check_json_headers(&request)?;
    }
    let meta = read_meta(&request)?;
    let (large_messages, principal) = (Arc::clone(&endpoint.server.large_messages), Arc::clone(&identity.principal));
    let bytes = body.len();
    let work = move || async move { call_tool(&endpoint, identity, &name, &body, &meta).await };
    match large_messages.run_sized(bytes, &principal.name, work).await? {
        Ok(reply) => to_response(&reply),
        Err(error) => Err(to_problem(error)),
    }
}

/// Returns the HTTP response for the result of a `tools/call`.
fn to_response(reply: &Reply) -> Result<HttpResponse, Problem> {
    let result = ToolResult::from_answer(&reply.json).map_err(|fault| match fault {
        AnswerError::InputRequired => {
            McpError::new(ErrorKind::InputRequired, "the tool needs input, and this endpoint cannot ask for any")
        }
        AnswerError::Unreadable(reason) => {
            McpError::new(ErrorKind::UpstreamUnavailable, format!("the result cannot be read: {reason}"))
        }
    })?;
    match (reply.failure, &reply.change_id) {
        (None, Some(id)) if reply.is_pending => {
            Ok(HttpResponse::Accepted().insert_header((header::LOCATION, format!("/api/changes/{id}"))).json(&result))
        }
        (None, _) => Ok(HttpResponse::Ok().json(&result)),
        (Some(kind), Some(id)) => Err(tool_failure(kind, &result).with("changeId", id.as_str())),
        (Some(kind), None) => Err(tool_failure(kind, &result)),
    }
}

/// Returns the members of `_meta` that headers set, as the text of a JSON object.
///
/// # Errors
/// `INVALID_REQUEST` for a header that is given more than once, since different readers might pick different ones, and for an
/// idempotency key that is not UTF-8.
fn read_meta(request: &HttpRequest) -> Result<String, McpError> {
    let headers = HeaderView(request.headers());
    let invalid = |message: String| Err(McpError::new(ErrorKind::InvalidRequest, message));
    let mut members = Vec::new();
    for (name, key) in [("Idempotency-Key", keys::IDEMPOTENCY_KEY), ("Countersign-Reason", keys::REASON)] {
        let value = match headers.field(name) {
            HeaderField::Absent => continue,
            HeaderField::One(value) => value,
            HeaderField::Repeated => return invalid(format!("more than one {name} header")),
        };
        let text = match str::from_utf8(value) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) if key == keys::IDEMPOTENCY_KEY => {
                return invalid(format!("the {name} header is not UTF-8; use ASCII characters only"));
            }
            // Some HTTP clients send header text as Latin-1, where each byte is a code point. The reason is text for people.
            Err(_) => value.iter().copied().map(char::from).collect(),
        };
        members.push(format!("\"{key}\":{}", quoted(&text)));
    }
    Ok(format!("{{{}}}", members.join(",")))
}

/// Runs a `tools/call` with the body as its arguments and `meta` as its `_meta`.
async fn call_tool(
    endpoint: &Arc<McpEndpoint>,
    identity: Identity,
    name: &str,
    body: &[u8],
    meta: &str,
) -> Result<Reply, McpError> {
    let arguments: Option<&RawValue> = if body.is_empty() {
        None
    } else {
        Some(
            serde_json::from_slice(body)
                .map_err(|e| McpError::new(ErrorKind::Parse, format!("the body is not JSON: {e}")))?,
        )
    };
    if let Some(raw) = arguments {
        countersign_protocol::arguments::check(raw, endpoint.server.limits.envelope.max_depth)?;
        if !raw.get().starts_with('{') {
            return Err(McpError::new(ErrorKind::InvalidParams, "the arguments must be a JSON object"));
        }
    }
    let arguments = arguments.map_or("{}", RawValue::get);
    let params = format!(r#"{{"name":{},"arguments":{arguments},"_meta":{meta}}}"#, quoted(name));
    let params = RawValue::from_string(params)
        .map_err(|error| McpError::new(ErrorKind::Internal, format!("the parameters are not JSON: {error}")))?;
    let request = Request {
        id: RequestId::from(1),
        method: "tools/call".into(),
        params: Some(&params),
        outline: Outline::new(params.get()),
    };
    let scope = build_scope(endpoint, identity);
    inbound::run_request(&scope, &request).await
}

/// Returns the problem document for an error. The code and the data of a server's error become `details`.
fn to_problem(error: McpError) -> Problem {
    let Some(foreign) = &error.passthrough else { return error.into() };
    let mut details = json!({ "upstreamCode": foreign.code });
    if let Some(data) = &foreign.data {
        details["upstreamData"] = value_or_text(data);
    }
    Problem::new(error.kind, error.message.clone()).with("details", details)
}

/// Returns the problem document for a tool that failed, with the tool's text and structured content. The details of an error in
/// the form of [`ToolResult::error`] become members of the document.
fn tool_failure(kind: ErrorKind, result: &ToolResult) -> Problem {
    let text = content_text(&result.content);
    let report = text.parse::<Value>().unwrap_or_default();
    if report["error"] == true
        && report["code"] == kind.code()
        && let Some(message) = report["message"].as_str()
    {
        let problem = Problem::new(kind, message.to_owned());
        return match &report["details"] {
            Value::Object(details) if !details.is_empty() => problem.with("details", details.clone()),
            _ => problem,
        };
    }
    let problem = Problem::new(kind, if text.is_empty() { "the tool failed".to_owned() } else { text });
    match &result.structured_content {
        Some(content) => problem.with("structuredContent", value_or_text(content.get())),
        None => problem,
    }
}

/// Parses JSON. Returns it as a text if it has numbers out of range, or is nested too deeply.
fn value_or_text(json: &str) -> Value {
    json.parse().unwrap_or_else(|_| json.into())
}

fn build_scope(endpoint: &Arc<McpEndpoint>, identity: Identity) -> RequestScope {
    let server = Arc::clone(&endpoint.server);
    let exchange = Exchange {
        session: endpoint.sessions.create_stateless_session(Transport::Rest, identity.clone()),
        facts: Arc::new(ClientFacts { revision: REVISION, client: None, client_info: None, capabilities: "{}".into() }),
        identity,
        transport: Transport::Rest,
        related: RelatedChannel::None,
        log_level: None,
        headers: None,
    };
    RequestScope { exchange, table: server.routing.routes.load_full(), server }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    fn failure_document(kind: ErrorKind, json: &str) -> Value {
        let reply = Reply::new(json.to_owned()).with_failure(Some(kind));
        serde_json::to_value(to_response(&reply).unwrap_err()).unwrap()
    }

    #[test]
    fn failure_of_tool_keeps_its_text_and_structured_content() {
        let failed = failure_document(
            ErrorKind::ToolExecution,
            r#"{"content":[{"type":"text","text":"over quota"}],"structuredContent":{"message":"m","n":5},"isError":true}"#,
        );
        assert_eq!((&failed["status"], &failed["code"]), (&json!(422), &json!("TOOL_EXECUTION_ERROR")));
        assert_eq!((&failed["detail"], &failed["structuredContent"]["n"]), (&json!("over quota"), &json!(5)));
        let json = r#"{"content":[],"structuredContent":{"n":1e400},"isError":true}"#;
        let out_of_range = failure_document(ErrorKind::ToolExecution, json);
        assert_eq!(out_of_range["detail"], "the tool failed");
        assert_eq!(out_of_range["structuredContent"], r#"{"n":1e400}"#);
    }

    #[test]
    fn error_of_gateway_becomes_members_of_the_document() {
        for (kind, status) in [(ErrorKind::ToolExecution, 422), (ErrorKind::UpstreamUnavailable, 502)] {
            let error = McpError::new(kind, "no answer").with("outcome", "unknown");
            let failed = failure_document(kind, &ToolResult::error(&error).to_json(REVISION, true));
            assert_eq!((&failed["status"], &failed["code"]), (&json!(status), &json!(kind.code())));
            assert_eq!(
                (&failed["detail"], &failed["details"]),
                (&json!("no answer"), &json!({ "outcome": "unknown" }))
            );
            assert!(failed.get("structuredContent").is_none(), "{failed}");
        }
    }

    #[test]
    fn error_of_server_keeps_its_code_and_data() {
        let error = McpError::from_upstream(ErrorKind::UpstreamError, -31234, "no", Some(r#"{"field":"a"}"#));
        let refused = serde_json::to_value(to_problem(error)).unwrap();
        assert_eq!((&refused["detail"], &refused["code"]), (&json!("no"), &json!("UPSTREAM_ERROR")));
        assert_eq!(refused["details"], json!({ "upstreamCode": -31234, "upstreamData": { "field": "a" } }));
    }

    #[test]
    fn header_for_meta_may_be_given_once() {
        let read = |headers: &[(&str, &str)]| {
            let request = headers.iter().fold(TestRequest::default(), |request, header| request.append_header(*header));
            read_meta(&request.to_http_request()).map_err(|error| error.kind)
        };
        let (key, reason) = (("idempotency-key", "k"), ("countersign-reason", "why"));
        assert_eq!(read(&[]).as_deref(), Ok("{}"));
        let both = r#"{"dev.countersign/idempotencyKey":"k","dev.countersign/reason":"why"}"#;
        assert_eq!(read(&[key, reason]).as_deref(), Ok(both));
        for repeated in [key, reason] {
            assert_eq!(read(&[repeated, ("accept", "*/*"), repeated]), Err(ErrorKind::InvalidRequest), "{repeated:?}");
        }
    }

    #[test]
    fn header_in_latin1_is_refused_as_key_and_decoded_as_reason() {
        let read = |name: &str, value: &[u8]| {
            read_meta(&TestRequest::default().insert_header((name, value)).to_http_request())
        };
        let reason = r#"{"dev.countersign/reason":"Für Ü"}"#;
        for value in ["Für Ü".as_bytes(), b"F\xfcr \xdc"] {
            assert_eq!(read("countersign-reason", value).unwrap(), reason, "{value:?}");
        }
        assert_eq!(read("idempotency-key", "ü".as_bytes()).unwrap(), r#"{"dev.countersign/idempotencyKey":"ü"}"#);
        let error = read("idempotency-key", b"\xfc").unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest);
        assert!(error.message.contains("Idempotency-Key"), "{error:?}");
    }
}
