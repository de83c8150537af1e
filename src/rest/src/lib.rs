//! The REST API under `/api`, the two feed endpoints, and the [`dashboard`], for people in a browser, in a terminal or with
//! curl.
//!
//! Every endpoint needs a reviewer's or viewer's credential, even on loopback, except those marked `security(())`: signing
//! in, logouts by the identity provider, the return of a browser from an authorization server, the client metadata, and the
//! description of the API.
//! Handlers only translate: [`countersign_review`] decides what may happen to a change.

pub mod absence;
pub mod account;
pub mod audit_export;
pub mod body;
pub mod bundles;
pub mod caller;
pub mod changes;
pub mod dashboard;
pub mod decisions;
pub mod embedded_files;
pub mod events;
pub mod events_ws;
mod file_edits;
pub mod first_steps;
pub mod identity_provider;
pub mod keys;
pub mod nodes;
pub mod openapi;
pub mod overview;
pub mod page;
pub mod plans;
pub mod policy;
pub mod policy_edits;
pub mod policy_rules;
pub mod previews;
pub mod problem_document;
pub mod query;
pub mod reload;
pub mod rules;
pub mod server_accounts;
pub mod server_edits;
pub mod server_info;
mod server_settings;
pub mod server_trials;
pub mod servers;
pub mod sessions;
mod trial_list;
pub mod webhooks;

#[cfg(test)]
mod tests;

use std::time::Duration;

use actix_web::{
    HttpMessage as _, HttpRequest, HttpResponse, Resource, ResponseError as _,
    body::BoxBody,
    dev::{ServiceRequest, ServiceResponse},
    http::{
        Method,
        header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    },
    middleware::{Next, from_fn},
    web::{self, ServiceConfig, delete, get, post, put},
};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::time::Instant;

pub use caller::{AccessData, Caller, SignInData};
pub use events::FeedAccess;
pub use first_steps::AgentCommand;
pub use query::Query;
pub use server_accounts::ServerAccounts;
pub use server_info::{RoutedServers, ServerInfo, ServerSource};
pub use sessions::SessionSource;
pub use trial_list::ServerTrials;

use countersign_http::{
    methods::{self, READ_METHODS, get_or_head},
    problem::Problem,
};
use countersign_protocol::ErrorKind;
use countersign_reload::Reloader;
use countersign_review::Changes;
use countersign_rulings::{
    rule_counts::RuleCounts, standing_rules::StandingRuleService, tool_acceptance::ToolAcceptances,
};
use countersign_runtime::{background::spawn_with_result, large_messages::offload};
use countersign_webhooks::Webhooks;

/// The data of the endpoints. Each receives its part as `web::Data`, one for all workers.
#[derive(Clone)]
pub struct RestData {
    pub access: web::Data<AccessData>,
    pub sign_in: web::Data<SignInData>,
    pub server_accounts: web::Data<dyn ServerAccounts>,
    pub feed: web::Data<FeedAccess>,
    pub agent_command: web::Data<AgentCommand>,
    pub changes: web::Data<Changes>,
    pub sessions: web::Data<dyn SessionSource>,
    pub servers: web::Data<dyn ServerSource>,
    pub reloader: web::Data<Reloader>,
    pub acceptances: web::Data<ToolAcceptances>,
    pub standing_rules: web::Data<StandingRuleService>,
    pub rule_counts: web::Data<RuleCounts>,
    pub trials: web::Data<ServerTrials>,
    pub webhooks: web::Data<Webhooks>,
}

/// A path, its methods as in the `Allow` header, and its handlers.
pub struct Route {
    pub path: &'static str,
    pub allow: &'static str,
    /// `true` if the handlers of GET and DELETE read the query. Those of other methods never do.
    has_query: bool,
    build: fn(Resource) -> Resource,
}

impl Route {
    /// Returns `true` if the handler of the method reads the query. A test compares this with [`openapi`].
    fn reads_query(&self, method: &str) -> bool {
        self.has_query && matches!(method, "GET" | "HEAD" | "DELETE")
    }
}

const POST: &str = "POST";

/// Builds a route. `QUERY` before it means that its handlers of GET and DELETE read the query.
macro_rules! route {
    (QUERY $($route:tt)+) => {
        Route { has_query: true, ..route!($($route)+) }
    };
    (READ $path:literal, $handler:path) => {
        route!($path, READ_METHODS; read => $handler)
    };
    (POST $path:literal, $handler:path) => {
        route!($path, POST; post => $handler)
    };
    ($path:literal, $allow:expr; $($method:ident => $handler:path),+) => {
        Route {
            path: $path,
            allow: $allow,
            has_query: false,
            build: |resource| resource$(.route($method().to($handler)))+,
        }
    };
}

