//! Streamable HTTP at `/mcp` for both eras, the 2024-11-05 pair, and the plain HTTP endpoints.

pub mod body;
pub mod event_streams;
pub mod forward;
pub mod legacy_pair;
pub mod mcp;
pub mod modern;
pub mod plain;
pub mod session;

use actix_web::{
    HttpRequest, HttpResponse, guard,
    http::{Method, header::HeaderMap},
    web,
};

use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_http::{answer, guard::identify_agent};
use countersign_protocol::{
    McpError, RequestId, Revision,
    headers::{HeaderField, Headers},
};
use countersign_telemetry::RequestMetrics;

/// Adds all endpoints except `/ws`, the dashboard and `/api`.
pub fn routes(cfg: &mut web::ServiceConfig) {
    cfg.service(
        web::resource("/mcp")
            // `web::post()` would record POST in a map of each request for a 405 response, which is built here without it.
            .route(web::route().guard(guard::fn_guard(|ctx| ctx.head().method == Method::POST)).to(mcp::post))
            .route(web::get().to(mcp::get))
            .route(web::delete().to(mcp::delete))
            .default_service(web::to(answer::mcp_method_not_allowed)),
    )
    .service(web::resource("/sse").route(web::get().to(legacy_pair::stream)))
    .service(web::resource("/messages").route(web::post().to(legacy_pair::message)))
    .service(web::resource("/health").route(web::get().to(plain::health)))
    .service(web::resource("/info").route(web::get().to(plain::info)))
    .service(web::resource("/metrics").route(web::get().to(plain::metrics)))
    .service(web::resource("/tools").route(web::get().to(plain::tools)))
    .service(web::resource("/tools/{name}").route(web::post().to(plain::call)));
}

/// Authenticates an agent, as [`identify_agent`] does.
///
/// # Errors
/// `UNAUTHORIZED`.
pub fn identify(endpoint: &McpEndpoint, request: &HttpRequest) -> Result<Identity, McpError> {
    identify_agent(&endpoint.server.long_requests.authenticator, request)
}

/// Refuses a request with the status of its error, and counts the error.
fn refuse(error: &McpError, revision: Revision) -> HttpResponse {
    refuse_message(error.kind.status(), None, error, revision)
}

/// Refuses the request with that id, and counts the error.
fn refuse_message(status: u16, id: Option<&RequestId>, error: &McpError, revision: Revision) -> HttpResponse {
    RequestMetrics::get().record_error(error.kind);
    answer::error_with_status(status, id, error, revision)
}

/// The headers of a request, as the protocol layer reads them.
pub struct HeaderView<'a>(pub &'a HeaderMap);

impl Headers for HeaderView<'_> {
    fn field(&self, name: &str) -> HeaderField<'_> {
        let mut all = match names::find_known(name) {
            Some(name) => self.0.get_all(name),
            None => self.0.get_all(name),
        };
        match (all.next(), all.next()) {
            (None, _) => HeaderField::Absent,
            (Some(value), None) => HeaderField::One(value.as_bytes()),
            (Some(_), Some(_)) => HeaderField::Repeated,
        }
    }
}

/// The names of protocol headers that are looked up in every request. Finding a parsed name costs less than parsing it.
pub mod names {
    use actix_web::http::header::HeaderName;

    use countersign_protocol::headers;

    pub static PROTOCOL_VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
    pub static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
    static METHOD: HeaderName = HeaderName::from_static(headers::METHOD);
    static NAME: HeaderName = HeaderName::from_static(headers::NAME);

    /// Returns the parsed form of a name, if it is one of those above.
    pub fn find_known(name: &str) -> Option<&'static HeaderName> {
        [&PROTOCOL_VERSION, &METHOD, &NAME].into_iter().find(|known| known.as_str() == name)
    }
}
