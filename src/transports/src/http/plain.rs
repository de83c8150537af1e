//! Plain HTTP for one-shot users: health, info, metrics, the tools, and a call as one POST with the arguments as its
//! body. Same policy, same result.

use std::sync::Arc;

use actix_web::{
    HttpRequest, HttpResponse, ResponseError,
    http::{
        StatusCode,
        header::{self, HeaderValue},
    },
    web,
};
use serde_json::value::RawValue;

use super::{body::Body, identify};
use crate::services::HttpServices;
use countersign_domain::principal::Identity;
use countersign_exchange::{
    context::{Exchange, InFlight},
    facts::ClientFacts,
    related::Related,
    reply::Reply,
    shared::SessionShared,
};
use countersign_http::{answer, problem::Problem};
use countersign_protocol::{
    ErrorKind, McpError, RequestId, Revision, envelope::Request, json::quoted, outline::Outline, params::keys,
};
use countersign_provider::{AnswerFault, ToolResult, text::content_text};
use countersign_runtime::lanes::LARGE;
use countersign_session::{Handling, channel_less, handlers::lifecycle, middleware};
use countersign_telemetry::metrics::Transport;

/// The revision whose shapes this endpoint speaks.
const REVISION: Revision = Revision::MODERN;

/// `GET /health`: 200 while the gateway lives and can take work, else 503. Open to everyone who may connect:
/// probes have no keys.
pub async fn health(services: web::Data<HttpServices>) -> HttpResponse {
    let health = lifecycle::health_of(&services);
    let status = if health["ready"] == true { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    HttpResponse::build(status).insert_header((header::CACHE_CONTROL, "no-store")).json(health)
}

/// `GET /info`.
pub async fn info(request: HttpRequest, services: web::Data<HttpServices>) -> HttpResponse {
    match identify(&services, &request) {
        Ok(_) => HttpResponse::Ok().json(lifecycle::info_of(&services)),
        Err(error) => problem(error),
    }
}

/// `GET /metrics` (Prometheus text format 0.0.4).
pub async fn metrics(request: HttpRequest, services: web::Data<HttpServices>) -> HttpResponse {
    match identify(&services, &request) {
        Ok(_) => HttpResponse::Ok()
            .insert_header((header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8"))
            .body(services.render_metrics()),
        Err(error) => problem(error),
    }
}

/// `GET /tools`: what `tools/list` has, whole.
pub async fn tools(request: HttpRequest, services: web::Data<HttpServices>) -> HttpResponse {
    let identity = match identify(&services, &request) {
        Ok(identity) => identity,
        Err(error) => return problem(error),
    };
    if let Err(error) = middleware::authorize::role(&identity) {
        return problem(error);
    }
    let table = services.routes.load();
    let tools: Vec<&str> = {
        let visible = table.tools().iter().filter(|route| route.visible_to(&identity.principal));
        visible.map(|route| route.listed(REVISION)).collect()
    };
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "application/json"))
        .body(format!(r#"{{"tools":[{}]}}"#, tools.join(",")))
}

/// `POST /tools/{name}`: 200 with the result, 202 with the pending change, or a problem document.
pub async fn call(
    request: HttpRequest,
    name: web::Path<String>,
    payload: web::Payload,
    services: web::Data<HttpServices>,
) -> HttpResponse {
    match try_call(&request, &name, payload, &services.into_inner()).await {
        Ok(response) => response,
        Err(error) => problem(error),
    }
}

async fn try_call(
    request: &HttpRequest,
    name: &str,
    payload: web::Payload,
    services: &Arc<HttpServices>,
) -> Result<HttpResponse, McpError> {
    if services.shutdown.is_cancelled() {
        return Err(McpError::new(ErrorKind::ShuttingDown, "the gateway is shutting down"));
    }
    let identity = identify(services, request)?;
    let http = &services.config.transports.http;
    let mut sender = Body::new(payload);
    let body = sender.read(request, services, http.max_body, http.request_timeout).await?;
    if !body.is_empty() && !answer::is_json(request) {
        // A page of another origin can post anything but JSON without asking first.
        return Ok(Problem::unsupported_media_type().error_response());
    }
    let key = request.headers().get("idempotency-key").and_then(|v| v.to_str().ok());
    let reply = if body.len() > LARGE {
        let (lanes, principal) = (Arc::clone(&services.state.lanes), Arc::clone(&identity.principal));
        let (services, name, key) = (Arc::clone(services), name.to_owned(), key.map(str::to_owned));
        let work = move || async move { call_tool(&services, identity, &name, &body, key.as_deref()).await };
        tokio::select! {
            biased;
            reply = lanes.run(&principal.name, work) => reply?,
            () = sender.taken_back() => return Err(taken_back()),
        }
    } else {
        tokio::select! {
            biased;
            reply = call_tool(services, identity, name, &body, key) => reply,
            () = sender.taken_back() => return Err(taken_back()),
        }
    };
    match reply {
        Ok(reply) => response(&reply),
        Err(error) => match &error.foreign {
            Some(foreign) => {
                let error = McpError::new(error.kind, error.message.clone()).with("upstreamCode", foreign.code);
                Ok(failed(error.kind, &ToolResult::error(&error)))
            }
            None => Err(error),
        },
    }
}

/// Returns the HTTP response for the result of a `tools/call`.
fn response(reply: &Reply) -> Result<HttpResponse, McpError> {
    let result = ToolResult::from_answer(reply.json()).map_err(|fault| match fault {
        AnswerFault::InputRequired => {
            McpError::new(ErrorKind::InputRequired, "the tool needs input, and this endpoint cannot ask for any")
        }
        AnswerFault::Unreadable(why) => {
            McpError::new(ErrorKind::UpstreamUnavailable, format!("the result cannot be read: {why}"))
        }
    })?;
    Ok(match (reply.failure, &reply.change_id) {
        (None, Some(id)) if reply.pending => {
            let mut response = json(StatusCode::ACCEPTED, &result);
            if let Ok(location) = HeaderValue::from_str(&format!("/api/changes/{id}")) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            response
        }
        (None, _) => json(StatusCode::OK, &result),
        (Some(kind), Some(id)) => {
            Problem::new(kind, content_text(&result.content)).with("changeId", id.as_str()).error_response()
        }
        (Some(kind), None) => failed(kind, &result),
    })
}

fn taken_back() -> McpError {
    McpError::new(ErrorKind::Cancelled, "taken back by its client")
}

/// Runs the `tools/call` whose arguments are that body.
async fn call_tool(
    services: &Arc<HttpServices>,
    identity: Identity,
    name: &str,
    body: &[u8],
    key: Option<&str>,
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
        countersign_protocol::arguments::check(raw, services.config.limits.max_depth)?;
        if !raw.get().starts_with('{') {
            return Err(McpError::new(ErrorKind::InvalidParams, "the arguments must be a JSON object"));
        }
    }
    let mut params = format!(r#"{{"name":{},"arguments":{}"#, quoted(name), arguments.map_or("{}", RawValue::get));
    if let Some(key) = key {
        params.push_str(&format!(r#","_meta":{{"{}":{}}}"#, keys::IDEMPOTENCY_KEY, quoted(key)));
    }
    params.push('}');
    let params = RawValue::from_string(params)
        .map_err(|error| McpError::new(ErrorKind::Internal, format!("the parameters are not JSON: {error}")))?;
    let request = Request {
        id: RequestId::from(1),
        method: "tools/call".into(),
        params: Some(&params),
        outline: Outline::of(params.get()),
    };
    let exchange = exchange(services, identity);
    let in_flight = InFlight::admit(&exchange, &request.id, 1)?;
    let reply = middleware::run(&exchange, &request, &in_flight.cancel).await?;
    in_flight.answered();
    Ok(reply)
}

/// Returns the problem document for a tool that failed, with what it says of the failure itself.
fn failed(kind: ErrorKind, result: &ToolResult) -> HttpResponse {
    let text = content_text(&result.content);
    let report = result.structured_content.as_deref().map_or(text.as_str(), RawValue::get);
    let report = serde_json::from_str::<serde_json::Value>(report).unwrap_or_default();
    let detail = report["message"].as_str().unwrap_or("the tool failed").to_owned();
    let mut problem = Problem::new(kind, detail);
    // A server's tool may report a failure in any shape; `details` of the document is an object.
    if report["details"].as_object().is_some_and(|details| !details.is_empty()) {
        problem = problem.with("details", report["details"].clone());
    }
    problem.error_response()
}

fn json(status: StatusCode, result: &ToolResult) -> HttpResponse {
    HttpResponse::build(status).json(result)
}

fn problem(error: McpError) -> HttpResponse {
    Problem::from(error).error_response()
}

fn exchange(services: &Arc<HttpServices>, identity: Identity) -> Handling {
    let session: Arc<SessionShared> = Arc::new(channel_less(Transport::Rest, identity.clone(), services));
    let exchange = Exchange {
        services: Arc::clone(&services.shared),
        session,
        facts: Arc::new(ClientFacts { revision: REVISION, client: None, client_info: None, capabilities: "{}".into() }),
        identity,
        transport: Transport::Rest,
        related: Related::Nowhere,
        log_level: None,
        headers: None,
        table: services.routes.load_full(),
    };
    Handling { exchange, sessions: Arc::clone(&services.sessions.services) }
}