/// Begins a route for GET and HEAD.
fn read() -> actix_web::Route {
    web::route().guard(get_or_head())
}

/// All paths of the REST API and the feed. A test compares them with [`openapi`].
pub const ROUTES: &[Route] = &[
    route!(READ "/api/openapi.json", openapi::get),
    route!("/api/sign-in", "GET, HEAD, POST"; read => identity_provider::options, post => account::sign_in),
    route!(QUERY READ "/api/sign-in/provider", identity_provider::begin),
    route!(QUERY READ "/api/sign-in/callback", identity_provider::finish),
    route!(POST "/api/sign-in/back-channel-logout", identity_provider::back_channel_logout),
    route!(POST "/api/sign-out", account::sign_out),
    route!(READ "/api/me", account::me),
    route!("/api/account/absence", "GET, HEAD, PUT, DELETE";
        read => absence::get, put => absence::set, delete => absence::end),
    route!(QUERY READ "/api/overview", overview::get),
    route!(READ "/api/first-steps", first_steps::get),
    route!(POST "/api/test-change", first_steps::propose_test_change),
    route!("/api/keys", "GET, HEAD, POST"; read => keys::list, post => keys::create),
    route!("/api/keys/{id}", "DELETE"; delete => keys::revoke),
    route!(QUERY READ "/api/changes", changes::list),
    route!(READ "/api/changes/{id}", changes::get),
    route!(POST "/api/changes/{id}/decision", changes::decide),
    route!(POST "/api/changes/{id}/edit", changes::edit),
    route!(POST "/api/changes/{id}/undo", changes::undo),
    route!(POST "/api/changes/{id}/refresh", changes::refresh),
    route!(READ "/api/bundles", bundles::list),
    route!(READ "/api/bundles/{id}", bundles::get),
    route!(READ "/api/plans/{id}", plans::get),
    route!(POST "/api/plans/{id}/decision", plans::decide),
    route!(POST "/api/decisions", decisions::decide),
    route!(POST "/api/changes/{id}/settle", changes::settle),
    route!(POST "/api/changes/{id}/rule", rules::create),
    route!(READ "/api/changes/{id}/suggestions", rules::suggest),
    route!(QUERY READ "/api/rules", rules::list),
    route!(POST "/api/rules/{id}/revoke", rules::revoke),
    route!(READ "/api/policy", policy_rules::get),
    route!(READ "/api/policy/file", policy_edits::file),
    route!("/api/policy/rules", "PUT"; put => policy_edits::replace),
    route!(POST "/api/policy/test", policy::test),
    route!(POST "/api/previews/test", previews::test),
    route!(QUERY READ "/api/audit", changes::audit),
    route!(QUERY READ "/api/audit/export", audit_export::export),
    route!(READ "/api/webhooks", webhooks::list),
    route!(QUERY READ "/api/webhooks/{name}/deliveries", webhooks::deliveries),
    route!(POST "/api/webhooks/{name}/retry", webhooks::retry),
    route!(POST "/api/webhooks/{name}/test", webhooks::test),
    route!(QUERY READ "/api/sessions", sessions::list),
    route!(READ "/api/nodes", nodes::list),
    route!(QUERY "/api/servers", "GET, HEAD, POST"; read => servers::list, post => server_edits::add),
    route!(READ "/api/server-file", server_edits::file),
    route!("/api/server-trials", "GET, HEAD, POST"; read => server_trials::list, post => server_trials::start),
    route!(POST "/api/server-trials/{id}/decision", server_trials::decide),
    // Before the servers' own paths. No server has this name.
    route!(QUERY READ "/api/servers/callback", server_accounts::finish),
    route!(QUERY "/api/servers/{name}", "GET, HEAD, PUT, DELETE";
        read => servers::get, put => server_edits::replace, delete => server_edits::remove),
    route!(POST "/api/servers/{name}/accept", servers::accept),
    route!(POST "/api/servers/{name}/accept-known-reads", servers::accept_known_reads),
    route!(POST "/api/servers/{name}/revoke", servers::revoke),
    route!(POST "/api/servers/{name}/allow", servers::allow),
    route!(POST "/api/servers/{name}/connect", server_accounts::connect),
    route!("/api/servers/{name}/connection", "DELETE"; delete => server_accounts::disconnect),
    route!(READ "/.well-known/oauth-client.json", server_accounts::client_metadata),
    route!(READ "/api/config", reload::active_config),
    route!(READ "/api/reload", reload::status),
    route!(POST "/api/reload/consent", reload::consent),
    route!(QUERY "/api/events", "GET"; get => events::stream),
    route!(QUERY "/events", "GET"; get => events_ws::upgrade),
];

