//! The REST API under `/api` and the two feed endpoints, for people at a dashboard, in a terminal or with curl.
//!
//! Every endpoint here needs a reviewer's or viewer's credential, on loopback too, but for signing in and for the
//! description of the API. Handlers only translate: what may happen to a change is decided in [`countersign_review`].

pub mod account;
pub mod audit_export;
pub mod body;
pub mod caller;
pub mod changes;
pub mod decisions;
pub mod events;
pub mod events_ws;
pub mod page;
pub mod policy;
pub mod posted;
pub mod problem;
pub mod providers;
pub mod query;
pub mod reload;
pub mod rules;
pub mod views;
pub mod webhooks;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use actix_web::{
    HttpRequest, HttpResponse, HttpResponseBuilder, Resource,
    guard::{self, Guard},
    http::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    web::{self, ServiceConfig},
};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use caller::Caller;
pub use problem::Problem;
pub use query::Query;
pub use views::{ProviderInfo, ProvidersView, SessionsView};

use countersign_auth::{Authenticator, DashboardSignIns, OriginRules, attempts::Attempts, codes::CodeStore};
use countersign_config::Config;
use countersign_domain::policy::People;
use countersign_exchange::slots::StreamSlots;
use countersign_protocol::ErrorKind;
use countersign_reload::Reloads;
use countersign_review::Changes;
use countersign_routing::{standing_rules::StandingRules, tool_acceptance::Definitions};
use countersign_runtime::lanes::{LARGE, aside};
use countersign_webhooks::Webhooks;

/// The description of this API (OpenAPI 3.1). A test holds it and [`ROUTES`] to each other.
pub const OPENAPI: &str = include_str!("openapi.json");

/// What the handlers need; given to the application as `web::Data`. One for all workers.
pub struct RestState {
    pub changes: Changes,
    pub authenticator: Arc<Authenticator>,
    pub sign_ins: Arc<DashboardSignIns>,
    pub codes: Arc<dyn CodeStore>,
    pub config: Arc<Config>,
    pub origins: Arc<OriginRules>,
    pub sessions: Arc<dyn SessionsView>,
    pub providers: Arc<dyn ProvidersView>,
    pub reloads: Arc<Reloads>,
    pub definitions: Arc<Definitions>,
    pub standing: Arc<StandingRules>,
    pub people: Arc<People>,
    pub webhooks: Arc<Webhooks>,
    /// Ends the feed's streams.
    pub shutdown: CancellationToken,
    /// One permit for each WebSocket, shared with `/ws` (`transports.websocket.max_connections`).
    pub web_sockets: Arc<Semaphore>,
    /// More of them for reviewers, when agents have all the others (`transports.http.reserved_connections`).
    pub reserved_web_sockets: Arc<Semaphore>,
    pub streams: Arc<StreamSlots>,
    pub sign_in_attempts: Attempts,
}

/// One path, its methods as the `Allow` header names them, and its handlers.
pub struct Route {
    pub path: &'static str,
    pub allow: &'static str,
    build: fn(Resource) -> Resource,
}

const READ: &str = "GET, HEAD";
const POST: &str = "POST";

fn read() -> impl Guard {
    guard::Any(guard::Get()).or(guard::Head())
}

