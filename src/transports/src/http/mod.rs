//! Streamable HTTP at `/mcp` for both eras, the 2024-11-05 pair, and the plain HTTP endpoints.

pub mod body;
pub mod buffer;
pub mod event_streams;
pub mod forward;
pub mod large;
pub mod legacy_pair;
pub mod mcp;
pub mod modern;
pub mod plain;
pub mod session;

use actix_web::{
    HttpRequest, guard,
    http::{Method, header::HeaderMap},
    web,
};

use crate::endpoint::McpEndpoint;
use countersign_domain::principal::Identity;
use countersign_http::{answer, authentication::identify_agent};
use countersign_protocol::{
    McpError,
    headers::{HeaderField, Headers},
};

/// All endpoints but `/ws`, the dashboard and `/api`.
pub fn routes(cfg: &mut web::ServiceConfig) {
    cfg.service(
        web::resource("/mcp")
            // `web::post()` would note in a map of each request that there is POST, for an answer of 405 that is made
            // here without it.
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

/// As [`identify_agent`].
///
/// # Errors
/// `UNAUTHORIZED`.
pub fn identify(endpoint: &McpEndpoint, request: &HttpRequest) -> Result<Identity, McpError> {
    identify_agent(&endpoint.server.long_requests.authenticator, request)
}

/// Request headers as the protocol layer reads them.
pub struct View<'a>(pub &'a HeaderMap);

impl Headers for View<'_> {
    fn field(&self, name: &str) -> HeaderField<'_> {
        let mut all = match names::known(name) {
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

/// Headers of the protocol that are looked up with every request: a name that has to be parsed first costs more than
/// finding it.
pub(super) mod names {
    use actix_web::http::header::HeaderName;

    use countersign_protocol::headers;

    pub static PROTOCOL_VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
    pub static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
    static METHOD: HeaderName = HeaderName::from_static(headers::METHOD);
    static NAME: HeaderName = HeaderName::from_static(headers::NAME);

    pub fn known(name: &str) -> Option<&'static HeaderName> {
        [&PROTOCOL_VERSION, &METHOD, &NAME].into_iter().find(|known| known.as_str() == name)
    }
}