/// Adds all paths with their data.
pub fn routes(data: &RestData, config: &mut ServiceConfig) {
    let data = data.clone();
    config.app_data(data.access).app_data(data.sign_in).app_data(data.server_accounts).app_data(data.feed);
    config.app_data(data.agent_command).app_data(data.changes).app_data(data.sessions).app_data(data.servers);
    config.app_data(data.reloader).app_data(data.acceptances).app_data(data.standing_rules);
    config.app_data(data.rule_counts).app_data(data.trials).app_data(data.webhooks);
    for route in ROUTES {
        let resource =
            (route.build)(web::resource(route.path)).default_service(methods::refuse_other_methods(route.allow));
        let limit = move |request: ServiceRequest, next: Next<BoxBody>| limit_request(route, request, next);
        config.service(resource.wrap(from_fn(limit)));
    }
    config.service(web::scope("/api").default_service(web::to(not_found)));
}

/// Returns the maximum time from the head of a request to the head of its response: `transports.http.request_timeout`. A test
/// of a webhook may take as long as its receiver, plus a second for the gateway.
fn max_request_time(route: &Route, request: &HttpRequest) -> Result<Duration, Problem> {
    let limit = caller::access_data(request)?.http.request_timeout;
    if route.path != "/api/webhooks/{name}/test" {
        return Ok(limit);
    }
    let webhooks = request.app_data::<web::Data<Webhooks>>();
    let timeout = webhooks.and_then(|webhooks| webhooks.attempt_timeout(&path_name(request)));
    Ok(timeout.map_or(limit, |timeout| limit.max(timeout + Duration::from_secs(1))))
}

/// Limits a request to its [`max_request_time`], and refuses the parameters of one whose handler does not read the query. Other
/// methods than those of the path have no handler.
async fn limit_request(
    route: &'static Route,
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let method = request.method().as_str();
    if route.allow.split(", ").any(|allowed| allowed == method)
        && !route.reads_query(method)
        && let Err(problem) = Query::read(request.request(), &[])
    {
        return Ok(request.into_response(problem.error_response()));
    }
    let limit = max_request_time(route, request.request())?;
    let head = request.request().clone();
    let end = Instant::now() + limit;
    request.extensions_mut().insert(body::RequestDeadline(end));
    match tokio::time::timeout_at(end, next.call(request)).await {
        Ok(answer) => answer,
        Err(_) => {
            let text = match *head.method() {
                Method::GET | Method::HEAD => "the request took too long; try again",
                _ => "the request took too long and may have taken effect; check before you try again",
            };
            let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            let timeout_problem = Problem::new(ErrorKind::Timeout, text).with("timeoutMs", limit);
            Ok(ServiceResponse::new(head, timeout_problem.error_response()))
        }
    }
}

/// Responds to an unknown path with a problem document. Also the default service of the application.
pub async fn not_found(request: HttpRequest) -> Result<HttpResponse, Problem> {
    Err(Problem::not_found(request.path()))
}

/// Returns the `{name}` of the path, without percent-encodings.
fn path_name(request: &HttpRequest) -> String {
    // Actix has decoded everything except `%25`, `%2F` and `%2B`, so nothing is decoded twice.
    percent_decode_str(request.match_info().query("name")).decode_utf8_lossy().into_owned()
}

/// Returns the `{id}` of the path if it has the form of an id of the gateway.
fn path_id(request: &HttpRequest) -> Option<&str> {
    let id = request.match_info().query("id");
    let is_legal = (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    is_legal.then_some(id)
}

/// Runs work in a task of its own, so that a client that disconnects cannot interrupt it.
///
/// # Errors
/// `INTERNAL_ERROR` with this message if the work did not end.
async fn run_uninterrupted<T: 'static>(
    work: impl Future<Output = T> + 'static,
    unfinished: &'static str,
) -> Result<T, Problem> {
    spawn_with_result(work).await.map_err(|_| Problem::new(ErrorKind::Internal, unfinished))
}

/// Returns a response like [`json_response`], whose text has about `estimated_bytes`. A large text is written on another thread.
async fn offload_json_response(
    estimated_bytes: usize,
    body: impl Serialize + Send + 'static,
) -> Result<HttpResponse, Problem> {
    to_json_response(offload(estimated_bytes, move || serde_json::to_vec(&body)).await?)
}

/// Returns the response with this body as JSON.
fn json_response(body: &impl Serialize) -> HttpResponse {
    to_json_response(serde_json::to_vec(body)).unwrap_or_else(|problem| problem.error_response())
}

/// Returns the response with a text of JSON, or the error of writing it.
fn to_json_response(text: serde_json::Result<Vec<u8>>) -> Result<HttpResponse, Problem> {
    let text = text.map_err(|error| Problem::new(ErrorKind::Internal, error.to_string()))?;
    Ok(HttpResponse::Ok()
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
        .insert_header((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
        .content_type("application/json")
        .body(text))
}