/// All paths of this module.
pub const ROUTES: &[Route] = &[
    Route { path: "/api/openapi.json", allow: READ, build: |r| r.route(web::route().guard(read()).to(openapi)) },
    Route { path: "/api/sign-in", allow: POST, build: |r| r.route(web::post().to(account::sign_in)) },
    Route { path: "/api/sign-out", allow: POST, build: |r| r.route(web::post().to(account::sign_out)) },
    Route { path: "/api/me", allow: READ, build: |r| r.route(web::route().guard(read()).to(account::me)) },
    Route { path: "/api/changes", allow: READ, build: |r| r.route(web::route().guard(read()).to(changes::list)) },
    Route { path: "/api/changes/{id}", allow: READ, build: |r| r.route(web::route().guard(read()).to(changes::one)) },
    Route { path: "/api/changes/{id}/decision", allow: POST, build: |r| r.route(web::post().to(changes::decide)) },
    Route { path: "/api/changes/{id}/edit", allow: POST, build: |r| r.route(web::post().to(changes::edit)) },
    Route { path: "/api/changes/{id}/undo", allow: POST, build: |r| r.route(web::post().to(changes::undo)) },
    Route { path: "/api/changes/{id}/refresh", allow: POST, build: |r| r.route(web::post().to(changes::refresh)) },
    Route { path: "/api/decisions", allow: POST, build: |r| r.route(web::post().to(decisions::decide)) },
    Route { path: "/api/changes/{id}/settle", allow: POST, build: |r| r.route(web::post().to(changes::settle)) },
    Route { path: "/api/changes/{id}/rule", allow: POST, build: |r| r.route(web::post().to(rules::create)) },
    Route { path: "/api/rules", allow: READ, build: |r| r.route(web::route().guard(read()).to(rules::list)) },
    Route { path: "/api/rules/{id}/revoke", allow: POST, build: |r| r.route(web::post().to(rules::revoke)) },
    Route { path: "/api/policy/test", allow: POST, build: |r| r.route(web::post().to(policy::test)) },
    Route { path: "/api/audit", allow: READ, build: |r| r.route(web::route().guard(read()).to(changes::audit)) },
    Route {
        path: "/api/audit/export",
        allow: READ,
        build: |r| r.route(web::route().guard(read()).to(audit_export::export)),
    },
    Route { path: "/api/webhooks", allow: READ, build: |r| r.route(web::route().guard(read()).to(webhooks::list)) },
    Route {
        path: "/api/webhooks/{name}/deliveries",
        allow: READ,
        build: |r| r.route(web::route().guard(read()).to(webhooks::deliveries)),
    },
    Route { path: "/api/webhooks/{name}/retry", allow: POST, build: |r| r.route(web::post().to(webhooks::retry)) },
    Route { path: "/api/webhooks/{name}/test", allow: POST, build: |r| r.route(web::post().to(webhooks::test)) },
    Route { path: "/api/sessions", allow: READ, build: |r| r.route(web::route().guard(read()).to(views::sessions)) },
    Route { path: "/api/servers", allow: READ, build: |r| r.route(web::route().guard(read()).to(providers::servers)) },
    Route {
        path: "/api/servers/{name}",
        allow: READ,
        build: |r| r.route(web::route().guard(read()).to(providers::one)),
    },
    Route { path: "/api/servers/{name}/accept", allow: POST, build: |r| r.route(web::post().to(providers::accept)) },
    Route { path: "/api/servers/{name}/revoke", allow: POST, build: |r| r.route(web::post().to(providers::revoke)) },
    Route { path: "/api/servers/{name}/allow", allow: POST, build: |r| r.route(web::post().to(providers::allow)) },
    // By their old names.
    Route { path: "/api/providers", allow: READ, build: |r| r.route(web::route().guard(read()).to(providers::list)) },
    Route {
        path: "/api/providers/{name}",
        allow: READ,
        build: |r| r.route(web::route().guard(read()).to(providers::one)),
    },
    Route { path: "/api/providers/{name}/accept", allow: POST, build: |r| r.route(web::post().to(providers::accept)) },
    Route { path: "/api/providers/{name}/revoke", allow: POST, build: |r| r.route(web::post().to(providers::revoke)) },
    Route { path: "/api/config", allow: READ, build: |r| r.route(web::route().guard(read()).to(reload::in_force)) },
    Route { path: "/api/reload", allow: READ, build: |r| r.route(web::route().guard(read()).to(reload::status)) },
    Route { path: "/api/reload/consent", allow: POST, build: |r| r.route(web::post().to(reload::consent)) },
    Route { path: "/api/events", allow: "GET", build: |r| r.route(web::get().to(events::stream)) },
    Route { path: "/events", allow: "GET", build: |r| r.route(web::get().to(events_ws::upgrade)) },
];

/// Registers everything: `App::new().app_data(web::Data<RestState>).configure(rest::routes)`.
pub fn routes(config: &mut ServiceConfig) {
    for route in ROUTES {
        let allow = route.allow;
        let refuse = move |request: HttpRequest| {
            let problem = Problem::method_not_allowed(request.method().as_str(), allow);
            async move { Err::<HttpResponse, _>(problem) }
        };
        config.service((route.build)(web::resource(route.path)).default_service(web::to(refuse)));
    }
    config.service(web::scope("/api").default_service(web::to(not_found)));
}

/// A problem document for paths that lead nowhere; for the application's own default service too.
pub async fn not_found(request: HttpRequest) -> Result<HttpResponse, Problem> {
    Err(Problem::not_found(request.path()))
}

async fn openapi() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("application/json")
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-cache")))
        .insert_header((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
        .body(OPENAPI)
}

/// The `{id}` of the path, where it looks like one of ours.
fn path_id(request: &HttpRequest) -> Option<&str> {
    let id = request.match_info().query("id");
    let legal = (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    legal.then_some(id)
}

/// As [`json_ok`], of something that holds changes, which may be large: `bytes` are about those of its text.
async fn json_of(bytes: usize, body: impl Serialize + Send + 'static) -> Result<HttpResponse, Problem> {
    if bytes <= LARGE {
        return Ok(json_ok(&body));
    }
    let text = aside(bytes, move || serde_json::to_vec(&body)).await?;
    let text = text.map_err(|error| Problem::new(ErrorKind::Internal, error.to_string()))?;
    Ok(private().content_type("application/json").body(text))
}

fn json_ok(body: &impl Serialize) -> HttpResponse {
    private().json(body)
}

/// An answer that is nobody else's to keep.
fn private() -> HttpResponseBuilder {
    let mut response = HttpResponse::Ok();
    response
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
        .insert_header((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")));
    response
}
